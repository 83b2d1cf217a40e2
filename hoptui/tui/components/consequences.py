"""What a value would mean besides itself: what follows by a declared invariant, the memory that was measured with it, its price.

Only what a run declared or what was measured is told; the rest is said to be unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

from hoptui.domain.knobs import KnobSpec, KnobState, KnobValue, Relation, relations
from hoptui.presentation import numbers, vocabulary
from hoptui.tui.components.figures import current
from hoptui.tui.snapshot import SECOND, View
from hoptui.tui.styled_text import Line, Span

RANKS = "ranks"
"""In an invariant the number of processes, which no knob changes."""
BUCKETS = 256


def declared(view: View, knob: KnobState, wanted: KnobValue | None, width: int) -> list[tuple[str, str]]:
    """What `wanted` would do by the knob's declaration, each as (what it is, text): what `keeps` its value and which knob gives way for
    it, and what the value `implies`. In `width` cells a formula gives way to its figures.

    None or the value in effect: what holds now.
    """
    number = wanted if isinstance(wanted, int | float) and wanted != knob.value else 0
    return [
        ("implies", _derived(view, knob, one, number, width))
        if one.name
        else ("keeps", _invariant(view, knob, one, number, width))
        for one in relations(knob.spec.keeps)
    ]


def _invariant(view: View, knob: KnobState, kept: Relation, number: float, width: int) -> str:
    """`64 = grad_accum × micro_batch: grad_accum 4 → 8`, the words alone where it is no product of known numbers."""
    own, told = knob.spec.name, numbers.clean(kept.text, 60)
    product = _result(view, kept)
    if not product:
        return told
    whole = told if told == own else f"{_shown(product)} = {told}"
    follower = "" if kept.under else _follower(view, knob, kept.over)
    if own not in kept.over or not follower or not number:
        return whole
    before = _factor(view, follower)
    after = _about(before * _factor(view, own) / number)
    follows = f"{numbers.clean(follower)} {_shown(before)} → {after}"
    shown = (f"{whole}: {follows}", f"{_shown(product)}: {follows}")
    return next((one for one in shown if len(one) <= width), follows)


def _derived(view: View, knob: KnobState, one: Relation, number: float, width: int) -> str:
    """`rollout 512 → 1 024 = num_envs × rollout_len`, the words alone where it does not follow from known numbers."""
    before = _result(view, one)
    if not before:
        return numbers.clean(one.text, 60)
    figures = f"{numbers.clean(one.name, 20)} {_about(before)}"
    if number and knob.spec.name in (*one.over, *one.under):
        figures += f" → {_about(_result(view, one, {knob.spec.name: number}))}"
    whole = f"{figures} = {numbers.clean(one.text.rpartition('=')[2].strip(), 60)}"
    return whole if len(whole) <= width else figures


def memory(view: View, knob: KnobState, wanted: KnobValue | None) -> Line:
    """What is known of the GPU memory that the value would take, and what is free; nothing for a knob that allocates nothing.

    A forecast is what the run held when it had this very value before: nothing is extrapolated.
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
    """The most GPU memory (bytes) that this epoch of the run held while the knob had `value`, None where that is not known."""
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
    """Whether a change is sent only after a question: it changes what is learned, or it costs more than a step."""
    return spec.effect == "learning" or spec.cost in ("rebuild", "restart")


def consequences(knobs: list[KnobState]) -> list[str]:
    """What changes of these knobs do to the run, in sentences; each only once."""
    found = []
    names = [numbers.clean(knob.spec.name, 40) for knob in knobs if knob.spec.effect == "learning"]
    if names:
        verb = "changes" if len(names) == 1 else "change"
        found.append(
            f"{' and '.join(names)} {verb} what is learned: from there on the run learns something else."
        )
    for knob in knobs:
        if knob.spec.cost == "rebuild":
            last = vocabulary.took(knob.took_s)
            long = f"the last change {last}" if last else "how long is not known yet"
            found.append(
                f"{numbers.clean(knob.spec.name)}: what depends on it is built anew, be it the model, the optimizer or the readers of data; "
                f"training waits ({long})."
            )
        if knob.spec.cost == "restart":
            found.append(
                f"{numbers.clean(knob.spec.name)}: the run restarts; what is still pending then is void."
            )
    return found


def _follower(view: View, knob: KnobState, factors: tuple[str, ...]) -> str:
    """The knob that gives way: the other one with the same invariant, else the only other factor; empty where that is not clear."""
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
