"""Predicts how much memory a size would need, from readings of earlier sizes. It never probes by an OOM."""

from __future__ import annotations

import math
from collections import deque
from statistics import linear_regression

from hoptui.tuner.observation import MemoryReading

NOTICED = 0.02
"""The share of all memory from which a change by other processes counts."""
GROWTH = 0.02
"""A need that is higher by this share is more than noise."""
FIXED = 0.5
"""So much of the memory that does not grow with the size is assumed to stay where another setting changes."""
ABOVE = 0.03
"""The share of all memory that a trial may use beyond the limit. A trial that uses more is ended. A
prediction stays within the limit, unless it is a worst case."""
STILL = 0.002
"""The share of all memory by which other processes may grow between two looks and still count as steady."""
LOOKS_STILL = 10
"""After this many steady looks, the memory that others hold becomes the new reference."""
NEWS = 3
"""Freed memory is reported for this many looks, because the run's own reading may follow a little later."""
RECENT = 120
"""The newest readings of one size, which show what it usually needs."""
LARGEST = 64
"""The number of largest readings kept. They show how rare still larger ones are."""
TAIL = 4
"""Peaks twice as high are assumed to be 2⁴ times as rare. Most loads have lighter tails, so a few readings
mislead little."""
RARE = 100
"""One in this many readings may exceed the prediction for a size."""
BORNE = 0.6
"""The accepted number of peaks per hour that exceed all memory: 0.3 in a run of half an hour."""
UNCOUNTED = 2
"""The newest readings do not count as peaks yet. Memory that others have taken is reported up to two seconds
later."""


class Tail:
    """How far rare readings exceed the lowest one, as a share of it, estimated from the largest readings.

    If the number of peaks beyond x falls with x⁻⁴, the j-th largest of n lies at about c·(n/j)^¼. c is the
    mean over the √n largest (the estimator of Weissman, J. Am. Stat. Assoc. 73, 1978, with a known exponent).
    More readings scatter less, but contain less information about rare ones.
    """

    def __init__(self) -> None:
        self._largest: list[float] = []
        self._count = 0

    def add(self, above: float) -> None:
        """Add a reading by its share above the lowest. Readings without an excess count as well."""
        self._count += 1
        if above > 0:
            self._largest = sorted((*self._largest, above), reverse=True)[:LARGEST]

    @property
    def seen(self) -> float:
        """The largest share seen."""
        return self._largest[0] if self._largest else 0.0

    def beyond(self, readings: float) -> float:
        """The share above the lowest that one in `readings` readings exceeds, estimated from those so far."""
        if not self._count:
            return 0.0
        top = min(LARGEST, max(1, round(math.sqrt(self._count))))
        scale = sum(x * (j / self._count) ** (1 / TAIL) for j, x in enumerate(self._largest[:top], 1)) / top
        return float(scale * readings ** (1 / TAIL))


