"""How much memory a size would take, from what the sizes before it took. No OOM is used as a probe."""

from __future__ import annotations

from hoptui.tuner.scene import Memory

NOTICED = 0.02
"""A share of all memory: what others take or give back counts from here on."""


class MemoryModel:
    """Peak bytes over size, as a straight line through what was seen."""

    def __init__(self) -> None:
        self._peaks: dict[float, int] = {}

    def saw(self, size: float, used: int) -> None:
        """The run held `used` bytes with `size`.

        Counts only with the largest size so far: an allocator gives nothing back when pieces become smaller.
        """
        if size >= max(self._peaks, default=0.0):
            self._peaks[size] = max(used, self._peaks.get(size, 0))

    def clear(self) -> None:
        """Something else has changed: what was seen holds no more."""
        self._peaks.clear()

    @property
    def fitted(self) -> bool:
        """Whether more than one size was seen."""
        return len(self._peaks) > 1

    def predicted(self, size: float) -> float | None:
        """Peak bytes with `size`, None before anything was seen: between two sizes that were seen on the line between them.

        With one size known all memory is assumed to grow with a larger one, and none of it to shrink with a smaller one.
        """
        if not self._peaks:
            return None
        largest = max(self._peaks)
        if len(self._peaks) == 1:
            return self._peaks[largest] * max(1.0, size / largest)
        if size <= largest:
            return self._between(size)
        n = len(self._peaks)
        mean_size, mean_peak = sum(self._peaks) / n, sum(self._peaks.values()) / n
        spread = sum((s - mean_size) ** 2 for s in self._peaks)
        slope = sum((s - mean_size) * (p - mean_peak) for s, p in self._peaks.items()) / spread
        return self._peaks[largest] + max(slope, 0.0) * (size - largest)

    def _between(self, size: float) -> float:
        low = max((s for s in self._peaks if s <= size), default=min(self._peaks))
        high = min(s for s in self._peaks if s >= size)
        share = (size - low) / (high - low) if high > low else 0.0
        return self._peaks[low] + max(share, 0.0) * (self._peaks[high] - self._peaks[low])

    def allows(self, size: float, memory: Memory | None, share: float) -> bool:
        """Whether `size` is expected to stay within `share` of all memory, with what others hold now. Unknown: no."""
        peak = self.predicted(size)
        return memory is not None and peak is not None and peak + memory.others <= share * memory.total


class Neighbours:
    """What other processes take of the memory, and give back."""

    def __init__(self) -> None:
        self._least: int | None = None
        self._most = 0

    def freed(self, memory: Memory) -> bool:
        """Take note of it; whether they have given some back."""
        others = memory.others
        self._least = others if self._least is None else min(self._least, others)
        back = others < self._most - NOTICED * memory.total
        self._most = others if back else max(self._most, others)
        return back

    def taken(self, memory: Memory) -> int:
        """Bytes that they have taken since `settle`, or since they had least; 0 where it is not worth a word."""
        taken = memory.others - (memory.others if self._least is None else self._least)
        return taken if taken > NOTICED * memory.total else 0

    def settle(self, memory: Memory) -> None:
        """What they hold now was reckoned with."""
        self._least = memory.others


def full(memory: Memory | None) -> float:
    """The share of all memory that is taken, 0 where that is unknown."""
    return (memory.used + memory.others) / memory.total if memory is not None and memory.total else 0.0
