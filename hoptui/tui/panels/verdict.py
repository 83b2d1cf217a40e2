"""What holds the run back, in one line: the place of a diagnosis. Without one it tells only what is measured."""

from __future__ import annotations

from hoptui.tui.lines import Line, Span, first_fitting
from hoptui.tui.panels import phases
from hoptui.tui.panels.phases import OTHER, Phase, Split
from hoptui.tui.view import View
from hoptui.viewer import format as text

SIGN = Span("▸ ", "key")
UNKNOWN = "what holds the run back is not known"


def line(view: View, split: Split, width: int) -> Line:
    """`▸ largest phase: rollout 61 % of an iteration (env 38 %) · over the last 30 s`, as much as fits; else why it is not known."""
    if view.run is None:
        return ()
    whole, _, found = split
    if whole is None:
        return SIGN, Span(f"{UNKNOWN}: no iteration has ended yet", "dim")
    if not found:
        told = f"{UNKNOWN}: this run names no phases"
        return first_fitting(
            [
                (SIGN, Span(told, "dim"), Span(', as run.phase("rollout") does', "faint")),
                (SIGN, Span(told, "dim")),
            ],
            width,
        )
    largest = max((phase for phase in found if not phase.depth), key=lambda phase: phase.seconds)
    inner = [phase for phase in found if phase.depth and phase.path.startswith(f"{largest.path}/")]
    part = max(inner, key=lambda phase: phase.seconds, default=None)
    share, of = _share(largest, whole), (Span(" of an iteration", "dim"),)
    alone = (Span(f" ({_name(part)} {_share(part, whole)})", "dim"),) if part else ()
    since = (Span(f" · {phases.since(view, split)}", "dim"),)
    if largest.path == OTHER:
        head: Line = (
            SIGN,
            Span("largest part: "),
            Span("in no named phase ", "strong"),
            Span(share, "strong"),
        )
    else:
        head = (SIGN, Span("largest phase: "), Span(f"{_name(largest)} {share}", "strong"))
    shapes = ((*of, *alone, *since), (*of, *since), since, of, ())
    return first_fitting([(*head, *rest) for rest in shapes], width)


def _name(phase: Phase) -> str:
    return text.clean(phase.path.rpartition("/")[2] if phase.depth else phase.path, 24)


def _share(phase: Phase, whole: float) -> str:
    return text.percent(phase.seconds / whole, decimals=0)
