"""Which rows a viewer requests, and how much at once. No I/O.

A viewer follows sources, and stores the stamp it has of each and the past it still lacks. It requests the
past of a new source first, by Query: the last minute, the last ten minutes, then all of it, each in as many
buckets. Then it fetches the rows that follow. So a late attach costs few answers, however long the run is.

A viewer has one Fetch in flight at a time, so a link is never overloaded. On a slow link each answer takes
long, and its data is that old. So the viewer sends fewer requests over a slow link, for fewer sources and a
coarser past. The link then carries at most about 30 KB/s.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from hoptui.domain import pacing
from hoptui.domain.columns import Columns, head_of
from hoptui.model.detail_requests import TileRequest
from hoptui.model.store import Store
from hoptui.protocol.messages import Buckets, Query

LATE_S = 0.5
"""Two successive answers that took longer than this mean that too much is requested over the link."""
RECOVER_S = 30.0
"""Requests grow again after this long without a late answer, then after twice that. So a link at its limit
does not alternate."""
HUNGRY_RATE, MODEST_RATE = 600e3, 60e3
"""Rates of answers about the past, in bytes/s, from which a link can carry everything, or most."""
LEAST_BYTES = 2048
"""Smaller answers measure the latency rather than the rate."""


class Appetite(NamedTuple):
    """How much is requested.

    `frame_s` is the seconds between two Fetches, unless rows were held back. `rows` and `values` limit a
    source per Fetch. `points` limits the buckets of a Query, `past_bytes` the size of its answer, which
    delays everything behind it. `at_once` is the number of concurrent Queries. `every_source` follows all
    sources, else only the most important.
    """

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
    """Return the bytes of a message on the link, which ssh compresses.

    Metrics of idle GPUs compress ten times better than changing ones. Judging the link by raw size could
    block it for many seconds.
    """
    return len(zlib.compress(b"".join(frames), 1))


class Flow:
    """Estimates the capacity of a link from every answer.

    A remote link begins with few requests until it has carried some. A local daemon has no limit.
    """

    def __init__(self, *, remote: bool = False) -> None:
        self.appetite = THRIFTY if remote else HUNGRY
        self.slow = False
        self._remote = remote
        self._late = 0
        self._late_at = 0.0
        self._recover_s = RECOVER_S

    def carried(self, size: int, seconds: float, now: float) -> None:
        """Process an answer about the past: `size` bytes on the link in `seconds`.

        The time counts from the request, or from the previous answer if that was later.
        """
        if self._remote and size >= LEAST_BYTES:
            rate = size / max(seconds, 1e-3)
            self._take(HUNGRY if rate >= HUNGRY_RATE else MODEST if rate >= MODEST_RATE else THRIFTY, now)

    def answered(self, under_way_s: float, now: float) -> None:
        """Process a Delta that took `under_way_s`, by the node's stamp in it."""
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
RETURN_S = 30.0  # a source that was left for less than this continues where it was


@dataclass
class _Source:
    """A followed source. `cursor` is the stamp of the newest row held, None until its past is known.

    The past was requested from `since` on; `end` is where the past ended when that began.
    """

    end: int
    since: int
    cursor: int | None = None
    left: float | None = None


