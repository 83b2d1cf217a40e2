"""Commands and outcomes on their way between daemon and run: nothing is lost where a socket is full."""

from __future__ import annotations

import collections
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.client.session import Session
from hoptui.daemon.handlers.targets import TargetDesk
from hoptui.daemon.handlers.viewers import ViewerDesk
from hoptui.daemon.recordings import RecordedRun
from hoptui.domain.columns import pack
from hoptui.domain.facts import fact, nested
from hoptui.protocol import codec, messages
from hoptui.protocol.messages import FINAL, Acknowledgement, Command, CommandRecord, Outcome, RunState
from tests.conftest import TestNode, until
from tests.daemon.quiet_node import ANA, RUN, SECOND, QuietNode


def test_rows_after_a_hello_are_written_at_once_and_later_ones_with_the_next_flush(quiet: QuietNode) -> None:
    """A run keeps its rows for a while, and daemons may be killed again and again meanwhile."""
    quiet.hello()
    quiet.keeper.log.clear()
    for step in (60, 61):
        quiet.now += SECOND
        rows = messages.Rows(parts=(pack(f"run/{RUN}", [(quiet.now, step, {"loss": 1.0})]),))
        quiet.runs.receive(b"n1", None, rows)
        assert quiet.keeper.log == ["keep"]


def test_a_run_that_cannot_send_its_rows_again_is_told_once_what_is_stored() -> None:
    quiet = QuietNode(state=RunState(run=RUN, name="lm", epoch=1, pid=1, started_wall=0.0))
    line = Line(quiet)
    quiet.hello()
    quiet.keeper.found = 7 * SECOND
    quiet.runs.tend()
    assert line.stored == [None]
    quiet.keeper.found = None
    quiet.hello(past_rows=5)
    quiet.runs.tend()
    assert line.stored == [None, None], "the recording is not open yet"
    quiet.keeper.found = 7 * SECOND
    line.open = False
    quiet.runs.tend()
    line.open = True
    quiet.runs.tend()
    quiet.runs.tend()
    assert line.stored == [None, None, 7 * SECOND]


def test_a_run_that_repeats_its_hello_is_told_what_was_stored_before_its_first_one() -> None:
    quiet = QuietNode(state=RunState(run=RUN, name="lm", epoch=1, pid=1, started_wall=0.0))
    line = Line(quiet)
    quiet.keeper.found = None
    quiet.hello(past_rows=5)
    quiet.runs.tend()
    assert line.stored == [None], "the recording is not open yet"
    quiet.keeper.newest = 9 * SECOND  # its recording was opened and written meanwhile
    quiet.keeper.found = 7 * SECOND
    quiet.hello(past_rows=5)
    quiet.runs.tend()
    quiet.runs.tend()
    assert line.stored == [None, None, 7 * SECOND]


class Line:
    """The way to a run: takes messages while it is `open`."""

    def __init__(self, quiet: QuietNode) -> None:
        self.open = True
        self.sent: list[messages.ToRun] = []
        self.quiet = quiet
        quiet.runs._send = self._send

    def _send(self, _: bytes, message: messages.ToRun) -> bool:
        if self.open:
            self.sent.append(message)
        return self.open

    def command(self, name: str) -> None:
        node, run = self.quiet.node, self.quiet.run
        command = Command(id=name, run=RUN, epoch=1, verb="set", knob="lr", value=0.1, origin=ANA)
        _, onward = node.book.submit(command, run, "v1", 1.0, self.quiet.now)
        assert onward is not None
        self.quiet.runs.forward(onward, run)

    @property
    def stored(self) -> list[int | None]:
        return [message.stored for message in self.sent if isinstance(message, messages.RunWelcome)]

    @property
    def commands(self) -> list[str]:
        return [m.id for m in self.sent if isinstance(m, Command)]


@pytest.mark.guarantee("full-socket")
def test_commands_that_a_run_does_not_accept_now_are_sent_later_in_order(quiet: QuietNode) -> None:
    line = Line(quiet)
    line.command("a")
    line.open = False
    line.command("b")
    line.command("c")
    assert (line.commands, quiet.runs.waiting) == (["a"], True)
    line.open = True
    line.command("d")
    quiet.runs.pump()
    assert (line.commands, quiet.runs.waiting) == (["a", "b", "c", "d"], False)


@pytest.mark.guarantee("final-stage")
def test_a_command_that_never_left_the_daemon_is_voided_and_one_that_did_is_unknown(quiet: QuietNode) -> None:
    line = Line(quiet)
    line.command("a")
    line.open = False
    line.command("b")
    line.command("a")  # the viewer asks again
    quiet.runs.end(quiet.run, "killed", "")
    assert {r.id: r.code for r in quiet.node.book.of(RUN)} == {"a": "fate_unknown", "b": "run_ended"}


