"""Rows between the training thread and the daemon, without I/O.

They are packed as columns and kept for a while, so that they can be sent again. Lost rows are counted.
"""

from __future__ import annotations

from collections import deque

from hoptui.domain.columns import Columns, pack
from hoptui.sdk.metric_values import TimedRow, clean_name

RESEND_S = 30.0
"""Rows younger than this can be sent again to a daemon that lost them."""
RESEND_ROWS = 4096
MESSAGE_BYTES = 256 << 10
TAKEN_AT_ONCE = 1024
PART_ROWS = 256
"""Rows of one part. The limit keeps a part below the size of a message."""


class SendBuffer:
    """The rows of one source, in order. Only the link thread calls it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._recent: deque[Columns] = deque()
        self._unsent: deque[Columns] = deque()
        self._taken = 0
        self._pushed_out = 0
        self._too_old = 0

    @property
    def dropped(self) -> int:
        """The number of rows that no daemon will get: replaced by newer ones, or too old."""
        return self._pushed_out + self._too_old

    @property
    def has_rows(self) -> bool:
        """Whether there are rows to send."""
        return bool(self._unsent)

    def collect(self, rows: deque[TimedRow], added: int, now_ns: int) -> int:
        """Take rows from `rows`, to which the training thread appends. Return how many.

        `added` is how many rows were ever appended, as read before this call. Rows that are too old at
        `now_ns` (monotonic) to be sent again are dropped.
        """
        taken: list[TimedRow] = []
        while rows and len(taken) < TAKEN_AT_ONCE:
            taken.append(rows.popleft())
        self._taken += len(taken)
        # More rows may have been appended since. Then this is too low for now, and never too high.
        self._pushed_out = max(self._pushed_out, added - len(rows) - self._taken)
        for part in _packed(self._source, taken):
            self._recent.append(part)
            self._unsent.append(part)
        self._forget(now_ns - int(RESEND_S * 1e9))
        return len(taken)

    def batch(self) -> tuple[Columns, ...]:
        """Return the content of the next message, empty if no row waits."""
        parts: list[Columns] = []
        size = 0
        for part in self._unsent:
            size += len(part) * 8 * (len(part.names) + 2) + 40 * len(part.names)
            if parts and size > MESSAGE_BYTES:
                break
            parts.append(part)
        return tuple(parts)

    def sent(self, batch: tuple[Columns, ...]) -> None:
        """Remove a batch that was sent."""
        for _ in batch:
            self._unsent.popleft()

    def resend_after(self, since: int) -> None:
        """Send all rows after `since` (monotonic ns) again, because the daemon lacks them."""
        self._unsent = deque(new for part in self._recent if len(new := part.after(since)))

    def rename(self, source: str) -> None:
        """Use another source for new rows, and drop the rows that wait."""
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


def _packed(source: str, rows: list[TimedRow]) -> list[Columns]:
    plain = [
        (t, step, values if all(map(_is_clean, values)) else {clean_name(n): v for n, v in values.items()})
        for t, step, values in rows
    ]
    return [pack(source, plain[i : i + PART_ROWS]) for i in range(0, len(plain), PART_ROWS)]


def _is_clean(name: object) -> bool:
    """Return whether a metric's name can be sent unchanged."""
    return type(name) is str and len(name) <= 100 and name.isascii()
