"""Finer buckets of the past than a viewer's rings hold: requests, pending requests and cached answers. No
I/O.

A tile has `TILE` buckets of one metric. The bucket length is a power of two of ns, and tiles are aligned to
it, so panning and zooming reuse them. The cache is bounded in bytes.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from hoptui.protocol.messages import Buckets

ENTRY_BYTES = 512  # bytes of a cache entry besides its arrays

Value = TypeVar("Value")


class Columnar(Protocol):
    """Columns of entries."""

    @property
    def t(self) -> array[int]: ...
    @property
    def low(self) -> array[float]: ...
    @property
    def high(self) -> array[float]: ...
    @property
    def middle(self) -> array[float]: ...


class Entries(NamedTuple):
    """Stamps with the least, greatest and typical value at each, oldest first. All values are known.

    `middle` is the median, or the mean of a bucket whose median is not known.
    """

    t: array[int]
    low: array[float]
    high: array[float]
    middle: array[float]

    def take(self, other: Columnar, start: int, stop: int) -> None:
        """Append entries `start` to `stop` of another."""
        self.t.extend(other.t[start:stop])
        self.low.extend(other.low[start:stop])
        self.high.extend(other.high[start:stop])
        self.middle.extend(other.middle[start:stop])

    def cut(self, keep: int) -> None:
        """Drop all but the first `keep`."""
        del self.t[keep:], self.low[keep:], self.high[keep:], self.middle[keep:]


def no_entries() -> Entries:
    """Return columns without entries, to be filled."""
    return Entries(array("q"), array("d"), array("d"), array("d"))


class Cache(Generic[Value]):
    """The most recently used values up to `most_bytes`, as `size` counts them.

    The value used last always stays.
    """

    def __init__(self, most_bytes: int, size: Callable[[Value], int]) -> None:
        self.bytes = 0
        self._most = most_bytes
        self._size = size
        self._held: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable) -> Value | None:
        """Return the value of `key` if it is cached."""
        found = self._held.get(key)
        if found is not None:
            self._held.move_to_end(key)
        return found

    def put(self, key: Hashable, value: Value) -> None:
        """Cache a value, and drop those not used for the longest time."""
        if key in self._held:
            self.bytes -= self._size(self._held.pop(key))
        self._held[key] = value
        self.bytes += self._size(value)
        while self.bytes > self._most and len(self._held) > 1:
            self.bytes -= self._size(self._held.popitem(last=False)[1])


def entries_bytes(entries: Entries) -> int:
    """Return the size of entries in a cache."""
    return ENTRY_BYTES + 32 * len(entries.t)


def known_entries(answer: Buckets, name: str) -> Entries:
    """Return the buckets in which a metric is known."""
    at = answer.names.index(name)
    t, low, high = array("q", answer.t), array("d", answer.low[at]), array("d", answer.high[at])
    middle = array("d", answer.mean[at])
    kept = [i for i in range(len(t)) if math.isfinite(low[i]) and math.isfinite(high[i])]
    if len(kept) == len(t):
        return Entries(t, low, high, middle)
    known = (array("d", [column[i] for i in kept]) for column in (low, high, middle))
    return Entries(array("q", [t[i] for i in kept]), *known)


TILE = 256
MOST_BYTES = 8 << 20
MOST_TILES = 8  # in one request
COARSER = (1, 2, 4, 8, 16, 32)  # factors of the bucket length: shown until the requested tile arrives
PATIENCE_NS = 10 * 10**9  # a tile is requested again after this time without an answer
LATE_NS = 5 * 10**9  # rows younger than this may be missing from an answer
STEPS = ""
"""The name that stands for the iterations of a source."""
_ANY = "iteration_s"  # a request without names would be about all metrics


class TileRequest(NamedTuple):
    """One request: the tiles `first` to `last` of some metrics, in buckets of `step` ns."""

    source: str
    names: tuple[str, ...]
    step: int
    first: int
    last: int

    @property
    def asked(self) -> tuple[str, ...]:
        """The names to request."""
        return tuple(name for name in self.names if name != STEPS) or (_ANY,)

    @property
    def t0(self) -> int:
        return self.first * self.step * TILE or 1  # 0 would stand for the first row

    @property
    def t1(self) -> int:
        return (self.last + 1) * self.step * TILE - 1 or -1

    @property
    def points(self) -> int:
        return (self.last - self.first + 1) * TILE


class Part(NamedTuple):
    """The entries held from `t0` to `t1`, both included."""

    t0: int
    t1: int
    entries: Entries


class _Tile(NamedTuple):
    end: int  # everything up to this stamp is known
    entries: Entries


class Closeups:
    """The tiles of all metrics of a store. Stamps are the node's. The caller holds the store's lock."""

    def __init__(self) -> None:
        self._tiles: Cache[_Tile] = Cache(MOST_BYTES, lambda tile: entries_bytes(tile.entries))
        self._wishes: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._asked: dict[tuple[str, str, int, int], int] = {}

    @property
    def wished(self) -> bool:
        """Whether there is anything to request."""
        return bool(self._wishes)

    def wish(self, source: str, name: str, t0: int, t1: int, width: int, now: int) -> bool:
        """Request what is not held between two stamps, in buckets no longer than `width` ns.

        Only the last wish of a metric counts. Returns whether the wish is new.
        """
        before = self._wishes.pop((source, name), None)
        step = _step(width)
        length = step * TILE
        lacking = [
            number
            for number in range(t0 // length, t1 // length + 1)
            if self._lacks((source, name, step, number), min(t1, (number + 1) * length - 1), now)
        ]
        if not lacking:
            return False
        wish = (step, lacking[0], min(lacking[-1], lacking[0] + MOST_TILES - 1))
        self._wishes[source, name] = wish
        return wish != before

    def take(self, most: int, now: int) -> list[TileRequest]:
        """Return at most `most` requests. Each is for all metrics of a source with the same wish."""
        alike: dict[tuple[str, int, int, int], list[str]] = {}
        for (source, name), wanted in self._wishes.items():
            alike.setdefault((source, *wanted), []).append(name)
        looks = [
            TileRequest(source, tuple(names), step, first, last)
            for (source, step, first, last), names in list(alike.items())[: max(0, most)]
        ]
        for look in looks:
            for name in look.names:
                del self._wishes[look.source, name]
                for number in range(look.first, look.last + 1):
                    self._asked[look.source, name, look.step, number] = now
        return looks

    def put(self, look: TileRequest, answer: Buckets) -> None:
        """Cache an answer."""
        length = look.step * TILE
        for name in look.names:
            found = iterations(answer) if name == STEPS else known_entries(answer, name)
            for number in range(look.first, look.last + 1):
                key = (look.source, name, look.step, number)
                asked = self._asked.pop(key, None)
                if asked is None:
                    continue
                a, b = bisect_left(found.t, number * length), bisect_left(found.t, (number + 1) * length)
                entries = no_entries()
                entries.take(found, a, b)
                self._tiles.put(key, _Tile(min(asked - LATE_NS, (number + 1) * length - 1), entries))

    def reconnected(self) -> None:
        """Drop pending requests after a reconnect: they will not be answered."""
        self._asked.clear()

    def parts(self, source: str, name: str, t0: int, t1: int, width: int) -> Iterator[Part]:
        """Yield what is held between two stamps, oldest first, in buckets of about `width` ns."""
        step = _step(width)
        length = step * TILE
        for number in range(t0 // length, t1 // length + 1):
            a, b = max(t0, number * length), min(t1, (number + 1) * length - 1)
            for coarser in COARSER:
                tile = self._tiles.get((source, name, step * coarser, number // coarser))
                if tile is not None and tile.end >= a:
                    b = min(b, tile.end)
                    found = no_entries()
                    found.take(tile.entries, bisect_left(tile.entries.t, a), bisect_right(tile.entries.t, b))
                    yield Part(a, b, found)
                    break

    def _lacks(self, key: tuple[str, str, int, int], end: int, now: int) -> bool:
        """Return whether a tile must be requested to know everything until `end`."""
        asked = self._asked.get(key)
        if asked is not None and now - asked < PATIENCE_NS:
            return False
        tile = self._tiles.get(key)
        return tile is None or tile.end < min(end, now - 2 * LATE_NS)


def iterations(answer: Buckets) -> Entries:
    """Return the iteration at the end of each bucket."""
    steps = array("d", map(float, array("q", answer.step)))
    return Entries(array("q", answer.t), steps, steps, steps)


def _step(width: int) -> int:
    """Return the greatest power of two that is not above `width`."""
    return 1 << max(1, width).bit_length() - 1