def test_what_a_killed_daemon_kept_is_voided_once_the_run_has_told_all_and_no_viewer_repeats_it() -> None:
    quiet = QuietNode(state=RunState(run=RUN, name="lm", epoch=1, pid=1, started_wall=0.0))
    kept = CommandRecord(id="a", run=RUN, epoch=1, verb="set", knob="lr", wanted=0.1, seq=1)
    quiet.node.book.restore([kept])
    quiet.hello()
    quiet.now += 30 * SECOND
    quiet.runs.tend()
    assert quiet.node.book.of(RUN) == [kept], "its outcome may be on its way"
    quiet.runs.receive(b"n1", None, messages.Pulse(step=50))
    quiet.runs.tend()
    assert [(r.stage, r.code) for r in quiet.node.book.of(RUN)] == [("voided", "daemon_ended")]


def test_a_goodbye_says_nothing_of_the_commands_of_an_earlier_process() -> None:
    """A daemon between the two could not read the recording: it voided nothing when the earlier one ended."""
    quiet = QuietNode(state=RunState(run=RUN, name="lm", epoch=2, pid=1, started_wall=0.0))
    quiet.node.book.restore(
        CommandRecord(id=f"c{epoch}", run=RUN, epoch=epoch, verb="set", knob="lr", wanted=0.1, seq=epoch)
        for epoch in (1, 2)
    )
    quiet.hello()
    quiet.runs.receive(b"n1", None, messages.Bye(reason="finished", told=True))
    assert {r.id: r.code for r in quiet.node.book.of(RUN)} == {"c1": "fate_unknown", "c2": "run_ended"}


def test_a_run_that_nobody_watched_ended_with_its_last_row() -> None:
    """A daemon that was killed with the run: the next one may start hours later."""
    quiet = QuietNode()
    found = RecordedRun(
        state=RunState(run=RUN, name="lm", epoch=1, pid=1, started_wall=0.0),
        nonce="n1",
        process_started=0,
        events=[],
        commands=[],
        newest=pack(f"run/{RUN}", [(quiet.now - 3600 * SECOND, 60, {"loss": 1.0})]),
        energy_j=0.0,
        counters={},
    )
    quiet.runs.restore(found)
    quiet.runs.end(quiet.run, "exited", "its process is gone")
    assert quiet.run.state.exited_wall == pytest.approx(quiet.wall() - 3600)


def test_a_goodbye_that_asks_for_it_is_answered_once_the_disk_has_it(quiet: QuietNode) -> None:
    line = Line(quiet)
    quiet.runs.receive(b"n1", None, messages.Bye(reason="finished", confirm=True))
    assert quiet.keeper.log[-2:] == ["finish", "confirm"]
    quiet.runs.written(RUN, {"a": 1})
    assert line.sent == []
    for _ in range(2):
        quiet.runs.written(RUN, {})
    assert line.sent == [messages.Farewell()]


def test_what_the_recording_of_a_run_that_has_exited_left_open_is_unknown() -> None:
    """The daemon that wrote the end could not read the recording before."""
    quiet = QuietNode()
    asked = CommandRecord(id="a", run=RUN, epoch=1, verb="set", knob="lr", wanted=0.1, seq=1)
    done = structs.replace(asked, id="b", stage="applied", effective=0.1, seq=2)
    state = RunState(run=RUN, name="lm", epoch=1, pid=1, started_wall=0.0, exit_reason="killed")
    quiet.runs.restore(recorded(state, [asked, done]))
    found, kept = quiet.node.book.of(RUN)
    assert (found.stage, found.code) == ("voided", "fate_unknown")
    assert nested(found.fields["why"]) == fact("run_ended", reason="killed")
    assert kept == done
    assert not quiet.node.book.asking


def recorded(state: RunState, commands: list[CommandRecord]) -> RecordedRun:
    """Return what a new daemon finds in a recording."""
    return RecordedRun(
        state=state,
        nonce="n1",
        process_started=0,
        events=[],
        commands=commands,
        newest=None,
        energy_j=0.0,
        counters={},
    )


