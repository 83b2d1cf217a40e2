"""The rows that a run sends: packed as columns, kept for a while to be sent again, and counted when lost."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from hoptui.domain.columns import LOGGED_NAN, Columns, pack
from hoptui.sdk.metric_values import QueuedRow, TimedRow, clean_name, complete

RESEND_S = 30.0
"""Rows that were sent and are younger than this can be sent again to a daemon that lost them."""
RESEND_ROWS = 4096
"""The rows that are kept at most. Those that wait to be sent are kept however old they are."""
MESSAGE_BYTES = 256 << 10
TAKEN_AT_ONCE = 1024
FORGOTTEN = 1024
"""Stretches of rows that were sent and are too old to be sent again. Old ones are joined beyond that."""
PART_ROWS = 256
"""Rows of one part. Wide rows have fewer, so that a part stays below the size of a message."""


class _Past(NamedTuple):
    """Rows that were sent and cannot be sent again: the stamps of the oldest and the newest, and how many."""

    oldest: int
    newest: int
    rows: int

    def after(self, t: int) -> int:
        """Return how many are newer than `t`. Where several parts were joined, they are taken as even."""
        if t < self.oldest or self.newest <= t:
            return 0 if self.newest <= t else self.rows
        return self.rows - 1 - (self.rows - 1) * (t - self.oldest) // (self.newest - self.oldest)

    def split(self, t: int) -> tuple[_Past | None, int]:
        """Return the part up to `t`, None if there is none, and how many rows are newer."""
        newer = self.after(t)
        older = self.rows - newer
        return (_Past(self.oldest, min(self.newest, t), older) if older else None), newer


class SendBuffer:
    """The rows of one source, in order. Only the link thread calls it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._recent: deque[Columns] = deque()
        self._kept = 0  # rows in it
        self._unsent: deque[Columns] = deque()
        self._taken = 0
        self._pushed_out = 0
        self._never_sent = 0
        self._never_arrived = self.doubted = 0
        self._forgotten: list[_Past] = []
        self._doubtful: list[_Past] = []  # from before a daemon that did not know what was stored
        self._sent_t = 0  # stamp of the newest row that was ever sent
        self._unclear_t = 0  # the daemon does not know whether rows up to this stamp are stored

    @property
    def dropped(self) -> int:
        """The number of rows that no daemon will get: pushed out by newer ones, too large, or sent in vain.

        `doubted` of them may have arrived, which nobody can know any more.
        """
        return self._pushed_out + self._never_sent + self._never_arrived + self.doubted

    @property
    def past_rows(self) -> int:
        """The number of rows that were sent, cannot be sent again, and may not have been stored."""
        return sum(past.rows for past in (*self._doubtful, *self._forgotten))

    @property
    def has_rows(self) -> bool:
        """Whether there are rows to send."""
        return bool(self._unsent)

    def collect(self, rows: deque[QueuedRow], added: int, now_ns: int) -> int:
        """Take rows from `rows`, to which the training thread appends. Return how many.

        `added` is how many rows were ever appended, as read before this call. Rows that were sent and are too
        old at `now_ns` (monotonic) to be sent again are forgotten.
        """
        taken: list[TimedRow] = []
        while rows and len(taken) < TAKEN_AT_ONCE:
            taken.append(complete(rows.popleft()))
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
        self._never_sent += count

    def abandon(self) -> int:
        """Count the rows that wait as lost, because nothing more is sent. Return how many."""
        waiting = sum(map(len, self._unsent))
        unclear = sum(len(part) for part in self._unsent if part.last_t <= self._unclear_t)
        self._unsent.clear()
        self._never_sent += waiting - unclear
        self.doubted += unclear  # they were sent before, and may be stored
        return waiting

    def sent(self, batch: tuple[Columns, ...]) -> None:
        """Remove a batch that was sent."""
        for _ in batch:
            self._sent_t = max(self._sent_t, self._unsent.popleft().last_t)

    def resend_after(self, since: int, on_disk: int | None = None) -> None:
        """Send all rows after `since` (monotonic ns) again, because the daemon lacks them.

        Those after `on_disk` are lost if it is killed now. None: they are not, as far as is known.

        A daemon that knows no row of this run (0) may not have read its recording yet. If it is killed before
        it has told what is stored, nobody can know that any more: the rows before it count as lost.
        """
        self._unclear_t = 0 if since else self._sent_t
        forgotten, self._forgotten = self._forgotten, []
        if since:
            self.doubted += sum(past.rows for past in self._doubtful)
            self._doubtful.clear()
        else:
            self._doubtful += forgotten
            forgotten = []
        for past in forgotten:
            held, newer = past.split(since)
            self._never_arrived += newer
            if held is not None and on_disk is not None and held.newest > on_disk:
                self._forgotten.append(held)
        self._unsent = deque(new for part in self._recent if len(new := part.after(since)))

    def stored(self, newest: int) -> None:
        """Count what is lost: earlier daemons have stored rows up to `newest` (0: none) alone."""
        self._never_arrived += sum(past.after(newest) for past in self._doubtful)
        self._doubtful.clear()
        self._unclear_t = 0
        self._unsent = deque(new for part in self._unsent if len(new := part.after(newest)))

    def rename(self, source: str) -> None:
        """Use another source for new rows, and drop the rows that wait."""
        self._source = source
        self._recent.clear()
        self._unsent.clear()
        self._kept = 0

    def _sent_before(self, horizon: int) -> bool:
        """Return whether the oldest rows are older than `horizon`, and do not wait to be sent."""
        newest = self._recent[0].last_t
        return newest < horizon and not (self._unsent and self._unsent[0].last_t <= newest)

    def _forget(self, horizon: int) -> None:
        while self._recent and (self._kept > RESEND_ROWS or self._sent_before(horizon)):
            oldest = self._recent.popleft()
            self._kept -= len(oldest)
            newest, unsent = oldest.last_t, 0
            while self._unsent and self._unsent[0].last_t <= newest:
                unsent += len(self._unsent.popleft())
            if newest > self._unclear_t:
                self._never_sent += unsent
            elif unsent:  # it was sent before, and may be stored
                self._doubtful.append(_Past(oldest.times()[0], newest, unsent))
            if len(oldest) > unsent:
                self._forgotten.append(_Past(oldest.times()[0], newest, len(oldest) - unsent))
        if len(self._forgotten) > FORGOTTEN:
            self._forgotten = _joined(self._forgotten, FORGOTTEN // 2)


def _joined(past: list[_Past], count: int) -> list[_Past]:
    """Join each two neighbours of the first `count`."""
    old = past[:count]
    pairs = zip(old[::2], old[1::2], strict=True)
    return [_Past(a.oldest, b.newest, a.rows + b.rows) for a, b in pairs] + past[count:]


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
