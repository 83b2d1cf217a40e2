"""The charts of a screen: which there are, their arrangement, and the time range that they share. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Mode = Literal["live", "frozen", "all"]
YOUNGEST = 16  # of a run that has just begun at least this part of the span is seen: one in so many


class Extent(NamedTuple):
    """The whole axis, from `first` to `last`. `newest` is the present of the run on screen; another run may
    end later.
    """

    first: int
    newest: int
    last: int


class Timeline:
    """The visible part of an axis: `span` is its length, at least `least`; `cross` is the crosshair, None: no
    crosshair.
    """

    def __init__(self, span: int, least: int) -> None:
        self.cross: int | None = None
        self._span = span
        self._least = least
        self._end: int | None = None  # None: it follows the newest
        self._whole = False

    @property
    def mode(self) -> Mode:
        """`live` follows the newest, `all` shows everything and grows with it, `frozen` stands still."""
        return "all" if self._whole else "live" if self._end is None else "frozen"

    def edges(self, there: Extent) -> tuple[int, int]:
        """The part that is seen."""
        if self._whole:
            return there.last - max(self._least, there.last - there.first), there.last
        if self._end is not None:
            return self._end - self._span, self._end
        span, known = self._span, there.newest - there.first
        least = max(known, self._span // YOUNGEST) if known > self._least else span
        while span * 10 // 11 >= max(least, self._least):  # a young run fills nine tenths of it
            span = span * 10 // 11
        return there.newest - span, there.newest

    def zoom(self, factor: float, there: Extent, at: int | None = None) -> None:
        """Zoom by a factor: around `at`, else around the crosshair, else around the newest or the middle.

        From everything on, it shows everything.
        """
        x0, x1 = self.edges(there)
        if at is None:
            seen = self.cross is not None and x0 <= self.cross < x1
            at = self.cross if seen else min(x1, there.newest) if self._end is None else (x0 + x1) // 2
        assert at is not None
        span = max(self._least, round((x1 - x0) * factor))
        if factor > 1 and span >= there.last - there.first:
            self.all()
            return
        share = (x1 - at) / max(1, x1 - x0)
        self._whole, self._span = False, span
        self._stand(at + round(share * span), there)

    def pan(self, share: float, there: Extent) -> None:
        """Move by a share of what is seen; at the newest it is live again, unless there is more beyond."""
        x0, x1 = self.edges(there)
        if self._whole and share > 0:
            return
        if self._whole:
            self._whole, self._span = False, x1 - x0
        self._stand(x1 + round(share * (x1 - x0)), there)

    def move_cross(self, share: float, there: Extent) -> None:
        """Move the crosshair by a share of the visible part; a new one starts at the newest. At an edge the
        view follows.
        """
        x0, x1 = self.edges(there)
        width = x1 - x0
        if self.cross is None or not x0 <= self.cross <= x1:
            self.cross = max(x0, min(x1, there.newest))
            if share > 0:
                return
        self.cross = min(max(self.cross + round(share * width), min(there.first, x0)), there.last)
        if self.cross < x0:
            self.pan((self.cross - x0) / width, there)
        elif self.cross > x1:
            self.pan((self.cross - x1) / width, there)

    def live(self) -> None:
        """Follow the newest."""
        self._end, self._whole = None, False

    def all(self) -> None:
        """Show everything there is."""
        self._end, self._whole = None, True

    def freeze(self, there: Extent) -> None:
        """Stand still where it is, or follow the newest again."""
        if self._end is not None:
            self.live()
            return
        x0, x1 = self.edges(there)
        self._whole, self._span, self._end = False, x1 - x0, x1

    def remap(self, place: Callable[[int], int | None], there: Extent, least: int) -> None:
        """Change to another axis: `place` converts a place of this axis to that one, or returns None."""
        x0, x1 = self.edges(there)
        start, end = place(x0), place(x1)
        self.cross = None if self.cross is None else place(self.cross)
        self._least = least
        if start is None or end is None:
            self.all()
            return
        self._span = max(least, end - start)
        self._end = None if self._end is None else end

    def _stand(self, end: int, there: Extent) -> None:
        """End there, but not outside of what there is; at the newest, if that is the end of it, follow it."""
        end = min(max(end, min(there.last, there.first + self._span)), there.last)
        self._end = None if end >= there.newest == there.last else end


SPAN_NS, LEAST_NS = 300 * 10**9, 10**9
MOST = 24  # charts
MOST_SERIES = 8  # series in one chart
PAGE = 9  # charts on screen at once
LEAST_CELLS, LEAST_ROWS = 38, 8  # of a chart with its border


class Pick(NamedTuple):
    """A metric of a source."""

    source: str
    metric: str


@dataclass
class Chart:
    """Series in one chart. `log` is whether its value axis is logarithmic; None leaves that to the values."""

    picks: list[Pick]
    log: bool | None = None


class Board:
    """The charts of the screen. `index` is the chosen chart; `alone`: only it is shown.

    `by_step`: the x axis counts iterations. `smooth`: lines are moving averages. `filled`: the initial charts
    were set; later ones are the user's choice.
    """

    def __init__(self) -> None:
        self.charts: list[Chart] = []
        self.index = 0
        self.alone = False
        self.by_step = False
        self.smooth = False
        self.filled = False
        self.timeline = Timeline(SPAN_NS, LEAST_NS)

    @property
    def chosen(self) -> Chart | None:
        return self.charts[self.index] if self.charts else None

    def move(self, by: int) -> None:
        """Choose the chart so many further on."""
        self.index = max(0, min(self.index + by, len(self.charts) - 1))

    def add(self, picks: list[Pick]) -> str:
        """Show series in a chart of their own and choose it; why not, if not."""
        wanted = picks[:MOST_SERIES]
        for i, chart in enumerate(self.charts):
            if chart.picks == wanted:
                self.index = i
                return ""
        if len(self.charts) >= MOST:
            return f"there are {MOST} charts already"
        self.charts.append(Chart(wanted))
        self.index = len(self.charts) - 1
        return ""

    def join(self, pick: Pick) -> str:
        """Show a series in the chosen chart; why not, if not."""
        chart = self.chosen
        if chart is None:
            return self.add([pick])
        if pick in chart.picks:
            return "it is in this chart already"
        if len(chart.picks) >= MOST_SERIES:
            return f"a chart shows {MOST_SERIES} series at most"
        chart.picks.append(pick)
        return ""

    def remove(self) -> None:
        """Take the chosen chart away."""
        if self.charts:
            del self.charts[self.index]
            self.move(0)

    def merge(self) -> str:
        """Put the series of the chosen chart into the one before; why not, if not."""
        chart = self.chosen
        if chart is None or self.index == 0:
            return "there is no chart before this one"
        before = self.charts[self.index - 1]
        fresh = [pick for pick in chart.picks if pick not in before.picks]
        if len(before.picks) + len(fresh) > MOST_SERIES:
            return f"a chart shows {MOST_SERIES} series at most"
        before.picks += fresh
        del self.charts[self.index]
        self.index -= 1
        return ""

    def split(self) -> str:
        """Give each series of the chosen chart one of its own; why not, if not."""
        chart = self.chosen
        if chart is None or len(chart.picks) < 2:
            return "there is one series in this chart"
        if len(self.charts) + len(chart.picks) - 1 > MOST:
            return f"there are {MOST} charts at most"
        self.charts[self.index : self.index + 1] = [Chart([pick], chart.log) for pick in chart.picks]
        return ""


@dataclass(frozen=True)
class Grid:
    """How charts are laid out: a page of `columns` × `rows`; `shown` are the indices of those on it."""

    columns: int
    rows: int
    shown: tuple[int, ...] = field(default=())


def arrange(board: Board, width: int, height: int) -> Grid:
    """The page with the chosen chart, in so many cells: few wide charts rather than many narrow ones."""
    count = len(board.charts)
    if count == 0 or board.alone:
        return Grid(1, 1, (board.index,) if count else ())
    most = min(PAGE, max(1, height // LEAST_ROWS) * max(1, width // LEAST_CELLS))
    on_page = min(count, most)
    first = board.index // on_page * on_page
    shown = tuple(range(first, min(first + on_page, count)))
    columns = 1
    while columns * LEAST_CELLS < width:
        rows = -(-len(shown) // columns)
        if rows <= 2 or (rows <= 3 and height // rows >= 2 * LEAST_ROWS):
            break
        if (columns + 1) * LEAST_CELLS > width:
            break
        columns += 1
    columns = max(columns, -(-len(shown) // max(1, height // LEAST_ROWS)))
    return Grid(columns, -(-len(shown) // columns), shown)
