"""Work of which a fault costs itself alone: of what the daemon does for each of its runs, now and then."""

from __future__ import annotations

import pytest
from msgspec import structs

from hoptui.daemon.diagnosis import Diagnosing
from hoptui.daemon.handlers.tuners import BROKE
from hoptui.daemon.state.node import AFTER_FAULT_NS, Faults
from hoptui.domain.columns import Columns, pack
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.tuning import TunerState
from hoptui.protocol.messages import PROTOCOL, Bye, RunHello
from tests.daemon.quiet_node import RUN, SECOND, QuietNode, Script


def test_what_broke_is_logged_and_left_alone_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now, done = 0, []

    def work(count: int, *, fails: bool) -> int:
        done.append(count)
        return count // (not fails)

    faults = Faults(lambda: now)
    assert faults.attempt("it", work, 3, fails=False) == 3
    assert faults.attempt("it", work, 4, fails=True) is None
    assert faults.resting("it")
    assert faults.attempt("it", work, 5, fails=False) is None
    assert faults.attempt("something else", work, 6, fails=False) == 6
    now += AFTER_FAULT_NS
    assert faults.attempt("it", work, 7, fails=False) == 7
    assert done == [3, 4, 6, 7]
    assert [record.getMessage() for record in caplog.records] == ["it broke"]


# the diagnosis ----------------------------------------------------------------------------------------------


def broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def pair(quiet: QuietNode, seconds: int, diagnosing: Diagnosing) -> None:
    """Another run beside that of the node, and iterations of both."""
    for _ in range(seconds):
        quiet.now += SECOND
        for run in (RUN, "other"):
            found = quiet.node.registry.get(run)
            assert found is not None
            row = {"iteration_s": 1.0}
            quiet.node.rows((pack(f"run/{run}", [(quiet.now, found.last_step + 1, row)]),))
        diagnosing.tend()


def diagnosis(quiet: QuietNode, run: str) -> Diagnosis | None:
    found = quiet.node.registry.get(run)
    assert found is not None
    return found.state.diagnosis


@pytest.mark.guarantee("part-raises")
def test_a_diagnosis_that_breaks_costs_its_own_verdict_for_a_while(
    quiet: QuietNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hello = RunHello(protocol=PROTOCOL, run="other", name="b", epoch=1, nonce="n9", pid=2, started=0)
    quiet.runs.receive(b"n9", None, hello)
    diagnosing = Diagnosing(quiet.node)
    pair(quiet, 20, diagnosing)
    assert diagnosis(quiet, RUN) is not None
    version = quiet.node.version
    with monkeypatch.context() as patched:
        iterations = "hoptui.daemon.diagnosis.iterations"

        def odd(rows: Columns) -> None:
            if rows.source == f"run/{RUN}":
                raise OverflowError

        patched.setattr(iterations, odd)
        pair(quiet, 20, diagnosing)
    assert diagnosis(quiet, RUN) is None
    assert diagnosis(quiet, "other") is not None
    assert quiet.node.version > version, "viewers are to know"
    assert [record.getMessage() for record in caplog.records] == [f"the diagnosis of {RUN} broke"]
    quiet.now += AFTER_FAULT_NS
    pair(quiet, 20, diagnosing)
    assert diagnosis(quiet, RUN) is not None


# measuring --------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("part-raises")
def test_a_change_that_cannot_be_measured_costs_no_row(
    quiet: QuietNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Columns] = []
    monkeypatch.setattr(quiet.keeper, "rows", lambda _, parts: kept.extend(parts))
    monkeypatch.setattr("hoptui.daemon.state.command_log.unsettled", broken)
    quiet.rows(100.0, 101.0)
    assert len(kept) == 2


# tuners -----------------------------------------------------------------------------------------------------


def left_by_another_daemon(quiet: QuietNode) -> QuietNode:
    state = TunerState(stand="holding", started=90 * SECOND, user="ana")
    there = QuietNode(state=structs.replace(quiet.run.state, tuner=state))
    there.hello()
    return there


def test_a_tuner_that_cannot_be_taken_up_is_off(
    quiet: QuietNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = left_by_another_daemon(quiet)
    monkeypatch.setattr(Script, "take_over", broken)
    for _ in range(5):
        there.look()
    assert (there.tuner.stand, there.tuner.facts) == ("off", (BROKE,))
    assert len(caplog.records) == len(there.scripts) == 1


@pytest.mark.parametrize("part", ["off", "event", "_roll_back_at_once"])
def test_a_tuner_that_breaks_again_while_it_is_ended_is_off(
    trying: QuietNode, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(f"hoptui.daemon.tuning.TunerController.{part}", broken)
    trying.script.plan.append(ZeroDivisionError())
    for _ in range(5):
        trying.look()
    assert (trying.tuner.stand, trying.tuner.facts) == ("off", (BROKE,))
    assert (trying.tuner.trial, trying.tuner.tried[-1].result) == (None, "unfinished")
    assert len(trying.scripts) == 1, "nobody takes it up"


def test_a_tuner_that_breaks_at_the_end_of_its_run_does_not_keep_the_run_from_ending(
    trying: QuietNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Script, "stop", broken)
    trying.runs.receive(b"n1", None, Bye(reason="finished"))
    assert trying.run.exited
    assert trying.keeper.log[-1] == "finish"
    assert trying.tuner.stand == "off"


def test_a_way_back_that_breaks_does_not_keep_the_daemon_from_ending(
    trying: QuietNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hoptui.daemon.tuning.TunerController.leave", broken)
    trying.tuners.close()
    assert not trying.commands[1:]
