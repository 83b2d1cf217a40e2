"""Commands that take effect later: knobs whose setter returns `hoptui.LATER`, and such checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

import hoptui
from hoptui.protocol.messages import Outcome
from hoptui.sdk.knobs import KnobHandle
from hoptui.sdk.run import Run
from tests.run_state import run_state
from tests.sdk.two_ranks import both
from tests.sdk.unit_run import send

pytestmark = pytest.mark.usefixtures("off")


def outcomes(run: Run) -> list[Outcome]:
    return run_state(run).inbox.collect_outcomes()


def stages(run: Run) -> list[tuple[str, str, str]]:
    return [(outcome.id, outcome.stage, outcome.code) for outcome in outcomes(run)]


@pytest.fixture
def held() -> dict[str, int]:
    return {"n": 4}


@pytest.fixture
def knob(run: Run, held: dict[str, int]) -> KnobHandle[int]:
    """A knob that takes effect when the script puts the wanted value into `held`."""
    return run.knob("n", 4, min=1, max=64, apply=lambda n: hoptui.LATER, read=lambda: held["n"])


def test_a_command_stays_scheduled_until_its_value_holds(
    run: Run, knob: KnobHandle[int], held: dict[str, int]
) -> None:
    send(run, id="a", knob="n", value=8)
    run.boundary(3)
    (waiting,) = outcomes(run)
    assert (waiting.stage, waiting.code, waiting.step) == ("scheduled", "later", 3)
    assert (knob.value, knob.in_effect, knob.version) == (4, False, 0)
    assert run_state(run).declarations.knobs["n"].state().in_effect, "the value shown is the one in effect"
    run.boundary(4)
    assert outcomes(run) == []
    held["n"] = 8
    knob.holds()
    (done,) = outcomes(run)
    assert (done.id, done.stage, done.code, done.step) == ("a", "applied", "", 4)
    assert (done.before, done.effective, done.version, done.took_s) == (4, 8, 1, None)
    assert (knob.value, knob.in_effect, knob.version, knob.by) == (8, True, 1, "kim (pid 7)")
    knob.holds()
    assert outcomes(run) == []


def test_the_value_that_holds_is_the_one_read_back(
    run: Run, knob: KnobHandle[int], held: dict[str, int]
) -> None:
    send(run, knob="n", value=8)
    run.boundary(0)
    outcomes(run)
    held["n"] = 6
    knob.holds()
    (done,) = outcomes(run)
    assert (done.stage, done.code, done.effective, knob.in_effect) == ("applied", "not_as_asked", 6, False)


def test_a_reader_that_raises_fails_the_command(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    held: dict[str, int] = {"n": 4}
    knob = run.knob("n", 4, min=1, max=9, apply=lambda n: hoptui.LATER, read=lambda: held["n"])
    send(run, knob="n", value=8)
    run.boundary(0)
    outcomes(run)
    held.clear()
    knob.holds()
    (done,) = outcomes(run)
    assert (done.stage, done.code, knob.version) == ("failed", "raised", 0)


def test_a_later_command_takes_its_place(run: Run, knob: KnobHandle[int], held: dict[str, int]) -> None:
    send(run, id="a", knob="n", value=8)
    run.boundary(0)
    send(run, id="b", knob="n", value=16)
    run.boundary(1)
    assert stages(run) == [("a", "scheduled", "later"), ("a", "superseded", "later_command"),
                           ("b", "scheduled", "later")]  # fmt: skip
    held["n"] = 16
    knob.holds()
    assert stages(run) == [("b", "applied", "")]


def test_the_end_of_the_run_voids_it(run: Run, knob: KnobHandle[int]) -> None:
    send(run, id="a", knob="n", value=8)
    run.boundary(0)
    outcomes(run)
    run.close("finished")
    assert stages(run) == [("a", "voided", "run_ended")]


def test_the_process_that_replaces_this_one_does_not_have_it(
    run: Run, knob: KnobHandle[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_HOPTUI_RESTART", "")
    send(run, id="a", knob="n", value=8)
    run.boundary(0)
    assert run.restart_wanted == {}, "it needs no new process"
    outcomes(run)
    run.hand_over("x.ckpt")
    assert stages(run) == [("a", "voided", "run_restarted")]


def test_a_revert_fails_it(run: Run, held: dict[str, int]) -> None:
    answers: list[Any] = [hoptui.LATER, None]
    knob = run.knob("n", 4, min=1, max=64, apply=lambda n: answers.pop(0), read=lambda: held["n"])
    send(run, id="a", knob="n", value=8)
    run.boundary(0)
    outcomes(run)
    knob.revert(4, "out of memory")
    (done,) = outcomes(run)
    assert (done.id, done.stage, done.code, knob.version) == ("a", "failed", "reverted", 0)
    knob.holds()
    assert outcomes(run) == []


def test_a_knob_without_a_reader_gets_its_value_when_it_holds(run: Run) -> None:
    knob = run.knob("n", 4, min=1, max=64, apply=lambda n: hoptui.LATER)
    send(run, knob="n", value=8)
    run.boundary(0)
    assert knob.value == 4
    knob.holds()
    assert knob.value == 8


def test_a_bound_setting_shows_its_value_when_it_holds(run: Run) -> None:
    settings = {"batch_size": 32}
    handle = run.bind(settings, apply={"batch_size": lambda _: hoptui.LATER}, batch_size=(1, 512))[
        "batch_size"
    ]
    send(run, knob="batch_size", value=64)
    run.boundary(0)
    assert (settings["batch_size"], handle.value) == (64, 32)
    handle.holds()
    assert handle.value == 64


def test_a_checkpoint_that_fails_later(run: Run) -> None:
    run.on_checkpoint(lambda: hoptui.LATER)
    send(run, "checkpoint", id="a")
    run.boundary(2)
    outcomes(run)
    run.checkpointed(error=OSError("a full disk"))
    assert stages(run) == [("a", "failed", "raised")]


@pytest.mark.parametrize("path", ["", "/runs/step_3.pt"])
def test_a_checkpoint_that_is_written_later(run: Run, path: str) -> None:
    run.on_checkpoint(lambda: hoptui.LATER)
    run.checkpointed("of its own.pt")
    assert outcomes(run) == []
    send(run, "checkpoint", id="a")
    run.boundary(2)
    assert stages(run) == [("a", "scheduled", "later")]
    run.boundary(3)
    run.checkpointed(path)
    (done,) = outcomes(run)
    assert (done.id, done.stage, done.step, done.took_s) == ("a", "applied", 3, None)
    assert (done.code, done.fields) == (("written", {"path": path}) if path else ("", {}))
    run.checkpointed("again.pt")
    assert outcomes(run) == []


def test_the_end_of_the_run_voids_a_checkpoint_that_was_promised(run: Run) -> None:
    run.on_checkpoint(lambda: hoptui.LATER)
    send(run, "checkpoint", id="a")
    run.boundary(2)
    outcomes(run)
    run.close("finished")
    assert stages(run) == [("a", "voided", "run_ended")]


def test_it_is_reported_once_it_holds_on_both_ranks() -> None:
    first, second = both(
        """
