"""How far the clocks of two nodes of a run are apart, by the iterations that both have recorded. Pure.

Ranks of a run end an iteration at nearly the same moment, because they exchange what they have learned in it.
So the difference of the two stamps of one iteration is the offset of the clocks, and what it varies by is how
exactly that is known.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import NamedTuple

from hoptui.presentation import numbers

LEAST_STEPS = 3
"""Common iterations below which clocks are not compared."""


class ClockOffset(NamedTuple):
    """What to add to a stamp of one recording to get that of the other at the same moment, in ns.

    Half of the `steps` common iterations are within `spread_ns` of it. Without enough of them, `steps` is 0:
    then the offset is that of the wall clocks, and its spread is unknown.
    """

    offset_ns: int
    spread_ns: int | None
    steps: int


def clock_offset(base: Mapping[int, int], other: Mapping[int, int], wall_ns: int) -> ClockOffset:
    """Return the offset from the clock of one recording to that of another.

    Args:
        base: The stamp of the end of each iteration, in ns.
        other: The same of the other recording.
        wall_ns: The offset by the wall clocks of the nodes, for recordings without common iterations.
    """
    differences = [other[step] - base[step] for step in base.keys() & other.keys()]
    if len(differences) < LEAST_STEPS:
        return ClockOffset(wall_ns, None, 0)
    middle = round(statistics.median(differences))
    spread = round(statistics.median(abs(each - middle) for each in differences))
    return ClockOffset(middle, spread, len(differences))


def clock_note(name: str, base: str, offset: ClockOffset, wall_ns: int) -> str:
    """Return what a user should know of a clock: how far it is ahead of that of the base, and how exactly.

    `wall_ns` is by how much its wall clock is ahead.
    """
    if not offset.steps or offset.spread_ns is None:
        return f"{name} has no iterations in common with {base}: it is placed by its wall clock"
    ahead = "ahead of" if wall_ns >= 0 else "behind"
    return (
        f"the clock of {name} is {numbers.seconds(abs(wall_ns) / 1e9)} {ahead} that of {base}, "
        f"± {numbers.seconds(offset.spread_ns / 1e9)} by {numbers.counted(offset.steps, 'common iteration')}"
    )
