"""Learning-rate schedules: pure functions of the progress of training."""

from __future__ import annotations

import math

ONECYCLE_START = 1 / 25
"""Where the one-cycle policy begins, as a part of the peak (Smith and Topin 2017; torch's `div_factor`)."""


def scale(schedule: str, step: int, total: int, *, warmup: float, cooldown: float, final: float) -> float:
    """The learning rate as a part of its peak.

    Args:
        schedule: `constant`, `cosine`, `onecycle`, or `wsd` (warm-up, stable, decay: Hu et al. 2024).
        step: from 0; beyond the last one, the last one's.
        total: steps of the whole run.
        warmup: part of the steps in which it rises: linearly, from 1/25 on a cosine under `onecycle`.
        cooldown: part of the steps in which `wsd` falls linearly at the end.
        final: what the last step has; `constant` does not fall.
    """
    last = total - 1
    step = min(step, last)
    rise = min(round(warmup * total), last)
    if step < rise:
        if schedule == "onecycle":
            return _cosine(ONECYCLE_START, 1.0, step / rise)
        return (step + 1) / (rise + 1)
    match schedule:
        case "cosine" | "onecycle":
            return _cosine(1.0, final, (step - rise) / max(1, last - rise))
        case "wsd":
            fall = max(rise, last - round(cooldown * total))
            return 1.0 if step <= fall else 1.0 + (final - 1.0) * (step - fall) / (last - fall)
    return 1.0


def _cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2
