"""The run as the training script sees it: no daemon, no link, `HOPTUI=off`, so that every call is exact."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

import hoptui
from hoptui.sdk.knobs import SetterError
from hoptui.sdk.run import Run
from hoptui.wire.messages import Command, Flops, Origin, Outcome

PERSON = Origin(user="kim", pid=7)


@pytest.fixture(autouse=True)
def off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPTUI", "off")


@pytest.fixture
def run() -> Run:
    return hoptui.connect("unit")


def send(run: Run, verb: Any = "set", **fields: Any) -> list[Outcome]:
    made: dict[str, Any] = {"id": f"c{time.monotonic_ns()}", "epoch": run.epoch, "origin": PERSON}
    fields = made | fields
    return run.desk.receive(Command(run=run.id, verb=verb, **fields), time.monotonic(), run.step + 1)


def rows(run: Run) -> list[dict[str, float]]:
    return [row for _, _, row in run.entries]


def test_an_iteration_is_one_row_with_its_time_phases_and_rates(run: Run) -> None:
    for _ in run.iterations(2):
        with run.phase("rollout"), run.phase("env"):
            time.sleep(0.002)
        run.log(samples=100, loss=0.5)
        run.log({"odd name": 1})
    first, second = rows(run)
    assert first["loss"] == 0.5
    assert first["odd name"] == 1
    assert 0.002 <= first["phase/rollout/env"] <= first["phase/rollout"] <= first["iteration_s"]
    assert first["samples_per_s"] == pytest.approx(100 / first["iteration_s"], rel=1e-3)  # each is rounded
    assert second.keys() == first.keys()
    assert [step for _, step, _ in run.entries] == [0, 1]
    stamps = [t for t, _, _ in run.entries]
    assert stamps == sorted(set(stamps))


def test_without_a_loop_every_log_is_a_row(run: Run) -> None:
    run.log(loss=1.0)
    run.log(loss=2.0)
    assert rows(run) == [{"loss": 1.0}, {"loss": 2.0}]


def test_rows_are_bounded(run: Run) -> None:
    for i in range(10_000):
        run.log(i=i)
    assert len(run.entries) == 4096
    assert run.entries[-1][2] == {"i": 9999.0}


class Odd:
    def __float__(self) -> float:
        raise RuntimeError("no")


def test_no_value_can_raise(run: Run) -> None:
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    values = {
        "np": numpy.float32(0.25),
        "int64": numpy.int64(3),
        "tensor": torch.tensor(2.0),
        "nan": math.nan,
        "huge": 10**400,
        "bool": True,
        "text": "no number",
        "none": None,
        "matrix": torch.zeros(2, 2),
        "raises": Odd(),
    }
    run.log(values)
    run.log({"\udcff": 1.0, 3: 4.0})  # type: ignore[dict-item]
    (first, _) = rows(run)
    assert first.pop("nan") != first.get("nan")
    assert first == {"np": 0.25, "int64": 3.0, "tensor": 2.0, "huge": math.inf, "bool": 1.0}
    assert run.settler.bad == 5


def test_a_command_is_applied_at_the_next_boundary_and_not_before(run: Run) -> None:
    knob = run.knob("grad_accum", 4, min=1, max=64, effect="speed")
    seen = []
    for i in run.iterations(3):
        if i == 1:
            stages = [o.stage for o in send(run, knob="grad_accum", value=8)]
        seen.append(knob.value)
    assert stages == ["accepted", "scheduled"]
    assert seen == [4, 4, 8]
    (done,) = run.desk.settle()
    assert (done.stage, done.step, done.before, done.effective, done.version) == ("applied", 2, 4, 8, 1)


def test_the_value_is_the_one_read_back(run: Run) -> None:
    held = {"size": 8}
    knob = run.knob(
        "size", 8, min=1, max=100, apply=lambda v: held.update(size=min(v, 32)), read=lambda: held["size"]
    )
    send(run, knob="size", value=64)
    run.boundary(0)
    (done,) = run.desk.settle()
    assert (done.stage, done.effective, knob.value, knob.in_effect) == ("applied", 32, 32, False)
    assert "not in effect" in done.reason


def test_a_setter_that_raises_is_undone(run: Run) -> None:
    held = []

    def put(value: int) -> None:
        held.append(value)
        if value == 13:
            raise ValueError("unlucky")

    knob = run.knob("n", 4, min=1, max=64, apply=put)
    send(run, knob="n", value=13)
    assert run.boundary(0)
    (done,) = run.desk.settle()
    assert (done.stage, done.effective, done.version) == ("failed", 4, 0)
    assert "unlucky" in done.reason
    assert held == [13, 4]
    assert knob.value == 4


def test_a_repeated_id_is_applied_once_and_answered_again(run: Run) -> None:
    knob = run.knob("n", 0, min=0, max=9)
    for _ in range(3):
        answers = send(run, id="same", knob="n", value=5)
    assert [o.stage for o in answers] == ["scheduled"]
    run.boundary(0)
    run.desk.settle()
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
    assert run.desk.settle()[0].stage == "expired"
    assert knob.value == 0


def test_stop_ends_the_loop_between_two_iterations(run: Run) -> None:
    done = []
    for i in run.iterations(100):
        if i == 3:
            send(run, "stop")
        done.append(i)
    assert done == [0, 1, 2, 3]
    assert run.stopping


def test_checkpoint_needs_a_handler_and_tells_the_path(run: Run) -> None:
    assert send(run, "checkpoint")[0].code == "unsupported"
    run.on_checkpoint(lambda: "/somewhere/step_3.pt")
    send(run, "checkpoint")
    run.boundary(0)
    assert run.desk.settle()[0].reason == "written to /somewhere/step_3.pt"

    def full() -> None:
        raise OSError("no space left")

    run.on_checkpoint(full)
    send(run, "checkpoint")
    assert run.boundary(1)
    assert "no space left" in run.desk.settle()[0].reason


def test_pause_ends_by_itself(run: Run) -> None:
    send(run, "pause", hold_s=0.05)
    began = time.monotonic()
    assert run.boundary(0)
    assert 0.05 <= time.monotonic() - began < 2
    assert "lease ran out" in run.notes[-1].text


def test_a_pause_is_no_iteration_time(run: Run) -> None:
    for i in run.iterations(2):
        if i == 0:
            send(run, "pause", hold_s=0.2)
    assert all(row["iteration_s"] < 0.1 for row in rows(run))


def test_several_ranks_are_refused_a_change_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = hoptui.connect("unit")
    run.knob("n", 0, min=0, max=9)
    (answer,) = send(run, knob="n", value=1)
    assert (answer.stage, answer.code) == ("rejected", "unsupported")
    assert "2 ranks" in answer.reason


@dataclass
class Config:
    num_envs: Annotated[int, hoptui.Knob(1, 64, scale="pow2", cost="shape")] = 8
    lr: Annotated[float, hoptui.Knob(1e-6, 1.0, scale="log")] = 1
    mode: Annotated[Literal["eager", "graph"], hoptui.Knob(choices=("eager", "graph"), cost="rebuild")] = (
        "eager"
    )
    seed: int = 0


def test_a_dataclass_declares_its_knobs(run: Run) -> None:
    config = Config()
    applied: list[int] = []
    handles = run.knobs(config, apply={"num_envs": applied.append})
    assert set(handles) == {"num_envs", "lr", "mode"}
    assert handles["lr"].spec.kind == "float"
    for field in (
        {"knob": "num_envs", "value": 16},
        {"knob": "mode", "value": "graph"},
        {"knob": "lr", "value": 0.5},
    ):
        assert send(run, **field)[0].stage == "accepted", field
    assert send(run, knob="num_envs", value=12)[0].code == "bad_type"
    run.boundary(0)
    assert (config.num_envs, config.mode, config.lr, applied) == (16, "graph", 0.5, [16])


def test_a_bad_declaration_is_one_warning(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hoptui"):
        handle = run.knob("n", 5, min=10, max=1)
    assert handle.value == 5
    assert "n" not in run.knob_handles
    assert len(caplog.records) == 1


def test_check_names_the_knob() -> None:
    with pytest.raises(ValueError, match="num_envs = 0 is out of bounds"):
        hoptui.Knob(1, 64).check("num_envs", 0)


def test_state_dict_makes_the_next_epoch(run: Run) -> None:
    run.knob("n", 3, min=0, max=9)
    send(run, knob="n", value=7)
    run.boundary(0)
    state = run.state_dict()
    assert state == {"run": run.id, "epoch": 1, "knobs": {"n": 7}, "commands": 1}
    after = hoptui.connect("unit", resume=state)
    assert (after.id, after.epoch) == (run.id, 2)


def test_an_exception_in_the_loop_is_the_reason_of_the_end(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    said: list[tuple[str, str]] = []

    class Link:
        drowsy = False

        def close(self, reason: str, detail: str) -> None:
            said.append((reason, detail))

        def wake(self) -> None: ...

    monkeypatch.setattr(run, "_link", Link())

    def train() -> None:
        with run:
            for i in run.iterations(3):
                run.log(x=1 / i)

    with pytest.raises(ZeroDivisionError):
        train()
    assert said == [("exception", "ZeroDivisionError: division by zero")]


def test_a_fault_of_ours_stays_ours(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(run, "_stamp", broken)
    with caplog.at_level(logging.WARNING, "hoptui"):
        done = []
        for i in run.iterations(5):
            run.log(i=i)
            done.append(i)
    assert done == [0, 1, 2, 3, 4]
    assert [r.getMessage().count("planted") for r in caplog.records] == [1]


def test_a_knob_that_follows_from_another_is_read_back_too(run: Run) -> None:
    batch = run.knob("batch", 8, min=1, max=100)
    minibatch = run.knob("minibatch", 64, min=1, max=100, read=lambda: min(64, batch.value))
    assert (minibatch.value, minibatch.in_effect) == (8, False)
    declared = run.declared
    send(run, knob="batch", value=32)
    run.boundary(0)
    assert (minibatch.value, minibatch.in_effect, minibatch.version) == (32, False, 0)
    assert run.declared > declared  # so the daemon is told
    send(run, knob="batch", value=100)
    run.boundary(1)
    assert (minibatch.value, minibatch.in_effect) == (64, True)


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


def test_stop_from_the_script_itself(run: Run) -> None:
    done = []
    for i in run.iterations(10):
        if i == 2:
            run.stop("SIGTERM")
        done.append(i)
    assert done == [0, 1, 2]


def test_a_change_that_does_not_hold_is_reverted_with_its_reason(run: Run) -> None:
    held: list[int] = []
    knob = run.knob("micro_batch", 8, min=1, max=64, apply=held.append)
    send(run, id="more", knob="micro_batch", value=32)
    run.boundary(0)
    declared = run.declared
    knob.revert(16, "out of memory")
    applied, reverted = run.desk.settle()
    assert (applied.stage, applied.effective) == ("applied", 32)
    assert (reverted.id, reverted.stage) == ("more", "reverted")
    assert (reverted.before, reverted.effective, reverted.version) == (32, 16, 2)
    assert (reverted.reason, knob.value, held) == ("out of memory", 16, [32, 16])
    assert run.declared > declared
    assert [o.stage for o in send(run, id="more", knob="micro_batch", value=32)] == ["reverted"]

    knob.revert(8, "out of memory again")  # nobody's command any more: an event for everybody
    assert run.desk.settle() == []
    assert [note.text for note in run.notes] == ["micro_batch 16 → 8: out of memory again"]


def test_a_revert_never_raises(run: Run) -> None:
    def put(value: int) -> None:
        raise OSError("no")

    knob = run.knob("n", 8, min=1, max=64, apply=put)
    knob.revert(4, "out of memory")
    knob.revert(400, "nonsense")
    assert (knob.value, knob.in_effect) == (8, False)
    first, second = (note.text for note in run.notes)
    assert first == "n 8 → 8: out of memory; setting 4 raised OSError: no"
    assert "out of bounds" in second


def test_an_undo_that_raises_leaves_the_knob_marked() -> None:
    def put(value: int) -> None:
        if value == 8 and knob.version:
            raise OSError("gone")

    spec = hoptui.Knob(1, 64).spec("n", 8)
    knob = hoptui.KnobHandle(spec, 8, put)
    knob.set(16, "kim")
    with pytest.raises(SetterError, match="setting n back to 8 raised OSError: gone"):
        knob.undo()
    assert (knob.value, knob.in_effect) == (16, False)


def test_it_is_told_how_long_a_change_took(run: Run) -> None:
    knob = run.knob("n", 8, min=1, max=64, apply=lambda _: time.sleep(0.01))
    assert knob.state().took_s is None
    send(run, knob="n", value=9)
    send(run, "pause", hold_s=0.001)
    run.boundary(0)
    change, pause = run.desk.settle()
    assert change.took_s is not None
    assert 0.01 <= change.took_s < 5
    assert knob.state().took_s == change.took_s
    assert pause.took_s is None


def test_a_trace_is_begun_by_the_script(run: Run) -> None:
    assert send(run, "profile", value=3)[0].code == "unsupported"
    asked: list[int] = []
    run.on_profile(asked.append)
    for nonsense in (None, 0, 1.5, True, 100_000):
        assert send(run, "profile", value=nonsense)[0].code == "out_of_range"
    send(run, "profile", value=3)
    run.boundary(0)
    (done,) = run.desk.settle()
    assert (asked, done.stage, done.reason) == ([3], "applied", "tracing 3 iterations")


def test_flops_are_told_and_nonsense_is_not(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    before = run.declared
    run.flops(6e9, metric="tokens_per_s", precision="fp8")
    assert run.flops_declared == Flops(per_unit=6e9, metric="tokens_per_s", precision="fp8")
    assert run.declared == before + 1
    for nothing in (0, -1.0, math.nan, math.inf):
        run.flops(nothing)
        assert run.flops_declared is None
    with caplog.at_level(logging.WARNING, "hoptui"):
        run.flops("many")  # type: ignore[arg-type]
    assert "'many' is no number of FLOPs" in caplog.text
