"""Where the time of a recorded run went, by line of its script: around a moment, or from the start on."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

from hoptui.domain.line_counts import FoundLines, count
from hoptui.domain.stack_merger import StackMerger
from hoptui.model.stack_samples import RANK_BYTES
from hoptui.protocol.ranges import MOST_STAMP
from hoptui.recording import Recording, RecordingError
from hoptui.recording.stack_minutes import StackMinute

AROUND_NS = 60_000_000_000
"""The minute that ended at most so long before a moment stands for it, if none is around it."""
MOST_MINUTES = 180
"""Minutes that are read of the whole time. Of more, evenly spaced ones are read."""


class RecordedLines:
    """The lines of one recording. It reads files and computes: do not call it in the drawing thread.

    The minutes of the whole time are added up once: a later moment costs only the minutes since then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin(1)

    def around(self, t: int) -> FoundLines:
        """Return the lines of the minute around a stamp, or of the last one before it."""
        with Recording.open(self.path) as recording:
            stamps, _ = recording.minutes()
            at = bisect_left(stamps, t)
            before, end = stamps[at - 1] if at else 0, MOST_STAMP
            if at < len(stamps):
                found, unreadable = _minute(recording, stamps[at])
                if unreadable or _began(found) <= t:
                    return _answer(found, unreadable, min(t, max(_began(found), before + 1)), stamps[at])
                end = _began(found) - 1
            if before and t - before <= AROUND_NS:
                return _answer(*_minute(recording, before), before + 1, min(end, before + AROUND_NS))
            return FoundLines(t0=before + AROUND_NS + 1 if before else 0, t1=end)

    def upto(self, t: int) -> FoundLines:
        """Return the lines from the start up to a stamp. The minute around it counts as a whole."""
        with Recording.open(self.path) as recording:
            stamps, odd = recording.minutes()
            every = max(1, -(-len(stamps) // MOST_MINUTES))
            last = bisect_left(stamps, t)  # of the minute around it
            if every != self._every or last < self._read - 1:
                self._begin(every)
            end = stamps[last] if last < len(stamps) else MOST_STAMP
            for index in range(self._read, min(last + 1, len(stamps))):
                began = self._add(recording, index, stamps[index], t)
                end = min(end, began - 1) if began > t else end
        before = stamps[last - 1] + 1 if last else 0
        merger = self._merger
        return FoundLines(
            {rank: count(merger.merged(rank, RANK_BYTES)) for rank in sorted(merger.spans)},
            ranks_left_out=self._ranks_left_out,
            unreadable=self._unreadable + odd,
            skipped=self._skipped,
            t0=max(before, self._began) if self._read > last else before,
            t1=end,
        )

    def _begin(self, every: int) -> None:
        self._merger = StackMerger()
        self._every = every
        self._began = 0  # when the minute began that was read last
        self._read = self._ranks_left_out = self._unreadable = self._skipped = 0

    def _add(self, recording: Recording, index: int, stamp: int, t: int) -> int:
        """Add a minute, unless it is left out or begins after `t`. Return when it began, 0 if not known."""
        if index % self._every:
            self._skipped += 1
            self._read, self._began = index + 1, 0
            return 0
        found, unreadable = _minute(recording, stamp)
        began = _began(found)
        if began > t:
            return began
        self._read, self._began = index + 1, began
        self._unreadable += unreadable
        if found is not None:
            self._ranks_left_out = max(self._ranks_left_out, found.ranks_left_out)
            for rank, samples in found.ranks.items():
                self._merger.add(rank, samples)
        return began


def _minute(recording: Recording, t: int) -> tuple[StackMinute | None, bool]:
    """Return the samples that end at a stamp, and whether they are damaged."""
    try:
        return recording.minute(t), False
    except RecordingError:
        return None, True


def _began(minute: StackMinute | None) -> int:
    found = minute.ranks.values() if minute is not None else ()
    return min((samples.began for samples in found), default=0)


def _answer(minute: StackMinute | None, unreadable: bool, t0: int, t1: int) -> FoundLines:
    ranks = {rank: count(samples) for rank, samples in minute.ranks.items()} if minute is not None else {}
    left_out = minute.ranks_left_out if minute is not None else 0
    return FoundLines(ranks, ranks_left_out=left_out, unreadable=int(unreadable), t0=t0, t1=t1)
