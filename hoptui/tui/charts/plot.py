"""A chart as lines of text: the raster of braille dots with axes, labels and marks around it. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hoptui.presentation import numbers
from hoptui.presentation.scales import (
    BELOW,
    Scale,
    log_scale,
    needs_log,
    powers_of_ten,
    typical_log_range,
    typical_range,
    value_scale,
)
from hoptui.tui.charts.raster import (
    ACROSS,
    BAND,
    CROSS,
    DOWNWARD,
    MARK,
    PEAK,
    UP,
    Picture,
    Trace,
    place,
    rasterize,
)
from hoptui.tui.styled_text import Line, Span

LOG = "log"
EVEN = 6  # with fewer rows a tick that is one off is seen
AXIS_WIDTH = 7  # six cells of label and the line
_RUN = re.compile(rb"%c|(.)\1*" % MARK, re.DOTALL)
"""The cells of one owner that stand side by side; a mark stands alone, because each has an ink of its own."""
_INKS = {0: "", CROSS: "strong", BAND: "band", PEAK: "dim"}


class Curve(NamedTuple):
    """A series to draw: places on the x axis, with the least and greatest value there in the unit of the
    axis.

    With the `middle` of the values there, it is a line with a faint band behind it, otherwise an area.
    `dashed` lines have gaps of a fixed length.
    """

    label: str
    ink: str
    x: Sequence[int]
    low: Sequence[float]
    high: Sequence[float]
    middle: Sequence[float] | None = None
    dashed: bool = False


class Mark(NamedTuple):
    """An event at a place of the x axis: a vertical line, with a sign of one cell at its top or none.

    Its `name` is written beside the top where no line is.
    """

    x: int
    ink: str = "mark"
    sign: str = ""
    name: str = ""


class Paper(NamedTuple):
    """The area for curves: a part of the x axis (stamps in ns, or other integers) and its labels.

    `ticks` are places with labels; if two overlap, the earlier in the list stays. `end` labels the right end.
    `cross` is the crosshair. `bounds` fixes the value axis. `log` makes it logarithmic if any value is above
    zero; None leaves that to the values.
    """

    x0: int
    x1: int
    ticks: tuple[tuple[int, str], ...] = ()
    end: str = ""
    marks: tuple[Mark, ...] = ()
    cross: int | None = None
    bounds: tuple[float, float] | None = None
    log: bool | None = None


def plot(
    curves: Sequence[Curve],
    paper: Paper,
    width: int,
    height: int,
    *,
    axis: int = AXIS_WIDTH,
    title: str = "",
) -> list[Line]:
    """`height` lines of `width` cells: raster and axes. The value axis takes `axis` cells, or what its labels
    need. A `title` is written into the first row with room for it. If the axis is logarithmic, it says so,
    or the corner below the axis.
    """
    rows = height - 1
    if rows < 1 or width < axis + 8:
        return [()] * height
    scale = _scale(curves, paper, rows)
    axis = max(axis, 1 + max(map(len, scale.labels), default=0))
    across = width - axis
    x0, x1 = paper.x0, paper.x1
    dots = ACROSS * across
    if scale.log:
        curves = [
            c._replace(
                low=powers_of_ten(c.low),
                high=powers_of_ten(c.high),
                middle=None if c.middle is None else powers_of_ten(c.middle),
            )
            for c in curves
        ]
    inks = {
        column: mark.ink for mark in paper.marks if (column := _column(mark.x, paper, across)) is not None
    }
    signs = dict.fromkeys(inks, "")
    signed = ((_column(mark.x, paper, across), mark.sign) for mark in paper.marks if mark.sign)
    signs |= {column: sign for column, sign in signed if column is not None}
    picture = rasterize(
        [_trace(curve, x0, x1, dots) for curve in curves],
        across,
        rows,
        scale.bottom,
        scale.top,
        marks=signs,
        cross=None if paper.cross is None else _column(paper.cross, paper, across),
    )
    picture = _with_notes(picture, _beyond(curves, scale))
    titled = f"{title} · {LOG}" if title and scale.log else title
    picture = _with_title(_with_names(picture, _names(paper, across)), titled)
    labels = _label_rows(scale, rows)
    drawn = []
    for row, (text, owner) in enumerate(zip(picture.text, picture.owner, strict=True)):
        label = Span(labels.get(row, ""), "dim", axis - 1, right=True)
        drawn.append(
            (
                label,
                Span("┤" if row in labels else "│", "faint"),
                *_runs(text, owner, [c.ink for c in curves], inks),
            )
        )
    return [*drawn, _x_axis(paper, axis, across, LOG if scale.log and not title and rows > 1 else "")]


DASH, DASH_GAP = 6, 3  # dot columns


def _trace(curve: Curve, x0: int, x1: int, dots: int) -> Trace:
    """A curve in dot columns. Dashes keep their places on the x axis when that moves."""
    found = place(curve.x, curve.low, curve.high, x0, x1, dots, curve.middle)
    if not curve.dashed:
        return found
    phase = x0 * dots // max(1, x1 - x0)
    drawn = [(phase + column) % (DASH + DASH_GAP) < DASH for column in range(dots)]
    if found.middle is not None:
        return found._replace(middle=_where(drawn, found.middle))
    return Trace(_where(drawn, found.low), _where(drawn, found.high))


def _where(drawn: Sequence[bool], values: Sequence[float]) -> list[float]:
    return [value if shown else math.nan for shown, value in zip(drawn, values, strict=True)]


def plot_apart(groups: Sequence[Sequence[Curve]], paper: Paper, width: int, height: int) -> list[Line]:
    """Groups of curves one above the other, each with its own value axis, on one x axis.

    Where there is no row for each of them, all are in one raster.
    """
    rows = height - 1
    if rows < len(groups):
        return plot([curve for group in groups for curve in group], paper, width, height)
    heights = [rows // len(groups) + (i < rows % len(groups)) for i in range(len(groups))]
    scales = (_scale(group, paper, of) for group, of in zip(groups, heights, strict=True) if of > 1)
    labels = [len(label) for scale in scales for label in scale.labels]
    axis = max(AXIS_WIDTH, 1 + max(labels, default=0))
    drawn: list[Line] = []
    bare = paper._replace(marks=tuple(mark._replace(sign="", name="") for mark in paper.marks))
    for group, of_group in zip(groups, heights, strict=True):
        marked = bare if drawn else paper
        name, alone = group[0].label, of_group == 1
        *block, times = plot(group, marked, width, of_group + 1, axis=axis, title="" if alone else name)
        if alone:
            label = Span(name[: axis - 1], "dim", axis - 1, right=True)
            block = [(label, Span("│", "faint"), *block[0][2:])]
        drawn += block
    return [*drawn, times]


def _scale(curves: Sequence[Curve], paper: Paper, rows: int) -> Scale:
    most = max(3, min(5, (rows + 1) // 2))
    found = log_scale(_known(curves, log=True), most) if is_log(curves, paper) else None
    if found is not None:
        return found
    return value_scale(_known(curves) if paper.bounds is None else paper.bounds, most)


def is_log(curves: Sequence[Curve], paper: Paper) -> bool:
    """Whether the value axis of curves in one raster is to be logarithmic."""
    if paper.log is not None or paper.bounds is not None:
        return bool(paper.log)
    return any(curve.middle is not None and needs_log(curve.middle) for curve in curves)


def _known(curves: Sequence[Curve], *, log: bool = False) -> Iterator[float]:
    """The ends of what the value axis is to show."""
    for curve in curves:
        if curve.middle is None:
            yield from curve.low
            yield from curve.high
        elif log:
            yield from typical_log_range(curve.low, curve.high, curve.middle)
        else:
            yield from typical_range(curve.low, curve.high, curve.middle)


def _beyond(curves: Sequence[Curve], scale: Scale) -> tuple[str, str]:
    """What is said of values above and below the axis: `▴ up to 102 M`. Empty where there are none."""
    lines = [curve for curve in curves if curve.middle is not None]
    step = scale.ticks[1] - scale.ticks[0] if len(scale.ticks) > 1 else 0.0
    most = max((v for curve in lines for v in curve.high if v == v), default=scale.top)
    least = min((v for curve in lines for v in curve.low if v == v), default=scale.bottom)
    above = f"{UP} up to {_value(most, scale)}" if most > scale.top + step / 8 else ""
    below = f"{DOWNWARD} down to {_value(least, scale)}" if least < scale.bottom - step / 8 else ""
    return above, "" if least <= BELOW else below


def _value(value: float, scale: Scale) -> str:
    return numbers.si(10.0**value if scale.log else value)


def _room(owner: bytes, cells: int) -> re.Match[bytes] | None:
    """The first place for a text of so many cells that covers no line."""
    return re.search(rb"[\x00%c%c]{%d}" % (BAND, PEAK, cells), owner)


def _with_notes(picture: Picture, notes: tuple[str, str]) -> Picture:
    """Write the notes into the first and the last row, where no line is, and no mark if possible."""
    text, owner = list(picture.text), list(picture.owner)
    for row, note in zip((0, len(text) - 1), notes, strict=True):
        signless = bytes(0 if c == "┆" else o for c, o in zip(text[row], owner[row], strict=True))
        room = next((found for of in (owner[row], signless) if (found := _room(of, len(note) + 2))), None)
        if note and room is not None:
            _write(text, owner, row, room.start() + 1, note)
    return Picture(text, owner)


def _write(text: list[str], owner: list[bytes], row: int, start: int, words: str) -> None:
    """Write words into a row from a cell on."""
    end = start + len(words)
    text[row] = text[row][:start] + words + text[row][end:]
    owner[row] = owner[row][:start] + bytes((PEAK,)) * len(words) + owner[row][end:]


def _names(paper: Paper, across: int) -> dict[int, str]:
    """The names of the marks by their cells; of several in a cell, the last."""
    placed = ((_column(mark.x, paper, across), mark.name) for mark in paper.marks if mark.name)
    return {column: name for column, name in placed if column is not None}


def _with_names(picture: Picture, names: Mapping[int, str]) -> Picture:
    """Write the names of marks behind these, the newest first, into the first row where nothing else is."""
    text, owner = list(picture.text), list(picture.owner)
    for column, name in sorted(names.items(), reverse=True):
        start, end = column + 1, column + 1 + len(name)
        rows = (row for row, own in enumerate(owner) if end < len(own) and not any(own[start : end + 1]))
        row = next(rows, None)
        if row is not None:
            _write(text, owner, row, start, name)
    return Picture(text, owner)


def _with_title(picture: Picture, title: str) -> Picture:
    text, owner = list(picture.text), list(picture.owner)
    found = ((row, room) for row, own in enumerate(owner) if title and (room := _room(own, len(title) + 2)))
    for row, room in itertools.islice(found, 1):
        _write(text, owner, row, room.start() + 1, title)
    return Picture(text, owner)


def _column(x: int, paper: Paper, across: int) -> int | None:
    """The cell in which a place of the x axis is, None where it is outside."""
    return (x - paper.x0) * across // (paper.x1 - paper.x0) if paper.x0 <= x < paper.x1 else None


def _label_rows(scale: Scale, rows: int) -> dict[int, str]:
    """Which raster row each tick's label stands in; only the ends where few rows would set them unevenly."""
    found: dict[int, str] = {}
    ticks = list(zip(scale.ticks, scale.labels, strict=True))
    if not scale.log and rows < EVEN and len(ticks) > 2 and (rows - 1) % (len(ticks) - 1):
        ticks = [ticks[0], ticks[-1]]
    for tick, label in ticks:
        found[round((scale.top - tick) / (scale.top - scale.bottom) * (rows - 1))] = label
    return found


