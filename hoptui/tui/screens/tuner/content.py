"""What only the tuner screen shows: its knobs, and the draft of its limits. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from hoptui.domain.knobs import KnobState, relations
from hoptui.domain.tuning import Limits, may_turn
from hoptui.presentation import numbers, vocabulary
from hoptui.presentation import tuner as wording
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
    """`✕ left alone`, `◷ trial`, or why it may be turned or may not, as much as fits."""
    state = tuner.state_of(view)
    if tuner.is_frozen(state, knob):
        return (Span("✕ left alone", "warn"),)
    word = tuner.turn(state, knob)
    if word:
        return (Span(f"◷ {word}", "2"),)
    if view.replay is not None and state is None:  # within what limits it worked is not recorded
        effect = knob.spec.effect
        return first_fitting([(Span(one, "dim"),) for one in (vocabulary.EFFECTS[effect], effect)], width)
    if beside := _frozen_beside(view, knob):
        shapes = (f"left alone with {beside}", f"with {beside}", "left alone")
        return first_fitting([(Span(one, "dim"),) for one in shapes], width)
    if tuner.turns(state, knob):
        return first_fitting([(Span(one, "dim"),) for one in ("may be changed", "allowed")], width)
    long, brief = "left alone: changes what is learned", "not allowed"
    if knob.spec.cost == "restart":
        long, brief = "left alone: costs a restart", "never"
    return first_fitting([(Span(one, "faint"),) for one in (long, brief)], width)


def _frozen_beside(view: View, knob: KnobState) -> str:
    """A frozen knob whose product with this one is kept, so that neither is tuned; empty without one."""
    products = (one for one in relations(knob.spec.keeps) if not one.name and not one.under)
    factors = next((one.over for one in products if knob.spec.name in one.over), ())
    known = (view.knob(name) for name in factors if name != knob.spec.name)
    state = tuner.state_of(view)
    found = next((other for other in known if other is not None and tuner.is_frozen(state, other)), None)
    return numbers.clean(found.spec.name, 20) if found is not None else ""


EVERY = Limits(learning=("*",))
MEMORY = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.95, 0.98)
BUDGET = (0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.2)
POWER = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Shares of the power that a GPU may draw at all."""
USUAL_W = 700.0  # if no GPU reports its limit: that of an H100 or H200
NEAR = 1e-9


class Limit(NamedTuple):
    """A line of the form: what it is called, the value it has, and what that means."""

    name: str
    value: str
    help: str
    turn: Callable[[Limits, int], Limits]


class LimitsDraft:
    """`limits` as they are so far, for a run with these knobs on GPUs with these power limits in watts.

    Where none of them is known, shares of a usual one are offered.
    """

    def __init__(
        self, limits: Limits, knobs: Sequence[KnobState], power_limits: Sequence[float | None]
    ) -> None:
        self.limits = limits
        self.learning = [
            k
            for k in knobs
            if k.spec.effect == "learning" and (may_turn(k.spec, EVERY) or may_turn(k.spec, limits))
        ]
        if "*" in limits.learning:
            self.limits = replace(limits, learning=tuple(k.spec.name for k in self.learning))
        most_w = min((watts for watts in power_limits if watts is not None), default=USUAL_W)
        self._watts = [round(most_w * share / 10) * 10.0 for share in POWER]

    def lines(self) -> list[Limit]:
        """The form."""
        now = self.limits
        return [
            Limit(
                "memory",
                numbers.percent(now.memory, decimals=0),
                "The share of a GPU's memory that a trial may be expected to take, "
                "other processes' included.",
                lambda was, by: replace(was, memory=_stepped(MEMORY, was.memory, by)),
            ),
            Limit(
                "budget",
                wording.budget_of_an_hour(now),
                "The share of the run's time that trials may cost, including pauses for a change.",
                lambda was, by: replace(was, budget=_stepped(BUDGET, was.budget, by)),
            ),
            Limit(
                "objective",
                now.objective,
                f"{wording.OBJECTIVES[now.objective].capitalize()}.",
                lambda was, by: replace(
                    was, objective="energy" if was.objective == "throughput" else "throughput"
                ),
            ),
            Limit(
                "power",
                f"{numbers.grouped(now.power_w)} W" if now.power_w is not None else "any",
                "A trial in which a GPU draws more is reverted.",
                lambda was, by: replace(was, power_w=self._power(was.power_w, by)),
            ),
            Limit(
                "dry run",
                "yes" if now.dry else "no",
                "It says what it would try, and tries nothing."
                if now.dry
                else "It tries values on the run, and keeps those that help.",
                lambda was, by: replace(was, dry=not was.dry),
            ),
            *(self._knob(knob) for knob in self.learning),
        ]

    def turn(self, index: int, by: int) -> None:
        """Give a line its next value (1) or the one before (-1)."""
        self.limits = self.lines()[index].turn(self.limits, by)

    def allowed(self) -> list[KnobState]:
        """The knobs that change what is learned and that the tuner would be allowed to turn."""
        return [knob for knob in self.learning if knob.spec.name in self.limits.learning]

    def _knob(self, knob: KnobState) -> Limit:
        name = knob.spec.name
        may = name in self.limits.learning

        def turn(was: Limits, by: int) -> Limits:
            kept = tuple(one for one in was.learning if one != name)
            return replace(was, learning=kept if may else (*kept, name))

        about = f": {numbers.clean(knob.spec.description, 80)}" if knob.spec.description else ""
        return Limit(
            f"may change {numbers.clean(name, 40)}",
            "yes" if may else "no",
            f"It changes what is learned{about}. With no, the tuner leaves it alone.",
            turn,
        )

    def _power(self, now: float | None, by: int) -> float | None:
        """The next limit. None above the highest."""
        if now is None:
            return self._watts[-1] if by < 0 else None
        if by > 0 and now >= self._watts[-1]:
            return None
        return _stepped(self._watts, now, by)


def _stepped(scale: Sequence[float], now: float, by: int) -> float:
    """The next value of a scale, up or down, also from a value that is not on it; at its ends it stays."""
    if by > 0:
        return scale[min(bisect_right(scale, now + NEAR), len(scale) - 1)]
    return scale[max(bisect_left(scale, now - NEAR) - 1, 0)]
