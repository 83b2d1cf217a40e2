"""The threads that keep the interpreter while the training thread needs it.

Each operation of a model needs the interpreter again. A thread that runs Python beside it keeps the
interpreter for 5 ms at a time, the switch interval. Stacks do not show which of the two has it: both are
found in the middle of their code.

The kernel shows it. A thread that waits for the interpreter uses no CPU time, and waits for no processor.
The sampler gets the interpreter when another thread lets go of it, so it often finds the training thread in
C code that runs. If the thread is found at work more often than it has run, it waited in the rest of this
time. The threads that ran meanwhile kept the interpreter if the sampler had to wait for it too. A thread
that computes in C without the interpreter lets the sampler have it at once. A training thread that sleeps in
a system call other than that for locks waits for something else.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import NamedTuple

from hoptui.sdk.thread_sleep import FUTEX, RUNNING, ThreadCall
from hoptui.sdk.thread_use import UNKNOWN, ThreadUse, thread_use

MOST_THREADS = 8
"""Threads whose CPU time is read."""
FEW_SAMPLES = 5
"""Fewer samples say nothing about a time. It goes on then."""
LONGEST_S = 20.0
"""A time that is longer than this says nothing of now."""
HELD_S = 1.5e-3
"""The mean time that the sampler waits for the interpreter, from which on a thread keeps it."""
IDLE = 0.001
"""A thread that ran for less of the time is idle. With a short switch interval, it and the training thread
take turns while it runs, which may cost as much again as it runs, or some times that."""
LEAST = 0.1
"""The least share of the time that is told. Below it, how the kernel counts decides."""


@dataclass
class _Seen:
    """What samples have shown. In `at_work` of them the training thread ran, or waited for a lock."""

    samples: int = 0
    at_work: int = 0
    late_s: float = 0.0
    running: set[int] = field(default_factory=set)  # the sampler may add to it at any time


class ProcessorTimes(NamedTuple):
    """What threads have had of the processors until `t_s`, in seconds.

    `process_s` is the CPU time of all threads, also of those that have ended.
    """

    t_s: float
    training: ThreadUse
    sampler: ThreadUse
    process_s: float


class InterpreterHolders:
    """Finds the threads that keep the interpreter, and how often the training thread waits for it.

    `see` and `pick` belong to the thread that samples, `measure` to the one that takes the samples.

    Args:
        dice: Decides which samples stand for the time in which the training thread waited.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._seen = _Seen()
        self._start: ProcessorTimes | None = None
        self._uses: Mapping[int, tuple[int, ThreadUse]] = {}  # at the start
        self._share = 0.0
        self._natives: Mapping[int, int] = {}  # numbers in the kernel by identifier
        self._calls: dict[int, ThreadCall] = {}  # by these numbers
        self._ran: Mapping[int, float] = {}  # by identifier, the share of the time for which a thread ran
        self._others = 0.0  # the same for each thread that is not in it

    def see(self, running: Iterable[int], late_s: float, *, at_work: bool) -> None:
        """Take what a sample has shown.

        Args:
            running: The identifiers of threads beside the training thread that do not wait.
            late_s: How much later than planned the sample was taken, in seconds.
            at_work: The training thread ran, or may have waited for the interpreter.
        """
        seen = self._seen
        seen.samples += 1
        seen.at_work += at_work
        seen.late_s += max(0.0, late_s)
        if len(seen.running) < MOST_THREADS:
            seen.running.update(running)

    def idle(self, thread: int) -> bool:
        """Return whether a thread has hardly run lately, though it was not seen to wait.

        It sleeps, or is blocked in C code. It has no need of the interpreter then.

        Args:
            thread: Its identifier.
        """
        return self._ran.get(thread, 1.0) < IDLE

    def pick(self, threads: Mapping[int, FrameType], waits: Callable[[CodeType], bool]) -> int | None:
        """Return the thread that keeps the interpreter in a sample, None if none does.

        The sampler has just taken it, so the thread that had it waits in the system call for locks. One that
        runs meanwhile is in C code, and one that sleeps in another call does not need it. To read this lets
        others have the interpreter, so it is read only of several threads.

        Args:
            threads: The innermost frames of the threads beside the training thread.
            waits: Whether a thread in a function waits.
        """
        if not self._share or self._dice.random() >= self._share:
            return None
        there = {
            one: ran
            for one, frame in threads.items()
            if (ran := self._ran.get(one, self._others)) >= LEAST and not waits(frame.f_code)
        }
        if len(there) < 2:
            return next(iter(there), None)
        calls = {one: self._call(one) for one in there}
        for wanted in (FUTEX, RUNNING):
            found = {one: ran for one, ran in there.items() if calls[one] == wanted}
            if found:
                return self._dice.choices(list(found), list(found.values()))[0]
        return None

    def _call(self, one: int) -> int | None:
        """Return the system call in which a thread sleeps. One of which nothing is known may wait."""
        native = self._natives.get(one)
        if len(self._calls) > MOST_THREADS:
            self.close()  # most of them have ended
        return FUTEX if native is None else self._calls.setdefault(native, ThreadCall()).look(native)

    def close(self) -> None:
        """Close what is open. Only the thread that samples may call it."""
        while self._calls:
            self._calls.popitem()[1].close()

    def measure(self, now: ProcessorTimes) -> None:
        """Find who has kept the interpreter. What is unknown keeps nothing."""
        seen, start = self._seen, self._start
        if start is None or not now.training.ran_s >= start.training.ran_s:  # unknown, or another thread
            self._begin(now)
        elif seen.samples >= FEW_SAMPLES:
            uses = _uses(frozenset(seen.running))
            self._natives, self._ran = self._shares(uses, now.t_s - start.t_s)
            self._share = self._found(seen, start, now)
            self._seen, self._start, self._uses = _Seen(), now, uses
        elif now.t_s - start.t_s > LONGEST_S:
            self._begin(now)

    def _begin(self, now: ProcessorTimes) -> None:
        """Begin anew. Nothing is known until the next call."""
        uses = _uses(frozenset(self._seen.running))
        self._share = 0.0
        self._seen, self._start, self._uses = _Seen(), now, uses

    def _found(self, seen: _Seen, start: ProcessorTimes, now: ProcessorTimes) -> float:
        """Return the share of the samples at work in which the training thread waits for the interpreter."""
        passed_s = now.t_s - start.t_s
        at_work = seen.at_work / seen.samples
        had = now.training.since(start.training).share(passed_s)
        missing = at_work - had.ran_s - had.queued_s
        sampler = now.sampler.since(start.sampler)
        late_s = (seen.late_s - sampler.queued_s) / seen.samples
        ran = (now.process_s - start.process_s - sampler.ran_s) / passed_s - had.ran_s
        if not (missing >= LEAST and late_s >= HELD_S and ran >= LEAST):  # so it is with NaN
            return 0.0
        self._others = max(0.0, ran - sum(self._ran.values()))
        return min(missing, ran) / at_work

    def _shares(
        self, uses: Mapping[int, tuple[int, ThreadUse]], passed_s: float
    ) -> tuple[dict[int, int], dict[int, float]]:
        """Return the numbers in the kernel and the shares of the time for which threads ran, by identifier.

        Only those are known that were there all the time. The others, such as those of a timer, may have
        ended, and a later thread may get the identifier of one of them.
        """
        known: dict[int, float] = {}
        natives: dict[int, int] = {}
        for one, (native, use) in uses.items():
            before = self._uses.get(one)
            if before is not None and before[0] == native:
                known[one] = use.since(before[1]).share(passed_s).ran_s
                natives[one] = native
        return natives, known


def _uses(threads: Collection[int]) -> dict[int, tuple[int, ThreadUse]]:
    """Return the numbers of some threads in the kernel, and what they have had, by identifier."""
    if not threads:
        return {}
    natives = {one.ident: one.native_id for one in threading.enumerate()}
    found = {one: (native, thread_use(native)) for one in threads if (native := natives.get(one))}
    return {one: known for one, known in found.items() if known[1] is not UNKNOWN}
