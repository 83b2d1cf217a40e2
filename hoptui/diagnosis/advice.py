"""What might help against what limits a run: which knob, which way, what it costs. Only knobs that the run
has, inside their bounds.

Those that do not change what is learned come first; the batch of a run that waits for its input or its
environments is never raised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hoptui.diagnosis.causes import FULL_SM, HALF_EMPTY, Means, noticed, room_on_host
from hoptui.diagnosis.knob_roles import (
    Direction,
    Role,
    allowed,
    divided,
    faster,
    knob_for,
    multiplied,
    number,
    pieces,
    switched_off,
    switched_on,
)
from hoptui.diagnosis.line_cures import line_cures
from hoptui.diagnosis.window import ObservationWindow
from hoptui.domain.diagnosis import Advice, Verdict
from hoptui.domain.facts import fact
from hoptui.domain.knobs import KnobState, KnobValue

CPU_FULL = 0.9
FIRST_WORKERS = 4
MOST = 3
WORKERS: dict[Verdict, Role] = {"data-bound": "workers", "env-bound": "env_workers"}
"""What there may be more of where a GPU waits."""
NOT_CURED: frozenset[Verdict] = frozenset(("healthy", "unknown", "memory-unused"))
"""Without a knob there is nothing to advise: memory is unused only where a knob could use it."""


def advise(verdict: Verdict, window: ObservationWindow) -> tuple[Advice, ...]:
    """What to try, the best first, three at most; one without a knob where the run has none that helps."""
    seen = Means(window.gpus)
    found = [*_of_knobs(verdict, window, seen), *_of_readers(verdict, window, seen)]
    found.sort(key=lambda advice: advice[0].spec.effect != "speed")
    advised = [_advice(*each) for each in found if each[0].spec.cost != "restart"][:MOST]
    if cures := [Advice(fact=cure) for cure in line_cures(verdict, window, seen)]:
        return (*advised[: MOST - 1], *cures[:1])
    if not advised and verdict not in NOT_CURED:
        return (Advice(fact=fact("advice.without_a_knob", verdict=verdict)),)
    return tuple(advised)


Candidate = tuple[KnobState, Direction, KnobValue]


def _of_knobs(verdict: Verdict, window: ObservationWindow, seen: Means) -> Iterator[Candidate]:
    match verdict:
        case "launch-bound":
            yield from _switched("compile", window)
            yield from _switched("graphs", window)
            yield from _larger_pieces(window)
            yield from _raised("minibatch", window)
            yield from _raised("envs", window)
            if pieces(window.knobs) == 1:
                yield from _raised("batch", window)
        case "data-bound":
            yield from _more_workers("workers", window)
            if number(knob_for("workers", window.knobs)):
                yield from _raised("prefetch", window)
            yield from _switched("pin", window)
        case "env-bound":
            yield from _more_workers("env_workers", window)
        case "memory-bandwidth-bound":
            yield from _switched("compile", window)
            yield from _precision(window)
        case "compute-bound":
            yield from _precision(window)
            yield from _no_recomputing(window)
        case "power-limited":
            yield from _switched("compile", window)
            yield from _larger_pieces(window)
            yield from _precision(window)
            yield from _no_recomputing(window)
            if pieces(window.knobs) == 1 and seen.sm < FULL_SM:
                yield from _raised("batch", window)  # more samples share what a step draws besides
        case "communication-bound":
            yield from _raised("minibatch", window)
            yield from _raised("batch", window)
        case "memory-unused":
            yield from _larger_pieces(window)
            yield from _switched("compile", window)
        case "healthy":
            yield from _switched("compile", window)


def _of_readers(verdict: Verdict, window: ObservationWindow, seen: Means) -> Iterator[Candidate]:
    """Against what a GPU waits for now and then, whatever limits it most."""
    for waits, _ in noticed(window, seen):
        if verdict not in ("unknown", waits):
            yield from _more_workers(WORKERS[waits], window)


def _larger_pieces(window: ObservationWindow) -> Iterator[Candidate]:
    """The same batch in fewer pieces. With micro_batch, grad_accum follows: one of the two is enough."""
    factor = min(pieces(window.knobs), 2 if _room(window) else room_on_host(window))
    if factor < 2:
        return
    micro, accumulation = knob_for("micro_batch", window.knobs), knob_for("accumulation", window.knobs)
    if micro is not None and (value := multiplied(micro, factor)) is not None:
        yield micro, "up", value
    elif accumulation is not None and (value := divided(accumulation, factor)) is not None:
        yield accumulation, "down", value


def _raised(role: Role, window: ObservationWindow) -> Iterator[Candidate]:
    knob = knob_for(role, window.knobs)
    value = multiplied(knob) if knob is not None else None
    if knob is None or value is None or (role != "prefetch" and not _room(window)):
        return
    if role == "minibatch" and isinstance(value, int) and value > _rollout(window):
        return  # there are no more samples than that between two updates
    yield knob, "up", value


def _switched(role: Role, window: ObservationWindow) -> Iterator[Candidate]:
    knob = knob_for(role, window.knobs)
    value = switched_on(knob) if knob is not None else None
    if knob is not None and value is not None:
        yield knob, "to", value


def _more_workers(role: Role, window: ObservationWindow) -> Iterator[Candidate]:
    """Twice the processes, while there are cores for them; some where there are none. Of choices, the one
    next to that."""
    knob = knob_for(role, window.knobs)
    if knob is None or window.host_cpu >= CPU_FULL:
        return
    now, most = number(knob) or 0, knob.spec.max
    cores = window.cpus // max(1, window.world) or math.inf
    wanted = min(2 * (now or FIRST_WORKERS // 2), cores, math.inf if most is None else most)
    above = sorted(c for c in knob.spec.choices if isinstance(c, int) and now < c <= cores)
    if above:
        wanted = max((c for c in above if c <= wanted), default=above[0])
    value = allowed(knob, int(wanted)) if wanted > now else None
    if value is not None:
        yield knob, "up", value


def _precision(window: ObservationWindow) -> Iterator[Candidate]:
    knob = knob_for("precision", window.knobs)
    value = faster(knob) if knob is not None else None
    if knob is not None and value is not None:
        yield knob, "to", value


def _no_recomputing(window: ObservationWindow) -> Iterator[Candidate]:
    knob = knob_for("recompute", window.knobs)
    value = switched_off(knob) if knob is not None and _room(window) else None
    if knob is not None and value is not None:
        yield knob, "to", value


def _room(window: ObservationWindow) -> bool:
    """Whether something twice as large would fit; not known is no."""
    used = [gpu.memory for gpu in window.gpus]
    return bool(used) and all(share < HALF_EMPTY for share in used)


def _rollout(window: ObservationWindow) -> float:
    """Samples between two updates, as far as the knobs show."""
    envs, length = number(knob_for("envs", window.knobs)), number(knob_for("rollout", window.knobs))
    return math.inf if envs is None or length is None else envs * length * max(1, window.world)


def _advice(knob: KnobState, direction: Direction, value: KnobValue) -> Advice:
    spec = knob.spec
    took = {"took_s": float(f"{knob.took_s:.2g}")} if knob.took_s is not None else {}
    what = fact(
        "advice.knob",
        knob=spec.name,
        before=knob.value,
        value=value,
        effect=spec.effect,
        cost=spec.cost,
        **took,
    )
    return Advice(knob=spec.name, direction=direction, value=value, fact=what)
