"""The rows that a run sends: packed as columns, kept for a while to be sent again, and counted when lost."""

from __future__ import annotations

import math
from collections import deque

from hoptui.domain.columns import LOGGED_NAN, Columns, pack
from hoptui.sdk.metric_values import TimedRow, clean_name

RESEND_S = 30.0
"""Rows younger than this can be sent again to a daemon that lost them."""
RESEND_ROWS = 4096
MESSAGE_BYTES = 256 << 10
TAKEN_AT_ONCE = 1024
FORGOTTEN = 1024
"""Parts that were sent and are too old to be sent again, for which it is known whether they arrived."""
PART_ROWS = 256
"""Rows of one part. Wide rows have fewer, so that a part stays below the size of a message."""


class SendBuffer:
    """The rows of one source, in order. Only the link thread calls it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._recent: deque[Columns] = deque()
        self._kept = 0  # rows in it
        self._unsent: deque[Columns] = deque()
        self._taken = 0
        self._pushed_out = 0
        self._too_old = 0
        self._never_arrived = 0
        self._forgotten: deque[tuple[int, int]] = deque(maxlen=FORGOTTEN)  # newest stamp and rows of a part

    @property
    def dropped(self) -> int:
        """The number of rows that no daemon will get: replaced by newer ones, too old, or sent in vain."""
        return self._pushed_out + self._too_old + self._never_arrived

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
            self._kept += len(part)
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

    def lose(self, count: int) -> None:
        """Count rows that cannot be sent."""
        self._too_old += count

    def sent(self, batch: tuple[Columns, ...]) -> None:
        """Remove a batch that was sent."""
        for _ in batch:
            self._unsent.popleft()

    def resend_after(self, since: int) -> None:
        """Send all rows after `since` (monotonic ns) again, because the daemon lacks them."""
        if since:  # a daemon that knows no row of this run may not have read its recording yet
            self._never_arrived += sum(rows for newest, rows in self._forgotten if newest > since)
        self._forgotten.clear()
        self._unsent = deque(new for part in self._recent if len(new := part.after(since)))

    def rename(self, source: str) -> None:
        """Use another source for new rows, and drop the rows that wait."""
        self._source = source
        self._recent.clear()
        self._unsent.clear()
        self._kept = 0

    def _forget(self, horizon: int) -> None:
        while self._recent and (self._recent[0].last_t < horizon or self._kept > RESEND_ROWS):
            oldest = self._recent.popleft()
            self._kept -= len(oldest)
            newest, unsent = oldest.last_t, 0
            while self._unsent and self._unsent[0].last_t <= newest:
                unsent += len(self._unsent.popleft())
            self._too_old += unsent
            if len(oldest) > unsent:
                self._forgotten.append((newest, len(oldest) - unsent))


def _packed(source: str, rows: list[TimedRow]) -> list[Columns]:
    plain = [
        (t, step, values if all(map(_is_clean, values)) else {clean_name(n): v for n, v in values.items()})
        for t, step, values in rows
    ]
    plain = [
        (t, step, values if not math.isnan(sum(values.values())) else _marked(values))
        for t, step, values in plain
    ]
    widest = max((len(values) for _, _, values in plain), default=0)
    most = max(1, min(PART_ROWS, MESSAGE_BYTES // (8 * (widest + 2))))
    return [pack(source, plain[i : i + most]) for i in range(0, len(plain), most)]


def _marked(values: dict[str, float]) -> dict[str, float]:
    """Return the values of a row, each NaN as one that the script logged."""
    return {name: value if value == value else LOGGED_NAN for name, value in values.items()}


def _is_clean(name: object) -> bool:
    """Return whether a metric's name can be sent unchanged."""
    return type(name) is str and len(name) <= 100 and name.isascii()
