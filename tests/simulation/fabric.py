"""Simulated ZeroMQ sockets over `ipc`: bounded pipes that refuse, are cut, stall and reconnect.

A pipe keeps order, and neither loses nor repeats anything while it lives: so do Unix sockets and ZeroMQ. When
it is cut, the end of what was under way is lost. The rest may be read after messages of the next connection.
The ROUTER forgets the identity, and the DEALER connects again under another one.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from tests.simulation.kernel import Kernel, Killed, Process, Signal

LEAST_DELAY_NS, DELAYS_NS = 20_000, 380_000
SLOW_NS = 300_000_000
"""The time between two answers of a daemon that has much to do."""
LINGER_STEP_S = 0.01
"""How often a closed socket that lingers looks whether everything has arrived."""
DEFAULT_HWM = 1000
READ, WRITE = int(zmq.POLLIN), int(zmq.POLLOUT)
Frames = list[bytes]


class Frame:
    """A received frame, as `recv_multipart(copy=False)` returns it."""

    __slots__ = ("_peer", "bytes")

    def __init__(self, body: bytes, peer: str) -> None:
        self.bytes = body
        self._peer = peer

    def get(self, name: str) -> str:
        assert name == "Peer-Address", name
        return self._peer


class Direction:
    """One direction of a pipe. At most `most` messages are in it, under way or not yet received."""

    def __init__(self, receiver: FakeSocket, most: int) -> None:
        self.receiver = receiver
        self.most = most
        self.under_way: deque[Frames] = deque()
        self.arrived = 0
        self.free_at = 0  # nothing arrives before, so that the order is kept

    @property
    def full(self) -> bool:
        return len(self.under_way) + self.arrived >= self.most


class Pipe:
    """A connection between a DEALER and a ROUTER."""

    def __init__(self, fabric: Fabric, dealer: FakeSocket, router: FakeSocket, identity: bytes) -> None:
        self.fabric, self.dealer, self.router, self.identity = fabric, dealer, router, identity
        self.broken = False
        self.up = Direction(router, fabric.capacity(dealer.sndhwm + router.rcvhwm))
        self.down = Direction(dealer, fabric.capacity(router.sndhwm + dealer.rcvhwm))

    def push(self, direction: Direction, frames: Frames) -> bool:
        """Send. False if the pipe is full."""
        if direction.full:
            return False
        fabric = self.fabric
        size = sum(map(len, frames))
        limit = direction.receiver.maxmsgsize
        if 0 <= limit < max(map(len, frames)):
            fabric.too_large(self, direction, size)
            fabric.kernel.after(1e-4, self.cut)  # libzmq drops the connection
            return True
        direction.under_way.append(frames)
        kernel = fabric.kernel
        wait_ns = LEAST_DELAY_NS + int(DELAYS_NS * kernel.random.random()) + size
        if direction is self.down and kernel.now_ns < fabric.slow_until_ns:
            wait_ns += SLOW_NS + max(0, direction.free_at - kernel.now_ns)
            wait_ns = min(wait_ns, fabric.slow_until_ns + SLOW_NS - kernel.now_ns)
        direction.free_at = max(direction.free_at, kernel.now_ns + wait_ns, fabric.stalled_until_ns)
        kernel.at(direction.free_at, partial(self._arrive, direction))
        return True

    def cut(self) -> None:
        """Lose the connection. A part of what was under way has arrived and is read late, perhaps after
        messages of the next connection: ZeroMQ reads from its connections in turn."""
        if self.broken:
            return
        self.broken = True
        kernel = self.fabric.kernel
        for direction in (self.up, self.down):
            for frames in itertools.islice(
                direction.under_way, kernel.random.randint(0, len(direction.under_way))
            ):
                wait = kernel.random.choice((1e-4, 0.02, 0.5))
                direction.free_at = max(direction.free_at, kernel.now_ns + int(wait * 1e9))
                kernel.at(direction.free_at, partial(direction.receiver.deliver, self, direction, frames))
            direction.under_way.clear()
        self.router.pipes.pop(self.identity, None)
        self.fabric.pipes.pop(self.identity, None)
        if self.dealer.pipe is self:
            self.dealer.pipe = None
            if not self.dealer.closed:
                self.dealer.reconnect()

    def _arrive(self, direction: Direction) -> None:
        if not self.broken and direction.under_way:
            direction.receiver.deliver(self, direction, direction.under_way.popleft())


class FakeSocket:
    """A DEALER, a ROUTER, or the REP of the authenticator. It has the options that hoptui sets."""

    def __init__(self, fabric: Fabric, process: Process, kind: int) -> None:
        self.fabric, self.process, self.kind = fabric, process, kind
        self.sndhwm = self.rcvhwm = DEFAULT_HWM
        self.linger = 0
        self.immediate = False
        self.maxmsgsize = -1
        self.reconnect_ivl, self.reconnect_ivl_max = 100, 0
        self.router_mandatory = 0
        self.zap_domain = b""
        self.closed = False
        self.signal = Signal(fabric.kernel)
        self.inbox: deque[tuple[Pipe | None, Direction | None, Frames]] = deque()
        # a DEALER's
        self.pipe: Pipe | None = None
        self._address = ""
        self._before: deque[Frames] = deque()
        self._attempts = 0
        # a ROUTER's
        self.pipes: dict[bytes, Pipe] = {}
        process.at_end.append(self._at_end)

    # options ------------------------------------------------------------------------------------------------

    def setsockopt(self, option: int, value: object) -> None:
        assert option == zmq.ZAP_ENFORCE_DOMAIN, option

    def getsockopt(self, option: int) -> int:
        assert option == zmq.EVENTS, option
        return READ if self.inbox else 0

    def poll(self, timeout: int, flags: int = READ) -> int:
        """Wait at most so many milliseconds to receive, or to send with POLLOUT. Return what is possible."""
        return self.fabric.kernel.wait(lambda: self.ready(flags), [self.signal], timeout / 1000)

    def ready(self, flags: int) -> int:
        """Return which of `flags` are possible now."""
        found = READ if flags & READ and self.inbox else 0
        if flags & WRITE:
            room = len(self._before) < self.sndhwm and not self.immediate
            found |= WRITE if (not self.pipe.up.full if self.pipe is not None else room) else 0
        return found

    # connections --------------------------------------------------------------------------------------------

    def bind(self, address: str) -> None:
        self.process.operate()
        if address.startswith("inproc:"):
            self.process.environ["_gate"] = ""
            self.fabric.gates[self.process.pid] = self
            return
        path = Path(address.removeprefix("ipc://"))
        path.touch(mode=0o600)
        self.fabric.listeners[path.stat().st_ino] = self

    def connect(self, address: str) -> None:
        self._address = address.removeprefix("ipc://")
        self.reconnect()

    def reconnect(self) -> None:
        wait = min(self.reconnect_ivl * 2 ** min(self._attempts, 10), self.reconnect_ivl_max or 1 << 30)
        wait_s = self.fabric.kernel.random.uniform(1e-4, 5e-4) + (wait / 1000 if self._attempts else 0.0)
        self._attempts += 1
        self.fabric.kernel.after(wait_s, self._try)

    def _try(self) -> None:
        if self.closed or self.pipe is not None or not self.process.alive:
            return
        router = self.fabric.listener(self._address)
        if router is None:
            self.reconnect()
            return
        self._attempts = 0
        pipe = self.pipe = self.fabric.pipe(self, router)
        gate = self.fabric.gates.get(router.process.pid)
        if gate is not None and router.zap_domain:
            who = self.fabric.peer_address(self.process).encode()
            gate.deliver(None, None, [b"1.0", b"1", router.zap_domain, who, b"", b"NULL"])
        while self._before and pipe.push(pipe.up, self._before[0]):
            self._before.popleft()
        self.signal.set()

    # messages -----------------------------------------------------------------------------------------------

    def send(self, frame: bytes, flags: int = 0) -> None:
        """Send on a DEALER, without waiting."""
        self.process.operate()
        frames = [frame]
        if self.pipe is None:
            if self.immediate or len(self._before) >= self.sndhwm:
                raise zmq.Again
            self._before.append(frames)
        elif not self.pipe.push(self.pipe.up, frames):
            self.fabric.refused += 1
            raise zmq.Again

    def send_multipart(self, frames: Sequence[bytes], flags: int = 0) -> None:
        """Send on a ROUTER, without waiting. The answers of the authenticator need no way."""
        self.process.operate()
        if self.kind != zmq.ROUTER:
            return
        identity, *body = frames
        pipe = self.pipes.get(identity)
        if pipe is None:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        if not pipe.push(pipe.down, list(body)):
            self.fabric.refused += 1
            raise zmq.Again

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Any]:
        if not self.process.alive:
            raise Killed
        if not self.inbox:
            raise zmq.Again
        pipe, direction, frames = self.inbox.popleft()
        if pipe is None or direction is None:
            return frames
        if direction.full:  # there is room for one more
            (pipe.dealer if direction is pipe.up else pipe.router).signal.set()
        direction.arrived -= 1
        if self.kind == zmq.ROUTER:
            frames = [pipe.identity, *frames]
        if copy:
            return frames
        peer = self.fabric.peer_address(pipe.dealer.process)
        return [Frame(frame, peer) for frame in frames]

    def deliver(self, pipe: Pipe | None, direction: Direction | None, frames: Frames) -> None:
        if self.closed:
            return
        if direction is not None:
            direction.arrived += 1
        self.inbox.append((pipe, direction, frames))
        self.signal.set()

    def close(self, linger: int | None = None) -> None:
        """Close. What was sent is delivered if it arrives within `linger` milliseconds."""
        if self.closed:
            return
        self.closed = True
        kernel = self.fabric.kernel
        until_ns = kernel.now_ns + 1_000_000 * (linger or self.linger)
        for pipe in [*self.pipes.values(), *([self.pipe] if self.pipe is not None else [])]:
            if linger or self.linger:
                kernel.after(LINGER_STEP_S, partial(self._cut_once_sent, pipe, until_ns))
            else:
                pipe.cut()

    def _cut_once_sent(self, pipe: Pipe, until_ns: int) -> None:
        kernel = self.fabric.kernel
        under_way = (pipe.up if pipe.dealer is self else pipe.down).under_way
        if under_way and self.process.alive and not pipe.broken and kernel.now_ns < until_ns:
            kernel.after(LINGER_STEP_S, partial(self._cut_once_sent, pipe, until_ns))
        else:
            pipe.cut()

    def _at_end(self, killed: bool) -> None:
        """The process has ended: a part of what it had sent has reached the kernel."""
        if self.closed:
            return
        self.closed = True
        random = self.fabric.kernel.random
        for pipe in [*self.pipes.values(), *([self.pipe] if self.pipe is not None else [])]:
            direction = pipe.up if pipe.dealer is self else pipe.down
            for _ in range(random.randint(0, len(direction.under_way)) if killed else 0):
                direction.under_way.pop()
            self.fabric.kernel.after(0.002, pipe.cut)


class Fabric:
    """All sockets of a node.

    Attributes:
        most: The greatest capacity of a pipe in messages, at most what the sockets ask for.
        stalled_until_ns: No message arrives before.
        slow_until_ns: Until then answers arrive one by one. Those that still wait arrive at that time.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.listeners: dict[int, FakeSocket] = {}
        self.gates: dict[int, FakeSocket] = {}
        self.pipes: dict[bytes, Pipe] = {}
        self.most = 1 << 30
        self.stalled_until_ns = self.slow_until_ns = 0
        self.refused = 0
        self.oversized: list[str] = []
        self._identities = itertools.count(1)

    def capacity(self, asked: int) -> int:
        return max(1, min(asked, self.most))

    def listener(self, path: str) -> FakeSocket | None:
        """Return the ROUTER at a path, if its process lives."""
        try:
            found = self.listeners.get(os.stat(path).st_ino)  # noqa: PTH116 - a string, many times
        except OSError:
            return None
        return found if found is not None and not found.closed and found.process.alive else None

    def pipe(self, dealer: FakeSocket, router: FakeSocket) -> Pipe:
        identity = b"\0" + next(self._identities).to_bytes(4, "big")
        pipe = Pipe(self, dealer, router, identity)
        router.pipes[identity] = self.pipes[identity] = pipe
        return pipe

    def peer_address(self, process: Process) -> str:
        return f"localhost:{os.getuid()}:{os.getgid()}:{process.pid}"

    def too_large(self, pipe: Pipe, direction: Direction, size: int) -> None:
        where = "to" if direction is pipe.down else "from"
        self.oversized.append(f"{size} bytes {where} {pipe.dealer.process.name}")


