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
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from hoptui.sdk.thread_use import UNKNOWN, ThreadUse, thread_use

MOST_THREADS = 8
"""Threads whose CPU time is read."""
FEW_SAMPLES = 5
"""Fewer samples say nothing about a time."""
HELD_S = 1.5e-3
"""The mean time that the sampler waits for the interpreter, from which on a thread keeps it."""
LEAST = 0.1
"""The least share of the time that is told. Below it, how the kernel counts decides."""


@dataclass
class _Seen:
    """What samples have shown. In `at_work` of them the training thread ran, or waited for a lock."""

    samples: int = 0
    at_work: int = 0
    late_s: float = 0.0
    running: set[int] = field(default_factory=set)


class InterpreterHolders:
    """Finds the threads that keep the interpreter, and how often the training thread waits for it.

    `see` and `pick` belong to the thread that samples, `measure` to the one that takes the samples.

    Args:
        dice: Decides which samples stand for the time in which the training thread waited.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._seen = _Seen()
        self._before: dict[int, ThreadUse] = {}
        self._share = 0.0
        self._holders: Mapping[int, float] = {}  # by identifier, the share of the time for which it ran

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

    def pick(self, threads: Container[int]) -> int | None:
        """Return the thread of `threads` that keeps the interpreter in a sample, None if none does."""
        if not self._share or self._dice.random() >= self._share:
            return None
        there = {one: ran for one, ran in self._holders.items() if one in threads}
        return self._dice.choices(list(there), list(there.values()))[0] if there else None

    def measure(self, training: ThreadUse, sampler: ThreadUse, passed_s: float) -> None:
        """Find who kept the interpreter since the last call. What is unknown keeps nothing.

        Args:
            training: What the training thread has had of the processors in this time.
            sampler: The same of the thread that samples.
            passed_s: The time since the last call.
        """
        seen, self._seen = self._seen, _Seen()
        before, self._before = self._before, _uses(seen.running) if seen.running else {}
        self._share, self._holders = 0.0, {}
        if seen.samples < FEW_SAMPLES or not seen.at_work or passed_s <= 0:
            return
        now = {one: use.since(before.get(one, UNKNOWN)).share(passed_s) for one, use in self._before.items()}
        holders = {one: use.ran_s for one, use in now.items() if use.ran_s >= LEAST}
        at_work = seen.at_work / seen.samples
        had = training.share(passed_s)
        missing = at_work - had.ran_s - had.queued_s
        late_s = (seen.late_s - sampler.queued_s) / seen.samples
        if missing >= LEAST and holders and late_s >= HELD_S:  # none of these holds for NaN
            self._share, self._holders = min(missing, sum(holders.values())) / at_work, holders


def _uses(threads: Iterable[int]) -> dict[int, ThreadUse]:
    """Return what each of some threads has had until now, by identifier."""
    natives = {thread.ident: thread.native_id for thread in threading.enumerate()}
    found = {one: thread_use(native) for one in threads if (native := natives.get(one)) is not None}
    return {one: use for one, use in found.items() if use is not UNKNOWN}
