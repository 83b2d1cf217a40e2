"""Stable-Baselines3: what a `learn` does when knobs change. It has one process: there are no ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env

from hoptui.domain.tuning import Limits, may_turn
from hoptui.integrations import sb3 as adapter
from hoptui.integrations.sb3 import HoptuiCallback
from tests.conftest import TestNode, until
from tests.integrations.proof import Proof
from tests.run_state import queued_rows
from tests.sdk.two_ranks import command, outcomes

pytestmark = pytest.mark.timeout(300)
ENVS, STEPS, ROLLOUTS = 2, 32, 8
TIMESTEPS = ENVS * STEPS * ROLLOUTS


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No daemon: the tests give the run its commands."""
    monkeypatch.setenv("HOPTUI", "off")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)


class Commands(BaseCallback):  # type: ignore[misc]
    """Give the run commands at some rollouts, and look at the model."""

    def __init__(self, of_hoptui: HoptuiCallback, due: Mapping[int, list[dict[str, Any]]]) -> None:
        super().__init__()
        self.of, self.due = of_hoptui, dict(due)
        self.answers: list[Any] = []
        self.outcomes: list[Any] = []
        self.sizes: list[tuple[int, ...]] = []
        self.collected: list[int] = []
        self.plans: list[int | None] = []
        self.rollout = -1
        self.last = 0

    def _on_training_start(self) -> None:
        run = self.of.run
        assert run is not None
        self.state, self.run = run._core.state, run

    def _on_rollout_start(self) -> None:
        self.rollout += 1
        self.outcomes += outcomes(self.run)
        self.plans.append(self.state.total)
        for each in self.due.pop(self.rollout, ()):
            self.answers += command(self.run, **each)

    def _on_rollout_end(self) -> None:
        self.collected.append(self.num_timesteps - self.last)
        self.last = self.num_timesteps
        buffer = getattr(self.model, "rollout_buffer", None)
        if buffer is not None:
            self.sizes.append(buffer.rewards.shape)

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.outcomes += outcomes(self.run)


def learn(
    due: Mapping[int, list[dict[str, Any]]],
    *,
    algorithm: str = "PPO",
    env: str = "CartPole-v1",
    timesteps: int = TIMESTEPS,
    **options: Any,
) -> tuple[Any, Commands]:
    """Train, and return the model and what happened. Commands of a rollout are due at the next boundary."""
    defaults = {
        "PPO": {"n_steps": STEPS, "batch_size": 16, "n_epochs": 2},
        "A2C": {"n_steps": STEPS},
        "DQN": {"learning_starts": 20, "buffer_size": 1000, "train_freq": 4},
        "SAC": {"learning_starts": 20, "buffer_size": 1000},
    }[algorithm]
    made = make_vec_env(env, n_envs=ENVS if algorithm in ("PPO", "A2C") else 1, seed=3)
    kind = getattr(stable_baselines3, algorithm)
    policy = {"net_arch": [16]}
    model = kind("MlpPolicy", made, seed=3, device="cpu", policy_kwargs=policy, **(defaults | options))
    callback = HoptuiCallback("learn")
    commands = Commands(callback, due)
    model.learn(timesteps, callback=[callback, commands])
    return model, commands


def change(knob: str, value: object) -> list[dict[str, Any]]:
    """One command to set a knob."""
    return [{"knob": knob, "value": value}]


def weights(model: Any) -> list[float]:
    """All parameters of a model."""
    return [float(x) for p in model.policy.parameters() for x in p.detach().reshape(-1)]


def applied(commands: Commands) -> list[tuple[Any, Any]]:
    """The changes: from which value to which."""
    return [(each.before, each.effective) for each in commands.outcomes if each.stage == "applied"]


def prove(proof: Proof, commands: Commands, due: int = TIMESTEPS) -> None:
    """All steps were collected, and training went on to the end."""
    counted = sum(row.get("env_steps", 0) for _, _, row in queued_rows(commands.state))
    assert counted == commands.num_timesteps
    proof.samples(seen=sum(commands.collected), due=due)


@pytest.mark.live_safe(
    framework="Stable-Baselines3", knob="learning_rate", effect="learning", when="next update", ranks=1
)
def test_the_learning_rate_of_the_next_updates_changes(proof: Proof) -> None:
    model, commands = learn({2: change("learning_rate", 0.01)})
    prove(proof, commands)
    assert applied(commands) == [(0.0003, 0.01)]
    assert model.policy.optimizer.param_groups[0]["lr"] == 0.01
    rates = [
        row["train/learning_rate"]
        for _, _, row in queued_rows(commands.state)
        if "train/learning_rate" in row
    ]
    assert rates == [0.0003] * 3 + [0.01] * 5  # the command was given within the third rollout


