"""Which rows a viewer requests, and how much at once."""

from __future__ import annotations

import itertools
import random
from array import array
from typing import Any

import pytest
from msgspec import structs

from hoptui.client.conversation import Conversation, Outbox
from hoptui.client.subscriptions import (
    FINE_NS,
    HUNGRY,
    LATE_S,
    MODEST,
    RECENT_NS,
    RECOVER_S,
    RETURN_S,
    THRIFTY,
    Appetite,
    Flow,
    Following,
    on_the_line,
)
from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo
from hoptui.domain.jobs import HeadReports
from hoptui.model.store import Store
from hoptui.protocol.messages import (
    PROTOCOL,
    Buckets,
    Delta,
    Fetch,
    FromViewer,
    Query,
    RankState,
    ViewerWelcome,
    Vital,
)
from tests import factories
from tests.factories import SECOND

NOW = 10_000 * SECOND
RUN = "run/abcd2345"
DERIVED = "derived/abcd2345"
# The runs of `factories.run` start 10 s after the monotonic clock of `factories.node` began.
START = 10 * SECOND
FINE, RECENT = NOW - FINE_NS, NOW - RECENT_NS
GPUS = (GpuInfo(uuid="GPU-a", index=0, name="H100"), GpuInfo(uuid="GPU-b", index=1, name="H100"))


