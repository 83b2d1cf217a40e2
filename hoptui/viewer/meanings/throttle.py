"""The reasons in a `throttle` reading: which of them it has, and which are alarms."""

from __future__ import annotations

import math

from hoptui.domain.devices import REASONS, Reason

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
