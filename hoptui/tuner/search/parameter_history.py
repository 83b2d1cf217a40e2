"""What is known of one lever: how fast and how large it was with which values, and which of them are out of
the question."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, linear_regression

from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobValue
from hoptui.domain.tuning import Limits, Measured
from hoptui.tuner.effect import WORTH
from hoptui.tuner.observation import MemoryReading, Observation
from hoptui.tuner.search.memory_model import NOTICED, MemoryModel
from hoptui.tuner.search.space import READERS, Candidate, Lever, levers

CEILING_S = 1800.0
"""What failed is not tried again for so long; the second time for twice as long, and so on."""
FARTHEST = 2.0
"""No step is larger than this factor: memory is not extrapolated farther."""
SHAPES = 8
"""Sizes of one process: torch.compile makes so many variants of a function, and then computes it eagerly for
good."""
LEFT_S = 600.0
"""The same for what had gone well and was left before memory ran out."""
GAVE_WAY_S = 150.0
"""And where it did run out, in a rare step: half of a size is slow, and to run out again costs less than to
stay there for long."""
SWAYS, SWAYS_S, BELIEVED = 0.15, 3.0, 2
"""By so much must the speed with the same values differ, for so many seconds, before what was refused is
tried again; so often it is."""
WIDE = 0.15
"""An interval that tells too little of a gain."""
DEAR = 0.12
"""What a size may cost of the speed that is taken only because of the rarest peaks."""
OFTEN = 3.0
"""Where more of the speed is at stake, so many times as many peaks are risked."""


@dataclass
class SpeedDrift:
    """Whether the run is still as fast as it was when something was refused: on shared cores it is not for
    long."""

    judged: float | None = None  # the speed then; None while nothing was refused with the values in effect
    apart: int | None = None  # since when it is another one (monotonic ns)
    believed: int = 0

    def refused(self, level: float | None) -> None:
        """Something was, at this speed."""
        self.judged, self.apart = level, None

    def outdated(self, level: float, t: int) -> Fact | None:
        """Why what was refused need not be so at `t` (monotonic ns), where the same values bring `level`;
        None where it is."""
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
    closed: set[int] = field(default_factory=set)
    slower: bool = False  # a larger size surely was
    outdated: Fact | None = None  # why what was refused need not be so any more
    again: dict[KnobValue, Fact] = field(default_factory=dict)  # what may be tried again, and why
    sway: SpeedDrift = field(default_factory=SpeedDrift)
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

        A sample costs what it costs, and a share of what each piece costs: 1/rate = c + a/size. With
        `falling` the larger may also be the slower.
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
        """Whether a step of size may be tried: with `share` of all memory as a rule, and with all of it at
        the rarest peaks."""
        if not self.memory.expects(there, memory, share):
            return False
        gain = self.gain(here, there, falling=False)
        dear = gain is not None and gain > DEAR / (1 - DEAR)
        return self.memory.holds(there, memory, often=OFTEN if dear else 1.0)

    def dropped(self, value: KnobValue, way: int, expected: float | None, found: Measured) -> None:
        """A trial of `value`, which went that `way` of size, was taken back. What told too little is tried
        once more.

        That is a gain of which nothing can be told, or not that it is less than what other sizes let expect.
        """
        highest = -1.0 if found.gain is None else found.gain + (found.interval or 0.0)
        lost = found.interval is None or highest < 0
        unclear = (found.interval or 0.0) > WIDE or WORTH <= (expected or 0.0) < highest
        if unclear and not lost and value not in self.doubted:
            self.doubted.add(value)
            self.again[value] = fact("again.unclear")
            return
        self.refused.add(value)
        self.sway.refused(found.before)
        self.slower |= way > 0 and lost
        if way > 0 and lost and self.stride > 1:
            self.stride = 1  # the best may lie between
        elif way:
            self.closed.add(way)

    def sways(self, level: float, t: int) -> bool:
        """Whether what was refused is outdated from now on, because the values in effect bring `level` at `t`
        (monotonic ns)."""
        if self.outdated is not None:
            return False
        self.outdated = self.sway.outdated(level, t)
        return self.outdated is not None

    def bound(self, size: float, t: int, seconds: float = CEILING_S) -> None:
        """`size` was too much at `t` (monotonic ns), which holds for so many seconds, and for twice as long
        the next time.

        Where it was tried before its time was over, and in vain, it is too much for long: memory is given
        back and taken again.
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
        """What was refused is `outdated`: more may be better now, and it may be possible. Less is no better
        for that."""
        less, believed = self.closed & {-1}, self.sway.believed
        again = dict.fromkeys(self.refused, self.outdated) if self.outdated is not None else {}
        self.reopen()
        self.closed, self.again, self.sway = less, again, SpeedDrift(believed=believed)

    def reopen(self) -> None:
        """The run is not what it was: everything may be tried again."""
        self.rates.clear()
        self.refused.clear()
        self.doubted.clear()
        self.closed.clear()
        self.again.clear()
        self.slower, self.outdated, self.sway = False, None, SpeedDrift()
        self.stride = 2


MIXED = 5
"""So many readings, one a second, what others held is looked back at: longer than peaks of memory are."""


Settings = Sequence[tuple[Lever, KnobValue]]


