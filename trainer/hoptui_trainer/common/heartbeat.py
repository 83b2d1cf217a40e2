"""Who of the ranks still lives, and why one does not: a thread in each rank, speaking through the rendezvous
store.

A collective does not report why it fails, and NCCL's may not fail at all for minutes. So each rank watches
the next one. On the same machine it asks the kernel for the process, which is right even if that is busy. On
another machine a counter in the store must go on rising. The first reason that any rank writes is that of
all ranks.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import psutil

log = logging.getLogger("hoptui_trainer")

BEAT_S = 1.0
SILENT_S = 20.0
"""A rank of another machine whose counter stood still for so long is given up."""
HEARD_S = 5.0
LONGEST_REASON = 500


class KeyStore(Protocol):
    """What is needed of `torch.distributed.Store`; every call may raise once the host of the store is
    gone."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected_value: str, desired_value: str, /) -> bytes: ...


class Heartbeat:
    """Shows that this rank lives, and watches the next one.

    Args:
        host: which rank's process hosts the store, for users.
        lost: called once, in the thread, with the reason for which a rank is gone.
    """

    def __init__(
        self, store: KeyStore, rank: int, world: int, host: str, lost: Callable[[str], None]
    ) -> None:
        self.reason = ""
        self._store = store
        self._rank, self._world, self._host = rank, world, host
        self._next = (rank + 1) % world
        self._lost = lost
        self._known = threading.Event()
        self._stopped = threading.Event()
        self._leaving = False
        self._neighbour: Neighbour | None = None
        self._thread = threading.Thread(target=self._main, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._store.set(f"place/{self._rank}", f"{machine()} {os.getpid()}")
        atexit.register(self.stop)  # inside the store when Python ends, the thread would abort the process
        self._thread.start()

    def post(self, reason: str) -> str:
        """Send all ranks the reason why this one ends; returns the first reason of any rank.

        Waits at most five seconds until the others have heard it: the store may end with this process.
        """
        try:
            known = self._store.compare_set("reason", "", reason[:LONGEST_REASON]).decode()
            self._learn(known)
            if known != reason[:LONGEST_REASON]:
                self._store.add("heard", 1)
                return known
            end = time.monotonic() + HEARD_S
            while self._store.add("heard", 0) < self._world - 1 and time.monotonic() < end:
                time.sleep(0.05)
        except RuntimeError:
            known = self.reason or reason
        return known

    def wait(self, seconds: float) -> str:
        """The reason for which a rank is gone, as soon as one is known; "" if none is in so many seconds."""
        self._known.wait(seconds)
        return self.reason

    def leave(self) -> None:
        """This rank is about to end as it should: the others do not report it as lost."""
        self._leaving = True
        try:
            self._store.set(f"left/{self._rank}", "1")
        except RuntimeError as error:
            log.debug("the store is gone already: %s", error)

    def stopped(self, seconds: float) -> bool:
        """Whether this process comes to its end, or does within so many seconds."""
        return self._stopped.wait(seconds)

    def stop(self) -> None:
        """End the thread."""
        self._leaving = True
        self._stopped.set()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join(HEARD_S)

    def _main(self) -> None:
        while not self._stopped.wait(BEAT_S):
            try:
                reason = self._look()
            except RuntimeError:  # torch.distributed.DistError is one
                reason = "" if self._leaving else f"{self._host} vanished"
            if reason:
                self._learn(reason)
                self._lost(reason)
                return

    def _look(self) -> str:
        store = self._store
        store.add(f"beat/{self._rank}", 1)
        if not self._gone() or self._leaving:
            return self._told()
        # Its last word comes before ours.
        return self._told() or self._blame(f"rank {self._next} vanished")

    def _told(self) -> str:
        if self._known.is_set() or not self._store.check(["reason"]):
            return ""
        reason = self._store.get("reason").decode()
        self._store.add("heard", 1)
        return reason

    def _blame(self, reason: str) -> str:
        if self._store.check([f"left/{self._next}"]):
            return ""
        return self._store.compare_set("reason", "", reason).decode()

    def _gone(self) -> bool:
        """Whether there is evidence that the next rank is gone."""
        if self._neighbour is None:
            if not self._store.check([f"place/{self._next}"]):
                return False  # it has not come yet, for which joining has a limit of its own
            self._neighbour = Neighbour(self._store.get(f"place/{self._next}").decode())
        return self._neighbour.gone(self._store.add(f"beat/{self._next}", 0), time.monotonic())

    def _learn(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._known.set()


class Neighbour:
    """The next rank: its process where that can be seen from here, else its beats.

    `place` is what it wrote of itself: its machine, and its pid there.
    """

    def __init__(self, place: str) -> None:
        where, _, pid = place.rpartition(" ")
        self._process: psutil.Process | None = None
        self._here = where == machine()
        self._beats = -1
        self._since = 0.0
        if self._here:
            try:
                self._process = psutil.Process(int(pid))
            except psutil.NoSuchProcess:
                log.debug("process %s is gone already", pid)

    def gone(self, beats: int, now: float) -> bool:
        """Whether there is evidence for that at `now` (monotonic seconds), after so many beats."""
        if self._here:
            return self._process is None or _over(self._process)
        if beats != self._beats:
            self._beats, self._since = beats, now
        return now - self._since > SILENT_S


def _over(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def machine() -> str:
    """The same text for processes that see each other's pids, and for no others: this boot of a kernel, and a
    pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"alone {os.getpid()}"  # unlike any other's: then the beats decide