@pytest.mark.parametrize("connects", [True, False])
def test_what_a_process_was_started_for_is_unknown_once_another_one_has_followed(connects: bool) -> None:
    """Its report was lost with a daemon, and a later daemon finds the command in the recording."""
    quiet = QuietNode()
    asked = [
        CommandRecord(id=f"c{epoch}", run=RUN, epoch=epoch, verb="set", knob="width", wanted=8, seq=epoch)
        for epoch in (1, 2)
    ]
    left = [structs.replace(record, stage="scheduled", code="restarting") for record in asked]
    quiet.runs.restore(recorded(RunState(run=RUN, name="lm", epoch=3, pid=1, started_wall=0.0), left))
    assert not quiet.run.restarting, "it takes commands: the process of the last restart is there"
    if connects:
        quiet.hello()
    else:
        quiet.runs.end(quiet.run, "killed", "")
    first, second = quiet.node.book.of(RUN)
    ended = fact("run_ended", reason="killed")
    assert (first.stage, first.code) == ("voided", "fate_unknown")
    assert nested(first.fields["why"]) == fact("run_restarted", restart=2)
    if connects:
        assert second.stage == "scheduled", "this process can report it"
    else:
        assert (second.stage, second.code) == ("voided", "fate_unknown"), "it may have reported it"
        assert nested(second.fields["why"]) == fact("lost_in_restart", why=ended)


def test_final_outcomes_are_acknowledged_until_the_run_has_the_acknowledgement(quiet: QuietNode) -> None:
    line = Line(quiet)
    line.command("a")
    line.open = False
    for stage in ("accepted", "applied"):
        quiet.runs.receive(b"n1", None, Outcome(id="a", stage=stage, effective=0.1, version=1))
    quiet.runs.pump()
    assert not any(isinstance(m, Acknowledgement) for m in line.sent)
    line.open = True
    quiet.runs.pump()
    assert line.sent[-1] == Acknowledgement(stages={"a": "applied"})
    assert not quiet.runs.waiting


def test_acknowledgements_fit_into_a_message_whatever_a_run_sends(quiet: QuietNode) -> None:
    line = Line(quiet)
    line.open = False
    for n in range(5000):
        quiet.runs.receive(b"n1", None, Outcome(id=f"{n:0128}", stage="applied"))
    quiet.runs.receive(b"n1", None, Outcome(id="n" * 100_000, stage="applied"))
    line.open = True
    quiet.runs.pump()
    (ack,) = line.sent
    assert isinstance(ack, Acknowledgement)
    assert len(codec.encode(ack)) <= codec.MAX_BYTES


def test_a_lease_that_does_not_reach_its_run_is_not_granted(quiet: QuietNode) -> None:
    line = Line(quiet)
    assert quiet.runs.hold(quiet.run, 60.0)
    line.open = False
    assert not quiet.runs.hold(quiet.run, 60.0)


SCRIPT = """
import sys, time, hoptui
log = open(sys.argv[1], "a", buffering=1)
run = hoptui.connect("burst")
for n in range(100):
    run.knob(f"k{n}", 0, min=0, max=10**6, effect="speed", apply=lambda v: log.write(f"{v}\\n"))
for i in run.iterations():
    time.sleep(0.01)
    if sys.argv[2] == "end" and i == 60:
        break
"""
COMMANDS = 400


def _burst(node: TestNode, tmp_path: Path, how: str) -> None:
    calls = tmp_path / "calls"
    child = node.start(SCRIPT, str(calls), how)
    viewer = node.viewer()
    found = until(lambda: (r := viewer.run("burst")) and len(r.knobs) == 100 and r, what="the knobs")
    with Session(node.where) as session:
        if how == "stop":
            os.kill(child.pid, signal.SIGSTOP)
        names = {
            session.submit(found, "set", knob=f"k{value % 100}", value=value): value
            for value in range(1, COMMANDS + 1)
        }
        os.kill(child.pid, signal.SIGCONT)
        end = time.monotonic() + 10.0
        told = {
            value: session.outcome(name, timeout_s=max(0.0, end - time.monotonic()))
            for name, value in names.items()
        }
    called = collections.Counter(map(int, calls.read_text().split())) if calls.exists() else {}
    assert [v for v, record in told.items() if record.stage not in FINAL] == []
    assert [v for v, record in told.items() if (record.stage == "applied") != bool(called.get(v))] == []
    assert [v for v, count in called.items() if count > 1] == []
    assert not any(record.code == "fate_unknown" for record in told.values())


def test_a_burst_of_commands_is_told_truthfully(node: TestNode, tmp_path: Path) -> None:
    _burst(node, tmp_path, "go on")


def test_a_burst_at_a_stopped_run_is_told_truthfully(node: TestNode, tmp_path: Path) -> None:
    _burst(node, tmp_path, "stop")


@pytest.mark.guarantee("final-stage")
def test_a_burst_at_the_end_of_a_run_is_told_truthfully(node: TestNode, tmp_path: Path) -> None:
    _burst(node, tmp_path, "end")


def test_a_run_that_does_not_read_now_is_asked_again_not_to_start_another_daemon(quiet: QuietNode) -> None:
    line = Line(quiet)
    line.open = False
    assert not quiet.runs.retire()
    line.open = True
    assert quiet.runs.retire()
    assert quiet.runs.retire()
    assert [type(m) for m in line.sent] == [messages.Retire]


