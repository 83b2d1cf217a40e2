"""What the charts of the chart screen draw and say: curves and their inks, marks, values at the crosshair. Pure."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from hoptui.model.series import HOLE
from hoptui.presentation import numbers
from hoptui.presentation.numbers import UNKNOWN
from hoptui.protocol.messages import RunState
from hoptui.tui.charts.grid import Board, Chart, Pick
from hoptui.tui.charts.line_chart import Pen
from hoptui.tui.charts.plot import Curve, Mark
from hoptui.tui.charts.viewport import Extent
from hoptui.tui.components import events, gpus, header, learning_metrics, throughput
from hoptui.tui.components.figures import headline
from hoptui.tui.screens.charts.axes import Axis, StepAxis, TimeAxis
from hoptui.tui.screens.charts.series_catalog import CatalogEntry, described
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import FULL, GAP, Line, Span, first_fitting, pack, width_of

_MODES = {
    "live": ("● live", "good"),
    "all": ("● all history", "good"),
    "frozen": ("‖ frozen", "warn"),
}


def identity(view: View, board: Board, beside: str) -> Line:
    """`hoptui  ppo-cartpole · chart 2 of 4  beside ppo-before`."""
    host = numbers.clean(view.node.host, 40) if view.node else ""
    name = numbers.clean(view.run.name, 40) if view.run else host
    count = f" · chart {board.index + 1} of {len(board.charts)}" if board.charts else " · charts"
    return (
        *header.titled(name, count),
        Span(f"  beside {beside}" if beside else "", "2"),
        GAP,
        *header.corner(view),
    )


def span_line(
    view: View,
    board: Board,
    axis: Axis,
    seen: tuple[int, int],
    there: Extent,
    iteration: float | None,
    width: int,
) -> Line:
    """`● live   10:36:02 … 10:41:02   crosshair 10:40:51  iteration 1 190`; `iteration` is that at the crosshair. On an axis of
    iterations `● live   iterations 1 084 … 1 204   crosshair 1 190  10:40:51`. What has no room in `width` cells is left out."""
    said, ink = _MODES[board.timeline.mode]
    if board.timeline.mode == "live" and view.replay is not None:
        said = "● at the position"
    elif board.timeline.mode == "live" and view.link.state != "live":
        said, ink = "◌ nothing new comes", "warn"
    elif board.timeline.mode == "live" and view.exited:
        said, ink = "● at its end", "dim"
    x0, x1 = seen  # a little wider than what there is, by whole dots
    x0 = there.first if board.timeline.mode == "all" else x0
    lead = ""
    if isinstance(axis, StepAxis):
        lead, x0 = "iterations ", max(0, x0)  # none has a number below zero, whatever is seen of the axis
    shown = [Span(f" {said}", ink), Span(f"   {lead}{axis.word(x0)} … {axis.word(min(x1, there.last))}")]
    by = "" if lead else "since the start " if axis.aligned else "time "
    kind = (GAP, Span(by, "dim"))
    cross = board.timeline.cross
    if cross is None:
        return (*shown, *kind)
    also = f"  iteration {numbers.grouped(iteration)}" if iteration is not None else ""
    if isinstance(axis, StepAxis):
        also = f"  {TimeAxis(view).word(axis.stamp(cross))}"
    least = (*shown, Span("   crosshair ", "dim"), Span(axis.word(cross), "strong"))
    whole = (*least, Span(also, "dim"))
    return first_fitting(((*whole, Span("  "), *kind), whole, least), width)


INKS = "1234"
VALUE = 9  # cells of a value: what stands after it does not move
GRAVE = "!"
"""On the mark of a warning or an alarm."""
_LEVELS = {"warning": "warn", "alarm": "bad"}


def fill(board: Board, view: View) -> None:
    """The charts to begin with: throughput, learning, what the GPUs do and draw; else the host. Once, and not before anything is
    known of the node."""
    if board.filled or view.node is None:
        return
    board.filled = True
    if view.run is not None:
        board.add([Pick(view.source, headline(view).name)])
        for metric in learning_metrics.metrics(view)[:1]:
            board.add([Pick(view.source, metric)])
    shown = view.gpus()
    many = gpus.many_curves(view, shown) if len(shown) > gpus.CHARTED else []
    shown = shown[: gpus.CHARTED]
    if many:
        for power in (False, True):
            if picks := [Pick(w.source, w.metric) for w in many if (w.metric == "power_w") is power]:
                board.add(picks)
    elif shown:
        board.add([Pick(w.source, w.metric) for w in gpus.work_curves(view, shown)])
        board.add([Pick(w.source, w.metric) for w in gpus.power_curves(shown)])
    else:
        board.add([Pick("host", "cpu_percent")])
    board.index = 0


def entries(view: View, chart: Chart) -> list[CatalogEntry]:
    """The series of a chart in words."""
    return [described(view, pick) for pick in chart.picks]


def title(found: list[CatalogEntry]) -> str:
    """`GPU 0 · SM active`, or what several series have in common."""
    if len(found) == 1:
        return found[0].title
    places, labels = {e.where for e in found}, {e.label for e in found}
    if len(places) == 1:
        return f"{found[0].where} · {len(found)} series"
    return f"{found[0].label} · {len(found)} series" if len(labels) == 1 else f"{len(found)} series"


def units(found: list[CatalogEntry], *, log: bool) -> str:
    """`steps/s · log`: what the value axis is in, for the series whose names do not tell it."""
    own = dict.fromkeys(e.axis_unit for e in found if not _says_its_unit(e))
    known = [unit or "no unit" for unit in own] if any(own) else []
    return " · ".join([*known, *(["log"] if log else [])])


def names(found: list[CatalogEntry]) -> list[str]:
    """What tells the series of a chart apart: their labels, where they come from, or both."""
    places, labels = {e.where for e in found}, {e.label for e in found}
    if len(labels) == len(found):
        return [e.label for e in found]
    return [e.where for e in found] if len(places) == len(found) else [e.title for e in found]


def inks(count: int, *, compared: bool) -> list[tuple[str, str]]:
    """The inks of so many series, and of the same series of a run beside this one."""
    if not compared:
        return [(INKS[i % len(INKS)], "") for i in range(count)]
    if 2 * count <= len(INKS):
        return [(INKS[2 * i], INKS[2 * i + 1]) for i in range(count)]
    return [(INKS[i % len(INKS)], "dim") for i in range(count)]


def pens(found: list[CatalogEntry], axis: Axis, *, compared: bool) -> list[Pen]:
    """What draws the curves of a chart: this run's, then that beside it of each series, as far as they are known."""
    drawn: list[Pen] = []
    for entry, (own, beside) in zip(found, inks(len(found), compared=compared), strict=True):
        series = axis.own(entry.pick)
        if series is not None:
            drawn.append(Pen(series, entry.label, own, entry.factor))
        other = axis.beside(entry.pick) if compared else None
        if other is not None:
            drawn.append(Pen(other, entry.label, beside, entry.factor))
    return drawn


