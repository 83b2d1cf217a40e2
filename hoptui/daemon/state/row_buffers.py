"""The newest rows of every source in memory, so that live viewers never wait for a disk."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from hoptui.domain.columns import NAN, Columns, concatenate

MAX_ROWS = 8192
MAX_BYTES = 8 << 20
JOINED = 64
"""Parts of one row each are joined to parts of this many rows: a tenth of the memory, and fast to scan."""

RECENT_NS, RECENT_ROWS = 750_000_000, 8
"""A GPU's row is complete at least every half second. Rows one second apart are never mixed."""


class Ring:
    """Rows of one source, oldest first, bounded in number and bytes.

    `dropped` counts the rows that had to make room for newer ones. The part added last is always kept.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.last_t = 0
        self.dropped = 0
        self._parts: deque[Columns] = deque()
        self._rows = 0
        self._bytes = 0
        self._single = 0  # number of parts at the end that wait to be joined

    @property
    def first_t(self) -> int:
        """The stamp of the oldest row, 0 if there is none."""
        return self._parts[0].times()[0] if self._parts else 0

    def append(self, columns: Columns) -> Columns:
        """Add rows that are newer than everything here, and return them."""
        new = columns.after(self.last_t)
        if len(new):
            self._parts.append(new)
            self.last_t = new.last_t
            self._rows += len(new)
            self._bytes += new.size_bytes
            self._single = self._single + 1 if len(new) < JOINED else 0
            if self._single == JOINED:
                self._join()
            while len(self._parts) > 1 and (self._rows > MAX_ROWS or self._bytes > MAX_BYTES):
                gone = self._parts.popleft()
                self._rows -= len(gone)
                self._bytes -= gone.size_bytes
                self.dropped += len(gone)
            self._single = min(self._single, len(self._parts))  # wide rows: some of them may be gone
        return new

    def _join(self) -> None:
        """Make one part of the last ones."""
        parts = [self._parts.pop() for _ in range(self._single)]
        joined = concatenate(self.source, reversed(parts))
        self._bytes += joined.size_bytes - sum(part.size_bytes for part in parts)
        self._parts.append(joined)
        self._single = 0

    def since(self, t: int, max_rows: int) -> tuple[Columns | None, bool]:
        """At most `max_rows` rows newer than `t`, oldest first, and whether there are more."""
        if t >= self.last_t:
            return None, False
        found: list[Columns] = []
        for part in reversed(self._parts):
            if part.last_t <= t:
                break
            found.append(part.after(t))
        rows = concatenate(self.source, reversed(found))
        return (rows.slice(0, max_rows), True) if len(rows) > max_rows else (rows, False)

    def names(self, after: int) -> set[str]:
        """The metrics of the rows that are newer than `after`."""
        layouts = {part.names for part in self._newest(MAX_ROWS, after)}
        return {name for layout in layouts for name in layout}

    def parts(self) -> list[Columns]:
        """Everything here, oldest first; the list is the caller's."""
        return list(self._parts)

    def newest(self, count: int) -> Columns:
        """The last `count` rows."""
        return concatenate(self.source, self._newest(count)).slice(-count)

    def excerpt(self, names: Iterable[str], *, after: int = 0, most: int = MAX_ROWS) -> Columns:
        """The newest `most` rows that are newer than `after`, with these names alone: who looks at many rows
        needs few names."""
        parts = self._newest(most, after)
        return _excerpt(self.source, parts, dict.fromkeys(names)).slice(-most).after(after)

    def _newest(self, count: int, after: int = 0) -> list[Columns]:
        """The last parts, oldest first, that have `count` rows or some more, or all of those newer than
        `after`."""
        found: list[Columns] = []
        rows = 0
        for part in reversed(self._parts):
            if rows >= count or part.last_t <= after:
                break
            found.append(part)
            rows += len(part)
        found.reverse()
        return found

    def last(self) -> Columns | None:
        """The newest row. What fast ticks leave out is in it as it was within `RECENT_NS` before."""
        if not self._parts:
            return None
        rows = self.newest(RECENT_ROWS).after(self.last_t - RECENT_NS)
        return one_row(self.source, self.last_t, rows.steps()[-1], rows.last())


class Rings:
    """A ring a source."""

    def __init__(self) -> None:
        self._rings: dict[str, Ring] = {}

    def __iter__(self) -> Iterator[Ring]:
        return iter(list(self._rings.values()))

    def get(self, source: str) -> Ring | None:
        return self._rings.get(source)

    def append(self, columns: Columns) -> Columns:
        """Add new rows, and return those that were new."""
        ring = self._rings.get(columns.source)
        if ring is None:
            ring = self._rings[columns.source] = Ring(columns.source)
        return ring.append(columns)

    def forget(self, source: str) -> None:
        self._rings.pop(source, None)


def one_row(source: str, t: int, step: int, values: dict[str, float]) -> Columns:
    """Return a single row, for answers with newest values."""
    raw = array("d", values.values()).tobytes()
    return Columns(
        source=source,
        names=tuple(values),
        t=t.to_bytes(8, "little", signed=True),
        step=step.to_bytes(8, "little", signed=True),
        values=tuple([raw[i : i + 8] for i in range(0, len(raw), 8)]),
    )


def _excerpt(source: str, parts: Sequence[Columns], names: Iterable[str]) -> Columns:
    """Return these columns of the parts as one. A name that no part has is left out."""
    places = {
        layout: dict(zip(layout, range(len(layout)), strict=True)) for layout in {p.names for p in parts}
    }
    kept = tuple(name for name in names if any(name in at for at in places.values()))
    return Columns(
        source=source,
        names=kept,
        t=b"".join(part.t for part in parts),
        step=b"".join(part.step for part in parts),
        values=tuple(
            b"".join(_values(part, places[part.names].get(name)) for part in parts) for name in kept
        ),
    )


def _values(part: Columns, place: int | None) -> bytes:
    return (array("d", [NAN]) * len(part)).tobytes() if place is None else part.values[place]
