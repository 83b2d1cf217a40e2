"""A recording for comparison with the run on screen, and series on another axis than their own clock.

All of the recording is known; of a live run, more and more. A series is shifted in time, or drawn by
iteration. Positions on the axis of iterations are integers: thousandths of an iteration.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from hoptui.model.recorded.store import RecordedStore
from hoptui.model.series import SeriesColumns, SeriesWindow
from hoptui.node.addresses import AddressError, addresses
from hoptui.presentation import numbers, vocabulary
from hoptui.protocol.messages import RunState
from hoptui.recording import Recording, RecordingError, library

MILLI = 1000
DETAIL = 1024  # number of stamps in a part of a course
_HIGH = 1 << 62


class Timed(Protocol):
    """One metric over time. See `hoptui.model.series.Series`."""

    @property
    def first_t(self) -> int: ...
    @property
    def last_t(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def refined(self) -> int: ...
    def window(self, t0: int, t1: int, points: int) -> SeriesWindow: ...
    def columns(self, t0: int, t1: int, points: int) -> SeriesColumns: ...


@dataclass(frozen=True)
class Shifted:
    """A series with stamps shifted by `by` ns."""

    series: Timed
    by: int

    @property
    def version(self) -> int:
        return self.series.version

    @property
    def refined(self) -> int:
        return self.series.refined

    def columns(self, x0: int, x1: int, points: int) -> SeriesColumns:
        """As `Series.columns`, between two shifted stamps.

        The shift is rounded to whole buckets. So buckets of a recording are read once and cached, and a curve
        is off by at most half a bucket.
        """
        step, odd = divmod(x1 - x0 + 1, points)
        by = self.by if odd else round(self.by / step) * step
        found = self.series.columns(x0 - by, x1 - by, points)
        return found._replace(t=[t + by for t in found.t])


class Course:
    """Maps stamps to iterations of a run, with interpolation.

    A run that went back to a checkpoint did some iterations twice. Only the last time counts; discarded
    iterations have no position.
    """

    def __init__(self, t: Sequence[int], steps: Sequence[float]) -> None:
        self._t: list[int] = []
        self._x: list[int] = []
        # Iterations were discarded between this index and the one before.
        self._undone: set[int] = set()
        later: list[tuple[int, float, bool]] = []
        least, undone = float(_HIGH), False
        for stamp, step in zip(reversed(t), reversed(steps), strict=True):
            # excludes NaN and stamps before the first iteration
            if 0 <= step < least or (step == least and not undone):
                later.append((stamp, step, undone))
                least, undone = step, False
            elif step >= least:
                undone = True
        for i, (stamp, step, before_next) in enumerate(reversed(later)):
            self._t.append(stamp)
            self._x.append(round(step * MILLI))
            if before_next:
                self._undone.add(i + 1)

    @property
    def ends(self) -> tuple[int, int] | None:
        """The first and the last position, None if there are none."""
        return (self._x[0], self._x[-1]) if self._x else None

    def place(self, t: int) -> int | None:
        """Return the position of a stamp.

        None before the first and after the last iteration, and where iterations were discarded.
        """
        if not self._t or not self._t[0] <= t <= self._t[-1]:
            return None
        i = bisect_left(self._t, t)
        if i in self._undone and t != self._t[i]:
            return None
        return _between(self._t, self._x, t)

    def nearest(self, t: int) -> int | None:
        """Return the position nearest to a stamp, None if there are none."""
        return _between(self._t, self._x, t) if self._t else None

    def stamp(self, x: int) -> int:
        """Return the stamp of a position, clamped to the first or last stamp."""
        if not self._x:
            return 0
        return _between(self._x, self._t, min(max(x, self._x[0]), self._x[-1]))


class IterationIndex:
    """Maps stamps to iterations, from the iterations at the rows. Caches the result for a part of the
    axis."""

    def __init__(self, steps: Timed) -> None:
        self.steps = steps
        self._whole: tuple[int, Course] | None = None
        self._part: tuple[tuple[int, int, int], tuple[int, int, Course]] | None = None

    @property
    def whole(self) -> Course:
        """The course from the first row to the last."""
        version = self.steps.version
        if self._whole is None or self._whole[0] != version:
            self._whole = (version, course_of(self.steps, self.steps.first_t, self.steps.last_t))
        return self._whole[1]

    def part(self, x0: int, x1: int) -> tuple[int, int, Course]:
        """Return the first and the last stamp of a part of the axis, and the course there.

        The second stamp is before the first if the run never was in that part.
        """
        key = (self.steps.version, x0, x1)
        if self._part is None or self._part[0] != key:
            t0, t1 = self._stamps(x0, x1)
            self._part = (key, (t0, t1, course_of(self.steps, t0, t1)))
        return self._part[1]

    def _stamps(self, x0: int, x1: int) -> tuple[int, int]:
        t0, t1, course = self.steps.first_t, self.steps.last_t, self.whole
        for _ in range(2):  # each pass makes the course a thousand times more precise
            ends = course.ends
            if ends is None or x1 < ends[0] or x0 > ends[1]:
                return 1, 0
            found = course.stamp(x0), course.stamp(x1)
            # The course is interpolated between its stamps.
            margin = max((t1 - t0) // DETAIL, (found[1] - found[0]) // 16) + 1
            enough = found[1] - found[0] > (t1 - t0) // 64
            t0, t1 = found[0] - margin, found[1] + margin
            if enough:
                break
            course = course_of(self.steps, t0, t1)
        return t0, t1


@dataclass(frozen=True)
class Stepped:
    """A series by iteration of its run."""

    series: Timed
    iterations: IterationIndex

    @property
    def version(self) -> int:
        return max(self.series.version, self.iterations.steps.version)

    @property
    def refined(self) -> int:
        return self.series.refined + self.iterations.steps.refined

    def columns(self, x0: int, x1: int, points: int) -> SeriesColumns:
        """As `Series.columns`, between two positions on the axis of iterations."""
        t0, t1, course = self.iterations.part(x0, x1)
        found = SeriesColumns([], [], [], [])
        for t, low, high, middle in zip(*self.series.columns(t0, t1, points), strict=True):
            x = course.place(t)
            if x is not None and x0 <= x <= x1 and (not found.t or x >= found.t[-1]):
                found.t.append(x)
                found.low.append(low)
                found.high.append(high)
                found.middle.append(middle)
        return found


def course_of(steps: Timed, t0: int, t1: int) -> Course:
    """Return a run's course between two stamps, with a margin so that the edges are known too."""
    margin = max(1, (t1 - t0) // DETAIL)
    t, low, high = steps.window(t0 - margin, t1 + margin, DETAIL)
    # A bucket has the stamp of its last row. The stamp of its first row is not known exactly.
    if len(t) > 1 and low[0] < high[0]:
        return Course([2 * t[0] - t[1], *t], [low[0], *high])
    return Course(t, high)


def _between(known: Sequence[int], values: Sequence[int], at: int) -> int:
    """Interpolate between known places. All of them rise."""
    i = bisect_right(known, at)
    if i == len(known):
        return values[-1]
    if i == 0:
        return values[0]
    a, b = known[i - 1], known[i]
    return values[i - 1] + (values[i] - values[i - 1]) * (at - a) // max(1, b - a)


AGAIN_S = 5.0  # interval of reading a recording that is being written


class CannotCompare(ValueError):  # noqa: N818 - says what is the case
    """A file is not a recording, cannot be read, or is empty. The text is one sentence."""


class Companion:
    """The recording at `path`. `now` is seconds of any monotonic clock. Used by one thread.

    Raises:
        CannotCompare: it has nothing to compare with.
    """

    def __init__(self, path: Path, now: float) -> None:
        self.path = path
        self.store, self._recording = _opened(path)
        self._opened_at = now

    @property
    def run(self) -> RunState:
        """The last known state of the run."""
        return self.store.chronicle.state

    def renew(self, now: float) -> bool:
        """Read again if the run continues. Returns whether `store` was replaced."""
        if self.run.exit_reason or now - self._opened_at < AGAIN_S:
            return False
        self._opened_at = now
        try:
            fresh, recording = _opened(self.path)
        except CannotCompare:  # keep the data read so far
            return False
        self.close()
        self.store, self._recording = fresh, recording
        return True

    def close(self) -> None:
        """Close the recording."""
        self._recording.close()


class Recorded(NamedTuple):
    """A recording that is available for comparison."""

    path: Path
    name: str
    about: str


def comparable(but: str, beside: Path | None = None) -> list[Recorded]:
    """Return the recordings of this user and those `beside` a file, the last written first.

    The run `but` and unreadable recordings are excluded. Reads a few pages of each file.
    """
    found: dict[Path, Recorded] = {}
    for directory in _directories(beside):
        try:
            entries = library.entries(directory)
        except RecordingError:
            continue
        for entry in entries:
            if entry.state is not None and entry.run != but and entry.first_wall:
                found.setdefault(
                    entry.path.resolve(),
                    Recorded(entry.path, numbers.clean(entry.state.name, 40), _about(entry)),
                )
    return list(found.values())


def _directories(beside: Path | None) -> list[Path]:
    found = [beside.resolve().parent] if beside is not None else []
    with suppress(AddressError):
        found.append(addresses().state)
    return found


RECENT_S = 60.0
"""A run without a recorded end is called live if its last row is at most so old."""


def _about(entry: library.RecordingEntry) -> str:
    """Return `2026-05-04 12:45:01 · 2 h 14 m · finished`."""
    if entry.state is not None and entry.state.exit_reason:
        ended = numbers.clean(entry.state.exit_reason, 20)
    elif time.time() - entry.last_wall < RECENT_S:
        ended = vocabulary.STATES["live"].text
    else:
        ended = "no end recorded"
    return " · ".join(
        (numbers.day_clock(entry.first_wall), numbers.duration(entry.last_wall - entry.first_wall), ended)
    )


def _opened(path: Path) -> tuple[RecordedStore, Recording]:
    try:
        recording = Recording.open(path)
        try:
            store = RecordedStore(recording)
            if not store.run_id:
                raise RecordingError(library.without_run(path))
        except BaseException:
            recording.close()
            raise
    except RecordingError as error:
        raise CannotCompare(str(error)) from None
    store.seek(store.span[1])
    return store, recording