def bounds(found: list[CatalogEntry], *, log: bool) -> tuple[float, float] | None:
    """Shares of a GPU and of the host reach from 0 to 100; everything else from its least to its greatest value."""
    shares = all(e.unit == "%" and e.pick.source.startswith(("gpu/", "host")) for e in found)
    return (0.0, 100.0) if shares and not log else None


def marks(view: View, axis: Axis) -> tuple[Mark, ...]:
    """Changes of knobs and events of the run, its GPUs and its node, warnings and alarms with a sign; where two are in one cell, the
    graver is seen."""
    told = [e for e in view.store.events if events.concerns(view, e)]
    found = [Mark(e.t, "dim") for e in told if e.level == "info"]
    found += throughput.marks(view) if view.run else []
    found += [Mark(e.t, ink, GRAVE) for level, ink in _LEVELS.items() for e in told if e.level == level]
    placed = ((axis.place(mark.x), mark) for mark in found)
    return tuple(mark._replace(x=x) for x, mark in placed if x is not None)


def legend(
    found: list[CatalogEntry],
    told: list[tuple[str, str]],
    *,
    others: tuple[str, str] | None,
    width: int,
    most: int,
) -> list[Line]:
    """Every series with its ink and its value, and that of the run beside it where the runs are called `others`.

    In at most so many lines: names are shortened (of runs to `this` and `beside`), then of a range only its end is told, then units are left out, then values;
    `+1` says how many series have no room even so.
    """
    inked = inks(len(found), compared=others is not None)
    lines: list[Line] = []
    chunks: list[Line] = []
    for cells, values in ((40, "whole"), (12, "whole"), (6, "whole"), (6, "end"), (6, "number"), (6, "")):
        chunks = []
        called = names(found) if cells > 6 else _first_words(names(found))
        for entry, name, (own, beside), pair in zip(found, called, inked, told, strict=True):
            value, other = (_shorter(one, entry, values) for one in pair)
            one, two = _called(others, cells) if others and len(found) == 1 else (name, "")
            gap = "" if values == "number" else " "
            chunks.append(_item(own, one, cells, value, gap))
            if others is not None:
                chunks.append(_item(beside, two, cells, other, gap))
        between = "  " if cells > 6 else " "
        lines = pack(chunks, width, between)
        if len(lines) <= most and all(width_of(line) <= width for line in lines):
            return lines
    for shown in range(len(chunks) - 1, 0, -1):
        more = (Span(f"+{len(chunks) - shown}", "dim"),)
        lines = pack([*chunks[:shown], more], width, between)
        if len(lines) <= most:
            break
    return lines[:most]


