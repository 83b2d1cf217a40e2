from __future__ import annotations

import itertools
from typing import Any

from msgspec import structs

from hoptui.client.subscriptions import FINE_NS, HUNGRY, RECENT_NS, RETURN_S, Following
from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo
from hoptui.model.store import Store
from hoptui.protocol.messages import Buckets, Delta, Query, RankState, Vital
from tests.client.fake_daemon import SECOND, make_node, make_run

NOW = 10_000 * SECOND
RUN = "run/abcd2345"
DERIVED = "derived/abcd2345"
# The runs of `make_run` start 10 s after the node's monotonic clock began, on the wall clock of `make_node`.
START = 10 * SECOND
FINE, RECENT = NOW - FINE_NS, NOW - RECENT_NS
GPUS = (GpuInfo(uuid="GPU-a", index=0, name="H100"), GpuInfo(uuid="GPU-b", index=1, name="H100"))


def follow(**node: Any) -> tuple[Following, Store]:
    """A node with one run, on the second of two GPUs."""
    store = Store(lambda: NOW)
    run = make_run(started_wall=1_000_010.0, gpus=("GPU-b",), **node)
    state = make_node(run, gpus=GPUS)
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
