"""The link to the daemon, with a stand-in for the socket; its rows: in order, resent, lost ones counted."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from hoptui.domain.code_lines import CodeLine
from hoptui.domain.columns import is_known
from hoptui.domain.stacks import unpack
from hoptui.node import processes
from hoptui.node.addresses import Addresses
from hoptui.protocol import codec, messages
from hoptui.sdk import daemon_link
from hoptui.sdk.daemon_link import DaemonLink
from hoptui.sdk.metric_values import QueuedRow
from hoptui.sdk.run import Run
from hoptui.sdk.send_buffer import (
    FORGOTTEN,
    MESSAGE_BYTES,
    PART_ROWS,
    RESEND_ROWS,
    RESEND_S,
    TAKEN_AT_ONCE,
    SendBuffer,
)
from tests.run_state import queued, run_state

zmq = pytest.importorskip("zmq")


class Wire:
    """Takes what is sent, but for the first `deaf` times, and reads it as the daemon does."""

    def __init__(self, deaf: int = 0) -> None:
        self.sent: list[messages.FromRun] = []
        self._deaf = deaf

    def send(self, frame: bytes, flags: int) -> None:
        self._deaf -= 1
        if self._deaf >= 0:
            raise zmq.Again
        self.sent.append(codec.from_run([frame]))

    def poll(self, _: int, __: int) -> int:
        return 0


class Stranger(Wire):
    """Leads to a daemon that did not know the run. It reads only what follows a hello.

    The run gets `answers` of its answers. After its welcome it passes a command on.
    """

    def __init__(self, link: DaemonLink, answers: int = 99) -> None:
        super().__init__()
        self.read: list[messages.FromRun] = []
        self._link = link
        self._answers = answers
        self._waiting: deque[messages.ToRun] = deque()
        self._known = False

    def send(self, frame: bytes, flags: int) -> None:
        super().send(frame, flags)
        said = self.sent[-1]
        if isinstance(said, messages.RunHello):
            self._known = True
            self._waiting.append(_answer(self._link, 8, said.number))
            self._waiting.append(_pause(self._link, "late"))
        elif not self._known:
            self._waiting.append(messages.Error(code="hello_first", text="say hello first"))
        else:
            self.read.append(said)
            if isinstance(said, messages.Outcome):
                self._waiting.append(messages.Acknowledgement(stages={said.id: said.stage}))

    def poll(self, _: int, __: int) -> int:
        return int(bool(self._waiting) and self._answers > 0)

    def recv_multipart(self, _: int) -> list[bytes]:
        self._answers -= 1
        return [codec.encode(self._waiting.popleft())]


class Moody(Wire):
    """Takes a message only now and then."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = Random(seed)

    def send(self, frame: bytes, flags: int) -> None:
        if self._chance.random() < 0.7:
            raise zmq.Again
        super().send(frame, flags)


class Narrow(Wire):
    """Takes `room` messages."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def send(self, frame: bytes, flags: int) -> None:
        if self.room == 0:
            raise zmq.Again
        self.room -= 1
        super().send(frame, flags)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DaemonLink]:
    """Of a run whose directory nobody may use: its thread, once it is started, ends."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    monkeypatch.setenv("HOPTUI_DIR", str(open_to_all))
    monkeypatch.setenv("HOPTUI", "off")
    monkeypatch.setattr(DaemonLink, "_ensure_daemon", lambda *_: None)
    found = DaemonLink(run_state(Run("toy")))
    yield found
    found.start()
    found.close("finished", "")


def test_a_hello_without_a_connection_is_tried_again_soon_and_then_ever_more_rarely(
    link: DaemonLink, tmp_path: Path
) -> None:
    wire, waits = Wire(deaf=8), []
    for _ in range(8):
        link._next_pulse = 0.0
        began = time.monotonic()
        link._send_due(wire, zmq, Addresses(tmp_path, tmp_path))
        waits.append(round(link._next_pulse - began, 2))
    assert waits == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]


def test_it_watches_the_store_of_the_ranks_once_a_second(link: DaemonLink, tmp_path: Path) -> None:
    wire, looks = Wire(), []
    link._place.watch = lambda: looks.append(time.monotonic())
    for _ in range(5):
        link._send_due(wire, zmq, Addresses(tmp_path, tmp_path))
    assert len(looks) == 1
    link._next_pulse = 0.0
    link._send_due(wire, zmq, Addresses(tmp_path, tmp_path))
    assert len(looks) == 2


