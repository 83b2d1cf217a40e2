"""The parts of a page. Texts are plain; the writer of a page escapes them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from hoptui.model.report import Report
from hoptui.model.series import median
from hoptui.presentation import numbers
from hoptui.presentation.scales import needs_log, typical_log_range, typical_range
from hoptui.presentation.time_ticks import elapsed


class Paragraph(NamedTuple):
    """One or more sentences; `faint` if they only explain what is above."""

    text: str
    faint: bool = False


class Figure(NamedTuple):
    """A prominent number with its label and a note."""

    label: str
    value: str
    note: str = ""


class FigureRow(NamedTuple):
    """Some figures side by side."""

    figures: Sequence[Figure]


class Facts(NamedTuple):
    """Names and what they are."""

    rows: Sequence[tuple[str, str]]


class Table(NamedTuple):
    """Rows with as many cells as the head. The columns in `right` hold numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()


class Share(NamedTuple):
    """A part of a whole, 0 to 1, with its amount and a note."""

    label: str
    share: float
    amount: str
    note: str = ""


class ShareBar(NamedTuple):
    """Parts of one whole."""

    rows: Sequence[Share]


class ChartMark(NamedTuple):
    """A moment of a chart, on the chart's clock, with its iteration (NaN: none).

    A change has a `number` and the `name` of its knob. A warning has the number 0, the name of its kind, and
    a `level`.
    """

    t: int
    number: int
    text: str
    name: str = ""
    level: str = ""
    place: float = math.nan


class ChartCurve(NamedTuple):
    """A line over a band: stamps of the chart's clock, the least, greatest and typical value at each.

    NaN is a gap. `places` are the iterations at the stamps, NaN where there is none. `ink` is the number of
    its colour.
    """

    label: str
    t: Sequence[int]
    low: Sequence[float]
    high: Sequence[float]
    middle: Sequence[float]
    places: Sequence[float] = ()
    ink: int = 0

    def unbroken(self) -> Iterator[range]:
        """Yield the indices of buckets that follow each other without a gap."""
        gaps = [i for i, value in enumerate(self.middle) if not math.isfinite(value)]
        for before, after in pairwise([-1, *gaps, len(self.middle)]):
            if after - before > 1:
                yield range(before + 1, after)

    def thinned(self, most: int) -> ChartCurve:
        """Return the curve in at most about `most` buckets. Each gap stays, with a bucket of its run at
        both sides."""
        every = -(-len(self.t) // most)
        if every <= 1:
            return self
        parts: list[range] = []
        for run in self.unbroken():
            if run.start:
                parts.append(range(run.start - 1, run.start))
            parts += (range(at, min(at + every, run.stop)) for at in range(run.start, run.stop, every))
        return self._replace(
            t=[self.t[part[-1]] for part in parts],
            low=[min(self.low[part.start : part.stop]) for part in parts],
            high=[max(self.high[part.start : part.stop]) for part in parts],
            middle=[median(self.middle[part.start : part.stop]) for part in parts],
            places=[self.places[part[-1]] for part in parts] if self.places else (),
        )


class ReportChart(NamedTuple):
    """Curves between two stamps, with what happened; `title` says what is drawn, `unit` what is counted.

    `stretches` are named parts of that time, from a stamp to a stamp. `bounds` fix the value axis, which else
    follows typical values, and is logarithmic if they span much. A `wide` chart has a row alone.
    """

    title: str
    unit: str
    curves: Sequence[ChartCurve]
    span: tuple[int, int]
    marks: Sequence[ChartMark] = ()
    stretches: Sequence[tuple[str, int, int]] = ()
    bounds: tuple[float, float] | None = None
    wide: bool = False

    @property
    def log(self) -> bool:
        """Whether the value axis is logarithmic."""
        return self.bounds is None and any(needs_log(curve.middle) for curve in self.curves)

    @property
    def scale_values(self) -> Sequence[float]:
        """What the value axis is to hold: the bounds, or the typical values of each curve."""
        if self.bounds is not None:
            return self.bounds
        if self.log:
            return [v for c in self.curves for v in typical_log_range(c.low, c.high, c.middle)]
        return [v for c in self.curves for v in typical_range(c.low, c.high, c.middle)]


class ChartGrid(NamedTuple):
    """Small charts side by side."""

    charts: Sequence[ReportChart]


NOT_DIAGNOSED = "not diagnosed"
"""The text of a time without a verdict."""
GREY = 7
"""The number of the grey among the colours."""


class StripPart(NamedTuple):
    """What held from one stamp to another, with the iterations at both (NaN: none)."""

    t0: int
    t1: int
    text: str
    place0: float = math.nan
    place1: float = math.nan


class Strip(NamedTuple):
    """What held when, between two stamps. A time without a part is empty."""

    title: str
    span: tuple[int, int]
    parts: Sequence[StripPart]

    @property
    def inks(self) -> dict[str, int]:
        """The number of the colour of each text, in their order. What is not diagnosed is grey."""
        found = dict.fromkeys(part.text for part in self.parts)
        verdicts = [text for text in found if text != NOT_DIAGNOSED]
        inks = {text: i for i, text in enumerate(verdicts)} | {NOT_DIAGNOSED: GREY}
        return {text: inks[text] for text in found}


ABSENT = -1
"""The shade of a cell of a heat map in whose time nothing was heard of its row."""


class HeatRow(NamedTuple):
    """Ranks of a heat map, from the `first` to the `last`, with the shade of each cell.

    A shade is 0 to 4, `ABSENT`, or None if it is unknown. `node` is the name of their node if they are its
    first ones, else "".
    """

    first: int
    last: int
    cells: Sequence[int | None]
    node: str = ""

    @property
    def label(self) -> str:
        """The ranks: `7`, `8–15`."""
        return f"{self.first}" if self.first == self.last else f"{self.first}–{self.last}"


class HeatMap(NamedTuple):
    """Ranks over the time between two stamps, in cells of equal length. `legend` has a text for each shade.

    `zero` is the stamp from which the axis counts.
    """

    title: str
    span: tuple[int, int]
    zero: int
    rows: Sequence[HeatRow]
    legend: Sequence[str]


Block = Paragraph | FigureRow | Facts | Table | ShareBar | ReportChart | ChartGrid | Strip | HeatMap


class Section(NamedTuple):
    """A heading and the blocks under it."""

    title: str
    blocks: Sequence[Block]


class Document(NamedTuple):
    """A page: its title, leading blocks, sections, and a last line."""

    title: str
    lead: Sequence[Block]
    sections: Sequence[Section]
    foot: str


MOST_ROWS = 100
Row = TypeVar("Row")


def when(report: Report, t: int) -> str:
    """The time since the recording began, as the axes of charts have it: `+1:35`, `+2:01:05`."""
    return elapsed((t - report.span[0]) / 1e9)


def spent(seconds: float) -> str:
    """A time that went into something: `340 ms`, `5.21 s`, from a minute on `1 m 35 s`."""
    return numbers.duration(seconds) if seconds >= 60 else numbers.seconds(seconds)


def cut(rows: Sequence[Row]) -> tuple[Sequence[Row], list[Paragraph]]:
    """Return the first rows of a list, and a note on the others."""
    left = len(rows) - MOST_ROWS
    said = f"The first {MOST_ROWS}; {numbers.grouped(left)} more are in the recording."
    return rows[:MOST_ROWS], [Paragraph(said, faint=True)] if left > 0 else []
