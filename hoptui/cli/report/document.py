"""The parts of a page. Texts are plain; the writer of a page escapes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from hoptui.model.report import MetricCurve, Report
from hoptui.presentation import numbers
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
    """A numbered moment of a chart, on the recording's clock."""

    t: int
    number: int
    text: str


class ReportChart(NamedTuple):
    """A curve between two stamps, with what happened; `title` says what is drawn, `unit` what is counted.

    `stretches` are named parts of that time, from a stamp to a stamp; `notes` are unexplained changes, by
    stamp.
    """

    title: str
    unit: str
    curve: MetricCurve
    span: tuple[int, int]
    marks: Sequence[ChartMark]
    stretches: Sequence[tuple[str, int, int]] = ()
    notes: Sequence[tuple[int, str]] = ()


Block = Paragraph | FigureRow | Facts | Table | ShareBar | ReportChart


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
