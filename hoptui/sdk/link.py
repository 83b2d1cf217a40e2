"""The link: one daemon thread that owns the run's only socket and does all of its talking.

It starts or finds the daemon, says hello, sends rows, pulses and outcomes, and receives commands. What goes wrong here
stays here: after five errors in a row the link switches itself off with one log line, and training goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from hoptui.node import presence
from hoptui.node.addresses import AddressError, Addresses, addresses
from hoptui.protocol import codec, messages
from hoptui.sdk import descriptors, environment, fork
from hoptui.sdk.outgoing import Outgoing
from hoptui.sdk.values import plain_name

if TYPE_CHECKING:
    from hoptui.sdk.run import Run

log = logging.getLogger("hoptui")

ROWS_EVERY_S = 0.1  # at most ten messages of rows a second, however fast the loop is
ROWS_KEEP_COMING_S = 1.0
PULSE_EVERY_S = 1.0
HELLO_AGAIN_S = 0.02
"""A hello that found no connection yet is tried again so soon, and then ever more rarely."""
ERRORS_IN_A_ROW = 5
START_AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 60.0)
CLOSE_S = 1.0


class LinkThread:
    """Owns the socket; everything public is safe to call from the training thread."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._outgoing = Outgoing(_source(run))
        self._thread = threading.Thread(target=self._main, name="hoptui-link", daemon=True)
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._closing = False
        self._bye: messages.Bye | None = None
        self._greeted = self._welcomed = self._renamed = False
        self._retired = False
        self._declared = 0
        self._rows_at = 0.0
        self._next_pulse = self._next_rows = self._next_start = 0.0
        self._starts = 0
        self._hello_again_s = HELLO_AGAIN_S
        self._warned = False
        self.drowsy = False  # it will not look for rows soon: whoever appends one wakes it

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Something must go out at once."""
        with contextlib.suppress(OSError):
            self._wake_out.send(b"!")

    def close(self, reason: Any, detail: str) -> None:
        """Send the rest and a Bye; give up after a second (the thread is a daemon)."""
        self._bye = messages.Bye(reason=reason, detail=detail)
        self.leave()

    def leave(self) -> None:
        """Send the rest without a Bye: the run goes on under this pid."""
        self._closing = True
        self.wake()
        self._thread.join(CLOSE_S)

    # in the thread -----------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._talk(addresses())
        except AddressError as error:
            self._off(str(error))
        except Exception as error:
            self._off(f"{type(error).__name__}: {error}")
        finally:
            self._wake_in.close()
            self._wake_out.close()

    def _talk(self, where: Addresses) -> None:
        import zmq

        descriptors.need()
        fork.close_in_children(where.directory)
        context = zmq.Context()
        context.linger = 0
        errors = 0
        try:
            sock = context.socket(zmq.DEALER)
            sock.immediate = True  # nothing is queued for a daemon that is not there
            sock.sndhwm, sock.rcvhwm = 64, 256
            sock.reconnect_ivl, sock.reconnect_ivl_max = 100, 1000
            sock.maxmsgsize = codec.MAX_BYTES
            sock.connect(f"ipc://{where.runs}")
            poller = zmq.Poller()
            poller.register(sock, zmq.POLLIN)
            poller.register(self._wake_in, zmq.POLLIN)
            self._hello(sock, zmq)
            while self._run.alive and not self._closing:
                try:
                    self._turn(sock, poller, where, zmq)
                    errors = 0
                except Exception as error:
                    errors += 1
                    log.debug("hoptui link: %s: %s", type(error).__name__, error)
                    if errors >= ERRORS_IN_A_ROW:
                        self._off(f"{type(error).__name__}: {error}")
                        break
            if self._run.alive:
                self._farewell(sock, zmq)
        finally:
            context.destroy(linger=200)

    def _off(self, reason: str) -> None:
        log.warning("hoptui is off in this run: %s. Training goes on.", reason)
        self._run.unlink()
        self._run.wake()

    def _turn(self, sock: Any, poller: Any, where: Addresses, zmq: Any) -> None:
        wait = self._wait_ms()
        self.drowsy = wait > 1000 * ROWS_EVERY_S + 1
        ready = dict(poller.poll(wait))
        self.drowsy = False
        if ready.get(self._wake_in.fileno()):
            with contextlib.suppress(OSError):
                self._wake_in.recv(4096)
        if ready.get(sock):
            for _ in range(64):
                try:
                    frames = sock.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                self._receive(frames, sock, zmq)
        self._speak(sock, zmq, where)

    def _wait_ms(self) -> int:
        now = time.monotonic()
        until = self._next_pulse
        # While rows keep coming it looks for them by itself; waking it from the training thread would cost that more.
        if self._outgoing.waits or self._run.entries or now - self._rows_at < ROWS_KEEP_COMING_S:
            until = min(until, self._next_rows)
        return max(0, min(1000, int((until - now) * 1000) + 1))

    def _speak(self, sock: Any, zmq: Any, where: Addresses) -> None:
        run, now = self._run, time.monotonic()
        if now >= self._next_rows:
            self._next_rows = now + ROWS_EVERY_S
            self._collect()
        if now >= self._next_pulse:
            self._next_pulse = now + PULSE_EVERY_S
            if self._welcomed:
                if not self._send(sock, zmq, self._pulse(now)):
                    self._welcomed = False
            elif not self._hello(sock, zmq):
                self._next_pulse = now + self._hello_again_s
                self._hello_again_s = min(2 * self._hello_again_s, PULSE_EVERY_S)
                self._ensure_daemon(where, now)
        if not self._welcomed:
            return
        for outcome in run.desk.settle():
            self._send(sock, zmq, outcome)
        if run.declared != self._declared:
            self._declared = run.declared
            self._send(sock, zmq, self._declare())
        while run.notes and self._send(sock, zmq, run.notes[0]):
            run.notes.popleft()
        self._send_rows(sock, zmq)

    def _send(self, sock: Any, zmq: Any, message: messages.FromRun) -> bool:
        try:
            sock.send(codec.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _receive(self, frames: list[bytes], sock: Any, zmq: Any) -> None:
        run = self._run
        try:
            message = codec.to_run(frames)
        except codec.WireError as error:
            log.debug("hoptui link: %s", error)
            return
        match message:
            case messages.RunWelcome():
                self._welcome(message, sock, zmq)
            case messages.Command():
                # One more than the iteration in progress; at a pause the boundary is now.
                step = run.step if run.paused_until else run.step + 1
                for outcome in run.desk.receive(message, time.monotonic(), step):
                    self._send(sock, zmq, outcome)
                run.wake()
            case messages.Hold(seconds=seconds):
                run.hold(seconds)
            case messages.Retire():
                self._retired = True
            case messages.Error(code="hello_first"):
                self._welcomed = False
                self._hello(sock, zmq)
            case messages.Error(code="duplicate_run", text=text) if not self._renamed:
                # Nobody else has the new id: what comes later answers a hello of before.
                log.warning("hoptui: %s; this process goes on as a run of its own", text)
                self._rename()
                self._hello(sock, zmq)
            case messages.Error(code="protocol", text=text):
                self._off(text)

    def _hello(self, sock: Any, zmq: Any) -> bool:
        run = self._run
        self._declared = run.declared
        declared = self._declare()
        self._greeted = self._send(
            sock,
            zmq,
            messages.RunHello(
                protocol=messages.PROTOCOL,
                run=run.id,
                name=plain_name(run.name),
                epoch=run.epoch,
                nonce=run.nonce,
                pid=os.getpid(),
                started=run.started,
                step=run.step,
                total=declared.total,
                phase=plain_name(run.phases.current),
                paused=bool(run.paused_until),
                knobs=declared.knobs,
                units=declared.units,
                headline=declared.headline,
                can=declared.can,
                gpus=declared.gpus,
                visible=environment.visible_devices(os.environ),
                slurm_gpus=environment.slurm_gpus(os.environ),
                flops=declared.flops,
                rank=run.rank,
                world=run.world,
                argv=environment.command_line(sys.argv),
                versions=environment.versions(sys.modules),
            ),
        )
        return self._greeted

    def _declare(self) -> messages.Declare:
        run = self._run
        if run.rank:
            return messages.Declare(gpus=run.gpu_uuids)
        return messages.Declare(
            knobs=tuple(handle.state() for handle in list(run.knob_handles.values())),
            units={plain_name(k): plain_name(v) for k, v in list(run.units.items())},
            headline=plain_name(run.headline),
            can=run.can(),
            gpus=run.gpu_uuids,
            flops=run.flops_declared,
            total=run.total,
        )

    def _welcome(self, message: messages.RunWelcome, sock: Any, zmq: Any) -> None:
        run = self._run
        run.epoch = run.desk.epoch = message.epoch
        self._welcomed = True
        self._hello_again_s = HELLO_AGAIN_S
        self._retired = False
        self._starts = 0
        self._outgoing.again(message.since)
        for outcome in run.desk.finals():
            self._send(sock, zmq, outcome)

    def _rename(self) -> None:
        from hoptui.sdk.run import new_id

        self._renamed = True
        self._run.id = new_id()
        self._outgoing.rename(_source(self._run))

    def _pulse(self, now: float) -> messages.Pulse:
        run = self._run
        until = run.paused_until
        return messages.Pulse(
            step=run.step,
            t=time.monotonic_ns(),
            phase=plain_name(run.phases.current),
            progress_age_s=max(0.0, now - run.progress),
            phase_age_s=max(0.0, now - run.phases.since),
            paused=bool(until),
            paused_left_s=max(0.0, until - now) if until else 0.0,
            dropped=self._outgoing.dropped,
            bad_values=run.settler.bad,
        )

    # rows --------------------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Take the rows that the training thread has left."""
        appended = self._run.appended
        if self._outgoing.collect(self._run.entries, appended, time.monotonic_ns()):
            self._rows_at = time.monotonic()

    def _send_rows(self, sock: Any, zmq: Any) -> None:
        while (batch := self._outgoing.batch()) and self._send(sock, zmq, messages.Rows(parts=batch)):
            self._outgoing.sent(batch)

    # the daemon --------------------------------------------------------------------------------------------------------

    def _ensure_daemon(self, where: Addresses, now: float) -> None:
        if self._run.rank or self._retired or now < self._next_start or presence.daemon_lives(where):
            return
        self._next_start = now + START_AGAIN_S[min(self._starts, len(START_AGAIN_S) - 1)]
        self._starts += 1
        try:
            presence.start_daemon(where)
        except presence.StartError as error:
            if not self._warned:
                self._warned = True
                log.warning("hoptui: %s. Training goes on without it.", error)
        self._next_pulse = time.monotonic() + 0.1

    def _farewell(self, sock: Any, zmq: Any) -> None:
        self._collect()
        if self._greeted:  # the answer may be on its way: what comes after a hello is heard all the same
            for outcome in self._run.desk.settle():
                self._send(sock, zmq, outcome)
            while self._run.notes and self._send(sock, zmq, self._run.notes[0]):
                self._run.notes.popleft()
            self._send_rows(sock, zmq)
            if self._bye is not None:
                self._send(sock, zmq, self._bye)


def _source(run: Run) -> str:
    return f"rank/{run.id}/{run.rank}" if run.rank else f"run/{run.id}"
