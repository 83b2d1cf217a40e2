"""Whether a knob that is declared as speed changes what is learned: the work of an iteration, or the loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    before, after = _sides(observation.losses, step)
    if len(after) >= LOSSES_ENOUGH and len(before) == BEFORE and min(before) > 0:
        factor = median(after) / median(before)
        beyond = not min(before) <= median(after) <= max(before)
        if beyond and not 1 / SAME_LOSS <= factor <= SAME_LOSS:
            return fact("trial.loss_changed", knobs=names, before=median(before), after=median(after))
    return None


def _sides(values: Values, step: int) -> tuple[list[float], list[float]]:
    before = [value for iteration, value in values if iteration < step]
    return before[-BEFORE:], [value for iteration, value in values if iteration > step]
