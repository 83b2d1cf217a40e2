"""PPO begun again: from the same seed, from a checkpoint, with another network. In this process, on a small
job."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from hoptui_trainer.common import checkpoint_writer
from hoptui_trainer.common.checkpoint import read_checkpoint
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.restart import Restart
from hoptui_trainer.ppo.job import PPOOptions
from tests.golden import Golden
from tests.run_state import run_state
from tests.trainer.printed import MEASURED, printed
from tests.trainer.small import Steered, small_job, trained
from tests.trainer.tensors import assert_equal


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Two checkpoints hold the same numbers, bit for bit."""
    assert_equal(first, second)
    assert first["env_steps"] == second["env_steps"]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_one_seed_gives_one_result_and_another_seed_another(tmp_path: Path, env: str) -> None:
    before = torch.get_rng_state()
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        trained(small_job(tmp_path / name, env=env, seed=seed, evaluate_every=4))
    assert torch.equal(torch.get_rng_state(), before)
    first, again, other = (read_checkpoint(tmp_path / name, "ppo") for name in "abc")
    assert_same(first, again)
    assert not torch.equal(first["policy"]["actor.0.weight"], other["policy"]["actor.0.weight"])


def test_an_evaluation_does_not_change_the_training(tmp_path: Path) -> None:
    trained(small_job(tmp_path / "often", evaluate_every=2))
    trained(small_job(tmp_path / "never"))
    assert_same(read_checkpoint(tmp_path / "often", "ppo"), read_checkpoint(tmp_path / "never", "ppo"))


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_resumed_run_is_bit_for_bit_the_one_that_was_not_interrupted(tmp_path: Path, env: str) -> None:
    trained(small_job(tmp_path / "whole", env=env, iterations=6))
    trained(small_job(tmp_path / "half", env=env, iterations=3))
    job = PPOOptions(
        iterations=6, evaluate_every=0, checkpoint_dir=tmp_path / "rest", resume=tmp_path / "half"
    )
    result, lines = trained(job)
    whole, rest = read_checkpoint(tmp_path / "whole", "ppo"), read_checkpoint(tmp_path / "rest", "ppo")
    assert_same(whole, rest)
    assert whole["config"] == rest["config"]
    assert (result.iterations, result.env_steps) == (6, 6 * 8 * 16)
    [resumed] = [line for line in lines if line.startswith("resumed")]
    assert re.findall(r"\d+", resumed) == ["3", "384"]
    assert any(line.startswith("num_envs = 8 ") for line in lines)


def test_a_resumed_run_is_the_next_epoch_of_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Steered(monkeypatch, {})
    trained(small_job(tmp_path))
    before = first.run.id
    trained(PPOOptions(iterations=5, evaluate_every=0, resume=tmp_path, knobs={"lr": 5e-4, "num_envs": 4}))
    assert (first.run.id, run_state(first.run).epoch) == (before, 2)
    assert first.rows()[-1]["lr"] == pytest.approx(5e-4)
    assert first.rows()[-1]["env_steps"] == 4 * 16


def test_a_checkpoint_of_another_shape_is_told_and_not_raised(tmp_path: Path) -> None:
    trained(small_job(tmp_path, iterations=1))
    [path] = tmp_path.iterdir()
    content = torch.load(path, weights_only=True)
    del content["state"]["policy"]["critic.0.bias"]
    torch.save(content, path)
    with pytest.raises(UsageError, match=r"--resume .*does not fit this trainer"):
        trained(small_job(resume=path, knobs={}))


