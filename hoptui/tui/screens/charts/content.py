"""What the charts screen shows: the catalog of series, titles, legends and the values at the cursor. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, get_args

from hoptui.domain.columns import is_known
from hoptui.model.series import HOLE
from hoptui.presentation import numbers
from hoptui.presentation.gpu_readings import GPU
from hoptui.presentation.metric_names import unit_and_label
from hoptui.presentation.numbers import UNKNOWN
from hoptui.presentation.readings import DERIVED, HOST, PROCESS, Meaning, Unit, value_text
from hoptui.protocol.messages import RunState
from hoptui.tui.charts.grid import Board, Chart, Extent, Pick
from hoptui.tui.charts.line_chart import Drawn, Pen
from hoptui.tui.charts.plot import Curve, Mark
from hoptui.tui.components import events, gpus, header, runs
from hoptui.tui.components.figures import headline, number
from hoptui.tui.screens.charts.axes import Axis, StepAxis, TimeAxis
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import FULL, GAP, Line, Span, first_fitting, pack, width_of

UNITS: frozenset[str] = frozenset(get_args(Unit))
_AXES: dict[str, tuple[float, str]] = {"B": (2.0**-30, "GiB")}
"""Units that the value axis has a better one for: the factor to it, and its name."""


class CatalogEntry(NamedTuple):
    """A series in words: `where` it comes from, its `label`, its unit (empty: none)."""

    pick: Pick
    where: str
    label: str
    unit: str

    @property
    def factor(self) -> float:
        """From its values to those of the value axis."""
        return _AXES.get(self.unit, (1.0, ""))[0]

    @property
    def axis_unit(self) -> str:
        """The unit of the value axis."""
        unit = _AXES.get(self.unit, (1.0, self.unit))[1]
        return "" if unit == "count" else unit

    @property
    def title(self) -> str:
        """`GPU 0 · SM active`."""
        return f"{self.where} · {self.label}"

    def text(self, value: float | None) -> str:
        """A value of the axis as text, with its unit."""
        if value is None or not is_known(value):
            return UNKNOWN
        raw = value / self.factor
        if self.unit in UNITS:
            return value_text(self.unit, raw)  # type: ignore[arg-type]
        return f"{number(raw)} {self.unit}".rstrip()

    def range_text(self, low: float, high: float) -> str:
        """A range of values: `612…640 W`, or `640 W` if both ends have the same text."""
        least, most = self.text(low), self.text(high)
        if least == most:
            return most
        unit = most.rpartition(" ")[2] if self.unit in UNITS else self.unit
        head = least.removesuffix(f" {unit}") if unit and most.endswith(f" {unit}") else least
        return f"{head}…{most}"

    def spread_text(self, low: float, middle: float, high: float) -> str:
        """A typical value with the range around it: `26.4 W (12.9…102)`."""
        typical, spread = self.text(middle), self.range_text(low, high)
        unit = f" {self.unit}"
        return f"{typical} ({spread.removesuffix(unit)})" if "…" in spread else typical


def catalog(view: View) -> list[CatalogEntry]:
    """All series of which anything is known, those of the run first; bit masks are no curves."""
    picks = (Pick(source, metric) for source in _sources(view) for metric in view.store.names(source))
    found = [described(view, pick) for pick in picks]
    return [entry for entry in found if entry.unit != "bit mask"]


def described(view: View, pick: Pick) -> CatalogEntry:
    """A series in words. For a series that is gone, only its name is used."""
    kind, _, rest = pick.source.partition("/")
    meaning = _meaning(kind, pick.metric)
    if meaning is not None:
        return CatalogEntry(pick, _where(view, kind, rest), meaning.label, meaning.unit)
    unit, label = _unit(view.run, kind, pick.metric)
    return CatalogEntry(pick, _where(view, kind, rest), label, unit)


def _sources(view: View) -> list[str]:
    run = view.run
    own = view.gpus()
    others = [gpu for gpu in view.node.gpus if gpu not in own] if view.node else []
    on_gpus = [f"gpu/{gpu.uuid}" for gpu in (*own, *others)]
    if run is None:
        return [*on_gpus, "host"]
    ranks = [f"rank/{run.run}/{rank.rank}" for rank in run.ranks]
    return [view.source, *ranks, f"derived/{run.run}", *on_gpus, f"process/{run.run}", "host"]


def _where(view: View, kind: str, rest: str) -> str:
    match kind:
        case "gpu":
            gpu = next((g for g in view.node.gpus if g.uuid == rest), None) if view.node else None
            return (
                " ".join(filter(None, (f"GPU {gpu.index}", gpus.part(gpu)))) if gpu else "a GPU that is gone"
            )
        case "rank":
            return f"rank {rest.rpartition('/')[2]}"
        case "derived":
            return "run's GPUs"
        case "process":
            return "run's process"
    return kind


def _meaning(kind: str, metric: str) -> Meaning | None:
    return {"gpu": GPU, "derived": DERIVED, "host": HOST, "process": PROCESS}.get(kind, {}).get(metric)


def _unit(run: RunState | None, kind: str, metric: str) -> tuple[str, str]:
    """The unit of a metric without a known meaning, from its declaration or its name, and its label."""
    declared = run.units.get(metric, "") if run is not None and kind in ("run", "rank") else ""
    return unit_and_label(metric, declared)


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
    """The range and the crosshair, as much as fits into `width` cells; `iteration` is the one at the
    crosshair.

    On an axis of time: `● live 10:36:02 … 10:41:02 crosshair 10:40:51 iteration 1 190`. On an axis of
    iterations: `● live iterations 1 084 … 1 204 crosshair 1 190 10:40:51`.
    """
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
    kind = (GAP, Span(f"smoothed   {by}" if board.smooth else by, "dim"))
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
VALUE = 9  # cells of a value: the text after it does not move
GRAVE = "!"
"""On the mark of a warning or an alarm."""
_LEVELS = {"warning": "warn", "alarm": "bad"}


def fill(board: Board, view: View) -> None:
    """Set the initial charts once the node is known: throughput, learning, use and power of the GPUs; else
    the host.
    """
    if board.filled or view.node is None:
        return
    board.filled = True
    if view.run is not None:
        board.add([Pick(view.source, headline(view).name)])
        for metric in runs.learning_metrics(view)[:1]:
            board.add([Pick(view.source, metric)])
    shown = view.gpus()
    many = gpus.many_curves(view, shown) if len(shown) > gpus.CHARTED else []
    shown = shown[: gpus.CHARTED]
    if many:
        for power in (False, True):
            if picks := [Pick(w.source, w.metric) for w in many if (w.metric == "power_w") is power]:
                board.add(picks)
        board.add([Pick(f"gpu/{gpu.uuid}", "sm_active") for gpu in view.gpus()])
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


def units(found: list[CatalogEntry]) -> str:
    """`steps/s`: the unit of the value axis, for series whose names do not show it."""
    own = dict.fromkeys(e.axis_unit for e in found if not _says_its_unit(e))
    return " · ".join([unit or "no unit" for unit in own] if any(own) else [])


def names(found: list[CatalogEntry]) -> list[str]:
    """What distinguishes the series of a chart: their labels, their sources, or both."""
    places, labels = {e.where for e in found}, {e.label for e in found}
    if len(labels) == len(found):
        return [e.label for e in found]
    return [e.where for e in found] if len(places) == len(found) else [e.title for e in found]


class Stroke(NamedTuple):
    """How a curve is drawn: its ink, and whether it is dashed."""

    ink: str
    dashed: bool = False


def strokes(count: int, others: int = 0) -> list[tuple[Stroke, ...]]:
    """The strokes of so many series: that of this run, then those of as many other runs.

    With one other run, each series has two inks, or the other run is dim. With more, a series alone has a
    stroke for each run; of several series only this run's are drawn.
    """
    own = [Stroke(INKS[i % len(INKS)]) for i in range(count)]
    if others == 0 or (others > 1 and count > 1):
        return [(stroke,) for stroke in own]
    if others == 1 and 2 * count > len(INKS):
        return [(stroke, Stroke("dim")) for stroke in own]
    runs = others + 1
    each = [Stroke(INKS[i % len(INKS)], dashed=i >= len(INKS)) for i in range(count * runs)]
    return [tuple(each[i * runs : (i + 1) * runs]) for i in range(count)]


def pens(found: list[CatalogEntry], axis: Axis, *, others: int = 0) -> list[Pen]:
    """The pens for the curves of a chart: for each series this run's, then those of so many other runs, as
    far as they are known.
    """
    drawn: list[Pen] = []
    inked = zip(found, names(found), strokes(len(found), others), strict=True)
    for group, (entry, name, of_runs) in enumerate(inked):
        for stroke, series in zip(of_runs, _series(entry, axis, len(of_runs)), strict=True):
            if series is not None:
                drawn.append(Pen(series, name, stroke.ink, entry.factor, group, stroke.dashed))
    return drawn


def _series(entry: CatalogEntry, axis: Axis, count: int) -> list[Drawn | None]:
    """A series of the first `count` runs, this one first."""
    return [axis.own(entry.pick), *(axis.beside(entry.pick) if count > 1 else ())]


def bounds(found: list[CatalogEntry], *, log: bool | None) -> tuple[float, float] | None:
    """Shares of a GPU and of the host range from 0 to 100; other series from their least to their greatest
    value.
    """
    shares = all(e.unit == "%" and e.pick.source.startswith(("gpu/", "host")) for e in found)
    return (0.0, 100.0) if shares and not log else None


def marks(view: View, axis: Axis) -> tuple[Mark, ...]:
    """Changes of knobs and events of the run, its GPUs and its node; warnings and alarms have a sign.

    Of two in one cell, the more serious one is drawn.
    """
    told = [e for e in view.store.events if events.concerns(view, e)]
    found = [Mark(e.t, "dim") for e in told if e.level == "info"]
    found += [*runs.note_marks(view), *runs.change_marks(view)] if view.run else []
    found += [Mark(e.t, ink, GRAVE) for level, ink in _LEVELS.items() for e in told if e.level == level]
    placed = ((axis.place(mark.x), mark) for mark in found)
    return tuple(mark._replace(x=x) for x, mark in placed if x is not None)


def legend(
    found: list[CatalogEntry],
    told: Sequence[tuple[str, ...]],
    *,
    others: tuple[str, ...] | None,
    width: int,
    most: int,
) -> list[Line]:
    """Every series with its ink and value, and those of the other runs if the runs are called `others`.

    If the lines are too few, names are shortened first (of two runs to `this` and `beside`). Then a range
    shows only its end, then units, values and at last the names of the other runs are left out. `+1` counts
    the series that still have no room.
    """
    inked = strokes(len(found), len(others) - 1 if others else 0)
    lines: list[Line] = []
    chunks: list[Line] = []
    steps = ((40, "whole"), (12, "whole"), (6, "whole"), (6, "end"), (6, "number"), (6, ""), (6, "nameless"))
    for cells, values in steps:
        chunks = []
        called = names(found) if cells > 6 else _first_words(names(found))
        for entry, name, of_runs, readings in zip(found, called, inked, told, strict=True):
            runs = _called(others, cells) if others else (name,)
            if len(found) > 1:
                runs = (name, *("" if values == "nameless" else run for run in runs[1:]))
            gap = "" if values == "number" else " "
            for stroke, run, reading_ in zip(of_runs, runs, readings, strict=False):
                value = _shorter(reading_, entry, "" if values == "nameless" else values)
                chunks.append(_item(stroke, run, cells, value, gap))
        if others is not None and len(inked[0]) < min(2, len(others)):
            chunks.append((Span(ALONE, "dim"),))
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


def _called(runs: tuple[str, ...], cells: int) -> tuple[str, ...]:
    """Short names of runs. Of names that are cut, the ends usually differ; two are `this` and `beside`."""
    if max(map(len, runs)) <= cells:
        return runs
    if len(runs) == 2:
        return ("this", "beside")
    return tuple(run if len(run) <= cells else f"…{run[1 - cells :]}" for run in runs)


def _says_its_unit(entry: CatalogEntry) -> bool:
    """Whether the name of a series has its unit in it: `env steps per s`."""
    return bool(entry.axis_unit) and entry.label.endswith(entry.axis_unit.replace("/", " per "))


def _shorter(value: str, entry: CatalogEntry, form: str) -> str:
    """A value `whole`, its `end` without the range around it, as a `number` in the unit of the axis; else
    empty. Of a range alone, the end is the greatest value (`≤40 W`).

    A unit that is part of the name of the series is not repeated.
    """
    if _says_its_unit(entry):
        value = value.replace(f" {entry.axis_unit}", "", 1)
    typical = value.partition(" (")[0]
    least, range_, most = typical.rpartition("…")
    end = f"≤{most}" if range_ and least else typical
    return {"whole": value, "end": end, "number": end.removesuffix(f" {entry.axis_unit}")}.get(form, "")


def _first_words(called: list[str]) -> list[str]:
    """`SM`, `tensor`, `DRAM`, if these distinguish the series. Otherwise the full names."""
    first = [name.partition(" ")[0] for name in called]
    return first if len(set(first)) == len(called) else called


def sides(own: RunState, beside: Sequence[RunState]) -> tuple[str, ...]:
    """What runs are called beside each other: their names, their ids where these are the same."""
    runs = (own, *beside)
    named = Counter(run.name for run in runs)
    return tuple(numbers.clean(run.name if named[run.name] == 1 else run.run, 24) for run in runs)


def beside_text(called: tuple[str, ...]) -> str:
    """`ppo-before`, `3 runs`: what lies beside the first of some runs."""
    return called[1] if len(called) == 2 else numbers.counted(len(called) - 1, "run")


def values(
    view: View,
    found: list[CatalogEntry],
    axis: Axis,
    curves: list[Curve],
    at: int,
    dot: int,
    *,
    now: bool,
    others: int = 0,
) -> list[tuple[str, ...]]:
    """The values of each series of a chart, and of so many other runs, at a place; with `now` this run's are
    its newest.

    `curves` are those that its `pens` have drawn; `dot` is the width of a dot column on the axis.
    """
    drawn = iter(curves)
    told = []
    for entry, of_runs in zip(found, strokes(len(found), others), strict=True):
        texts = []
        for series in _series(entry, axis, len(of_runs)):
            curve = next(drawn, None) if series is not None else None
            known = reading(curve, at, dot) if curve is not None else None
            texts.append(entry.spread_text(*known) if known else UNKNOWN)
        newest = view.store.series(*entry.pick) if now else None
        own = entry.text(newest.last * entry.factor) if newest is not None else texts[0]
        told.append((own, *texts[1:]))
    return told


def reading(curve: Curve, x: int, dot: int) -> tuple[float, float, float] | None:
    """The least, typical and greatest value of a curve in the dot column (`dot` wide) of a place; None if
    unknown.

    Without a value there, it is the newest one before, unless that is before a gap or ends the curve long
    before.
    """
    i = bisect_right(curve.x, x + dot // 2) - 1
    if i < 0 or curve.low[i] != curve.low[i]:
        return None
    if i == len(curve.x) - 1 and x - curve.x[i] > HOLE * max(dot, _spacing(curve)):
        return None
    middle = curve.low if curve.middle is None else curve.middle
    return curve.low[i], middle[i], curve.high[i]


def _spacing(curve: Curve) -> int:
    """The usual distance between the last places of a curve, 0 where there is only one."""
    last = curve.x[-8:]
    apart = sorted(b - a for a, b in pairwise(last))
    return apart[len(apart) // 2] if apart else 0


ALONE = "this run alone"
"""On the legend of several series, of which other runs are not drawn."""
DASHED = "╸╸"
"""On the legend, before what is drawn with dashes."""


def _item(stroke: Stroke, label: str, cells: int, value: str, gap: str) -> Line:
    mark = Span(DASHED if stroke.dashed else FULL, stroke.ink)
    name = (Span(f"{gap}{numbers.clean(label, cells)}", "dim"),) if label else ()
    if not value:
        return mark, *name
    room = max(VALUE, len(value)) if cells > 6 else 0
    return mark, *name, Span(" "), Span(value, "dim" if value == UNKNOWN else "strong", room)