def _called(runs: tuple[str, str], cells: int) -> tuple[str, str]:
    """What two runs are called in so many cells: the ends of names that are cut are mostly what tells them apart."""
    return runs if max(map(len, runs)) <= cells else ("this", "beside")


def _says_its_unit(entry: CatalogEntry) -> bool:
    """Whether the name of a series has its unit in it: `env steps per s`."""
    return bool(entry.axis_unit) and entry.label.endswith(entry.axis_unit.replace("/", " per "))


def _shorter(value: str, entry: CatalogEntry, form: str) -> str:
    """A value `whole`, with only the `end` of a range (`≤40 W`), as a `number` in the unit of the axis; else nothing.

    A unit that the name of the series tells is not told again.
    """
    if _says_its_unit(entry):
        value = value.removesuffix(f" {entry.axis_unit}")
    least, range_, most = value.rpartition("…")
    end = f"≤{most}" if range_ and least else value
    return {"whole": value, "end": end, "number": end.removesuffix(f" {entry.axis_unit}")}.get(form, "")


def _first_words(called: list[str]) -> list[str]:
    """`SM`, `tensor`, `DRAM`, where these tell the series apart; else the names as they are."""
    first = [name.partition(" ")[0] for name in called]
    return first if len(set(first)) == len(called) else called


def sides(own: RunState, beside: RunState) -> tuple[str, str]:
    """What two runs are called beside each other: their names, their ids where these are the same."""
    one, two = (own.name, beside.name) if own.name != beside.name else (own.run, beside.run)
    return numbers.clean(one, 24), numbers.clean(two, 24)


def values(
    view: View,
    found: list[CatalogEntry],
    axis: Axis,
    curves: list[Curve],
    at: int,
    dot: int,
    *,
    now: bool,
    compared: bool,
) -> list[tuple[str, str]]:
    """What each series of a chart, and that of the run beside it, reads at a place; with `now` this run's is its newest.

    `curves` are those that its `pens` have drawn, `dot` is how much of the axis a dot column takes.
    """
    drawn = iter(curves)
    told = []
    for entry in found:
        pair = []
        for series in (axis.own(entry.pick), axis.beside(entry.pick) if compared else None):
            curve = next(drawn, None) if series is not None else None
            known = reading(curve, at, dot) if curve is not None else None
            pair.append(entry.range_text(*known) if known else UNKNOWN)
        newest = view.store.series(*entry.pick) if now else None
        own = entry.text(newest.last * entry.factor) if newest is not None else pair[0]
        told.append((own, pair[1]))
    return told


def reading(curve: Curve, x: int, dot: int) -> tuple[float, float] | None:
    """The least and greatest value of a curve in the dot column (`dot` wide) of a place; without one there, the newest before
    it, unless that was before a gap or ends the curve long before. None: unknown."""
    i = bisect_right(curve.x, x + dot // 2) - 1
    if i < 0 or curve.low[i] != curve.low[i]:
        return None
    if i == len(curve.x) - 1 and x - curve.x[i] > HOLE * max(dot, _spacing(curve)):
        return None
    return curve.low[i], curve.high[i]


def _spacing(curve: Curve) -> int:
    """The usual distance between the last places of a curve, 0 where there is only one."""
    last = curve.x[-8:]
    apart = sorted(b - a for a, b in pairwise(last))
    return apart[len(apart) // 2] if apart else 0


def _item(ink: str, label: str, cells: int, value: str, gap: str) -> Line:
    name = (Span(f"{gap}{numbers.clean(label, cells)}", "dim"),) if label else ()
    if not value:
        return Span(FULL, ink), *name
    room = max(VALUE, len(value)) if cells > 6 else 0
    return Span(FULL, ink), *name, Span(" "), Span(value, "dim" if value == UNKNOWN else "strong", room)
