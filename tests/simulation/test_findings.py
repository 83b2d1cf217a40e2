"""What the simulation has found, as small tests."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs

from hoptui.client.conversation import Conversation, Outbox
from hoptui.domain.targets import Target
from hoptui.model.store import Store
from hoptui.node.addresses import Addresses
from hoptui.protocol.messages import PROTOCOL, Command, CommandRecord, Delta, Fetch, Stage, ViewerWelcome
from hoptui.sdk.send_buffer import RESEND_S, SendBuffer
from tests.run_state import queued
from tests.simulation.actions import ACTIONS, Step, perform
from tests.simulation.invariants import (
    _history_excused,
    audited,
    ranks_agree,
    right_process,
    rows_accounted,
    shown_when_kept,
    stages_forward,
)
from tests.simulation.kernel import Killed
from tests.simulation.memory_invariants import runs_bounded
from tests.simulation.node import Node, Viewer, quiet
from tests.simulation.rank_invariants import calls_true, changes_true, stops_true
from tests.simulation.scenario import settled
from tests.simulation.service_invariants import targets_kept
from tests.simulation.trainer import Trainer
from tests.simulation.truth import Call, Given, Incarnation, Setting, Truth
from tests.simulation.tuned import ServicesTruth, Wish

SECOND = 1_000_000_000
SENT = CommandRecord(id="c", run="r", epoch=1, verb="set", stage="sent", seq=100)


def test_rows_that_were_sent_and_did_not_arrive_are_counted() -> None:
    # A daemon hangs, and is killed: what waits in its sockets for longer than rows are kept is lost.
    buffer = SendBuffer("run/r")
    for second in range(1, 101):
        buffer.collect(deque([queued(second * SECOND, second, {"loss": 1.0})]), second, second * SECOND)
        buffer.sent(buffer.batch())
    assert buffer.dropped == 0
    buffer.resend_after(40 * SECOND)
    resent = sum(map(len, buffer.batch()))
    assert resent == RESEND_S + 1
    assert buffer.dropped == 60 - resent
    buffer.resend_after(40 * SECOND)
    assert buffer.dropped == 60 - resent


def test_a_viewer_asks_another_daemon_for_all_commands() -> None:
    # The daemon before was killed before it wrote a record, and the clock has gone back since.
    talk = Conversation(Store(), Outbox(), client="test", viewer="me")
    fetches = []
    for pid in (7, 7, 8):
        talk.connected(0.0)
        talk.receive(ViewerWelcome(protocol=PROTOCOL, pid=pid, version="1", host="h"), 0.0)
        fetch = next(message for message in talk.due(0.0) if isinstance(message, Fetch))
        fetches.append(fetch.commands)
        talk.receive(Delta(id=fetch.id, now=1, state=1, commands=(SENT,)), 0.0)
    assert fetches == [0, 100, 0]


def test_the_end_of_a_command_stays_where_a_daemon_knows_less() -> None:
    store = Store()
    applied = structs.replace(SENT, stage="applied", effective=1.0)
    store.apply_records((applied,))
    store.apply_records((SENT,))
    assert store.commands["c"].stage == "applied"
    unknown = structs.replace(SENT, stage="voided", code="fate_unknown")
    store.apply_records((unknown,))
    assert store.commands["c"] == unknown


NOBODY = structs.replace(
    SENT, stage="voided", code="fate_unknown", fields={"why": {"code": "no_such_run", "fields": {}}}
)
ENDED = structs.replace(SENT, stage="voided", code="fate_unknown", fields={})


@pytest.mark.parametrize(("shown", "found"), [((NOBODY, SENT, ENDED), 0), ((SENT, ENDED), 1)])
def test_an_end_that_only_viewers_have_is_not_taken_for_a_later_one(
    shown: tuple[CommandRecord, ...], found: int
) -> None:
    # A new daemon did not know the run, and voided the command. The run came back, and was killed.
    viewer = SimpleNamespace(name="viewer", shown={"c": list(shown)})
    node = SimpleNamespace(viewers=[viewer], truth=Truth(kept={("c", "voided"): False}))
    assert len(list(shown_when_kept(node))) == found  # type: ignore[arg-type]


LOST = structs.replace(ENDED, fields={"why": {"code": "run_ended", "fields": {}}})
CERTAIN = structs.replace(SENT, stage="voided", code="run_ended")
APPLIED = structs.replace(SENT, stage="applied", effective=1.0)


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ((SENT, CERTAIN, LOST, SENT), 1),
        ((SENT, LOST, SENT), 1),
        ((SENT, NOBODY, SENT), 0),
        ((SENT, LOST, APPLIED), 0),
        ((SENT, APPLIED, SENT), 1),
        ((SENT, CERTAIN, LOST), 0),
    ],
)
def test_an_unknown_end_is_no_stage_to_go_back_from(told: tuple[CommandRecord, ...], found: int) -> None:
    # Two daemons told a command as voided: the first was certain, the second not. The third found it as sent.
    viewer = Viewer.__new__(Viewer)
    viewer.name, viewer.shown, viewer._final_s = "viewer", {}, {}
    viewer.node = SimpleNamespace(  # type: ignore[assignment]
        viewers=[viewer],
        truth=Truth(daemon_died_s=[1.0]),
        kernel=SimpleNamespace(seconds=1.0),
        look_on_disk=lambda record: None,
    )
    for record in told:
        viewer.client = SimpleNamespace(store=SimpleNamespace(commands={"c": record}))  # type: ignore[assignment]
        viewer._changed("commands")
    assert len(list(stages_forward(viewer.node))) == found


@pytest.mark.parametrize(
    ("died_s", "disk", "content", "found"),
    [
        ([8.0], [(4.0, 9.0)], b"", 0),
        ([8.0], [(4.0, 9.0)], b"damaged", 1),
        ([8.0], [], b"", 1),
        ([], [(4.0, 9.0)], b"", 1),
    ],
)
def test_the_recording_of_a_run_may_be_empty_if_the_disk_took_nothing_of_it(
    tmp_path: Path, died_s: list[float], disk: list[tuple[float, float]], content: bytes, found: int
) -> None:
    # The run was killed while the disk was full, and then its daemon.
    was = Incarnation(0, 5.0, run="r", killed=True, ended_s=7.0)
    node = SimpleNamespace(
        where=Addresses(tmp_path, tmp_path), truth=Truth(processes=[was], daemon_died_s=died_s, disk=disk)
    )
    node.where.recording("r").write_bytes(content)
    assert len(list(rows_accounted(node))) == found  # type: ignore[arg-type]


def test_a_command_that_a_viewer_gave_up_may_still_come() -> None:
    store = Store()
    store.sent(Command(id="c", run="r", epoch=1, verb="set"))
    store.expire("c", "no daemon answered")
    store.apply_records((SENT,))
    assert store.commands["c"].stage == "sent"


EARLY, LATE, UNANSWERED, NEXT = (
    Wish("r", Target(reading="power_w", value=value), asked_s, granted_s)
    for value, asked_s, granted_s in ((1.0, 5.0, 9.0), (2.0, 6.0, 7.0), (3.0, 8.0, None), (4.0, 10.0, 11.0))
)


@pytest.mark.parametrize(
    ("wishes", "there", "found"),
    [
        ((EARLY, LATE), (EARLY,), 0),
        ((EARLY, LATE), (LATE,), 0),
        ((EARLY, LATE), (), 2),
        ((LATE, UNANSWERED), (UNANSWERED,), 0),
        ((LATE, UNANSWERED), (), 1),
        ((LATE, NEXT), (NEXT,), 0),
        ((LATE, NEXT), (LATE,), 1),
        ((UNANSWERED,), (), 0),
    ],
)
def test_any_of_the_targets_asked_for_at_the_same_time_may_stay(
    wishes: tuple[Wish, ...], there: tuple[Wish, ...], found: int
) -> None:
    # The command that was begun first found its daemon last.
    run = SimpleNamespace(targets=[SimpleNamespace(target=wish.target) for wish in there])
    node = SimpleNamespace(
        trainers=[SimpleNamespace(id="r", process=SimpleNamespace(alive=True))],
        auditor=SimpleNamespace(client=SimpleNamespace(store=SimpleNamespace(run=lambda _: run))),
        services=ServicesTruth(wishes=list(wishes)),
        truth=Truth(),
    )
    assert len(list(targets_kept(node))) == found  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["set batch", "set width", "tune", "untune", "release"])
def test_a_tuner_among_the_viewers_is_not_taken_for_a_person(what: str) -> None:
    # It set a knob in a new process, where no person holds it, and that was taken for the daemon's tuner.
    asked: list[str] = []
    viewers = [
        SimpleNamespace(
            kind=kind, process=SimpleNamespace(alive=True), use=lambda _, kind=kind: asked.append(kind)
        )
        for kind in ("tuner", "person")
    ]
    trainer = SimpleNamespace(
        id="r", process=SimpleNamespace(alive=True), was=SimpleNamespace(iteration_s=1.0)
    )
    node = SimpleNamespace(
        trainers=[trainer], viewers=viewers, serves=True, disturb=lambda _: None, next_value=lambda: 1
    )
    for number in (0.0, 0.5e-6):  # it chooses the first viewer, and the second
        ACTIONS[what](node, number)  # type: ignore[arg-type]
    assert asked == ["person", "person"]


@pytest.mark.parametrize(
    ("raised_at", "stage", "found"),
    [({22}, "voided", 0), ({21}, "voided", 1), (set(), "voided", 1), ({22}, "applied", 1)],
)
def test_a_change_may_reach_only_some_ranks_if_the_store_raises_during_it(
    raised_at: set[int], stage: Stage, found: int
) -> None:
    # Rank 0 had the agreement of all ranks, and set its knob. The store raised before rank 1 could read it.
    first = Incarnation(0, 0.0, run="r", boundaries=22, trail=[(1, 0.0), (22, 7.25)])
    first.settings.append(Setting(7.0, 1.0, epoch=1))
    other = Incarnation(1, 0.0, run="r", rank=1, boundaries=22, trail=[(1, 0.0)])
    trainer = SimpleNamespace(
        name="run",
        was=first,
        job=SimpleNamespace(interrupted=raised_at),
        others=[SimpleNamespace(was=other)],
    )
    record = structs.replace(SENT, knob="lr", wanted=7.0, stage=stage)
    node = SimpleNamespace(
        trainers=[trainer],
        truth=Truth(processes=[first, other]),
        auditor=SimpleNamespace(client=SimpleNamespace(store=SimpleNamespace(commands={"c": record}))),
    )
    assert len([*ranks_agree(node), *changes_true(node)]) == found  # type: ignore[arg-type]


@pytest.mark.parametrize("ended", [False, True])
def test_a_stop_of_a_rank_is_noted_unless_another_has_ended(ended: bool) -> None:
    # Rank 0 passed this boundary, and its loop ended. The store was gone then, so rank 1 stopped alone.
    def kill() -> None:
        raise Killed

    trainer = SimpleNamespace(
        node=SimpleNamespace(kernel=SimpleNamespace(seconds=1.0)),
        was=Incarnation(1, 0.0, rank=1),
        member=SimpleNamespace(job=SimpleNamespace(broken=ended)),
        process=SimpleNamespace(kill=kill),
        knobs=None,
        _epoch=1,
    )
    with pytest.raises(Killed) if ended else nullcontext():
        Trainer._boundary(trainer, SimpleNamespace(boundary=lambda step: False))  # type: ignore[arg-type]
    assert trainer.was.stopped_at == (None if ended else 1)


@pytest.mark.parametrize(
    ("rank", "failed", "left", "found"),
    [(2, True, set(), 0), (2, False, {2}, 0), (2, False, {1}, 1), (2, False, set(), 1), (0, True, set(), 1)],
)
def test_only_a_rank_that_may_not_know_its_run_has_no_link(
    rank: int, failed: bool, left: set[int], found: int
) -> None:
    # The store raised before rank 2 could read which run rank 0 had begun.
    inbox = SimpleNamespace(_seen=(), _commands=(), unacknowledged=())
    trainer = SimpleNamespace(
        name="run",
        was=Incarnation(2, 0.0, rank=rank),
        job=SimpleNamespace(failed=failed, left=left),
        others=[],
        process=SimpleNamespace(alive=True),
        run=SimpleNamespace(_core=SimpleNamespace(state=SimpleNamespace(link=None, inbox=inbox))),
    )
    assert len([*runs_bounded(SimpleNamespace(trainers=[trainer]))]) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(("epoch", "found"), [(2, 0), (1, 1), (3, 1)])
def test_a_trace_is_looked_for_in_the_restart_that_it_was_asked_of(epoch: int, found: int) -> None:
    # A welcome raised the restart after the first boundary. The second one began a trace and was the last.
    called = Call("profile", boundary=2, at_s=5.0, epoch=2)
    was = Incarnation(0, 0.0, run="r", boundaries=1, calls=[called])
    told = CommandRecord(id="c", run="r", epoch=epoch, verb="profile", stage="applied")
    node = SimpleNamespace(
        auditor=SimpleNamespace(client=SimpleNamespace(store=SimpleNamespace(commands={"c": told}))),
        truth=Truth(processes=[was]),
    )
    assert len(list(calls_true(node))) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("epoch", "step", "killed", "found"),
    [(2, 1, False, 0), (1, 1, False, 1), (2, 5, False, 1), (2, 5, True, 0)],
)
def test_a_stop_is_looked_for_in_the_restart_that_it_was_asked_of(
    epoch: int, step: int, killed: bool, found: int
) -> None:
    # The first welcome made it restart 2 before the only boundary, which it stopped at.
    stopped = Incarnation(0, 0.0, run="r", stopped_at=2, stopped_step=1, stopped_epoch=2)
    other = Incarnation(1, 9.0, run="r", killed=killed)
    told = CommandRecord(id="c", run="r", epoch=epoch, verb="stop", stage="applied", step=step)
    node = SimpleNamespace(
        auditor=SimpleNamespace(client=SimpleNamespace(store=SimpleNamespace(commands={"c": told}))),
        truth=Truth(processes=[stopped, other]),
    )
    assert len(list(stops_true(node))) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(("pid", "epoch", "found"), [(7, 1, 0), (8, 1, 1), (7, 2, 1)])
def test_a_command_is_meant_for_the_process_that_its_viewer_showed(pid: int, epoch: int, found: int) -> None:
    given = Given("c", "r", epoch=1, pid=7, verb="set", by="person", value=3.0, viewer="v", at_s=0.0)
    was = Incarnation(0, 0.0, run="r", pid=pid, settings=[Setting(3.0, 1.0, epoch)])
    node = SimpleNamespace(truth=Truth(processes=[was], given={"c": given}))
    assert len(list(right_process(node))) == found  # type: ignore[arg-type]


def test_a_written_checkpoint_is_the_one_of_the_handler() -> None:
    # A path that is not absolute is told with the working directory, which no handler has returned.
    with Node("checkpoint") as node, quiet():
        node.train("run", 0.3)
        node.view("ana")
        node.kernel.run(3.0)
        perform(node, Step(0.0, "checkpoint"))
        node.settle(5.0)
        told = [record.stage for record in audited(node).values()]
        violations = settled(node)
    assert told == ["applied"]
    assert violations == []


@pytest.mark.parametrize(
    ("run", "disk", "excused"), [("r", [(4.0, 9.0)], True), ("r", [], False), ("s", [(4.0, 9.0)], False)]
)
def test_only_a_recording_that_was_reported_as_left_aside_for_the_disk_may_be_unread(
    run: str, disk: list[tuple[float, float]], excused: bool
) -> None:
    was = Incarnation(0, 5.0, run="r")
    node = SimpleNamespace(truth=Truth(left_aside=[(8.0, run)], disk=disk))
    assert _history_excused(node, was) == excused  # type: ignore[arg-type]
