"""What users want of the GPUs of a run, and whether it is so: a reading, a value, and the side to stay on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

Side = Literal["least", "most"]
Standing = Literal["unknown", "met", "missed"]

MOST_TARGETS = 16
READING = re.compile(r"[a-z0-9_]{1,40}")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A reading of the run's GPUs is to be at `least`, or at `most`, `value`, in the unit of the reading.

    With `share`, `value` is a share (0 to 1) of what the GPU has: of its memory, its power limit, or its
    highest clock.
    """

    reading: str
    value: float
    side: Side = "least"
    share: bool = False


class TargetState(msgspec.Struct, frozen=True, kw_only=True):
    """A target and how it stands.

    `mean` is the mean of the reading over the last `seconds` of training, up to the stamp `t`, on the GPU
    that is furthest on the wrong side (`gpu`, its UUID). It is in the unit of the target, None if unknown.
    `since` is the stamp from which on it stands so. `told`: a miss was reported, and not yet its end.
    """

    target: Target
    standing: Standing = "unknown"
    mean: float | None = None
    gpu: str = ""
    seconds: float = 0.0
    t: int = 0
    since: int = 0
    told: bool = False


class SetTargets(msgspec.Struct, frozen=True, kw_only=True, tag="target"):
    """A request of a viewer: set targets of a run, and remove those of the readings in `remove` (all if
    `clear`).

    A target replaces the one of the same reading and side.
    """

    id: int
    run: str
    targets: tuple[Target, ...] = ()
    remove: tuple[str, ...] = ()
    clear: bool = False


class TargetsSet(msgspec.Struct, frozen=True, kw_only=True, tag="targets"):
    """The answer to SetTargets: `granted`, or a refusal whose reason is in `code` and `fields`.

    `targets` are those of the run after it.
    """

    id: int
    run: str
    granted: bool
    code: str = ""
    fields: dict[str, Any] = {}
    targets: tuple[TargetState, ...] = ()


def valid(target: Target) -> bool:
    """Return whether a target can be judged. A viewer may send anything."""
    number = math.isfinite(target.value) and target.value >= 0
    return number and READING.fullmatch(target.reading) is not None


def changed(before: Iterable[TargetState], request: SetTargets) -> tuple[TargetState, ...]:
    """Return the targets after a request. Those that it does not name keep their state."""
    kept = {} if request.clear else {key(state.target): state for state in before}
    kept = {place: state for place, state in kept.items() if place[0] not in request.remove}
    for target in request.targets:
        known = kept.get(key(target))
        if known is None or known.target != target:
            kept[key(target)] = TargetState(target=target)
    return tuple(kept.values())


def key(target: Target) -> tuple[str, Side]:
    """Return what a target replaces another one by: its reading and its side."""
    return target.reading, target.side
