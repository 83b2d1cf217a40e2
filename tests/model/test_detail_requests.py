"""Close-ups: what is asked for when somebody looks closer than the rings reach, and what is then shown."""

from __future__ import annotations

import itertools
import math
from array import array

from hoptui.client.subscriptions import Following
from hoptui.domain.columns import Columns, pack
from hoptui.model.detail_requests import LATE_NS, PATIENCE_NS, STEPS, TILE, Closeups, TileRequest
from hoptui.model.store import Store
from hoptui.protocol.messages import Buckets, Delta, Query
from hoptui.recording.pyramid import buckets
from tests import factories

S = 1_000_000_000
RUN = "r1"
HOUR = 3600 * S
NOW = 10 * HOUR


def rows(t0: int, t1: int, every: int = S // 2) -> Columns:
    """A loss with a spike a quarter of an hour, one iteration a row."""
    found = []
    for t in range(t0, t1, every):
        spike = 9.0 if t % (900 * S) < every else 0.0
        found.append((t, t // every, {"loss": 1.0 + spike, "lr": 0.1}))
    return pack(f"run/{RUN}", found)


ALL = rows(S, NOW)


class Daemon:
    """Answers queries from all rows."""

    def __init__(self) -> None:
        self.now = NOW
        self.store = Store(lambda: self.now)
        self.following = Following(self.store, itertools.count(1))
        run = factories.run(RUN)
        node = factories.node(run, wall_offset_ns=0)
        self.store.apply(Delta(id=1, now=NOW, state=1, node=node))
        self.following.watch(RUN, 0.0)
        self.asked: list[Query] = []

    def settle(self) -> None:
        """Answer until nothing is asked any more."""
        while queries := self.following.queries():
            for query in queries:
                self.asked.append(query)
                parts = (ALL,) if query.source == ALL.source else ()
                answer = buckets(
                    parts, query.source, query.names, query.t0, query.t1, query.points, id=query.id
                )
                self.following.answered(query.id, answer)

    def loss(self, t0: int, t1: int, points: int) -> list[float]:
        series = self.store.series(f"run/{RUN}", "loss")
        assert series is not None
        return [v for v in series.window(t0, t1, points).high if not math.isnan(v)]

    def look(self, t0: int, t1: int, points: int, name: str = "loss") -> None:
        self.store.look_closer(f"run/{RUN}", name, t0, t1, points)


def attached() -> Daemon:
    made = Daemon()
    made.settle()
    made.asked.clear()
    return made


def test_a_look_into_the_past_brings_every_row_of_it() -> None:
    daemon = attached()
    t0, t1 = 2 * HOUR, 2 * HOUR + 60 * S - 1
    assert len(daemon.loss(t0, t1, 200)) < 4  # ten hours in 512 buckets
    series = daemon.store.series(f"run/{RUN}", "loss")
    assert series is not None
    refined = series.refined
    daemon.look(t0, t1, 200)
    daemon.settle()
    assert series.refined > refined
    assert [(query.source, query.names) for query in daemon.asked] == [(f"run/{RUN}", ("loss",))]
    assert daemon.asked[0].t0 <= t0
    assert t1 <= daemon.asked[0].t1
    assert len(daemon.loss(t0, t1, 200)) == 120
    assert max(daemon.loss(t0, t1, 200)) == 10.0


def test_what_is_held_is_not_asked_for_again() -> None:
    daemon = attached()
    for _ in range(3):
        daemon.look(2 * HOUR, 2 * HOUR + 60 * S, 200)
        daemon.settle()
    daemon.look(2 * HOUR + 20 * S, 2 * HOUR + 80 * S, 200)  # panned by a third: the next tile at most
    daemon.settle()
    assert len(daemon.asked) <= 2


def test_all_that_is_charted_of_a_source_is_asked_for_at_once_and_iterations_too() -> None:
    daemon = attached()
    for name in ("loss", "lr", STEPS):
        daemon.look(HOUR, HOUR + 60 * S, 200, name)
    daemon.settle()
    assert [query.names for query in daemon.asked] == [("loss", "lr")]
    steps = daemon.store.steps(f"run/{RUN}")
    assert steps is not None
    found = steps.window(HOUR, HOUR + 10 * S - 1, 200)
    assert list(found.high) == [float(t // (S // 2)) for t in found.t]
    assert len(found.t) == 20


def test_nothing_is_asked_for_what_the_rings_hold() -> None:
    daemon = attached()
    daemon.store.apply(Delta(id=2, now=NOW + 100 * S, state=1, columns=(rows(NOW, NOW + 100 * S),)))
    daemon.look(NOW + 10 * S, NOW + 100 * S, 200)
    daemon.look(S, NOW, 256)  # all of it: as fine as it was seeded
    assert daemon.following.queries() == []


def test_while_the_answer_is_awaited_what_is_known_is_shown_and_it_is_asked_for_once() -> None:
    daemon = attached()
    before = daemon.loss(HOUR, 2 * HOUR, 200)
    daemon.look(HOUR, HOUR + 60 * S, 200)
    assert len(daemon.following.queries()) == 1
    daemon.look(HOUR, HOUR + 60 * S, 200)
    assert daemon.following.queries() == []
    assert daemon.loss(HOUR, 2 * HOUR, 200) == before
    daemon.now += PATIENCE_NS  # it was lost: ask again
    daemon.look(HOUR, HOUR + 60 * S, 200)
    assert len(daemon.following.queries()) == 1


def test_whoever_asks_is_told_of_a_wish_once() -> None:
    daemon = attached()
    told: list[int] = []
    daemon.store.on_wish = lambda: told.append(1)
    for _ in range(3):
        daemon.look(HOUR, HOUR + 60 * S, 200)
    assert len(told) == 1
    daemon.look(2 * HOUR, 2 * HOUR + 60 * S, 200)
    assert len(told) == 2
    daemon.settle()
    daemon.look(2 * HOUR, 2 * HOUR + 60 * S, 200)
    assert len(told) == 2


def test_a_new_connection_asks_at_once_again() -> None:
    daemon = attached()
    daemon.look(HOUR, HOUR + 60 * S, 200)
    assert len(daemon.following.queries()) == 1
    daemon.following.reconnected()
    daemon.look(HOUR, HOUR + 60 * S, 200)
    assert len(daemon.following.queries()) == 1


def test_an_error_leaves_what_is_known() -> None:
    daemon = attached()
    before = daemon.loss(HOUR, 2 * HOUR, 200)
    daemon.look(HOUR, HOUR + 60 * S, 200)
    [query] = daemon.following.queries()
    assert daemon.following.answered(query.id, None)
    assert daemon.loss(HOUR, 2 * HOUR, 200) == before


def answer(look: TileRequest, t: list[int]) -> Buckets:
    values = array("d", [1.0] * len(t)).tobytes()
    return Buckets(
        id=1, source=look.source, names=look.names, t=array("q", t).tobytes(), step=array("q", t).tobytes(),
        low=(values,), high=(values,), mean=(values,),
    )  # fmt: skip


def test_a_tile_that_was_asked_for_before_it_was_over_is_asked_for_again_later() -> None:
    width = 1 << 27
    held, length = Closeups(), TILE * width
    now = 100 * length + 9 * length // 10
    held.wish("host", "x", now - 10, now, width, now)
    [look] = held.take(4, now)
    held.put(look, answer(look, [now - 2 * LATE_NS]))
    assert [part.t1 for part in held.parts("host", "x", now - 3 * LATE_NS, now, width)] == [now - LATE_NS]
    held.wish("host", "x", now - 10, now, width, now)
    assert held.take(4, now) == []
    later = now + 4 * LATE_NS
    held.wish("host", "x", now - 10, now, width, later)
    assert len(held.take(4, later)) == 1


def test_tiles_are_aligned_wherever_they_lie() -> None:
    for t in (-(10**15), -1, 0, 10**15):
        held = Closeups()
        held.wish("host", "x", t, t + 100, 3, 10**18)
        [look] = held.take(1, 10**18)
        assert look.step == 2
        assert look.t0 <= max(t, 1)
        assert t + 100 <= look.t1 or look.t1 == -1
        assert 0 not in (look.t0, look.t1)  # they would stand for the first and the last row
