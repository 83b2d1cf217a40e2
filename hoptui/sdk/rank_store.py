"""What the ranks of one run exchange, over a key-value store that all of them reach.

`Exchange` has the operations that all ranks call in the same order. It waits by asking, because a store that
waits would block the other threads of the process. Nothing here imports torch.
"""

from __future__ import annotations

import atexit
import datetime
import itertools
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

log = logging.getLogger("hoptui")
T = TypeVar("T")
FIRST_WAIT_S, LONGEST_WAIT_S = 0.0005, 0.02
"""Between two questions for the same key. Each wait takes twice as long as the one before."""
MISSING_EVERY_S = 0.2
"""How often a rank that waits looks whether one that it waits for has left."""
BEAT_EVERY_S = 2.0
"""How often the thread of a rank writes that it lives."""
SILENT_S = 60.0
"""A rank that has written nothing for so long is given up. A setter may hold the interpreter for a while."""
LOOK_MOST_S = 2.0
"""How much of a call's time one look at it counts at most."""
EXIT_S = 10.0
"""How long the exit of the process waits for calls of its stores."""
CALL_S = 10
"""How long a call of a connection that only shows other nodes waits for a key."""


@runtime_checkable
class RankStore(Protocol):
    """Keys and values that all processes of one run reach. Calls come from several threads.

    Every process of the run has one, with the same keys. torch's stores fit (`TorchStore`), and so does a
    shared folder with one file for each key. An operation that raises ends the agreement of the ranks:
    commands are refused from then on, and training goes on.
    """

    @property
    def rank(self) -> int:
        """The index of this process, from 0."""
        ...

    @property
    def world(self) -> int:
        """The number of processes."""
        ...

    def set(self, key: str, value: bytes) -> None:
        """Write a value, in place of one that was there."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, None if there is none. It never waits for one."""
        ...

    def delete(self, key: str) -> None:
        """Remove a key that nobody reads any more. A store that cannot may keep it."""
        ...


class SharingError(Exception):
    """The ranks can no longer communicate: the store raised, or a rank has left or is silent."""