def test_a_schedule_keeps_its_form(tmp_path: Path) -> None:
    def half(progress: float) -> float:
        return 0.001 * (1 + progress) / 2

    model, commands = learn({2: change("learning_rate", 0.01)}, learning_rate=half)
    assert applied(commands) == [(0.001, 0.01)]
    assert model.lr_schedule(0.0) == pytest.approx(0.005)
    model.save(tmp_path / "model.zip")
    code = f"""
import sys
sys.modules["hoptui"] = None  # not installed
from stable_baselines3 import PPO
print(PPO.load({str(tmp_path / "model.zip")!r}, device="cpu").lr_schedule(1.0))
"""
    environment = {**os.environ, "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) == pytest.approx(0.01)


def test_the_tuner_may_turn_the_sizes_alone_of_all_that_is_learned() -> None:
    _, commands = learn({}, timesteps=ENVS * STEPS)
    specs = [knob.spec for knob in commands.state.declarations.knobs.values()]
    assert not [spec.name for spec in specs if may_turn(spec, Limits())]
    allowed = [spec.name for spec in specs if may_turn(spec, Limits(learning=("*",)))]
    assert sorted(allowed) == ["batch_size", "n_steps"]


SIMPLE = [
    ("gamma", 0.99, 0.9),
    ("gae_lambda", 0.95, 0.8),
    ("ent_coef", 0.0, 0.01),
    ("vf_coef", 0.5, 0.25),
    ("max_grad_norm", 0.5, 0.1),
    ("n_epochs", 2, 3),
    ("batch_size", 16, 32),
    ("clip_range", 0.2, 0.1),
    ("clip_range_vf", 0.3, 0.1),
]


@pytest.mark.live_safe(
    framework="Stable-Baselines3", knob="n_epochs", effect="learning", when="next update", ranks=1
)
@pytest.mark.live_safe(
    framework="Stable-Baselines3", knob="batch_size", effect="learning", when="next update", ranks=1
)
@pytest.mark.live_safe(
    framework="Stable-Baselines3", knob="clip_range", effect="learning", when="next update", ranks=1
)
@pytest.mark.live_safe(
    framework="Stable-Baselines3", knob="clip_range_vf", effect="learning", when="next update", ranks=1
)
@pytest.mark.live_safe(
    framework="Stable-Baselines3", knob="ent_coef", effect="learning", when="next update", ranks=1
)
@pytest.mark.live_safe(
    framework="Stable-Baselines3", knob="vf_coef", effect="learning", when="next update", ranks=1
)
@pytest.mark.live_safe(
    framework="Stable-Baselines3", knob="max_grad_norm", effect="learning", when="next update", ranks=1
)
@pytest.mark.live_safe(
    framework="Stable-Baselines3", knob="gamma", effect="learning", when="next rollout", ranks=1
)
@pytest.mark.live_safe(
    framework="Stable-Baselines3", knob="gae_lambda", effect="learning", when="next rollout", ranks=1
)
@pytest.mark.parametrize(("knob", "before", "value"), SIMPLE, ids=[knob for knob, *_ in SIMPLE])
def test_a_number_of_ppo_changes_between_two_rollouts(
    proof: Proof, knob: str, before: Any, value: Any
) -> None:
    """As if the script had set it there."""

    class Script(BaseCallback):  # type: ignore[misc]
        """What the change does, in the words of the framework."""

        rollout = -1

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            self.rollout += 1
            if self.rollout != 3:
                return
            if knob.startswith("clip_range"):
                setattr(self.model, knob, lambda _: value)
            else:
                setattr(self.model, knob, value)
            if knob in ("gamma", "gae_lambda"):
                setattr(self.model.rollout_buffer, knob, value)

    options: dict[str, Any] = {"clip_range_vf": 0.3} if knob == "clip_range_vf" else {}
    model, commands = learn({2: change(knob, value)}, **options)
    prove(proof, commands)
    assert applied(commands) == [(before, value)]
    other = stable_baselines3.PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=ENVS, seed=3),
        seed=3,
        device="cpu",
        policy_kwargs={"net_arch": [16]},
        n_steps=STEPS,
        batch_size=16,
        n_epochs=2,
        **options,
    )
    other.learn(TIMESTEPS, callback=Script())
    assert weights(model) == weights(other)


