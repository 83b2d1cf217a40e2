"""The stack samples of the last minute of every process of a run, and those that are not recorded yet."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from hoptui.domain.activities import Activity, activities, summed
from hoptui.domain.hot_lines import sampled
from hoptui.domain.kind_rules import Kind
from hoptui.domain.line_counts import LineCounts, counted
from hoptui.domain.stack_kinds import kind_of
from hoptui.domain.stacks import (
    KEPT_S,
    PHASE_FILE,
    StackFrame,
    StackSamples,
    merged,
    unpack,
    unpack_asleep,
)
from hoptui.domain.stragglers import may_wait
from hoptui.domain.training_code import NOTHING_KNOWN, TrainingCode
from hoptui.recording.stack_minutes import MINUTE_BYTES

MOST_PARTS = 64
"""Messages of one process that are kept: twice as many as it sends in that time."""
REPORT_BYTES = 64 << 10
"""Estimated size of the samples of one process in an answer."""
MOST_RANKS = 32
"""Processes of one answer: it stays below what a viewer takes."""
RECORD_NS = 60_000_000_000
"""The time between two writes to the recording."""


class StackBatch(NamedTuple):
    """The samples of each rank, in parts, for at most `most_bytes` of the recording. `t` is monotonic ns."""

    t: int
    parts: dict[int, list[StackSamples]]
    samples: int
    most_bytes: int


class _Counted(NamedTuple):
    """What was done in a message of samples, by what was known of the script then.

    `waited` has the outermost phases in which a sample waits, or may do so.
    """

    code: TrainingCode
    activities: Counter[Activity]
    waited: frozenset[str]


class StackWindows:
    """The newest samples by rank. Times are monotonic nanoseconds.

    `code` has the functions of the script that train, as far as they are known.
    """

    def __init__(self) -> None:
        self._parts: dict[int, deque[StackSamples]] = {}
        self._counted: dict[int, deque[_Counted]] = {}  # the same parts
        self.code = NOTHING_KNOWN
        self._unrecorded: dict[int, deque[StackSamples]] = {}
        self._taken_t = 0
        self._allowed = 2.0 * MINUTE_BYTES

    def add(self, rank: int, samples: StackSamples) -> None:
        """Add the samples of a process, and forget those that are too old."""
        parts = self._parts.setdefault(rank, deque(maxlen=MOST_PARTS))
        parts.append(samples)
        counts = self._counted.setdefault(rank, deque(maxlen=MOST_PARTS))
        stacks = unpack(samples)
        self.code = self.code.learned(stacks)
        counts.append(_counted(samples, self.code))
        while parts[0].ended < samples.ended - KEPT_S * 1e9:
            parts.popleft()
            counts.popleft()
        waiting = self._unrecorded.setdefault(rank, deque())
        waiting.append(samples)
        if len(waiting) > MOST_PARTS:
            waiting.append(_without_stacks(waiting.popleft(), waiting.popleft()))

    def knows_loop(self, calls: Iterable[tuple[str, int, str]]) -> None:
        """Take the calls in which an iteration of this run ended, as in `Stacks`: these functions train.

        One that is named after logging does not.
        """
        frames = [StackFrame(file, function, line) for file, line, function in calls]
        self.code = self.code.with_loop(frame for frame in frames if kind_of((frame,)) != "log")

    def since(self, t: int) -> dict[int, StackSamples]:
        """Return the samples of each process that ended after `t`. A process without any is left out."""
        recent = {rank: [part for part in parts if part.ended > t] for rank, parts in self._parts.items()}
        return {rank: merged(parts, REPORT_BYTES) for rank, parts in sorted(recent.items()) if parts}

    def activities(self, t: int) -> dict[int, Counter[Activity]]:
        """Return what each process did in the same time. One without samples is left out."""
        return {rank: summed(parts) for rank, parts in self.activity_parts(t).items() if any(parts)}

    def activity_parts(self, t: int) -> dict[int, list[Counter[Activity]]]:
        """Return the same for each message of each process, which has the samples of two seconds."""
        return {
            rank: [self._found(rank, at) for at, part in enumerate(parts) if part.ended > t]
            for rank, parts in sorted(self._parts.items())
        }

    def on_cpu(self, t: int) -> float:
        """Return the share of the time after `t` for which the sampled threads had a processor; NaN if that
        is unknown."""
        return self._mean(t, lambda part: part.on_cpu)

    def queued(self, t: int) -> float:
        """Return the share of the time after `t` for which they waited for a processor; NaN if that is
        unknown."""
        return self._mean(t, lambda part: part.queued)

    def _mean(self, t: int, share: Callable[[StackSamples], float | None]) -> float:
        known = [
            (value, part.ended - part.began)
            for parts in self._parts.values()
            for part in parts
            if part.ended > t and (value := share(part)) is not None
        ]
        passed = sum(ns for _, ns in known)
        return sum(value * ns for value, ns in known) / passed if passed else math.nan

    def waiting_phases(self, t: int) -> set[str]:
        """Return the outermost phases in which a process waited for others, or may have, after `t`."""
        return {
            phase
            for rank, parts in self._parts.items()
            for part, counted in zip(parts, self._counted[rank], strict=True)
            if part.ended > t
            for phase in counted.waited
        }

    @property
    def last_t(self) -> int:
        """The stamp of the newest samples of any process, 0 without any."""
        return max((parts[-1].ended for parts in self._parts.values()), default=0)

    def lines(self, t: int, first: int = 0) -> Iterator[tuple[int, LineCounts]]:
        """Yield each rank from `first` on, and the lines of its samples that ended after `t`.

        A process without any is left out. Stacks were looked at when they came.
        """
        for rank, parts in sorted(self._parts.items()):
            recent = [at for at, part in enumerate(parts) if part.ended > t] if rank >= first else []
            if recent:
                own = [parts[at] for at in recent]
                found = summed(self._found(rank, at) for at in recent)
                began, ended = min(part.began for part in own), max(part.ended for part in own)
                yield rank, counted(found, began, ended, sum(map(sampled, own)))

    def kinds(self, ends: Sequence[int]) -> list[Counter[Kind]]:
        """Return what all processes did, by kind: one count for each of `ends`.

        Args:
            ends: equally far apart, in order. A message counts for the one nearest to its end.
        """
        found = [Counter[Kind]() for _ in ends]
        if len(ends) < 2:
            return found
        step = ends[1] - ends[0]
        for rank, parts in self._parts.items():
            for at, part in enumerate(parts):
                place = (part.ended - ends[0] + step // 2) // step
                if 0 <= place < len(ends):
                    for activity, count in self._found(rank, at).items():
                        found[place][activity.kind] += count
        return found

    def _found(self, rank: int, at: int) -> Counter[Activity]:
        """Return what a process did in one of its parts, by what is known of the script now."""
        counted = self._counted[rank]
        if counted[at].code is not self.code:
            counted[at] = _counted(self._parts[rank][at], self.code)
        return counted[at].activities

    def newest(self, t: int) -> dict[int, StackSamples]:
        """Return the newest message of each process, if it ended after `t`."""
        newest = {rank: parts[-1] for rank, parts in sorted(self._parts.items())}
        return {rank: part for rank, part in newest.items() if part.ended > t}

    def due(self, t: int) -> bool:
        """Return whether samples have waited for the recording for a minute. The first call begins it."""
        self._taken_t = self._taken_t or t
        return t - self._taken_t >= RECORD_NS

    def take(self, t: int) -> StackBatch | None:
        """Remove and return what is not recorded yet, None if there is nothing.

        Bytes are allowed by the time that has passed, and for two minutes at once. So a run whose process
        ends again and again writes no more than others.
        """
        if not self._unrecorded:
            return None
        passed = max(0, t - self._taken_t) / RECORD_NS if self._taken_t else 0.0
        self._allowed = min(2.0 * MINUTE_BYTES, self._allowed + passed * MINUTE_BYTES)
        most_bytes = int(min(MINUTE_BYTES, self._allowed))
        self._allowed -= most_bytes
        self._taken_t = t
        parts = {rank: list(waiting) for rank, waiting in self._unrecorded.items()}
        self._unrecorded = {}
        count = sum(sampled(part) for waiting in parts.values() for part in waiting)
        return StackBatch(t, parts, count, most_bytes)


def _counted(samples: StackSamples, code: TrainingCode) -> _Counted:
    stacks = unpack(samples)
    waited = frozenset(
        stack[0].function for stack in stacks if stack and stack[0].file == PHASE_FILE and may_wait(stack)
    )
    return _Counted(code, activities(stacks, code, unpack_asleep(samples)), waited)


def _without_stacks(one: StackSamples, other: StackSamples) -> StackSamples:
    """Return the time and the number of samples of two parts. Their stacks are left out."""
    return StackSamples(
        began=min(one.began, other.began),
        ended=max(one.ended, other.ended),
        left_out=sampled(one) + sampled(other),
        cost=max(one.cost, other.cost),
    )
