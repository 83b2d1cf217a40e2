"""What is known of one lever: how fast and how large it was with which values, and which of them are out of the question."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean, linear_regression

from hoptui.tuner.finding import percent
from hoptui.tuner.memory import MemoryModel
from hoptui.tuner.scene import Memory
from hoptui.tuner.trial import WORTH
from hoptui.wire.knobs import KnobValue
from hoptui.wire.measured import Measured

CEILING_S = 1800.0
"""What failed is not tried again for so long; the second time for twice as long, and so on."""
FARTHEST = 2.0
"""No step is larger than this factor: memory is not extrapolated farther."""
SHAPES = 8
"""Sizes of one process: torch.compile makes so many variants of a function, and then computes it eagerly for good."""
LEFT_S = 600.0
"""The same for what had gone well and was left before memory ran out."""
GAVE_WAY_S = 150.0
"""And where it did run out, in a rare step: half of a size is slow, and to run out again costs less than to stay there for long."""
SWAYS, SWAYS_S, BELIEVED = 0.15, 3.0, 2
"""By so much must the speed with the same values differ, for so many seconds, before what was refused is tried again; so often it is."""
WIDE = 0.15
"""An interval that tells too little of a gain."""
DEAR = 0.12
"""What a size may cost of the speed that is taken only because of the rarest peaks."""
OFTEN = 3.0
"""Where more of the speed is at stake, so many times as many peaks are risked."""


@dataclass
class Sway:
    """Whether the run is still as fast as it was when something was refused: on shared cores it is not for long."""

    judged: float | None = None  # the speed then; None while nothing was refused with the values in effect
    apart: int | None = None  # since when it is another one (monotonic ns)
    believed: int = 0

    def refused(self, level: float | None) -> None:
        """Something was, at this speed."""
        self.judged, self.apart = level, None

    def told(self, level: float, t: int) -> str:
        """Why what was refused says little at `t` (monotonic ns), where the same values bring `level`; "" where it says what it did."""
        if self.judged is None or self.believed >= BELIEVED:
            return ""
        change = level / self.judged - 1
        if abs(change) < SWAYS:
            self.apart = None
            return ""
        self.apart = t if self.apart is None else self.apart
        if t - self.apart < SWAYS_S * 1e9:
            return ""
        self.believed += 1
        pace = "faster" if change > 0 else "slower"
        return f"the run is {percent(abs(change))} {pace} than when it was taken back"


@dataclass
class Track:
    """What is known of one lever."""

    memory: MemoryModel = field(default_factory=MemoryModel)
    rates: dict[float, float] = field(default_factory=dict)
    refused: set[KnobValue] = field(default_factory=set)
    doubted: set[KnobValue] = field(default_factory=set)
    shapes: set[float] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)
    slower: bool = False  # a larger size surely was
    outdated: str = ""  # why what was refused need not be so any more
    again: dict[KnobValue, str] = field(default_factory=dict)  # what may be tried again, and why
    sway: Sway = field(default_factory=Sway)
    stride: int = 2
    bounds: dict[float, int] = field(default_factory=dict)  # what was too much, and until when (monotonic ns)
    waits: dict[float, float] = field(default_factory=dict)  # for how many seconds the next time
    lifted: set[float] = field(default_factory=set)  # of those, which are tried before their time is over
    firm: set[float] = field(default_factory=set)  # and which are not: that was in vain

    @property
    def ceiling(self) -> float:
        """The smallest size that is too much now, ∞ where none is."""
        return min(self.bounds.keys() - self.lifted, default=math.inf)

    def compiled(self, size: float) -> bool:
        """Whether a size costs no variant more than there may be."""
        return size in self.shapes or len(self.shapes) < SHAPES

    def gain(self, here: float, there: float, *, falling: bool) -> float | None:
        """The gain that a step is expected to bring, from what was measured; None while only one size was.

        A sample costs what it costs, and a share of what each piece costs: 1/rate = c + a/size. With `falling` the
        larger may also be the slower.
        """
        near = sorted(self.rates, key=lambda s: max(s / here, here / s))[:3]
        if len(near) < 2:
            return None
        x, y = [1 / s for s in near], [1 / self.rates[s] for s in near]
        slope = linear_regression(x, y).slope
        a = slope if falling else max(slope, 0.0)
        c = max(fmean(y) - a * fmean(x), 1e-3 * fmean(y))
        now, then = c + a / here, c + a / there
        return now / then - 1 if now > 0 and then > 0 else 0.0

    def fits(self, here: float, there: float, memory: Memory, share: float) -> bool:
        """Whether a step of size may be tried: with `share` of all memory as a rule, and with all of it at the rarest peaks."""
        if not self.memory.expects(there, memory, share):
            return False
        gain = self.gain(here, there, falling=False)
        dear = gain is not None and gain > DEAR / (1 - DEAR)
        return self.memory.holds(there, memory, often=OFTEN if dear else 1.0)

    def dropped(self, value: KnobValue, way: int, expected: float | None, found: Measured) -> None:
        """A trial of `value`, which went that `way` of size, was taken back. What told too little is tried once more.

        That is a gain of which nothing can be told, or not that it is less than what other sizes let expect.
        """
        highest = -1.0 if found.gain is None else found.gain + (found.interval or 0.0)
        lost = found.interval is None or highest < 0
        unclear = (found.interval or 0.0) > WIDE or WORTH <= (expected or 0.0) < highest
        if unclear and not lost and value not in self.doubted:
            self.doubted.add(value)
            self.again[value] = "it told too little"
            return
        self.refused.add(value)
        self.sway.refused(found.before)
        self.slower |= way > 0 and lost
        if way > 0 and lost and self.stride > 1:
            self.stride = 1  # the best may lie between
        elif way:
            self.closed.add(way)

    def sways(self, level: float, t: int) -> bool:
        """Whether what was refused is outdated from now on, because the values in effect bring `level` at `t` (monotonic ns)."""
        if self.outdated:
            return False
        self.outdated = self.sway.told(level, t)
        return bool(self.outdated)

    def bound(self, size: float, t: int, seconds: float = CEILING_S) -> None:
        """`size` was too much at `t` (monotonic ns), which holds for so many seconds, and for twice as long the next time.

        Where it was tried before its time was over, and in vain, it is too much for long: memory is given back and taken again.
        """
        vain = size in self.lifted or size in self.firm
        first = CEILING_S if vain else seconds
        wait = max(first, self.waits.get(size, 0.0))
        self.bounds[size] = t + round(wait * 1e9)
        self.waits[size] = 2 * wait
        self.lifted.discard(size)
        if vain:
            self.firm.add(size)

    def expire(self, t: int) -> None:
        """What was too much until `t` is so no more."""
        over = {size for size, until in self.bounds.items() if until <= t}
        for size in over:
            del self.bounds[size]
        self.firm -= over
        if over - self.lifted:
            self._again()
        self.lifted -= over

    def lift(self) -> None:
        """Nothing is too much any more, until it is tried, but for what others gave back and took again."""
        self.lifted = self.bounds.keys() - self.firm
        self._again()

    def _again(self) -> None:
        """More may fit than was known: what was refused may be tried once more."""
        self.refused.clear()
        self.closed.discard(1)

    def once_more(self) -> None:
        """What was refused is `outdated`: more may be better now, and it may be possible. Less is no better for that."""
        less, again = self.closed & {-1}, dict.fromkeys(self.refused, self.outdated)
        believed = self.sway.believed
        self.reopen()
        self.closed, self.again, self.sway = less, again, Sway(believed=believed)

    def reopen(self) -> None:
        """The run is not what it was: everything may be tried again."""
        self.rates.clear()
        self.refused.clear()
        self.doubted.clear()
        self.closed.clear()
        self.again.clear()
        self.slower, self.outdated, self.sway = False, "", Sway()
        self.stride = 2
