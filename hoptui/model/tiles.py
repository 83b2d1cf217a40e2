"""Stretches of one metric as buckets, and a cache of them that is bounded in bytes. No I/O."""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from hoptui.protocol.messages import Buckets

ENTRY_BYTES = 512  # what an entry of a cache costs besides its arrays

Value = TypeVar("Value")


class Entries(NamedTuple):
    """Stamps with the least and greatest value at each, oldest first, all of them known."""

    t: array[int]
    low: array[float]
    high: array[float]

    def take(self, other: Entries, start: int, stop: int) -> None:
        """Append entries of another."""
        self.t.extend(other.t[start:stop])
        self.low.extend(other.low[start:stop])
        self.high.extend(other.high[start:stop])

    def cut(self, keep: int) -> None:
        """Drop all but the first `keep`."""
        del self.t[keep:], self.low[keep:], self.high[keep:]


class Cache(Generic[Value]):
    """The newest used values up to `most_bytes`, as `size` counts them; the one asked for last always
    stays."""

    def __init__(self, most_bytes: int, size: Callable[[Value], int]) -> None:
        self.bytes = 0
        self._most = most_bytes
        self._size = size
        self._held: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable) -> Value | None:
        """The value of `key` if it is held."""
        found = self._held.get(key)
        if found is not None:
            self._held.move_to_end(key)
        return found

    def put(self, key: Hashable, value: Value) -> None:
        """Hold a value in place of the one that was held, and let go of those not used for longest."""
        if key in self._held:
            self.bytes -= self._size(self._held.pop(key))
        self._held[key] = value
        self.bytes += self._size(value)
        while self.bytes > self._most and len(self._held) > 1:
            self.bytes -= self._size(self._held.popitem(last=False)[1])


def entries_bytes(entries: Entries) -> int:
    """What a stretch costs in a cache."""
    return ENTRY_BYTES + 24 * len(entries.t)


def known_entries(answer: Buckets, name: str) -> Entries:
    """The buckets in which a metric is known."""
    at = answer.names.index(name)
    t, low, high = array("q", answer.t), array("d", answer.low[at]), array("d", answer.high[at])
    kept = [i for i in range(len(t)) if math.isfinite(low[i]) and math.isfinite(high[i])]
    if len(kept) == len(t):
        return Entries(t, low, high)
    return Entries(
        array("q", [t[i] for i in kept]),
        array("d", [low[i] for i in kept]),
        array("d", [high[i] for i in kept]),
    )