class Following:
    """What to request next, given the contents of the store.

    `begun` counts the sources whose past has begun to arrive.
    """

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
        """Follow this run's rows, its process and derived values (None: no run), the host and the GPUs."""
        self._run = run
        self.refresh(now)

    def refresh(self, now: float) -> None:
        """Update the followed sources. Call it whenever the state of the node may have changed."""
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
        """Repeat pending requests after a reconnect. Stamps stay valid: they are the node's own clock."""
        self._waiting = [*self._asked.values(), *self._waiting]
        self._asked, self._looks = {}, {}
        self._store.reconnected()

    def cursors(self) -> dict[str, int]:
        """Return source -> stamp of the newest row held, for a Fetch."""
        held = self._sources.items()
        return {name: s.cursor for name, s in held if s.cursor is not None and s.left is None}

    def queries(self) -> list[Query]:
        """Return the Queries to send now."""
        room = max(0, self.appetite.at_once - len(self._asked) - len(self._looks))
        sent = [replace(query, points=self._points(query)) for query in self._waiting[:room]]
        del self._waiting[:room]
        self._asked.update((query.id, query) for query in sent)
        return [*sent, *map(self._closer, self._store.looks(room - len(sent)))]

    def follows(self, name: str) -> bool:
        """Return whether this source's rows are, or will be, fetched in sequence."""
        source = self._sources.get(name)
        return source is not None and source.left is None

    def fetched(self, parts: Iterable[Columns], most: int = 0) -> None:
        """Process rows, at most `most` per source. The next Fetch begins after them."""
        for columns in parts:
            source = self._sources.get(columns.source)
            if source is not None and source.cursor is not None and len(columns):
                source.cursor = max(source.cursor, columns.last_t)
                if len(columns) >= most and not self.appetite.every_source:
                    # the link is too slow for all rows: newer ones matter more
                    source.cursor = self._store.now()

    def answered(self, query_id: int, buckets: Buckets | None) -> bool:
        """Process the answer to a Query (None: an error, so there is no past). False for an unknown id."""
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
        """Return the sources to follow, the most important first."""
        node = self._store.node
        gpus = [f"gpu/{gpu.uuid}" for gpu in node.gpus] if node else []
        run = self._store.run(self._run) if self._run else None
        if run is None:
            return ["host", *gpus]
        own = [gpu for gpu in gpus if gpu.removeprefix("gpu/") in run.gpus]
        others = [gpu for gpu in gpus if gpu not in own]
        ranks = [f"rank/{run.run}/{rank.rank}" for rank in run.ranks]
        own_rows = f"run/{run.run}"
        metrics = [own_rows, head_of(own_rows)] if run.head is not None else [own_rows]
        if not self.appetite.every_source:  # the last values of the others still come at intervals
            return [*metrics, *own, f"derived/{run.run}", "host"]
        return [*metrics, *own, f"derived/{run.run}", "host", f"process/{run.run}", *ranks, *others]

    def _begin(self, name: str) -> None:
        """Request the last minute up to now, or up to the last row of a run that has ended."""
        now = self._store.now()
        run = self._store.run(self._run) if self._run else None
        vital = self._store.vital(self._run) if self._run else None
        if run is not None and run.exit_reason and vital is not None and vital.last_t:
            now = vital.last_t
        self._store.forget(name)
        self._sources[name] = source = _Source(end=now, since=max(1, now - FINE_NS))
        self._ask(name, source.since, 0)

    def _reach_back(self, name: str, source: _Source) -> None:
        """Once the later part is there, request the stretch before it, if more is needed."""
        if source.cursor is not None and (before := self._before(name, source)) < source.since:
            self._ask(name, before, source.since)
            source.since = before

    def _before(self, name: str, source: _Source) -> int:
        """Return where the next stretch begins: minutes ago, then the run's start.

        The run's own rows may be older, from an earlier epoch.
        """
        recent = max(1, source.end - RECENT_NS)
        node = self._store.node
        run = self._store.run(self._run) if self._run else None
        if recent < source.since or node is None or run is None:
            return recent
        return (
            0 if name.endswith(f"/{run.run}") else max(1, int(run.started_wall * 1e9) - node.wall_offset_ns)
        )

    def _points(self, query: Query) -> int:
        """Return the number of buckets that fits into the answer.

        Coarse buckets arrive soon, and visible parts are requested in finer ones.
        """
        metrics = max(1, len(self._store.names(query.source)))
        return max(
            LEAST_POINTS, min(self.appetite.points, self.appetite.past_bytes // (BUCKET_BYTES * metrics))
        )

    def _closer(self, look: TileRequest) -> Query:
        """Return the Query for a visible stretch."""
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
