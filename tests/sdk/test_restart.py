"""Knobs that need a new process, without one: what waits, what replaces it, what the next process reports."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest

import hoptui
from hoptui.protocol.messages import Command, Origin, Outcome
from hoptui.sdk import iteration
from hoptui.sdk.process import (
    LONGEST_HANDOVER,
    VARIABLE,
    Handover,
    RestartCommand,
    leave_handover,
    take_handover,
)
from hoptui.sdk.run import Run
from tests.run_state import run_state


@dataclass
class Config:
    width: Annotated[int, hoptui.Knob(1, 64, cost="restart")] = 8
    layers: Annotated[int, hoptui.Knob(1, 64, cost="restart")] = 2


@pytest.fixture(autouse=True)
def off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPTUI", "off")
    monkeypatch.setenv(VARIABLE, "")  # restored afterwards


def connected(config: Config, **fields: Any) -> Run:
    run = hoptui.connect("unit", **fields)

    def check(width: int) -> None:
        if width % run.restart_wanted.get("layers", config.layers):  # type: ignore[operator]
            raise ValueError("width is no multiple of layers")

    run.knobs(config, apply={"width": check})
    return run


def ask(run: Run, name: str, **fields: Any) -> None:
    command = Command(
        id=name, run=run.id, epoch=run_state(run).epoch, verb="set", origin=Origin(user="kim"), **fields
    )
    run_state(run).inbox.receive(command, time.monotonic(), run.step + 1)


def stages(run: Run) -> list[tuple[str, str]]:
    return [(outcome.id, outcome.stage) for outcome in run_state(run).inbox.collect_outcomes()]


def test_a_value_that_needs_a_new_process_is_not_in_effect_and_not_said_to_be() -> None:
    config = Config()
    run = connected(config)
    ask(run, "a", knob="width", value=16)
    assert run.boundary(0)
    assert stages(run) == []  # it stays scheduled
    assert run.restart_wanted == {"width": 16}
    assert config.width == 8
    state = run_state(run).declarations.knobs["width"].state()
    assert (state.value, state.in_effect, state.version, state.by) == (8, True, 0, "")


def test_a_knob_that_is_declared_alone_waits_for_the_new_process_too() -> None:
    run = hoptui.connect("unit")
    width = run.knob("width", 8, min=1, max=64, cost="restart")
    ask(run, "a", knob="width", value=16)
    assert run.boundary(0)
    assert stages(run) == []
    assert (run.restart_wanted, width.value) == ({"width": 16}, 8)


def test_what_waits_gives_way_to_a_later_command_and_to_its_own_value() -> None:
    run = connected(Config())
    for name, value in (("a", 16), ("b", 32), ("c", 8)):
        ask(run, name, knob="width", value=value)
        run.boundary()
    assert run.restart_wanted == {}
    assert stages(run) == [("a", "superseded"), ("b", "superseded"), ("c", "applied")]


def test_values_are_checked_together_with_those_that_wait() -> None:
    run = connected(Config())
    ask(run, "a", knob="layers", value=3)
    run.boundary()
    ask(run, "b", knob="width", value=16)
    run.boundary()
    ask(run, "c", knob="width", value=9)
    run.boundary()
    assert run.restart_wanted == {"layers": 3, "width": 9}
    assert stages(run) == [("b", "failed")]


class Watched:
    """In place of the thread that talks to the daemon."""

    def wake(self) -> None: ...


def test_what_is_sent_together_is_carried_out_before_the_restart_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    def meanwhile(seconds: float) -> None:
        waits.append(seconds)
        ask(run, "b", knob="layers", value=4)

    run = connected(Config())
    lr = run.knob("lr", 0.5, min=0.0, max=1.0)
    monkeypatch.setattr(run_state(run), "link", Watched())
    monkeypatch.setattr("hoptui.sdk.iteration.time.sleep", meanwhile)
    ask(run, "a", knob="width", value=16)
    run.boundary()
    assert run.restart_wanted == {"width": 16, "layers": 4}
    assert waits == [iteration.COMPANY_S]
    ask(run, "c", knob="lr", value=0.25)  # nothing that leaves this process: nobody waits for it
    run.boundary()
    assert (lr.value, len(waits)) == (0.25, 1)


def test_a_paused_run_does_not_wait_and_stays_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = connected(Config())
    monkeypatch.setattr(run_state(run), "link", Watched())
    monkeypatch.setattr("hoptui.sdk.iteration.time.sleep", lambda _: pytest.fail("it waited"))
    monkeypatch.setattr(run._core.meeting, "_wait_while_paused", lambda: None)
    ask(run, "a", knob="width", value=16)
    run_state(run).inbox.receive(
        Command(id="p", run=run.id, epoch=1, verb="pause", hold_s=60.0), time.monotonic(), 1
    )
    run.boundary()
    assert (run_state(run).paused, run.restart_wanted) == (True, {"width": 16})


def test_without_a_restart_the_command_has_failed_with_the_reason() -> None:
    run = connected(Config())
    ask(run, "a", knob="width", value=16)
    run.boundary()
    run.refuse_restart("the disk is full")
    (outcome,) = run_state(run).inbox.collect_outcomes()
    assert (outcome.stage, outcome.effective, outcome.version) == ("failed", 8, 0)
    assert (outcome.code, outcome.fields) == ("reverted", {"reason": "the disk is full"})
    assert run.restart_wanted == {}
    assert run_state(run).declarations.knobs["width"].in_effect


def left_by(run: Run) -> list[Outcome]:
    ask(run, "a", knob="width", value=16)
    ask(run, "b", knob="layers", value=4)
    run.boundary()
    run.hand_over("x.ckpt")
    return run_state(run).inbox.collect_outcomes()


def test_the_next_process_says_applied_once_the_value_is_read_back() -> None:
    run = connected(Config())
    state = run.state_dict()
    last = left_by(run)
    assert [(o.stage, o.code, o.fields) for o in last] == [
        ("scheduled", "restarting", {"checkpoint": "x.ckpt"})
    ] * 2
    assert not run_state(run).rows  # an iteration that was not is no row
    run.close()  # as a with-block does
    after = connected(Config(width=16), resume=state)  # the other value did not arrive
    assert VARIABLE not in os.environ
    assert stages(after) == []
    after.boundary(1)
    first, second = run_state(after).inbox.collect_outcomes()
    assert (first.id, first.stage, first.effective, first.version) == ("a", "applied", 16, 1)
    assert (first.code, second.stage, second.code) == ("restarted", "failed", "other_value_after_restart")
    assert first.took_s is not None
    assert 0 < first.took_s < 60
    width = run_state(after).declarations.knobs["width"].state()
    assert (width.value, width.version, width.by, width.took_s) == (16, 1, "kim", first.took_s)
    assert (second.id, second.stage, second.effective) == ("b", "failed", 2)
    assert second.fields == {"knob": "layers", "value": 2}
    after.boundary(2)
    assert stages(after) == []


@pytest.mark.guarantee("outcomes-again")
def test_a_daemon_that_lost_the_command_gets_it_with_the_outcome() -> None:
    """The daemon before was killed before it had written the command."""
    run = connected(Config())
    state, epoch = run.state_dict(), run_state(run).epoch
    left_by(run)
    run.close()
    after = connected(Config(width=16), resume=state)
    after.boundary(1)
    inbox = run_state(after).inbox
    first, second = inbox.collect_outcomes()
    asked = Command(
        id="a", run=run.id, epoch=epoch, verb="set", origin=Origin(user="kim"), knob="width", value=16
    )
    other = msgspec.structs.replace(asked, id="b", knob="layers", value=4)
    assert (first.command, second.command) == (asked, other)
    inbox.replace_daemon()
    assert inbox.unsettled() == [first, second]
    run_state(after).declarations.knobs["width"].revert(8, "memory ran out")
    (reverted,) = inbox.collect_outcomes()
    assert (reverted.id, reverted.stage) == ("a", "reverted")
    assert {outcome.stage: outcome.command for outcome in inbox.unsettled()}["reverted"] == asked


def test_a_knob_that_is_gone_has_failed() -> None:
    run = connected(Config())
    state = run.state_dict()
    left_by(run)
    after = hoptui.connect("unit", resume=state)
    after.boundary()
    outcomes = run_state(after).inbox.collect_outcomes()
    assert {outcome.stage for outcome in outcomes} == {"failed"}
    assert (outcomes[0].code, outcomes[0].fields) == ("no_knob_after_restart", {"knob": "width"})


@pytest.mark.parametrize(("pid", "run"), [(7, "other"), (8, "mine")])
def test_what_was_left_for_another_process_or_run_is_left_alone(pid: int, run: str) -> None:
    environ: dict[str, str] = {}
    handover = Handover(7, "mine", 5, (RestartCommand("a", "lr", 0.5, "kim"),))
    leave_handover(environ, handover)
    assert take_handover(environ, pid, run) is None
    assert take_handover(environ, 7, "mine") == handover
    assert take_handover(environ, 7, "mine") is None


def waiting(**fields: Any) -> RestartCommand:
    given = Command(id="a", run="mine", epoch=1, verb="set", knob="lr", value=0.5, **fields)
    return RestartCommand("a", "lr", 0.5, "kim", given)


def test_commands_that_are_too_long_to_be_left_are_left_out() -> None:
    environ: dict[str, str] = {}
    for why, kept in (("faster", True), ("x" * LONGEST_HANDOVER, False)):
        each = waiting(why=why)
        leave_handover(environ, Handover(7, "mine", 5, (each,)))
        expected = each if kept else msgspec.structs.replace(each, given=None)
        assert take_handover(environ, 7, "mine") == Handover(7, "mine", 5, (expected,))


def test_a_command_with_a_value_of_a_newer_hoptui_is_left_too() -> None:
    environ: dict[str, str] = {}
    origin = Origin(kind="unknown: robot")  # type: ignore[arg-type]
    handover = Handover(7, "mine", 5, (waiting(origin=origin),))
    leave_handover(environ, handover)
    assert take_handover(environ, 7, "mine") == handover


def test_a_command_is_left_in_any_locale() -> None:
    program = """if True:
        import os
        from hoptui.protocol.messages import Command
        from hoptui.sdk.process import Handover, RestartCommand, leave_handover, take_handover
        given = Command(id="a", run="mine", epoch=1, verb="set", why="gr\\xf6\\xdfer")
        handover = Handover(7, "mine", 5, (RestartCommand("a", "lr", 0.5, "kim", given),))
        leave_handover(os.environ, handover)
        assert take_handover(os.environ, 7, "mine") == handover
    """
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **plain}, check=True)


@pytest.mark.parametrize("text", ["", "{}", "[1", '{"pid": "x"}'])
def test_nonsense_in_the_environment_is_nothing(text: str) -> None:
    assert take_handover({VARIABLE: text}, 7, "mine") is None
