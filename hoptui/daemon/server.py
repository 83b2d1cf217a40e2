"""The daemon's loop: one thread, two ROUTER sockets, authentication, the samplers' pipes and a pidfd per
run."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import zmq

from hoptui.daemon import descriptors, sockets
from hoptui.daemon.alert_worker import AlertWorker, fired_alerts
from hoptui.daemon.archive import Archive
from hoptui.daemon.diagnosis import Diagnosing
from hoptui.daemon.handlers.runs import RunDesk
from hoptui.daemon.handlers.samplers import SamplerDesk
from hoptui.daemon.handlers.targets import TargetDesk
from hoptui.daemon.handlers.tuners import TunerDesk
from hoptui.daemon.handlers.viewers import ViewerDesk
from hoptui.daemon.hangs import Hangs
from hoptui.daemon.idle_gpus import IdleGpus
from hoptui.daemon.memory import MemoryForecast
from hoptui.daemon.output_files import OutputFiles
from hoptui.daemon.phases import PhaseJoin
from hoptui.daemon.process_watch import ProcessWatch
from hoptui.daemon.prometheus import Endpoint, MetricsError, snapshot
from hoptui.daemon.recordings import limits, refused
from hoptui.daemon.repositories import RepositoryReader
from hoptui.daemon.sampler_supervisor import Sampler
from hoptui.daemon.sockets import Authenticator, Doorway, Lock
from hoptui.daemon.state.gpu_ownership import Ancestry
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.other_processes import pids_of
from hoptui.daemon.stragglers import Stragglers
from hoptui.domain import devices
from hoptui.domain.alerts import Alert
from hoptui.domain.pacing import DEFAULT, Timings
from hoptui.node.addresses import AddressError, Addresses
from hoptui.node.identity import node_identity
from hoptui.node.processes import Peer
from hoptui.protocol import codec, messages
from hoptui.protocol.messages import RankState

log = logging.getLogger("hoptui.daemon")

UNWATCHED_HZ, HOST_HZ = 1.0, 1.0
FORWARD_AGAIN_S = 0.02
"""How soon a command that a run did not accept is sent again."""
RETIRE_S = 0.5
"""How long a daemon that is stopped tries to tell that to runs that do not read."""
BURST = 64
"""Messages taken from one socket before it is the others' turn."""
OF_A_RUN = 32
"""Messages of one run that wait in the daemon, of up to 256 KB of rows. A run sends fewer between two looks
of an idle daemon. While the daemon has no time, further rows wait in the run, which then sends them in fewer
and larger messages."""


class SystemClock:
    def t(self) -> int:
        return time.monotonic_ns()

    def wall(self) -> float:
        return time.time()


