"""What a change did to the throughput: gain ± interval, from the iterations before and after it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median, variance
from typing import NamedTuple

from msgspec import structs

from hoptui.diagnosis.knob_roles import reads
from hoptui.domain.facts import fact
from hoptui.domain.throughput import level, unclear, uneven, usable
from hoptui.domain.tuning import Measured
from hoptui.tuner.noise import FEW, LONGEST, Level, Noise, students_t

BLOCK = 5
MIN_BLOCKS = 3
LOOKS = (15, 30, 45, 60, 90)
PATIENT = (90, 180)
"""The looks at a change of data readers. First come the batches that the old readers had begun, then at once
those that the new readers have meanwhile read. Only many iterations together show the effect."""
LONGER = (180, 360, 720, 1440, 2880)
"""Further looks at a change where noise comes in bursts, such as neighbours on shared cores. A burst outlasts
many short iterations."""
LONGER_S = 6.0
"""A trial of a run with short iterations has those of them that take no longer than this."""
WORTH = 0.02
"""What a trial must gain. A larger setting costs memory, and a later change of the load can exceed it."""
CLEAR = 0.10
"""A trial that surely gains more than this ends after one block of iterations. So does one of slow iterations
that surely loses more."""
SLOW_S = 0.3
"""Slow iterations take at least this long. With shorter ones, a change may disturb more than the warm-up."""
LARGE = 0.5
"""An effect that is surely a gain of more than this is one of a user's change, however wide its interval is
above it. On shared cores, the end of a load often looks like a gain of less."""
WARM_UP = 5
"""Iterations after a change that are ignored: caches, recompilation and workers that start distort them."""
FINE_ENOUGH = 0.02
SEVERAL = 45
"""Iterations that a run which waits for data needs before a result is final. Workers deliver in turns, and
the next wait is for all of them."""
OUTERMOST, ENOUGH = 4.0, 10
"""Blocks lie within this many standard deviations of the median. Fewer blocks than `ENOUGH` are not
judged."""
WORTH_WAITING = 0.9
"""Under noise in bursts, a further look must be expected to shorten the interval to this much of it."""
ALIKE = 4.5
"""Two settings of a run are taken to vary alike unless one has more than this many times the variance of the
other. With noise of equal size, three blocks beside nine exceed that in 5 of 100 cases (F of 2 and 8)."""
QUARTILE = 0.6745
"""The quartile of a normal distribution, in standard deviations."""


class MeasurementPlan(NamedTuple):
    """When a change is looked at, and which question ends its measurement.

    `looks` are numbers of iterations after it. Without `worth` the question is whether there is an effect,
    and with it whether the gain is more or less than that. A gain that is surely more than `clear` ends it
    before the first look. With `slow`, so does a loss of more than that. With `brief`, there is a figure from
    the first block on. `longer` are the looks after those of a run whose noise comes in bursts. `level` is
    that of the interval at each look.
    """

    looks: Sequence[int] = LOOKS
    worth: float | None = None
    clear: float | None = None
    longer: Sequence[int] = ()
    slow: bool = False
    brief: bool = False
    level: Level = 98


def plan_for(
    knobs: Iterable[str], *, trial: bool = False, seconds: float = 0.0, brief: bool = False
) -> MeasurementPlan:
    """How a change of these knobs together is measured. A `trial` asks whether it is worth keeping, and a
    `brief` one has a figure from its first block on.

    Where iterations take few `seconds` (0: unknown), a trial may be looked at longer.
    """
    slow = any(map(reads, knobs))
    if not trial:
        return MeasurementPlan(PATIENT, longer=LONGER[1:], level=ORDINARY.level) if slow else ORDINARY
    if slow:
        return MeasurementPlan(PATIENT, WORTH)
    longer = tuple(look for look in LONGER[:-1] if 0 < look * seconds <= LONGER_S)
    return MeasurementPlan(LOOKS, WORTH, CLEAR, longer, slow=seconds >= SLOW_S, brief=brief)


ORDINARY = MeasurementPlan(longer=LONGER, level=99)
"""For changes of users. They read a figure once, so it is wrong less often than that of a trial."""


def measure(
    metric: str,
    before: Sequence[float],
    after: Sequence[float],
    plan: MeasurementPlan = ORDINARY,
    earlier: Iterable[Sequence[float]] = (),
) -> Measured:
    """The effect of a change on `metric`, given one value an iteration, oldest first, on both sides of it.

    `before` ends with the last iteration before the change; `after` starts with the first one after it, of
    which the first `WARM_UP` are dropped here. NaN, infinite, zero and negative values are dropped and not
    counted. Blocks of five are reduced to their medians, which removes spikes and most of the correlation
    between iterations, and the means of their logarithms compared by Welch's t interval (Biometrika 34,
    1947); of `before` at most as many values as the last look has are used, the newest. A run that waits for
    data in one iteration of eight has a fast median, whatever it waits: where waits count (`uneven`), a block
    lasts from one to the next and is reduced to the time that its work takes.

    The figure is taken at the looks of the `plan`. It is final at the first where the question is answered:
    the gain is larger than its interval, the interval is below 2 %, or it is the last look. More values than
    that change nothing. Where the plan asks for a worth, the answer is there once the whole interval is above
    or below it. A figure that is not final has the look that ends it, as far as known: the last of the
    `looks`, and after that the next of the `longer` ones.

    Noise in bursts makes blocks alike that follow each other. Then the interval is that of differences that
    noise alone makes (see `Noise`). Each side has as many of the blocks next to the change as make it
    shortest. The figure is final at the look from which waiting does not shorten it, the last of the `looks`
    or one of the `longer` ones. `earlier` are stretches of values with other settings: with `before` they
    show how the run varies by itself.

    Raises:
        ValueError: looks that do not rise, or the first of less than three blocks.
    """
    least = BLOCK * MIN_BLOCKS
    looks, clear, longer = plan.looks, plan.clear, plan.longer
    if looks[0] < least or any(b <= a for a, b in pairwise((*looks, *longer))):
        raise ValueError(f"looks must rise and start at {least} or later, not {(*looks, *longer)}")
    known = usable(before)
    old = known[-looks[-1] :]
    new = usable(after[WARM_UP:])
    if len(old) < least:
        few = fact("effect.too_few_before", had=len(old), least=least)
        return Measured(metric=metric, iterations=len(new), settled=True, remarks=(few,))
    past = _Past((*earlier, known))
    if len(new) < looks[0]:
        if clear is not None and len(new) >= BLOCK and not (uneven(old) or unclear(new)):
            early = _figure(metric, known, new[: len(new) // BLOCK * BLOCK], past, plan._replace(worth=clear))
            if early.settled and early.gain is not None and early.gain > clear:
                return early
            if plan.slow and early.gain is not None and early.gain + (early.interval or 0.0) < -clear:
                return early
            if plan.brief:
                return structs.replace(early, settled=False)
        so_far = fact("effect.measuring", had=len(new), least=looks[0])
        return Measured(metric=metric, before=level(old), iterations=len(new), remarks=(so_far,))
    figure = Measured()
    for look in (*looks, *longer):
        if look > len(new) or figure.settled:
            break
        figure = _figure(metric, known, new[:look], past, plan)
    if figure.settled:
        return figure
    until = next((look for look in (looks[-1], *longer) if look > figure.iterations), 0)
    return structs.replace(figure, until=until)


class _Past:
    """The stretches of values before a change."""

    def __init__(self, stretches: Iterable[Sequence[float]]) -> None:
        self._blocks = [log_blocks(stretch) for stretch in stretches]
        self._enough = sum(map(len, self._blocks)) >= FEW
        self._noise = Noise.of(self._blocks) if self._enough else None

    def noise(self, after: Sequence[float]) -> Noise | None:
        """Return the noise. If there are few blocks, those after the change count too."""
        return self._noise if self._enough else Noise.of((*self._blocks, after))


def _figure(
    metric: str, known: list[float], new: list[float], past: _Past, plan: MeasurementPlan
) -> Measured:
    """The figure of one look. `new` are the values up to it."""
    looks, worth, longer = plan.looks, plan.worth, plan.longer
    longest = (*looks, *longer)[-1]
    old, own = known[-max(looks[-1], len(new)) :], new
    waits = uneven(old) or uneven(new)
    early = unclear(new) or (waits and len(new) < SEVERAL)
    enough = len(new) >= looks[-1]
    noise = past.noise(_times(new) if waits else _medians(new))
    if noise is not None:
        before, after = _sides(noise, len(known), len(new), (*looks, *longer), plan.level)
        old, own = known[-before * BLOCK :], new[: after * BLOCK]
    if waits:
        a, b = _times(old), _times(own)
    else:
        # The newest blocks of the old values and the oldest of the new ones: the remainders are far from the
        # change.
        a, b = _medians(old[len(old) % BLOCK :]), _medians(own)
        if noise is None or noise.few:  # otherwise bursts count in full, as in the noise itself
            a, b = _tamed(a, b)
    log_gain = fmean(b) - fmean(a)
    gain = _relative(log_gain)
    half_width = _half_width(a, b, plan.level, trial=worth is not None)
    if noise is not None:
        by_noise = noise.half_width(len(a), len(b), plan.level)
        half_width = max(half_width, by_noise)
        at_last = _sides(noise, len(known), longest, (*looks, *longer), plan.level)
        later = noise.half_width(at_last[0], at_last[1], plan.level)
        enough = len(new) == longest or (enough and by_noise * WORTH_WAITING <= later)
    # The upper side of the interval is the wider one once it is no longer in logarithms: ± must hold for
    # both.
    interval = _relative(log_gain + half_width) - gain
    detectable = abs(gain) > interval or (worth is None and log_gain - half_width > math.log1p(LARGE))
    decided = detectable or interval < FINE_ENOUGH if worth is None else abs(gain - worth) > interval
    return Measured(
        metric=metric,
        before=level(old),
        after=level(own),
        gain=gain,
        interval=interval,
        detectable=detectable,
        iterations=len(new),
        settled=enough or (noise is None and decided and not early),
    )


def _sides(noise: Noise, before: int, after: int, looks: Sequence[int], level: Level) -> tuple[int, int]:
    """How many blocks on each side of a change make the shortest interval, of so many values."""
    most = min(before // BLOCK, LONGEST)
    counts = {min(look, after) // BLOCK for look in looks}
    usual = LOOKS[-1] // BLOCK
    sides = {(min(most, old), new) for new in counts for old in (new, 2 * new, 4 * new, usual)}
    return min(sorted(sides), key=lambda both: noise.half_width(both[0], both[1], level))


def log_blocks(values: Iterable[float]) -> list[float]:
    """Logarithms of the speed of blocks of iterations. Values that cannot be measured and an incomplete last
    block are dropped.
    """
    found = usable(values)
    return _times(found) if found and uneven(found) else _medians(found)


def _medians(values: Sequence[float]) -> list[float]:
    return [math.log(median(block)) for block in _fives(values)]


def _times(values: Sequence[float]) -> list[float]:
    """Blocks of whole cycles, or of five iterations each, whichever is more certain."""
    fives = [_Cycle(len(block), sum(1 / v for v in block)) for block in _fives(values)]
    return min(map(_linear, (fives, _cycles(values))), key=uncertainty)


def _linear(blocks: Sequence[_Cycle]) -> list[float]:
    """Logarithms to first order. Their mean is that of all work over all time. If bursts and waits alternate,
    plain logarithms would favour the bursts.
    """
    if not blocks:
        return []
    iterations, cost = sum(b.iterations for b in blocks), sum(b.cost for b in blocks)
    each, usual = cost / iterations, iterations / len(blocks)
    return [-math.log(each) - (b.cost - each * b.iterations) / (each * usual) for b in blocks]


class _Cycle(NamedTuple):
    """The iterations after one wait up to and including another, and their cost: the sum of the time per
    unit of each."""

    iterations: int
    cost: float


def _cycles(values: Sequence[float]) -> list[_Cycle]:
    """Cycles of at least five iterations each. Iterations before the first wait and after the last belong to
    incomplete cycles and are left out.
    """
    costs = [1 / v for v in values]
    mean = fmean(costs)
    waits = [i + 1 for i, cost in enumerate(costs) if cost > mean]
    found: list[_Cycle] = []
    start = waits[0] if waits else 0
    for end in waits:
        if end - start >= BLOCK:
            found.append(_Cycle(end - start, sum(costs[start:end])))
            start = end
    return found


def _fives(values: Sequence[float]) -> list[Sequence[float]]:
    return [values[i : i + BLOCK] for i in range(0, len(values) - BLOCK + 1, BLOCK)]


def uncertainty(blocks: Sequence[float]) -> float:
    """Half of the interval of the mean of blocks, by Student's t; infinite for less than two."""
    if len(blocks) < 2:
        return math.inf
    return students_t(len(blocks) - 1) * math.sqrt(variance(blocks) / len(blocks))


