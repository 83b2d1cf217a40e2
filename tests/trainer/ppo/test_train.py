"""The training loop as a whole, in this process: short runs of a small job."""

from __future__ import annotations

import errno
import os
import re
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hoptui.protocol.messages import NOT_AS_ASKED
from hoptui_trainer.common import checkpoint_writer, session
from hoptui_trainer.common.checkpoint import read_checkpoint
from hoptui_trainer.ppo import minibatch_sizes
from hoptui_trainer.ppo import train as training
from hoptui_trainer.ppo.job import PPOOptions
from hoptui_trainer.ppo.state import PPOState
from tests.golden import Golden
from tests.run_state import run_state
from tests.trainer.small import Steered, small_job, trained


def test_knobs_take_effect_at_the_next_boundary_and_are_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turn(run: Steered) -> None:
        for knob, value in {
            "num_envs": 20,
            "rollout_len": 10,
            "minibatch_size": 1000,
            "epochs": 3,
            "grad_accum": 4,
            "lr": 1e-4,
            "clip_range": 0.1,
            "entropy_coef": 0.01,
        }.items():
            run.ask("set", knob=knob, value=value)

    steered = Steered(monkeypatch, {1: turn})
    trained(small_job(tmp_path))
    done = {o.id.split("'")[3]: o for o in steered.finished()}
    assert {o.stage for o in done.values()} == {"applied"}
    assert {o.step for o in done.values()} == {2}
    assert {knob: o.effective for knob, o in done.items()} == {
        "num_envs": 20,
        "rollout_len": 10,
        "minibatch_size": 200,  # the whole batch: that is what is in effect
        "epochs": 3,
        "grad_accum": 4,
        "lr": 1e-4,
        "clip_range": 0.1,
        "entropy_coef": 0.01,
    }
    (other,) = (o for o in done.values() if o.code == NOT_AS_ASKED)
    assert (other.effective, "200 samples" in other.fields["reason"]) == (200, True)
    rows = steered.rows()
    assert [row["env_steps"] for row in rows] == [128, 128, 200, 200]
    assert [row["samples"] for row in rows] == [256, 256, 600, 600]
    assert rows[1]["lr"] == pytest.approx(1e-3)
    assert rows[2]["lr"] == pytest.approx(1e-4)
    config = read_checkpoint(tmp_path, "ppo")["config"]
    assert (config["num_envs"], config["lr"], config["clip_range"]) == (20, 1e-4, 0.1)


