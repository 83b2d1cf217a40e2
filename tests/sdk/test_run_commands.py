"""Commands at the boundaries of a run with `HOPTUI=off`: no daemon, no link, every call is exact."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import hoptui
from hoptui.domain.facts import fact, nested
from hoptui.domain.tuning import Change
from hoptui.sdk.knob_declarations import knob_spec
from hoptui.sdk.knobs import LiveKnob, SetterError
from hoptui.sdk.run import Run
from tests.run_state import run_state
from tests.sdk.unit_run import send

pytestmark = pytest.mark.usefixtures("off")


def test_a_command_is_applied_at_the_next_boundary_and_not_before(run: Run) -> None:
    knob = run.knob("grad_accum", 4, min=1, max=64, effect="speed")
    seen = []
    for i in run.iterations(3):
        if i == 1:
            stages = [o.stage for o in send(run, knob="grad_accum", value=8)]
        seen.append(knob.value)
    assert stages == ["accepted", "scheduled"]
    assert seen == [4, 4, 8]
    (done,) = run_state(run).inbox.collect_outcomes()
    assert (done.stage, done.step, done.before, done.effective, done.version) == ("applied", 2, 4, 8, 1)


def test_the_value_is_the_one_read_back(run: Run) -> None:
    held = {"size": 8}
    knob = run.knob(
        "size", 8, min=1, max=100, apply=lambda v: held.update(size=min(v, 32)), read=lambda: held["size"]
    )
    send(run, knob="size", value=64)
    run.boundary(0)
    (done,) = run_state(run).inbox.collect_outcomes()
    assert (done.stage, done.effective, knob.value, knob.in_effect) == ("applied", 32, 32, False)
    assert (done.code, done.fields) == ("not_as_asked", {})


def test_the_run_says_why_another_value_is_in_effect(run: Run) -> None:
    def resize(size: int) -> None:
        if size > 32:
            knob.explain("the data has 32 samples")

    knob = run.knob("size", 8, min=1, max=100, apply=resize, read=lambda: 32)
    for value in (64, 32, 8):
        send(run, knob="size", value=value)
        run.boundary(0)
    done = run_state(run).inbox.collect_outcomes()
    reason = {"reason": "the data has 32 samples"}
    assert [outcome.fields for outcome in done] == [reason, {}, {}]  # each change has its own reason or none
    assert [outcome.code for outcome in done] == ["not_as_asked", "", "not_as_asked"]


@pytest.mark.guarantee("setter-raises")
def test_a_setter_that_raises_is_undone(run: Run) -> None:
    held = []

    def put(value: int) -> None:
        held.append(value)
        if value == 13:
            raise ValueError("unlucky")

    knob = run.knob("n", 4, min=1, max=64, apply=put)
    send(run, knob="n", value=13)
    assert run.boundary(0)
    (done,) = run_state(run).inbox.collect_outcomes()
    assert (done.stage, done.effective, done.version) == ("failed", 4, 0)
    assert (done.code, done.fields["error"]) == ("setter_failed", "unlucky")
    assert held == [13, 4]
    assert knob.value == 4


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (MemoryError("16 do not fit"), "16 do not fit"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "no"), "UnicodeDecodeError: 'utf-8'"),
        (ValueError(), "ValueError"),
        (KeyError("n"), "KeyError: 'n'"),
        (RuntimeError("a kernel"), "RuntimeError: a kernel"),
    ],
)
def test_a_refusal_is_its_reason_and_a_fault_keeps_its_type(run: Run, raised: Exception, said: str) -> None:
    def put(value: int) -> None:
        if value == 13:
            raise raised

    run.knob("n", 4, min=1, max=64, apply=put)
    send(run, knob="n", value=13)
    assert run.boundary(0)
    (done,) = run_state(run).inbox.collect_outcomes()
    assert done.fields["error"].startswith(said)


def test_a_repeated_id_is_applied_once_and_answered_again(run: Run) -> None:
    knob = run.knob("n", 0, min=0, max=9)
    for _ in range(3):
        answers = send(run, id="same", knob="n", value=5)
    assert [o.stage for o in answers] == ["scheduled"]
    run.boundary(0)
    run_state(run).inbox.collect_outcomes()
    assert [o.stage for o in send(run, id="same", knob="n", value=5)] == ["applied"]
    run.boundary(1)
    assert (knob.value, knob.version) == (5, 1)


def test_a_later_command_takes_the_place_of_a_pending_one(run: Run) -> None:
    knob = run.knob("n", 0, min=0, max=9)
    send(run, id="a", knob="n", value=1)
    stages = {o.id: o.stage for o in send(run, id="b", knob="n", value=2)}
    assert stages == {"a": "superseded", "b": "scheduled"}
    run.boundary(0)
    assert (knob.value, knob.version) == (2, 1)


def test_expired(run: Run) -> None:
    knob = run.knob("n", 0, min=0, max=9)
    send(run, knob="n", value=1, ttl_s=0.001)
    time.sleep(0.005)
    run.boundary(0)
    assert run_state(run).inbox.collect_outcomes()[0].stage == "expired"
    assert knob.value == 0


@pytest.mark.guarantee("declared-only")
def test_checkpoint_needs_a_handler_and_tells_the_path(run: Run) -> None:
    assert send(run, "checkpoint")[0].code == "unsupported"
    run.on_checkpoint(lambda: "/somewhere/step_3.pt")
    send(run, "checkpoint")
    run.boundary(0)
    (written,) = run_state(run).inbox.collect_outcomes()
    assert (written.code, written.fields) == ("written", {"path": "/somewhere/step_3.pt"})

    def full() -> None:
        raise OSError("no space left")

    run.on_checkpoint(full)
    send(run, "checkpoint")
    assert run.boundary(1)
    (failed,) = run_state(run).inbox.collect_outcomes()
    assert (failed.code, failed.fields) == ("raised", {"error": "OSError: no space left"})


class StorageName:
    """What a library may return that is neither a text nor a path."""

    def __str__(self) -> str:
        return "step 3 of run 7"


class NoPath(StorageName):
    """As the checkpoint of Ray, which looks like a path and is none."""

    def __fspath__(self) -> str:
        raise TypeError("it cannot be used as a path")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("checkpoints/step_3.pt", "{folder}/checkpoints/step_3.pt"),
        (Path("step_3.pt"), "{folder}/step_3.pt"),
        ("../step_3.pt", "{folder}/../step_3.pt"),
        ("/elsewhere/step_3.pt", "/elsewhere/step_3.pt"),
        ("s3://bucket/step_3.pt", "s3://bucket/step_3.pt"),
        (StorageName(), "step 3 of run 7"),
        (NoPath(), "step 3 of run 7"),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_the_path_of_a_checkpoint_is_absolute_from_the_moment_that_it_is_given(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: object, shown: str, later: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    run.on_checkpoint(lambda: hoptui.LATER if later else path)
    send(run, "checkpoint")
    run.boundary(0)
    run.checkpointed(path)
    monkeypatch.chdir("/")
    written = run_state(run).inbox.collect_outcomes()[-1]
    assert (written.code, written.fields) == ("written", {"path": shown.format(folder=tmp_path)})


def test_a_checkpoint_of_a_script_whose_folder_is_gone_is_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    run.on_checkpoint(lambda: "step_3.pt")
    send(run, "checkpoint")
    run.boundary(0)
    (written,) = run_state(run).inbox.collect_outcomes()
    assert (written.stage, written.fields) == ("applied", {"path": "step_3.pt"})


@pytest.mark.parametrize(
    ("verb", "what"),
    [
        ("set", {"knob": "n", "value": 1}),
        ("pause", {}),
        ("resume", {}),
        ("stop", {}),
        ("checkpoint", {}),
        ("profile", {"value": 3}),
    ],
)
def test_several_ranks_are_refused_what_one_alone_would_do(
    monkeypatch: pytest.MonkeyPatch, verb: str, what: dict[str, Any]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = hoptui.connect("unit")
    run.knob("n", 0, min=0, max=9)
    run.on_checkpoint(lambda: "/somewhere")
    run.on_profile(lambda iterations: None)
    (answer,) = send(run, verb, **what)
    assert (answer.stage, answer.code) == ("rejected", "unsupported")
    assert answer.fields == {"world": 2}


def test_a_knob_that_follows_from_another_is_read_back_too(run: Run) -> None:
    batch = run.knob("batch", 8, min=1, max=100)
    minibatch = run.knob("minibatch", 64, min=1, max=100, read=lambda: min(64, batch.value))
    assert (minibatch.value, minibatch.in_effect) == (8, False)
    declared = run_state(run).declarations.revision
    send(run, knob="batch", value=32)
    run.boundary(0)
    assert (minibatch.value, minibatch.in_effect, minibatch.version) == (32, False, 0)
    assert run_state(run).declarations.revision > declared  # so the daemon gets it
    send(run, knob="batch", value=100)
    run.boundary(1)
    assert (minibatch.value, minibatch.in_effect) == (64, True)


def test_the_outcome_says_what_else_has_moved_but_for_what_was_asked_for_or_moves_by_itself(run: Run) -> None:
    batch = run.knob("batch", 8, min=1, max=100)
    run.knob("pieces", 8, min=1, max=64, read=lambda: 64 // batch.value)
    rates = iter((0.1, 0.2, 0.3, 0.4))
    run.knob("lr", 0.1, read=lambda: next(rates))  # a schedule's
    send(run, knob="batch", value=32)
    run.boundary(0)
    (done,) = run_state(run).inbox.collect_outcomes()
    assert done.followed == (Change(knob="pieces", before=8, value=2),)
    send(run, knob="batch", value=16)
    send(run, knob="pieces", value=4)
    run.boundary(1)
    assert [o.followed for o in run_state(run).inbox.collect_outcomes()] == [(), ()], "each was asked for"


def test_what_was_before_is_what_stood_at_the_boundary_also_where_a_command_before_it_moved_the_knob(
    run: Run,
) -> None:
    batch = run.knob("batch", 2, min=1, max=32)
    pieces = {"n": 16}
    run.knob(
        "pieces",
        16,
        min=1,
        max=32,
        apply=lambda n: pieces.update(n=n),
        read=lambda: min(pieces["n"], 32 // batch.value),
    )
    for knob, value in (("batch", 32), ("batch", 8), ("pieces", 4)):
        send(run, knob=knob, value=value)
    run.boundary(0)
    changes = [
        (o.before, o.effective) for o in run_state(run).inbox.collect_outcomes() if o.stage == "applied"
    ]
    assert changes == [(2, 8), (16, 4)]


def test_a_failed_change_restores_what_was_asked_for_not_what_it_came_to(run: Run) -> None:
    asked: list[int] = []

    def put(value: int) -> None:
        asked.append(value)
        if value == 13:
            raise ValueError("unlucky")

    run.knob("n", 64, min=1, max=64, apply=put, read=lambda: 8)
    send(run, knob="n", value=13)
    run.boundary(0)
    assert asked == [13, 64]


def test_a_change_that_does_not_hold_is_reverted_with_its_reason(run: Run) -> None:
    held: list[int] = []
    knob = run.knob("micro_batch", 8, min=1, max=64, apply=held.append)
    send(run, id="more", knob="micro_batch", value=32)
    run.boundary(0)
    declared = run_state(run).declarations.revision
    knob.revert(16, "out of memory")
    applied, reverted = run_state(run).inbox.collect_outcomes()
    assert (applied.stage, applied.effective) == ("applied", 32)
    assert (reverted.id, reverted.stage) == ("more", "reverted")
    assert (reverted.before, reverted.effective, reverted.version) == (32, 16, 2)
    assert (reverted.fields, knob.value, held) == ({"reason": "out of memory"}, 16, [32, 16])
    assert run_state(run).declarations.revision > declared
    assert [o.stage for o in send(run, id="more", knob="micro_batch", value=32)] == ["reverted"]

    knob.revert(8, "out of memory again")  # nobody's command any more: an event for everybody
    assert run_state(run).inbox.collect_outcomes() == []
    (note,) = run_state(run).notes
    assert (note.code, note.fields["before"], note.fields["value"]) == ("knob.reverted", 16, 8)
    assert nested(note.fields["why"]) == fact("reverted", reason="out of memory again")


def test_a_revert_never_raises(run: Run) -> None:
    def put(value: int) -> None:
        raise OSError("no")

    knob = run.knob("n", 8, min=1, max=64, apply=put)
    knob.revert(4, "out of memory")
    knob.revert(400, "nonsense")
    assert (knob.value, knob.in_effect) == (8, False)
    first, second = (nested(note.fields["why"]) for note in run_state(run).notes)
    failed = fact("undo_failed", knob="n", value="4", error="OSError: no")
    assert first == fact("several", facts=[fact("reverted", reason="out of memory"), failed])
    assert second is not None
    assert second.fields["facts"][1]["fields"]["error"].startswith("OutOfRangeError: n = 400")


def test_an_undo_that_raises_leaves_the_knob_marked() -> None:
    def put(value: int) -> None:
        if value == 8 and knob.version:
            raise OSError("gone")

    spec = knob_spec(hoptui.Knob(1, 64), "n", 8)
    knob = LiveKnob(spec, 8, put)
    knob.set(16, "kim")
    with pytest.raises(SetterError) as caught:
        knob.undo()
    assert caught.value.fact == fact("undo_failed", knob="n", value=8, error="OSError: gone")
    assert (knob.value, knob.in_effect) == (16, False)


def test_it_is_told_how_long_a_change_took(run: Run) -> None:
    run.knob("n", 8, min=1, max=64, apply=lambda _: time.sleep(0.01))
    knob = run_state(run).declarations.knobs["n"]
    assert knob.state().took_s is None
    send(run, knob="n", value=9)
    send(run, "pause", hold_s=0.001)
    run.boundary(0)
    change, pause = run_state(run).inbox.collect_outcomes()
    assert change.took_s is not None
    assert 0.01 <= change.took_s < 5
    assert knob.state().took_s == change.took_s
    assert pause.took_s is None