class CheckedStore:
    """A store whose errors are SharingErrors.

    It is shut when the process exits. A thread that is inside a call of torch's store while the interpreter
    ends aborts the process: it cannot get the interpreter back, and C++ does not let it end there.
    """

    def __init__(self, store: RankStore) -> None:
        self._store = store
        self.rank, self.world = store.rank, store.world
        self._shut = False
        self._inside: dict[int, float] = {}  # threads, and when they began
        _checked.add(self)

    def set(self, key: str, value: bytes) -> None:
        """See RankStore."""
        self._call(lambda: self._store.set(key, value))

    def get(self, key: str) -> bytes | None:
        """See RankStore."""
        return self._call(lambda: self._store.get(key))

    def delete(self, key: str) -> None:
        """See RankStore."""
        self._call(lambda: self._store.delete(key))

    @property
    def counts(self) -> bool:
        """Whether it has numbers that processes add to."""
        return isinstance(self._store, TorchStore)

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 at first, and return it. Only of a store that `counts`."""
        store = self._store
        if not isinstance(store, TorchStore):
            raise SharingError("this store has no numbers")
        return self._call(lambda: store.add(key, amount))

    def get_there(self, keys: list[str]) -> list[bytes | None]:
        """Return the values of keys that are known to be there."""
        store = self._store
        if isinstance(store, TorchStore):
            return list(self._call(lambda: store.get_there(keys)))
        return [self.get(key) for key in keys]

    def clone(self) -> RankStore:
        """Return another connection to a store of torch, not checked yet. Any other store is itself."""
        store = self._store
        return self._call(store.clone) if isinstance(store, TorchStore) else store

    def inside_since(self, thread: int | None) -> float | None:
        """Return when a thread began the call that it is inside of, None if it is in none."""
        return self._inside.get(thread) if thread is not None else None

    def shut(self, limit_s: float) -> None:
        """Refuse calls from now on. Return once no other thread is inside one, or after `limit_s`."""
        self._shut = True
        until = time.monotonic() + limit_s
        while self._inside.keys() - {threading.get_ident()} and time.monotonic() < until:
            time.sleep(FIRST_WAIT_S)

    def _call(self, operation: Callable[[], T]) -> T:
        thread = threading.get_ident()
        self._inside[thread] = time.monotonic()  # before it looks whether the store is shut
        try:
            if self._shut or _exiting:
                raise SharingError("this process exits")
            return operation()
        except SharingError:
            raise
        except Exception as error:
            raise SharingError(f"{type(error).__name__}: {error}") from error
        finally:
            self._inside.pop(thread, None)


class CallWatch:
    """Notices that a call of a store does not return. A time when nobody looked hardly counts.

    After a suspension of the process, the call may return at once.
    """

    def __init__(self, store: CheckedStore) -> None:
        self._store = store
        self._call: float | None = None
        self._seen_s = self._looked_at = 0.0

    def hangs(self, thread: int | None) -> bool:
        """Return whether a thread has been inside one call for `SILENT_S`. Ask about once a second."""
        now, call = time.monotonic(), self._store.inside_since(thread)
        same = call is not None and call == self._call
        self._seen_s = self._seen_s + min(now - self._looked_at, LOOK_MOST_S) if same else 0.0
        self._call, self._looked_at = call, now
        return self._seen_s > SILENT_S


_checked: weakref.WeakSet[CheckedStore] = weakref.WeakSet()
os.register_at_fork(after_in_child=_checked.clear)  # the threads stay in the parent


_exiting = False


@atexit.register
def _shut_all() -> None:
    """Refuse calls of all stores, also of one that a thread is just about to check."""
    global _exiting
    _exiting = True
    until = time.monotonic() + EXIT_S
    for store in list(_checked):
        store.shut(until - time.monotonic())


class TorchStore:
    """The store of torch.distributed, under keys of its own.

    Args:
        store: A connection that nothing else waits on: a call that waits holds the lock of its connection.
        rank: The index of this process.
        world: The number of processes.
    """

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self._store = store
        self.rank = rank
        self.world = world

    def set(self, key: str, value: bytes) -> None:
        """See RankStore."""
        self._store.set(key, value)

    def get(self, key: str) -> bytes | None:
        """See RankStore."""
        if not self._store.check([key]):
            return None
        value: bytes = self._store.get(key)
        return value

    def delete(self, key: str) -> None:
        """See RankStore."""
        try:
            self._store.delete_key(key)
        except (RuntimeError, NotImplementedError):  # not every store of torch can
            return

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 at first, and return it."""
        return int(self._store.add(key, amount))

    def get_there(self, keys: list[str]) -> list[bytes]:
        """Return the values of keys that are there. Of another key, it waits for the value."""
        try:
            return list(self._store.multi_get(keys)) if keys else []
        except (AttributeError, NotImplementedError):  # not every store of torch can
            return [self._store.get(key) for key in keys]

    def clone(self) -> TorchStore:
        """Return another connection to it. Its calls wait at most `CALL_S` for a key."""
        store = self._store.clone()
        store.set_timeout(datetime.timedelta(seconds=CALL_S))
        return TorchStore(store, self.rank, self.world)


