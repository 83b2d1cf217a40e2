"""The knobs of a run as the tuner sees them: which it may turn, which it tries now, which it leaves alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hoptui.domain.knobs import KnobState, relations
from hoptui.presentation import numbers, vocabulary
from hoptui.tui.components import tuner
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span, first_fitting, width_of


def ordered(view: View) -> list[KnobState]:
    """The knobs, those first that the tuner may turn."""
    state = tuner.state_of(view)
    found = view.run.knobs if view.run is not None else ()
    return sorted(found, key=lambda knob: not tuner.turns(state, knob))


def rows(view: View, knobs: Sequence[KnobState], cursor: int, width: int) -> list[Line]:
    """A line each: name, value in effect, and what the tuner does with it."""
    names = min(max((len(knob.spec.name) for knob in knobs), default=0) + 1, 20)
    values = min(max((len(numbers.value(knob.value, knob.spec)) for knob in knobs), default=0), 14)
    found: list[Line] = []
    for index, knob in enumerate(knobs):
        start: Line = (
            Span("› " if index == cursor else "  ", "key"),
            Span(numbers.clean(knob.spec.name, 40), "strong" if index == cursor else "", names),
            Span(numbers.value(knob.value, knob.spec), "strong", values, right=True),
            Span("  "),
        )
        found.append((*start, *_stands(view, knob, width - width_of(start))))
    return found or [(Span("no knobs so far", "dim"),)]


def _stands(view: View, knob: KnobState, width: int) -> Line:
    """`✕ frozen`, `◷ trial`, or why it may be turned or may not, as much as fits."""
    state = tuner.state_of(view)
    if tuner.is_frozen(state, knob):
        return (Span("✕ frozen", "warn"),)
    word = tuner.turn(state, knob)
    if word:
        return (Span(f"◷ {word}", "2"),)
    if view.replay is not None and state is None:  # within what limits it worked is not recorded
        effect = knob.spec.effect
        return first_fitting([(Span(one, "dim"),) for one in (vocabulary.EFFECTS[effect], effect)], width)
    if beside := _frozen_beside(view, knob):
        shapes = (f"left alone with {beside}", f"with {beside}", "✕ frozen")
        return first_fitting([(Span(one, "dim"),) for one in shapes], width)
    if tuner.turns(state, knob):
        return first_fitting([(Span(one, "dim"),) for one in ("may be turned", "allowed")], width)
    long, brief = "left alone: changes what is learned", "not allowed"
    if knob.spec.cost == "restart":
        long, brief = "left alone: costs a restart", "never"
    return first_fitting([(Span(one, "faint"),) for one in (long, brief)], width)


def _frozen_beside(view: View, knob: KnobState) -> str:
    """A frozen knob whose product with this one is kept: then neither is turned. Empty where there is none."""
    products = (one for one in relations(knob.spec.keeps) if not one.name and not one.under)
    factors = next((one.over for one in products if knob.spec.name in one.over), ())
    known = (view.knob(name) for name in factors if name != knob.spec.name)
    state = tuner.state_of(view)
    found = next((other for other in known if other is not None and tuner.is_frozen(state, other)), None)
    return numbers.clean(found.spec.name, 20) if found is not None else ""