class FakeContext:
    """Stands for `zmq.Context`."""

    fabric: Fabric

    def __init__(self) -> None:
        self.linger = 0
        self._process = self.fabric.kernel.process
        self._sockets: list[FakeSocket] = []

    def socket(self, kind: int) -> FakeSocket:
        opened = FakeSocket(self.fabric, self._process, kind)
        self._sockets.append(opened)
        return opened

    def destroy(self, linger: int | None = None) -> None:
        for opened in self._sockets:
            opened.close(linger)


class FakePoller:
    """Stands for `zmq.Poller`. It waits for sockets, wake-up pairs and ends of processes."""

    fabric: Fabric
    by_number: dict[int, Any]

    def __init__(self) -> None:
        self._things: dict[Any, tuple[Any, int]] = {}
        self._signals: list[Signal] | None = None  # made when it polls

    def register(self, thing: Any, flags: int = READ) -> None:
        key = self._key(thing)
        self._things[key] = (self.by_number[key] if type(key) is int else thing), int(flags)
        self._signals = None

    def unregister(self, thing: Any) -> None:
        del self._things[self._key(thing)]
        self._signals = None

    def poll(self, timeout: int | None = None) -> list[tuple[Any, int]]:
        if self._signals is None:
            self._signals = [thing.signal for thing, _ in self._things.values()]
        seconds = 1e9 if timeout is None or timeout < 0 else max(timeout / 1000, 5e-5)
        return self.fabric.kernel.wait(self._ready, self._signals, seconds)

    def _ready(self) -> list[tuple[Any, int]]:
        return [(key, found) for key, (thing, flags) in self._things.items() if (found := thing.ready(flags))]

    @staticmethod
    def _key(thing: Any) -> Any:
        return thing if type(thing) is FakeSocket or type(thing) is int else thing.fileno()
