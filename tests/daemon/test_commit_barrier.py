"""An outcome is shown once it is on disk, or with a mark."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.client.session import Session
from hoptui.daemon.handlers.runs import RunDesk
from hoptui.daemon.handlers.targets import TargetDesk
from hoptui.daemon.handlers.viewers import ViewerDesk
from hoptui.daemon.recordings import History, RetentionLimits
from hoptui.daemon.state.commit_barrier import LONGEST_WAIT_NS
from hoptui.node.addresses import Addresses
from hoptui.presentation import vocabulary
from hoptui.protocol import messages
from hoptui.protocol.messages import Acknowledgement, Command, CommandRecord, Outcome
from hoptui.recording import Recording
from tests import factories
from tests.conftest import TestNode, until
from tests.daemon.quiet_node import ANA, RUN, QuietNode
from tests.daemon.test_recordings import KNOWN, NODE
from tests.impatient import impatient_daemon


class SlowDisk:
    """A quiet node whose disk takes commands when a test says so, its run, and a viewer that gives them."""

    def __init__(self) -> None:
        self.quiet = quiet = QuietNode()
        self.waiting: dict[str, int] = {}
        quiet.keeper.written = lambda record: self.waiting.update({record.id: record.seq})
        self.to_run: list[messages.ToRun] = []
        self.pushed: list[CommandRecord] = []
        quiet.runs = RunDesk(
            quiet.node, self._to_run, lambda record: self.viewers.tell(record), quiet.tuners.end
        )
        targets = TargetDesk(quiet.node, lambda _: None)
        self.viewers = ViewerDesk(
            quiet.node, self._to_viewer, quiet.runs, quiet.tuners, targets, lambda: None
        )
        hello = messages.ViewerHello(protocol=messages.PROTOCOL, viewer="v", client="test")
        self.viewers.receive(b"v", None, hello)
        quiet.hello()

    def _to_run(self, _: bytes, message: messages.ToRun) -> bool:
        self.to_run.append(message)
        return True

    def _to_viewer(self, _: bytes, message: messages.ToViewer) -> bool:
        if isinstance(message, messages.Delta):
            self.pushed += message.commands
        return True

    def give(self, name: str, **fields: object) -> None:
        given = {"verb": "set", "knob": "lr", "value": 0.1, "epoch": 1, "origin": ANA} | fields
        self.viewers.receive(b"v", None, Command(id=name, run=RUN, **given))  # type: ignore[arg-type]

    def say(self, name: str, stage: messages.Stage = "applied") -> None:
        self.quiet.runs.receive(b"n1", None, Outcome(id=name, stage=stage, effective=0.1, version=1))

    def later(self, nanoseconds: int) -> None:
        self.quiet.now += nanoseconds
        self.quiet.runs.pump()

    def write(self) -> None:
        numbers, self.waiting = self.waiting, {}
        self.quiet.runs.written(RUN, numbers)
        self.quiet.runs.pump()

    def shown(self, since: int = 0) -> list[tuple[str, str, bool]]:
        return [(r.id, r.stage, r.unsaved) for r in self.quiet.node.book.since(since)]

    @property
    def acknowledged(self) -> list[str]:
        return [name for m in self.to_run if isinstance(m, Acknowledgement) for name in m.stages]


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.mark.guarantee("shown-when-written")
@pytest.mark.guarantee("acknowledged-written")
def test_an_outcome_is_shown_and_acknowledged_once_it_is_written(disk: SlowDisk) -> None:
    disk.give("a")
    disk.say("a", "scheduled")
    disk.say("a")
    disk.later(LONGEST_WAIT_NS - 1)
    assert disk.shown() == [("a", "scheduled", False)]
    assert [record.stage for record in disk.pushed] == ["sent", "scheduled"]
    assert disk.acknowledged == []
    disk.write()
    assert disk.shown() == [("a", "applied", False)]
    assert [(record.stage, record.unsaved) for record in disk.pushed[2:]] == [("applied", False)]
    assert disk.acknowledged == ["a"]


def test_a_viewer_that_asks_again_meanwhile_gets_the_stage_before(disk: SlowDisk) -> None:
    disk.give("a")
    disk.say("a")
    disk.give("a")
    assert [record.stage for record in disk.pushed] == ["sent", "sent"]


def test_later_records_wait_so_that_no_viewer_skips_one(disk: SlowDisk) -> None:
    disk.give("a")
    disk.give("b")
    disk.say("a")
    cursor = disk.quiet.node.book.since(0)[-1].seq
    disk.say("b", "accepted")
    assert disk.shown(cursor) == []
    disk.write()
    assert disk.shown(cursor) == [("a", "applied", False), ("b", "accepted", False)]


@pytest.mark.guarantee("marked-unsaved")
def test_an_outcome_that_the_disk_does_not_take_is_shown_with_a_mark_until_it_does(disk: SlowDisk) -> None:
    disk.give("a")
    disk.say("a")
    disk.later(0)
    disk.later(LONGEST_WAIT_NS)
    assert disk.shown() == [("a", "applied", True)]
    assert [(record.stage, record.unsaved) for record in disk.pushed[1:]] == [("applied", True)]
    assert disk.acknowledged == ["a"]
    cursor = disk.quiet.node.book.since(0)[-1].seq
    disk.write()
    assert disk.shown(cursor) == [("a", "applied", False)]
    assert [record.unsaved for record in disk.pushed[2:]] == [False]
    assert disk.acknowledged == ["a", "a"]


def test_a_write_of_an_earlier_state_does_not_count(disk: SlowDisk) -> None:
    disk.give("a")
    disk.say("a")
    early, disk.waiting = disk.waiting, {}
    disk.say("a", "reverted")
    disk.quiet.runs.written(RUN, early)
    assert disk.shown() == [("a", "sent", False)]
    disk.write()
    assert disk.shown() == [("a", "reverted", False)]


def test_a_refusal_and_the_end_of_a_run_wait_too(disk: SlowDisk) -> None:
    disk.give("a")
    disk.give("b", epoch=7)
    disk.quiet.runs.end(disk.quiet.run, "finished", "")
    assert [record.stage for record in disk.pushed] == ["sent"]
    disk.write()
    assert {record.id: record.code for record in disk.pushed[1:]} == {"a": "fate_unknown", "b": "stale_epoch"}


def test_a_refusal_after_the_end_of_a_run_is_shown_at_once(disk: SlowDisk) -> None:
    disk.quiet.runs.end(disk.quiet.run, "finished", "")
    disk.give("a")
    assert [(record.stage, record.code) for record in disk.pushed] == [("rejected", "no_such_run")]


def test_the_mark_is_not_written(tmp_path: Path) -> None:
    reported: list[dict[str, int]] = []
    history = History(
        Addresses(tmp_path, tmp_path), RetentionLimits(), lambda _, numbers: reported.append(numbers)
    )
    history.remember(KNOWN, NODE)
    history.command(factories.record("a", "r", stage="applied", seq=1, unsaved=True))
    history.command(factories.record("b", "r", stage="applied", seq=2), report=True)
    history.command(factories.record("c", "r", stage="applied", seq=1 << 70), report=True)  # no file holds it
    history.flush()
    assert reported == [{"b": 2}]
    history.close("r")
    with Recording.open(tmp_path / "r.hoptui") as reader:
        assert {record.id: record.unsaved for record in reader.commands()} == {"a": False, "b": False}


def test_the_mark_is_said() -> None:
    record = factories.record(stage="applied", step=7, unsaved=True)
    assert vocabulary.stage_text(record) == "applied at 7: not on disk yet"
    assert "disk" not in vocabulary.stage_text(structs.replace(record, unsaved=False))


def stage_on_disk(path: Path, command: str) -> str:
    """The stage of a command in a recording, as a kill of every process now would leave it."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        found = db.execute(
            "SELECT json_extract(record, '$.stage') FROM commands WHERE id = ?", (command,)
        ).fetchone()
    return str(found[0]) if found is not None else ""


