"""The knowledge about each lever: its speed and memory by value, and which values are ruled out."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, linear_regression

from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobValue
from hoptui.domain.tuning import Limits, Measured
from hoptui.tuner.effect import CLEAR, WORTH
from hoptui.tuner.observation import MemoryReading, Observation
from hoptui.tuner.search.memory_model import ABOVE, NOTICED, MemoryModel
from hoptui.tuner.search.space import READERS, Candidate, Lever, levers

CEILING_S = 1800.0
"""A failed value is not tried again for this long. Each further failure doubles the time."""
FARTHEST = 2.0
"""No step is larger than this factor, because memory is not extrapolated farther."""
FROM_NONE = 4.0
"""The largest size of a step from 0: one process or thread is hardly faster than none."""
SHAPES = 8
"""The number of sizes in one process. torch.compile makes this many variants of a function, and then runs it
eagerly for good."""
LEFT_S = 600.0
"""The same for a size that had worked and was left before memory ran out."""
GAVE_WAY_S = 150.0
"""The same for a size that ran out of memory in a rare step. Half of a size is slow: another failure costs
less than a long time at that size."""
SWAYS, SWAYS_S, BELIEVED = 0.15, 3.0, 2
"""Refused values are tried again if the speed with the same values differs by this share, for this many
seconds. It happens at most this many times."""
TRIES = 2
"""A way of computing is tried this often, the second time beside other sizes."""
WIDE = 0.15
"""An interval wider than this leaves the gain unclear."""
UNDECIDED = 0.05
"""A trial that was cut short is unclear if its gain may be larger than this."""
DEAR = 0.12
"""The largest share of the speed that protection against the rarest peaks may cost."""
OFTEN = 3.0
"""If more speed is at stake, this many times as many peaks are accepted."""


@dataclass
class SpeedDrift:
    """Whether the run is still as fast as when a value was refused. On shared cores the speed does not stay
    the same for long."""

    judged: float | None = None  # the speed then; None while nothing was refused with the values in effect
    apart: int | None = None  # since when the speed differs (monotonic ns)
    believed: int = 0

    def refused(self, level: float | None) -> None:
        """Record that a value was refused at this speed."""
        self.judged, self.apart = level, None

    def outdated(self, level: float, t: int) -> Fact | None:
        """Why earlier refusals are out of date at `t` (monotonic ns), if the same values now bring `level`.
        None if they still hold."""
        if self.judged is None or self.believed >= BELIEVED:
            return None
        change = level / self.judged - 1
        if abs(change) < SWAYS:
            self.apart = None
            return None
        self.apart = t if self.apart is None else self.apart
        if t - self.apart < SWAYS_S * 1e9:
            return None
        self.believed += 1
        return fact("again.drift", gain=change)


@dataclass
class ParameterHistory:
    """What is known of one lever."""

    memory: MemoryModel = field(default_factory=MemoryModel)
    rates: dict[float, float] = field(default_factory=dict)
    refused: set[KnobValue] = field(default_factory=set)
    doubted: set[KnobValue] = field(default_factory=set)
    shapes: set[float] = field(default_factory=set)
    worse: set[KnobValue] = field(default_factory=set)  # ways of computing that were surely slower
    tries: Counter[KnobValue] = field(default_factory=Counter)  # of ways of computing that were not kept
    closed: set[int] = field(default_factory=set)
    slower: bool = False  # a larger size was surely slower
    outdated: Fact | None = None  # why earlier refusals may no longer hold
    again: dict[KnobValue, Fact] = field(default_factory=dict)  # values that may be tried again, and why
    sway: SpeedDrift = field(default_factory=SpeedDrift)
    stride: int = 2
    bounds: dict[float, int] = field(default_factory=dict)  # sizes too large, and until when (monotonic ns)
    waits: dict[tuple[float, bool], float] = field(default_factory=dict)  # the next seconds, by `rare` too
    lifted: set[float] = field(default_factory=set)  # those that may be tried before their time is over
    firm: set[float] = field(default_factory=set)  # those that may not: an early trial has failed
    left: set[float] = field(default_factory=set)  # sizes that ran well and were left for memory alone

    @property
    def ceiling(self) -> float:
        """The smallest size that is too large now, ∞ if none is."""
        return min(self.bounds.keys() - self.lifted, default=math.inf)

    def compiled(self, size: float) -> bool:
        """Whether a size is compiled already, or another variant is allowed."""
        return size in self.shapes or len(self.shapes) < SHAPES

    def known(self, size: float) -> bool:
        """Whether `size` was left for memory alone, and its need has been read in this process. So nothing is
        extrapolated, and its speed is known."""
        return size in self.left and size <= self.memory.largest

    def gain(self, here: float, there: float, *, falling: bool) -> float | None:
        """The expected gain of a step, from earlier measurements. None while fewer than two sizes were
        measured.

        The cost of a sample is a constant plus its share of the cost per piece: 1/rate = c + a/size. With
        `falling`, a larger size may be slower.
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

    def fits(self, here: float, there: float, memory: MemoryReading, share: float) -> bool:
        """Whether a step of size may be tried: `share` of all memory must hold its usual peaks, and all
        memory its rarest ones.

        A worst case is too high, unless the need grows faster than the size. So it may be as much as a trial
        may use.
        """
        most = min(1.0, share + ABOVE) if there > here and self.memory.worst_case else share
        if not self.memory.expects(there, memory, most):
            return False
        gain = self.gain(here, there, falling=False)
        dear = gain is not None and gain > DEAR / (1 - DEAR)
        return self.memory.holds(there, memory, often=OFTEN if dear else 1.0)

    def dropped(
        self,
        value: KnobValue,
        way: int,
        expected: float | None,
        found: Measured,
        *,
        far: bool = False,
        first: bool = False,
    ) -> None:
        """Record that a trial of `value`, in direction `way` of size, was reverted. An unclear result is
        tried once more. `far`: it was more than a factor of two away. `first`: it was a small number instead
        of 0, so a larger one may still help.

        A result is unclear if a gain is possible and the interval is wide. It is also unclear if the gain may
        be as large as other sizes predict. A larger value that was tried in place of an unclear one is not
        tried once more.
        """
        highest = -1.0 if found.gain is None else found.gain + (found.interval or 0.0)
        lost = found.interval is None or highest < 0
        unclear = (found.interval or 0.0) > WIDE or WORTH <= (expected or 0.0) < highest
        unclear |= not found.settled and highest > UNDECIDED
        second = value in self.doubted or (way > 0 and bool(self.doubted))
        if unclear and not lost and not second:
            self.doubted.add(value)
            self.again[value] = fact("again.unclear")
            return
        self.refused.add(value)
        self.tries[value] += not way
        if lost and not way:
            self.worse.add(value)
        self.sway.refused(found.before)
        self.slower |= way > 0 and lost
        if way > 0 and lost and (far or highest >= -CLEAR) and self.stride > 1:
            self.stride = 1  # the best may lie between
        elif way and (lost or not first):
            self.closed.add(way)

    def sways(self, level: float, t: int) -> bool:
        """Whether earlier refusals become out of date now, because the values in effect bring `level` at `t`
        (monotonic ns)."""
        if self.outdated is not None:
            return False
        self.outdated = self.sway.outdated(level, t)
        return self.outdated is not None

    def bound(self, size: float, t: int, seconds: float = CEILING_S, *, rare: bool = False) -> None:
        """Record that `size` was too large at `t` (monotonic ns). It is excluded for `seconds`, and for twice
        as long the next time.

        A size that failed again in an early trial is excluded for long, because others free memory and take
        it again. With `rare`, the run gave way while others had taken nothing. That is no such failure, and
        its times double on their own.
        """
        vain = not rare and (size in self.lifted or size in self.firm)
        first = CEILING_S if vain else seconds
        wait = max(first, self.waits.get((size, rare), 0.0))
        self.bounds[size] = t + round(wait * 1e9)
        self.waits[size, rare] = 2 * wait
        self.lifted.discard(size)
        if vain:
            self.firm.add(size)

    def expire(self, t: int) -> None:
        """End the exclusion of sizes whose time is over at `t`."""
        over = {size for size, until in self.bounds.items() if until <= t}
        for size in over:
            del self.bounds[size]
        self.firm -= over
        if over - self.lifted:
            self._again()
        self.lifted -= over

    def lift(self) -> None:
        """Allow all excluded sizes to be tried, except those that failed in an early trial."""
        self.lifted = self.bounds.keys() - self.firm
        self._again()

    def _again(self) -> None:
        """Allow refused values once more: more may fit than was known."""
        self.refused.clear()
        self.closed.discard(1)

    def once_more(self) -> None:
        """Allow `outdated` refusals again. A larger value may be better now, and it may fit. The reason does
        not apply to smaller values."""
        less, believed = self.closed & {-1}, self.sway.believed
        again = dict.fromkeys(self.refused, self.outdated) if self.outdated is not None else {}
        self.reopen()
        self.worse = {value for value in self.worse if self.tries[value] != 1}
        self.worse |= {value for value, count in self.tries.items() if count >= TRIES}
        self.closed, self.again, self.sway = less, again, SpeedDrift(believed=believed)

    def reopen(self) -> None:
        """Forget all results, because the run has changed: everything may be tried again."""
        self.rates.clear()
        self.refused.clear()
        self.doubted.clear()
        self.closed.clear()
        self.again.clear()
        self.left.clear()
        self.slower, self.outdated, self.sway = False, None, SpeedDrift()
        self.stride = 2


