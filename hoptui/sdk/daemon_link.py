"""The link thread: it owns the run's only socket and exchanges all messages with the daemon.

It finds or starts the daemon, sends a hello, sends rows, pulses and outcomes, and receives commands. Its
errors stay here: after five errors in a row the link switches itself off with one log line, and training goes
on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import structs

from hoptui.domain import pacing
from hoptui.domain.details import RunDetails
from hoptui.domain.facts import Fact, clean_text, fact
from hoptui.domain.phases import PhaseSpan
from hoptui.node import processes
from hoptui.node.addresses import AddressError, Addresses, addresses
from hoptui.protocol import codec, messages
from hoptui.sdk import message_size, output_copy, process
from hoptui.sdk.code_places import LONGEST_NAME
from hoptui.sdk.connections import HeldConnections
from hoptui.sdk.details import packages
from hoptui.sdk.job_exchange import JobExchange
from hoptui.sdk.metric_values import clean_name
from hoptui.sdk.send_buffer import SendBuffer
from hoptui.sdk.shared_state import Ending, JobPlace, JobStore, SharedState, new_run_id
from hoptui.sdk.stack_sampler import StackSampler

log = logging.getLogger("hoptui")

ROWS_KEEP_COMING_S = 0.5
"""After a row, the thread polls for the next one for this long instead of waiting to be woken. A loop that is
slower than two polls wakes the thread for each row: fewer turns compete with it for the interpreter."""
PULSE_EVERY_S = 1.0
DETAILS_EVERY_S = 1.0
"""A run sends its details at most so often: a script may set a result in each iteration."""
HELLO_AGAIN_S = 0.02
"""The first retry of a hello that found no connection. Each further retry takes twice as long."""
ERRORS_IN_A_ROW = 5
START_AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 60.0)
OTHERS_START_S = 4.0
"""How long a rank that is not the first one of its node waits for a daemon before it starts one itself."""
NO_STORE = "the ranks share no store"
TOO_MUCH_DECLARED = "the declarations of {} knobs are too large: {} are shown, without descriptions"
MOST_COMPLAINTS = 10
CLOSE_S = 1.0
TELL_S = 0.7
"""How long the end of a run waits for the daemon to take the outcomes of its commands."""
READABLE = 1
"""`zmq.POLLIN` as a plain number: pyzmq's flag makes an enumeration member for each `&`."""
REACH_S = 2.0
"""How long the end of a run tries to reach a daemon that lives, if the run was too short to do so before."""
KEEP_S = 1.5
"""How long the end of a process waits for the daemon to write what it was sent, if both may end together."""
LATE_S = 600.0
"""How long a run that has ended tries to say so to a daemon that reads nothing, if its process goes on."""
LATE_LOOK_S = 0.5
"""How often it looks then for another daemon."""
LAST_S = 0.2
"""How much longer it waits for room for notes, rows and the goodbye."""
STACKS_EVERY_S = 2.0
"""How often the stack samples are sent."""
DESCRIPTORS = 32
"""File descriptors that must be free. A zmq context with one socket takes eight of them."""