def _tamed(a: list[float], b: list[float]) -> tuple[list[float], list[float]]:
    """Both sides, with extreme blocks limited. Three spikes among five iterations are rare, but would
    outweigh everything else.

    An extreme block is moved to the limit (winsorised), at `OUTERMOST` standard deviations. The standard
    deviation comes from the median distance from each side's median. Too few blocks are left unchanged.
    """
    if len(a) + len(b) < ENOUGH:
        return a, b
    centres = median(a), median(b)
    sigma = (
        median(abs(v - centre) for side, centre in zip((a, b), centres, strict=True) for v in side) / QUARTILE
    )
    most = OUTERMOST * sigma
    tamed = [[min(max(v, c - most), c + most) for v in side] for side, c in zip((a, b), centres, strict=True)]
    return tamed[0], tamed[1]


def _half_width(a: list[float], b: list[float], level: Level, *, trial: bool = False) -> float:
    """Half of Welch's interval for the difference of two means. 0 if neither side varies at all.

    Three blocks are often alike by chance, so a side is assumed to vary at least as much as both do together.
    A single block is assumed to vary as those of the other side do. Two single blocks tell nothing: infinite.

    A `trial` of slow iterations has two or three blocks. Their own variance tells little, and the blocks
    before show how the run varies. So the variance of either side has the certainty of both together, unless
    one clearly varies more.
    """
    fa, fb = len(a) - 1, len(b) - 1
    if not fa + fb:
        return math.inf
    own_a, own_b = (variance(a) if fa else 0.0), (variance(b) if fb else 0.0)
    pooled = (fa * own_a + fb * own_b) / (fa + fb)
    va, vb = max(own_a, pooled) / len(a), max(own_b, pooled) / len(b)
    if not va + vb:
        return 0.0
    # A pooled variance has the degrees of freedom of both sides.
    own = not trial or max(own_a, own_b) > ALIKE * min(own_a, own_b)
    fa, fb = (fa if own and own_a > pooled else fa + fb), (fb if own and own_b > pooled else fa + fb)
    freedom = max(
        int((va + vb) ** 2 / (va**2 / fa + vb**2 / fb)), min(fa, fb)
    )  # its lower bound, which rounding may miss
    return students_t(freedom, level) * math.sqrt(va + vb)


def _relative(log_ratio: float) -> float:
    return math.expm1(min(log_ratio, 700.0))  # e^710 is too large for a float, and means nothing here
