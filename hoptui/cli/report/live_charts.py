"""The data and the scripts of the interactive charts: JSON within the page, and uPlot.

The page's policy names the hash of each script, so a script that slips in from a run does not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hoptui.cli.report.document import ChartCurve, ChartMark, ReportChart, Strip
from hoptui.presentation import numbers

ASSETS = Path(__file__).parent / "assets"
DIGITS = 5  # significant digits of a value
Item = TypeVar("Item")


@cache
def styles() -> str:
    """Return the style sheets of uPlot and of the page."""
    return _asset("uPlot.min.css") + "\n" + _asset("report.css")


@cache
def scripts() -> tuple[str, ...]:
    """Return the scripts in their order, uPlot with its licence."""
    return (f"/*\n{_asset('uPlot.LICENSE')}*/\n{_asset('uPlot.iife.min.js')}", _asset("report.js"))


@cache
def policy() -> str:
    """Return the policy of a page with these scripts: it loads nothing, and runs nothing else."""
    hashes = (base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts())
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def data(charts: Sequence[ReportChart | Strip]) -> str:
    """Return the charts as JSON that may stand within a script element: it has no `<`, `>` or `&`."""
    shared = _Shared()
    found = [_strip(one) if isinstance(one, Strip) else _chart(one, shared) for one in charts]
    page = {"charts": found, "axes": shared.axes, "marks": shared.marks}
    text = json.dumps(page, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class _Shared:
    """What charts have in common, once each: the x columns of curves of one source, and the marks."""

    def __init__(self) -> None:
        self.axes: list[dict[str, list[float | None]]] = []
        self.marks: list[list[list[Any]]] = []
        self._axes: dict[str, int] = {}
        self._marks: dict[str, int] = {}

    def axis(self, curve: ChartCurve, zero: int) -> int:
        """Return the number of a curve's columns: seconds since `zero`, and iterations."""
        places = [round(p, 2) if math.isfinite(p) else None for p in curve.places]
        axis: dict[str, list[float | None]] = {"t": [*_seconds(curve.t, zero)], "i": places}
        return _numbered(axis, self.axes, self._axes)

    def marked(self, marks: Sequence[ChartMark], zero: int) -> int:
        """Return the number of the marks of a chart."""
        return _numbered([_mark(mark, zero) for mark in marks], self.marks, self._marks)


def _numbered(one: Item, listed: list[Item], known: dict[str, int]) -> int:
    """Return the number of an item in a list, which it is added to if it is not there."""
    number = known.setdefault(json.dumps(one), len(listed))
    if number == len(listed):
        listed.append(one)
    return number


def _chart(chart: ReportChart, shared: _Shared) -> dict[str, Any]:
    zero = chart.span[0]
    curves = [
        {
            "label": numbers.clean(curve.label, 40),
            "ink": curve.ink,
            "axis": shared.axis(curve, zero),
            "middle": _values(curve.middle),
            **_band(curve),
        }
        for curve in chart.curves
    ]
    return {
        "kind": "curves",
        "title": numbers.clean(chart.title),
        "unit": numbers.clean(chart.unit, 24),
        "span": _seconds(chart.span, zero),
        "bounds": chart.bounds,
        "log": chart.log,
        "curves": curves,
        "marks": shared.marked(chart.marks, zero),
    }


def _band(curve: ChartCurve) -> dict[str, Any]:
    """The extremes, left out where each bucket has one value."""
    low, high = _values(curve.low), _values(curve.high)
    return {} if low == high else {"low": low, "high": high}


def _mark(mark: ChartMark, zero: int) -> list[Any]:
    name = f"{mark.number} {mark.name}" if mark.number else mark.name
    return [round((mark.t - zero) / 1e9, 3), _known(mark.place), name, numbers.clean(mark.text), mark.level]


def _strip(strip: Strip) -> dict[str, Any]:
    zero, inks = strip.span[0], strip.inks
    return {
        "kind": "strip",
        "title": numbers.clean(strip.title),
        "span": _seconds(strip.span, zero),
        "parts": [
            [*_seconds((p.t0, p.t1), zero), _known(p.place0), _known(p.place1), numbers.clean(p.text),
             inks[p.text]]
            for p in strip.parts
        ],
    }  # fmt: skip


def _seconds(stamps: Sequence[int], zero: int) -> list[float]:
    return [round((t - zero) / 1e9, 3) for t in stamps]


def _values(column: Sequence[float]) -> list[float | None]:
    return [_known(value) for value in column]


def _known(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
