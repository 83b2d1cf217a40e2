"""What is known of one lever: how fast and how large it was with which values, and which of them are out of the question."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hoptui.tuner.memory import MemoryModel
from hoptui.wire.knobs import KnobValue

CEILING_S = 1800.0
"""What failed is not tried again for so long; the second time for twice as long, and so on."""
SHAPES = 8
"""Sizes of one process: torch.compile makes so many variants of a function, and then computes it eagerly for good."""
HELD = 1 / 3
"""For a share of that, where the run had gone well with it: memory runs out in rare steps as well."""


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
    stride: int = 2
    ceiling: float = math.inf
    until: int = 0
    ttl: float = CEILING_S

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
        mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
        spread = sum((v - mean_x) ** 2 for v in x)
        a = sum((v - mean_x) * (w - mean_y) for v, w in zip(x, y, strict=True)) / spread
        a = a if falling else max(a, 0.0)
        c = max(mean_y - a * mean_x, 1e-3 * mean_y)
        now, then = c + a / here, c + a / there
        return now / then - 1 if now > 0 and then > 0 else 0.0

    def bound(self, size: float, t: int, *, held: bool) -> None:
        """`size` was too much at `t` (monotonic ns), which holds for a time that doubles; `held`: it had gone well before."""
        self.ceiling = min(size, self.ceiling)
        self.until = t + round((HELD * self.ttl if held else self.ttl) * 1e9)
        self.ttl *= 2

    def lift(self) -> None:
        """Nothing is too much any more, until it is tried."""
        self.ceiling = math.inf
        self.refused.clear()
        self.closed.discard(1)

    def reopen(self) -> None:
        """The run is not what it was: everything may be tried again."""
        self.rates.clear()
        self.refused.clear()
        self.doubted.clear()
        self.closed.clear()
        self.slower = False
        self.stride = 2
