"""What holds the run back, in one line: the diagnosis, or, as long as there is none, only what is measured."""

from __future__ import annotations

from collections.abc import Iterator

from hoptui.domain.tuning import Diagnosis
from hoptui.presentation import diagnosis, numbers
from hoptui.tui.components import phases
from hoptui.tui.components.phases import OTHER, PhaseBar, Split
from hoptui.tui.run_control import advised
from hoptui.tui.snapshot import SECOND, View
from hoptui.tui.styled_text import Line, Span, first_fitting

SIGN = Span("▸ ", "key")
UNKNOWN = "what holds the run back is not known"


def line(view: View, split: Split, width: int) -> Line:
    """`▸ launch-bound: SM active 5.6 % · busy 32 %  try compile off → default`, as much as fits; else `_phase`."""
    if view.run is None:
        return ()
    found = view.run.diagnosis
    if found is not None and found.verdict != "unknown":
        return first_fitting(_of(found, view), width)
    return _phase(view, split, width)


def _of(found: Diagnosis, view: View) -> Iterator[Line]:
    """The diagnosis, the most first: all of it, then less evidence, then no advice."""
    head = (SIGN, Span(diagnosis.name(found), "strong"))
    age_s = (view.now - found.t) / SECOND
    old = (
        (Span(f" · as of {numbers.duration(age_s)} ago", "dim"),) if view.metrics_stale and age_s >= 1 else ()
    )
    figures = diagnosis.evidence(found)
    told: list[Line] = [
        (Span(f": {' · '.join(figures[:count])}"),) if count else () for count in range(len(figures), -1, -1)
    ]
    tries = _tries(found, view)
    for longer in tries:
        for evidence in told[:-1] or told:
            yield (*head, *evidence, *old, *longer)
    for evidence in told:
        yield (*head, *evidence, *old)
    yield head


def _tries(found: Diagnosis, view: View) -> list[Line]:
    """The change to try and the key that makes it, in ever fewer words; without one, what would help."""
    change = advised(view)
    if change is None:
        alone = [diagnosis.advice_text(one) for one in found.advice if not one.knob and not view.stale]
        return [(Span(f"  {each}", "dim"),) for each in alone if each]
    advice, _ = change
    brief = diagnosis.advice_text(advice, brief=True)
    hint = "" if view.read_only or view.replay is not None else view.hint("knob.advice", "does it")
    key = (Span(f"  {hint}", "faint"),) if hint else ()
    return [
        (Span("  try ", "dim"), Span(diagnosis.advice_text(advice)), *key),
        (Span("  try ", "dim"), Span(brief), *key),
        (Span("  try ", "dim"), Span(brief)),
    ]


def _phase(view: View, split: Split, width: int) -> Line:
    """`▸ largest phase: rollout 61 % of an iteration (env 38 %) · over the last 30 s`, as much as fits; else why it is not known."""
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


def _name(phase: PhaseBar) -> str:
    return numbers.clean(phase.path.rpartition("/")[2] if phase.depth else phase.path, 24)


def _share(phase: PhaseBar, whole: float) -> str:
    return numbers.percent(phase.seconds / whole, decimals=0)