@pytest.mark.guarantee("shown-when-written")
def test_what_a_sender_is_told_is_on_disk(node: TestNode) -> None:
    node.start()
    run = node.viewer().run()
    path = node.where.recording(run.run)
    with Session(node.where) as session:
        for value in range(5, 35):
            record = session.outcome(session.submit(run, "set", knob="grad_accum", value=value))
            assert (record.stage, record.unsaved) == ("applied", False)
            assert stage_on_disk(path, record.id) == "applied"


@contextmanager
def room(node: TestNode, most: int) -> Iterator[None]:
    """No file of the daemon may grow past so many bytes: every write to its recordings fails."""
    pid = node.daemon_pid()
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.guarantee("marked-unsaved")
def test_a_full_disk_marks_outcomes_until_it_has_room(node: TestNode) -> None:
    impatient_daemon(node, flush_s=0.3)
    node.start()
    viewer = node.viewer()
    run = viewer.run()
    path = node.where.recording(run.run)
    assert not viewer.outcome(viewer.command(run, knob="grad_accum", value=5)).unsaved
    with room(node, 16 << 10):
        until(lambda: viewer.state().history, what="the disk to be full")
        command = viewer.command(run, knob="grad_accum", value=8)
        record = viewer.outcome(command)
        assert (record.stage, record.unsaved, stage_on_disk(path, command)) == ("applied", True, "")
        told = node.hoptui("history", run.run)
        assert "not on disk yet" in told.stdout
        done = node.hoptui("set", run.run, "grad_accum=9")
        assert done.returncode == 0
        assert "not on disk yet" in done.stdout
    record = viewer.record(command, lambda record: record.stage == "applied" and not record.unsaved)
    assert (record.stage, stage_on_disk(path, command)) == ("applied", "applied")
