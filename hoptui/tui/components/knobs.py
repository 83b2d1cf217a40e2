"""Knobs as lines: value, bounds, staged value, and what a new value implies. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from itertools import pairwise
from types import MappingProxyType

from hoptui.domain.enumerations import ByValue
from hoptui.domain.knobs import KnobSpec, KnobState, KnobValue, Relation, relations
from hoptui.presentation import numbers, vocabulary
from hoptui.protocol.messages import FINAL, CommandRecord
from hoptui.tui.components import figures, tuner
from hoptui.tui.components.events import course, effect, stages
from hoptui.tui.components.figures import current
from hoptui.tui.run_control import Staged
from hoptui.tui.snapshot import SECOND, View
from hoptui.tui.styled_text import TRACK, Line, Span, first_fitting, width_of

RANKS = "ranks"
"""In an invariant the number of processes, which no knob changes."""
BUCKETS = 256


def declared(view: View, knob: KnobState, wanted: KnobValue | None, width: int) -> list[tuple[str, str]]:
    """What `wanted` implies by the knob's declaration, each as (label, text).

    That is: what `keeps` its value, which knob changes for it, and what the value `implies`. If `width` cells
    are too few for a formula, its figures remain. `wanted` None or the value in effect: what holds now.
    """
    number = wanted if isinstance(wanted, int | float) and wanted != knob.value else 0
    return [
        ("implies", _derived(view, knob, one, number, width))
        if one.name
        else ("keeps", _invariant(view, knob, one, number, width))
        for one in relations(knob.spec.keeps)
    ]


def _invariant(view: View, knob: KnobState, kept: Relation, number: float, width: int) -> str:
    """`64 = grad_accum × micro_batch: grad_accum 4 → 8`; only the words without known numbers."""
    own, formula = knob.spec.name, numbers.clean(kept.text, 60)
    product = _result(view, kept)
    if not product:
        return formula
    whole = formula if formula == own else f"{_shown(product)} = {formula}"
    follower = "" if kept.under else _follower(view, knob, kept.over)
    if own not in kept.over or not follower or not number:
        return whole
    before = _factor(view, follower)
    after = _about(before * _factor(view, own) / number)
    follows = f"{numbers.clean(follower)} {_shown(before)} → {after}"
    shown = (f"{whole}: {follows}", f"{_shown(product)}: {follows}")
    return next((one for one in shown if len(one) <= width), follows)


def _derived(view: View, knob: KnobState, one: Relation, number: float, width: int) -> str:
    """`rollout 512 → 1 024 = num_envs × rollout_len`; only the words if it does not follow from known
    numbers.
    """
    before = _result(view, one)
    if not before:
        return numbers.clean(one.text, 60)
    figures = f"{numbers.clean(one.name, 20)} {_about(before)}"
    if number and knob.spec.name in (*one.over, *one.under):
        figures += f" → {_about(_result(view, one, {knob.spec.name: number}))}"
    whole = f"{figures} = {numbers.clean(one.text.rpartition('=')[2].strip(), 60)}"
    return whole if len(whole) <= width else figures


def memory(view: View, knob: KnobState, wanted: KnobValue | None) -> Line:
    """The known GPU memory of the value, and the free memory; empty for a knob that allocates nothing.

    The forecast is what the run used with this very value before. Nothing is extrapolated.
    """
    if knob.spec.cost == "free" or view.run is None:
        return ()
    if not view.gpus():
        return (Span("unknown: no measured GPU in this run", "dim"),)
    free = current(view, f"derived/{view.run.run}").get("memory_headroom_bytes")
    room = (
        f"{numbers.gib(free)} GiB free on the fullest GPU" if free is not None else "what is free is unknown"
    )
    if wanted is None or wanted == knob.value:
        return (Span(room, "" if free is not None else "dim"),)
    held = held_with(view, knob, wanted)
    value = numbers.value(wanted, knob.spec)
    if held is None:
        return Span(f"unknown with {value}; ", "dim"), Span(room)
    return Span(f"{numbers.gib(held)} GiB at most with {value} before; "), Span(room, "dim")


def held_with(view: View, knob: KnobState, value: KnobValue) -> float | None:
    """The most GPU memory (bytes) that this epoch of the run used with `value`; None if unknown."""
    run = view.run
    series = view.store.series(f"derived/{run.run}", "gpu_memory_bytes") if run else None
    if run is None or series is None:
        return None
    changes = sorted(
        (c.settled, c.before, c.effective)
        for c in view.commands()
        if c.knob == knob.spec.name and c.epoch == run.epoch and c.settled and c.effective is not None
    )
    began = view.now - round((view.wall - run.started_wall) * SECOND)
    first = changes[0][1] if changes else knob.value
    turns = [(began, first), *((t, effective) for t, _, effective in changes), (view.now, None)]
    most = math.nan
    for (start, held), (end, _) in pairwise(turns):
        if held == value and end > start:
            known = (high for high in series.window(start, end, BUCKETS).high if high == high)
            most = max([most, *known], key=lambda size: -1.0 if size != size else size)
    return None if most != most else most


def must_ask(spec: KnobSpec) -> bool:
    """Whether a change needs a question first: it changes what is learned, or it costs more than a step."""
    return spec.effect == "learning" or spec.cost in ("rebuild", "restart")


def consequences(knobs: list[KnobState]) -> list[str]:
    """What changes of these knobs do to the run, in sentences; each only once."""
    found = []
    names = [numbers.clean(knob.spec.name, 40) for knob in knobs if knob.spec.effect == "learning"]
    if names:
        verb = "changes" if len(names) == 1 else "change"
        found.append(
            f"{' and '.join(names)} {verb} what is learned: from there on, training differs from "
            "an unchanged run."
        )
    for knob in knobs:
        if knob.spec.cost == "rebuild":
            last = vocabulary.took(knob.took_s)
            long = f"the last change {last}" if last else "how long is not known yet"
            found.append(
                f"{numbers.clean(knob.spec.name)}: what depends on it is built anew, "
                f"be it the model, the optimizer or the readers of data; training waits ({long})."
            )
        if knob.spec.cost == "restart":
            found.append(
                f"{numbers.clean(knob.spec.name)}: the run restarts from a checkpoint; {vocabulary.RESTART}."
            )
    return found


def _follower(view: View, knob: KnobState, factors: tuple[str, ...]) -> str:
    """The knob that changes with this one: the other one with the same invariant, else the only other factor;
    "" if unclear.
    """
    others = [name for name in factors if name not in (knob.spec.name, RANKS)]
    twins = [
        name for name in others if (k := view.knob(name)) is not None and k.spec.keeps == knob.spec.keeps
    ]
    found = twins or others
    return found[0] if len(found) == 1 else ""


def _result(view: View, one: Relation, wanted: Mapping[str, float] = MappingProxyType({})) -> float:
    """What a relation comes to with the values in effect or `wanted`, 0 where a factor is not known."""
    over, under = (
        math.prod(wanted.get(name) or _factor(view, name) for name in names)
        for names in (one.over, one.under)
    )
    return over / under if under else 0.0


def _factor(view: View, name: str) -> float:
    """A factor of an invariant as it is now, 0 where it is no number that is known."""
    if name == RANKS and view.run is not None:
        return view.run.world
    knob = view.knob(name)
    return knob.value if knob is not None and isinstance(knob.value, int | float) else 0


def _about(number: float) -> str:
    """Sizes are whole: what does not divide evenly is about so much."""
    if not math.isfinite(number):
        return "a huge number"
    return _shown(number) if number == int(number) else f"about {number:.2g}"


def _shown(number: float) -> str:
    return numbers.value(int(number) if number == int(number) else number)


RECENT_S = 30.0  # how long the outcome of a change stays beside its knob
NUMBERS = ("int", "float")  # the kinds of knobs whose values are never cut
LABEL = 9
DETAIL = 8  # lines for the details of the chosen knob
SHORT_COSTS = ByValue(
    {"free": "", "shape": "new shape", "rebuild": "rebuild", "restart": "restart"}, lambda _: "unknown"
)


def rows(view: View, width: int, cursor: int, staged: Iterable[Staged] = ()) -> list[Line]:
    """One line per knob: the value in effect, then what is pending or staged.

    Without either: effect, cost, and the tuner's use of the knob or its bounds.
    """
    if view.run is None:
        return [figures.missing_line(view, "looking for the run")]
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


def detail_height(room: int, count: int) -> int:
    """The lines of `room` that the details take beside a list of `count` knobs.

    They take what the list leaves, and at least two fifths: a long list shows a part.
    """
    return min(DETAIL, max(room * 2 // 5, room - count))


def detail(
    view: View, knob: KnobState, width: int, unsent: Staged | None = None, *, most: int = DETAIL
) -> list[Line]:
    """The details of the chosen knob, in up to `most` lines; its description takes two of them if there is
    room.

    Without room, the last change stays longer than version, cost and effect.
    """
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
    if last is None:
        del found[max(1, most - 2) :]
    else:
        del found[max(1, most - 3) :]
        asked = vocabulary.change(last).removeprefix(spec.name).strip()
        whole, brief, how = effect(last), effect(last, brief=True), f"  {vocabulary.stage_text(last)}"
        parts = [(how, whole), ("", whole), ("", brief)] if whole else [(how, whole)]
        shown = [_labelled("last", Span(f"{asked}{stage}  "), *rest) for stage, rest in parts]
        found.append(first_fitting(shown, width))
    implied = declared(view, knob, None, width - LABEL)[: max(0, most - 2 - len(found))]
    found[3:3] = [_labelled(label, Span(text)) for label, text in implied]
    lines = 2 if len(found) + 3 <= most else 1
    description = textwrap.wrap(about, max(8, width), max_lines=lines, placeholder=" …")
    return [(Span(TRACK * width, "track"),), *((Span(line),) for line in description), *found]


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
        *worded, mark = stages(pending)
        return first_fitting([*((wanted, stage) for stage in worded), (wanted, mark), (mark,)], width)
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
        became = course(outcome, width)  # the reason is in the events
        return first_fitting([(*became, Span(f"  {remark}", "dim")), became], width) if remark else became
    spec = knob.spec
    start = (Span(spec.effect, "dim", 9), Span(SHORT_COSTS[spec.cost], "dim", 10))
    if remark:
        said = Span(remark, "2")
        return first_fitting([(*start, said), (start[0], said), (said,)], width)
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