def test_a_run_that_ends_before_it_is_welcomed_says_goodbye(link: DaemonLink) -> None:
    wire = Wire()
    link._bye = messages.Bye(reason="finished")
    link._farewell(wire, zmq)
    assert wire.sent == [], "nobody has heard of it"
    link._hello(wire, zmq)
    link._farewell(wire, zmq)
    assert [type(said) for said in wire.sent] == [messages.RunHello, messages.Bye]


class Suspended(Stranger):
    """Leads to a daemon that takes nothing until the run has looked for another one so often."""

    def __init__(self, link: DaemonLink, looks: int) -> None:
        super().__init__(link)
        self._deaf = 1 << 30
        self._looks = looks

    def holder(self, later: int) -> int:
        """Return the pid of the daemon: 7, or another one once it takes messages."""
        self._looks -= 1
        if self._looks < 0:
            self._deaf = 0
        return 7 if self._looks >= 0 else later


@pytest.mark.parametrize(("at_exit", "said"), [(False, True), (True, False)])
@pytest.mark.parametrize("later", [7, 8])
def test_a_goodbye_that_finds_no_room_is_said_later_if_the_process_goes_on(
    link: DaemonLink, monkeypatch: pytest.MonkeyPatch, later: int, *, at_exit: bool, said: bool
) -> None:
    link._hello(Wire(), zmq)
    _welcome(link, Wire(), 7, hello=1)
    link._bye = messages.Bye(reason="finished", at_exit=at_exit)
    link._leaving_at = time.monotonic()
    monkeypatch.setattr(daemon_link, "TELL_S", 0.01)
    monkeypatch.setattr(daemon_link, "LAST_S", 0.01)
    daemon = Suspended(link, looks=3)
    monkeypatch.setattr(processes, "lock_holder", lambda _: daemon.holder(later))
    link._end(daemon, Addresses(Path("/"), Path("/")), zmq)
    assert [type(m) for m in daemon.sent] == [messages.RunHello] * (said and later == 8) + [
        messages.Bye
    ] * said


@pytest.mark.guarantee("full-socket")
@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_socket_refuses_arrives_in_the_end(link: DaemonLink, tmp_path: Path, seed: int) -> None:
    wire, state = Moody(seed), link._state
    where = Addresses(tmp_path, tmp_path)
    link._next_pulse = 0.0
    while not link._greeted:
        link._next_pulse = 0.0
        link._send_due(wire, zmq, where)
    _welcome(link, wire, 7)
    link._acks = False  # nobody answers here
    state.declarations.declare_flops(5.0, "x", "bf16")
    _command(link, wire, "a")
    for i in range(5):
        state.note(f"note {i}")
        state.rows.append(queued(time.monotonic_ns(), i, {"loss": 1.0}))
        state.rows_added += 1
    link._next_rows, link._next_pulse = 0.0, time.monotonic() + 9
    for _ in range(3):
        link._send_due(wire, zmq, where)
    link._bye = messages.Bye(reason="finished")
    link._farewell(wire, zmq)
    sent = wire.sent
    assert isinstance(sent[-1], messages.Bye)
    assert sent[-1].told
    assert [m.text for m in sent if isinstance(m, messages.Note)] == [f"note {i}" for i in range(5)]
    assert [s for m in sent if isinstance(m, messages.Rows) for p in m.parts for s in p.steps()] == [
        *range(5)
    ]
    assert _told(wire)[:2] == [("a", "accepted"), ("a", "scheduled")]


def test_a_declaration_that_the_socket_refuses_is_sent_later(link: DaemonLink, tmp_path: Path) -> None:
    wire = Wire()
    _welcome(link, wire, 7)
    link._next_pulse = time.monotonic() + 9
    link._state.declarations.declare_flops(5.0, "x", "bf16")
    wire._deaf = 1
    for _ in range(2):
        link._send_due(wire, zmq, Addresses(tmp_path, tmp_path))
    [declared] = [m for m in wire.sent if isinstance(m, messages.Declare)]
    assert declared.flops is not None
    assert declared.flops.per_unit == 5.0


def test_a_run_that_ends_sends_all_rows_that_wait(link: DaemonLink) -> None:
    wire = Wire()
    link._hello(wire, zmq)
    state = link._state
    state.rows.extend(queued(time.monotonic_ns() + i, i, {"x": 1.0}) for i in range(3 * TAKEN_AT_ONCE))
    state.rows_added = len(state.rows)
    link._farewell(wire, zmq)
    sent = [
        step
        for said in wire.sent
        if isinstance(said, messages.Rows)
        for p in said.parts
        for step in p.steps()
    ]
    assert sent == list(range(3 * TAKEN_AT_ONCE))


