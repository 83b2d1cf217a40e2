"""Memory that runs out: in a pass, in the optimizer, in a rollout; what gives way, and what is never tried
twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hoptui
from hoptui.protocol.messages import Command
from hoptui_trainer.common.checkpoint import read_checkpoint
from hoptui_trainer.common.errors import ShortMemoryError
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.restart import Restart
from hoptui_trainer.ppo import train as training
from hoptui_trainer.ppo.job import PPOOptions
from hoptui_trainer.ppo.policies.mlp import MLP
from hoptui_trainer.ppo.policies.policy import Batch, Judgement
from hoptui_trainer.ppo.policies.transformer import Transformer
from hoptui_trainer.ppo.rollout import Rollout
from tests.run_state import run_state

SIZES = {"num_envs": 8, "rollout_len": 16, "minibatch_size": 64, "epochs": 2}


@pytest.fixture
def run_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[], hoptui.Run]:
    """The run that training opens."""
    opened: list[hoptui.Run] = []
    connect = hoptui.connect

    def kept(*args: Any, **kwargs: Any) -> hoptui.Run:
        opened.append(connect(*args, **kwargs))
        return opened[-1]

    monkeypatch.setattr(hoptui, "connect", kept)
    return lambda: opened[-1]


def trained(folder: Path | None = None, iterations: int = 3, **knobs: Any) -> dict[str, Any]:
    """A short run; its checkpoint."""
    job = PPOOptions(iterations=iterations, evaluate_every=0, checkpoint_dir=folder, knobs={**SIZES, **knobs})
    training.train(job, lambda _: None)
    return read_checkpoint(folder, "ppo") if folder else {}


def out_of_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("made up")


def assert_near(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=1e-5)


def test_a_forward_pass_without_room_is_repeated_in_smaller_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_of: Callable[[], hoptui.Run]
) -> None:
    expected = trained(tmp_path / "room")
    judge = MLP.judge

    def too_large(self: MLP, batch: Batch) -> Judgement:
        if len(batch.obs) > 20:
            out_of_memory()
        return judge(self, batch)

    monkeypatch.setattr(MLP, "judge", too_large)
    found = trained(tmp_path / "none")
    assert_near(expected["policy"], found["policy"])
    handle = run_state(run_of()).declarations.knobs["grad_accum"]
    assert (handle.value, handle.in_effect) == (4, True)  # 64 → 32 → 16 samples
    assert found["config"]["grad_accum"] == 0  # nobody has chosen it: another process may find more memory
    assert found["env_steps"] == expected["env_steps"]


def test_a_backward_pass_without_room_leaves_no_half_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = trained(tmp_path / "room", grad_accum=2)
    add, calls = FlatGradient.add, [0]

    def fails_once(self: FlatGradient, total: Tensor) -> None:
        calls[0] += 1
        add(self, total)
        if calls[0] == 2:  # the second piece of the first minibatch, after the first has left its gradient
            out_of_memory()

    monkeypatch.setattr(FlatGradient, "add", fails_once)
    found = trained(tmp_path / "none", grad_accum=2)
    assert_near(expected["policy"], found["policy"])
    assert found["config"]["grad_accum"] == 4


def test_a_step_of_the_optimizer_without_room_is_taken_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = trained(tmp_path / "room")
    clip, calls = FlatGradient.clip, [0]

    def fails_once(self: FlatGradient, longest: Tensor) -> Tensor:
        calls[0] += 1
        # Of the third minibatch; what a step allocates, it allocates before this changes anything.
        if calls[0] == 3:
            out_of_memory()
        return clip(self, longest)

    monkeypatch.setattr(FlatGradient, "clip", fails_once)
    found = trained(tmp_path / "none")
    assert calls[0] == 3 * 4 + 1
    for name, value in expected["policy"].items():
        assert torch.equal(found["policy"][name], value), name
    assert all(int(moments["step"]) == 3 * 4 for moments in found["optimizer"]["state"].values())


def test_a_step_of_the_optimizer_for_which_there_never_is_room_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FlatGradient, "clip", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        trained()


def test_another_error_of_a_pass_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("not about memory")

    monkeypatch.setattr(FlatGradient, "add", broken)
    with pytest.raises(RuntimeError, match="not about memory"):
        trained()


def rollouts_up_to(monkeypatch: pytest.MonkeyPatch, fits: Callable[[Rollout], bool]) -> None:
    play = Rollout.play

    def limited(self: Rollout, *args: Any) -> None:
        if not fits(self):
            out_of_memory()
        play(self, *args)

    monkeypatch.setattr(Rollout, "play", limited)


def test_a_change_that_does_not_hold_is_reverted_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_of: Callable[[], hoptui.Run]
) -> None:
    rollouts_up_to(monkeypatch, lambda rollout: rollout.num_envs <= 8)
    learned = training.learned

    def steered(*args: Any) -> Any:
        run = run_of()
        if run.step == 1:
            command = Command(
                id="more", run=run.id, epoch=run_state(run).epoch, verb="set", knob="num_envs", value=32
            )
            run_state(run).inbox.receive(command, time.monotonic(), run.step + 1)
        return learned(*args)

    monkeypatch.setattr(training, "learned", steered)
    found = trained(tmp_path, iterations=4)
    assert found["config"]["num_envs"] == 8
    assert found["env_steps"] == 4 * 8 * 16
    last = [outcome for outcome in run_state(run_of()).inbox.collect_outcomes() if outcome.id == "more"][-1]
    assert (last.stage, last.effective) == ("reverted", 8)
    assert "memory ran out" in last.fields["reason"]


def test_from_the_start_the_rollout_gives_way_first_and_then_the_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts_up_to(monkeypatch, lambda rollout: rollout.num_envs <= 2)
    found = trained(tmp_path)
    assert (found["config"]["rollout_len"], found["config"]["num_envs"]) == (1, 2)


def test_with_consent_a_smaller_network_has_the_sizes_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Restart] = []
    job = PPOOptions(
        iterations=3, evaluate_every=0, checkpoint_dir=tmp_path, knobs=SIZES, smaller_model_on_oom=True
    )
    with monkeypatch.context() as short:
        rollouts_up_to(short, lambda rollout: False)
        short.setattr(Restart, "begin", lambda restart: begun.append(restart))
        short.setenv("_HOPTUI_RESTART", "")  # removed again afterwards
        short.delenv("_HOPTUI_RESTART")
        training.train(job, lambda _: None)
    assert [restart._forced for restart in begun] == [{"hidden": 32}]
    held = read_checkpoint(tmp_path, "ppo")["config"]
    assert (held["num_envs"], held["rollout_len"], held["grad_accum"]) == (8, 16, 0)
    goes_on = PPOOptions(resume=tmp_path, iterations=2, evaluate_every=0, knobs={"hidden": 32})
    assert training.train(goes_on, lambda _: None).env_steps == 2 * 8 * 16


def test_a_transformer_keeps_no_activations_before_sizes_shrink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Transformer.judge

    def too_large(self: Transformer, batch: Batch) -> Judgement:
        if not self.checkpointing:
            out_of_memory()
        return judge(self, batch)

    monkeypatch.setattr(Transformer, "judge", too_large)
    held = trained(tmp_path, iterations=2, policy="tiny", context=4, sequence_len=4)["config"]
    assert (held["checkpointing"], held["num_envs"], held["rollout_len"]) == (True, 8, 16)


def test_what_does_not_fit_at_all_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts_up_to(monkeypatch, lambda _: False)
    with pytest.raises(
        ShortMemoryError, match=r"one step of one environment; .*: smaller --hidden, or .*--checkpoint-dir"
    ):
        trained()
