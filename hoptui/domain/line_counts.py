"""Stack samples by line of the script: what a viewer needs to show where the time goes.

A count is much smaller than the stacks, and counts of several processes and times can be added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from hoptui.domain.activities import Activity, activities, by_line
from hoptui.domain.hot_lines import sampled
from hoptui.domain.stacks import StackSamples, unpack
from hoptui.domain.training_code import NOTHING_KNOWN

MOST_LINES = 64
"""Lines of one process that are kept: those with the most samples."""
MOST_TEXT = 240
"""Characters of the name of a file, a function or a call. Of a file, the end is kept."""


class CountedLine(msgspec.Struct, frozen=True, array_like=True):
    """A line of the script, what the thread did there, and how many samples were taken at it.

    `kind` is a `Kind`, or one that only a newer hoptui knows. `inside` is the function that the line calls,
    "" if its own code runs.
    """

    kind: str
    file: str
    line: int
    function: str
    inside: str
    samples: int


class LineCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of the training thread of one process, by line.

    `began` and `ended` are monotonic nanoseconds. `samples` counts all of them, also those without a stack
    and those of lines that are left out. `kinds` has the samples of each kind. `lines` are those with the
    most samples, the first of them has the most.
    """

    began: int
    ended: int
    samples: int
    kinds: dict[str, int] = {}
    lines: tuple[CountedLine, ...] = ()


class SharedLine(NamedTuple):
    """A line and its share of all samples. `rank` has the greatest share there, which is `of_rank`."""

    line: CountedLine
    share: float
    rank: int
    of_rank: float


class FoundLines(NamedTuple):
    """The answer to where the time of a run goes: the lines of each process, by rank.

    `problem` is the code of a reason why nothing is known: `old_daemon`, `elsewhere` (the recording is on
    another node), `no_recording`, or `unreadable`, with `detail`. Of a recording, `ranks_left_out` processes
    have no samples, `unreadable` minutes are damaged, and `skipped` ones were not read. The answer holds for
    the stamps from `t0` to `t1`.
    """

    ranks: Mapping[int, LineCounts] = {}
    problem: str = ""
    detail: str = ""
    ranks_left_out: int = 0
    unreadable: int = 0
    skipped: int = 0
    t0: int = 0
    t1: int = 0


def count(samples: StackSamples) -> LineCounts:
    """Return the lines of some samples."""
    stacks = unpack(samples)
    found = activities(stacks, NOTHING_KNOWN.learned(stacks))
    return counted(found, samples.began, samples.ended, sampled(samples))


def counted(found: Mapping[Activity, int], began: int, ended: int, samples: int) -> LineCounts:
    """Return the lines of activities. `samples` counts also those that had no stack."""
    kinds: Counter[str] = Counter()
    for activity, times in found.items():
        kinds[activity.kind] += times
    return LineCounts(
        began=began,
        ended=ended,
        samples=samples,
        kinds=dict(kinds.most_common()),
        lines=tuple(
            CountedLine(
                kind,
                place.file[-MOST_TEXT:],
                place.line,
                place.function[:MOST_TEXT],
                inside.most_common(1)[0][0][:MOST_TEXT],
                inside.total(),
            )
            for (kind, place), inside in by_line(found)[:MOST_LINES]
        ),
    )


def check(counts: LineCounts) -> None:
    """Check counts that another process has sent.

    Raises:
        ValueError: they end before they begin, or a count is impossible.
    """
    if counts.ended < counts.began:
        raise ValueError("samples end before they begin")
    if any(line.samples < 1 for line in counts.lines) or any(n < 1 for n in counts.kinds.values()):
        raise ValueError("each line has a positive count")
    if max(sum(counts.kinds.values()), sum(line.samples for line in counts.lines)) > counts.samples:
        raise ValueError("lines have more samples than there are")


def shares(ranks: Mapping[int, LineCounts]) -> list[SharedLine]:
    """Return the lines of some processes together, those with the greatest share first."""
    total = sum(counts.samples for counts in ranks.values())
    lines: dict[tuple[str, str, int, str], list[tuple[int, CountedLine]]] = {}
    for rank, counts in ranks.items():
        for line in counts.lines:
            lines.setdefault((line.kind, line.file, line.line, line.function), []).append((rank, line))
    found = []
    for of_line in lines.values():
        share = sum(line.samples for _, line in of_line) / total
        rank, line = max(of_line, key=lambda one: one[1].samples / ranks[one[0]].samples)
        found.append(SharedLine(line, share, rank, line.samples / ranks[rank].samples))
    return sorted(found, key=lambda one: -one.share)


def kind_shares(ranks: Mapping[int, LineCounts]) -> dict[str, float]:
    """Return the share of each kind of some processes together, the greatest first."""
    total = sum(counts.samples for counts in ranks.values())
    kinds: Counter[str] = Counter()
    for counts in ranks.values():
        kinds.update(counts.kinds)
    return {kind: times / total for kind, times in kinds.most_common()} if total else {}
