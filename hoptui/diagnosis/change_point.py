"""Since when a run does what it does now, from its stack samples and GPU readings. Pure; no I/O.

A window of 20 s shows a new cause late. A step is a level that the newest slots share, and that all slots
shortly before lack. The window then begins at the step. What alternates within seconds is no step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hoptui.domain.stack_kinds import Kind

SLOT_NS = 2_000_000_000
"""As long as what a message of stack samples covers."""
AFTER, BETWEEN, BEFORE = 3, 1, 7
"""The least number of slots after a step, the slots in which it may lie, and those before it. What comes
again every 20 s is no step: the usual window holds all of it."""
SLOTS = 14
"""How many of the newest slots are looked at: a step is seen at several looks."""
LEAST, APART = 0.25, 0.1
"""The least difference of the means before and after a step, and between the nearest two slots."""
SIGMAS = 4.0
"""How many standard errors the means of samples differ at least."""
FEW = 8
"""A slot with fewer samples says nothing of the training thread."""


@dataclass(frozen=True)
class ActivitySlot:
    """The stack samples of all ranks by kind in one slot, and means of GPU readings, 0 to 1."""

    kinds: Mapping[Kind, int] = field(default_factory=dict)
    readings: Mapping[str, float] = field(default_factory=dict)


def slots_since_step(slots: Sequence[ActivitySlot]) -> int | None:
    """Return how many of the newest slots are after a step, None if there is none.

    Args:
        slots: consecutive ones, the oldest first.
    """
    for after in range(AFTER, len(slots) - BETWEEN - BEFORE + 1):
        end = len(slots) - after - BETWEEN
        if _differ(slots[end - BEFORE : end], slots[-after:]):
            return after
    return None


def _differ(before: Sequence[ActivitySlot], after: Sequence[ActivitySlot]) -> bool:
    if any(_apart(old, new, LEAST) for old, new in _readings(before, after)):
        return True
    old, new = [_counts(slot) for slot in before], [_counts(slot) for slot in after]
    if any(counts.total() < FEW for counts in (*old, *new)):
        return False
    return any(_kind_differs(kind, old, new) for kind in {kind for counts in (*old, *new) for kind in counts})


def _readings(
    before: Sequence[ActivitySlot], after: Sequence[ActivitySlot]
) -> Iterator[tuple[list[float], list[float]]]:
    """Yield the readings that all slots have."""
    for name in set.intersection(*({*slot.readings} for slot in (*before, *after))):
        yield [slot.readings[name] for slot in before], [slot.readings[name] for slot in after]


def _counts(slot: ActivitySlot) -> Counter[Kind]:
    return Counter({kind: count for kind, count in slot.kinds.items() if kind != "paused"})


def _kind_differs(kind: Kind, before: Sequence[Counter[Kind]], after: Sequence[Counter[Kind]]) -> bool:
    def shares(slots: Sequence[Counter[Kind]]) -> list[float]:
        return [counts[kind] / counts.total() for counts in slots]

    def variance(slots: Sequence[Counter[Kind]]) -> float:
        total = sum(counts.total() for counts in slots)
        share = sum(counts[kind] for counts in slots) / total
        return share * (1 - share) / total

    error = math.sqrt(variance(before) + variance(after))
    return _apart(shares(before), shares(after), max(LEAST, SIGMAS * error))


def _apart(before: Sequence[float], after: Sequence[float], least: float) -> bool:
    """Whether all levels after a step are above, or all below, those before it."""
    gap = max(min(after) - max(before), min(before) - max(after))
    return gap >= APART and abs(sum(after) / len(after) - sum(before) / len(before)) >= least
