"""The summary of a run: throughput, learning metrics and the diagnosis in one line. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hoptui.domain.tuning import Diagnosis
from hoptui.presentation import diagnosis, numbers
from hoptui.tui.charts.plot import Mark
from hoptui.tui.components import figures, phases
from hoptui.tui.components.events import last_change, unmeasured
from hoptui.tui.components.figures import VALUE, energy, fact, headline, label_of, number, recent
from hoptui.tui.components.phases import OTHER, PhaseBar, Split
from hoptui.tui.run_control import advised
from hoptui.tui.snapshot import SECOND, View
from hoptui.tui.styled_text import Line, Span, first_fitting, pack, width_of

TUNER = "T"
"""The tuner's sign at the top of a mark. It tells trials from commands of users also without colours."""


def throughput_lines(view: View, width: int) -> list[Line]:
    """The headline and the other rates; under it what the last change did."""
    head = headline_rate(view)
    facts = next(iter(pack(_facts(view), max(0, width - width_of(head)), "  ")), ())
    below = last_change(view, width) or unmeasured(view, "no change of a knob")
    return [(*head, *facts), below]


def headline_rate(view: View) -> Line:
    """`512 k env steps/s`."""
    head = headline(view)
    return Span(numbers.si(head.value), "strong"), Span(f" {head.unit}   ", "dim")


def metrics_age(view: View) -> str:
    """How old the values are, where that must be known."""
    age_s = view.age_s(view.source) if view.metrics_stale else None
    return f"values are {numbers.duration(age_s)} old" if age_s is not None and age_s >= 1 else ""


def change_marks(view: View) -> list[Mark]:
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


FIRST = (
    "episode_return", "return", "reward", "accuracy", "validation_loss", "loss", "train_loss", "policy_loss",
)  # fmt: skip
_COUNTS = ("env_steps", "samples", "tokens", "episodes", "lr", "iteration_s")


def learning_metrics(view: View) -> list[str]:
    """What the learning chart can show, the most telling first: no phases, rates or counts."""
    names = [
        name
        for name in view.store.names(view.source)
        if not name.startswith("phase/")
        and not name.endswith(("_per_s", "_total"))
        and name not in _COUNTS
        and (not view.run or name != view.run.headline)
    ]
    first = [name for name in FIRST if name in names]
    return first + [name for name in names if name not in first]


def learning_lines(view: View, chosen: str, width: int) -> list[Line]:
    """The chosen metric, then as many others as fit in a line; a hint if the run has logged nothing."""
    if view.run is None:
        return [figures.missing_line(view, "looking for the run"), ()]
    if not chosen:
        return [
            (Span("nothing is logged yet", "dim"),),
            (Span("run.log(loss=…) in its loop is shown here", "faint"),),
        ]
    latest = view.store.latest(view.source)
    unit = numbers.clean(view.run.units.get(chosen, ""), 16) if view.run else ""
    head: Line = (Span(number(latest.get(chosen)), "strong"), Span(f" {unit or label_of(chosen)}", "dim"))
    evaluation = latest.get("evaluation_return")
    if evaluation is not None and chosen != "evaluation_return":
        head = (*head, Span("   evaluation ", "dim"), Span(number(evaluation), "", VALUE))
    shown = (chosen, "evaluation_return")
    others = [
        fact(label_of(name), number(latest.get(name)), VALUE)
        for name in learning_metrics(view)
        if name not in shown
    ]
    return [head, next(iter(pack(others, width, "  ")), ())]


SIGN = Span("▸ ", "key")
UNKNOWN = "what holds the run back is not known"


def diagnosis_line(view: View, split: Split, width: int) -> Line:
    """`▸ launch-bound: SM active 5.6 % · busy 32 % try compile off → default`, as much as fits; else
    `_phase`.
    """
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
    """The largest phase, as much as fits, or why it is unknown.

    Example: `▸ largest phase: rollout 61 % of an iteration (env 38 %) · over the last 30 s`.
    """
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