def test_a_viewer_that_does_not_take_an_answer_starts_over(quiet: QuietNode) -> None:
    sent: list[messages.ToViewer] = []
    desk = viewer_desk(quiet, sent, records=True)
    desk._send = lambda _, __: False
    desk.receive(b"v", None, messages.Fetch(id=1, wait_s=0.0))
    assert desk.count == 0
    desk._send = lambda _, message: not sent.append(message)  # type: ignore[func-returns-value]
    desk.receive(b"v", None, messages.Fetch(id=2, wait_s=0.0))
    assert isinstance(sent[-1], messages.Error)
    assert (sent[-1].code, sent[-1].id) == ("hello_first", 2)


@pytest.mark.guarantee("outcomes-again")
def test_a_daemon_in_place_of_a_killed_one_has_what_that_one_reported(node: TestNode) -> None:
    """Also where the disk has neither the command nor its outcome."""
    node.start()
    viewer = node.viewer()
    run = viewer.run()
    command = viewer.command(run, knob="grad_accum", value=8, why="faster")
    told = viewer.outcome(command)
    assert told.stage == "applied"
    killed = node.daemon_pid()

    def forgotten() -> bool:
        os.kill(killed, signal.SIGSTOP)
        try:
            with closing(sqlite3.connect(node.where.recording(run.run), timeout=0.0)) as db, db:
                db.execute("DELETE FROM commands")
        except sqlite3.OperationalError:  # it was stopped while it wrote
            os.kill(killed, signal.SIGCONT)
            return False
        return True

    until(forgotten, what="a moment without a write")
    os.kill(killed, signal.SIGKILL)
    until(lambda: node.daemon_pid() not in (0, killed), what="another daemon")
    later = node.viewer("later")
    found = until(lambda: [r for r in later.fetch().commands if r.id == command], what="the command")
    assert found[-1].stage == "applied"
    assert (found[-1].knob, found[-1].wanted, found[-1].effective) == ("grad_accum", 8, told.effective)
    assert (found[-1].why, found[-1].origin) == ("faster", told.origin)


def viewer_desk(quiet: QuietNode, sent: list[messages.ToViewer], *, records: bool) -> ViewerDesk:
    """A desk with one viewer, and what it sends to that."""

    def send(_: bytes, message: messages.ToViewer) -> bool:
        sent.append(message)
        return True

    targets = TargetDesk(quiet.node, lambda _: None)
    desk = ViewerDesk(quiet.node, send, quiet.runs, quiet.tuners, targets, lambda: None)
    hello = messages.ViewerHello(protocol=messages.PROTOCOL, viewer="v", client="cli", records=records)
    desk.receive(b"v", None, hello)
    return desk


@pytest.mark.parametrize("records", [False, True])
def test_a_viewer_that_knows_no_records_of_commands_gets_their_outcomes_too(
    quiet: QuietNode, records: bool
) -> None:
    sent: list[messages.ToViewer] = []
    desk = viewer_desk(quiet, sent, records=records)
    desk.receive(b"v", None, Command(id="a", run=RUN, epoch=7, verb="set", knob="lr", value=0.1))
    _, record, *outcomes = sent
    assert isinstance(record, messages.Delta)
    assert [(r.id, r.stage, r.code) for r in record.commands] == [("a", "rejected", "stale_epoch")]
    told = [(o.id, o.stage, o.code, o.reason) for o in outcomes if isinstance(o, Outcome)]
    assert told == ([] if records else [("a", "rejected", "stale_epoch", "stale_epoch")])


@pytest.mark.parametrize("records", [False, True])
def test_events_have_their_code_as_text_for_a_viewer_that_knows_no_codes(
    quiet: QuietNode, records: bool
) -> None:
    sent: list[messages.ToViewer] = []
    desk = viewer_desk(quiet, sent, records=records)
    desk.receive(b"v", None, messages.Fetch(id=1, wait_s=0.0))
    [answer] = [message for message in sent if isinstance(message, messages.Delta)]
    shown = {event.code: event.text for event in answer.events}
    assert shown["run.started"] == ("" if records else "run.started")


def test_a_wall_clock_that_jumps_forgets_no_command_of_a_run_that_comes_back(quiet: QuietNode) -> None:
    Line(quiet).command("a")
    quiet.runs.end(quiet.run, "killed", "")
    quiet.node.tidy()
    quiet.wall = lambda: 1.7e9 + 2 * 86400.0  # type: ignore[method-assign]
    quiet.node.tidy()
    assert [record.id for record in quiet.node.book.of(RUN)] == ["a"]
    quiet.now += 25 * 3600 * SECOND
    quiet.node.tidy()
    assert quiet.node.book.of(RUN) == []
