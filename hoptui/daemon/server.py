"""The daemon's loop: one thread, two ROUTER sockets, the gate, the sampler's pipe and a pidfd a run."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections import deque
from typing import Any

import zmq

from hoptui.daemon.archive import Archive
from hoptui.daemon.node import Node
from hoptui.daemon.registry import TrackedRun
from hoptui.daemon.runs import RunDesk, process_started
from hoptui.daemon.sampler import Sampler
from hoptui.daemon.sockets import Doorway, Lock
from hoptui.daemon.viewers import ViewerDesk
from hoptui.daemon.zap import Gate
from hoptui.wire import codec, devices, messages
from hoptui.wire.addresses import Addresses
from hoptui.wire.credentials import Peer, peer_of
from hoptui.wire.version import VERSION

log = logging.getLogger("hoptui.daemon")

HEAL_S = 5.0
TICK_S = 0.25
WATCHED_HZ, UNWATCHED_HZ = 2.0, 1.0
RESTORE_S = 2.0
CLOSE_S = 3.0
BURST = 64
"""Messages taken from one socket before the others get their turn."""


class Clock:
    def t(self) -> int:
        return time.monotonic_ns()

    def wall(self) -> float:
        return time.time()


class Server:
    """Owns everything the daemon has open. `run()` returns when nothing needs the daemon or it was told to end."""

    def __init__(self, where: Addresses, idle_s: float) -> None:
        self._where = where
        self._idle_s = idle_s
        self._lock = Lock(where)
        self._ending = False
        self._serve = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._finished: deque[tuple[bytes, messages.Buckets | messages.Error]] = deque()
        self._archive = Archive(where, self._answered)
        self._archive.start()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gate = Gate(self._context)
        self._node = Node(Clock(), self._archive, self._changed)
        self._run_desk = RunDesk(self._node, self._to_run, self._tell)
        self._viewer_desk = ViewerDesk(self._node, self._to_viewer, self._run_desk, self._shutdown)
        self._sampler = Sampler()
        self._poller = zmq.Poller()
        self._pidfds: dict[int, TrackedRun] = {}
        for found in self._archive.restore(RESTORE_S):
            run = self._run_desk.restore(found)
            if run is not None:
                self._watch_process(run)
        self._runs = Doorway(self._context, where.runs)
        self._viewers = Doorway(self._context, where.viewers)
        self._malformed = 0
        self._write_info()
        self._polled_pipe: int | None = None
        for thing in (self._gate.socket, self._runs.socket, self._viewers.socket, self._wake_in):
            self._poller.register(thing, zmq.POLLIN)

    def run(self) -> None:
        """Serve until there is no reason to."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())
        signal.set_wakeup_fd(self._wake_out.fileno(), warn_on_full_buffer=False)
        next_tick = next_heal = 0.0
        needed = time.monotonic()
        try:
            while not self._ending:
                ready = dict(self._poller.poll(self._wait_ms(next_tick)))
                self._take(ready)
                now = time.monotonic()
                if now >= next_tick:
                    next_tick = now + TICK_S
                    self._tend(now)
                    self._serve = True
                if now >= next_heal:
                    next_heal = now + HEAL_S
                    self._heal()
                    self._node.tidy()
                if self._serve or now >= (self._viewer_desk.next_deadline() or now + 1):
                    self._serve = False
                    self._viewer_desk.serve()
                if self._viewer_desk.count or self._node.registry.live():
                    needed = now
                elif now - needed > self._idle_s:
                    log.info("nobody needs the daemon: it ends")
                    break
        finally:
            self._close()

    # in ----------------------------------------------------------------------------------------------------------------

    def _take(self, ready: dict[Any, int]) -> None:
        if self._gate.socket in ready:
            self._gate.answer()
        if self._runs.socket in ready:
            self._drain(self._runs.socket, self._from_run)
        if self._viewers.socket in ready:
            self._drain(self._viewers.socket, self._from_viewer)
        if self._wake_in.fileno() in ready:
            with contextlib.suppress(OSError):
                self._wake_in.recv(4096)
            while self._finished:
                self._to_viewer(*self._finished.popleft())
        if self._polled_pipe is not None and self._polled_pipe in ready:
            self._read_sampler()
        for number in list(self._pidfds):
            if number in ready:
                self._process_ended(number)

    def _drain(self, sock: zmq.Socket[bytes], handle: Any) -> None:
        for _ in range(BURST):
            try:
                frames = sock.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                peer = peer_of(str(frames[-1].get("Peer-Address")))
            except zmq.ZMQError:
                peer = None
            identity, *body = [frame.bytes for frame in frames]
            try:
                handle(identity, peer, body)
            except Exception:  # a fault in one message must not end the daemon
                log.exception("a message could not be handled")

    def _from_run(self, identity: bytes, peer: Peer | None, body: list[bytes]) -> None:
        try:
            message = codec.from_run(body)
        except codec.WireError as error:
            self._to_run(identity, self._nonsense(error, peer))
            return
        if isinstance(message, messages.RunHello):
            self._bury(message.run)
        run = self._run_desk.receive(identity, peer, message)
        if run is not None:
            self._watch_process(run)

    def _from_viewer(self, identity: bytes, peer: Peer | None, body: list[bytes]) -> None:
        try:
            message = codec.from_viewer(body)
        except codec.WireError as error:
            self._to_viewer(identity, self._nonsense(error, peer))
            return
        self._viewer_desk.receive(identity, peer, message)

    def _nonsense(self, error: codec.WireError, peer: Peer | None) -> messages.Error:
        self._malformed += 1
        if self._malformed <= 100:
            log.warning("%s from pid %s: %s", error.code, peer.pid if peer else "?", error)
        return messages.Error(code=error.code, text=str(error))

    def _read_sampler(self) -> None:
        for message in self._sampler.read(time.monotonic()):
            match message:
                case devices.Devices():
                    self._node.devices = message
                    self._node.touch()
                case devices.Sample(parts=parts):
                    for part in parts:
                        self._node.rows(part)

    # out ---------------------------------------------------------------------------------------------------------------

    def _to_run(self, identity: bytes, message: messages.ToRun) -> bool:
        return _send(self._runs.socket, identity, codec.encode(message))

    def _to_viewer(self, identity: bytes, message: messages.ToViewer) -> bool:
        return _send(self._viewers.socket, identity, codec.encode(message))

    def _tell(self, record: messages.CommandRecord, outcome: messages.Outcome) -> None:
        self._viewer_desk.tell(record, outcome)

    def _answered(self, identity: bytes, answer: messages.Buckets | messages.Error) -> None:
        """Called by the archive's thread."""
        self._finished.append((identity, answer))
        with contextlib.suppress(OSError):
            self._wake_out.send(b"!")

    # processes ---------------------------------------------------------------------------------------------------------

    def _watch_process(self, run: TrackedRun) -> None:
        """Be told by the kernel when the run's process ends; if it has ended already, say so now."""
        for number, watched in list(self._pidfds.items()):
            if watched is run or watched.id == run.id:
                self._unwatch(number)
        pid = run.state.pid
        try:
            number = os.pidfd_open(pid)
        except ProcessLookupError:
            self._run_desk.end(run, "exited", "its process is gone")
            return
        except OSError as error:
            log.warning("the process %d of %s cannot be watched: %s", pid, run.state.name, error)
            return
        if run.process_started and process_started(pid) != run.process_started:
            os.close(number)
            self._run_desk.end(run, "exited", "its process ended while no daemon was running")
            return
        self._pidfds[number] = run
        self._poller.register(number, zmq.POLLIN)

    def _unwatch(self, number: int) -> None:
        self._poller.unregister(number)
        os.close(number)
        del self._pidfds[number]

    def _process_ended(self, number: int) -> None:
        run = self._pidfds[number]
        self._unwatch(number)
        # Its last words may still lie in the socket: a Bye explains more than a vanished process.
        self._drain(self._runs.socket, self._from_run)
        self._run_desk.end(run, "killed", "its process ended without a word")

    def _bury(self, run_id: str) -> None:
        """Before a hello of a known run: if its last process is gone, note that first."""
        for number, run in list(self._pidfds.items()):
            if run.id == run_id and process_started(run.state.pid) != run.process_started:
                self._unwatch(number)
                self._run_desk.end(run, "killed", "its process ended without a word")

    # now and then ------------------------------------------------------------------------------------------------------

    def _tend(self, now: float) -> None:
        hz = WATCHED_HZ if self._viewer_desk.watched else UNWATCHED_HZ
        pids = {run.id: run.state.pid for run in self._node.registry.live()}
        self._sampler.watch(devices.Watch(hz=hz, pids=pids))
        self._sampler.tend(now)
        pipe = self._sampler.fd
        if pipe != self._polled_pipe:
            if self._polled_pipe is not None:
                self._poller.unregister(self._polled_pipe)
            if pipe is not None:
                self._poller.register(pipe, zmq.POLLIN)
            self._polled_pipe = pipe
        if self._sampler.problem != self._node.sampler_problem:
            self._node.sampler_problem = self._sampler.problem
            self._node.touch()

    def _heal(self) -> None:
        for door in (self._runs, self._viewers):
            try:
                if door.heal():
                    log.warning("%s was gone: bound again", door.path)
            except (OSError, zmq.ZMQError) as error:
                log.warning("%s is gone and cannot be bound again: %s", door.path, error)

    def _wait_ms(self, next_tick: float) -> int:
        if self._serve:
            return 0
        until = min(next_tick, self._viewer_desk.next_deadline() or next_tick)
        return max(0, int((until - time.monotonic()) * 1000) + 1)

    def _changed(self) -> None:
        self._serve = True

    # the end -----------------------------------------------------------------------------------------------------------

    def _shutdown(self) -> None:
        log.info("told to end by a viewer")
        self._run_desk.retire()
        self._end()

    def _end(self) -> None:
        self._ending = True

    def _write_info(self) -> None:
        info = {
            "pid": os.getpid(),
            "version": VERSION,
            "protocol": messages.PROTOCOL,
            "started": time.time(),
        }
        new = self._where.info.with_suffix(".tmp")
        with new.open("w") as file:
            json.dump(info, file)
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._where.info)

    def _close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._sampler.close()
        for run in self._node.registry.live():
            self._node.remember(run)
        self._archive.close(CLOSE_S)
        self._runs.close()
        self._viewers.close()
        self._context.destroy(linger=100)
        with contextlib.suppress(OSError):
            self._where.info.unlink()
        self._lock.close()


def _send(sock: zmq.Socket[bytes], identity: bytes, body: bytes) -> bool:
    """Send without waiting; False where the peer is gone or does not read."""
    try:
        sock.send_multipart((identity, body), zmq.NOBLOCK)
    except zmq.ZMQError as error:
        if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            return False
        raise
    return True
