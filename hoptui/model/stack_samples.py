"""Stack samples of a run between two stamps, in one form for live runs and recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from hoptui.domain.stack_merger import StackMerger
from hoptui.domain.stacks import KEPT_S, StackSamples
from hoptui.protocol.messages import RankStacks
from hoptui.recording import Recording, RecordingError
from hoptui.recording.stack_minutes import StackMinute

MOST_MINUTES = 1440
"""Minutes of a recording that are read for one answer. Of more, evenly spaced ones are read."""
MOST_FRAMES = 20_000_000
"""Frames of stacks that are read for one answer. A recording of a day and eight ranks has fewer."""
RANK_BYTES = 256 << 10
"""Estimated size of the samples of one process in an answer."""


class RunSamples(NamedTuple):
    """The samples of each process, by rank.

    `known` are all ranks that have samples in this time, also those that were not asked for.
    `ranks_left_out` is how many more ranks took part at most, whose samples were not recorded. Of a
    recording, `minutes` were read, `unreadable` minutes are damaged, and `skipped` minutes were not read
    because there are too many.
    """

    ranks: dict[int, StackSamples] = {}
    known: tuple[int, ...] = ()
    ranks_left_out: int = 0
    minutes: int = 0
    unreadable: int = 0
    skipped: int = 0


NO_SAMPLES = RunSamples()


class StackSource(Protocol):
    """Where stack samples come from: `LiveStacks` or `RecordedStacks`."""

    def between(self, t0: int, t1: int) -> RunSamples:
        """Return the samples of each process between two stamps, both included.

        Samples are stored in parts. A part that is only partly in this time counts as a whole, and the stamps
        of the samples say so.
        """
        ...


class LiveStacks:
    """The samples of a live run. Those of the last minute are there.

    `fetch` returns the samples of the last so many seconds, as `Session.stacks` does, and `now` the stamp of
    the node's clock.
    """

    def __init__(self, fetch: Callable[[float], Sequence[RankStacks]], now: Callable[[], int]) -> None:
        self._fetch = fetch
        self._now = now

    def between(self, t0: int, t1: int) -> RunSamples:
        """As `StackSource.between`. What `fetch` raises is raised."""
        seconds = min(KEPT_S, (self._now() - t0) / 1e9)
        if seconds <= 0 or t1 < t0:
            return NO_SAMPLES
        ranks = {each.rank: each.samples for each in self._fetch(seconds) if each.samples.began <= t1}
        return RunSamples(ranks, tuple(ranks))


class RecordedStacks:
    """The samples in a recording. The last answer is kept: a panel asks for it again and again."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._last: tuple[tuple[object, ...], RunSamples] = ((), NO_SAMPLES)

    def between(self, t0: int, t1: int, only: int | None = None) -> RunSamples:
        """As `StackSource.between`; 0 stands for the first and the last samples. With `only`, of one rank.

        A damaged minute is counted.

        Raises:
            RecordingError: the list of minutes cannot be read.
        """
        if self._last[0] != (t0, t1, only):
            self._last = (t0, t1, only), self._read(t0, t1, only)
        return self._last[1]

    def _read(self, t0: int, t1: int, only: int | None) -> RunSamples:
        stamps, unreadable = self._recording.minutes(t0)
        stamps, after = _up_to(stamps, t1)
        every = max(1, -(-len(stamps) // MOST_MINUTES))
        reader = _Reader(self._recording, t0, t1, only)
        for t in stamps[::every]:
            reader.read(t)
        if after is not None:
            reader.read(after)
        merger = reader.merger
        return RunSamples(
            {rank: merger.merged(rank, RANK_BYTES) for rank in sorted(merger.spans)},
            tuple(sorted(reader.known)),
            reader.ranks_left_out,
            reader.minutes,
            reader.unreadable + unreadable,
            len(stamps) - len(stamps[::every]) + reader.skipped,
        )


class _Reader:
    """Adds up minutes, and counts what is not read."""

    def __init__(self, recording: Recording, t0: int, t1: int, only: int | None) -> None:
        self._recording = recording
        self._t0, self._t1 = t0, t1
        self._only = only
        self._frames = 0
        self.merger = StackMerger()
        self.known: set[int] = set()
        self.ranks_left_out = self.minutes = self.unreadable = self.skipped = 0

    def read(self, t: int) -> None:
        """Add the minute that ends at `t`."""
        if self._frames > MOST_FRAMES:
            self.skipped += 1
            return
        try:
            found = self._recording.minute(t)
        except RecordingError:
            self.unreadable += 1
            return
        if found is not None and self._overlaps(found):
            self.minutes += 1
            self._add(found)

    def _overlaps(self, minute: StackMinute) -> bool:
        return not self._t1 or any(samples.began <= self._t1 for samples in minute.ranks.values())

    def _add(self, minute: StackMinute) -> None:
        self.ranks_left_out = max(self.ranks_left_out, minute.ranks_left_out)
        for rank, samples in minute.ranks.items():
            self.known.add(rank)
            if self._only in (None, rank):
                self._frames += sum(map(len, samples.stacks))
                self.merger.add(rank, samples)


def _up_to(stamps: list[int], t1: int) -> tuple[list[int], int | None]:
    """Return the stamps up to `t1`, and the next one: its minute may have begun before."""
    if not t1:
        return stamps, None
    count = sum(t <= t1 for t in stamps)
    return stamps[:count], stamps[count] if count < len(stamps) else None