def _runs(text: str, owner: bytes, inks: Sequence[str], marks: dict[int, str]) -> Line:
    """One raster row as spans of one ink each."""
    spans: list[Span] = []
    for run in _RUN.finditer(owner):
        start, end = run.span()
        own = owner[start]
        ink = marks[start] if own == MARK else _INKS[own] if own in _INKS else inks[own - 1]
        spans.append(Span(text[start:end], ink))
    return tuple(spans)


def _x_axis(paper: Paper, axis: int, across: int, kind: str) -> Line:
    """Labels of the x axis, that of its end flush right; those without room are left out. The kind of the
    value axis stands below it.
    """
    cells = [" "] * across
    cells[across - len(paper.end) :] = paper.end
    taken = [(across - len(paper.end) - 2, across)] if paper.end else []
    for x, label in paper.ticks:
        start = round(across * (x - paper.x0) / (paper.x1 - paper.x0)) - len(label) // 2
        start = max(start, 0) if start >= -len(label) // 2 - 1 else start
        end = start + len(label)
        if start >= 0 and end <= across and all(end <= a or start >= b + 2 for a, b in taken):
            cells[start:end] = label
            taken.append((start - 2, end))
    corner = (Span(f"{kind} ".rjust(axis), "dim"),) if kind else (Span(" " * axis),)
    return (*corner, Span("".join(cells), "dim"))
