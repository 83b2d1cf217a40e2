from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from hoptui.client import routes
from hoptui.client.client import Change, Client
from hoptui.client.connection import DaemonConnection
from hoptui.client.conversation import ReadOnlyError
from hoptui.client.routes import Here, Trouble
from hoptui.client.target import Place
from hoptui.domain.columns import pack
from hoptui.domain.tuning import Limits, Tune
from hoptui.node import processes
from hoptui.node.addresses import Addresses
from hoptui.protocol.messages import Command, Fetch, Lease, Outcome, ViewerHello, Vital
from tests import factories
from tests.client.fake_daemon import FakeDaemon, tuned
from tests.conftest import until
from tests.factories import SECOND
from tests.golden import Golden

RUN = "abcd2345"


class Watched(Client):
    """A client that notes what it told."""

    def __init__(self, daemon: FakeDaemon, *, start_daemon: bool = False) -> None:
        self.told: list[Change] = []
        self.threads: set[int] = set()
        super().__init__(daemon.where, client="test", on_change=self._note, start_daemon=start_daemon)

    def _note(self, change: Change) -> None:
        self.told.append(change)
        self.threads.add(threading.get_ident())


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same waits, five times shorter."""
    monkeypatch.setattr("hoptui.client.conversation.WAIT_S", 0.2)
    monkeypatch.setattr("hoptui.client.conversation.RESEND_S", (0.2,))
    monkeypatch.setattr(routes, "QUIET_S", 0.2)


@pytest.fixture
def ppo(daemon: FakeDaemon) -> FakeDaemon:
    daemon.add(factories.run(), metrics={"loss": 0.5})
    daemon.columns.append(pack("host", [(1999 * SECOND, -1, {"load_1m": 1.0})]))
    daemon.start()
    return daemon


@pytest.fixture
def client(ppo: FakeDaemon) -> Iterator[Watched]:
    found = Watched(ppo)
    found.start()
    try:
        until(lambda: found.store.node)
        yield found
    finally:
        found.close()


def test_it_connects_and_says_what_changed(client: Watched, ppo: FakeDaemon) -> None:
    until(lambda: client.link.state == "live")
    assert client.link.reason == ""
    assert client.link.round_trip_ms is not None
    assert client.store.run(RUN) is not None
    assert client.store.latest(f"run/{RUN}") == {"loss": 0.5}
    assert {"link", "node", "vitals"} <= set(client.told)
    assert client.threads.isdisjoint({threading.get_ident()})


def test_rows_are_no_reason_to_wake_a_screen(client: Watched, ppo: FakeDaemon) -> None:
    until(lambda: client.store.series("host", "load_1m") and client.link.state == "live")
    until(lambda: {"link", "node", "vitals"} <= set(client.told))

    def told_by_rows(number: int) -> Sequence[str]:
        told = len(client.told)
        ppo.columns[1] = pack(
            "host",
            [
                (1999 * SECOND, -1, {"load_1m": 1.0}),
                ((2000 + number) * SECOND, -1, {"load_1m": 7.0 + number}),
            ],
        )
        until(lambda: client.store.latest("host") == {"load_1m": 7.0 + number})
        ppo.vitals = {RUN: Vital(state="live", step=1300 + number)}
        until(lambda: client.store.vitals[RUN].step == 1300 + number)
        return client.told[told:]

    # On a busy machine the client may ask for the first state twice, and the second answer come meanwhile.
    assert [] in [told_by_rows(number) for number in range(3)]
    told = len(client.told)
    ppo.vitals = {RUN: Vital(state="paused", step=1300)}
    until(lambda: "vitals" in client.told[told:])


def test_watching_seeds_and_follows(client: Watched, ppo: FakeDaemon) -> None:
    client.watch(RUN)
    until(lambda: any(f"run/{RUN}" in f.cursors for f in ppo.of(Fetch) if isinstance(f, Fetch)))
    ppo.columns[0] = pack(
        f"run/{RUN}", [(2000 * SECOND, 1, {"loss": 0.5}), (2001 * SECOND, 2, {"loss": 0.4})]
    )
    until(lambda: client.store.latest(f"run/{RUN}") == {"loss": 0.4})
    series = client.store.series(f"run/{RUN}", "loss")
    assert series is not None
    assert series.window(0, 3000 * SECOND, 3000).low == [0.5, 0.4]


def test_a_command_reaches_the_wire_within_milliseconds(
    client: Watched, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "QUIET_S", 60.0)
    ppo.answer = lambda message: [] if isinstance(message, Fetch) and not message.latest else None
    until(lambda: any(isinstance(f, Fetch) and not f.latest for f in ppo.of(Fetch)))
    times = []
    for value in range(5):
        before = time.monotonic()
        client.send("set", RUN, knob="grad_accum", value=value)
        while len(ppo.of(Command)) <= value and time.monotonic() < before + 5:
            time.sleep(0.0005)
        times.append(time.monotonic() - before)
    assert min(times) < 0.02  # nothing else would have woken the thread for two seconds


def test_a_command_is_followed_to_its_end(client: Watched, ppo: FakeDaemon) -> None:
    found = client.send("set", RUN, knob="grad_accum", value=8, expect_version=0, why="because")
    assert client.store.commands[found].stage in ("sent", "accepted", "applied")
    until(lambda: client.store.commands[found].stage == "applied")
    record = client.store.commands[found]
    assert (record.before, record.effective, record.step, record.why) == (4, 8, 1205, "because")
    [command] = ppo.of(Command)
    assert isinstance(command, Command)
    assert (command.id, command.epoch, command.expect_version) == (found, 1, 0)
    assert client.pending() == {}
    assert "commands" in client.told


def test_an_unanswered_command_is_pending_and_sent_again(client: Watched, ppo: FakeDaemon) -> None:
    ppo.stages = ()
    found = client.send("pause", RUN, hold_s=30.0)
    assert list(client.pending()) == [found]
    until(lambda: len(ppo.of(Command)) == 2)
    assert {m.id for m in ppo.of(Command) if isinstance(m, Command)} == {found}
    ppo.stages = (Outcome(id="", stage="applied"),)
    until(lambda: client.store.commands[found].stage == "applied")
    assert client.pending() == {}


def test_messages_that_a_socket_does_not_take_are_sent_later_in_order(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    wake, other = socket.socketpair()
    sent = [b"%d" % number for number in range(3000)]  # more than ZeroMQ queues
    got: list[bytes] = []
    try:
        connection = DaemonConnection(context, wake)
        connection.reopen(tmp_path / "s")
        connection.send(*sent)
        assert connection.stuck
        daemon = context.socket(zmq.ROUTER)
        daemon.bind(f"ipc://{tmp_path / 's'}")

        def all_there() -> bool:
            connection.receive(0.01)
            connection.send()
            while daemon.poll(0):
                got.append(daemon.recv_multipart()[1])
            return len(got) == len(sent)

        until(all_there, what="every message")
        assert got == sent
        assert not connection.stuck
    finally:
        context.destroy(linger=0)
        wake.close()
        other.close()


def test_the_renewal_of_a_pause_goes_out(client: Watched, ppo: FakeDaemon) -> None:
    client.renew_pause(RUN)
    until(lambda: bool(ppo.of(Lease)))
    [asked] = ppo.of(Lease)
    assert isinstance(asked, Lease)
    assert (asked.run, asked.op, asked.what) == (RUN, "renew", "pause")


def test_a_request_to_the_tuner_goes_out_and_its_answer_comes_back(client: Watched, ppo: FakeDaemon) -> None:
    ppo.answer = tuned
    client.tune(RUN, "start", limits=Limits(budget=0.05))
    until(lambda: RUN in client.store.tuned)
    assert client.store.tuned[RUN].reason == "ben tunes it"
    client.tune(RUN, "freeze", knob="lr")
    until(lambda: len(ppo.of(Tune)) == 2)
    asked = [(m.op, m.knob, m.limits.budget) for m in ppo.of(Tune) if isinstance(m, Tune)]
    assert asked == [("start", "", 0.05), ("freeze", "lr", 0.04)]


@pytest.mark.guarantee("read-only")
def test_a_read_only_one_follows_everything_and_sends_nothing(ppo: FakeDaemon) -> None:
    watched = Client(ppo.where, start_daemon=False, read_only=True)
    watched.start()
    try:
        until(lambda: watched.store.run(RUN) is not None)
        asks: list[Callable[[], object]] = [
            lambda: watched.send("set", RUN, knob="grad_accum", value=8),
            lambda: watched.send("stop", RUN),
            lambda: watched.renew_pause(RUN),
            lambda: watched.tune(RUN, "start"),
            lambda: watched.sample(10.0),
        ]
        for ask in asks:
            with pytest.raises(ReadOnlyError):
                ask()
        assert not watched.store.commands
        assert not watched.pending()
        heard = len(ppo.of(Fetch))
        until(lambda: len(ppo.of(Fetch)) > heard)  # the thread has had its turn
        assert [*ppo.of(Command), *ppo.of(Lease)] == []
        assert {m.hz for m in ppo.of(Fetch) if isinstance(m, Fetch)} == {0.0}
    finally:
        watched.close()


def test_a_lost_daemon_leaves_everything_on_the_screen(
    client: Watched, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    until(lambda: client.link.state == "live")
    ppo.stop()
    until(lambda: client.link.state == "lost")
    golden(client.link.reason)
    assert client.store.latest(f"run/{RUN}") == {"loss": 0.5}
    found = client.send("set", RUN, knob="grad_accum", value=8)
    hellos = len(ppo.of(ViewerHello))
    ppo.start()
    until(lambda: client.link.state == "live")
    assert len(ppo.of(ViewerHello)) > hellos
    until(lambda: client.store.commands[found].stage == "applied")


def test_a_daemon_that_hangs_is_noticed(
    client: Watched, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    until(lambda: client.link.state == "live")
    monkeypatch.setattr("hoptui.client.conversation.SILENCE_S", 0.2)
    ppo.hang()
    until(lambda: client.link.state == "lost")
    assert "pid 77" in client.link.reason
    golden(client.link.reason)


def test_without_a_daemon_it_says_so(daemon: FakeDaemon, golden: Golden) -> None:
    client = Watched(daemon)
    client.start()
    try:
        assert until(lambda: client.link.reason)
        assert client.link.state == "connecting"
        golden(client.link.reason)
    finally:
        client.close()


def test_it_starts_the_daemon_and_tries_again(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def start(where: object) -> None:
        calls.append(where)
        if len(calls) == 1:
            raise processes.StartError("the daemon could not be started: no disk")
        daemon.start()

    monkeypatch.setattr(processes, "start_daemon", start)
    monkeypatch.setattr(routes, "QUIET_S", 0.1)
    monkeypatch.setattr(routes, "START_AGAIN_S", (0.0, 0.05))
    client = Watched(daemon, start_daemon=True)
    client.start()
    try:
        until(lambda: client.link.state == "failed" or len(calls) > 1)
        until(lambda: client.link.state == "live")
    finally:
        client.close()
    assert len(calls) == 2
    assert client.told.count("link") >= 2


@pytest.mark.parametrize(
    ("room", "writable", "why"),
    [
        (0, True, "{0.directory}"),
        (9, True, "{0.log}"),
        (9, False, "{0.directory}"),
    ],
    ids=["full", "log", "read-only"],
)
def test_a_daemon_that_never_stays_is_told_with_where_the_reason_is(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, room: int, writable: bool, why: str, golden: Golden
) -> None:
    starts: list[Addresses] = []
    monkeypatch.setattr(processes, "daemon_lives", lambda where: False)
    monkeypatch.setattr(processes, "start_daemon", starts.append)
    monkeypatch.setattr(os, "statvfs", lambda place: SimpleNamespace(f_bavail=room))
    monkeypatch.setattr(os, "access", lambda place, mode: writable)
    here = routes.Here(daemon.where)
    here.begin(0.0)
    found = [trouble(here, at, at - 10.0) for at in (1.0e9, 2.0e9)]
    assert [one.failed for one in found] == [False, False]
    found.append(trouble(here, 3.0e9, 2.9e9))
    assert (found[-1].failed, why.format(daemon.where) in found[-1].reason) == (True, True)
    assert len(starts) == 4
    here.served()
    found.append(trouble(here, 4.0e9, 3.9e9, greeted=True))
    assert not found[-1].failed, "one that served has stayed"
    golden(
        "".join(f"{one.reason}\n" for one in found),
        normalize={re.escape(str(daemon.where.directory)): "DIRECTORY"},
    )


def trouble(here: routes.Here, now: float, heard: float, *, greeted: bool = False) -> routes.Trouble:
    found = here.check(now, heard, greeted)
    assert found is not None
    return found


def test_an_open_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    (tmp_path / "d").mkdir(mode=0o755)
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "d"))
    client = Client(start_daemon=False)
    client.start()
    until(lambda: client.link.state == "failed")
    client.close()
    assert str(tmp_path / "d") in client.link.reason
    golden(client.link.reason, normalize={re.escape(str(tmp_path)): ""})


def test_another_protocol_is_a_failure_with_advice(daemon: FakeDaemon, golden: Golden) -> None:
    daemon.protocol = 9
    daemon.start()
    client = Watched(daemon)
    client.start()
    try:
        until(lambda: client.link.state == "failed")
        golden(client.link.reason)
    finally:
        client.close()


def test_closing_takes_no_time_and_ends_the_thread(client: Watched) -> None:
    before = time.monotonic()
    client.close()
    assert time.monotonic() - before < 1.0
    assert not [t for t in threading.enumerate() if t.name == "hoptui-viewer"]


def test_a_way_that_was_open_before_is_not_taken_for_a_silent_one(daemon: FakeDaemon) -> None:
    """ssh is set out with before the dashboard is imported, so it may have arrived when the client begins."""

    class Open(Here):
        place = Place("far")

        def silent(self, now: float, pid: int | None) -> Trouble:
            raise AssertionError("it has not been asked anything yet")

    daemon.start()
    client = Client(way=Open(daemon.where, start_daemon=False))
    try:
        client.start()
        until(lambda: client.link.state in ("live", "failed"))
        assert client.link[:3:2] == ("live", "")
        assert client.link.node == "far"
    finally:
        client.close()
