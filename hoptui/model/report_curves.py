"""The curves of a recorded run: median and extremes of buckets, and the iteration at each bucket.

They are read as the dashboard reads a chart of the whole run: of few rows the medians, of many rows the means
of groups in their place.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hoptui.domain.columns import is_known
from hoptui.domain.learning_metrics import is_undefined, learning_names
from hoptui.domain.progress import ITERATION
from hoptui.model.detail_requests import Entries, known_entries
from hoptui.model.recorded.store import RAW_ROWS, RecordedStore
from hoptui.model.reference_run import MILLI, Course, IterationIndex
from hoptui.model.series import with_medians
from hoptui.protocol.messages import RunState
from hoptui.recording import Recording

NAN = math.nan
NO_COURSE = Course((), ())


class MetricCurve(NamedTuple):
    """A metric over the life of a run, oldest bucket first. NaN is a gap.

    `t` has the stamp of the last row of each bucket, `middle` the median, or the mean of groups of rows.
    """

    source: str
    metric: str
    t: Sequence[int]
    low: Sequence[float]
    high: Sequence[float]
    middle: Sequence[float]


class MetricEnds(NamedTuple):
    """The last known value of a metric, and its extremes, each with its iteration.

    The iterations of the extremes are those of their buckets' last rows. None is unknown.
    """

    metric: str
    last: float
    last_step: int | None
    least: float
    least_step: int | None
    greatest: float
    greatest_step: int | None


def read_curves(
    recording: Recording, store: RecordedStore, source: str, names: Sequence[str], points: int
) -> list[MetricCurve]:
    """Return the curves of some metrics of a source over the whole recording, without those that have no
    value.

    Args:
        points: the most buckets of a curve.
    """
    if source not in store.pages.sources or not names:
        return []
    t0, t1 = store.span
    found = []
    for name, entries in _entries(recording, store, source, names, points):
        if entries.t:
            found.append(MetricCurve(source, name, *with_medians(entries, t0, t1, points)))
    return found


def _entries(
    recording: Recording, store: RecordedStore, source: str, names: Sequence[str], points: int
) -> Iterator[tuple[str, Entries]]:
    if store.pages.sources[source][2] <= RAW_ROWS and recording.thinned_before is None:
        yield from _samples(recording, source, names).items()
        return
    answer = recording.buckets(source, tuple(names), *store.span, points)
    for name in answer.names:
        yield name, known_entries(answer, name)


def _samples(recording: Recording, source: str, names: Sequence[str]) -> dict[str, Entries]:
    """Return the known values of some metrics, from one pass over the rows."""
    stamps = {name: array("q") for name in names}
    values = {name: array("d") for name in names}
    for part in recording.rows(source, names=tuple(names)):
        times = part.times()
        for name, raw in zip(part.names, part.values, strict=True):
            column = array("d", raw)
            known = [i for i, value in enumerate(column) if math.isfinite(value)]
            stamps[name].extend(times[i] for i in known)
            values[name].extend(column[i] for i in known)
    return {name: Entries(stamps[name], values[name], values[name], values[name]) for name in names}


def course_of_run(store: RecordedStore, source: str) -> Course:
    """Return how stamps of a run become iterations; a course without any, if there are none."""
    steps = store.steps(source)
    return IterationIndex(steps).whole if steps is not None else Course((), ())


def iterations_at(course: Course, stamps: Sequence[int]) -> list[float]:
    """Return the iteration at each stamp, NaN before the first, after the last, and where iterations were
    discarded."""
    places = (course.place(t) for t in stamps)
    return [NAN if place is None else place / MILLI for place in places]


def metric_ends(recording: Recording, curve: MetricCurve, course: Course) -> MetricEnds:
    """Return the last value and the extremes of a curve with at least one known bucket."""
    known = [i for i, value in enumerate(curve.middle) if value == value]
    low = min(known, key=lambda i: curve.low[i])
    high = max(known, key=lambda i: curve.high[i])
    last, last_step = _last(recording, curve, known[-1], course)
    return MetricEnds(
        curve.metric,
        last,
        last_step,
        curve.low[low],
        _step(course, curve.t[low]),
        curve.high[high],
        _step(course, curve.t[high]),
    )


def _last(recording: Recording, curve: MetricCurve, at: int, course: Course) -> tuple[float, int | None]:
    """Return the last value, from the rows since the bucket `at`. If these are deleted, its mean.

    It may be infinite or a NaN that was logged, but not an undefined one.
    """
    start = curve.t[at - 1] + 1 if at else 1
    value, step = curve.middle[at], _step(course, curve.t[at])
    for part in recording.rows(curve.source, start, names=(curve.metric,)):
        for column in part.values:  # none where no row of this part has the metric
            for raw, number in zip(array("d", column), part.steps(), strict=True):
                if is_known(raw) and not is_undefined(curve.metric, raw):
                    value, step = raw, number if number >= 0 else None
    return value, step


def _step(course: Course, t: int) -> int | None:
    place = course.nearest(t)
    return None if place is None else round(place / MILLI)


MOST_LEARNING, MOST_PHASES, MOST_GPUS = 32, 6, 8
MOST_POINTS_TOGETHER = 18_000  # buckets of all curves of a run
FEWEST_POINTS, MOST_POINTS = 120, 720  # buckets of a curve
OF_GPU = (
    "sm_active", "busy", "tensor_active", "dram_active", "power_w", "memory_used_bytes", "temperature_c",
    "sm_clock_mhz",
)  # fmt: skip
OF_RUN = ("sm_active", "power_w", "mfu", "mfu_estimated")


@dataclass(frozen=True, kw_only=True)
class RunCurves:
    """The curves of a run, of its GPUs on this node, and of both together (source `derived/…`).

    `start` is the stamp of the first iteration, or of the recording without one. `course` maps stamps to
    iterations. `ends` are the last values and extremes of the metrics of learning. `left_out` counts the
    metrics of learning that have no curve here, because there are too many.
    """

    start: int = 0
    course: Course = NO_COURSE
    curves: tuple[MetricCurve, ...] = ()
    ends: tuple[MetricEnds, ...] = ()
    left_out: int = 0

    def of(self, source: str, metric: str) -> MetricCurve | None:
        """Return a curve, None where nothing of it is known."""
        return next((c for c in self.curves if (c.source, c.metric) == (source, metric)), None)


def run_curves(
    recording: Recording,
    store: RecordedStore,
    state: RunState,
    headline: str,
    phases: Sequence[str],
    together: int = MOST_POINTS_TOGETHER,
) -> RunCurves:
    """Return the curves of a run; `headline` is its throughput metric, `phases` are the outermost ones.

    Together they have at most about as many points.
    """
    sources = store.pages.sources
    run, derived = f"run/{state.run}", f"derived/{state.run}"
    names = recording.names(run) if run in sources else ()
    learning = learning_names((n for n in names if n != ITERATION), headline)
    shown = learning[:MOST_LEARNING]
    own = [n for n in dict.fromkeys((headline, ITERATION, *shown, *phases[:MOST_PHASES])) if n in names]
    wanted = {run: own, derived: OF_RUN}
    wanted |= {f"gpu/{uuid}": OF_GPU for uuid in state.gpus[:MOST_GPUS]}
    there = {
        source: [n for n in chosen if n in recording.names(source)]
        for source, chosen in wanted.items()
        if source in sources
    }
    count = sum(map(len, there.values()))
    points = min(MOST_POINTS, max(FEWEST_POINTS, together // max(1, count)))
    curves = [
        curve
        for source, chosen in there.items()
        for curve in read_curves(recording, store, source, chosen, points)
    ]
    course = course_of_run(store, run)
    return RunCurves(
        start=sources[run][0] if run in sources else store.span[0],
        course=course,
        curves=tuple(curves),
        ends=tuple(
            metric_ends(recording, c, course) for c in curves if c.source == run and c.metric in shown
        ),
        left_out=len(learning) - len(shown),
    )
