"""How much the speed of a run differs by itself between the two sides of a change.

A load on shared cores comes and goes. It slows tens to hundreds of iterations in a row, so blocks of
iterations that follow each other are alike. Their number says little then about how certain their mean is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import Literal, NamedTuple

ESTIMABLE = 20
"""Fewer blocks say nothing about their correlation."""
BY_CHANCE = 1.64
"""Blocks are alike by chance up to this correlation times the root of their number: 95 of 100 times."""
LONGEST = 576
"""Blocks of one side."""
DISTANCES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 288, 384)
"""Distances, in blocks, at which it is looked how much blocks differ."""
SHARE = 0.6
"""A distance counts if there are so many pairs of blocks for each block."""
GAP = 1
"""Blocks between the two sides of a change: the warm-up."""
FEW = 100
"""So few blocks show no more than that the correlation falls."""
LINE, LINES = 4, 6
"""Blocks of a stretch, and stretches, that show whether the speed drifts."""
FAR = 4
"""The second distance at which it is looked how fast the correlation falls, in blocks."""
MOST_ALIKE = 0.999
PLACEBOS = 20
"""Fewer differences say nothing about rare ones."""
LENGTHS = 2
"""Two sides are as certain as differences that do not overlap, or, where bursts are short, as so many lengths
of them."""
OVERLAP = 8
"""How many of the differences that are looked at overlap."""
Level = Literal[98, 99]
"""How many in 100 differences by noise alone lie within an interval, at one look."""
TAIL = 1.3
"""With too few differences the interval is so much wider: few differences contain a burst, but these are
large."""

# Student's t, two-sided 98 % and 99 % (t of 0.99 and 0.995) for 1 to 30 degrees of freedom: NIST/SEMATECH
# e-Handbook, section 1.3.6.7.2. Five looks at 98 % each are right 95 times in 100 together, in simulations
# with noise as correlated as iterations are (AR(1) of 0.5). With 95 % at each look, 1 in 10 changes without
# an effect would be reported as an effect.
_T: Mapping[Level, Sequence[float]] = {
    98: (
        31.821, 6.965, 4.541, 3.747, 3.365, 3.143, 2.998, 2.896, 2.821, 2.764,
        2.718, 2.681, 2.650, 2.624, 2.602, 2.583, 2.567, 2.552, 2.539, 2.528,
        2.518, 2.508, 2.500, 2.492, 2.485, 2.479, 2.473, 2.467, 2.462, 2.457,
    ),
    99: (
        63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169,
        3.106, 3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845,
        2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750,
    ),
}  # fmt: skip


def students_t(freedom: int, level: Level = 98) -> float:
    """Return the limit of the interval for at least one degree of freedom, in standard errors."""
    table = _T[level]
    return table[min(freedom, len(table)) - 1]


class Noise:
    """Noise in bursts, known from stretches of blocks between changes. `alike` is the correlation of a block
    and the next one.

    Two figures say how far two means of blocks are apart without a change, and the larger one counts. One is
    the differences themselves, wherever both sides fit into a stretch. The other is their variance by the
    semivariogram (Matheron, Economic Geology 58, 1963): half of the mean square by which two blocks differ,
    by their distance. It needs no mean of a stretch, which would follow its bursts, and reaches farther.
    From `few` blocks the semivariogram is that of a first-order autoregressive process. Where the speed
    drifts, both sides are as far apart as their middles are.
    """

    def __init__(self, stretches: Sequence[Sequence[float]], alike: float, trend: _Trend) -> None:
        self._count = sum(map(len, stretches))
        self._sums = [list(accumulate(blocks, initial=0.0)) for blocks in stretches]
        self._known: dict[tuple[int, int, Level], float] = {}
        self.few = self._count < FEW
        if self.few:
            semivariances, self._length = _autoregressive(stretches, alike)
            self._freedom = max(1, int(self._count / self._length) - len(stretches))
        else:
            found = _semivariances(stretches, self._count)
            semivariances = _between(found)
            last, most = found[-1]
            self._length = 1 + 2 * sum(1 - one / most for one in semivariances[1:last]) if most else 1.0
        self._twice = list(accumulate(accumulate(semivariances)))
        self._trend = trend

    @classmethod
    def of(cls, stretches: Iterable[Sequence[float]]) -> Noise | None:
        """Return the noise of stretches of blocks, as logarithms. None if there are too few of them, or if
        blocks that follow each other are not more alike than by chance and the speed does not drift.

        The correlation is corrected for the mean of a short stretch (Kendall, Biometrika 41, 1954).
        """
        means = [(blocks, fmean(blocks)) for blocks in stretches if len(blocks) > 1]
        apart = [[v - mean for v in blocks] for blocks, mean in means]
        count = sum(map(len, apart))
        squares = _products(apart, 0)
        if not squares or count < ESTIMABLE:
            return None
        alike = _unbiased(_products(apart, 1) / squares, len(apart) / count)
        trend = _Trend.of(apart)
        if alike < BY_CHANCE / math.sqrt(count) and not trend.drift:
            return None
        return cls(apart, max(alike, 0.0), trend)

    def half_width(self, before: int, after: int, level: Level = 98) -> float:
        """Return half of the interval for the difference of the means of so many blocks on both sides of a
        change, at most `LONGEST` on each."""
        key = before, after, level
        if key not in self._known:
            independent = self._count / min(before + after, LENGTHS * self._length)
            freedom = self._freedom if self.few else max(1, int(independent))
            variance = max(self._variance(before, after), self._trend.variance(before, after))
            found = students_t(freedom, level) * math.sqrt(variance)
            differences = [] if self.few else sorted(self._differences(before, after))
            enough = len(differences) >= PLACEBOS
            tail = found if self.few else TAIL * found
            rare = differences[level * len(differences) // 100] if enough else tail
            self._known[key] = max(found, rare)
        return self._known[key]

    def _variance(self, before: int, after: int) -> float:
        """Return the variance of that difference: how much blocks of different sides differ, less how much
        blocks of the same side do."""
        twice = self._twice
        both = twice[GAP + before + after - 1] + twice[GAP - 1]
        across = (both - twice[GAP + before - 1] - twice[GAP + after - 1]) / (before * after)
        within = twice[before - 1] / before**2 + twice[after - 1] / after**2
        return max(0.0, 2 * across - 2 * within)

    def _differences(self, before: int, after: int) -> list[float]:
        """Return by how much the means of two sides differ, wherever there was no change."""
        step = max(1, (before + after) // OVERLAP)
        return [
            abs((sums[at + GAP + after] - sums[at + GAP]) / after - (sums[at] - sums[at - before]) / before)
            for sums in self._sums
            for at in range(before, len(sums) - GAP - after, step)
        ]


class _Trend(NamedTuple):
    """The variance of `single` blocks, and the mean square `drift` by which the speed changes from block to
    block."""

    single: float
    drift: float

    @classmethod
    def of(cls, stretches: Sequence[Sequence[float]]) -> _Trend:
        """Return the trend: that of straight lines through the stretches, less what single blocks make of it.

        The drift is 0 if it is not more than by chance.
        """
        pairs = [(v, w) for blocks in stretches for v, w in pairwise(blocks)]
        single = sum((w - v) ** 2 for v, w in pairs) / 2 / max(len(pairs), 1)
        lines = [blocks for blocks in stretches if len(blocks) >= LINE]
        if len(lines) < LINES:
            return cls(single, 0.0)
        weights = [n * (n * n - 1) / 12 for n in map(len, lines)]  # sums of squared distances to the middle
        slopes = [
            sum((i - (len(blocks) - 1) / 2) * v for i, v in enumerate(blocks)) / weight
            for blocks, weight in zip(lines, weights, strict=True)
        ]
        total = sum(weights)
        drift = sum(w * slope**2 - single for w, slope in zip(weights, slopes, strict=True)) / total
        chance = single * math.sqrt(2 * len(lines)) / total
        return cls(single, drift if drift > BY_CHANCE * chance else 0.0)

    def variance(self, before: int, after: int) -> float:
        """Return the variance of the difference of the means of so many blocks on both sides of a change."""
        apart = GAP + (before + after) / 2
        return self.single * (1 / before + 1 / after) + self.drift * apart**2


def _products(stretches: Sequence[Sequence[float]], distance: int) -> float:
    return sum(v * w for blocks in stretches for v, w in zip(blocks, blocks[distance:], strict=False))


def _unbiased(alike: float, stretches_per_block: float) -> float:
    """Return a correlation, corrected for the means of stretches, which follow their bursts."""
    return alike + (1 + 3 * alike) * stretches_per_block


def _autoregressive(stretches: Sequence[Sequence[float]], alike: float) -> tuple[list[float], float]:
    """Return the semivariances of an autoregressive process, and how many of its blocks are worth one
    independent block.

    How fast the correlation falls is taken from two distances. Noise of single blocks lowers all of them
    alike.
    """
    count = sum(map(len, stretches))
    squares, near, far = (_products(stretches, distance) for distance in (0, 1, FAR))
    if near > 0 and far / squares > BY_CHANCE / math.sqrt(count):
        alike = max(alike, _unbiased((far / near) ** (1 / (FAR - 1)), len(stretches) / count))
    r = min(alike, MOST_ALIKE)
    length = (1 + r) / (1 - r)

    def of_mean(n: int) -> float:
        return (length - 2 * r * (1 - r**n) / (n * (1 - r) ** 2)) / n

    left = sum(len(blocks) * (1 - of_mean(len(blocks))) for blocks in stretches)
    variance = squares / max(left, 0.5)
    return [variance * (1 - r**distance) for distance in range(2 * LONGEST + GAP)], length


def _semivariances(stretches: Sequence[Sequence[float]], count: int) -> list[tuple[int, float]]:
    """Return some distances, and half of the mean square by which blocks so far apart differ. It never
    falls."""
    smooth = [_without_spikes(blocks) for blocks in stretches]
    found = [(0, 0.0)]
    for distance in DISTANCES:
        pairs = sum(max(0, len(blocks) - distance) for blocks in smooth)
        if pairs < SHARE * count and len(found) > 1:
            break
        squares = sum(
            (w - v) ** 2 for blocks in smooth for v, w in zip(blocks, blocks[distance:], strict=False)
        )
        found.append((distance, max(found[-1][1], squares / max(pairs, 1) / 2)))
    return found


def _without_spikes(blocks: Sequence[float]) -> Sequence[float]:
    """Return the median of each block and its neighbours: a single block is no burst."""
    if len(blocks) < 3:
        return blocks
    middle = (median(three) for three in zip(blocks, blocks[1:], blocks[2:], strict=False))
    return [blocks[0], *middle, blocks[-1]]


def _between(found: Sequence[tuple[int, float]]) -> list[float]:
    """Return the semivariance at each distance, from 0. Those after the last one rise as they did before."""
    values = [0.0]
    for (near, low), (far, high) in pairwise(found):
        values += [low + (high - low) * i / (far - near) for i in range(1, far - near + 1)]
    last = len(values) - 1
    slope = (values[-1] - values[last // 2]) / max(1, last - last // 2) if last > 1 else 0.0
    return values + [values[-1] + slope * i for i in range(1, 2 * LONGEST + GAP - last)]
