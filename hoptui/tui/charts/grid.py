"""What the chart screen shows: charts of one or several series, one of them chosen, on one x axis. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hoptui.tui.charts.viewport import Timeline

SPAN_NS, LEAST_NS = 300 * 10**9, 10**9
MOST = 24  # charts
TOGETHER = 4  # series in one chart: there are four inks
PAGE = 9  # charts on screen at once
LEAST_CELLS, LEAST_ROWS = 38, 8  # of a chart with its border


class Pick(NamedTuple):
    """A metric of a source."""

    source: str
    metric: str


@dataclass
class Chart:
    """Series in one chart; `log` is about its value axis."""

    picks: list[Pick]
    log: bool = False


class Board:
    """`index` is the chosen chart; `alone`: only that is shown. `by_step`: the x axis counts iterations. `filled`: it has had
    the charts to begin with, and is left as it is."""

    def __init__(self) -> None:
        self.charts: list[Chart] = []
        self.index = 0
        self.alone = False
        self.by_step = False
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
        wanted = picks[:TOGETHER]
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
        if len(chart.picks) >= TOGETHER:
            return f"a chart shows {TOGETHER} series at most"
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
        if len(before.picks) + len(fresh) > TOGETHER:
            return f"a chart shows {TOGETHER} series at most"
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
    """The page that holds the chosen chart, in so many cells: few and wide charts rather than many and narrow ones."""
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