def dropped_at_the_end(link: DaemonLink, wire: Wire) -> int:
    """Let a run end that has said hello. Return how many rows it says it has dropped, before its goodbye."""
    link._bye = messages.Bye(reason="finished")
    link._farewell(wire, zmq)
    pulse, bye = wire.sent[1:]
    assert isinstance(pulse, messages.Pulse)
    assert isinstance(bye, messages.Bye)
    return pulse.dropped


def test_a_run_that_ends_reports_the_rows_lost_since_its_last_pulse(link: DaemonLink) -> None:
    wire = Wire()
    link._hello(wire, zmq)
    link._buffer.lose(7)
    assert dropped_at_the_end(link, wire) == 7


def test_a_run_that_ends_counts_the_rows_that_the_daemon_does_not_take(
    link: DaemonLink, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(Wire):
        """Takes everything but rows."""

        def send(self, frame: bytes, flags: int) -> None:
            if isinstance(codec.from_run([frame]), messages.Rows):
                raise zmq.Again
            super().send(frame, flags)

    wire, state = Stuck(), link._state
    link._hello(wire, zmq)
    state.rows.extend(queued(time.monotonic_ns() + i, i, {"x": 1.0}) for i in range(5))
    state.rows_added = 5
    assert dropped_at_the_end(link, wire) == 5
    assert "the daemon did not take the last 5 rows of this run" in caplog.text


def test_rows_that_may_be_stored_are_doubted_when_they_are_abandoned() -> None:
    buffer = SendBuffer("run/a")
    rows = deque(queued(t, t, {"x": 1.0}) for t in (1, 2))
    buffer.collect(rows, 2, 2)
    buffer.sent(buffer.batch())
    buffer.resend_after(0)  # by a daemon that has not read its recording yet
    rows.append(queued(3, 3, {"x": 1.0}))
    buffer.collect(rows, 3, 3)
    assert buffer.abandon() == 3
    assert (buffer.dropped, buffer.doubted) == (3, 2)
    assert not buffer.has_rows


def test_a_run_says_that_no_daemon_answered_before_its_end(
    link: DaemonLink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link._hello(wire := Wire(), zmq)
    link._end(wire, Addresses(tmp_path, tmp_path), zmq)
    assert "the daemon did not answer this run before its end" in caplog.text


def test_a_run_that_lives_already_takes_one_other_id_however_often_it_is_asked_to(link: DaemonLink) -> None:
    """A daemon that has much to do answers a hello and its repetition at once."""
    wire, before = Wire(), link._state.id
    error = [codec.encode(messages.Error(code="duplicate_run", text="run x is already live in pid 7"))]
    for _ in range(3):
        link._receive(error, wire, zmq)
    (hello,) = wire.sent
    assert isinstance(hello, messages.RunHello)
    assert hello.run == link._state.id != before


S = 1_000_000_000


def rows(*seconds: int, width: int = 1) -> deque[QueuedRow]:
    """What a training thread leaves: a row at each of these seconds."""
    return deque(queued(s * S, s, {f"m{i}": float(s) for i in range(width)}) for s in seconds)


def steps_sent(out: SendBuffer) -> list[int]:
    """Send all that waits."""
    found: list[int] = []
    while batch := out.batch():
        found += [t // S for part in batch for t in part.times()]
        out.sent(batch)
    return found


def test_rows_leave_in_order_and_once() -> None:
    out, entries = SendBuffer("run/a"), rows(1, 2)
    assert out.collect(entries, 2, 3 * S) == 2
    assert not entries
    assert out.has_rows
    assert steps_sent(out) == [1, 2]
    assert not out.has_rows
    out.collect(rows(3), 3, 4 * S)
    assert steps_sent(out) == [3]
    assert out.dropped == 0


def test_a_daemon_that_lost_rows_gets_those_again_and_no_others() -> None:
    out = SendBuffer("run/a")
    out.collect(rows(1, 2, 3), 3, 4 * S)
    assert steps_sent(out) == [1, 2, 3]
    out.collect(rows(4), 4, 5 * S)
    out.resend_after(2 * S)
    assert steps_sent(out) == [3, 4]
    out.collect(deque(), 4, int((RESEND_S + 3.5) * S))  # all but the last are too old by now
    out.resend_after(0)
    assert steps_sent(out) == [4]
    assert out.dropped == 0  # they were sent


def _past() -> SendBuffer:
    """Return a buffer whose rows 1 to 3 were sent, and are too old to be sent again."""
    out = SendBuffer("run/a")
    for step in (1, 2, 3):
        out.collect(rows(step), step, 4 * S)
        steps_sent(out)
    out.collect(rows(100), 4, 100 * S)
    steps_sent(out)
    assert out.past_rows == 3
    return out


@pytest.mark.parametrize(("stored", "lost"), [(0, 3), (2 * S, 1), (3 * S, 0)])
def test_rows_that_no_daemon_has_stored_are_counted_once_it_is_known(stored: int, lost: int) -> None:
    out = _past()
    out.resend_after(0)
    out.resend_after(0)
    assert out.dropped == 0
    out.stored(stored)
    assert (out.dropped, out.past_rows) == (lost, 0)
    out.resend_after(50 * S)
    assert out.dropped == lost


def test_rows_of_which_nobody_knows_count_as_lost() -> None:
    # The daemon was killed before it could tell. What the next one has on disk is newer.
    out = _past()
    out.resend_after(0)
    out.resend_after(99 * S)
    assert (out.dropped, out.past_rows) == (3, 0)


def test_many_rows_are_counted_in_bounded_memory() -> None:
    out = SendBuffer("run/a")
    count = 5 * FORGOTTEN
    for step in range(1, count + 1):
        out.collect(rows(step), step, step * S)
        steps_sent(out)
    assert len(out._forgotten) <= FORGOTTEN
    past = out.past_rows
    assert count - RESEND_S - 2 <= past <= count
    out.resend_after(1000 * S)
    assert out.dropped == pytest.approx(past - 1000, abs=2)


def test_rows_that_wait_to_be_sent_are_kept_however_old_they_are() -> None:
    out = SendBuffer("run/a")
    out.collect(rows(1, 2), 2, 3 * S)
    out.collect(rows(100), 3, 101 * S)
    assert steps_sent(out) == [1, 2, 100]
    assert out.dropped == 0


def test_no_more_rows_are_kept_than_memory_should_hold() -> None:
    out = SendBuffer("run/a")
    for first in range(0, 2 * RESEND_ROWS, TAKEN_AT_ONCE):
        out.collect(rows(*([1] * TAKEN_AT_ONCE)), first + TAKEN_AT_ONCE, S)
    out.resend_after(0)
    assert len(steps_sent(out)) <= RESEND_ROWS


def test_rows_that_newer_ones_pushed_out_are_counted_once() -> None:
    out, entries = SendBuffer("run/a"), rows(7, 8, 9)
    out.collect(entries, 9, 10 * S)  # nine were appended, and three were left
    assert out.dropped == 6
    out.collect(rows(10), 10, 11 * S)
    assert out.dropped == 6


def test_a_row_appended_meanwhile_is_not_taken_for_a_lost_one() -> None:
    out = SendBuffer("run/a")
    out.collect(rows(1, 2), 1, 3 * S)  # the second came after they were counted
    assert out.dropped == 0
    out.collect(rows(3), 3, 4 * S)
    assert out.dropped == 0
    out.collect(rows(8), 7, 9 * S)  # of 4 to 7 none is left; 8 came after they were counted
    out.collect(deque(), 8, 9 * S)
    assert out.dropped == 4


def test_rows_that_a_daemon_has_in_memory_alone_count_if_it_is_killed() -> None:
    out = SendBuffer("run/a")
    out.collect(rows(*range(1, 11)), 10, 10 * S)
    out.sent(out.batch())
    out.collect(deque(), 10, 90 * S)  # too old to be sent again
    out.resend_after(8 * S, on_disk=3 * S)
    assert (out.dropped, out.past_rows) == (2, 8)
    out.resend_after(8 * S, on_disk=8 * S)
    assert (out.dropped, out.past_rows) == (2, 0)

    out = SendBuffer("run/a")
    out.collect(rows(*range(1, 11)), 10, 10 * S)
    out.sent(out.batch())
    out.collect(deque(), 10, 90 * S)
    out.resend_after(8 * S, on_disk=3 * S)
    out.resend_after(3 * S, on_disk=3 * S)  # the next daemon
    assert (out.dropped, out.past_rows) == (7, 0)


def test_rows_that_newer_ones_push_out_before_they_are_sent_again_may_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = SendBuffer("run/a")
    out.collect(rows(*range(1, 4)), 3, 4 * S)
    out.sent(out.batch())
    out.collect(rows(4), 4, 4 * S)
    out.resend_after(0)  # a daemon that has not read the recording yet, and a full socket
    monkeypatch.setattr("hoptui.sdk.send_buffer.RESEND_ROWS", 0)
    out.collect(deque(), 4, 5 * S)
    assert (out.dropped, out.past_rows) == (1, 3), "the fourth was never sent"
    out.stored(2 * S)
    assert (out.dropped, out.past_rows) == (2, 0)


def test_messages_and_parts_stay_below_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    out = SendBuffer("run/a")
    out.collect(rows(*range(TAKEN_AT_ONCE + 1), width=60), TAKEN_AT_ONCE + 1, S)
    first = out.batch()
    assert 0 < len(first) < TAKEN_AT_ONCE // PART_ROWS
    assert sum(8 * len(part) * 62 for part in first) <= MESSAGE_BYTES
    assert steps_sent(out) == list(range(TAKEN_AT_ONCE))  # the last one is left to the next time


def test_rows_of_a_run_that_was_renamed_are_its_own() -> None:
    out = SendBuffer("run/a")
    out.collect(rows(1), 1, 2 * S)
    out.rename("run/b")
    assert not out.has_rows
    out.collect(rows(2), 2, 3 * S)
    [part] = out.batch()
    assert part.source == "run/b"


def test_names_that_cannot_travel_are_spelled_so_that_they_can() -> None:
    out = SendBuffer("run/a")
    out.collect(deque([queued(S, 1, {"x" * 200: 1.0, "lone \ud800": 2.0, "fine": 3.0})]), 1, S)
    [part] = out.batch()
    assert set(part.names) == {"x" * 100, "lone ?", "fine"}


def _welcome(
    link: DaemonLink, wire: Wire, pid: int, hello: int = 0, since: int = 0, stacks: bool = False
) -> None:
    link._receive([codec.encode(_answer(link, pid, hello, since, stacks))], wire, zmq)


def _answer(
    link: DaemonLink, pid: int, hello: int, since: int = 0, stacks: bool = False
) -> messages.RunWelcome:
    epoch = link._state.epoch
    return messages.RunWelcome(
        protocol=1, pid=pid, version="1", epoch=epoch, acks=True, hello=hello, since=since, stacks=stacks
    )


def _pause(link: DaemonLink, name: str) -> messages.Command:
    return messages.Command(id=name, run=link._state.id, epoch=link._state.epoch, verb="pause")


def _command(link: DaemonLink, wire: Wire, name: str) -> None:
    link._receive([codec.encode(_pause(link, name))], wire, zmq)


def _told(wire: Wire) -> list[tuple[str, str]]:
    return [(m.id, m.stage) for m in wire.sent if isinstance(m, messages.Outcome)]


@pytest.mark.guarantee("full-socket")
def test_outcomes_that_the_socket_refuses_are_sent_later_in_order(link: DaemonLink, tmp_path: Path) -> None:
    wire = Wire()
    _welcome(link, wire, 7)
    wire._deaf = 3
    _command(link, wire, "a")
    _command(link, wire, "b")
    assert _told(wire) == []
    link._next_pulse = time.monotonic() + 9
    link._send_due(wire, zmq, Addresses(tmp_path, tmp_path))
    link._send_due(wire, zmq, Addresses(tmp_path, tmp_path))
    both = [("a", "accepted"), ("a", "scheduled"), ("b", "accepted"), ("a", "superseded"), ("b", "scheduled")]
    assert _told(wire) == both


def _refuse(link: DaemonLink, wire: Wire) -> None:
    link._receive([codec.encode(messages.Error(code="hello_first", text=""))], wire, zmq)


def _hellos(wire: Wire) -> list[int]:
    return [m.number for m in wire.sent if isinstance(m, messages.RunHello)]


def test_an_answer_to_an_earlier_hello_says_nothing_about_the_rows_sent_since(link: DaemonLink) -> None:
    """A busy daemon answered hellos half a minute late, and rows that it got counted as dropped."""
    wire = Wire()
    link._hello(wire, zmq)
    link._hello(wire, zmq)  # repeated: there was no answer yet
    _welcome(link, wire, 7, hello=1)
    assert link._welcomed
    link._buffer.collect(rows(1, 2), 2, 2 * S)
    link._buffer.sent(link._buffer.batch())
    link._buffer.collect(deque(), 2, 90 * S)  # too old to be sent again
    assert link._buffer.past_rows == 2
    _welcome(link, wire, 7, hello=1, since=S)  # the answer to the second, which left before the rows
    assert (link._buffer.dropped, link._buffer.past_rows) == (0, 2)
    _refuse(link, wire)
    _welcome(link, wire, 7, hello=1, since=S)
    assert not link._welcomed
    _welcome(link, wire, 7, hello=2, since=S)
    assert link._welcomed
    assert (link._buffer.dropped, link._buffer.past_rows) == (1, 0)
    assert _hellos(wire) == [1, 1, 2]


def test_a_repeated_hello_that_reached_another_daemon_is_said_again(link: DaemonLink) -> None:
    wire = Wire()
    link._hello(wire, zmq)
    link._hello(wire, zmq)
    _welcome(link, wire, 7, hello=1)
    _welcome(link, wire, 8, hello=1)
    assert not link._welcomed
    assert _hellos(wire) == [1, 1, 2]
    _welcome(link, wire, 8, hello=2)
    assert link._welcomed


@pytest.mark.parametrize(("wanted", "thread", "sent"), [(True, True, 1), (False, True, 0), (True, False, 0)])
def test_stack_samples_are_sent_to_a_daemon_that_wants_them(
    link: DaemonLink, tmp_path: Path, wanted: bool, thread: bool, sent: int
) -> None:
    wire = Wire()
    link._state.training.ident = threading.get_ident() if thread else 0
    link._hello(wire, zmq)
    _welcome(link, wire, pid=1, stacks=wanted)
    if link._stacks is not None:
        other = threading.Thread(target=link._stacks.sample)
        other.start()
        other.join(30)
    link._state.training.loop = (CodeLine("train_\udce9.py", 7, "fit"),)
    link._send_due(wire, zmq, Addresses(tmp_path, tmp_path))
    found = [each for each in wire.sent if isinstance(each, messages.Stacks)]
    assert len(found) == sent
    for each in found:
        assert each.loop == (("train_?.py", 7, "fit"),)
        functions = {frame.function for stack in unpack(each.samples) for frame in stack}
        assert "test_stack_samples_are_sent_to_a_daemon_that_wants_them" in functions
    _welcome(link, wire, pid=2, hello=0, stacks=False)
    assert link._stacks is None


def test_an_error_in_the_stack_samples_ends_them_alone(link: DaemonLink, tmp_path: Path) -> None:
    wire = Wire()
    link._state.training.ident = threading.get_ident()
    link._hello(wire, zmq)
    _welcome(link, wire, pid=1, stacks=True)
    assert link._stacks is not None
    link._stacks.take = broken  # type: ignore[method-assign]
    link._send_due(wire, zmq, Addresses(tmp_path, tmp_path))
    assert link._stacks is None
    assert [each.code for each in link._state.declarations.refused] == ["stacks.ended"]
    assert link._state.alive


def broken() -> None:
    raise RuntimeError("planted")


def test_a_pulse_does_not_overtake_an_outcome(link: DaemonLink, tmp_path: Path) -> None:
    wire = Wire()
    _welcome(link, wire, 7)
    link._state.inbox.done.append(messages.Outcome(id="a", stage="applied"))
    wire._deaf = 1
    link._send_due(wire, zmq, Addresses(tmp_path, tmp_path))
    assert not any(isinstance(m, messages.Pulse) for m in wire.sent), "it would say that all has been told"
    _welcome(link, wire, 7)
    link._next_pulse = 0.0
    link._send_due(wire, zmq, Addresses(tmp_path, tmp_path))
    sent = [m for m in wire.sent if isinstance(m, messages.Pulse | messages.Outcome)]
    assert [type(m) for m in sent] == [messages.Outcome, messages.Pulse]


def test_a_pulse_waits_for_outcomes_as_long_as_the_socket_takes_some(link: DaemonLink) -> None:
    """A burst of commands filled the socket as a pulse was due. The rest was told a second later."""
    wire, where = Narrow(room=2), Addresses(Path("/"), Path("/"))
    _welcome(link, wire, 7)  # a pulse is due
    _command(link, wire, "a")
    _command(link, wire, "b")
    link._send_due(wire, zmq, where)
    wire.room = 9
    link._send_due(wire, zmq, where)
    assert len(_told(wire)) == 5
    link._next_pulse = 0.0
    link._send_due(wire, zmq, where)
    assert [type(m) for m in wire.sent] == [*[messages.Outcome] * 5, messages.Pulse]


def test_a_run_says_hello_again_if_the_socket_takes_no_outcome_for_a_second(link: DaemonLink) -> None:
    wire, where = Narrow(room=2), Addresses(Path("/"), Path("/"))
    _welcome(link, wire, 7)
    _command(link, wire, "a")
    _command(link, wire, "b")
    link._taken_at -= 1
    link._send_due(wire, zmq, where)
    wire.room = 9
    link._next_pulse = 0.0
    link._send_due(wire, zmq, where)
    assert _hellos(wire) == [2]


def test_final_outcomes_are_sent_again_until_they_are_acknowledged_and_all_of_them_to_a_new_daemon(
    link: DaemonLink,
) -> None:
    wire = Wire()
    _welcome(link, wire, 7)
    for name in ("a", "b"):
        link._state.inbox.done.append(messages.Outcome(id=name, stage="applied"))
    link._state.inbox.collect_outcomes()
    link._receive([codec.encode(messages.Acknowledgement(stages={"a": "applied", "b": "failed"}))], wire, zmq)
    _welcome(link, wire, 7)
    assert _told(wire) == [("b", "applied")]
    _welcome(link, wire, 8)
    assert _told(wire)[1:] == [("a", "applied"), ("b", "applied")]


def test_outcomes_that_a_new_daemon_did_not_get_are_sent_again_with_their_commands(link: DaemonLink) -> None:
    wire = Wire()
    _welcome(link, wire, 7)
    _command(link, wire, "a")
    link._state.inbox.done.append(messages.Outcome(id="a", stage="applied"))
    link._state.inbox.collect_outcomes()
    link._receive([codec.encode(messages.Acknowledgement(stages={"a": "applied"}))], wire, zmq)
    wire._deaf = 1
    _welcome(link, wire, 8)
    wire.sent.clear()
    _welcome(link, wire, 8)  # the socket was full, so it has said hello once more
    (said,) = [m for m in wire.sent if isinstance(m, messages.Outcome)]
    assert said.stage == "applied"
    assert said.command is not None
    assert said.command.id == "a"


def test_a_run_that_ends_tells_what_becomes_of_each_command_it_has(link: DaemonLink) -> None:
    wire, inbox = Wire(), link._state.inbox
    link._hello(wire, zmq)
    _welcome(link, wire, 7)
    link._acks = False
    verb: messages.Verb
    for verb, name in (("pause", "due"), ("stop", "taken")):
        command = messages.Command(id=name, run=link._state.id, epoch=link._state.epoch, verb=verb)
        link._receive([codec.encode(command)], wire, zmq)
        if name == "due":
            waiting = inbox.due.popleft()
    inbox.take_due(0.0)  # a boundary began it and did not come to its end
    inbox.due.append(waiting)
    link._bye = messages.Bye(reason="exception")
    link._farewell(wire, zmq)
    final = {m.id: m.code for m in wire.sent if isinstance(m, messages.Outcome) and m.stage == "voided"}
    assert final == {"due": "run_ended", "taken": "fate_unknown"}
    assert wire.sent[-1] == messages.Bye(reason="exception", told=True)


def test_a_run_that_ends_before_a_new_daemon_answers_tells_what_the_one_before_had_acknowledged(
    link: DaemonLink,
) -> None:
    """A daemon acknowledges what a slow disk does not take, and the next one then lacks it."""
    wire, inbox = Wire(), link._state.inbox
    link._hello(wire, zmq)
    _welcome(link, wire, 7)
    _command(link, wire, "a")
    inbox.due.clear()
    inbox.done.append(messages.Outcome(id="a", stage="applied"))
    link._send_due(wire, zmq, Addresses(Path("/"), Path("/")))
    inbox.acknowledge({"a": "applied"})
    link._unwelcome()
    link._acks = False
    link._bye = messages.Bye(reason="finished")
    wire.sent.clear()
    link._farewell(wire, zmq)
    assert _told(wire) == [("a", "applied")]
    assert wire.sent[-1] == messages.Bye(reason="finished", told=True)


def test_a_run_that_says_hello_at_its_end_tells_again_what_an_earlier_daemon_was_told(
    link: DaemonLink,
) -> None:
    """A full socket refused the repetition of a hello. The hello at the end then reached another daemon."""
    wire = Wire()
    link._hello(wire, zmq)
    wire._deaf = 1
    link._hello(wire, zmq)
    _welcome(link, wire, 7, hello=1)
    _command(link, wire, "a")
    link._state.inbox.take_due(0.0)
    link._state.inbox.done.append(messages.Outcome(id="a", stage="applied"))
    link._send_due(wire, zmq, Addresses(Path("/"), Path("/")))
    link._acks = False
    link._bye = messages.Bye(reason="finished")
    wire.sent.clear()
    link._reach(wire, Addresses(Path("/"), Path("/")), zmq)
    link._farewell(wire, zmq)
    assert [type(said) for said in wire.sent] == [messages.RunHello, messages.Outcome, messages.Bye]
    assert _told(wire) == [("a", "applied")]
    assert wire.sent[-1] == messages.Bye(reason="finished", told=True)


class Confirming(Wire):
    """Leads to a daemon that answers a goodbye."""

    def __init__(self, *answers: messages.ToRun) -> None:
        super().__init__()
        self._answers = deque(answers)

    def poll(self, _: int, __: int) -> int:
        return int(bool(self._answers))

    def recv_multipart(self, _: int) -> list[bytes]:
        return [codec.encode(self._answers.popleft())]


@pytest.mark.parametrize("last", [messages.Farewell(), messages.Error(code="hello_first", text="")])
def test_the_last_goodbye_waits_for_its_answer(link: DaemonLink, last: messages.ToRun) -> None:
    left = messages.Hold(seconds=1.0)
    wire = Confirming(messages.Hold(seconds=1.0), last, left)
    link._hello(wire, zmq)
    link._bye = messages.Bye(reason="finished", confirm=True)
    link._acks = False
    link._farewell(wire, zmq)
    assert isinstance(wire.sent[-1], messages.Bye)
    assert list(wire._answers) == [left]
    assert link._done.is_set(), "close may return before the answer"


@pytest.mark.parametrize(("answers", "told"), [(99, True), (1, False)])
def test_a_run_that_ends_says_hello_to_a_daemon_that_does_not_know_it(
    link: DaemonLink, answers: int, told: bool
) -> None:
    """A daemon had died, and the run had reached the next one without noticing it."""
    wire = Wire()
    link._hello(wire, zmq)
    _welcome(link, wire, 7, hello=1)
    link._state.rows.append(queued(time.monotonic_ns(), 1, {"loss": 1.0}))
    link._state.rows_added += 1
    link._collect()
    link._send_rows(wire, zmq)
    _command(link, wire, "a")
    link._state.inbox.take_due(0.0)
    link._state.inbox.done.append(messages.Outcome(id="a", stage="applied"))
    link._bye = messages.Bye(reason="finished")
    stranger = Stranger(link, answers)
    link._farewell(stranger, zmq)
    assert stranger.read[-1] == messages.Bye(reason="finished", told=told)
    assert _told(stranger) == [("a", "applied")] * (1 + told)
    assert any(isinstance(said, messages.Rows) for said in stranger.read) == told


@pytest.mark.parametrize("holder", [7, 8, 0, None])
def test_a_run_without_outcomes_says_hello_at_its_end_to_a_daemon_that_has_replaced_its_own(
    link: DaemonLink, monkeypatch: pytest.MonkeyPatch, holder: int | None
) -> None:
    """The rows that the daemon before had not written, the last ones and the goodbye were lost uncounted."""
    wire = Wire()
    link._hello(wire, zmq)
    _welcome(link, wire, 7, hello=1)
    for step in (1, 2):
        link._state.rows.append(queued(time.monotonic_ns(), step, {"loss": 1.0}))
        link._state.rows_added += 1
        if step == 1:
            link._collect()
            link._send_rows(wire, zmq)
    link._bye = messages.Bye(reason="finished")
    monkeypatch.setattr(processes, "lock_holder", lambda _: holder)
    stranger = Stranger(link)
    link._end(stranger, Addresses(Path("/"), Path("/")), zmq)
    rows_read = [part for m in stranger.read if isinstance(m, messages.Rows) for part in m.parts]
    if holder == 8:
        assert [step for part in rows_read for step in part.steps()] == [1, 2]
        assert stranger.read[-1] == messages.Bye(reason="finished", told=True)
    else:  # as far as it can know, it is its own
        assert _hellos(stranger) == []


def test_a_replacement_that_does_not_answer_is_not_waited_for_long(
    link: DaemonLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire()
    link._hello(wire, zmq)
    _welcome(link, wire, 7, hello=1)
    link._bye = messages.Bye(reason="finished")
    monkeypatch.setattr(processes, "lock_holder", lambda _: 8)
    monkeypatch.setattr(daemon_link, "TELL_S", 0.05)
    monkeypatch.setattr(daemon_link, "LAST_S", 0.05)
    monkeypatch.setattr(daemon_link, "LATE_S", 0.1)
    for deaf in (0, 1 << 30):  # it takes messages, or none
        silent = Wire(deaf)
        link._end(silent, Addresses(Path("/"), Path("/")), zmq)
        goodbyes = [m for m in silent.sent if isinstance(m, messages.Bye)]
        assert len(goodbyes) == (deaf == 0)
        link._welcomed = True


def test_a_nan_that_a_script_logs_is_told_from_a_value_that_is_left_out() -> None:
    out = SendBuffer("run/a")
    first, second = {"loss": 1.0, "lr": 2.0}, {"loss": -math.nan, "lr": math.inf}
    out.collect(deque([queued(S, 1, first), queued(2 * S, 2, second)]), 2, 3 * S)
    out.collect(deque([queued(3 * S, 3, {"lr": 3.0})]), 3, 4 * S)
    known = [
        {n: is_known(v) for n, v in values.items()} for part in out.batch() for _, _, values in part.rows()
    ]
    assert known == [{"loss": True, "lr": True}, {"loss": True, "lr": True}, {"lr": True}]
