"""The x axes of the charts screen, time and iterations: places on them, for the run on screen and another
one. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hoptui.model.detail_requests import STEPS
from hoptui.model.reference_run import MILLI, IterationIndex, Shifted, Stepped
from hoptui.presentation import numbers
from hoptui.presentation.time_ticks import clock_ticks, count_ticks, elapsed, elapsed_ticks
from hoptui.protocol.messages import RunState
from hoptui.tui.charts.grid import LEAST_NS, Extent, Pick
from hoptui.tui.charts.line_chart import Drawn
from hoptui.tui.snapshot import SECOND, AnySeries, AnyStore, View

if TYPE_CHECKING:
    from hoptui.model.reference_run import Companion

LEAST_STEPS = 4 * MILLI


class Side(NamedTuple):
    """A run and where its rows are: the one on screen, or the one that it is compared with."""

    store: AnyStore
    run: RunState | None

    @property
    def source(self) -> str:
        return f"run/{self.run.run}" if self.run else ""

    @property
    def start(self) -> int | None:
        """The stamp of its first iteration. None before the first iteration."""
        steps = self.store.steps(self.source)
        return steps.first_t if steps is not None and steps.last_t else None

    def of(self, pick: Pick, other: Side) -> AnySeries | None:
        """The series of another run that corresponds to one of this run, None where there is none."""
        found = counterpart(pick, self.run, other.run)
        return other.store.series(*found) if found is not None else None


class Axis(Protocol):
    """Places on it are integers; see `hoptui.tui.charts.grid`."""

    least: int
    """The least part that can be seen."""

    @property
    def aligned(self) -> bool:
        """Whether runs lie beside each other from their start, or by iteration."""

    def extent(self, picks: list[Pick]) -> Extent:
        """The part on which any of these series can be known."""

    def own(self, pick: Pick) -> Drawn | None:
        """A series of the run on screen, None where nothing is known of it."""

    def beside(self, pick: Pick) -> list[Drawn | None]:
        """The same of each run beside it."""

    def place(self, t: int) -> int | None:
        """Where a stamp is."""

    def nearest(self, t: int) -> int | None:
        """The place that is nearest to a stamp."""

    def stamp(self, x: int) -> int:
        """The stamp of a place."""

    def ticks(self, x0: int, x1: int, most: int) -> list[tuple[int, str]]:
        """Round places with their labels."""

    def look_closer(self, picks: list[Pick], x0: int, x1: int, points: int) -> None:
        """Record that these series of the run are on screen."""

    def word(self, x: int) -> str:
        """A position as text: a time, or the number of an iteration."""


class TimeAxis:
    """Stamps in ns of the run on screen; the runs beside it are moved so that all begin at once."""

    least = LEAST_NS

    def __init__(self, view: View, others: Sequence[Side] = ()) -> None:
        self._side = Side(view.store, view.run)
        self._view = view
        self._start = self._side.start
        self._others = [(other, self._shift(other.start)) for other in others]

    def _shift(self, began: int | None) -> int | None:
        """How far to move a run that began at a stamp, None where either start is unknown."""
        return self._start - began if self._start is not None and began is not None else None

    @property
    def aligned(self) -> bool:
        return any(by is not None for _, by in self._others)

    def extent(self, picks: list[Pick]) -> Extent:
        newest = last = newest_stamp(self._view)
        found = (self._view.store.series(*pick) for pick in picks)
        first = [series.first_t for series in found if series is not None and series.first_t]
        for other, by in self._others:
            steps = other.store.steps(other.source) if other.run is not None else None
            if steps is not None and by is not None:
                last = max(last, steps.last_t + by)
        return Extent(min([*first, newest - LEAST_NS]), newest, last)

    def own(self, pick: Pick) -> Drawn | None:
        return self._view.store.series(*pick)

    def beside(self, pick: Pick) -> list[Drawn | None]:
        found = ((self._side.of(pick, other), by) for other, by in self._others)
        return [Shifted(one, by) if one is not None and by is not None else None for one, by in found]

    def place(self, t: int) -> int | None:
        return t

    def nearest(self, t: int) -> int | None:
        return t

    def stamp(self, x: int) -> int:
        return x

    def ticks(self, x0: int, x1: int, most: int) -> list[tuple[int, str]]:
        if self.aligned and self._start is not None:
            return elapsed_ticks(x0, x1, self._start, most)
        return clock_ticks(x0, x1, wall_offset_ns(self._view), most)

    def look_closer(self, picks: list[Pick], x0: int, x1: int, points: int) -> None:
        for pick in picks:
            self._view.store.look_closer(*pick, x0, x1, points)

    def word(self, x: int) -> str:
        if self.aligned and self._start is not None:
            return elapsed((x - self._start) / SECOND)
        return numbers.clock((x + wall_offset_ns(self._view)) / SECOND)


class StepAxis:
    """Iterations in thousandths, of the run on screen and of those beside it alike."""

    least = LEAST_STEPS
    aligned = True

    def __init__(
        self, view: View, own: IterationIndex, others: Sequence[tuple[Side, IterationIndex | None]] = ()
    ) -> None:
        self._view = view
        self._side = Side(view.store, view.run)
        self._own = own
        self._others = others

    def extent(self, picks: list[Pick]) -> Extent:
        courses = (self._own, *(course for _, course in self._others))
        ends = [course.whole.ends if course is not None else None for course in courses]
        known = [end for end in ends if end is not None]
        if not known:
            return Extent(0, LEAST_STEPS, LEAST_STEPS)
        last = max(end for _, end in known)
        newest = ends[0][1] if ends[0] is not None else last
        return Extent(min(*(start for start, _ in known), newest - LEAST_STEPS), newest, last)

    def own(self, pick: Pick) -> Drawn | None:
        series = self._view.store.series(*pick)
        return Stepped(series, self._own) if series is not None else None

    def beside(self, pick: Pick) -> list[Drawn | None]:
        found = ((self._side.of(pick, other), course) for other, course in self._others)
        return [
            Stepped(one, course) if one is not None and course is not None else None for one, course in found
        ]

    def place(self, t: int) -> int | None:
        return self._own.whole.place(t)

    def nearest(self, t: int) -> int | None:
        return self._own.whole.nearest(t)

    def stamp(self, x: int) -> int:
        return self._own.whole.stamp(x)

    def ticks(self, x0: int, x1: int, most: int) -> list[tuple[int, str]]:
        return count_ticks(x0, x1, MILLI, most)

    def look_closer(self, picks: list[Pick], x0: int, x1: int, points: int) -> None:
        t0, t1, _ = self._own.part(x0, x1)
        store = self._view.store
        store.look_closer(self._view.source, STEPS, t0, t1, points)
        for pick in picks:
            store.look_closer(*pick, t0, t1, points)

    def word(self, x: int) -> str:
        return numbers.grouped(x / MILLI)


def newest_stamp(view: View) -> int:
    """Now, or when a run that is over had its last row."""
    ended = view.exited and view.vital is not None and view.vital.last_t
    return view.vital.last_t if ended and view.vital else view.now


def wall_offset_ns(view: View) -> int:
    """What added to a stamp gives nanoseconds since 1970."""
    return view.node.wall_offset_ns if view.node else round(view.wall * SECOND) - view.now


def counterpart(pick: Pick, run: RunState | None, other: RunState | None) -> Pick | None:
    """The same series of another run: its GPUs are taken in their order. None where it has no such GPU."""
    kind, _, rest = pick.source.partition("/")
    if run is None or other is None:
        return None
    if kind == "gpu":
        at = run.gpus.index(rest) if rest in run.gpus else None
        return Pick(f"gpu/{other.gpus[at]}", pick.metric) if at is not None and at < len(other.gpus) else None
    return Pick(pick.source.replace(f"/{run.run}", f"/{other.run}", 1), pick.metric)


MOST_RUNS = 8
"""Runs in a comparison, with the one on screen: four inks, and the same dashed."""


class Comparison:
    """`companions` are the recordings beside the run, none without a comparison. Known places of iterations
    are kept.
    """

    def __init__(self) -> None:
        self.companions: list[Companion] = []
        self._kept: dict[Path | None, IterationIndex] = {}

    def open(self, path: Path, now: float) -> str:
        """Compare with one more recording (`now`: monotonic seconds), or return a sentence why that is
        impossible.
        """
        # Here, because a live dashboard needs no SQLite:
        from hoptui.model.reference_run import CannotCompare, Companion

        if any(companion.path == path for companion in self.companions):
            return "that recording is compared already"
        if len(self.companions) >= MOST_RUNS - 1:
            return f"at most {MOST_RUNS} runs are compared"
        try:
            self.companions.append(Companion(path, now))
        except CannotCompare as error:
            return str(error)
        return ""

    def end(self) -> None:
        """Compare no longer."""
        for companion in self.companions:
            companion.close()
            self._kept.pop(companion.path, None)
        self.companions = []

    def renew(self, now: float) -> None:
        """Read on in the recordings of runs that go on; call it with every frame."""
        for companion in self.companions:
            if companion.renew(now):
                self._kept.pop(companion.path, None)

    def axis(self, view: View, *, by_step: bool) -> Axis:
        """The axis of this moment; that of iterations only where any is known."""
        sides = [Side(companion.store, companion.run) for companion in self.companions]
        steps = view.store.steps(view.source) if by_step else None
        if steps is None or not steps.last_t:
            return TimeAxis(view, sides)
        others: list[tuple[Side, IterationIndex | None]] = []
        for companion, side in zip(self.companions, sides, strict=True):
            theirs = side.store.steps(side.source)
            others.append((side, self._of(companion.path, theirs) if theirs is not None else None))
        return StepAxis(view, self._of(None, steps), others)

    def iteration(self, view: View, t: int) -> float | None:
        """In which iteration the run on screen was at a stamp, None where that is unknown."""
        steps = view.store.steps(view.source)
        place = self._of(None, steps).whole.place(t) if steps is not None and steps.last_t else None
        return place / MILLI if place is not None else None

    def _of(self, whose: Path | None, steps: AnySeries) -> IterationIndex:
        known = self._kept.get(whose)
        if known is None or known.steps is not steps:
            known = self._kept[whose] = IterationIndex(steps)
        return known
