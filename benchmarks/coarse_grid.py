"""The best of a grid without all of its points: a coarse grid first, then the neighbours of its best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.live import Live, Point
from benchmarks.tuner_grid import Case, fastest, grid
from hoptui.domain.knobs import KnobValue

LONG, STEP = 4, 3
"""Of an axis with so many numbers, every third is in the coarse grid, and both ends."""


def coarse_to_fine(run: Live, case: Case) -> list[dict[str, Any]]:
    """Return the measured points: the coarse grid, then neighbours until the best has no unknown one.

    The best of them is the best of the whole grid where rates rise to it and fall behind it along each axis.
    """
    found = grid(run, case, coarse(case))
    while near := [point for point in neighbours(case, fastest(found, case)) if not _known(found, point)]:
        rates = [one["rate"] for one in found if one["rate"] is not None]
        found += grid(run, case, near, max(rates, default=0.0))
    return found


def coarse(case: Case) -> list[Point]:
    """Return the points of the coarse grid."""
    axes = {name: _thinned(values) for name, values in case.grid.items()}
    return replace(case, grid=axes).points()


def neighbours(case: Case, point: Point) -> Iterator[Point]:
    """Yield the possible points that differ from this one by one step of one knob."""
    for name, values in case.grid.items():
        at = values.index(point[name])
        for value in (*values[max(0, at - 1) : at], *values[at + 1 : at + 2]):
            near = {**point, name: value}
            if case.possible(near):
                yield near


def _thinned(values: Sequence[KnobValue]) -> tuple[KnobValue, ...]:
    numbers = not any(isinstance(value, bool | str) for value in values)
    if not numbers or len(values) < LONG:
        return tuple(values)
    return tuple(dict.fromkeys((*values[::STEP], values[-1])))


def _known(found: Sequence[dict[str, Any]], point: Point) -> bool:
    return any(all(one[name] == value for name, value in point.items()) for one in found)
