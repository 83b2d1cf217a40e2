"""The automatic batch size: all samples there are, what memory holds at once, or a fixed most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

MOST_SAMPLES = 65_536
"""An automatic batch has no more samples: steps of environments, images, or tokens."""

Bound = Literal["data", "memory", "most"]
"""What bounds an automatic batch: the samples there are, the memory, or `MOST_SAMPLES`."""
REASONS = {"data": "all there are", "memory": "what memory holds at once", "most": "the most that it may be"}


class AutoBatch(NamedTuple):
    """A batch of `size` samples of all ranks together, and what bounds it."""

    size: int
    bound: Bound

    def note(self, name: str, unit: str, value: int) -> str:
        """A line that reports that the knob `name` is `value` now, in `unit`."""
        return f"{name} chosen: {value:,} {unit}, {REASONS[self.bound]}"


def choose_batch(available: int, most: int, fitting: Callable[[int], int]) -> AutoBatch:
    """The largest batch within `available` samples, `most` samples, and what memory holds.

    `fitting` returns how many of so many samples memory holds at once, on all ranks together. If memory is
    the bound, the size is a power of two, so that small differences of free memory do not change it.

    Raises:
        MemoryError: memory does not hold one sample.
    """
    whole = max(1, min(available, most))
    held = fitting(whole)
    if held >= whole:
        return AutoBatch(whole, "data" if available <= most else "most")
    if held < 1:
        raise MemoryError("memory does not hold one sample")
    return AutoBatch(1 << (held.bit_length() - 1), "memory")