@pytest.mark.live_safe(
    framework="Stable-Baselines3", knob="n_steps", effect="learning", when="one rollout later", ranks=1
)
@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
@pytest.mark.parametrize("steps", [16, 64])
def test_the_length_of_rollouts_changes_one_rollout_later(proof: Proof, algorithm: str, steps: int) -> None:
    _, commands = learn({1: change("n_steps", steps)}, algorithm=algorithm)
    left = TIMESTEPS - 3 * ENVS * STEPS  # it was given in rollout 1, accepted at 2, and holds from 3 on
    rollouts = -(-left // (ENVS * steps))
    assert commands.sizes == [(STEPS, ENVS)] * 3 + [(steps, ENVS)] * rollouts
    assert commands.collected == [ENVS * STEPS] * 3 + [ENVS * steps] * rollouts
    prove(proof, commands, due=3 * ENVS * STEPS + rollouts * ENVS * steps)
    assert [each.stage for each in commands.outcomes] == ["scheduled", "applied"]
    assert applied(commands) == [(STEPS, steps)]
    assert commands.plans[0] == ROLLOUTS
    assert commands.plans[-1] == 3 + rollouts


def test_the_number_of_environments_is_declined_with_a_reason() -> None:
    _, commands = learn({1: change("n_envs", 4)})
    assert "n_envs" not in commands.state.declarations.knobs
    ((stage, code, fields),) = [(each.stage, each.code, each.fields) for each in commands.answers]
    assert (stage, code) == ("rejected", "declined")
    assert "start the script again" in fields["reason"]
    assert sum(commands.collected) == TIMESTEPS


@pytest.mark.live_safe(
    framework="Stable-Baselines3",
    knob="learning_rate",
    effect="learning",
    when="next update",
    note="off-policy",
    ranks=1,
)
@pytest.mark.live_safe(
    framework="Stable-Baselines3",
    knob="batch_size",
    effect="learning",
    when="next update",
    note="off-policy",
    ranks=1,
)
@pytest.mark.live_safe(
    framework="Stable-Baselines3",
    knob="gamma",
    effect="learning",
    when="next update",
    note="off-policy",
    ranks=1,
)
@pytest.mark.live_safe(
    framework="Stable-Baselines3",
    knob="ent_coef",
    effect="learning",
    when="next update",
    note="SAC, where it is not learned",
    ranks=1,
)
@pytest.mark.live_safe(
    framework="Stable-Baselines3",
    knob="tau",
    effect="learning",
    when="next update",
    note="off-policy",
    ranks=1,
)
@pytest.mark.live_safe(
    framework="Stable-Baselines3",
    knob="gradient_steps",
    effect="learning",
    when="next update",
    note="off-policy",
    ranks=1,
)
@pytest.mark.parametrize(
    ("algorithm", "env", "knob", "value"),
    [
        ("DQN", "CartPole-v1", "batch_size", 64),
        ("DQN", "CartPole-v1", "gradient_steps", 2),
        ("DQN", "CartPole-v1", "learning_rate", 0.01),
        ("SAC", "Pendulum-v1", "gamma", 0.9),
        ("SAC", "Pendulum-v1", "tau", 0.01),
        ("SAC", "Pendulum-v1", "ent_coef", 0.2),
    ],
)
def test_an_off_policy_algorithm_takes_a_number_between_two_rollouts(
    proof: Proof, algorithm: str, env: str, knob: str, value: Any
) -> None:
    options: dict[str, Any] = {"ent_coef": 0.1} if knob == "ent_coef" else {}
    model, commands = learn({10: change(knob, value)}, algorithm=algorithm, env=env, timesteps=400, **options)
    prove(proof, commands, due=400)
    ((_, effective),) = applied(commands)
    assert effective == value
    if knob == "learning_rate":
        assert model.policy.optimizer.param_groups[0]["lr"] == value
    elif knob == "ent_coef":
        assert float(model.ent_coef_tensor) == pytest.approx(value)
    else:
        assert getattr(model, knob) == value
    rows = [(step, row["env_steps"]) for _, step, row in queued_rows(commands.state) if "env_steps" in row]
    assert rows == [(step, 100) for step in range(4)]  # an iteration is a hundred steps of the environments
    assert commands.plans[0] == 4


def test_a_learned_entropy_coefficient_is_not_offered() -> None:
    _, commands = learn({}, algorithm="SAC", env="Pendulum-v1", timesteps=100)
    assert "ent_coef" not in commands.state.declarations.knobs


# what a run shows -------------------------------------------------------------------------------------------


def test_a_row_has_the_metrics_of_its_own_iteration() -> None:
    found: list[float] = []

    class Losses(BaseCallback):  # type: ignore[misc]
        """What each update recorded."""

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if "train/value_loss" in self.logger.name_to_value:
                found.append(self.logger.name_to_value["train/value_loss"])

        _on_training_end = _on_rollout_start

    model, _ = learn({})
    callback = HoptuiCallback("learn")
    again = Commands(callback, {})
    model.learn(TIMESTEPS, callback=[callback, Losses(), again])
    rows = [row for _, _, row in queued_rows(again.state) if "env_steps" in row]
    assert [row["train/value_loss"] for row in rows] == pytest.approx(found)
    assert len(rows) == ROLLOUTS
    assert [row["env_steps"] for row in rows] == [ENVS * STEPS] * ROLLOUTS
    for row in rows:
        assert {"phase/rollout", "phase/update", "env_steps_per_s"} <= set(row)
        assert row["phase/rollout"] + row["phase/update"] <= row["iteration_s"] + 1e-3
    assert rows[-1]["rollout/ep_rew_mean"] == np.mean([episode["r"] for episode in model.ep_info_buffer])


def test_training_is_the_same_with_and_without_the_callback() -> None:
    model, _ = learn({})
    other = stable_baselines3.PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=ENVS, seed=3),
        seed=3,
        device="cpu",
        policy_kwargs={"net_arch": [16]},
        n_steps=STEPS,
        batch_size=16,
        n_epochs=2,
    )
    other.learn(TIMESTEPS)
    assert weights(model) == weights(other)


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_a_stop_ends_the_training_at_the_next_step(algorithm: str) -> None:
    model, commands = learn({3: [{"verb": "stop"}]}, algorithm=algorithm)
    assert commands.state.stopping
    assert 0 < model.num_timesteps < TIMESTEPS


