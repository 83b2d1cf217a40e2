"""Why a GPU's clocks are below their maximum: the bits of the `throttle` reading in words."""

from __future__ import annotations

import math
from typing import NamedTuple

from hoptui.wire.devices import Level


class Reason(NamedTuple):
    """One bit: `word` for a narrow column, `level` how bad it is, `long` what it means in a sentence."""

    bit: int
    word: str
    level: Level
    long: str


IDLE = 0x01
REASONS = (
    Reason(0x08, "hardware slowdown", "alarm",
           "The hardware halves the clocks or more to protect itself: heat, the power supply's brake, or a current peak."),
    Reason(0x40, "too hot (hardware)", "alarm", "The hardware halves the clocks or more because the GPU or its memory is too hot."),
    Reason(0x80, "power brake", "alarm", "The server's power supply asks the GPU to halve its clocks or more."),
    Reason(0x20, "too hot", "alarm", "The driver lowers the clocks because the GPU or its memory is too hot."),
    Reason(0x04, "power cap", "info",
           "The clocks stay where the board draws no more than its power limit: usual, and no fault, under full load."),
    Reason(0x10, "sync boost", "info", "The GPU keeps to the clock of the slowest one of its sync-boost group."),
    Reason(0x02, "clocks set", "info", "Somebody has set the clocks: nvidia-smi -ac or -lgc, or a program that may."),
    Reason(0x100, "display clocks", "info", "A display that is attached keeps the clocks where they are."),
    Reason(IDLE, "idle", "info", "Nothing is being computed, so the clocks are low."),
)  # fmt: skip
"""NVML's clocks event reasons, the worst first. Source: nvmlClocksEventReasons in nvml.h."""

_MOST = 1 << 53  # a greater float is no bit mask


def reasons(mask: float | None) -> list[Reason]:
    """The reasons in a `throttle` reading, the worst first; none where it is unknown. A bit without a word is told as it is."""
    if mask is None or not math.isfinite(mask) or not 0 < mask < _MOST:
        return []
    left = int(mask)
    found = [reason for reason in REASONS if left & reason.bit]
    for reason in found:
        left &= ~reason.bit
    if left:
        found.append(
            Reason(
                left,
                f"reason 0x{left:x}",
                "warning",
                "This version of hoptui has no word for it: see nvml.h.",
            )
        )
    return found


def alarms(mask: float | None) -> list[Reason]:
    """Those reasons that nobody wants to see on a healthy GPU."""
    return [reason for reason in reasons(mask) if reason.level == "alarm"]
