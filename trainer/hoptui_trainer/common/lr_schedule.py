"""Learning-rate schedules: pure functions of the progress of training."""

from __future__ import annotations

import math
from typing import Protocol

from hoptui_trainer.common.applicability import Circumstances, Rule
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.options import KnobValues

SCHEDULES = ("cosine", "onecycle", "wsd", "constant")
ONECYCLE_START = 1 / 25
"""Where the one-cycle policy begins, as a part of the peak (Smith and Topin 2017; torch's `div_factor`)."""


class Scheduled(Protocol):
    """A config with the knobs of a schedule."""

    lr: float
    schedule: str
    warmup: float
    warmup_steps: int
    cooldown: float
    final_lr: float


def learning_rate(config: Scheduled, step: int, total: int) -> float:
    """The learning rate of step `step` (from 0) of `total`."""
    schedule = config.schedule
    return config.lr * scale(
        schedule,
        step,
        total,
        warmup=config.warmup,
        warmup_steps=config.warmup_steps,
        cooldown=config.cooldown if schedule == "wsd" else 0.0,
        final=config.final_lr if schedule != "constant" else 1.0,
    )


def _no_cooldown(where: Circumstances) -> str:
    schedule = where.config.schedule
    return "" if schedule == "wsd" else f"schedule {schedule} has no cooldown; schedule wsd has one"


def _no_final_rate(where: Circumstances) -> str:
    if where.config.schedule != "constant":
        return ""
    return "schedule constant does not fall; schedule cosine, onecycle or wsd does"


SCHEDULE_RULES = (
    Rule(("cooldown",), _no_cooldown, by_knob=True),
    Rule(("final_lr",), _no_final_rate, by_knob=True),
)
"""When the knobs of a schedule have an effect."""


def settle_warm_up(config: Scheduled, given: KnobValues) -> None:
    """Let `--warmup` win over the steps of a checkpoint.

    Args:
        given: the knobs on the command line, which `config` has already.

    Raises:
        UsageError: `--warmup` and `--warmup-steps` are both given.
    """
    if "warmup" in given:
        if given.get("warmup_steps"):
            raise UsageError("--warmup and --warmup-steps: only one of them can be in effect, so give one")
        config.warmup_steps = 0


def scale(
    schedule: str,
    step: int,
    total: int,
    *,
    warmup: float,
    warmup_steps: int = 0,
    cooldown: float,
    final: float,
) -> float:
    """The learning rate as a part of its peak.

    `onecycle` is torch's `OneCycleLR` with `pct_start=warmup` and `div_factor=25`. `final` is
    `1 / (div_factor * final_div_factor)` there, 4e-6 by default. Momentum does not change.

    Args:
        schedule: `constant`, `cosine`, `onecycle`, or `wsd` (warm-up, stable, decay: Hu et al. 2024).
        step: from 0; beyond the last one, the last one's.
        total: steps of the whole run.
        warmup: part of the steps in which it rises: linearly, from 1/25 on a cosine under `onecycle`.
        warmup_steps: the number of those steps, also if the run ends sooner; 0: what `warmup` says.
        cooldown: part of the steps in which `wsd` falls linearly at the end.
        final: what the last step has; `constant` does not fall.
    """
    last = total - 1
    step = min(step, last)
    if schedule == "onecycle":
        peak = (warmup_steps or warmup * total) - 1
        if step <= peak and peak > 0:
            return _cosine(ONECYCLE_START, 1.0, step / peak)
        peak = max(0.0, peak)
        return _cosine(1.0, final, (step - peak) / (last - peak) if last > peak else 0.0)
    rise = warmup_steps or min(round(warmup * total), last)
    if step < rise:
        return (step + 1) / (rise + 1)
    match schedule:
        case "cosine":
            return _cosine(1.0, final, (step - rise) / max(1, last - rise))
        case "wsd":
            fall = max(rise, last - round(cooldown * total))
            return 1.0 if step <= fall else 1.0 + (final - 1.0) * (step - fall) / (last - fall)
    return 1.0


def _cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2