def test_a_checkpoint_is_a_model_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, commands = learn({1: [{"verb": "checkpoint"}]})
    (done,) = commands.outcomes
    path = Path(done.fields["path"])
    assert (done.code, path.parent) == ("written", tmp_path)
    loaded = stable_baselines3.PPO.load(path, device="cpu")
    assert loaded.num_timesteps == 2 * ENVS * STEPS
    assert model.num_timesteps == TIMESTEPS


def test_a_pause_holds_the_training_and_changes_nothing() -> None:
    model, commands = learn({1: [{"verb": "pause", "hold_s": 0.2}]})
    assert [each.stage for each in commands.outcomes] == ["applied"]
    assert weights(model) == weights(learn({})[0])


def test_the_callback_is_found_in_every_form_that_learn_accepts() -> None:
    own = HoptuiCallback()
    for given in (own, [own], CallbackList([own]), EveryNTimesteps(10, own)):
        assert adapter._has_callback(given)
    for given in (None, [], lambda *_: True):
        assert not adapter._has_callback(given)


SCRIPT = """
import sys, time
from pathlib import Path
import hoptui.integrations.sb3 as adapter
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

class Wait(BaseCallback):
    def _on_step(self):
        while not Path(sys.argv[2]).exists():
            time.sleep(0.01)
        if sys.argv[1] == "raises" and self.num_timesteps > 40:
            raise RuntimeError("no such step")
        return True

adapter.install("installed")
adapter.install("installed")
PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, device="cpu").learn(128, callback=Wait())
"""


@pytest.mark.parametrize(
    ("mode", "iteration", "reason"), [("works", 4, "finished"), ("raises", 1, "exception")]
)
def test_a_script_without_the_callback_can_be_a_run(
    node: TestNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, iteration: int, reason: str
) -> None:
    monkeypatch.delenv("HOPTUI", raising=False)
    viewer = node.viewer()
    child = node.start(SCRIPT, mode, str(tmp_path / "go"), OMP_NUM_THREADS="1")

    def trains() -> bool:
        assert child.poll() is None, child.communicate()[1][-3000:]
        return any(run.name == "installed" for run in viewer.state().runs)

    until(trains, seconds=90, what="the run")
    (tmp_path / "go").touch()
    child.communicate(timeout=60)
    found = node.status_at_end("installed")
    assert found["exit"]["reason"] == reason
    assert found["iteration"] == iteration


def test_the_name_of_a_run_is_the_algorithm_and_the_environment() -> None:
    model = stable_baselines3.PPO("MlpPolicy", gym.make("CartPole-v1"), device="cpu")
    assert adapter._name(model) == "PPO-CartPole-v1"
    assert np.isfinite(model.gamma)