class MemoryModel:
    """Peak bytes over size: a straight line through the usual need, and the excess of rare peaks.

    The line goes through the lowest tenth of readings. One rare peak would tilt a line through the largest.
    The excess is a share of the line, the same for all sizes.
    """

    def __init__(self) -> None:
        self._usual: dict[float, float] = {}
        self._size = 0.0
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._tail = Tail()
        self._fixed = 0.0  # the least bytes that any size takes, by sizes before another setting changed
        self._reported = 0  # the same, as the run reports it now
        self._before: dict[float, float] = {}  # the usual need by size, before another setting changed
        self._uncounted: deque[float] = deque()  # how far the newest readings lie above the lowest

    def saw(self, size: float, used: int, fixed: int = 0) -> None:
        """Record that the run held `used` bytes with `size`, in the last second or so. 0 is no reading.

        `fixed` of these bytes are reported not to grow with any size. If that is more than before, such as
        once the optimizer has a state, earlier readings may lack it, and are forgotten.

        Only the largest size so far updates the line: an allocator frees nothing when pieces become smaller.
        """
        if used <= 0:
            return
        if fixed > self._reported:
            self._recent.clear()
        self._reported = fixed
        if size != self._size:
            self._size = size
            self._recent.clear()
        same = bool(self._recent) and self._recent[-1] == used
        self._recent.append(used)
        if size >= self.largest:
            self._usual[size] = sorted(self._recent)[len(self._recent) // 10]
        # An unchanged reading is not another peak. Peaks are measured from the lowest reading. A reading is
        # the maximum of a few seconds, so the usual reading is already a peak of most iterations. Measured
        # from there, rare peaks would seem too near.
        self._uncounted.append(0.0 if same else used / min(self._recent) - 1)
        if len(self._uncounted) > UNCOUNTED:
            self._tail.add(self._uncounted.popleft())

    def doubt(self) -> None:
        """Discard the newest readings: they may include memory that others have taken or freed."""
        self._uncounted.clear()

    def clear(self) -> None:
        """Forget all readings, because another setting has changed. What does not grow with the size is known
        roughly. If that size then needs as much as before, larger sizes are expected to do so too."""
        if self.grows:
            fit = linear_regression(list(self._usual), list(self._usual.values()))
            self._fixed = FIXED * max(0.0, fit.intercept)
            self._before = dict(self._usual)
        self._usual.clear()
        self._recent.clear()
        self._uncounted.clear()
        self._tail = Tail()

    @property
    def fitted(self) -> bool:
        """Whether more than one size was seen."""
        return len(self._usual) > 1

    @property
    def known(self) -> bool:
        """Whether the need of larger sizes is known: more than one size was seen, or the need of the one that
        was seen is as before another setting changed."""
        return self.fitted or (bool(self._usual) and self._as_before(self.largest))

    @property
    def worst_case(self) -> bool:
        """Whether predictions for larger sizes are a worst case: one size was seen, and all of its memory is
        assumed to grow with the size, but what is reported not to."""
        one = len(self._usual) == 1 and not self._as_before(self.largest)
        return one and self._fixed <= self._reported

    @property
    def grows(self) -> bool:
        """Whether larger sizes were seen to need more memory."""
        return self.fitted and self._usual[self.largest] > (1 + GROWTH) * self._usual[min(self._usual)]

    @property
    def largest(self) -> float:
        """The largest size seen, 0 before there is one."""
        return max(self._usual, default=0.0)

    def predicted(self, size: float) -> float | None:
        """The peak bytes with `size`, which few readings exceed. None before the first reading."""
        usual = self._line(size)
        return None if usual is None else usual * (1 + self._tail.beyond(RARE))

    def expects(self, size: float, memory: MemoryReading, share: float = 1.0) -> bool:
        """Whether `size` is expected to stay within `share` of all memory, given what others hold now. False
        if unknown."""
        peak = self.predicted(size)
        return peak is not None and peak <= share * memory.total - memory.others

    def holds(self, size: float, memory: MemoryReading, *, often: float = 1.0) -> bool:
        """Whether the rarest peaks with `size` fit as well, judged from readings once a second. `often` times
        as many peaks may exceed the memory. True if unknown.
        """
        usual, rarest = self._line(size), self._tail.beyond(3600 / (BORNE * often))
        if often <= 1:  # without a higher risk, the largest excess so far must fit too
            rarest = max(rarest, self._tail.seen)
        return usual is None or usual * (1 + rarest) <= memory.total - memory.others

    def _line(self, size: float) -> float | None:
        """The usual need of `size`. Between two known sizes it lies on the line between them.

        With one known size, all memory but the fixed part is assumed to grow with a larger size, and none to
        shrink with a smaller one.
        """
        if not self._usual:
            return None
        largest = self.largest
        if len(self._usual) == 1:
            if self._as_before(largest):
                slope = linear_regression(list(self._before), list(self._before.values())).slope
                return self._usual[largest] + slope * max(0.0, size - largest)
            fixed = min(max(self._fixed, self._reported), self._usual[largest])
            return fixed + (self._usual[largest] - fixed) * max(1.0, size / largest)
        if size <= largest:
            return self._between(size)
        slope = linear_regression(list(self._usual), list(self._usual.values())).slope
        return self._usual[largest] + max(slope, 0.0) * (size - largest)

    def _as_before(self, size: float) -> bool:
        return self._usual[size] <= (1 + GROWTH) * self._before.get(size, 0.0)

    def _between(self, size: float) -> float:
        low = max((s for s in self._usual if s <= size), default=min(self._usual))
        high = min(s for s in self._usual if s >= size)
        share = (size - low) / (high - low) if high > low else 0.0
        return self._usual[low] + max(share, 0.0) * (self._usual[high] - self._usual[low])


class Neighbours:
    """The memory that other processes take and free."""

    def __init__(self) -> None:
        self.took = False
        """Whether they had taken memory at the last reading."""
        self._least: int | None = None
        self._most = self._last = self._still = self._news = 0
        self._read: int | None = None
        self._more: deque[int] = deque((0, 0), maxlen=2)

    def freed(self, memory: MemoryReading) -> bool:
        """Record a reading. Return whether others have freed memory, at this look or just before."""
        others = memory.others
        self._least = others if self._least is None else min(self._least, others)
        back = others < self._most - NOTICED * memory.total
        self._most = others if back else max(self._most, others)
        self._still = 0 if others > self._last + STILL * memory.total else self._still + 1
        self._last = others
        if self._still >= LOOKS_STILL:
            self.settle(memory)
        self._news = NEWS if back else max(0, self._news - 1)
        self.took = self.taken(memory) > 0
        return self._news > 0

    def read(self, memory: MemoryReading) -> None:
        """Record a new reading, for `coming`. Unlike looks, readings are about a second apart."""
        self._more.append(memory.others - (memory.others if self._read is None else self._read))
        self._read = memory.others

    @property
    def coming(self) -> int:
        """Bytes that they will have taken in addition at the next reading, if they go on as before. 0 unless
        both of the last two readings were higher: most programs take what they need at once."""
        return max(0, min(self._more))

    @property
    def growing(self) -> bool:
        """Whether they have just taken more, and may take still more."""
        return not self._still

    def taken(self, memory: MemoryReading) -> int:
        """Bytes that they have taken since the reference, which is their least so far or the last `settle`. 0
        if the amount is not significant."""
        taken = memory.others - (memory.others if self._least is None else self._least)
        return taken if taken > NOTICED * memory.total else 0

    def settle(self, memory: MemoryReading) -> None:
        """Make what they hold now the reference."""
        self._least = memory.others
