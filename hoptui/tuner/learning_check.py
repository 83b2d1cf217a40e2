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
"""Losses in a group, and the groups before a jump: it must be larger than the changes between them."""
LARGER = 1.5

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
    names = [lever.name for lever in judged]
    before, after = _sides(observation.samples, step)
    if len(after) >= COUNTS_ENOUGH and before:
        low, high = min(before) * (1 - SAME_COUNT), max(before) * (1 + SAME_COUNT)
        if not low <= median(after) <= high:
            return fact("trial.samples_changed", knobs=names, before=median(before), after=median(after))
    before, after = _sides(observation.losses, step, GROUPS * SEVERAL)
    if len(after) >= LOSSES_ENOUGH and len(before) >= BEFORE and min(*before, *after) > 0:
        groups = [
            math.log(median(before[i : i + SEVERAL]))
            for i in range(len(before) % SEVERAL, len(before), SEVERAL)
        ]
        changes = [b - a for a, b in pairwise(groups)]
        new = median(after[:SEVERAL])
        jump = math.log(new) - groups[-1] - changes[-1]  # a loss that falls falls on
        beyond = not min(before) <= median(after) <= max(before)
        if beyond and abs(jump) > max(math.log(SAME_LOSS), LARGER * max(map(abs, changes))):
            return fact("trial.loss_changed", knobs=names, before=math.exp(groups[-1]), after=new)
    return None


def _sides(values: Values, step: int, most: int = BEFORE) -> tuple[list[float], list[float]]:
    before = [value for iteration, value in values if iteration < step]
    return before[-most:], [value for iteration, value in values if iteration > step]
