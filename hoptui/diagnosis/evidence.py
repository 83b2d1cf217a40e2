"""What verdicts are made of: means over a run's GPUs, scales from doubt to certainty, figures in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hoptui.diagnosis.window import GpuWindow
from hoptui.domain.quantities import percent
from hoptui.domain.tuning import Verdict

MOST_CERTAIN = 0.95
UNSURE = 0.6
"""The most that is believed of a verdict that rests on little, or on evidence that another cause would leave
as well."""


class Finding(NamedTuple):
    """A verdict that may be; `lost` is the share of the time, or of the speed, that it explains."""

    verdict: Verdict
    confidence: float
    lost: float
    evidence: tuple[str, ...]

    def at_most(self, confidence: float) -> Finding:
        """The same, with no more confidence than that."""
        return self._replace(confidence=min(self.confidence, confidence))


class ConfidenceScale(NamedTuple):
    """From where on a cause is named, at even odds, and where it is all but certain."""

    named: float
    certain: float

    def confidence(self, value: float) -> float:
        """0 below the first figure (and for NaN), 0.5 at it, `MOST_CERTAIN` from the second on."""
        if not value >= self.named:
            return 0.0
        return 0.5 + (MOST_CERTAIN - 0.5) * min(1.0, (value - self.named) / (self.certain - self.named))


class Means:
    """Readings of `GpuWindow`, averaged over those of the run's GPUs that have them; NaN where none has.

    `memory` is that of the fullest; `uploading` the share of what PCIe carries.
    """

    def __init__(self, gpus: Sequence[GpuWindow]) -> None:
        def over(reading: Callable[[GpuWindow], float]) -> float:
            known = [value for value in map(reading, gpus) if math.isfinite(value)]
            return sum(known) / len(known) if known else math.nan

        self.sm = over(lambda g: g.sm)
        busy = over(lambda g: g.busy)
        self.busy = busy if busy == busy else self.sm  # a MIG instance has counters and no busy time
        self.tensor = over(lambda g: g.tensor)
        self.fp32 = over(lambda g: g.fp32)
        self.dram = over(lambda g: g.dram)
        self.power_w = over(lambda g: g.power_w)
        self.power_limit_w = over(lambda g: g.power_limit_w)
        self.clock_mhz = over(lambda g: g.clock_mhz)
        self.clock_max_mhz = over(lambda g: g.clock_max_mhz)
        self.clock_lost = over(lambda g: g.clock_lost)
        self.capped = over(lambda g: g.capped)
        self.memory = max((g.memory for g in gpus if g.memory == g.memory), default=math.nan)
        self.upload = over(lambda g: g.upload)
        self.uploading = over(lambda g: g.uploading)
        self.link = over(lambda g: g.link)

    @property
    def idle(self) -> float:
        """The share of the time in which no kernel runs; 1 where that is not known: then nothing speaks
        against waiting."""
        return 1 - self.busy if self.busy == self.busy else 1.0


def share_text(what: str, share: float) -> tuple[str, ...]:
    """`SM active 5.6 %`, nothing where it is not known."""
    return (f"{what} {percent(share)}",) if math.isfinite(share) else ()


def watts(seen: Means) -> tuple[str, ...]:
    """`693 of 700 W`, as far as it is known."""
    if not math.isfinite(seen.power_w):
        return ()
    limit = f" of {seen.power_limit_w:.0f}" if seen.power_limit_w > 0 else ""
    return (f"{seen.power_w:.0f}{limit} W",)


def clocks(mhz: float, highest: float) -> tuple[str, ...]:
    """`clock 1365 of 1980 MHz`, as far as it is known."""
    return (f"clock {mhz:.0f} of {highest:.0f} MHz",) if math.isfinite(mhz) and highest > 0 else ()