class DaemonLink:
    """Owns the socket. Its public methods are safe to call from the training thread."""

    def __init__(self, state: SharedState, owner: object = None, place: JobPlace | None = None) -> None:
        self._state = state
        self._place = place or JobPlace()
        self._owner = owner  # alive as long as the thread, so that it is closed at exit
        self._buffer = SendBuffer(_source(state))
        self._thread = threading.Thread(target=self._main, name="hoptui-link", daemon=True)
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._closing = False
        self._done = threading.Event()  # all is sent, or the thread ends
        self._leaving_at = 0.0
        self._bye: messages.Bye | None = None
        self._greeted = self._welcomed = self._renamed = self._polls_out = False
        self._hello_number = 1
        self._retired = False
        self._revision = 0
        self._details_revision = 0
        self._details: RunDetails | None = None  # as they were sent last
        self._next_details = 0.0
        self._rows_at = 0.0
        self._taken_at = 0.0  # when the socket took a message last
        self._next_pulse = self._next_rows = self._next_start = 0.0
        if self._place.away and process.local_rank(os.environ):  # the first one on the node starts a daemon
            self._next_start = time.monotonic() + OTHERS_START_S
        self._starts = 0
        self._started = False  # this link has started a daemon
        self._hello_again_s = HELLO_AGAIN_S
        self._warned = False
        self._outcomes: deque[messages.Outcome] = deque()  # in order, until ZeroMQ takes them
        self._daemon = 0  # pid
        self._acks = False
        self._left_out: Fact | None = None
        self._complaints: set[str] = set()
        self._stacks: StackSampler | None = None
        self._next_stacks = 0.0
        self._wants_output = False  # the daemon
        self._output: messages.Output | None = None  # that the socket has not taken yet
        self._next_output = 0.0
        self._job: JobExchange | None = None  # of a run on several nodes

    @property
    def _describes(self) -> bool:
        """Whether this process tells its daemon what the run is: rank 0, or one on a node without it."""
        return self._state.rank == 0 or self._place.away

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Send at once."""
        with contextlib.suppress(OSError):
            self._wake_out.send(b"!")

    def close(self, reason: Ending, detail: str, *, at_exit: bool = False) -> None:
        """Send the rest and a Bye. Return after a second at most; the thread is a daemon thread.

        A run that has not reached its daemon yet has `REACH_S` more for that.
        """
        confirm = self._describes and processes.ends_with_daemon(os.environ)
        self._bye = messages.Bye(reason=reason, detail=detail, at_exit=at_exit, confirm=confirm)
        self.leave()

    def leave(self) -> None:
        """Send the rest without a Bye, because the run goes on under this pid."""
        self._leaving_at = time.monotonic()
        self._closing = True
        self.wake()
        self._done.wait(CLOSE_S)
        if not self._greeted:
            self._done.wait(REACH_S)

    def part(self) -> None:
        """The process ends: wait until the daemon has written what it was sent, if both may end together."""
        if self._bye is not None and self._bye.confirm:
            self._thread.join(KEEP_S)

    # in the thread ------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._serve(addresses())
        except AddressError as error:
            self._off(str(error))
        except Exception as error:
            self._off(f"{type(error).__name__}: {error}")
        finally:
            self._sample(wanted=False)
            self._wake_in.close()
            self._wake_out.close()
            self._done.set()

    def _serve(self, where: Addresses) -> None:
        import zmq

        require_descriptors()
        process.close_in_children(where.directory)
        context = zmq.Context()
        context.linger = 0
        try:
            sock = context.socket(zmq.DEALER)
            sock.immediate = True  # do not queue messages without a connection
            sock.sndhwm, sock.rcvhwm = 64, 256
            sock.reconnect_ivl, sock.reconnect_ivl_max = 100, 1000
            sock.maxmsgsize = codec.MAX_BYTES
            sock.connect(f"ipc://{where.runs}")
            try:
                self._exchange(sock, where, zmq)
            except Exception as error:
                self._off(f"{type(error).__name__}: {error}")
            if self._state.off is not None and self._greeted:
                with contextlib.suppress(Exception):  # what ended the link may end this too
                    self._send(sock, zmq, structs.replace(self._pulse(time.monotonic()), off=self._state.off))
        finally:
            # What is left is sent meanwhile. That may take a while; `close` waits for a second of it.
            until = self._leaving_at + (LATE_S if self._stays else CLOSE_S)
            held = HeldConnections(where.runs)
            context.destroy(linger=max(200, int(1000 * (until - time.monotonic()))))
            held.release(until)

    def _exchange(self, sock: Any, where: Addresses, zmq: Any) -> None:
        """Exchange messages until the run ends, or hoptui is off in it."""
        errors = 0
        poller = zmq.Poller()
        poller.register(sock, zmq.POLLIN)
        poller.register(self._wake_in, zmq.POLLIN)
        self._hello(sock, zmq)
        while self._state.alive and not self._closing:
            try:
                self._turn(sock, poller, where, zmq)
                errors = 0
            except Exception as error:
                errors += 1
                log.debug("hoptui link: %s: %s", type(error).__name__, error)
                if errors >= ERRORS_IN_A_ROW:
                    raise
        if self._state.alive:
            self._end(sock, where, zmq)

    def _off(self, reason: str) -> None:
        self._state.switch_off(reason)
        self._state.wake_boundary()

    def _turn(self, sock: Any, poller: Any, where: Addresses, zmq: Any) -> None:
        wait = self._wait_ms()
        self._state.link_sleeps = wait > 1000 * pacing.ROWS_EVERY_S + 1
        full = self._welcomed and bool(self._outcomes)
        if full != self._polls_out:
            self._polls_out = full
            poller.register(sock, zmq.POLLIN | zmq.POLLOUT if full else zmq.POLLIN)
        ready = dict(poller.poll(wait))
        self._state.link_sleeps = False
        if ready.get(self._wake_in.fileno()):
            with contextlib.suppress(OSError):
                self._wake_in.recv(4096)
        if ready.get(sock, 0) & READABLE:
            for _ in range(64):
                try:
                    frames = sock.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                self._receive(frames, sock, zmq)
        self._send_due(sock, zmq, where)

    def _wait_ms(self) -> int:
        now = time.monotonic()
        until = self._next_pulse
        # While rows keep coming, poll for them. A wake-up would cost the training thread time.
        if self._buffer.has_rows or self._state.rows or now - self._rows_at < ROWS_KEEP_COMING_S:
            until = min(until, self._next_rows)
        return max(0, min(1000, int((until - now) * 1000) + 1))

    def _send_due(self, sock: Any, zmq: Any, where: Addresses) -> None:
        state, now = self._state, time.monotonic()
        if now >= self._next_rows:
            self._next_rows = now + pacing.ROWS_EVERY_S
            self._collect()
        if self._welcomed:
            self._outcomes.extend(state.inbox.collect_outcomes())
            self._send_outcomes(sock, zmq)
            if self._outcomes:  # the pulse waits for them while the socket takes something each second
                self._next_pulse = max(self._next_pulse, self._taken_at + PULSE_EVERY_S)
        if now >= self._next_pulse:
            self._next_pulse = now + PULSE_EVERY_S
            if self._place.watch is not None:
                self._place.watch()
            if self._welcomed:
                # A pulse says that all outcomes before it have been told.
                if self._outcomes or not self._send(sock, zmq, self._pulse(now)):
                    self._unwelcome()
            elif not self._hello(sock, zmq):
                self._next_pulse = now + self._hello_again_s
                self._hello_again_s = min(2 * self._hello_again_s, PULSE_EVERY_S)
                self._ensure_daemon(where, now)
        if not self._welcomed:
            return
        revision = state.declarations.revision
        if revision != self._revision and self._send(sock, zmq, self._declare()):
            self._revision = revision
        if now >= self._next_details and self._has_new_details():
            self._send_details(lambda message: self._send(sock, zmq, message))
        while state.notes and self._send(sock, zmq, state.notes[0]):
            state.notes.popleft()
        if now >= self._next_stacks and self._stacks is not None:
            self._next_stacks = now + STACKS_EVERY_S
            self._send_stacks(self._stacks, sock, zmq)
        if now >= self._next_output:
            self._next_output = now + output_copy.OUTPUT_EVERY_S
            self._send_output(sock, zmq)
        if self._job is not None:
            for reading in self._job.take():  # one that is not sent now is followed by another
                self._send(sock, zmq, reading)
        self._send_rows(sock, zmq)

    def _send(self, sock: Any, zmq: Any, message: messages.FromRun) -> bool:
        """Send a message. False if the socket does not take it now. A message above the limit is dropped."""
        frame = codec.encode(message)
        if len(frame) > codec.MAX_BYTES and isinstance(message, messages.Outcome):
            frame = codec.encode(message_size.outcome(message))
        if len(frame) > codec.MAX_BYTES:  # it would end the connection
            if isinstance(message, messages.Rows):
                self._buffer.lose(sum(map(len, message.parts)))
            self._complain(f"a {type(message).__name__} of {len(frame)} bytes is too large to be sent")
            return True
        try:
            sock.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._taken_at = time.monotonic()
        return True

    def _send_outcomes(self, sock: Any, zmq: Any) -> bool:
        """Send outcomes in order. False if some have to wait."""
        while self._outcomes:
            if not self._send(sock, zmq, self._outcomes[0]):
                return False
            self._outcomes.popleft()
        return True

    def _receive(self, frames: list[bytes], sock: Any, zmq: Any) -> None:
        state = self._state
        try:
            message = codec.to_run(frames)
        except codec.WireError as error:
            log.debug("hoptui link: %s", error)
            return
        match message:
            case messages.RunWelcome():
                self._welcome(message, sock, zmq)
            case messages.Command():
                # The boundary after the iteration in progress, or during a pause this one. Several ranks
                # agree on one that is further ahead.
                ahead = None if state.world > 1 else state.step + 1
                step = state.step if state.paused_until else ahead
                self._outcomes.extend(state.inbox.receive(message, time.monotonic(), step))
                self._send_outcomes(sock, zmq)
                state.wake_boundary()
            case messages.Acknowledgement(stages=stages):
                state.inbox.acknowledge(stages)
            case messages.Hold(seconds=seconds):
                state.renew_pause(seconds)
            case messages.JobReport():
                if (shared := self._place.shared) is not None:
                    self._exchange_records(shared, message)
                else:
                    self._send(sock, zmq, messages.JobReading(number=message.number, problem=NO_STORE))
            case messages.Retire():
                self._retired = True
            case messages.Error(code="hello_first"):
                self._hello(sock, zmq)
            case messages.Error(code="duplicate_run", text=text) if not self._renamed:
                # The new id is unique. Later errors of this kind answer the hello with the old id.
                log.warning("hoptui: %s; this process goes on as a run of its own", text)
                self._rename()
                self._hello(sock, zmq)
            case messages.Error(code="protocol" | "descriptors", text=text):
                self._off(text)
            case messages.Error(code="too_large" | "malformed", text=text):
                self._complain(f"the daemon refused a message: {text}")

    def _exchange_records(self, job: JobStore, report: messages.JobReport) -> None:
        """Have a thread exchange the records of the nodes. The first time, start it."""
        if self._job is None:
            self._job = JobExchange(job.store, job.prefix, self.wake, self._state.lose_job)
        self._job.report(report)

    def _complain(self, text: str) -> None:
        """Log a sentence once."""
        if text not in self._complaints and len(self._complaints) < MOST_COMPLAINTS:
            self._complaints.add(text)
            log.warning("hoptui: %s", text)

    def _hello(self, sock: Any, zmq: Any) -> bool:
        """Say hello. It may reach another daemon than the one that has welcomed this run."""
        state = self._state
        self._unwelcome()
        self._revision = state.declarations.revision
        declared = self._declare()
        self._details_revision = state.details.revision
        self._details = state.details.message() if self._describes else None
        self._greeted = self._send(
            sock,
            zmq,
            messages.RunHello(
                protocol=messages.PROTOCOL,
                run=state.id,
                name=clean_name(state.name),
                epoch=state.epoch,
                nonce=state.nonce,
                pid=os.getpid(),
                started=state.started,
                step=state.step,
                total=declared.total,
                phase=clean_name(state.phases.current),
                paused=bool(state.paused_until),
                knobs=declared.knobs,
                units=declared.units,
                headline=declared.headline,
                can=declared.can,
                gpus=declared.gpus,
                visible=process.visible_devices(os.environ),
                slurm_gpus=process.slurm_gpus(os.environ),
                flops=declared.flops,
                past_rows=self._buffer.past_rows,
                declined=declared.declined,
                rank=state.rank,
                world=state.world,
                argv=process.command_line(sys.argv),
                versions=process.versions(sys.modules),
                began=state.began,
                details=self._details,
                refused=declared.refused,
                number=self._hello_number,
                stacks_off=not state.training.sampled,
                away=self._place.away,
            ),
        )
        return self._greeted

    def _unwelcome(self) -> None:
        """Say hello again. No row is sent until it is answered, so its answer covers all rows before it."""
        if self._welcomed:
            self._welcomed = False
            self._hello_number += 1

    def _declare(self) -> messages.Declare:
        state = self._state
        if not self._describes:
            return messages.Declare(gpus=state.declarations.gpu_uuids)
        full = messages.Declare(
            knobs=tuple(knob.state() for knob in list(state.declarations.knobs.values())),
            units={clean_name(k): clean_name(v) for k, v in list(state.declarations.units.items())},
            headline=clean_name(state.declarations.headline),
            can=state.declarations.verbs(),
            gpus=state.declarations.gpu_uuids,
            flops=state.declarations.flops,
            total=state.total,
            declined=dict(state.declarations.declined),
            refused=tuple(state.declarations.refused),
        )
        found = message_size.declared(full)
        if found.left_out is not None and found.left_out != self._left_out:
            state.warn(found.left_out)
            log.warning("hoptui: %s", TOO_MUCH_DECLARED.format(len(full.knobs), len(found.declare.knobs)))
        self._left_out = found.left_out
        return found.declare

    def _has_new_details(self) -> bool:
        """Look whether the script has set something, or has imported other packages."""
        self._next_details = time.monotonic() + DETAILS_EVERY_S
        state, sent = self._state, self._details
        if not self._describes:
            return False
        if state.details.revision != self._details_revision:
            return True
        return sent is not None and packages(sys.modules) != sent.packages

    def _send_details(self, send: Callable[[messages.FromRun], bool]) -> None:
        self._details_revision = self._state.details.revision
        details = self._state.details.message()
        if send(structs.replace(self._declare(), details=details)):
            self._details = details
        else:
            self._details_revision -= 1  # again at the next turn

    def _welcome(self, message: messages.RunWelcome, sock: Any, zmq: Any) -> None:
        state = self._state
        if message.stored is not None:
            self._buffer.stored(message.stored)
            return
        if message.hello and message.hello != self._hello_number:
            return  # rows may have been sent since that hello, which the answer does not cover
        if message.hello and self._welcomed:  # the hello was repeated before its first answer
            if message.pid != self._daemon:
                self._hello(sock, zmq)
            return
        state.epoch = state.inbox.epoch = message.epoch
        self._welcomed = True
        self._hello_again_s = HELLO_AGAIN_S
        self._retired = False
        self._starts = 0
        self._buffer.resend_after(message.since, message.on_disk)
        self._acks = message.acks
        self._sample(wanted=message.stacks)
        self._wants_output = message.output
        if message.pid != self._daemon:
            self._daemon = message.pid
            state.inbox.replace_daemon()
        self._outcomes = deque(state.inbox.unsettled())
        self._send_outcomes(sock, zmq)
        self._next_pulse = 0.0  # it says that all has been told

    def _send_stacks(self, sampler: StackSampler, sock: Any, zmq: Any) -> None:
        try:
            sampler.follow(self._state.training.native)
            samples = sampler.take()
        except Exception as error:  # the link goes on without it
            self._sample(wanted=False)
            self._state.lose_stacks(error)
            return
        if samples is not None:
            loop = tuple(
                (clean_text(file, LONGEST_NAME), line, clean_text(function, LONGEST_NAME))
                for file, line, function in sampler.of_script(self._state.training.loop or ()) or ()
            )
            self._send(sock, zmq, messages.Stacks(samples=samples, loop=loop))

    def _send_output(self, sock: Any, zmq: Any) -> None:
        """Send what the process has written, if it copies that and the daemon wants it."""
        copy = output_copy.current()
        while copy is not None and self._wants_output:
            if self._output is None and (part := copy.take()) is not None:
                self._output = messages.Output(part=part)
            if self._output is None or not self._send(sock, zmq, self._output):
                return
            self._output = None

    def _sample(self, *, wanted: bool) -> None:
        """Sample the stack of the training thread if the daemon wants that."""
        if wanted and self._stacks is None and self._state.training.ident:
            state = self._state
            self._stacks = StackSampler(
                lambda: state.training.ident,
                lambda: state.phases.current,
                state.lose_stacks,
                lambda: state.training.native if state.training.alone else 0,
                lambda: state.training.task,
            )
            self._stacks.start()
        elif not wanted and self._stacks is not None:
            self._stacks.stop()
            self._stacks = None

    def _rename(self) -> None:
        self._renamed = True
        self._hello_number += 1
        self._state.id = new_run_id()
        self._buffer.rename(_source(self._state))

    def _pulse(self, now: float) -> messages.Pulse:
        state = self._state
        until = state.paused_until
        return messages.Pulse(
            step=state.step,
            t=time.monotonic_ns(),
            phase=clean_name(state.phases.current),
            progress_age_s=max(0.0, now - state.progress),
            phase_age_s=max(0.0, now - state.phases.since),
            paused=bool(until),
            paused_left_s=max(0.0, until - now) if until else 0.0,
            dropped=self._buffer.dropped,
            bad_values=state.converter.bad,
            spans=self._spans(),
            began=state.began,
            thread=state.training.native,
            fixed_bytes=state.declarations.optimizers.held_bytes,
        )

    def _spans(self) -> tuple[PhaseSpan, ...]:
        """Take the stretches of phases that have ended. A pulse that is not sent loses them.

        Only a rank does whose pulse may be the run's.
        """
        if not self._describes:
            return ()
        spans = self._state.phases.spans
        taken = [spans.popleft() for _ in range(len(spans))]
        return tuple(
            PhaseSpan(path=clean_name(path), start=int(start * 1e9), end=int(end * 1e9))
            for path, start, end in taken
        )

    # rows ---------------------------------------------------------------------------------------------------

    def _collect(self) -> bool:
        """Take rows that the training thread has added, not all of many. Return whether there were any."""
        appended = self._state.rows_added
        if not self._buffer.collect(self._state.rows, appended, time.monotonic_ns()):
            return False
        self._rows_at = time.monotonic()
        return True

    def _send_rows(self, sock: Any, zmq: Any) -> None:
        while (batch := self._buffer.batch()) and self._send(sock, zmq, messages.Rows(parts=batch)):
            self._buffer.sent(batch)

    # the daemon ---------------------------------------------------------------------------------------------

    def _ensure_daemon(self, where: Addresses, now: float) -> None:
        if not self._describes or self._retired or now < self._next_start:
            return
        if processes.daemon_lives(where):
            return
        self._next_start = now + START_AGAIN_S[min(self._starts, len(START_AGAIN_S) - 1)]
        self._starts += 1
        try:
            processes.start_daemon(where)
            self._started = True
        except processes.StartError as error:
            if not self._warned:
                self._warned = True
                log.warning("hoptui: %s. Training goes on without it.", error)
        self._next_pulse = time.monotonic() + 0.1

    def _reach(self, sock: Any, where: Addresses, zmq: Any) -> None:
        """Say hello for a run that ends before it was connected, as long as there is a daemon to reach."""
        until = time.monotonic() + REACH_S
        self._ensure_daemon(where, time.monotonic())
        while not self._hello(sock, zmq) and not self._retired:
            if not self._started and not processes.daemon_lives(where):
                return
            if time.monotonic() > until:
                log.warning("hoptui: the run ended before it reached the daemon: it is not shown")
                return
            sock.poll(20, zmq.POLLOUT)

    def _end(self, sock: Any, where: Addresses, zmq: Any) -> None:
        """Send the last messages, to the daemon that lives now."""
        self._sample(wanted=False)
        holder = processes.lock_holder(where) or 0
        if self._job is not None:
            self._job.leave(in_order=self._bye is not None and self._bye.reason != "exception")
        if not self._greeted:
            self._reach(sock, where, zmq)
        elif self._welcomed and holder > 0 and holder != self._daemon:
            self._meet(sock, zmq)
        unsaid = self._farewell(sock, zmq)
        if unsaid is not None and self._stays:
            self._say_late(sock, where, zmq, unsaid)
        if self._greeted and not self._welcomed:
            self._await_welcome(sock, zmq, time.monotonic() + TELL_S)
            if not self._welcomed:
                log.warning("hoptui: the daemon did not answer this run before its end: rows may be missing")

    def _meet(self, sock: Any, zmq: Any) -> None:
        """Say hello to a daemon that has replaced the one that had welcomed this run.

        ZeroMQ connects again without a word. The new daemon reads only what follows a hello, and its answer
        shows which rows it lacks.
        """
        until = time.monotonic() + TELL_S
        while not self._hello(sock, zmq) and time.monotonic() < until:
            sock.poll(20, zmq.POLLOUT)
        self._greeted = True
        self._await_welcome(sock, zmq, until)

    def _await_welcome(self, sock: Any, zmq: Any, until: float) -> None:
        while not self._welcomed and time.monotonic() < until:
            self._hear(sock, zmq)

    def _hear(self, sock: Any, zmq: Any) -> messages.ToRun | None:
        """Receive a message if one comes soon. A command is ignored: no boundary is left for it."""
        if not sock.poll(20, zmq.POLLIN):
            return None
        with contextlib.suppress(zmq.Again, codec.WireError):
            frames = sock.recv_multipart(zmq.NOBLOCK)
            said = codec.to_run(frames)
            if not isinstance(said, messages.Command):
                self._receive(frames, sock, zmq)
                return said
        return None

    def _farewell(self, sock: Any, zmq: Any) -> messages.Bye | None:
        """Send what is left, and the goodbye. Return the goodbye if there was no room for it in time."""
        while self._collect():
            pass
        if self._greeted:  # the welcome may be in flight, and the daemon reads what follows a hello
            until = time.monotonic() + TELL_S
            told = self._tell_all(sock, zmq, until)
            until += LAST_S
            self._send_output(sock, zmq)
            if self._has_new_details():
                self._send_details(lambda message: self._send_until(sock, zmq, message, until))
            while self._state.notes and self._send_until(sock, zmq, self._state.notes[0], until):
                self._state.notes.popleft()
            while (batch := self._buffer.batch()) and self._send_until(
                sock, zmq, messages.Rows(parts=batch), until
            ):
                self._buffer.sent(batch)
            if lost := self._buffer.abandon():
                log.warning("hoptui: the daemon did not take the last %d rows of this run", lost)
            if told and self._buffer.dropped:  # the last pulse may be older than the last loss
                self._send_until(sock, zmq, self._pulse(time.monotonic()), until)
            if self._bye is not None:
                bye = structs.replace(self._bye, told=told)
                if not self._send_until(sock, zmq, bye, until):
                    return bye
                if bye.confirm:
                    self._done.set()
                    self._wait_for_farewell(sock, zmq)
        return None

    @property
    def _stays(self) -> bool:
        """Whether the process goes on without the run."""
        return self._bye is not None and not self._bye.at_exit

    def _say_late(self, sock: Any, where: Addresses, zmq: Any, bye: messages.Bye) -> None:
        """Say goodbye as soon as a daemon takes it. `close` has returned meanwhile."""
        until = self._leaving_at + LATE_S
        while time.monotonic() < until:
            holder = processes.lock_holder(where) or 0
            if holder > 0 and holder != self._daemon:
                self._meet(sock, zmq)
            if self._send(sock, zmq, bye):
                return
            sock.poll(int(1000 * LATE_LOOK_S), zmq.POLLOUT)

    def _wait_for_farewell(self, sock: Any, zmq: Any) -> None:
        """Wait for the answer to the goodbye. A daemon that cannot give it answers with an error."""
        until = time.monotonic() + KEEP_S
        while (left := until - time.monotonic()) > 0:
            if not sock.poll(int(1000 * left) + 1, zmq.POLLIN):
                continue
            with contextlib.suppress(zmq.Again, codec.WireError):
                answer = codec.to_run(sock.recv_multipart(zmq.NOBLOCK))
                if isinstance(answer, messages.Farewell | messages.Error):
                    return

    def _send_until(self, sock: Any, zmq: Any, message: messages.FromRun, until: float) -> bool:
        """Send a message, and wait for room until `until` (monotonic seconds). False if there was none."""
        while not self._send(sock, zmq, message):
            if time.monotonic() > until:
                return False
            sock.poll(20, zmq.POLLOUT)
        return True

    def _tell_all(self, sock: Any, zmq: Any, until: float) -> bool:
        """Say what became of every command. False if the daemon does not take all of it in time."""
        state = self._state
        restart = fact("run_restarted", restart=state.epoch)
        self._outcomes.extend(state.inbox.collect_outcomes())
        state.inbox.end(fact("run_ended", reason=self._bye.reason) if self._bye is not None else restart)
        self._outcomes.extend(state.inbox.collect_outcomes())
        if (
            not self._welcomed
        ):  # perhaps by a daemon that knows neither the commands nor what was acknowledged
            state.inbox.replace_daemon()
            self._outcomes = deque(state.inbox.unsettled())
        while self._outcomes:
            if not self._send_until(sock, zmq, self._outcomes[0], until):
                return False
            self._outcomes.popleft()
        refused = False
        while self._acks and state.inbox.unacknowledged and time.monotonic() < until:
            self._send_outcomes(sock, zmq)
            refused = isinstance(self._hear(sock, zmq), messages.Error) or refused
        # A daemon that did not know the run gets all of it again after its welcome.
        return not self._outcomes and (self._welcomed or not refused)


def _source(state: SharedState) -> str:
    return f"rank/{state.id}/{state.rank}" if state.rank else f"run/{state.id}"


def require_descriptors(count: int = DESCRIPTORS) -> None:
    """Check that `count` file descriptors can be opened. libzmq aborts the process if its threads find none.

    Raises:
        OSError: fewer are free, in this process or on the machine.
    """
    with contextlib.ExitStack() as spare:
        for _ in range(count):
            spare.callback(os.close, os.open(os.devnull, os.O_RDONLY))
