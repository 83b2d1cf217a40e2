"""Since when a run does what it does now, from its stack samples and GPU readings. Pure; no I/O.

A window of 20 s shows a new cause late. A step is a level that the newest slots share, and that all slots
shortly before lack. The window then begins at the step. What alternates within seconds is no step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hoptui.domain.kind_rules import Kind

SLOT_NS = 2_000_000_000
"""As long as what a message of stack samples covers."""
AFTER, BETWEEN, BEFORE = 3, 1, 7
"""The least number of slots after a step, the slots in which it may lie, and those before it. What comes
again every 20 s is no step: the usual window holds all of it."""
SLOTS = 16
"""How many of the newest slots are looked at: a step is seen at several looks."""
LEAST, APART = 0.25, 0.1
"""The least difference of the means before and after a step, and between the nearest two slots."""
SIGMAS = 5.0
"""How many standard errors the means of samples differ at least."""
FEW = 4
"""A slot with fewer samples is left out: on a busy machine messages come late, and a slot may have none."""


@dataclass(frozen=True)
class ActivitySlot:
    """What a run did in the slot that ends at `end` (monotonic ns): the stack samples of all ranks by kind,
    and means of GPU readings, 0 to 1.
    """

    end: int
    kinds: Mapping[Kind, int] = field(default_factory=dict)
    readings: Mapping[str, float] = field(default_factory=dict)

    @property
    def samples(self) -> Counter[Kind]:
        """The samples in which the run was not paused."""
        return Counter({kind: count for kind, count in self.kinds.items() if kind != "paused"})


def step_end(slots: Sequence[ActivitySlot]) -> int | None:
    """Return the end of the slot in which the newest step lies (monotonic ns), None if there is none.

    Args:
        slots: the oldest first.
    """
    known = [slot for slot in slots if slot.samples.total() >= FEW] or slots
    for after in range(AFTER, len(known) - BETWEEN - BEFORE + 1):
        end = len(known) - after - BETWEEN
        if _differ(known[end - BEFORE : end], known[-after:]):
            return known[-after - 1].end
    return None


def _differ(before: Sequence[ActivitySlot], after: Sequence[ActivitySlot]) -> bool:
    if any(_apart(old, new, LEAST) for old, new in _readings(before, after)):
        return True
    old, new = [slot.samples for slot in before], [slot.samples for slot in after]
    if any(samples.total() < FEW for samples in (*old, *new)):
        return False
    kinds = {kind for samples in (*old, *new) for kind in samples}
    return any(_kind_differs(kind, old, new) for kind in kinds)


def _readings(
    before: Sequence[ActivitySlot], after: Sequence[ActivitySlot]
) -> Iterator[tuple[list[float], list[float]]]:
    """Yield the readings that all slots have."""
    for name in set.intersection(*({*slot.readings} for slot in (*before, *after))):
        yield [slot.readings[name] for slot in before], [slot.readings[name] for slot in after]


def _kind_differs(kind: Kind, before: Sequence[Counter[Kind]], after: Sequence[Counter[Kind]]) -> bool:
    def shares(slots: Sequence[Counter[Kind]]) -> list[float]:
        return [counts[kind] / counts.total() for counts in slots]

    def variance(slots: Sequence[Counter[Kind]]) -> float:
        total = sum(counts.total() for counts in slots)
        share = (1 + sum(counts[kind] for counts in slots)) / (2 + total)  # few equal samples prove little
        return share * (1 - share) / total

    error = math.sqrt(variance(before) + variance(after))
    return _apart(shares(before), shares(after), max(LEAST, SIGMAS * error))


def _apart(before: Sequence[float], after: Sequence[float], least: float) -> bool:
    """Whether all levels after a step are above, or all below, those before it."""
    gap = max(min(after) - max(before), min(before) - max(after))
    return gap >= APART and abs(sum(after) / len(after) - sum(before) / len(before)) >= least
