"""Whether a knob that is declared as speed changes what is learned: the work of an iteration, or the loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from hoptui.domain.facts import Fact, fact
from hoptui.tuner.observation import Observation
from hoptui.tuner.search.space import Lever

BEFORE = 15
"""The newest iterations before a change that are compared with those after it."""
COUNTS_ENOUGH, LOSSES_ENOUGH = 3, 15
"""Iterations after a change that suffice. Losses scatter."""
SAME_COUNT = 0.02
"""Counts of the same work differ by less than this, beyond what they did before: batches of text vary."""
SAME_LOSS = 1.5
"""A loss that jumps by more than this factor has another scale. Learning takes longer."""
SEVERAL, GROUPS = 7, 9
"""Losses in a group, and the groups before a jump that are looked at."""
LARGER = 1.5
"""A jump must be so many times as large as the changes between these groups."""

Values = Sequence[tuple[int, float]]


def changed_learning(levers: Iterable[Lever], observation: Observation, step: int) -> Fact | None:
    """Return what a change changed besides the speed, None if nothing is known of that.

    A lever that keeps a product, or that may affect learning, is not judged.

    Args:
        step: The first iteration with the new values.
    """
    judged = [lever for lever in levers if lever.partner is None and not lever.learning]
    if not judged:
        return None
    sides = _other_work(observation.samples, step)
    if sides is not None:
        return fact("trial.samples_changed", knobs=[lever.name for lever in judged], **sides)
    sides = _other_loss(observation.losses, step)
    if sides is not None:
        return fact("trial.loss_changed", knobs=[lever.name for lever in judged], **sides)
    return None


def _other_work(counts: Values, step: int) -> dict[str, float] | None:
    """Return the work of an iteration before and after, None if it is the same or unknown."""
    before, after = _sides(counts, step)
    if len(after) < COUNTS_ENOUGH or not before:
        return None
    if len(before) > 1 and all(a < b for a, b in pairwise(before)):  # a total, not the work of an iteration
        return None
    if min(before) * (1 - SAME_COUNT) <= median(after) <= max(before) * (1 + SAME_COUNT):
        return None
    return {"before": median(before), "after": median(after)}


def _other_loss(losses: Values, step: int) -> dict[str, float] | None:
    """Return the loss just before and just after, None if it has the same scale or none is known.

    A loss that falls falls on. One that scatters changes from one group of iterations to the next.
    """
    before, after = _sides(losses, step, GROUPS * SEVERAL)
    if len(after) < LOSSES_ENOUGH or len(before) < BEFORE or min(*before, *after) <= 0:
        return None
    ends = range(len(before) % SEVERAL, len(before), SEVERAL)
    groups = [math.log(median(before[i : i + SEVERAL])) for i in ends]
    changes = [b - a for a, b in pairwise(groups)]
    new = median(after[:SEVERAL])
    jump = math.log(new) - groups[-1] - changes[-1]
    beyond = not min(before) <= median(after) <= max(before)
    if not beyond or abs(jump) <= max(math.log(SAME_LOSS), LARGER * max(map(abs, changes))):
        return None
    return {"before": math.exp(groups[-1]), "after": new}


def _sides(values: Values, step: int, most: int = BEFORE) -> tuple[list[float], list[float]]:
    """Return the newest values before the iteration `step`, and those after it. It may be mixed itself."""
    before = [value for iteration, value in values if iteration < step]
    return before[-most:], [value for iteration, value in values if iteration > step]
