"""A viewer gets a state that is larger than a message, page by page."""

from __future__ import annotations

from pathlib import Path

import zmq
from msgspec import structs

from hoptui.client.conversation import Conversation, Outbox
from hoptui.client.session import Session
from hoptui.daemon.archive import Archive
from hoptui.daemon.recordings import RetentionLimits
from hoptui.domain.columns import pack
from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.model.store import Store
from hoptui.node.addresses import Addresses
from hoptui.protocol import codec, messages
from hoptui.protocol.codec import MAX_ANSWER_BYTES
from hoptui.protocol.messages import PROTOCOL, Buckets, Delta, Fetch, NodeState, RunState, ViewerWelcome
from tests.conftest import TestNode, until

RUNS = 6


def _hello(name: str) -> messages.RunHello:
    spec = KnobSpec(name="k", kind="int", default=1, description="d" * 500)
    knobs = tuple(KnobState(spec=structs.replace(spec, name=f"k{i}"), value=1) for i in range(1400))
    return messages.RunHello(
        protocol=PROTOCOL, run=name, name=name, epoch=1, nonce=name, pid=0, started=1, knobs=knobs
    )


def test_a_session_sees_runs_whose_state_is_larger_than_a_message(node: TestNode) -> None:
    node.daemon()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        for i in range(RUNS):
            run = context.socket(zmq.DEALER)
            run.connect(f"ipc://{node.where.runs}")
            frame = codec.encode(_hello(f"wide{i}"))
            assert RUNS * len(frame) > MAX_ANSWER_BYTES > codec.MAX_BYTES > len(frame)
            run.send(frame)

        def seen() -> NodeState | None:
            with Session(node.where) as session:
                state = session.fetch().node
            return state if state is not None and len(state.runs) == RUNS else None

        state = until(seen, what="all runs")
        assert all(len(run.knobs) == 1400 and run.knobs[0].spec.description for run in state.runs)
    finally:
        context.destroy(linger=0)


def test_a_message_of_a_run_above_the_limit_is_refused_with_a_reason(node: TestNode) -> None:
    node.daemon()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        run = context.socket(zmq.DEALER)
        run.connect(f"ipc://{node.where.runs}")
        run.send(codec.encode(structs.replace(_hello("huge"), argv="a" * codec.MAX_BYTES)))
        assert run.poll(10_000)
        said = codec.to_run(run.recv_multipart())
    finally:
        context.destroy(linger=0)
    assert isinstance(said, messages.Error)
    assert said.code == "too_large"
    until(lambda: "too_large from pid" in node.where.log.read_text(), what="the line in daemon.log")


def _node(*runs: str) -> NodeState:
    made = (RunState(run=run, name=run, epoch=1, pid=1, started_wall=0.0) for run in runs)
    return NodeState(host="h", pid=1, version="1", started_wall=0.0, wall_offset_ns=0, runs=tuple(made))


def test_a_dashboard_shows_the_node_once_its_last_page_is_there() -> None:
    store = Store(lambda: 1)
    talk = Conversation(store, Outbox(), client="test", viewer="me")
    talk.connected(0.0)
    talk.due(0.0)
    talk.receive(ViewerWelcome(protocol=PROTOCOL, pid=7, version="1", host="h"), 0.0)
    asked = _fetch(talk, 0.0)
    assert (asked.page, asked.state) == (0, 0)
    talk.receive(Delta(id=asked.id, now=1, state=8, node=_node("a"), more=True, next_page=1), 0.1)
    assert store.node is None
    asked = _fetch(talk, 10.0)
    assert (asked.page, asked.state) == (1, 0)
    talk.receive(Delta(id=asked.id, now=1, state=9, node=_node("b")), 10.1)
    assert store.node is not None
    assert [run.run for run in store.node.runs] == ["a", "b"]
    asked = _fetch(talk, 20.0)
    assert (asked.page, asked.state) == (0, 8), "the state has changed since the first page"


def _fetch(talk: Conversation, now: float) -> Fetch:
    return next(message for message in talk.due(now) if isinstance(message, Fetch))


def test_an_answer_about_the_past_has_as_many_buckets_as_fit(tmp_path: Path) -> None:
    archive = Archive(Addresses(tmp_path, tmp_path), RetentionLimits(), lambda *_: None)
    names = {f"metric/{i}": 1.0 for i in range(150)}
    live = [pack("run/r", [(t, t, names) for t in range(1, 3001)])]
    found = archive._answer(messages.Query(id=1, source="run/r", t0=1, t1=4000, points=4000), live)
    assert isinstance(found, Buckets)
    assert MAX_ANSWER_BYTES // 4 < len(codec.encode(found)) <= MAX_ANSWER_BYTES
    assert len(found.names) == 150