def torch_has_ranks() -> bool:
    """Whether torch.distributed has met several ranks. It is not imported for that."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def store_of_torch() -> TorchStore | None:
    """Return a connection of its own to the store of torch.distributed's default group.

    None without several ranks, or if its store cannot be connected to again.
    """
    if not torch_has_ranks():
        return None
    dist: Any = sys.modules["torch.distributed"]
    try:
        store = dist.distributed_c10d._get_default_store().clone()
        return TorchStore(dist.PrefixStore("hoptui", store), dist.get_rank(), dist.get_world_size())
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        log.warning("hoptui: no command can be carried out: its ranks cannot agree: %s", error)
        return None


_runs = itertools.count()


def next_prefix() -> str:
    """Return the prefix of the keys of one run. All ranks connect their runs in the same order."""
    return f"{next(_runs)}/"


class Presence:
    """Which ranks take part: each writes when it joins and leaves, and from time to time that it lives."""

    def __init__(self, store: RankStore, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._beats: dict[int, tuple[bytes | None, float]] = {}
        self._looks: dict[int, tuple[bytes, float, float]] = {}  # what was seen, for how long, and when last
        self._beat = 0
        self._next_beat = 0.0

    def live(self) -> None:
        """Write that this rank lives, if it is time to."""
        if (now := time.monotonic()) >= self._next_beat:
            self._next_beat = now + BEAT_EVERY_S
            self._beat += 1
            self._store.set(f"{self._prefix}beat/{self._store.rank}", str(self._beat).encode())

    def leave(self, rank: int | None = None) -> None:
        """Write that a rank passes no more boundaries: this one, or one that cannot write it itself."""
        self._store.set(f"{self._prefix}left/{self._store.rank if rank is None else rank}", b"")

    def back(self, rank: int) -> None:
        """Write that a rank takes part after all."""
        self._store.delete(f"{self._prefix}left/{rank}")

    def silent_s(self, rank: int) -> float | None:
        """Return for how long a rank has written nothing, None if it has never taken part.

        A time when nobody looked hardly counts: this process may have been suspended.
        """
        now, beat = time.monotonic(), self._store.get(f"{self._prefix}beat/{rank}")
        if beat is None:
            return None
        before, seen_s, looked_at = self._looks.get(rank, (b"", 0.0, now))
        seen_s = seen_s + min(now - looked_at, LOOK_MOST_S) if beat == before else 0.0
        self._looks[rank] = beat, seen_s, now
        return seen_s

    def joined(self, rank: int) -> bool:
        """Whether a rank has ever taken part."""
        return self._store.get(f"{self._prefix}beat/{rank}") is not None

    def left(self, rank: int) -> bool:
        """Whether a rank passes no more boundaries."""
        return self._store.get(f"{self._prefix}left/{rank}") is not None

    def require(self, rank: int) -> None:
        """Check that a rank may still answer.

        Raises:
            SharingError: it has left, or it has been silent for `SILENT_S` of this rank's time.
        """
        if self.left(rank):
            raise SharingError(f"rank {rank} has left the loop")
        now, beat = time.monotonic(), self._store.get(f"{self._prefix}beat/{rank}")
        before = self._beats.get(rank)
        if before is None or before[0] != beat:
            self._beats[rank] = (beat, now)
        elif now - before[1] > SILENT_S:
            raise SharingError(f"rank {rank} has been silent for {SILENT_S:g} s")


class Exchange:
    """The operations that all ranks call in the same order. They wait for each other.

    Rank 0 collects the values of all ranks and writes them as one value. So the number of requests grows with
    the number of ranks and not with its square.

    Raises:
        SharingError: from each operation.
    """

    def __init__(self, store: RankStore, prefix: str, presence: Presence) -> None:
        self._store, self._prefix, self._presence = store, prefix, presence
        self._turn = 0
        self._written: list[str] = []  # keys that some rank may still read

    def share(self, payload: bytes | None) -> bytes:
        """Return rank 0's `payload` on every rank."""
        key = self._next("share")
        if self._store.rank:
            return self._wait(key, 0)
        self._set(key, payload or b"")
        return payload or b""

    def gather(self, value: object) -> list[Any]:
        """Return the values of all ranks, in order of rank: numbers, texts, lists and dicts of them."""
        key, store = self._next("gather"), self._store
        if store.rank:
            self._set(f"{key}/{store.rank}", msgspec.msgpack.encode(value))
            everything = self._wait(key, 0)
            store.delete(f"{key}/{store.rank}")
            return msgspec.msgpack.decode(everything, type=list[Any])
        done, self._written = self._written, []
        own = msgspec.msgpack.decode(msgspec.msgpack.encode(value))
        found = [own, *(msgspec.msgpack.decode(self._wait(f"{key}/{i}", i)) for i in range(1, store.world))]
        self._set(key, msgspec.msgpack.encode(found))
        for old in done:  # all ranks are past them: each has written its value of this turn
            store.delete(old)
        return found

    def all(self, ok: bool) -> bool:
        """Return whether `ok` is true on every rank."""
        return all(self.gather(ok))

    def _next(self, kind: str) -> str:
        self._turn += 1
        return f"{self._prefix}{kind}/{self._turn}"

    def _set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)
        if self._store.rank == 0:
            self._written.append(key)

    def _wait(self, key: str, rank: int) -> bytes:
        """Return the value that `rank` writes."""
        pause, look = FIRST_WAIT_S, time.monotonic() + MISSING_EVERY_S
        while (value := self._store.get(key)) is None:
            if time.monotonic() >= look:
                look = time.monotonic() + MISSING_EVERY_S
                try:
                    self._presence.require(rank)
                except SharingError:
                    if (value := self._store.get(key)) is not None:
                        return value  # it has written this, and left since
                    raise
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_WAIT_S)
        return value