def test_a_knob_of_the_network_restarts_from_a_checkpoint_with_new_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_HOPTUI_RESTART", "")  # restored afterwards
    begun: list[Restart] = []
    monkeypatch.setattr(Restart, "begin", lambda restart: begun.append(restart))
    steered = Steered(monkeypatch, {1: lambda run: run.ask("set", knob="hidden", value=16)})
    _, lines = trained(small_job(tmp_path, json=True))
    assert len(begun) == 1
    assert lines == []  # the result is told at the end of the run, by the process that ends it
    assert steered.run.restart_wanted == {"hidden": 16}
    path = tmp_path / "ppo-000000002.ckpt"
    saved = read_checkpoint(path, "ppo")
    assert (saved["iteration"], saved["config"]["hidden"]) == (2, 64)
    steered = Steered(monkeypatch, {})
    result, lines = trained(small_job(tmp_path, resume=path, knobs={"hidden": 16}))
    assert result.iterations == 4
    outcome = next(o for o in steered.finished() if "hidden" in o.id)
    assert (outcome.stage, outcome.effective, outcome.step) == ("applied", 16, 2)
    assert any(": 3 of " in line and "parameters are kept" in line for line in lines)  # biases of both heads
    [event] = [note for note in run_state(steered.run).notes if "anew" in note.text]
    assert event.level == "warning"
    assert read_checkpoint(tmp_path, "ppo")["policy"]["actor.0.weight"].shape == (16, 4)


def test_a_run_offers_the_sizes_of_its_own_network_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    steered = Steered(monkeypatch, {})
    trained(small_job(iterations=1))
    assert {"policy", "hidden"} <= (mlp := run_state(steered.run).declarations.knobs).keys()
    assert not {"d_model", "layers", "heads", "ff", "context", "sequence_len"} & mlp.keys()
    steered = Steered(monkeypatch, {0: lambda run: run.ask("set", knob="heads", value=3)})
    trained(small_job(iterations=2, knobs={"policy": "tiny", "layers": 1, "context": 4}))
    knobs = run_state(steered.run).declarations.knobs
    assert "hidden" not in knobs
    shown = {name: knobs[name].value for name in ("d_model", "layers", "heads", "ff", "context")}
    assert shown == {"d_model": 32, "layers": 1, "heads": 2, "ff": 64, "context": 4}
    [outcome] = steered.finished()
    assert (outcome.stage, outcome.effective) == ("failed", 2)


def test_a_size_that_another_policy_has_not_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Restart, "due", lambda restart: False)

    def turn(run: Steered) -> None:
        run.ask("set", knob="policy", value="tiny")
        run.ask("set", knob="hidden", value=128)

    steered = Steered(monkeypatch, {0: turn})
    trained(small_job(iterations=2))
    outcomes = steered.finished()
    [outcome] = [o for o in outcomes if "hidden" in o.id]
    assert (outcome.stage, outcome.code, outcome.effective) == ("failed", "setter_failed", 64)
    [waited] = [o for o in outcomes if "policy" in o.id]
    assert (waited.stage, waited.code) == ("voided", "run_ended"), "it waited for a restart until the end"


def test_users_read_where_a_resumed_run_goes_on(tmp_path: Path, golden: Golden) -> None:
    trained(small_job(tmp_path, iterations=2, device="cpu", threads=1))
    _, lines = trained(
        PPOOptions(iterations=4, resume=tmp_path, device="cpu", threads=1, knobs={"hidden": 16, "lr": 5e-4})
    )
    golden(printed(lines), normalize=MEASURED)


def test_without_a_place_for_the_checkpoint_there_is_no_restart_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint_writer, "write_checkpoint", full_disk)
    steered = Steered(monkeypatch, {1: lambda run: run.ask("set", knob="hidden", value=16)})
    result, _ = trained(small_job(tmp_path))
    assert result.iterations == 4
    assert run_state(steered.run).declarations.knobs["hidden"].value == 64
    outcome = next(o for o in reversed(steered.finished()) if "hidden" in o.id)
    assert outcome.stage == "failed"
    assert os.strerror(errno.ENOSPC) in outcome.fields["reason"]


def test_the_same_network_again_is_no_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    Steered(monkeypatch, {1: lambda run: run.ask("set", knob="hidden", value=64)})
    result, _ = trained(small_job())
    assert result.iterations == 4
