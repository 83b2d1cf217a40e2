"""The phases of an iteration: each is a bar that begins where the last one ended, nested ones under their
parent.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

from hoptui.presentation import numbers
from hoptui.presentation.numbers import UNKNOWN
from hoptui.presentation.readings import value_text
from hoptui.tui.charts.line_chart import whole_dots
from hoptui.tui.components import figures
from hoptui.tui.components import lines as lines_of_code
from hoptui.tui.snapshot import SECOND, AnySeries, View
from hoptui.tui.styled_text import FULL, TRACK, Line, Span

PREFIX = "phase/"
OTHER = "other"
WITHIN_S = 30.0
MOST = 1000  # iterations: a window that would hold more is shorter
ASKED = 128  # iterations that are asked for anew where only summaries are held, as when one has just come
EACH = 4  # buckets an iteration, or more: in the same one fall only those that are much quicker than usual
BUCKETS = 1024
FEW = 3  # up to this many iterations are counted, more are given as a time
_INKS = ("1", "2", "3", "4")
MOST_S = 1e9  # what a run says beyond that is no time
LEAST_SPREAD = 0.05  # ranks whose iterations differ by less are not worth a word
LEAST_ACROSS = 16  # cells of the bars, below which there is no room for what the GPUs read
LEAST_OTHER = 0.02  # a remainder smaller than that is not worth a line
_SUMS: WeakKeyDictionary[AnySeries, tuple[object, tuple[float, int]]] = WeakKeyDictionary()
"""The last sums of `_spent` by series: several figures use the same iterations, and an ended run keeps its
own.
"""


class PhaseBar(NamedTuple):
    """The mean seconds of a phase over all iterations; `start` is its offset, `depth` 0 is the outermost."""

    path: str
    seconds: float
    start: float
    depth: int
    ink: str


class Split(NamedTuple):
    """The mean seconds of an iteration (None: unknown), the number of iterations, and their phases."""

    whole: float | None
    iterations: int
    phases: list[PhaseBar]


def iteration_s(view: View) -> float | None:
    """The mean seconds of an iteration over the same window as the phases, counted as they are."""
    return _mean(*_spent(view, "iteration_s"))


def slowest(view: View) -> str:
    """The rank of this node with the longest iterations: `slowest: rank 3, 1.42 s`; "" if all are equal."""
    run = view.run
    if run is None or not run.ranks:
        return ""
    means = {run.rank: iteration_s(view)}
    for other in run.ranks:
        source = f"rank/{run.run}/{other.rank}"
        means[other.rank] = _mean(*_spent(view, "iteration_s", source))
    known = {rank: mean for rank, mean in means.items() if mean is not None}
    last = max(known, key=lambda rank: known[rank], default=run.rank)
    if len(known) < 2 or known[last] < (1 + LEAST_SPREAD) * min(known.values()):
        return ""
    return f"slowest: rank {last}, {numbers.seconds(known[last])}"


def title(view: View, split: Split) -> str:
    """`Where an iteration goes · 1.82 s · slowest: rank 3, 1.94 s`, as far as it is known."""
    whole = numbers.seconds(split.whole) if split.whole else ""
    parts = ("Where an iteration goes", whole, slowest(view))
    return " · ".join(filter(None, parts))


def since(view: View, split: Split) -> str:
    """The iterations behind the means: `over the last 30 s`, `in the last iteration`, `over 30 s until 2 m
    ago`.
    """
    count, series = split.iterations, view.store.series(view.source, "iteration_s")
    if series is None or not count:
        return ""
    start, end, _ = _stretch(view, series)
    over_s = min(end - start, end - series.first_t + int((split.whole or 0.0) * SECOND)) / SECOND
    stretch = numbers.duration(over_s)
    if 1 < count <= FEW:
        stretch = f"{count} iterations"
    age_s = (view.now - series.last_t) / SECOND
    if view.metrics_stale and age_s >= 1:
        ago = f"{numbers.duration(age_s)} ago"
        return f"over {stretch} until {ago}" if count > 1 else f"in an iteration that ended {ago}"
    return f"over the last {stretch}" if count > 1 else "in the last iteration"


def _mean(spent: float, rows: int) -> float | None:
    mean = spent / rows if rows else None
    return mean if mean is not None and 0 < mean < MOST_S else None


def _within_s(view: View) -> float:
    pace = _pace_s(view)
    return WITHIN_S if pace is None else min(WITHIN_S, max(1.0, MOST * pace))


def _pace_s(view: View) -> float | None:
    pace = view.vital.iteration_s if view.vital else None
    return pace if pace is not None and 0 < pace < MOST_S else None


def _stretch(view: View, run: AnySeries) -> tuple[int, int, int]:
    """The first and the last stamp that count, and the number of buckets that give each iteration its own.

    The window ends with the newest iteration of the run: one iteration may be longer than the window, and a
    silent run keeps its phases. It begins where iterations are known one by one. Of several together only the
    least and the greatest value are known; then a rare evaluation would seem longer than the iterations that
    contain it.
    """
    pace, end = _pace_s(view), run.last_t
    longest = int(_within_s(view) * SECOND)
    apart = max(longest // MOST, int((pace or 0.0) * SECOND))
    fine = run.fine_from(apart // 2)
    span = longest
    if fine > end - longest:
        span = min(longest, max(end - fine, ASKED * apart))
    return end - span, end, max(BUCKETS, EACH * span // apart)


def _spent(view: View, name: str, source: str = "") -> tuple[float, int]:
    """The sum of a metric over the window, and its number of rows: some iterations have no evaluation."""
    series, run = (
        view.store.series(source or view.source, name),
        view.store.series(view.source, "iteration_s"),
    )
    if series is None or run is None:
        return 0.0, 0
    start, end, points = _stretch(view, run)
    ahead = max(0, series.last_t - end)  # another rank may be a little ahead
    t0, t1 = whole_dots(end - start + ahead, end + ahead, points)
    key = (series.version, t0, t1)
    known = _SUMS.get(series)
    if known is None or known[0] != key:
        found = series.window(t0, t1 - 1, points)
        values = [(low + high) / 2 for low, high in zip(found.low, found.high, strict=True) if low == low]
        known = _SUMS[series] = (key, (sum(values), len(values)))
    return known[1]


def outermost(view: View) -> dict[str, str]:
    """The phases that lie in no other, in the order in which the run first passed them, each with its ink."""
    names = [name.removeprefix(PREFIX) for name in view.store.names(view.source) if name.startswith(PREFIX)]
    tops = [path for path in names if path.rpartition("/")[0] not in names]
    return {path: _INKS[number % len(_INKS)] for number, path in enumerate(tops)}


def measured(view: View) -> Split:
    """The phases in the order in which the run first passed them, and what is left as `other`."""
    seconds: dict[str, float] = {}
    run = view.store.series(view.source, "iteration_s")
    total, iterations = _spent(view, "iteration_s")
    whole = _mean(total, iterations)
    stretch = _stretch(view, run) if run is not None else None
    for name in view.store.names(view.source):
        if stretch is not None and (name.startswith(PREFIX) or name == "iteration_s"):
            view.store.look_closer(view.source, name, *stretch)
        if name.startswith(PREFIX):
            spent, rows = _spent(view, name)
            if rows and 0 <= spent < MOST_S:
                seconds[name.removeprefix(PREFIX)] = spent / max(rows, iterations)
    found: list[PhaseBar] = []
    at = 0.0
    for path, ink in outermost(view).items():
        if path not in seconds:
            continue
        found.append(PhaseBar(path, seconds[path], at, 0, ink))
        inner = at
        for child in seconds:
            if child.startswith(f"{path}/"):
                found.append(PhaseBar(child, seconds[child], inner, 1, ink))
                inner += seconds[child]
        at += seconds[path]
    if whole is not None and at > whole:
        whole = at  # until finer data arrives: no phase of a group of iterations is longer than the group
    if found and whole is not None and whole - at > LEAST_OTHER * whole:
        found.append(PhaseBar(OTHER, whole - at, at, 0, "dim"))
    return Split(whole, iterations, found)


def lines(view: View, split: Split, width: int, height: int) -> list[Line]:
    """One line a phase in at most `height`; the smallest nested ones are left out first."""
    whole, _, found = split
    if not found or whole is None:
        return _none(view, width)
    found = _most(found, height)
    label = max(len(_label(phase)) for phase in found) + 1
    label = min(label, width // 3)
    read = _read(view)
    beside = max((len(text) for text in read.values()), default=0) + 2 if read else 0
    if width - label - 16 - beside < LEAST_ACROSS:
        read, beside = {}, 0
    across = max(6, width - label - 16 - beside)
    return [_row(phase, whole, label, across, read.get(phase.path, UNKNOWN), beside) for phase in found]


def _read(view: View) -> dict[str, str]:
    """`SM 71 %` by phase: how busy the GPUs are during it, as far as it is known."""
    vital = view.vital
    found = {}
    for one in vital.phases if vital is not None and not view.exited else ():
        for name, text in (("sm_active", "SM"), ("busy", "busy")):
            if name in one.readings:
                found[one.phase] = f"{text} {value_text('%', one.readings[name])}"
                break
    return found


def short(view: View, width: int) -> list[Line]:
    """One stacked bar of the outermost phases, and a line that names them; of a run without any, its lines of
    code."""
    whole, _, found = measured(view)
    found = [phase for phase in found if not phase.depth]
    if not found or whole is None:
        return _none(view, width) if named(view) else lines_of_code.short(view, width)
    head = Span(f"iteration {numbers.seconds(whole)} ", "dim")
    across = width - len(head.text)
    spans: list[Span] = []
    drawn = 0
    for phase in found:
        end = _cells(phase.start + phase.seconds, whole, across)
        spans.append(Span((TRACK if phase.path == OTHER else FULL) * max(0, end - drawn), phase.ink))
        drawn = max(drawn, end)
    names = [
        span
        for phase in found
        for span in (
            Span("━ ", phase.ink),
            Span(f"{_label(phase)} {numbers.percent(phase.seconds / whole, decimals=0)}   "),
        )
    ]
    return [(head, *spans), tuple(names)]


def _row(phase: PhaseBar, whole: float, label: int, across: int, read: str, beside: int) -> Line:
    """A phase: its bar, share and seconds, and what the GPUs read during it in `beside` cells."""
    start = min(across - 1, _cells(phase.start, whole, across))
    end = max(start + 1, _cells(phase.start + phase.seconds, whole, across))
    stroke = TRACK if phase.path == OTHER else FULL
    share = numbers.percent(phase.seconds / whole, decimals=0)
    return (
        Span(_label(phase), "dim" if phase.depth or phase.path == OTHER else "", label),
        Span(" " * start),
        Span(stroke * (end - start), phase.ink),
        Span(" " * (across - end)),
        Span(share, "" if phase.depth == 0 else "dim", 6, right=True),
        Span(numbers.seconds(phase.seconds), "dim", 10, right=True),
        *([_reading(phase, read, beside)] if beside else []),
    )


def _reading(phase: PhaseBar, read: str, cells: int) -> Span:
    ink = "dim" if read == UNKNOWN else ""
    return Span("" if phase.path == OTHER else read, ink, cells, right=True)


def _cells(part: float, whole: float, across: int) -> int:
    return round(min(max(part / whole, 0.0), 1.0) * across)


def _label(phase: PhaseBar) -> str:
    name = numbers.clean(phase.path.rpartition("/")[2] if phase.depth else phase.path, 24)
    return f"  {name}" if phase.depth else name


def _most(found: list[PhaseBar], height: int) -> list[PhaseBar]:
    extra = len(found) - height
    if extra <= 0:
        return found
    by_size = sorted(found, key=lambda phase: (phase.depth == 0, phase.seconds))
    dropped = set(by_size[:extra])
    return [phase for phase in found if phase not in dropped]


def _none(view: View, width: int) -> list[Line]:
    """Why there is nothing to see."""
    if view.run is None:
        return figures.missing_lines(view, width, "looking for the run")
    return [(Span("no iteration has ended yet", "dim"),)]


def named(view: View) -> bool:
    """Whether the run has named a phase, or that is not known: no iteration has ended yet."""
    names = view.store.names(view.source)
    return not names or any(name.startswith(PREFIX) for name in names)
