"""The run's knobs: what is in effect, what is on its way and what the last change did."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.presentation import numbers, vocabulary
from hoptui.protocol.messages import FINAL, CommandRecord
from hoptui.tui.components import consequences, empty_state, tuner
from hoptui.tui.components.command_outcome import course, effect, stages
from hoptui.tui.snapshot import View
from hoptui.tui.staged_changes import Staged
from hoptui.tui.styled_text import TRACK, Line, Span, first_fitting, width_of

RECENT_S = 30.0  # how long the outcome of a change stays beside its knob
NUMBERS = ("int", "float")  # the kinds of knobs whose values are never cut
LABEL = 9
DETAIL = 8  # lines that there are for what is told of the chosen knob
SHORT_COSTS = {"free": "", "shape": "new shape", "rebuild": "rebuild", "restart": "restart"}


def rows(view: View, width: int, cursor: int, staged: Iterable[Staged] = ()) -> list[Line]:
    """One line a knob: the value in effect, then what is pending or staged; at rest effect, cost, and what the tuner does or the bounds."""
    if view.run is None:
        return [empty_state.line(view, "looking for the run")]
    knobs = view.run.knobs
    names = min(max((len(k.spec.name) for k in knobs), default=0) + 1, 20)
    values = max((len(numbers.value(k.value, k.spec)) for k in knobs if k.spec.kind in NUMBERS), default=0)
    texts = max((len(numbers.value(k.value, k.spec)) for k in knobs), default=0)
    values = max(values, min(texts, 14))
    unsent = {one.spec.name: one for one in staged}
    found: list[Line] = []
    for index, knob in enumerate(knobs):
        name = Span(numbers.clean(knob.spec.name, 40), "strong" if index == cursor else "", names)
        value = Span(numbers.value(knob.value, knob.spec), "strong", values, right=True)
        lead = Span("› " if index == cursor else "  ", "key")
        start = (lead, name, value, Span("  "))
        found.append((*start, *_beside(view, knob, width - width_of(start), unsent.get(knob.spec.name))))
    return found or [(Span("no knobs so far: run.knob(name, value) declares one", "dim"),)]


def detail(view: View, knob: KnobState, width: int, unsent: Staged | None = None) -> list[Line]:
    """What there is to know of the chosen knob, in up to eight lines; its description takes two of them where there is room."""
    spec = knob.spec
    about = numbers.clean(spec.description) or f"{spec.name}, as declared by the run"
    found = [_labelled("bounds", Span(bounds(spec)))]
    found.append(_labelled("effect", Span(vocabulary.EFFECTS[spec.effect])))
    found.append(_labelled("cost", Span(vocabulary.cost(knob))))
    by = f" by {numbers.clean(knob.by, 40)}" if knob.by else ""
    version = Span(f"{knob.version}{by or (', as declared' if not knob.version else '')}")
    found.append(
        _labelled("version", version, Span(f"   {_staged(unsent)}, not sent" if unsent else "", "2"))
    )
    last = _newest_ended(view, spec.name)
    if last is not None:
        asked = vocabulary.change(last).removeprefix(spec.name).strip()
        whole, brief, how = effect(last), effect(last, brief=True), f"  {vocabulary.stage_text(last)}"
        parts = [(how, whole), ("", whole), ("", brief)] if whole else [(how, whole)]
        shown = [_labelled("last", Span(f"{asked}{stage}  "), *told) for stage, told in parts]
        found.append(first_fitting(shown, width))
    declared = consequences.declared(view, knob, None, width - LABEL)[: DETAIL - 2 - len(found)]
    found[3:3] = [_labelled(label, Span(told)) for label, told in declared]
    lines = 2 if len(found) + 3 <= DETAIL else 1
    told = textwrap.wrap(about, max(8, width), max_lines=lines, placeholder=" …")
    return [(Span(TRACK * width, "track"),), *((Span(line),) for line in told), *found]


def bounds(spec: KnobSpec, *, scale: bool = True) -> str:
    """`1 … 64`, the choices, or what is open; with the scale unless it is not asked for."""
    if spec.choices:
        return " · ".join(numbers.value(choice, spec) for choice in spec.choices)
    if spec.kind == "bool":
        return "on · off"
    if spec.kind == "str":
        return "any text"
    low, high = numbers.value(spec.min, spec), numbers.value(spec.max, spec)
    unit = f" {numbers.clean(spec.unit, 16)}" if spec.unit else ""
    match spec.min, spec.max:
        case None, None:
            found = "no bounds"
        case None, _:
            found = f"at most {high}{unit}"
        case _, None:
            found = f"at least {low}{unit}"
        case _:
            found = f"{low} … {high}{unit}"
    if not scale or spec.scale == "linear":
        return found
    return f"{found} ({'powers of two' if spec.scale == 'pow2' else 'log scale'})"


def _beside(view: View, knob: KnobState, width: int, unsent: Staged | None) -> Line:
    pending = view.pending(knob.spec.name)
    if pending is not None:
        wanted = Span(f"→ {numbers.value(pending.wanted, knob.spec)}  ", "2")
        *told, mark = stages(pending)
        return first_fitting([*((wanted, stage) for stage in told), (wanted, mark), (mark,)], width)
    if not knob.in_effect:
        return first_fitting(
            [(Span(f"⚠ not in effect{how}", "warn"),) for how in (" as it was set", "")], width
        )
    if unsent is not None:
        mine = Span(_staged(unsent), "2")
        return first_fitting([(mine, Span("  not sent", "dim")), (mine,)], width)
    outcome = _recent_outcome(view, knob.spec.name)
    remark = tuner.remark(view, knob)
    if outcome is not None:
        became = course(outcome, width)  # the events tell why
        return first_fitting([(*became, Span(f"  {remark}", "dim")), became], width) if remark else became
    spec = knob.spec
    start = (Span(spec.effect, "dim", 9), Span(SHORT_COSTS[spec.cost], "dim", 10))
    if remark:
        return first_fitting([(*start, Span(remark, "2")), (Span(remark, "2"),)], width)
    limits = [bounds(spec, scale=False)]
    if spec.kind in NUMBERS and spec.max is not None:
        limits.append(f"≤ {numbers.value(spec.max, spec)}")
    return first_fitting([*((*start, Span(one, "faint")) for one in limits), start], width)


def _staged(staged: Staged) -> str:
    return f"staged → {numbers.value(staged.value, staged.spec)}"


def _newest_ended(view: View, name: str) -> CommandRecord | None:
    """The newest change of a knob that came to an end, whichever."""
    ended = [c for c in view.commands() if c.verb == "set" and c.knob == name and c.stage in FINAL]
    return max(ended, key=lambda c: c.settled or c.t, default=None)


def _recent_outcome(view: View, name: str) -> CommandRecord | None:
    """The newest change of a knob that ended less than `RECENT_S` ago, or is still being measured."""
    newest = _newest_ended(view, name)
    if newest is None:
        return None
    measuring = newest.measured is not None and not newest.measured.settled
    age_s = (view.now - (newest.settled or newest.t)) / 1e9
    return newest if age_s < RECENT_S or (measuring and age_s < 10 * RECENT_S) else None


def _labelled(label: str, *spans: Span) -> Line:
    return Span(label, "dim", LABEL), *spans
