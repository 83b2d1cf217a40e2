"""A recording beside the run on screen, and series on another axis than their own clock.

All of the recording is known; of a run that goes on, more and more. A series is moved in time, or drawn by
iteration. A place on the axis of iterations is in thousandths of one, so places stay integers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from hoptui.model.recorded.store import RecordedStore
from hoptui.model.series import SeriesWindow
from hoptui.node.addresses import AddressError, addresses
from hoptui.presentation import numbers, vocabulary
from hoptui.protocol.messages import RunState
from hoptui.recording import Recording, RecordingError, library

MILLI = 1000
DETAIL = 1024  # stamps that a part of a course is known at
_HIGH = 1 << 62


class Timed(Protocol):
    """One metric over time; see `hoptui.model.series.Series`."""

    @property
    def first_t(self) -> int: ...
    @property
    def last_t(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def refined(self) -> int: ...
    def window(self, t0: int, t1: int, points: int) -> SeriesWindow: ...


@dataclass(frozen=True)
class Shifted:
    """A series whose stamps are moved by so many ns."""

    series: Timed
    by: int

    @property
    def version(self) -> int:
        return self.series.version

    @property
    def refined(self) -> int:
        return self.series.refined

    def window(self, x0: int, x1: int, points: int) -> SeriesWindow:
        """As `Series.window`, between two moved stamps.

        Whole buckets are moved: so a recording's are read once and kept, and a curve is off by half a bucket
        at most.
        """
        step, odd = divmod(x1 - x0 + 1, points)
        by = self.by if odd else round(self.by / step) * step
        found = self.series.window(x0 - by, x1 - by, points)
        return found._replace(t=[t + by for t in found.t])


class Course:
    """When a run was at which iteration, from stamps and the iterations at their rows; between two it is
    interpolated.

    A run that went back to a checkpoint did some iterations twice: only the last time counts, what was thrown
    away has no place.
    """

    def __init__(self, t: Sequence[int], steps: Sequence[float]) -> None:
        self._t: list[int] = []
        self._x: list[int] = []
        # Between the stamps before and at such an index iterations were thrown away.
        self._undone: set[int] = set()
        later: list[tuple[int, float, bool]] = []
        least, undone = float(_HIGH), False
        for stamp, step in zip(reversed(t), reversed(steps), strict=True):
            if 0 <= step < least or (step == least and not undone):  # NaN, and no iteration yet, are neither
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
        """The first and the last place that it knows, None where it knows none."""
        return (self._x[0], self._x[-1]) if self._x else None

    def place(self, t: int) -> int | None:
        """Where a stamp is on the axis, None before the first and after the last iteration, and where it was
        thrown away."""
        if not self._t or not self._t[0] <= t <= self._t[-1]:
            return None
        i = bisect_left(self._t, t)
        if i in self._undone and t != self._t[i]:
            return None
        return _between(self._t, self._x, t)

    def nearest(self, t: int) -> int | None:
        """The place that is nearest to a stamp, None where it knows none."""
        return _between(self._t, self._x, t) if self._t else None

    def stamp(self, x: int) -> int:
        """When a place of the axis was passed; the first or last stamp where it is outside."""
        if not self._x:
            return 0
        return _between(self._x, self._t, min(max(x, self._x[0]), self._x[-1]))


class IterationIndex:
    """When a run was at which iteration, from the iterations at its rows; what was found for a part of the
    axis is kept."""

    def __init__(self, steps: Timed) -> None:
        self.steps = steps
        self._whole: tuple[int, Course] | None = None
        self._part: tuple[tuple[int, int, int], tuple[int, int, Course]] | None = None

    @property
    def whole(self) -> Course:
        """The course from its first row to its last."""
        version = self.steps.version
        if self._whole is None or self._whole[0] != version:
            self._whole = (version, course_of(self.steps, self.steps.first_t, self.steps.last_t))
        return self._whole[1]

    def part(self, x0: int, x1: int) -> tuple[int, int, Course]:
        """Between which stamps the run was in a part of the axis, and its course there; the second stamp is
        before the first where it never was."""
        key = (self.steps.version, x0, x1)
        if self._part is None or self._part[0] != key:
            t0, t1 = self._stamps(x0, x1)
            self._part = (key, (t0, t1, course_of(self.steps, t0, t1)))
        return self._part[1]

    def _stamps(self, x0: int, x1: int) -> tuple[int, int]:
        t0, t1, course = self.steps.first_t, self.steps.last_t, self.whole
        for _ in range(2):  # each time the course is known a thousand times as well
            ends = course.ends
            if ends is None or x1 < ends[0] or x0 > ends[1]:
                return 1, 0
            found = course.stamp(x0), course.stamp(x1)
            # It is interpolated between its stamps.
            margin = max((t1 - t0) // DETAIL, (found[1] - found[0]) // 16) + 1
            enough = found[1] - found[0] > (t1 - t0) // 64
            t0, t1 = found[0] - margin, found[1] + margin
            if enough:
                break
            course = course_of(self.steps, t0, t1)
        return t0, t1


@dataclass(frozen=True)
class Stepped:
    """A series by iteration of the run that it belongs to."""

    series: Timed
    iterations: IterationIndex

    @property
    def version(self) -> int:
        return max(self.series.version, self.iterations.steps.version)

    @property
    def refined(self) -> int:
        return self.series.refined + self.iterations.steps.refined

    def window(self, x0: int, x1: int, points: int) -> SeriesWindow:
        """As `Series.window`, between two places of the axis of iterations."""
        t0, t1, course = self.iterations.part(x0, x1)
        found = SeriesWindow([], [], [])
        for t, low, high in zip(*self.series.window(t0, t1, points), strict=True):
            x = course.place(t)
            if x is not None and x0 <= x <= x1 and (not found.t or x >= found.t[-1]):
                found.t.append(x)
                found.low.append(low)
                found.high.append(high)
        return found


def course_of(steps: Timed, t0: int, t1: int) -> Course:
    """A run's course between two stamps, and a little further on both sides so that the edges are known
    too."""
    margin = max(1, (t1 - t0) // DETAIL)
    t, low, high = steps.window(t0 - margin, t1 + margin, DETAIL)
    # A bucket is stamped by its last row: where its first was is not known exactly.
    if len(t) > 1 and low[0] < high[0]:
        return Course([2 * t[0] - t[1], *t], [low[0], *high])
    return Course(t, high)


def _between(known: Sequence[int], values: Sequence[int], at: int) -> int:
    """The value at a place between those known, all of them rising."""
    i = bisect_right(known, at)
    if i == len(known):
        return values[-1]
    if i == 0:
        return values[0]
    a, b = known[i - 1], known[i]
    return values[i - 1] + (values[i] - values[i - 1]) * (at - a) // max(1, b - a)


AGAIN_S = 5.0  # a recording that is being written is read anew so often


class CannotCompare(ValueError):  # noqa: N818 - says what is the case
    """A file is no recording, cannot be read, or has nothing in it; the text is one sentence."""


class Companion:
    """The recording at `path`; `now` is seconds of any monotonic clock. Used by one thread.

    Raises:
        CannotCompare: there is nothing to compare with in it.
    """

    def __init__(self, path: Path, now: float) -> None:
        self.path = path
        self.store, self._recording = _opened(path)
        self._opened_at = now

    @property
    def run(self) -> RunState:
        """The run as it was known last."""
        return self.store.chronicle.state

    def renew(self, now: float) -> bool:
        """Read on where the run goes on; says whether `store` is another one now."""
        if self.run.exit_reason or now - self._opened_at < AGAIN_S:
            return False
        self._opened_at = now
        try:
            fresh, recording = _opened(self.path)
        except CannotCompare:  # what is known stays known
            return False
        self.close()
        self.store, self._recording = fresh, recording
        return True

    def close(self) -> None:
        """Close the recording."""
        self._recording.close()


class Recorded(NamedTuple):
    """A recording that can be compared with."""

    path: Path
    name: str
    about: str


def comparable(but: str, beside: Path | None = None) -> list[Recorded]:
    """The recordings of this user, and those that lie `beside` a file, the last written first; not that of
    the run `but`.

    Those that cannot be read are left out. Reads a few pages of each file.
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


def _about(entry: library.RecordingEntry) -> str:
    """`2026-05-04 12:45:01 · 2 h 14 m · finished`."""
    state = entry.state
    ended = (
        vocabulary.STATES["live"].text
        if state is None or not state.exit_reason
        else numbers.clean(state.exit_reason, 20)
    )
    return " · ".join(
        (numbers.day_clock(entry.first_wall), numbers.duration(entry.last_wall - entry.first_wall), ended)
    )


def _opened(path: Path) -> tuple[RecordedStore, Recording]:
    try:
        recording = Recording.open(path)
        try:
            store = RecordedStore(recording)
        except BaseException:
            recording.close()
            raise
    except RecordingError as error:
        raise CannotCompare(str(error)) from None
    store.seek(store.span[1])
    return store, recording
