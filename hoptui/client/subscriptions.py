"""Which rows a viewer requests, and how much at once. No I/O.

A viewer follows sources, and keeps the stamp it has of each and the past it still lacks. It requests the past
of a new source first, by Query: the last minute, the last ten minutes, then all of it, each in as many
buckets. Then it fetches the rows that follow. So a late attach costs few answers, however long the run is.

A viewer has one Fetch on its way at a time, so no line is ever overrun. On a slow line each answer takes
long, and what it shows is as old as that. So the viewer sends fewer requests over a slow line, for fewer
sources and a coarser past. The line then carries at most some 30 KB a second.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from hoptui.domain import pacing
from hoptui.domain.columns import Columns
from hoptui.model.detail_requests import TileRequest
from hoptui.model.store import Store
from hoptui.protocol.messages import Buckets, Query

LATE_S = 0.5
"""An answer that was longer under way than this, twice in a row, came over a line that is asked for too
much."""
RECOVER_S = 30.0
"""After so long without one more is asked for again; after twice that the next time, so that a line at its
limit does not flutter."""
HUNGRY_RATE, MODEST_RATE = 600e3, 60e3
"""Bytes a second, of answers about the past, from which on a line carries everything, or most."""
LEAST_BYTES = 2048
"""What is smaller tells more of the distance than of the rate."""


class Appetite(NamedTuple):
    """What is asked for: seconds between two Fetches, unless rows were held back; rows of a source, and
    values in them, at most; buckets of a Query at most, and bytes of its answer, behind which all else waits;
    Queries at once; whether all sources are followed or only the most telling."""

    frame_s: float
    rows: int
    values: int
    points: int
    past_bytes: int
    at_once: int
    every_source: bool


HUNGRY = Appetite(
    frame_s=pacing.FETCH_S,
    rows=2000,
    values=1 << 20,
    points=512,
    past_bytes=1 << 20,
    at_once=4,
    every_source=True,
)
MODEST = Appetite(
    frame_s=pacing.FETCH_MODEST_S,
    rows=500,
    values=1 << 14,
    points=256,
    past_bytes=64_000,
    at_once=1,
    every_source=True,
)
THRIFTY = Appetite(
    frame_s=pacing.FETCH_THRIFTY_S,
    rows=60,
    values=1000,
    points=64,
    past_bytes=24_000,
    at_once=1,
    every_source=False,
)


def on_the_line(frames: Iterable[bytes]) -> int:
    """The bytes that a message took of a line: ssh compresses it. GPUs that do nothing are a tenth of what
    metrics that move are, and a line judged by the one would be stopped by the other for many seconds."""
    return len(zlib.compress(b"".join(frames), 1))


class Flow:
    """Tell it of every answer. A line begins with little, until it has carried some; there is none to a
    daemon of this node."""

    def __init__(self, *, remote: bool = False) -> None:
        self.appetite = THRIFTY if remote else HUNGRY
        self.slow = False
        self._remote = remote
        self._late = 0
        self._late_at = 0.0
        self._recover_s = RECOVER_S

    def carried(self, size: int, seconds: float, now: float) -> None:
        """An answer about the past, of so many bytes on the line, was there so long after it was asked for
        and after the one before it."""
        if self._remote and size >= LEAST_BYTES:
            rate = size / max(seconds, 1e-3)
            self._take(HUNGRY if rate >= HUNGRY_RATE else MODEST if rate >= MODEST_RATE else THRIFTY, now)

    def answered(self, under_way_s: float, now: float) -> None:
        """A Delta came that was so long under way, by the node's own stamp in it."""
        if not self._remote:
            return
        self._late = self._late + 1 if under_way_s > LATE_S else 0
        if self._late:
            self._late_at = now
        if self._late > 1 and self.appetite is not THRIFTY:
            self._take(THRIFTY, now)
            self._recover_s *= 2
        elif self._late > 1:
            self.slow = True
        elif self.slow and now - self._late_at >= self._recover_s:
            self._take(MODEST, now)

    def _take(self, appetite: Appetite, now: float) -> None:
        self.appetite = appetite
        self.slow = appetite is THRIFTY
        self._late = 0
        self._late_at = now


FINE_NS = 60 * 10**9
RECENT_NS = 600 * 10**9
BUCKET_BYTES = 24  # the least, greatest and mean of a metric
LEAST_POINTS = 8
RETURN_S = 30.0  # a source left for no longer than this is taken up again where it was


@dataclass
class _Source:
    """`cursor` is the stamp of the newest row held, None until its past is known.

    The past was asked for from `since` on; `end` is where it ended when that began.
    """

    end: int
    since: int
    cursor: int | None = None
    left: float | None = None


