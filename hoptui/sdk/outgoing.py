"""Rows on their way to the daemon, without I/O: packed as columns, kept for a while to be sent again, counted where they are lost."""

from __future__ import annotations

from collections import deque

from hoptui.domain.columns import Columns, pack
from hoptui.sdk.values import Entry, plain_name

RESEND_S = 30.0
"""Rows younger than this can be sent again to a daemon that lost them."""
RESEND_ROWS = 4096
MESSAGE_BYTES = 256 << 10
TAKEN_AT_ONCE = 1024
ROWS_OF_A_PART = 256
"""So a part never grows past a message."""


class Outgoing:
    """The rows of one source, in order. All methods are the link thread's; `entries` is what another one appends to."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._recent: deque[Columns] = deque()
        self._unsent: deque[Columns] = deque()
        self._taken = 0
        self._pushed_out = 0
        self._too_old = 0

    @property
    def dropped(self) -> int:
        """Rows that no daemon will see: pushed out by newer ones, or too old before they could be sent."""
        return self._pushed_out + self._too_old

    @property
    def waits(self) -> bool:
        """Whether there are rows to send."""
        return bool(self._unsent)

    def collect(self, entries: deque[Entry], appended: int, now_ns: int) -> int:
        """Take rows out of `entries`, which had been given `appended` before this call; returns how many.

        Those too old to be sent again by `now_ns` (monotonic) are forgotten.
        """
        taken: list[Entry] = []
        while entries and len(taken) < TAKEN_AT_ONCE:
            taken.append(entries.popleft())
        self._taken += len(taken)
        # More may have been appended since: then this is too low for now, and never too high.
        self._pushed_out = max(self._pushed_out, appended - len(entries) - self._taken)
        for part in _packed(self._source, taken):
            self._recent.append(part)
            self._unsent.append(part)
        self._forget(now_ns - int(RESEND_S * 1e9))
        return len(taken)

    def batch(self) -> tuple[Columns, ...]:
        """What the next message should hold; nothing where no row waits."""
        parts: list[Columns] = []
        size = 0
        for part in self._unsent:
            size += len(part) * 8 * (len(part.names) + 2) + 40 * len(part.names)
            if parts and size > MESSAGE_BYTES:
                break
            parts.append(part)
        return tuple(parts)

    def sent(self, batch: tuple[Columns, ...]) -> None:
        """It is on its way."""
        for _ in batch:
            self._unsent.popleft()

    def again(self, since: int) -> None:
        """All rows after `since` (monotonic ns) are to be sent, whether they were before or not: a daemon lacks them."""
        self._unsent = deque(new for part in self._recent if len(new := part.after(since)))

    def rename(self, source: str) -> None:
        """The rows to come are those of another source; the ones that wait are nobody's."""
        self._source = source
        self._recent.clear()
        self._unsent.clear()

    def _forget(self, horizon: int) -> None:
        rows = sum(map(len, self._recent))
        while self._recent and (self._recent[0].times()[-1] < horizon or rows > RESEND_ROWS):
            oldest = self._recent.popleft()
            rows -= len(oldest)
            while self._unsent and self._unsent[0].times()[-1] <= oldest.times()[-1]:
                self._too_old += len(self._unsent.popleft())


def _packed(source: str, entries: list[Entry]) -> list[Columns]:
    plain = [
        (t, step, values if all(map(_travels, values)) else {plain_name(n): v for n, v in values.items()})
        for t, step, values in entries
    ]
    return [pack(source, plain[i : i + ROWS_OF_A_PART]) for i in range(0, len(plain), ROWS_OF_A_PART)]


def _travels(name: object) -> bool:
    """Whether a metric's name can travel as it is."""
    return type(name) is str and len(name) <= 100 and name.isascii()
