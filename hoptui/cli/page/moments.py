"""Moments of a run as a page tells them, and lists that are too long for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hoptui.cli.page.document import Paragraph
from hoptui.tui.widgets.scale import elapsed
from hoptui.viewer import format as text
from hoptui.viewer.report import Report

MOST_ROWS = 100
Row = TypeVar("Row")


def when(report: Report, t: int) -> str:
    """The time since the recording began, as the axes of charts have it: `+1:35`, `+2:01:05`."""
    return elapsed((t - report.span[0]) / 1e9)


def spent(seconds: float) -> str:
    """A time that went into something: `340 ms`, `5.21 s`, from a minute on `1 m 35 s`."""
    return text.duration(seconds) if seconds >= 60 else text.seconds(seconds)


def cut(rows: Sequence[Row]) -> tuple[Sequence[Row], list[Paragraph]]:
    """The first rows of a list, and what is to be said of the others."""
    left = len(rows) - MOST_ROWS
    said = f"The first {MOST_ROWS}; {text.grouped(left)} more are in the recording."
    return rows[:MOST_ROWS], [Paragraph(said, faint=True)] if left > 0 else []