def follow(**node: Any) -> tuple[Following, Store]:
    """A node with one run, on the second of two GPUs."""
    store = Store(lambda: NOW)
    run = factories.run(started_wall=1_000_010.0, gpus=("GPU-b",), **node)
    state = factories.node(run, gpus=GPUS)
    last = Vital(state="exited" if run.exit_reason else "live", last_t=NOW // 2)
    store.apply(Delta(id=1, now=NOW, state=1, node=state, vitals={run.run: last}))
    following = Following(store, itertools.count(1))
    following.refresh(0.0)
    return following, store


def ask(following: Following) -> list[Query]:
    """All that it wants to know of the past, answered with nothing."""
    asked = []
    while queries := following.queries():
        asked += queries
        for query in queries:
            following.answered(query.id, empty(query))
    return asked


def empty(query: Query) -> Buckets:
    return answer(query)


def answer(query: Query, *stamps: int) -> Buckets:
    part = pack(query.source, [(t, i, {"x": 1.0}) for i, t in enumerate(stamps)])
    v = part.values
    return Buckets(
        id=query.id, source=query.source, names=part.names, t=part.t, step=part.step, low=v, high=v, mean=v
    )


def test_the_overview_follows_host_and_gpus_from_their_last_minutes() -> None:
    following, _ = follow()
    asked = ask(following)
    sources = ("host", "gpu/GPU-a", "gpu/GPU-b")
    assert [(q.source, q.t0, q.t1) for q in asked] == [
        *((source, FINE, 0) for source in sources),
        *((source, RECENT, FINE) for source in sources),
    ]
    assert following.cursors() == dict.fromkeys(sources, FINE)


def test_a_watched_run_comes_first_and_with_all_of_its_past() -> None:
    following, _ = follow()
    following.watch("abcd2345", 0.0)
    asked = ask(following)
    sources = (RUN, "gpu/GPU-b", DERIVED, "host", "process/abcd2345", "gpu/GPU-a")
    stretches = {name: [(q.t0, q.t1) for q in asked if q.source == name] for name in sources}
    own = [(FINE, 0), (RECENT, FINE), (0, RECENT)]
    others = [(FINE, 0), (RECENT, FINE), (START, RECENT)]
    assert stretches == {name: own if "abcd2345" in name else others for name in sources}
    assert {q.run for q in asked if q.t1} == {"abcd2345"}
    assert set(following.cursors()) == {RUN, DERIVED, "process/abcd2345", "host", "gpu/GPU-a", "gpu/GPU-b"}


def test_order_of_importance() -> None:
    store_first, store = follow()
    following = Following(store, itertools.count(1))
    following.watch("abcd2345", 0.0)
    first = following.queries()
    assert len(first) == HUNGRY.at_once
    assert [q.source for q in first] == [RUN, "gpu/GPU-b", DERIVED, "host"]
    assert following.queries() == []
    assert store_first.run is None


def test_what_the_head_says_is_followed_on_a_node_without_rank_0() -> None:
    following, store = follow(rank=2, world=4)
    following.watch("abcd2345", 0.0)
    sources = [query.source for query in following.queries()]
    assert "head/abcd2345" not in sources
    run = factories.run(
        started_wall=1_000_010.0, gpus=("GPU-b",), rank=2, world=4, head=HeadReports(host="gpu00")
    )
    store.apply(Delta(id=2, now=NOW, state=2, node=factories.node(run, gpus=GPUS)))
    following, asked = Following(store, itertools.count(1)), set()
    following.watch("abcd2345", 0.0)
    asked = {query.source for query in following.queries()}
    assert {RUN, "head/abcd2345"} <= asked


def test_rows_are_fetched_from_where_the_past_ends() -> None:
    following, store = follow()
    query = following.queries()[0]
    assert following.cursors() == {}
    following.answered(query.id, answer(query, NOW - 7, NOW - 3))
    assert following.cursors() == {"host": NOW - 3}
    following.fetched(
        [pack("host", [(NOW + 5, 0, {"x": 2.0})]), pack("run/else", [(NOW + 9, 0, {"x": 2.0})])]
    )
    assert following.cursors() == {"host": NOW + 5}
    series = store.series("host", "x")
    assert series is not None
    assert series.last_t == NOW - 3


def test_the_other_ranks_of_a_run_are_followed_too() -> None:
    following, _ = follow(world=2, ranks=(RankState(rank=1, pid=5),))
    following.watch("abcd2345", 0.0)
    ask(following)
    assert following.follows("rank/abcd2345/1")
    assert not following.follows("rank/abcd2345/0")


def test_a_source_without_history_is_followed_all_the_same() -> None:
    following, _ = follow()
    query = following.queries()[0]
    assert following.answered(query.id, None)
    assert not following.answered(query.id, None)
    assert following.cursors() == {"host": FINE}


def test_a_run_that_is_over_is_shown_up_to_its_end() -> None:
    following, _ = follow(exit_reason="finished")
    following.watch("abcd2345", 0.0)
    recent = next(q for q in ask(following) if q.source == RUN and q.t1 == 0)
    assert recent.t0 == NOW // 2 - FINE_NS


def test_coming_back_soon_goes_on_and_coming_back_late_starts_over() -> None:
    following, _ = follow()
    following.watch("abcd2345", 0.0)
    ask(following)
    following.watch(None, 100.0)
    assert RUN not in following.cursors()
    following.watch("abcd2345", 100.0 + RETURN_S)
    assert RUN in following.cursors()
    assert ask(following) == []
    following.watch(None, 200.0)
    following.watch("abcd2345", 201.0 + RETURN_S)
    assert RUN not in following.cursors()
    assert {q.source for q in ask(following)} == {RUN, DERIVED, "process/abcd2345"}


def test_an_answer_for_a_run_that_was_left_is_not_wanted() -> None:
    following, store = follow()
    ask(following)
    following.watch("abcd2345", 0.0)
    queries = {q.source: q for q in following.queries()}
    following.watch(None, 1.0)
    assert following.answered(queries[RUN].id, answer(queries[RUN], NOW))
    assert store.names(RUN) == []
    following.watch("abcd2345", 2.0)
    assert RUN in {q.source for q in ask(following)}


def test_what_was_asked_of_a_lost_daemon_is_asked_again() -> None:
    following, _ = follow()
    first = following.queries()
    following.reconnected()
    assert following.queries() == first
    assert following.cursors() == {}


def test_new_gpus_are_noticed() -> None:
    following, store = follow()
    ask(following)
    node = store.node
    assert node is not None
    third = GpuInfo(uuid="GPU-c", index=2, name="H100")
    store.apply(Delta(id=2, now=NOW, state=2, node=structs.replace(node, gpus=(*GPUS, third))))
    following.refresh(1.0)
    assert {q.source for q in ask(following)} == {"gpu/GPU-c"}


def test_this_node_is_asked_for_everything_whatever_happens() -> None:
    flow = Flow()
    for now in range(5):
        flow.answered(9.0, now)
        flow.carried(1 << 20, 60.0, now)
    assert flow.appetite is HUNGRY
    assert not flow.slow


@pytest.mark.parametrize(
    ("size", "seconds", "appetite"),
    [(67_000, 0.02, HUNGRY), (67_000, 0.3, MODEST), (67_000, 2.2, THRIFTY), (900, 1e-4, THRIFTY)],
)
def test_a_line_is_asked_for_what_it_has_carried(size: int, seconds: float, appetite: Appetite) -> None:
    flow = Flow(remote=True)
    assert (flow.appetite, flow.slow) == (THRIFTY, False)
    flow.carried(size, seconds, 1.0)
    assert flow.appetite is appetite
    assert flow.slow == (appetite is THRIFTY and size > 1000)


def test_a_line_is_judged_by_what_ssh_makes_of_an_answer() -> None:
    still = array("d", [61.0]) * 5000
    moving = array("d", map(random.Random(0).gauss, [0.0] * 5000, [1.0] * 5000))
    assert on_the_line([still.tobytes()]) < 1000
    assert on_the_line([moving.tobytes()]) > 30_000


@pytest.mark.parametrize(
    ("appetite", "metrics", "points"),
    [(THRIFTY, 47, 21), (THRIFTY, 8, 64), (THRIFTY, 900, 8), (MODEST, 47, 56), (HUNGRY, 47, 512)],
)
def test_no_answer_about_the_past_keeps_others_waiting_for_long(
    appetite: Appetite, metrics: int, points: int
) -> None:
    store = Store(lambda: SECOND)
    row = {f"metric_{k}": 1.0 for k in range(metrics)}
    store.apply(
        Delta(id=1, now=SECOND, state=1, node=factories.node(), columns=(pack("host", [(1, 0, row)]),))
    )
    following = Following(store, itertools.count(1), appetite)
    following.refresh(0.0)
    assert [query.points for query in following.queries()] == [points]


def test_two_late_answers_make_it_slow_and_time_makes_it_good() -> None:
    flow = Flow(remote=True)
    flow.carried(67_000, 0.01, 0.0)
    flow.answered(LATE_S + 0.1, 1.0)
    flow.answered(0.01, 1.1)
    flow.answered(LATE_S + 0.1, 2.0)
    assert flow.appetite is HUNGRY, "one late answer after another is a hiccup"
    flow.answered(LATE_S + 0.1, 3.0)
    assert (flow.appetite, flow.slow) == (THRIFTY, True)
    flow.answered(0.01, 2.9 + 2 * RECOVER_S)
    assert flow.slow, "the second time later, so that it does not flutter"
    flow.answered(0.01, 3.0 + 2 * RECOVER_S)
    assert (flow.appetite, flow.slow) == (MODEST, False)


class Remote:
    """A conversation with a daemon at the other end of a line, past the first answer; its clocks are moved by
    hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store = Store(lambda: int(self.now * SECOND))
        self.talk = Conversation(self.store, Outbox(), client="test", viewer="me", remote=True)
        self.talk.connected(0.0)
        self.talk.due(0.0)
        self.talk.receive(ViewerWelcome(protocol=PROTOCOL, pid=7, version="0.1.0", host="gpu07"), 0.0)
        [first] = (m for m in self.hear() if isinstance(m, Fetch))
        self.talk.receive(self.delta(first, node=factories.node(factories.run())), 0.0)
        self.talk.watch("abcd2345", 0.0)
        [self.query] = (m for m in self.hear() if isinstance(m, Query))

    def hear(self) -> list[FromViewer]:
        return self.talk.due(self.now)

    def delta(self, fetch: Fetch, **fields: Any) -> Delta:
        return structs.replace(Delta(id=fetch.id, now=int(self.now * SECOND), state=1), **fields)

    def answer(self, query: Query, size: int) -> None:
        empty = Buckets(id=query.id, source=query.source, names=(), t=b"", step=b"", low=(), high=(), mean=())
        self.talk.receive(empty, self.now, size)


def test_a_line_that_carries_the_first_question_gets_all_the_others() -> None:
    there = Remote()
    assert (there.query.points, there.query.source) == (THRIFTY.points, "host")
    there.now = 0.02
    there.answer(there.query, 67_000)
    asked = [m for m in there.hear() if isinstance(m, Query)]
    assert len(asked) > 1
    assert {m.points for m in asked} == {HUNGRY.points}
    assert not there.talk.flow.slow


def test_a_thin_line_is_asked_for_little_and_what_it_cannot_carry_is_left_out() -> None:
    there = Remote()
    there.answer(there.query, 0)
    source, fetches = "run/abcd2345", []
    for _ in range(60):  # half a minute in which all is answered, the past after two seconds a question
        there.now += THRIFTY.frame_s
        for message in there.hear():
            if isinstance(message, Query):
                assert message.points == THRIFTY.points
                there.now += 2.2
                there.answer(message, 67_000)
            if isinstance(message, Fetch):
                fetches.append(message)
                there.talk.receive(there.delta(message), there.now)
    assert there.talk.flow.slow
    assert source in fetches[-1].cursors
    assert "process/abcd2345" not in fetches[-1].cursors
    assert {fetch.max_rows for fetch in fetches} == {THRIFTY.rows}

    there.now += THRIFTY.frame_s
    [asked] = (m for m in there.hear() if isinstance(m, Fetch))
    assert not asked.latest
    rows = [(int((there.now - 0.4) * SECOND) + i, i, {"loss": 1.0}) for i in range(asked.max_rows)]
    there.talk.receive(there.delta(asked, columns=(pack(source, rows),), more=True), there.now)
    assert there.talk.following.cursors()[source] == int(there.now * SECOND), "what comes now is worth more"
    assert not [m for m in there.hear() if isinstance(m, Fetch)], "what was held back is not hurried after"