held = {"n": 4}
knob = run.knob("n", 4, min=1, max=64, apply=lambda n: hoptui.LATER, read=lambda: held["n"])
if rank == 0:
    command(run, knob="n", value=8)
joint(run)
stages = [[o.stage, o.code] for o in outcomes(run)]
if rank == 0:
    held["n"] = 8
    knob.holds()
else:  # later than the other one
    joint(run)
    held["n"] = 8
    knob.holds()
if rank == 0:
    joint(run)
    stages += [[o.stage, o.code] for o in outcomes(run)]
joint(run)
stages += [[o.stage, o.code] for o in outcomes(run)]
report(stages=stages, value=knob.value, version=knob.version)
"""
    )
    assert first["stages"] == [["scheduled", "later"], ["applied", ""]]
    assert second["stages"] == []
    assert (first["value"], first["version"]) == (second["value"], second["version"]) == (8, 1)


MIXED = """
answers = {{0: {first}, 1: {second}}}
held = []
def put(n):
    held.append(n)
    return answers[rank] if n == 8 else None
knob = run.knob("n", 4, min=1, max=64, apply=put)
run.on_checkpoint(lambda: answers[rank])
if rank == 0:
    command(run, {verb!r}, knob="n", value=8)
joint(run)
report(stages=[[o.stage, o.code, o.fields] for o in outcomes(run)], value=knob.value, held=held)
"""


@pytest.mark.parametrize("verb", ["set", "checkpoint"])
@pytest.mark.parametrize(
    ("first", "second", "at_once"), [("None", "hoptui.LATER", 0), ("hoptui.LATER", "None", 1)]
)
def test_one_rank_later_and_the_other_at_once_is_a_failure_on_both(
    verb: str, first: str, second: str, at_once: int
) -> None:
    results = both(MIXED.format(first=first, second=second, verb=verb))
    assert results[0]["stages"] == [["failed", "ranks.not_all_later", {"rank": at_once}]]
    assert results[1]["stages"] == []
    if verb == "set":
        assert [one["value"] for one in results] == [4, 4]
        assert [one["held"] for one in results] == [[8, 4], [8, 4]]


def test_a_value_that_fails_on_one_rank_is_undone_on_the_other() -> None:
    results = both(
        """
held = {"n": 4}
def put(n):
    if n == 8:
        return hoptui.LATER
    held["n"] = n
knob = run.knob("n", 4, min=1, max=64, apply=put, read=lambda: held["n"])
if rank == 0:
    command(run, knob="n", value=8)
joint(run)
outcomes(run)
if rank == 0:
    held["n"] = 8
    knob.holds()
else:
    knob.revert(4, "no memory")
joint(run)
report(stages=[[o.stage, o.effective, [p["rank"] for p in o.fields["problems"]]] for o in outcomes(run)],
       held=held["n"], value=knob.value, in_effect=knob.in_effect)
"""
    )
    assert results[0]["stages"] == [["failed", 4, [1]]]
    for each in results:
        assert (each["held"], each["value"], each["in_effect"]) == (4, 4, True)


def test_an_error_of_one_rank_when_it_holds_fails_it_on_both() -> None:
    first, second = both(
        """
held = {"n": 4}
def read():
    if rank == 1 and held["n"] == 8:
        raise ValueError("unlucky")
    return held["n"]
knob = run.knob("n", 4, min=1, max=64, apply=lambda n: hoptui.LATER, read=read)
if rank == 0:
    command(run, knob="n", value=8)
joint(run)
outcomes(run)
held["n"] = 8
knob.holds()
joint(run)
report(stages=[[o.stage, o.code, [p["rank"] for p in o.fields["problems"]]] for o in outcomes(run)],
       version=knob.version)
"""
    )
    assert first["stages"] == [["failed", "on_ranks", [1]]]
    assert second["stages"] == []
    assert first["version"] == second["version"] == 0