def test_a_minibatch_that_is_left_open_is_chosen_reported_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout has 128 samples. Memory for 100 makes it 64."""
    monkeypatch.setattr(minibatch_sizes, "most_units", lambda share, trials, room: 100)
    steered = Steered(monkeypatch, {})
    result, lines = trained(small_job(tmp_path, iterations=2, knobs={"minibatch_size": 0}))
    assert (result.minibatch_size, result.grad_accum) == (64, 1)
    assert run_state(steered.run).declarations.knobs["minibatch_size"].in_effect
    assert [line for line in lines if line.startswith("minibatch_size chosen: 64 samples")]
    monkeypatch.setattr(minibatch_sizes, "most_units", lambda share, trials, room: share)
    result, _ = trained(PPOOptions(resume=tmp_path, iterations=3, evaluate_every=0))
    assert result.minibatch_size == 64  # more memory changes nothing
    steered = Steered(monkeypatch, {3: lambda run: run.ask("set", knob="minibatch_size", value=0)})
    result, _ = trained(PPOOptions(resume=tmp_path, iterations=5, evaluate_every=0))
    assert result.minibatch_size == 128  # all of the rollout
    (done,) = steered.finished()
    assert (done.stage, done.code, done.effective) == ("applied", "", 128)


def test_a_minibatch_larger_than_a_rollout_is_explained(tmp_path: Path) -> None:
    result, lines = trained(small_job(iterations=1, knobs={"minibatch_size": 1000}))
    assert result.minibatch_size == 128
    (line,) = [line for line in lines if line.startswith("minibatch_size")]
    assert re.findall(r"[\d,]+", line) == ["1,000", "128", "128"]


def test_pieces_that_nobody_chose_are_in_effect_as_they_are_with_another_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PPOState, "_measured_pieces", lambda _, share: -(-share // 32))
    steered = Steered(
        monkeypatch,
        {
            0: lambda run: run.ask("set", knob="minibatch_size", value=128),
            1: lambda run: run.ask("set", knob="grad_accum", value=3),
            2: lambda run: run.ask("set", knob="minibatch_size", value=2),
            3: lambda run: run.ask("set", knob="grad_accum", value=0),
        },
    )
    seen: list[tuple[int, bool]] = []
    iterate = training.learned

    def watched(*args: Any) -> dict[str, Tensor] | None:
        handle = run_state(steered.run).declarations.knobs["grad_accum"]
        seen.append((handle.value, handle.in_effect))
        return iterate(*args)

    monkeypatch.setattr(training, "learned", watched)
    trained(small_job(iterations=5))
    # Two of 64 samples, four of 128; three because somebody said so, which two samples cannot be cut in; the
    # best again.
    assert seen == [(2, True), (4, True), (3, True), (2, False), (1, True)]
    assert [(o.stage, o.code) for o in steered.finished()] == [("applied", "")] * 4
    assert not [text for text in steered.notes() if "grad_accum" in text]
    assert not any(note.code for note in run_state(steered.run).notes)


def test_dropped_episodes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    steered = Steered(monkeypatch, {1: lambda run: run.ask("set", knob="num_envs", value=2)})
    trained(small_job())
    [note] = [text for text in steered.notes() if text.startswith("num_envs")]
    assert note.startswith("num_envs 8 → 2: ")
    assert note.endswith(" unfinished episodes dropped")


def test_a_knob_that_does_not_fit_into_memory_fails_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def turn(run: Steered) -> None:
        monkeypatch.setattr("hoptui_trainer.ppo.state.free_bytes", lambda *_: 10_000_000)
        run.ask("set", knob="num_envs", value=65_536)

    steered = Steered(monkeypatch, {1: turn})
    result, _ = trained(small_job())
    [outcome] = steered.finished()
    assert outcome.stage == "failed"
    assert (outcome.code, outcome.fields["value"]) == ("setter_failed", 65_536)
    golden(f"{outcome.fields['error']}\n", normalize={r"about [\d.]+ GB": "about N GB"})
    assert outcome.effective == 8
    assert (result.ending, result.iterations, result.env_steps) == ("finished", 4, 4 * 128)


def test_every_row_has_the_agreed_metrics_and_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    steered = Steered(monkeypatch, {})
    trained(small_job(iterations=4, evaluate_every=3, device="cpu"))  # a GPU's phases come one iteration late
    rows = steered.rows()
    expected = {
        *("env_steps", "samples", "env_steps_total", "env_steps_per_s", "samples_per_s", "episodes"),
        *("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance"),
        *("grad_norm", "lr", "iteration_s"),
        *("phase/rollout", "phase/rollout/env", "phase/rollout/policy", "phase/update"),
    }
    assert len(rows) == 4
    for row in rows:
        assert expected <= row.keys()
        assert ("episode_return" in row) == (row["episodes"] > 0)
    assert [i for i, row in enumerate(rows) if "evaluation_return" in row] == [2, 3]
    assert [i for i, row in enumerate(rows) if "phase/evaluation" in row] == [2, 3]
    assert [row["env_steps_total"] for row in rows] == [128, 256, 384, 512]
    assert run_state(steered.run).declarations.headline == "env_steps_per_s"
    assert run_state(steered.run).declarations.units["env_steps_per_s"] == "steps/s"


def test_checkpoints_are_written_every_few_iterations_on_request_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steered = Steered(monkeypatch, {0: lambda run: run.ask("checkpoint")})
    trained(small_job(tmp_path, iterations=5, checkpoint_every=2))
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == [f"ppo-{i:09d}.ckpt" for i in (1, 2, 4, 5)]
    [outcome] = steered.finished()
    assert (outcome.stage, outcome.code) == ("applied", "written")
    assert outcome.fields == {"path": str(tmp_path / written[0])}
    assert sum(text.startswith("checkpoint written: ") for text in steered.notes()) == 4


def test_without_a_folder_a_run_does_not_offer_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    steered = Steered(monkeypatch, {})
    trained(small_job(iterations=1))
    assert "checkpoint" not in run_state(steered.run).declarations.verbs()


def test_a_full_disk_is_a_warning_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def full_disk(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    steered = Steered(monkeypatch, {})
    monkeypatch.setattr(checkpoint_writer, "write_checkpoint", full_disk)
    result, lines = trained(small_job(tmp_path, checkpoint_every=2))
    assert result.iterations == 4
    golden("".join(f"{line}\n" for line in lines if os.strerror(errno.ENOSPC) in line))
    assert {note.level for note in run_state(steered.run).notes} == {"warning"}


def test_a_stop_that_was_asked_for_ends_the_run_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    Steered(monkeypatch, {1: lambda run: run.ask("stop")})
    result, lines = trained(small_job(tmp_path, iterations=1000))
    assert (result.ending, result.iterations) == ("stopped", 2)
    golden(f"{lines[-1]}\n", normalize={r"; .*": "; RATES"})
    assert read_checkpoint(tmp_path, "ppo")["iteration"] == 2


def test_an_exception_in_the_loop_is_told_and_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: Steered) -> None:
        raise ZeroDivisionError("made up")

    steered = Steered(monkeypatch, {1: fail})
    with pytest.raises(ZeroDivisionError):
        trained(small_job())
    assert not run_state(steered.run).alive


def test_a_passed_evaluation_ends_the_run() -> None:
    result, _ = trained(small_job(iterations=1000, evaluate_every=2, until_return=1.0))
    assert (result.ending, result.iterations) == ("passed", 2)
    assert result.evaluation_return is not None
    assert result.evaluation_return >= 1.0


def test_without_a_better_evaluation_it_ends_early_and_keeps_the_best_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returns = iter((3.0, 9.0, 9.0, 4.0, 7.0, 8.0, 1.0, 1.0))
    monkeypatch.setattr(training, "evaluated", lambda _: next(returns))
    steered = Steered(monkeypatch, {})
    result, lines = trained(small_job(tmp_path, iterations=50, evaluate_every=2, patience=3))
    assert (result.ending, result.iterations, result.evaluation_return) == ("early-stopped", 10, 7.0)
    assert (result.best_evaluation_return, result.best_iteration) == (9.0, 4)
    file = tmp_path / "ppo-best.pt"
    assert result.best_file == str(file)
    best = read_checkpoint(file, "ppo")
    assert (best["iteration"], best["evaluations"]["since_best"]) == (4, 0)
    assert "early-stopped: no better evaluation_return in 3 evaluations" in lines
    assert [row["evaluation_return"] for row in steered.rows() if "evaluation_return" in row] == [
        3,
        9,
        9,
        4,
        7,
    ]
    # Resumed from the newest, it has had its patience: the first evaluation that is no better ends it.
    more, _ = trained(small_job(tmp_path, iterations=50, evaluate_every=2, patience=3, resume=tmp_path))
    assert (more.ending, more.iterations, more.best_iteration) == ("early-stopped", 12, 4)
    # Resumed from the best, it has all of it.
    again, _ = trained(small_job(tmp_path, iterations=50, evaluate_every=2, patience=2, resume=file))
    assert (again.ending, again.iterations, again.best_evaluation_return) == ("early-stopped", 8, 9.0)


def test_a_run_whose_iterations_are_done_is_finished_however_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "evaluated", lambda _: 1.0)
    result, _ = trained(small_job(iterations=3, evaluate_every=1, patience=2))
    assert (result.ending, result.iterations, result.best_file) == ("finished", 3, None)


def test_the_settings_of_the_threads_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    trained(small_job(iterations=1, threads=2))
    assert torch.get_num_threads() == 2
    trained(small_job(iterations=1))
    assert torch.get_num_threads() == 1
    steered = Steered(monkeypatch, {0: lambda run: run.ask("set", knob="minibatch_size", value=4096)})
    trained(small_job(iterations=2, knobs={"num_envs": 256}))
    assert steered.finished()[0].effective == 4096
    assert torch.get_num_threads() == 4


class Ahead:
    """A GPU for which every iteration is a second of work, and a host that queues it in no time, at most one
    ahead."""

    def __init__(self) -> None:
        self.now = self.free = self.before = 0.0

    def monotonic(self) -> float:
        return self.now

    def work(self) -> None:
        self.free = max(self.free, self.now) + 1.0

    def wait(self, *_: object) -> None:
        self.now = max(self.now, self.free)

    def queued(self, _: str) -> AbstractContextManager[None]:
        return nullcontext()

    def waited(self, _: str) -> AbstractContextManager[None]:
        self.wait()
        return nullcontext()

    def end_iteration(self) -> None:
        self.now = max(self.now, self.before)
        self.before = self.free


def test_the_steady_rate_is_that_of_the_device_and_not_of_who_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, learned = Ahead(), training.learned

    def queued(*args: Any) -> Any:
        gpu.work()
        return learned(*args)

    fakes = {"time": gpu, "learned": queued, "phase_clock": lambda *_: gpu}
    for name, fake in fakes.items():
        monkeypatch.setattr(training, name, fake)
    monkeypatch.setattr(session, "wait_for", gpu.wait)
    result, _ = trained(small_job(iterations=20, evaluate_every=5))
    assert result.steady_env_steps_per_s == pytest.approx(8 * 16)


@pytest.mark.parametrize(("asked", "used"), [(4, ""), (64, "16"), (6, "4"), (5, "4")])
def test_another_sequence_length_than_asked_for_is_told(asked: int, used: str) -> None:
    knobs = {"policy": "tiny", "context": 4, "sequence_len": asked, "rollout_len": 16, "epochs": 1}
    _, lines = trained(small_job(iterations=1, knobs=knobs))
    told = [line for line in lines if line.startswith("sequence_len")]
    assert [line.split(" is ")[0] for line in told] == ([f"sequence_len {asked}: {used}"] if used else [])
