"""How much is asked of a line."""

from __future__ import annotations

import itertools
import random
from array import array
from typing import Any

import pytest
from msgspec import structs

from hoptui.client.conversation import Conversation, Outbox
from hoptui.client.subscriptions import (
    HUNGRY,
    LATE_S,
    MODEST,
    RECOVER_S,
    THRIFTY,
    Appetite,
    Flow,
    Following,
    on_the_line,
)
from hoptui.domain.columns import pack
from hoptui.model.store import Store
from hoptui.protocol.messages import PROTOCOL, Buckets, Delta, Fetch, FromViewer, Query, ViewerWelcome
from tests.client.fake_daemon import SECOND, make_node, make_run


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
    store.apply(Delta(id=1, now=SECOND, state=1, node=make_node(), columns=(pack("host", [(1, 0, row)]),)))
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
        self.talk.receive(self.delta(first, node=make_node(make_run())), 0.0)
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