class ParameterHistories:
    """A track for each lever, by its name."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._tracks: dict[str, ParameterHistory] = {}
        self._others: deque[int] = deque(maxlen=MIXED)
        self._in_vain: set[frozenset[tuple[str, KnobValue]]] = set()
        self._beside: dict[str, KnobValue] = {}  # the values that `sway` was last told of

    def of(self, lever: Lever) -> ParameterHistory:
        return self._tracks.setdefault(lever.name, ParameterHistory())

    def levers(self, observation: Observation, frozen: Collection[str]) -> list[Lever]:
        return levers(observation.knobs, self.limits, frozen)

    def batches(self, observation: Observation, frozen: Collection[str]) -> Iterator[Lever]:
        """The levers that memory grows with, where it is known how."""
        for lever in self.levers(observation, frozen):
            if lever.family == "batch" and self.of(lever).memory.fitted:
                yield lever

    def in_vain(self, settings: Settings) -> bool:
        """Whether these values were tried together, and taken back."""
        return _named(settings) in self._in_vain

    def fits(self, lever: Lever, value: KnobValue, observation: Observation) -> bool:
        """Whether a value may be tried; nothing larger while more than the limit is taken already, whatever
        was seen before."""
        size, memory, most = lever.size_of(value), observation.memory, self.limits.memory
        if memory is None or (size > lever.size and observation.taken > most):
            return False
        return self.of(lever).fits(lever.size, size, memory, most)

    def saw(self, observation: Observation, used: int, names: Collection[str] | None = None) -> None:
        """The run held `used` bytes with the values that it has; a change of the levers `names` alone is what
        it was for.

        While others take or give back memory nobody knows whose it is: what processes hold is read at other
        moments than all that is held, of which the most in a few seconds counts.
        """
        apart = self._others_stand_still(observation)
        for lever in self.levers(observation, set()):
            if lever.ordered and (names is None or lever.name in names):
                track = self.of(lever)
                track.shapes.add(lever.size)
                if apart:
                    track.memory.saw(lever.size, used)
                else:
                    track.memory.doubt()

    def sway(self, values: Mapping[str, KnobValue], level: float, t: int) -> bool:
        """`values` bring `level` at `t` (monotonic ns); whether something was refused when the same ones
        brought another speed."""
        if self._beside != values:
            self._beside = dict(values)
            for track in self._tracks.values():
                track.sway.refused(None)
        swayed = [track for track in self._tracks.values() if track.sways(level, t)]
        return bool(swayed)

    # what became of what was tried --------------------------------------------------------------------------

    def kept(self, tried: Candidate, found: Measured) -> None:
        """It is in effect. What memory does with the other levers has to be seen anew."""
        names = {lever.name for lever, _ in tried.settings}
        for name, track in self._tracks.items():
            if name not in names:
                track.memory.clear()
            if len(names) > 1 or name not in names:
                track.outdated = fact("again.other_knob")
            track.sway.believed = 0
        self._rated(tried, found)
        for lever, _ in tried.settings:
            if tried.way:
                self.of(lever).closed.add(-tried.way)
                self.of(lever).slower = tried.way < 0

    def dropped(self, tried: Candidate, found: Measured) -> None:
        """It was taken back. Of several levers nobody knows which of them it was."""
        self._rated(tried, found)
        if len(tried.settings) > 1:
            self._in_vain.add(_named(tried.settings))
            return
        for lever, value in tried.settings:
            self.of(lever).dropped(value, tried.way, tried.gain, found)

    def failed(self, tried: Candidate, t: int, knob: str = "") -> None:
        """The run could not hold it, or refused it: a ceiling, for a time that doubles.

        Of several levers it is that of `knob`, which the run named, or else those that take memory.
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
        """The run reads back what was in effect before: beside its other knobs, that is all it can do."""
        for lever, value in tried.settings:
            self.of(lever).refused.add(value)
            if tried.way:
                self.of(lever).closed.add(tried.way)

    def ceiling(self, lever: Lever, size: float, t: int, *, held: bool = False) -> None:
        """`size` was too much at `t` (monotonic ns); `held` says that it had gone well before: then it may
        soon again, sooner still where the run has given way to less already."""
        seconds = CEILING_S if not held else GAVE_WAY_S if lever.size < size else LEFT_S
        self.of(lever).bound(size, t, seconds)

    def expire(self, t: int) -> None:
        """Ceilings whose time is over are tried once more."""
        for track in self._tracks.values():
            track.expire(t)

    def freed(self) -> None:
        """Others gave memory back: no ceiling holds any more."""
        for track in self._tracks.values():
            track.lift()

    def reopen(self) -> None:
        """The run is not what it was: everything may be tried again."""
        self._in_vain.clear()
        for track in self._tracks.values():
            track.reopen()

    def forget_memory(self) -> None:
        """Another process: what the one before held says nothing."""
        for track in self._tracks.values():
            track.memory.clear()
            track.shapes.clear()

    def _others_stand_still(self, observation: Observation) -> bool:
        """Whether what others hold has hardly changed in the last readings."""
        if observation.memory is None:
            return True
        self._others.append(observation.memory.others)
        return max(self._others) - min(self._others) <= NOTICED * observation.memory.total

    def _rated(self, tried: Candidate, found: Measured) -> None:
        """What was measured of one lever. The gain, not the median of all iterations after: where these
        scatter they do not agree."""
        if len(tried.settings) == 1 and found.before is not None and found.gain is not None:
            (lever, value) = tried.settings[0]
            rates = {lever.knob.value: found.before, value: found.before * (1 + found.gain)}
            self.of(lever).rates |= {lever.size_of(v): rate for v, rate in rates.items() if lever.sized(v)}


def _named(settings: Settings) -> frozenset[tuple[str, KnobValue]]:
    return frozenset((lever.name, value) for lever, value in settings)
