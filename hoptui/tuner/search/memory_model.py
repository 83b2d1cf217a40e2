"""How much memory a size would take, from what the sizes before it took. No OOM is used as a probe."""

from __future__ import annotations

import math
from collections import deque
from statistics import linear_regression

from hoptui.tuner.observation import MemoryReading

NOTICED = 0.02
"""A share of all memory: what others take or give back counts from here on."""
STILL = 0.002
"""By so much of it they may change from one look to the next while they stand still."""
LOOKS_STILL = 10
"""What they have held for so many looks is reckoned with."""
NEWS = 3
"""For so many looks it is told that they gave some back: what the run says of itself at that moment may come
a little later."""
RECENT = 120
"""Readings of one size that say what it takes as a rule, the newest."""
LARGEST = 64
"""Of the largest readings, which say how rare larger ones are, at most so many are kept."""
TAIL = 4
"""Twice as far out, peaks are taken to be 2⁴ times as rare: heavier tails than most loads have, so that few
readings mislead little."""
RARE = 100
"""One in so many readings may lie above what is expected of a size."""
BORNE = 0.6
"""So many times an hour a peak may be expected that is above all there is: 0.3 times in a run of half an
hour."""
UNCOUNTED = 2
"""The newest readings are not taken for peaks yet: that others have taken memory is told up to two seconds
after it is held."""


class Tail:
    """How far rare readings lie above the lowest, as a share of that, from the largest of them.

    Where the number of peaks beyond x falls with x⁻⁴, the j-th largest of n lies at about c·(n/j)^¼; c is the
    mean over the √n largest (the estimator of Weissman, J. Am. Stat. Assoc. 73, 1978, with a known exponent):
    more of them scatter less, but say less of what is rare.
    """

    def __init__(self) -> None:
        self._largest: list[float] = []
        self._count = 0

    def add(self, above: float) -> None:
        """A reading lay so far above the lowest; one that does not counts as well."""
        self._count += 1
        if above > 0:
            self._largest = sorted((*self._largest, above), reverse=True)[:LARGEST]

    @property
    def seen(self) -> float:
        """The largest."""
        return self._largest[0] if self._largest else 0.0

    def beyond(self, readings: float) -> float:
        """What one in so many readings lies above, as a share of the lowest, as far as those so far tell."""
        if not self._count:
            return 0.0
        top = min(LARGEST, max(1, round(math.sqrt(self._count))))
        scale = sum(x * (j / self._count) ** (1 / TAIL) for j, x in enumerate(self._largest[:top], 1)) / top
        return float(scale * readings ** (1 / TAIL))


class MemoryModel:
    """Peak bytes over size: a straight line through what is held as a rule, and how far rare peaks lie above
    it.

    The line goes through the lowest tenth of readings and not through the largest, because one rare peak
    would tilt it. How far readings lie above it is taken as a share of it, the same for all sizes.
    """

    def __init__(self) -> None:
        self._usual: dict[float, float] = {}
        self._size = 0.0
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._tail = Tail()
        self._uncounted: deque[float] = deque()  # how far the newest readings lie above the lowest

    def saw(self, size: float, used: int) -> None:
        """The run held `used` bytes with `size`, in the last second or so; 0 is no reading.

        Only the largest size so far says what is usual: an allocator gives nothing back when pieces become
        smaller.
        """
        if used <= 0:
            return
        if size != self._size:
            self._size = size
            self._recent.clear()
        same = bool(self._recent) and self._recent[-1] == used
        self._recent.append(used)
        if size >= self.largest:
            self._usual[size] = sorted(self._recent)[len(self._recent) // 10]
        # A reading that has not changed is no other peak. Peaks begin at the lowest reading: a reading is the
        # most of a few seconds, so that what is usual is a peak of most iterations already, above which rare
        # ones would seem too near.
        self._uncounted.append(0.0 if same else used / min(self._recent) - 1)
        if len(self._uncounted) > UNCOUNTED:
            self._tail.add(self._uncounted.popleft())

    def doubt(self) -> None:
        """The newest readings may be of memory that others have taken or given back: they are no peaks of the
        run's own."""
        self._uncounted.clear()

    def clear(self) -> None:
        """Something else has changed: what was seen holds no more."""
        self._usual.clear()
        self._recent.clear()
        self._uncounted.clear()
        self._tail = Tail()

    @property
    def fitted(self) -> bool:
        """Whether more than one size was seen."""
        return len(self._usual) > 1

    @property
    def largest(self) -> float:
        """The largest size seen, 0 before there is one."""
        return max(self._usual, default=0.0)

    def predicted(self, size: float) -> float | None:
        """Peak bytes with `size`, which few readings are above; None before anything was seen."""
        usual = self._line(size)
        return None if usual is None else usual * (1 + self._tail.beyond(RARE))

    def expects(self, size: float, memory: MemoryReading, share: float = 1.0) -> bool:
        """Whether `size` is expected to stay within `share` of all memory, with what others hold now.
        Unknown: no."""
        peak = self.predicted(size)
        return peak is not None and peak <= share * memory.total - memory.others

    def holds(self, size: float, memory: MemoryReading, *, often: float = 1.0) -> bool:
        """Whether the rarest peaks with `size` fit as well, as far as readings (one a second) tell; `often`
        times as many may not. Unknown: yes.
        """
        usual, rarest = self._line(size), self._tail.beyond(3600 / (BORNE * often))
        if often <= 1:  # where no more than usual is risked, what was seen once is to fit
            rarest = max(rarest, self._tail.seen)
        return usual is None or usual * (1 + rarest) <= memory.total - memory.others

    def _line(self, size: float) -> float | None:
        """What is held with `size` as a rule: between two sizes that were seen on the line between them.

        With one size known all memory is assumed to grow with a larger one, and none of it to shrink with a
        smaller one.
        """
        if not self._usual:
            return None
        largest = self.largest
        if len(self._usual) == 1:
            return self._usual[largest] * max(1.0, size / largest)
        if size <= largest:
            return self._between(size)
        slope = linear_regression(list(self._usual), list(self._usual.values())).slope
        return self._usual[largest] + max(slope, 0.0) * (size - largest)

    def _between(self, size: float) -> float:
        low = max((s for s in self._usual if s <= size), default=min(self._usual))
        high = min(s for s in self._usual if s >= size)
        share = (size - low) / (high - low) if high > low else 0.0
        return self._usual[low] + max(share, 0.0) * (self._usual[high] - self._usual[low])


class Neighbours:
    """What other processes take of the memory, and give back."""

    def __init__(self) -> None:
        self._least: int | None = None
        self._most = self._last = self._still = self._news = 0

    def freed(self, memory: MemoryReading) -> bool:
        """Take note of it; whether they have given some back, at this look or just before."""
        others = memory.others
        self._least = others if self._least is None else min(self._least, others)
        back = others < self._most - NOTICED * memory.total
        self._most = others if back else max(self._most, others)
        self._still = 0 if others > self._last + STILL * memory.total else self._still + 1
        self._last = others
        if self._still >= LOOKS_STILL:
            self.settle(memory)
        self._news = NEWS if back else max(0, self._news - 1)
        return self._news > 0

    @property
    def growing(self) -> bool:
        """Whether they have just taken more, and may take more still."""
        return not self._still

    def taken(self, memory: MemoryReading) -> int:
        """Bytes that they have taken since `settle`, or since they had least; 0 where it is not worth a
        word."""
        taken = memory.others - (memory.others if self._least is None else self._least)
        return taken if taken > NOTICED * memory.total else 0

    def settle(self, memory: MemoryReading) -> None:
        """What they hold now was reckoned with."""
        self._least = memory.others
