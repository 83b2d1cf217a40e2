from __future__ import annotations

from contextlib import closing

import pytest
import torch
from torch import Tensor

from hoptui_trainer.common.cuda_graphs import WARM_UPS, Graphs, Work
from hoptui_trainer.common.init_rng import stream
from hoptui_trainer.ppo import evaluate
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.envs.registry import PHYSICS, find_task
from hoptui_trainer.ppo.evaluate import LOOK_EVERY, Evaluation
from hoptui_trainer.ppo.policies.memory import AttentionCache
from hoptui_trainer.ppo.policies.mlp import MLP
from hoptui_trainer.ppo.policies.policy import Choice, Policy
from hoptui_trainer.ppo.policies.registry import make_policy

CPU = torch.device("cpu")


def evaluated(policy: Policy, env: str) -> float:
    with closing(Evaluation(find_task(env), policy, CPU, Graphs(None))) as evaluation:
        return evaluation.run()


@pytest.mark.parametrize("policy", ["mlp", "tiny"])
def test_an_evaluation_is_repeatable_and_leaves_the_global_generator_alone(policy: str) -> None:
    config = PPOConfig(policy=policy, context=4)
    before = torch.get_rng_state()
    first, again, other = (
        evaluated(make_policy(config, PHYSICS["CartPole-v1"], seed), "CartPole-v1") for seed in (0, 0, 5)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert first == again
    assert first != other


@pytest.mark.parametrize(("env", "worse_than"), [("CartPole-v1", 300.0), ("Pendulum-v1", -800.0)])
def test_an_untrained_policy_is_far_from_the_gates(env: str, worse_than: float) -> None:
    assert evaluated(make_policy(PPOConfig(), PHYSICS[env], 0), env) < worse_than


class Always(MLP):
    """Pushes right whatever it sees."""

    def act(self, obs: Tensor, first: Tensor, memory: AttentionCache | None, noise: Tensor | None) -> Choice:
        assert noise is None
        zeros = torch.zeros(len(obs))
        return Choice(torch.ones(len(obs), dtype=torch.int64), zeros, zeros)


@pytest.mark.parametrize("env", ["CartPole-v1", "gymnasium:CartPole-v1"])
def test_an_evaluation_counts_whole_episodes_once(env: str) -> None:
    """Pushing one way drops the pole after 8 to 11 steps, wherever it starts; other episodes begin
    meanwhile."""
    policy = Always(PHYSICS["CartPole-v1"], 4, stream(0, "policy weights"))
    assert 8.0 <= evaluated(policy, env) <= 11.0


class Alternating(Policy):
    """Pushes right and left in turn, beginning each episode with right: for that it has to remember."""

    def __init__(self) -> None:
        super().__init__(PHYSICS["CartPole-v1"], context=2)

    def memory(self, num_envs: int, before: AttentionCache | None = None) -> AttentionCache:
        return AttentionCache(1, num_envs, 1, self.context, 1, torch.float32, CPU)

    def act(self, obs: Tensor, first: Tensor, memory: AttentionCache | None, noise: Tensor | None) -> Choice:
        assert memory is not None
        memory.advance(first)
        zeros = torch.zeros(len(obs))
        return Choice(1 - memory.age % 2, zeros, zeros)


def test_a_policy_remembers_within_an_episode() -> None:
    """Pushes that cancel out keep the pole up for longer than a push in one direction, and not for ever."""
    assert 20.0 < evaluated(Alternating(), "CartPole-v1") < 150.0


class Replays:
    """A recorder without a GPU, which counts; nothing is computed while a function is captured."""

    def __init__(self) -> None:
        self.warm_ups, self.captures, self.replays = 0, 0, 0

    def warm_up(self, function: Work) -> None:
        self.warm_ups += 1
        function()

    def capture(self, function: Work) -> Work:
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            function()

        return replay

    def forget(self) -> None:
        pass


@pytest.mark.parametrize("env", ["CartPole-v1", "CartPole-NoVel"])
def test_a_step_is_captured_once_for_all_evaluations_and_gives_the_same_numbers(
    env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "compiled", lambda function, mode: function)
    policy = make_policy(
        PPOConfig(policy="mlp" if env == "CartPole-v1" else "tiny", context=4), PHYSICS[env], 3
    )
    expected, recorder = evaluated(policy, env), Replays()
    evaluation = Evaluation(PHYSICS[env], policy, CPU, Graphs(recorder))
    evaluation.use("default")
    assert [evaluation.run() for _ in range(3)] == [expected] * 3
    assert (recorder.warm_ups, recorder.captures) == (WARM_UPS, 1)
    steps = WARM_UPS + recorder.replays
    assert steps % LOOK_EVERY == 0
    assert steps < 3 * 500  # it does not go on when all episodes have ended


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Acrobot-v1", "gymnasium:CartPole-v1"])
def test_all_evaluations_begin_in_the_same_states(env: str) -> None:
    task = find_task(env)
    policy = make_policy(PPOConfig(), task, 1)
    with closing(Evaluation(task, policy, CPU, Graphs(None))) as evaluation:
        first, again = evaluation.run(), evaluation.run()
    assert first == again == evaluated(policy, env)


def test_an_evaluation_sees_the_weights_of_now() -> None:
    policy = make_policy(PPOConfig(), PHYSICS["CartPole-v1"], 0)
    evaluation = Evaluation(PHYSICS["CartPole-v1"], policy, CPU, Graphs(None))
    before = evaluation.run()
    with torch.no_grad():
        policy.get_parameter("actor.4.bias").copy_(torch.tensor([5.0, -5.0]))
    assert 8.0 <= evaluation.run() <= 11.0 < before