class Server:
    """Owns all resources of the daemon. `run()` returns when the daemon is no longer needed or was stopped.

    Args:
        metrics: HOST:PORT for Prometheus; "" for none, or for the address of a killed predecessor. With
            it, the daemon does not end when it is idle.
        samplers: programs that replace its own samplers, by what they sample (`host`, `gpus`).
        timings: how long it waits.
    """

    def __init__(
        self,
        where: Addresses,
        idle_s: float,
        metrics: str = "",
        samplers: Mapping[str, Sequence[str]] | None = None,
        timings: Timings = DEFAULT,
    ) -> None:
        self._where = where
        self._idle_s = idle_s
        self._timings = timings
        self._lock = Lock(where)
        self._lock_held, self._lock_troubled = True, False
        self._ending = False
        self._serve = False
        self._serve_at = math.inf
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._written: deque[tuple[str, dict[str, int]]] = deque()
        self._finished: deque[tuple[bytes, messages.Buckets | messages.RunOutput | messages.Error]] = deque()
        for sentence in refused(os.environ):
            log.warning(sentence)
        self._archive = Archive(
            where, limits(os.environ), self._answered, self._commands_written, timings=timings
        )
        self._archive.start()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gate = Authenticator(self._context)
        self._node = Node(SystemClock(), self._archive, self._changed, self._grown, timings)
        self._alert_worker = AlertWorker(where.alerts, timings=timings)
        self._alert_worker.start(timings.restore_s)
        self._node.alerts.settings = self._alert_worker.settings
        self._node.alerts.restore(fired_alerts(where.alerts), time.time())
        self._node.alert = self._alert
        self._outputs = OutputFiles(self._answered)
        self._node.fetch_output = self._outputs.ask
        self._idle_gpus = IdleGpus(self._node)
        self._tuner_desk = TunerDesk(
            self._node, self._archive, lambda command, run: self._run_desk.forward(command, run)
        )
        self._repositories = RepositoryReader(lambda run, found: self._run_desk.found(run, found))
        self._run_desk = RunDesk(
            self._node,
            self._to_run,
            self._tell,
            self._tuner_desk.end,
            self._repositories.ask,
            node_identity(),
        )
        self._target_desk = TargetDesk(self._node, self._archive.keep)
        self._viewer_desk = ViewerDesk(
            self._node,
            self._to_viewer,
            self._run_desk,
            self._tuner_desk,
            self._target_desk,
            self._shutdown,
        )
        programs = samplers or {}
        self._sampler_desk = SamplerDesk(self._node, Ancestry())
        self._diagnosing = Diagnosing(self._node)
        self._phase_join = PhaseJoin(self._node)
        self._hangs = Hangs(self._node)
        self._stragglers = Stragglers(self._node)
        self._memory = MemoryForecast(self._node)
        self._host = Sampler("host", programs.get("host"), silence_s=timings.sampler_silence_s)
        self._gpus = Sampler("gpus", programs.get("gpus"), silence_s=timings.sampler_silence_s)
        self._poller = zmq.Poller()
        self._come_at = -math.inf
        self._at_once = True  # a run's messages wake the loop
        self._history = ""  # what viewers know of its problem
        self._tended = -1  # the node's version at the last round
        self._alerts_kept = 0
        desk = self._run_desk
        self._processes = ProcessWatch(self._poller, desk.end, timings.last_words_s, desk.rank_ended)
        for found in self._archive.restore(timings.restore_s):
            run = self._run_desk.restore(found)
            if run is not None:
                self._processes.watch(run)
        # A message above the limit of the protocol is refused with a reason, up to four times the limit.
        self._runs = Doorway(self._context, where.runs, 4 * codec.MAX_BYTES, OF_A_RUN)
        self._viewers = Doorway(self._context, where.viewers)
        self._malformed = 0
        self._pipes: dict[int, Sampler] = {}
        metrics = metrics or sockets.metrics_left_behind(where.info)
        self._endpoint = self._open_metrics(metrics)
        self._metrics = self._node.metrics or metrics
        self._write_info()
        for thing in (self._gate.socket, self._runs.socket, self._viewers.socket, self._wake_in):
            self._poller.register(thing, zmq.POLLIN)

    def run(self) -> None:
        """Serve until the daemon is not needed."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())
        signal.set_wakeup_fd(self._wake_out.fileno(), warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()  # existing objects stay: later collections skip them
        timings = self._timings
        last_tick = next_heal = next_publish = 0.0
        needed = time.monotonic()
        try:
            while not self._ending:
                self._listen()
                ready = dict(self._poller.poll(self._wait_ms(last_tick + timings.latest_tick_s)))
                self._take(ready)
                now = time.monotonic()
                if now >= last_tick + (timings.still_tick_s if self._still else timings.tick_s):
                    last_tick = now
                    if not self._alone():
                        break
                    self._mind_descriptors()
                    self._tend(now)
                    self._serve = self._serve or self._viewer_desk.moved
                if now >= next_heal:
                    next_heal = now + timings.heal_s
                    self._heal()
                    self._node.tidy()
                    self._serve = True  # finds viewers that are gone
                if self._endpoint is not None and now >= next_publish:
                    next_publish = now + timings.publish_s
                    told = self._node.faults.attempt("telling Prometheus", snapshot, self._node)
                    self._endpoint.publish(told)
                if self._serve or now >= self._serve_by():
                    self._serve, self._serve_at = False, math.inf
                    self._viewer_desk.serve()
                if self._viewer_desk.count or self._node.registry.live() or self._endpoint is not None:
                    needed = now
                elif now - needed > self._idle_s:
                    log.info("the daemon is idle: it ends")
                    break
        finally:
            self._close()

    # input --------------------------------------------------------------------------------------------------

    def _take(self, ready: dict[Any, int]) -> None:
        if self._gate.socket in ready:
            self._gate.answer()
            self._come_at = time.monotonic()
            self._mind_descriptors()
        self._processes.look(ready, time.monotonic())
        if self._runs.socket in ready or not self._at_once:
            self._drain(self._runs, self._from_run)
        if self._viewers.socket in ready:
            self._drain(self._viewers, self._from_viewer)
        if self._wake_in.fileno() in ready:
            with contextlib.suppress(OSError):
                self._wake_in.recv(4096)
            while self._finished:
                self._viewer_desk.reply(*self._finished.popleft())
            while self._written:
                self._run_desk.written(*self._written.popleft())
        for pipe, sampler in list(self._pipes.items()):
            if pipe in ready:
                self._read(sampler, pipe)
        self._processes.ended(ready, time.monotonic(), unread=self._runs.more)
        self._run_desk.pump()

    def _listen(self) -> None:
        """Let runs wake the loop if a message may be urgent: a run has just connected, or a command is
        pending.

        Rows and pulses are read when the loop is awake anyway. Else each rank would wake it ten times per
        second.
        """
        at_once = (
            self._node.book.asking
            or self._run_desk.jobs.waiting
            or time.monotonic() < self._come_at + self._timings.welcome_s
        )
        if at_once and not self._at_once:
            self._poller.register(self._runs.socket, zmq.POLLIN)
        elif self._at_once and not at_once:
            self._poller.unregister(self._runs.socket)
        self._at_once = at_once

    def _drain(self, door: Doorway, handle: Callable[[bytes, Peer | None, list[bytes]], None]) -> None:
        for message in door.take(BURST):
            try:
                handle(*message)
            except Exception:  # a fault in one message must not end the daemon
                log.exception("a message could not be handled")

    def _from_run(self, identity: bytes, peer: Peer | None, body: list[bytes]) -> None:
        try:
            message = codec.from_run(body)
        except codec.WireError as error:
            self._to_run(identity, self._nonsense(error, peer))
            return
        if isinstance(message, messages.RunHello):
            if self._node.registry.of(identity) is None and self._free_descriptors() < descriptors.REFUSE:
                self._to_run(identity, self._full())
                return
            known = self._node.registry.get(message.run)
            if known is None or known.nonce != message.nonce:
                self._processes.report_end(message.run)
        run = self._run_desk.receive(identity, peer, message)
        if run is not None:
            self._processes.watch(run, time.monotonic())
            self._follow_outputs()

    def _from_viewer(self, identity: bytes, peer: Peer | None, body: list[bytes]) -> None:
        try:
            message = codec.from_viewer(body)
        except codec.WireError as error:
            self._to_viewer(identity, self._nonsense(error, peer))
            return
        if isinstance(message, messages.ViewerHello) and self._free_descriptors() < descriptors.REFUSE:
            self._to_viewer(identity, self._full())
            return
        self._viewer_desk.receive(identity, peer, message)

    def _full(self) -> messages.Error:
        log.warning("a connection is refused: few file descriptors are left")
        return messages.Error(code="descriptors", text=descriptors.refusal())

    def _free_descriptors(self) -> int:
        """Return how many descriptors are free, less those for recordings that are not open yet.

        The thread of the archive opens them later. Connections must not take them.
        """
        unopened = sum(self._archive.stored(run.id) is None for run in self._node.registry.live())
        return descriptors.free() - descriptors.RECORDING * unopened

    def _mind_descriptors(self) -> None:
        """Shut the sockets while few descriptors are left: libzmq aborts where it cannot accept."""
        free = self._free_descriptors()
        for door in (self._runs, self._viewers):
            try:
                if free < descriptors.SHUT and not door.shut:
                    log.warning("%s is shut: %d file descriptors are left", door.path, free)
                    door.shut_out()
                elif door.shut and free >= descriptors.REFUSE:
                    log.warning("%s is open again", door.path)
                    door.let_in()
            except OSError as error:
                log.warning("%s cannot be shut or opened: %s", door.path, error)
                door.shut = False  # its path is looked after again

    def _nonsense(self, error: codec.WireError, peer: Peer | None) -> messages.Error:
        self._malformed += 1
        if self._malformed <= 100:
            log.warning("%s from pid %s: %s", error.code, peer.pid if peer else "?", error)
        return messages.Error(code=error.code, text=str(error))

    def _read(self, sampler: Sampler, pipe: int) -> None:
        for message in sampler.read(pipe, time.monotonic()):
            try:
                self._sampler_desk.receive(message)
            except Exception:  # a fault in one message must not end the daemon
                log.exception("a message of a sampler could not be taken in")
        if pipe not in sampler.fds:  # closed: the number may be reused by another file
            self._poll_samplers()

    # output -------------------------------------------------------------------------------------------------

    def _to_run(self, identity: bytes, message: messages.ToRun) -> bool:
        body = codec.encode(message)
        if len(body) > codec.MAX_BYTES:  # the run's socket would end the connection, and get it again
            log.error("a message of %d bytes to a run was not sent: %s", len(body), type(message).__name__)
            return True
        return self._runs.send(identity, body)

    def _to_viewer(self, identity: bytes, message: messages.ToViewer) -> bool:
        body = codec.encode(message)
        if len(body) > codec.MAX_ANSWER_BYTES:  # the viewer's socket would end the connection
            kind = type(message).__name__
            log.error("an answer of %d bytes was not sent: %s", len(body), kind)
            text = f"the answer ({kind}) has {len(body)} bytes; the limit is {codec.MAX_ANSWER_BYTES}"
            number = getattr(message, "id", 0)  # that of an outcome is the command's
            error = messages.Error(code="too_large", text=text, id=number if isinstance(number, int) else 0)
            body = codec.encode(error)
        return self._viewers.send(identity, body)

    def _tell(self, record: messages.CommandRecord) -> None:
        self._viewer_desk.tell(record)

    def _answered(
        self, identity: bytes, answer: messages.Buckets | messages.RunOutput | messages.Error
    ) -> None:
        """Queue an answer. The threads of the archive and of the output files call this."""
        self._finished.append((identity, answer))
        with contextlib.suppress(OSError):
            self._wake_out.send(b"!")

    def _commands_written(self, run: str, numbers: dict[str, int]) -> None:
        """Queue which outcomes are on disk. The archive's thread calls this."""
        self._written.append((run, numbers))
        with contextlib.suppress(OSError):
            self._wake_out.send(b"!")

    # periodic work ------------------------------------------------------------------------------------------

    @property
    def _still(self) -> bool:
        """Whether nothing is wrong, no tuner works, and nothing has changed since the last round."""
        node = self._node
        if node.sampler_problems or self._tuner_desk.at_work or self._repositories.busy:
            return False
        return node.version == self._tended and node.hz == self._hz

    @property
    def _hz(self) -> float:
        """The sampling rate for the GPUs."""
        return max(UNWATCHED_HZ, self._viewer_desk.hz)

    def _tend(self, now: float) -> None:
        node = self._node
        hz = self._hz
        pids: dict[str, int] = {}
        for run in node.registry.live():
            pids |= pids_of(run.state) if self._tuner_desk.tunes(run) else {run.id: run.state.pid}
        self._host.watch(devices.Watch(hz=min(hz, HOST_HZ), pids=pids))
        self._gpus.watch(devices.Watch(hz=hz))
        node.set_hz(hz)
        for sampler in (self._host, self._gpus):
            sampler.tend(now)
        self._poll_samplers()
        if not self._gpus.pids:
            self._sampler_desk.silent()
        self._sampler_desk.troubled(self._gpus.problem)
        self._sampler_desk.leave({index: self._gpus.suspects.pause_s(index) for index in self._gpus.left})
        self._sampler_desk.tend()
        self._run_desk.tend()
        self._node.faults.attempt("asking git", self._repositories.tend)
        self._diagnosing.tend()
        self._hangs.tend()
        self._stragglers.tend()
        self._memory.tend()
        self._run_desk.jobs.tend()
        self._target_desk.tend()
        self._phase_join.tend()
        self._tuner_desk.tend()
        self._idle_gpus.tend()
        self._follow_outputs()
        self._tend_alerts()
        problems = tuple(filter(None, (self._gpus.problem, self._host.problem)))
        if problems != node.sampler_problems:
            node.sampler_problems = problems
            node.touch()
        if self._endpoint is not None and node.metrics and (why := self._endpoint.problem) is not None:
            node.metrics, node.metrics_problem = "", why
            node.event("metrics", why, level="warning")
            node.touch()
        history = self._archive.problem
        if history != self._history:  # viewers have the state of the last version
            self._history = history
            node.touch()
        self._tended = node.version

    def _follow_outputs(self) -> None:
        registry = self._node.registry
        live = {
            (run.id, each.rank): each.pid
            for run in registry.live()
            for each in (RankState(rank=0, pid=run.state.pid), *run.state.ranks)
        }
        self._outputs.follow(live, [run.id for run in registry])

    def _alert(self, alert: Alert) -> None:
        """Pass an alert on. What has fired is stored first."""
        self._keep_alerts()
        self._alert_worker.put(alert)

    def _keep_alerts(self) -> None:
        self._alerts_kept = self._node.alerts.changed
        self._alert_worker.keep(self._node.alerts.state)

    def _tend_alerts(self) -> None:
        node, worker = self._node, self._alert_worker
        node.alerts.settings = worker.settings
        node.faults.attempt("looking for numbers that are good again", node.settle_numbers)
        if node.alerts.changed != self._alerts_kept:
            self._keep_alerts()
        if worker.problem != node.alerts_problem:
            node.alerts_problem = worker.problem
            node.touch()

    def _poll_samplers(self) -> None:
        """Poll the samplers' current pipes."""
        pipes = {fd: sampler for sampler in (self._host, self._gpus) for fd in sampler.fds}
        for fd in self._pipes.keys() - pipes.keys():
            self._poller.unregister(fd)
        for fd in pipes.keys() - self._pipes.keys():
            self._poller.register(fd, zmq.POLLIN)
        self._pipes = pipes

    def _open_metrics(self, address: str) -> Endpoint | None:
        """Open the endpoint for Prometheus if requested. The daemon continues without it if that fails."""
        if not address:
            return None
        try:
            endpoint = Endpoint(address)
        except MetricsError as error:
            log.warning("no metrics for Prometheus: %s", error)
            self._node.event("metrics", error.fact, level="warning")
            return None
        self._node.metrics = endpoint.address
        log.info("metrics for Prometheus on http://%s/metrics", endpoint.address)
        return endpoint

    def _write_info(self) -> None:
        try:
            sockets.write(self._where.info, self._metrics)
        except OSError as error:  # the disk is full: only the next daemon needs the file
            log.warning("%s cannot be written: %s", self._where.info, error)

    def _alone(self) -> bool:
        """Return whether no other daemon has taken over, which one can if the lock file is deleted."""
        before = self._lock.inode
        try:
            self._lock_held = self._lock.held()
        except (AddressError, OSError) as error:  # no daemon can start there either
            if not self._lock_troubled:
                log.warning("the lock is gone and cannot be made again: %s", error)
            self._lock_troubled = True
            return True
        self._lock_troubled = False
        if not self._lock_held:
            log.warning("%s was deleted, and another daemon has it now: this one ends", self._where.lock)
        elif self._lock.inode != before:
            for handler in logging.getLogger("hoptui").handlers:
                handler.close()  # it opens its file again, which may be deleted too
            log.warning("%s was deleted: made again", self._where.lock)
            self._write_info()
            self._heal()
        return self._lock_held

    def _heal(self) -> None:
        for door in (self._runs, self._viewers):
            try:
                if door.heal():
                    log.warning("%s was gone: bound again", door.path)
            except (OSError, zmq.ZMQError) as error:
                log.warning("%s is gone and cannot be bound again: %s", door.path, error)

    def _wait_ms(self, next_tick: float) -> int:
        if self._serve or (not self._at_once and self._runs.more):
            return 0
        now = time.monotonic()
        until = min(next_tick, self._serve_by(), self._processes.next_deadline() or math.inf)
        if self._run_desk.waiting:
            until = min(until, now + FORWARD_AGAIN_S)
        if (deadline := self._node.book.barrier.next_deadline) is not None:
            until = min(until, deadline / 1e9)
        if self._viewer_desk.count:
            until = min(until, now + self._timings.heard_s)
        return max(0, int((until - now) * 1000) + 1)

    def _serve_by(self) -> float:
        """Return when viewers must be answered, if nothing happens before."""
        deadline = self._viewer_desk.next_deadline()
        return self._serve_at if deadline is None else min(self._serve_at, deadline)

    def _changed(self) -> None:
        self._serve = True

    def _grown(self, patience_s: float) -> None:
        if self._viewer_desk.waiting:
            self._serve_at = min(self._serve_at, time.monotonic() + patience_s)

    # the end ------------------------------------------------------------------------------------------------

    def _shutdown(self) -> None:
        log.info("stopped by a viewer")
        until = time.monotonic() + RETIRE_S
        while not self._run_desk.retire() and time.monotonic() < until:
            time.sleep(FORWARD_AGAIN_S)
        self._end()

    def _end(self) -> None:
        self._ending = True

    def _close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._tuner_desk.close()
        self._repositories.close()
        self._outputs.close()
        self._host.close()
        self._gpus.close()
        if self._endpoint is not None:
            self._endpoint.close()
        for run in self._node.registry.live():
            self._node.remember(run)
            self._node.record_stacks(run)
        self._alert_worker.close(self._timings.close_s)
        self._archive.close(self._timings.close_s)
        self._runs.close()
        self._viewers.close()
        self._context.destroy(linger=100)
        if self._lock_held:  # else the file is the other daemon's
            with contextlib.suppress(OSError):
                self._where.info.unlink()
        self._lock.close()
