"""Where an iteration goes: each phase a bar that begins where the one before it ended, nested ones under their parent."""

from __future__ import annotations

from typing import NamedTuple

from hoptui.tui.lines import FULL, TRACK, Line, Span
from hoptui.tui.panels import waiting
from hoptui.tui.panels.readings import recent
from hoptui.tui.view import SECOND, View
from hoptui.viewer import format as text

PREFIX = "phase/"
WITHIN_S = 20.0
BUCKETS = 1000  # of the window: fine enough to tell iterations with a phase from those without
_INKS = ("1", "2", "3", "4")
MOST_S = 1e9  # what a run says beyond that is no time
LEAST_SPREAD = 0.05  # ranks whose iterations differ by less are not worth a word
LEAST_OTHER = 0.02  # a remainder smaller than that is not worth a line


class Phase(NamedTuple):
    """A phase's seconds, averaged over all iterations; `start` is where it begins, `depth` 0 for the outermost."""

    path: str
    seconds: float
    start: float
    depth: int
    ink: str


def iteration_s(view: View) -> float | None:
    """The mean seconds of an iteration over the same window as the phases, the newest where none ended in it.

    It is counted as they are: the middles of a few coarse buckets would count an evaluation now and then several times,
    and show the difference as time that nothing accounts for.
    """
    return _mean(view, view.source)


def slowest(view: View) -> str:
    """Which rank of this node takes longest for an iteration: `slowest: rank 3, 1.42 s`; "" where they take the same."""
    ranks = view.run.ranks if view.run else ()
    means = {0: _mean(view, view.source)}
    means |= {r.rank: _mean(view, f"rank/{view.run.run}/{r.rank}") for r in ranks if view.run}
    known = {rank: mean for rank, mean in means.items() if mean is not None}
    last = max(known, key=lambda rank: known[rank], default=0)
    if len(known) < 2 or known[last] < (1 + LEAST_SPREAD) * min(known.values()):
        return ""
    return f"slowest: rank {last}, {text.seconds(known[last])}"


def _mean(view: View, source: str) -> float | None:
    spent, rows = _spent(view, "iteration_s", source)
    mean = spent / rows if rows else recent(view, source, "iteration_s", WITHIN_S)
    return mean if mean is not None and 0 < mean < MOST_S else None


def _spent(view: View, name: str, source: str = "") -> tuple[float, int]:
    """The sum of a metric over the window, and in how many rows it is: an evaluation is not in every iteration."""
    series = view.store.series(source or view.source, name)
    if series is None:
        return 0.0, 0
    found = series.window(view.now - int(WITHIN_S * SECOND), view.now, BUCKETS)
    values = [(low + high) / 2 for low, high in zip(found.low, found.high, strict=True) if low == low]
    return sum(values), len(values)


def measured(view: View) -> list[Phase]:
    """The phases in the order in which the run first passed them, and what is left as `other`."""
    seconds: dict[str, float] = {}
    iterations = _spent(view, "iteration_s")[1]
    for name in view.store.names(view.source):
        if name.startswith(PREFIX):
            spent, rows = _spent(view, name)
            if rows and 0 <= spent < MOST_S:
                seconds[name.removeprefix(PREFIX)] = spent / max(rows, iterations)
    found: list[Phase] = []
    at = 0.0
    tops = [path for path in seconds if path.rpartition("/")[0] not in seconds]
    for number, path in enumerate(tops):
        ink = _INKS[number % len(_INKS)]
        found.append(Phase(path, seconds[path], at, 0, ink))
        inner = at
        for child in seconds:
            if child.startswith(f"{path}/"):
                found.append(Phase(child, seconds[child], inner, 1, ink))
                inner += seconds[child]
        at += seconds[path]
    whole = iteration_s(view)
    if found and whole is not None and whole - at > LEAST_OTHER * whole:
        found.append(Phase("other", whole - at, at, 0, "dim"))
    return found


def lines(view: View, width: int, height: int) -> list[Line]:
    """One line a phase in at most `height`; the smallest nested ones are left out first."""
    found = measured(view)
    whole = iteration_s(view)
    if not found or whole is None:
        return _none(view)
    found = _most(found, height)
    label = max(len(_label(phase)) for phase in found) + 1
    label = min(label, width // 3)
    across = max(6, width - label - 16)
    return [_row(phase, whole, label, across) for phase in found]


def short(view: View, width: int) -> list[Line]:
    """One stacked bar of the outermost phases, and a line that names them."""
    whole = iteration_s(view)
    found = [phase for phase in measured(view) if not phase.depth]
    if not found or whole is None:
        return _none(view, 'run.phase("rollout") in its loop names phases')
    head = Span(f"iteration {text.seconds(whole)} ", "dim")
    across = width - len(head.text)
    spans: list[Span] = []
    drawn = 0
    for phase in found:
        end = _cells(phase.start + phase.seconds, whole, across)
        spans.append(Span((TRACK if phase.path == "other" else FULL) * max(0, end - drawn), phase.ink))
        drawn = max(drawn, end)
    names = [
        span
        for phase in found
        for span in (
            Span("━ ", phase.ink),
            Span(f"{_label(phase)} {text.percent(phase.seconds / whole, decimals=0)}   "),
        )
    ]
    return [(head, *spans), tuple(names)]


def _row(phase: Phase, whole: float, label: int, across: int) -> Line:
    start = min(across - 1, _cells(phase.start, whole, across))
    end = max(start + 1, _cells(phase.start + phase.seconds, whole, across))
    stroke = TRACK if phase.path == "other" else FULL
    share = text.percent(phase.seconds / whole, decimals=0)
    return (
        Span(_label(phase), "dim" if phase.depth or phase.path == "other" else "", label),
        Span(" " * start),
        Span(stroke * (end - start), phase.ink),
        Span(" " * (across - end)),
        Span(share, "" if phase.depth == 0 else "dim", 6, right=True),
        Span(text.seconds(phase.seconds), "dim", 10, right=True),
    )


def _cells(part: float, whole: float, across: int) -> int:
    return round(min(max(part / whole, 0.0), 1.0) * across)


def _label(phase: Phase) -> str:
    name = text.clean(phase.path.rpartition("/")[2] if phase.depth else phase.path, 24)
    return f"  {name}" if phase.depth else name


def _most(found: list[Phase], height: int) -> list[Phase]:
    extra = len(found) - height
    if extra <= 0:
        return found
    by_size = sorted(found, key=lambda phase: (phase.depth == 0, phase.seconds))
    dropped = set(by_size[:extra])
    return [phase for phase in found if phase not in dropped]


def _none(view: View, how: str = "") -> list[Line]:
    """Why there is nothing to see; `how` says in one line how to name phases."""
    if view.run is None:
        return [waiting.line(view, "looking for the run")]
    if not view.store.names(view.source):
        return [(Span("no iteration has ended yet", "dim"),)]
    if how:
        return [(Span(how, "dim"),)]
    return [
        (Span("this run names no phases; in its loop:", "dim"),),
        (Span('  with run.phase("rollout"): …', ""),),
    ]
