"""How fast the run is, and whether that is faster or slower than before the last change."""

from __future__ import annotations

from hoptui.presentation import numbers
from hoptui.tui.charts.plot import Mark
from hoptui.tui.components import phases
from hoptui.tui.components.command_outcome import last_change, unmeasured
from hoptui.tui.components.figures import VALUE, energy, fact, headline, label_of, number, recent
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span, pack, width_of

TUNER = "T"
"""The sign of the tuner at the top of a mark: also where there are no colours it is told from what people did."""


def lines(view: View, width: int) -> list[Line]:
    """The headline and the other rates; under it what the last change did."""
    head = leading(view)
    facts = next(iter(pack(_facts(view), max(0, width - width_of(head)), "  ")), ())
    below = last_change(view, width) or unmeasured(view, "no change of a knob")
    return [(*head, *facts), below]


def leading(view: View) -> Line:
    """`512 k env steps/s`."""
    head = headline(view)
    return Span(numbers.si(head.value), "strong"), Span(f" {head.unit}   ", "dim")


def age(view: View) -> str:
    """How old the values are, where that must be known."""
    age_s = view.age_s(view.source) if view.metrics_stale else None
    return f"values are {numbers.duration(age_s)} old" if age_s is not None and age_s >= 1 else ""


def marks(view: View) -> list[Mark]:
    """The applied changes, for the charts; those of the tuner with its sign."""
    return [
        Mark(c.settled or c.t, sign=TUNER if c.origin.kind == "tuner" else "")
        for c in view.commands()
        if c.verb == "set" and c.stage == "applied"
    ]


def _facts(view: View) -> list[Line]:
    head = headline(view)
    found = [fact("iteration", numbers.seconds(phases.iteration_s(view)), VALUE)]
    found += [(Span(cost),)] if (cost := energy(view)) else []
    rates = [n for n in view.store.names(view.source) if n.endswith("_per_s") and n != head.name]
    found += [
        fact(label_of(n.removesuffix("_per_s")) + "/s", number(recent(view, view.source, n, 2.0)), VALUE)
        for n in rates
    ]
    return found