MIXED = 5
"""Memory of others is compared over this many readings, one a second. Peaks of memory are shorter."""


Settings = Sequence[tuple[Lever, KnobValue]]


class ParameterHistories:
    """The history of each lever, by its name."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._tracks: dict[str, ParameterHistory] = {}
        self._others: deque[int] = deque(maxlen=MIXED)
        self._in_vain: set[frozenset[tuple[str, KnobValue]]] = set()
        self._beside: dict[str, KnobValue] = {}  # the values of the last call of `sway`

    def of(self, lever: Lever) -> ParameterHistory:
        return self._tracks.setdefault(lever.name, ParameterHistory())

    def levers(self, observation: Observation, frozen: Collection[str]) -> list[Lever]:
        return levers(observation.knobs, self.limits, frozen)

    def batches(self, observation: Observation, frozen: Collection[str]) -> Iterator[Lever]:
        """The levers with a known effect on memory."""
        for lever in self.levers(observation, frozen):
            memory = self.of(lever).memory
            if memory.grows or (lever.family == "batch" and memory.fitted):
                yield lever

    def in_vain(self, settings: Settings) -> bool:
        """Whether these values were tried together without success."""
        return _named(settings) in self._in_vain

    def fits(self, lever: Lever, value: KnobValue, observation: Observation) -> bool:
        """Whether a value may be tried. Nothing larger is allowed while memory use exceeds the limit already,
        whatever the history shows."""
        size, memory, most = lever.size_of(value), observation.memory, self.limits.memory
        if memory is None or (size > lever.size and observation.taken > most):
            return False
        return self.of(lever).fits(lever.size, size, memory, most)

    def saw(self, observation: Observation, used: int, names: Collection[str] | None = None) -> None:
        """Record that the run held `used` bytes with its present values. With `names`, only the histories of
        these levers learn it.

        While others take or free memory, the reading cannot be assigned to the run. Memory per process is
        read at other moments than total memory, and the total is a maximum over a few seconds.
        """
        apart = self._others_stand_still(observation)
        fixed = observation.memory.fixed if observation.memory is not None else 0
        for lever in self.levers(observation, set()):
            if lever.ordered and (names is None or lever.name in names):
                track = self.of(lever)
                track.shapes.add(lever.size)
                if apart:
                    track.memory.saw(lever.size, used, fixed)
                else:
                    track.memory.doubt()

    def sway(self, values: Mapping[str, KnobValue], level: float, t: int) -> bool:
        """Whether a value was refused at another speed, although `values` are unchanged. They bring `level`
        at `t` (monotonic ns)."""
        if self._beside != values:
            self._beside = dict(values)
            for track in self._tracks.values():
                track.sway.refused(None)
        swayed = [track for track in self._tracks.values() if track.sways(level, t)]
        return bool(swayed)

    # outcomes of trials -------------------------------------------------------------------------------------

    def kept(self, tried: Candidate, found: Measured) -> None:
        """Record a trial that was kept. The memory models of the other levers start over."""
        names = {lever.name for lever, _ in tried.settings}
        for name, track in self._tracks.items():
            if len(names) > 1 or name not in names:
                track.memory.clear()
            if len(names) > 1 or name not in names:
                track.outdated = fact("again.other_knob")
            track.sway.believed = 0
        self._rated(tried, found)
        for lever, _ in tried.settings:
            if tried.way:
                self.of(lever).closed.add(-tried.way)
                self.of(lever).slower = tried.way < 0
            elif not lever.ordered:
                self.of(lever).worse.add(lever.knob.value)

    def dropped(self, tried: Candidate, found: Measured) -> None:
        """Record a reverted trial. With several levers, it is unknown which of them caused the result."""
        self._rated(tried, found)
        if len(tried.settings) > 1:
            self._in_vain.add(_named(tried.settings))
            return
        for lever, value in tried.settings:
            size = lever.size_of(value)
            far, first = size > FARTHEST * lever.size, lever.knob.value == 0 and size < FROM_NONE
            self.of(lever).dropped(value, tried.way, tried.gain, found, far=far, first=first)

    def failed(self, tried: Candidate, t: int, knob: str = "") -> None:
        """Record a value that the run could not hold or refused: a ceiling, for a time that doubles.

        With several levers, it is that of `knob`, which the run named, or else those that take memory.
        """
        settings = tried.settings
        if len(settings) > 1:
            self._in_vain.add(_named(settings))
        named = [(lever, value) for lever, value in settings if knob in lever.names]
        grown = [(lever, value) for lever, value in settings if lever.family not in READERS]
        for lever, value in named or grown or settings:
            track = self.of(lever)
            track.refused.add(value)
            track.stride = 1
            if lever.sized(value) and tried.way >= 0:
                self.ceiling(lever, lever.size_of(value), t)
            elif tried.way:
                track.closed.add(tried.way)

    def ignored(self, tried: Candidate) -> None:
        """Record that the run read back the old value: with its other knobs, no other value is possible."""
        for lever, value in tried.settings:
            self.of(lever).refused.add(value)
            if tried.way:
                self.of(lever).closed.add(tried.way)

    def ceiling(self, lever: Lever, size: float, t: int, *, held: bool = False, rare: bool = False) -> None:
        """Record that `size` was too large at `t` (monotonic ns). With `held` it had worked before, so it may
        work again soon. It is retried sooner still if the run has already reduced the size. `rare`: others
        have taken no memory."""
        seconds = CEILING_S if not held else GAVE_WAY_S if lever.size < size else LEFT_S
        track = self.of(lever)
        track.bound(size, t, seconds, rare=rare)
        if held:
            track.left.add(size)

    def expire(self, t: int) -> None:
        """Retry ceilings whose time is over."""
        for track in self._tracks.values():
            track.expire(t)

    def freed(self) -> None:
        """Lift the ceilings, because others have freed memory."""
        for track in self._tracks.values():
            track.lift()

    def reopen(self) -> None:
        """Forget all results, because the run has changed: everything may be tried again."""
        self._in_vain.clear()
        for track in self._tracks.values():
            track.reopen()

    def forget_memory(self) -> None:
        """Forget the memory of an earlier process, which does not apply to a new one."""
        for track in self._tracks.values():
            track.memory = MemoryModel()
            track.shapes.clear()

    def _others_stand_still(self, observation: Observation) -> bool:
        """Whether the memory of others has hardly changed in the last readings."""
        if observation.memory is None:
            return True
        self._others.append(observation.memory.others)
        return max(self._others) - min(self._others) <= NOTICED * observation.memory.total

    def _rated(self, tried: Candidate, found: Measured) -> None:
        """Record the measured rates of one lever. The second rate comes from the gain. The median of all
        iterations after the change may disagree with the gain if they scatter."""
        if len(tried.settings) == 1 and found.before is not None and found.gain is not None:
            (lever, value) = tried.settings[0]
            rates = {lever.knob.value: found.before, value: found.before * (1 + found.gain)}
            self.of(lever).rates |= {lever.size_of(v): rate for v, rate in rates.items() if lever.sized(v)}


def _named(settings: Settings) -> frozenset[tuple[str, KnobValue]]:
    return frozenset((lever.name, value) for lever, value in settings)
