from __future__ import annotations

import re

import pytest

from hoptui.client.conversation import ReadOnlyError
from hoptui.client.session import NoDaemon, RefusedError, Session, Unreachable
from hoptui.domain.columns import pack
from hoptui.domain.tuning import Tune
from hoptui.node import processes
from hoptui.protocol.messages import (
    Command,
    Error,
    Fetch,
    FromViewer,
    Lease,
    Outcome,
    Query,
    Shutdown,
    Stage,
    ToViewer,
)
from tests import factories
from tests.client.fake_daemon import FakeDaemon, tuned
from tests.factories import SECOND
from tests.golden import Golden, sheet

RUN = factories.run()


@pytest.fixture
def ppo(daemon: FakeDaemon) -> FakeDaemon:
    daemon.add(RUN, metrics={"loss": 0.5})
    daemon.start()
    return daemon


def test_without_a_daemon(daemon: FakeDaemon, golden: Golden) -> None:
    with pytest.raises(NoDaemon) as caught, Session(daemon.where):
        pass
    golden(str(caught.value))


def test_a_daemon_that_ends_as_soon_as_it_is_started(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(processes, "start_daemon", lambda where: None)
    with (
        pytest.raises(Unreachable) as caught,
        Session(daemon.where, start_daemon=True, timeout_s=0.05),
    ):
        pass
    golden(str(caught.value), normalize={re.escape(str(daemon.where.log)): "LOG"})


@pytest.mark.parametrize(("lives", "patience_s"), [(False, 1.5), (True, 0.5)])
def test_a_daemon_that_was_just_started_may_take_longer(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, lives: bool, patience_s: float
) -> None:
    """Where all processors are busy, its imports take seconds."""
    waited: list[float] = []

    def until(session: Session, wanted: object, timeout_s: float, *rest: object) -> object:
        waited.append(timeout_s)
        raise Unreachable("silent")

    monkeypatch.setattr(processes, "start_daemon", lambda where: None)
    monkeypatch.setattr(processes, "daemon_lives", lambda where: lives)
    monkeypatch.setattr(Session, "_until", until)
    with pytest.raises(Unreachable), Session(daemon.where, start_daemon=True, timeout_s=0.5):
        pass
    assert waited == [patience_s]


def test_fetch_and_query(ppo: FakeDaemon) -> None:
    with Session(ppo.where) as session:
        assert session.hello.host == "gpu07"
        delta = session.fetch(latest=True)
        assert delta.node is not None
        assert [run.name for run in delta.node.runs] == ["ppo"]
        assert delta.columns[0].last() == {"loss": 0.5}
        assert session.query(f"run/{RUN.run}", ("loss",)).names == ("loss",)
        assert session.renew_pause(RUN.run).granted


def test_a_tuner_answers(ppo: FakeDaemon) -> None:
    ppo.answer = tuned
    with Session(ppo.where) as session:
        answer = session.tune(RUN.run, "stop")
    assert (answer.granted, answer.reason) == (False, "ben tunes it")


def test_a_daemon_that_does_not_know_a_message_is_named(ppo: FakeDaemon, golden: Golden) -> None:
    unknown = Error(code="unsupported", text="no message of the kind 'tune' is understood here")
    ppo.answer = lambda message: [unknown] if isinstance(message, Tune) else None
    with (
        Session(ppo.where) as session,
        pytest.raises(RefusedError) as caught,
    ):
        session.tune(RUN.run, "start")
    assert unknown.text in str(caught.value)
    golden(str(caught.value))


def test_outcomes_are_told_as_they_come(ppo: FakeDaemon) -> None:
    stages: list[Stage] = []
    with Session(ppo.where) as session:
        command = session.submit(RUN, "set", knob="grad_accum", value=8)
        outcome = session.outcome(command, timeout_s=5, on_stage=lambda o: stages.append(o.stage))
    assert (outcome.stage, outcome.effective, outcome.step) == ("applied", 8, 1205)
    assert stages[-1] == "applied"


def test_a_read_only_session_asks_and_sends_nothing(ppo: FakeDaemon) -> None:
    with Session(ppo.where, read_only=True) as session:
        assert session.fetch(latest=True).node is not None
        for ask in (
            lambda: session.submit(RUN, "set", knob="grad_accum", value=8),
            lambda: session.renew_pause(RUN.run),
            lambda: session.tune(RUN.run, "start"),
            session.shutdown,
        ):
            with pytest.raises(ReadOnlyError):
                ask()
        session.fetch(latest=True)
    assert [m for kind in (Command, Lease, Tune, Shutdown) for m in ppo.of(kind)] == []


def test_a_command_without_an_end_returns_where_it_is(ppo: FakeDaemon) -> None:
    ppo.stages = ppo.stages[:2]
    with Session(ppo.where) as session:
        command = session.submit(RUN, "pause")
        assert session.outcome(command, timeout_s=0.1).stage == "scheduled"
        ppo.stages = ()
        other = session.submit(RUN, "pause")
        assert session.outcome(other, timeout_s=0.1).stage == "sent"


def test_an_older_daemon_is_asked_for_the_record(ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoptui.client.session.ASK_AGAIN_S", 0.05)

    def older(message: FromViewer) -> list[ToViewer] | None:
        if not isinstance(message, Command):
            return None
        ppo.commands = [factories.change(message.id, seq=9)]
        return [Outcome(id=message.id, stage="applied", effective=8)]

    ppo.answer = older
    with Session(ppo.where) as session:
        command = session.submit(RUN, "set", knob="grad_accum", value=8)
        found = session.outcome(command, timeout_s=10)
    assert (found.stage, found.effective, found.origin.user) == ("applied", 8, "ana")


def test_it_asks_again_with_the_same_id(ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoptui.client.session.ASK_AGAIN_S", 0.05)
    done = ppo.stages

    def later(message: FromViewer) -> list[ToViewer] | None:
        if isinstance(message, Command):
            ppo.stages = done if len(ppo.of(Command)) == 3 else ()
        return None

    ppo.answer = later
    with Session(ppo.where) as session:
        command = session.submit(RUN, "stop")
        assert session.outcome(command).stage == "applied"
    assert {m.id for m in ppo.of(Command) if isinstance(m, Command)} == {command}


def test_another_daemon_hears_that_an_earlier_one_may_have_passed_a_command_on(
    ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hoptui.client.session.ASK_AGAIN_S", 0.05)

    def another(message: FromViewer) -> list[ToViewer] | None:
        if not isinstance(message, Command) or message.repeated:
            return None
        ppo.forget()
        ppo.pid += 1
        return []

    ppo.answer = another
    with Session(ppo.where) as session:
        assert session.outcome(session.submit(RUN, "stop"), timeout_s=10).stage == "applied"
    assert {m.repeated for m in ppo.of(Command) if isinstance(m, Command)} == {False, True}


def test_a_daemon_that_forgot_us_is_greeted_again(ppo: FakeDaemon) -> None:
    with Session(ppo.where) as session:
        ppo.forget()
        assert session.fetch().node is not None


def test_errors_are_raised_with_their_code(ppo: FakeDaemon) -> None:
    def refuse(message: FromViewer) -> list[ToViewer] | None:
        return (
            [Error(code="no_history", text="no recording", id=message.id)]
            if isinstance(message, Query)
            else None
        )

    ppo.answer = refuse
    with Session(ppo.where) as session, pytest.raises(RefusedError, match="no recording") as caught:
        session.query("host")
    assert caught.value.code == "no_history"


def test_silence_is_an_answer_too(ppo: FakeDaemon, golden: Golden) -> None:
    ppo.answer = lambda message: [] if isinstance(message, Fetch) else None
    with Session(ppo.where, timeout_s=0.1) as session:
        with pytest.raises(Unreachable) as silent:
            session.fetch()
        ppo.release_lock()
        with pytest.raises(Unreachable) as gone:
            session.fetch()
    golden(sheet({"silent": str(silent.value), "gone": str(gone.value)}))


def test_another_protocol(daemon: FakeDaemon, golden: Golden) -> None:
    daemon.protocol = 9
    daemon.start()
    with (
        pytest.raises(Unreachable) as caught,
        Session(daemon.where),
    ):
        pass
    golden(str(caught.value))


def test_shutdown_waits_until_the_lock_is_free(ppo: FakeDaemon) -> None:
    with Session(ppo.where) as session:
        session.shutdown()
    with pytest.raises(NoDaemon), Session(ppo.where):
        pass


def test_a_daemon_that_stays(ppo: FakeDaemon) -> None:
    ppo.answer = lambda message: [] if message.__class__.__name__ == "Shutdown" else None
    with (
        Session(ppo.where, timeout_s=0.1) as session,
        pytest.raises(Unreachable, match=r"pid 77\) does not end"),
    ):
        session.shutdown()


def test_rows_come_with_their_cursor(ppo: FakeDaemon) -> None:
    source = f"run/{RUN.run}"
    ppo.columns[0] = pack(source, [(i * SECOND, i, {"loss": float(i)}) for i in range(1, 5)])
    with Session(ppo.where) as session:
        delta = session.fetch(cursors={source: 2 * SECOND}, state=2)
    assert [row[1] for row in delta.columns[0].rows()] == [3, 4]


def test_a_fetch_may_ask_for_a_rate_and_for_processes(ppo: FakeDaemon) -> None:
    with Session(ppo.where) as session:
        session.fetch()
        session.fetch(hz=10.0, processes=3)
    asked = [(m.hz, m.processes) for m in ppo.of(Fetch) if isinstance(m, Fetch)]
    assert asked == [(0.0, None), (10.0, 3)]