class Following:
    """What to ask next, given what has arrived in the store. `begun` counts the sources whose past has begun
    to arrive."""

    def __init__(self, store: Store, ids: Iterator[int], appetite: Appetite = HUNGRY) -> None:
        self.appetite = appetite
        self.begun = 0
        self._store = store
        self._ids = ids
        self._run: str | None = None
        self._sources: dict[str, _Source] = {}
        self._waiting: list[Query] = []
        self._asked: dict[int, Query] = {}
        self._looks: dict[int, TileRequest] = {}

    @property
    def run(self) -> str | None:
        """The run whose rows are followed."""
        return self._run

    def watch(self, run: str | None, now: float) -> None:
        """Follow this run's rows, its process and what is derived of it, or none, beside the host and the
        GPUs."""
        self._run = run
        self.refresh(now)

    def refresh(self, now: float) -> None:
        """Follow what there is to follow: called whenever the state of the node may have changed."""
        wanted = self._wanted()
        for query in [query for query in self._waiting if query.source not in wanted]:
            self._waiting.remove(query)
            self._sources.pop(query.source, None)
        for name, source in self._sources.items():
            if name not in wanted and source.left is None:
                source.left = now
        for name in wanted:
            known = self._sources.get(name)
            if known is None or (known.left is not None and now - known.left > RETURN_S):
                self._begin(name)
            else:
                known.left = None
                self._reach_back(name, known)

    def reconnected(self) -> None:
        """What was asked will not be answered any more: ask again. Stamps stay good: they are the node's own
        clock."""
        self._waiting = [*self._asked.values(), *self._waiting]
        self._asked, self._looks = {}, {}
        self._store.reconnected()

    def cursors(self) -> dict[str, int]:
        """Source to the stamp of the newest row held, for a Fetch."""
        held = self._sources.items()
        return {name: s.cursor for name, s in held if s.cursor is not None and s.left is None}

    def queries(self) -> list[Query]:
        """The questions about the past to send now."""
        room = max(0, self.appetite.at_once - len(self._asked) - len(self._looks))
        sent = [replace(query, points=self._points(query)) for query in self._waiting[:room]]
        del self._waiting[:room]
        self._asked.update((query.id, query) for query in sent)
        return [*sent, *map(self._closer, self._store.looks(room - len(sent)))]

    def follows(self, name: str) -> bool:
        """Whether this source's rows are, or will be, fetched one after the other."""
        source = self._sources.get(name)
        return source is not None and source.left is None

    def fetched(self, parts: Iterable[Columns], most: int = 0) -> None:
        """Rows arrived, of each source no more than `most`: the next Fetch begins after them."""
        for columns in parts:
            source = self._sources.get(columns.source)
            if source is not None and source.cursor is not None and len(columns):
                source.cursor = max(source.cursor, columns.times()[-1])
                if len(columns) >= most and not self.appetite.every_source:
                    source.cursor = self._store.now()  # more than it carries: what comes now is worth more

    def answered(self, query_id: int, buckets: Buckets | None) -> bool:
        """A Query was answered (None: with an error, so that there is no past); False if it was none of
        these."""
        look = self._looks.pop(query_id, None)
        if look is not None:
            if buckets is not None:
                self._store.apply_look(look, buckets)
            return True
        query = self._asked.pop(query_id, None)
        if query is None:
            return False
        source = self._sources.get(query.source)
        if source is None or source.left is not None:
            self._sources.pop(query.source, None)
            return True
        if buckets is not None:
            self._store.apply_buckets(buckets)
        if source.cursor is None:
            self.begun += 1
            end = buckets.t[-8:] if buckets is not None else b""
            source.cursor = max(query.t0, int.from_bytes(end, "little", signed=True))
        self._reach_back(query.source, source)
        return True

    def _wanted(self) -> list[str]:
        """The sources to follow, the most telling first."""
        node = self._store.node
        gpus = [f"gpu/{gpu.uuid}" for gpu in node.gpus] if node else []
        run = self._store.run(self._run) if self._run else None
        if run is None:
            return ["host", *gpus]
        own = [gpu for gpu in gpus if gpu.removeprefix("gpu/") in run.gpus]
        others = [gpu for gpu in gpus if gpu not in own]
        ranks = [f"rank/{run.run}/{rank.rank}" for rank in run.ranks]
        if not self.appetite.every_source:  # the others' last values still come now and then
            return [f"run/{run.run}", *own, f"derived/{run.run}", "host"]
        return [f"run/{run.run}", *own, f"derived/{run.run}", "host", f"process/{run.run}", *ranks, *others]

    def _begin(self, name: str) -> None:
        """Ask for the last minute up to now, or up to the last row of a run that is over."""
        now = self._store.now()
        run = self._store.run(self._run) if self._run else None
        vital = self._store.vital(self._run) if self._run else None
        if run is not None and run.exit_reason and vital is not None and vital.last_t:
            now = vital.last_t
        self._store.forget(name)
        self._sources[name] = source = _Source(end=now, since=max(1, now - FINE_NS))
        self._ask(name, source.since, 0)

    def _reach_back(self, name: str, source: _Source) -> None:
        """Once what comes later is there, ask for the next stretch before it, if more is wanted."""
        if source.cursor is not None and (before := self._before(name, source)) < source.since:
            self._ask(name, before, source.since)
            source.since = before

    def _before(self, name: str, source: _Source) -> int:
        """Where the next stretch begins: minutes ago, then the run's start; its own rows may be older (an
        earlier epoch)."""
        recent = max(1, source.end - RECENT_NS)
        node = self._store.node
        run = self._store.run(self._run) if self._run else None
        if recent < source.since or node is None or run is None:
            return recent
        return (
            0 if name.endswith(f"/{run.run}") else max(1, int(run.started_wall * 1e9) - node.wall_offset_ns)
        )

    def _points(self, query: Query) -> int:
        """As many buckets as the answer has room for: coarse ones are soon there, and what somebody looks at
        is asked for closer."""
        metrics = max(1, len(self._store.names(query.source)))
        return max(
            LEAST_POINTS, min(self.appetite.points, self.appetite.past_bytes // (BUCKET_BYTES * metrics))
        )

    def _closer(self, look: TileRequest) -> Query:
        """The question about what somebody looks at."""
        query = Query(
            id=next(self._ids),
            source=look.source,
            run=self._run or "",
            names=look.asked,
            t0=look.t0,
            t1=look.t1,
            points=look.points,
        )
        self._looks[query.id] = look
        return query

    def _ask(self, name: str, t0: int, t1: int) -> None:
        run = self._run or ""
        self._waiting.append(Query(id=next(self._ids), source=name, run=run, t0=t0, t1=t1))
