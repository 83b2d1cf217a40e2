"""What a rollout stores is what happened, and what the policy said of it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from hoptui_trainer.common import counter_rng
from hoptui_trainer.common.init_rng import stream
from hoptui_trainer.common.phases import NO_CLOCK
from hoptui_trainer.ppo.envs.physics import Discrete, Transition
from hoptui_trainer.ppo.envs.vector import Step, VectorEnv
from hoptui_trainer.ppo.gae import gae
from hoptui_trainer.ppo.policies.memory import AttentionCache
from hoptui_trainer.ppo.policies.mlp import MLP
from hoptui_trainer.ppo.policies.policy import Policy
from hoptui_trainer.ppo.policies.transformer import Transformer, Widths
from hoptui_trainer.ppo.rollout import Rollout, sequence_length

CPU = torch.device("cpu")
KEY = counter_rng.key(0, "policy")
CONTEXT = 4
FACTORS = {"gamma": 0.9, "gae_lambda": 0.8, "reward_scale": 0.5}


class Wander:
    """A walk in three dimensions that ends by leaving a ball, or by the time limit of `max_episode_steps`."""

    id = "Wander"
    state_size = observation_size = 3
    actions = Discrete(2)

    def __init__(self, max_episode_steps: int) -> None:
        self.max_episode_steps = self.cut_spacing = max_episode_steps

    def initial(self, unit: Tensor) -> Tensor:
        return unit - 0.5

    def observe(self, state: Tensor) -> Tensor:
        return state

    def move(self, state: Tensor, action: Tensor) -> Transition:
        turned = state.roll(1, -1) * 1.1 + 0.3 * (2 * action[:, None] - 1)
        return Transition(turned, turned.sum(-1), turned.norm(dim=-1) > 3)


class Diary:
    """Remembers every step."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def follow(self, step: Step) -> None:
        self.steps.append(Step(*(field.clone() for field in step)))


class Walk:
    """Environments, a policy and its rollouts."""

    def __init__(
        self, policy: str, length: int, envs: int = 6, *, limit: int = 9, longest: int = 100
    ) -> None:
        self.task = Wander(limit)
        self.policy = new_policy(self.task, policy)
        self.env = VectorEnv(self.task, envs, 0, CPU, staggered=True)
        self.longest = longest
        self.rollout = self.storage(length)
        self.diary = Diary()

    def storage(self, length: int) -> Rollout:
        return Rollout(self.task, self.policy, length, self.env.num_envs, CPU, longest_sequence=self.longest)

    def collect(self) -> Rollout:
        rollout, self.diary = self.rollout, Diary()
        play = partial(rollout.play, self.env, self.policy, self.diary, KEY, NO_CLOCK)
        rollout.collect(self.env, self.policy, play)
        rollout.estimate(self.policy, **FACTORS)
        return rollout

    def resize(self, length: int, envs: int) -> None:
        before = self.rollout.state_dict()
        self.env.resize(envs)
        self.rollout = self.storage(length)
        self.rollout.load_state_dict(before)


def new_policy(task: Wander, kind: str) -> Policy:
    weights = stream(0, "policy weights")
    if kind == "mlp":
        return MLP(task, 16, weights)
    policy = Transformer(task, Widths(d_model=16, heads=2, layers=2, ff=24), CONTEXT, weights)
    with torch.no_grad():
        policy.actor.weight.mul_(50)  # away from the uniform policy of the start
    return policy


def assert_judged_as_acted(walk: Walk) -> None:
    rollout = walk.rollout
    batch = rollout.gather(torch.randperm(rollout.units, generator=torch.Generator().manual_seed(0)))
    judged = walk.policy.judge(batch)
    torch.testing.assert_close(judged.log_prob.detach(), batch.log_prob, rtol=0, atol=1e-5)
    torch.testing.assert_close(judged.value.detach(), batch.target - batch.advantage, rtol=0, atol=1e-5)
    assert batch.log_prob.shape == (rollout.units, rollout.sequence)


@pytest.mark.parametrize("policy", ["mlp", "transformer"])
@pytest.mark.parametrize(("length", "longest"), [(12, 100), (12, 4), (12, 6), (2, 100), (1, 100), (7, 3)])
def test_the_ratio_is_1_before_the_first_step_of_the_optimizer(
    policy: str, length: int, longest: int
) -> None:
    walk = Walk(policy, length, longest=longest)
    for _ in range(3):
        walk.collect()
        assert_judged_as_acted(walk)
        with torch.no_grad():  # an update: what the memory held is of other weights now
            for p in walk.policy.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)), alpha=0.05)
    if policy == "transformer" and length > 2:
        assert float(walk.rollout.log_prob.std()) > 0.05


@pytest.mark.parametrize(("length", "envs"), [(12, 9), (12, 3), (5, 6), (2, 8), (1, 4)])
def test_the_ratio_is_1_after_a_change_of_size(length: int, envs: int) -> None:
    walk = Walk("transformer", 12)
    walk.collect()
    before = walk.rollout.obs[-3:, :3].clone()
    walk.resize(length, envs)
    walk.collect()
    assert torch.equal(walk.rollout.obs[:3, :3], before)
    assert_judged_as_acted(walk)
    walk.collect()
    assert_judged_as_acted(walk)


def test_the_precision_may_change_between_rollouts() -> None:
    walk = Walk("transformer", 5)
    exact = walk.collect().log_prob.clone()
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(walk.collect().log_prob, exact)
    walk.collect()
    assert_judged_as_acted(walk)


@pytest.mark.parametrize("policy", ["mlp", "transformer"])
def test_it_stores_what_happened(policy: str) -> None:
    walk = Walk(policy, 30)
    observed = walk.env.observation()
    rollout = walk.collect()
    steps = walk.diary.steps
    obs = torch.stack((observed, *(step.obs for step in steps[:-1])))
    done = torch.stack([step.terminated | step.truncated for step in steps])
    first = torch.cat((torch.ones(1, 6, dtype=torch.bool), done[:-1]))
    assert torch.equal(rollout.obs[rollout.prefix :], obs)
    assert torch.equal(rollout.first[rollout.prefix :], first)
    for field, ours in (
        ("reward", rollout.reward),
        ("terminated", rollout.terminated),
        ("truncated", rollout.truncated),
    ):
        assert torch.equal(ours, torch.stack([getattr(step, field) for step in steps]))
    assert rollout.terminated.any()
    assert rollout.truncated.any()
    assert rollout.size == 180


def value_after(walk: Walk, t: int, env: int, final: Tensor) -> float:
    """The value of `final` after step t, by a memory that is shown the context before it step by step."""
    rollout, policy = walk.rollout, walk.policy
    memory: AttentionCache | None = policy.memory(1)
    rows = slice(t + 1, t + 1 + rollout.prefix)
    with torch.no_grad():
        policy.refill(memory, rollout.obs[rows, env : env + 1], rollout.first[rows, env : env + 1])
        return float(policy.act(final[None], torch.tensor([False]), memory, None).value)


@pytest.mark.parametrize("policy", ["mlp", "transformer"])
@pytest.mark.parametrize(("length", "limit"), [(30, 9), (27, 9), (12, 13), (11, 1), (1, 2)])
def test_advantages_continue_what_a_time_limit_or_the_end_of_the_rollout_cut_off(
    policy: str, length: int, limit: int
) -> None:
    check_advantages(Walk(policy, length, limit=limit))


@pytest.mark.parametrize("policy", ["mlp", "transformer"])
def test_advantages_are_right_where_episodes_may_be_cut_off_at_any_step(policy: str) -> None:
    walk = Walk(policy, 12, limit=5)
    walk.task.cut_spacing = 1
    walk.rollout = walk.storage(12)
    check_advantages(walk)


def check_advantages(walk: Walk) -> None:
    cut_off = 0
    for _ in range(8 if walk.rollout.length == 1 else 3):
        rollout = walk.collect()
        following = torch.cat((rollout.value[1:], rollout.last_value[None]))
        for t, step in enumerate(walk.diary.steps):
            for env in step.truncated.nonzero()[:, 0].tolist():
                following[t, env] = value_after(walk, t, env, step.final_obs[env])
                cut_off += 1
        flags = rollout.terminated, rollout.truncated
        known = gae(rollout.reward * 0.5, rollout.value, following, *flags, gamma=0.9, gae_lambda=0.8)
        torch.testing.assert_close(rollout.advantage, known, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(rollout.target, known + rollout.value, rtol=1e-5, atol=1e-5)
    assert cut_off > 3


@pytest.mark.parametrize("policy", ["mlp", "transformer"])
def test_the_last_value_is_that_of_the_next_step(policy: str) -> None:
    """Had the rollout been one step longer, the value of that step."""
    walk, longer = Walk(policy, 12), Walk(policy, 13)
    last, next_value = walk.collect().last_value, longer.collect().value[12]
    torch.testing.assert_close(last, next_value, rtol=0, atol=1e-6)


def test_a_sequence_is_gathered_with_the_context_before_it() -> None:
    walk = Walk("transformer", 12, longest=4)
    walk.collect()
    rollout = walk.collect()
    assert (rollout.units, rollout.sequence, rollout.prefix) == (18, 4, 3)
    # The third sequence of environment 1, the first of environment 0.
    batch = rollout.gather(torch.tensor([13, 0]))
    assert torch.equal(batch.obs[0], rollout.obs[8:15, 1])
    assert torch.equal(batch.first[0], rollout.first[8:15, 1])
    for field, whole in (
        (batch.action, rollout.action),
        (batch.log_prob, rollout.log_prob),
        (batch.advantage, rollout.advantage),
        (batch.target, rollout.target),
    ):
        assert torch.equal(field[0], whole[8:12, 1])
        assert torch.equal(field[1], whole[:4, 0])


def test_the_units_of_an_mlp_are_single_steps() -> None:
    walk = Walk("mlp", 12, longest=4)
    rollout = walk.collect()
    assert (rollout.units, rollout.sequence, rollout.prefix) == (72, 1, 0)
    batch = rollout.gather(torch.tensor([13]))
    assert torch.equal(batch.obs[0], rollout.obs[2, 1:2])
    assert torch.equal(batch.action[0], rollout.action[2, 1:2])


def test_a_resumed_rollout_goes_on_as_if_nothing_had_happened() -> None:
    walk, again = Walk("transformer", 5), Walk("transformer", 5)
    walk.collect()
    again.env.load_state_dict(walk.env.state_dict())
    again.rollout.load_state_dict({name: saved.clone() for name, saved in walk.rollout.state_dict().items()})
    one, other = walk.collect(), again.collect()
    assert torch.equal(one.log_prob, other.log_prob)
    assert torch.equal(one.advantage, other.advantage)


def test_history_that_is_not_known_is_not_looked_at() -> None:
    walk = Walk("transformer", 5)
    walk.collect()
    saved = walk.rollout.state_dict()
    short = {name: value[-2:].clone() for name, value in saved.items()}  # of a policy with a shorter context
    values = []
    for unknown in (0.0, 100.0):
        walk.rollout = walk.storage(5)
        walk.rollout.obs.fill_(unknown)
        walk.rollout.load_state_dict(short)
        with torch.no_grad():
            rows = slice(5, 5 + CONTEXT - 1)
            memory = walk.policy.memory(6)
            walk.policy.refill(memory, walk.rollout.obs[rows], walk.rollout.first[rows])
            here = torch.zeros(6, dtype=torch.bool)
            values.append(walk.policy.act(torch.ones(6, 3), here, memory, None).value)
    assert torch.equal(*values)


def test_one_process_and_two_ranks_would_play_the_same() -> None:
    """Environment 4 of ten plays as it does among six."""
    few, many = Walk("transformer", 12, 6), Walk("transformer", 12, 10)
    one, other = few.collect(), many.collect()
    torch.testing.assert_close(one.value, other.value[:, :6], rtol=0, atol=1e-6)
    assert torch.equal(one.action, other.action[:, :6])


@pytest.mark.parametrize(
    ("length", "longest", "sequence"),
    [(32, 128, 32), (128, 128, 128), (512, 128, 128), (1000, 128, 125), (262, 128, 262), (8192, 128, 128)],
)
def test_sequences_divide_the_rollout(length: int, longest: int, sequence: int) -> None:
    assert sequence_length(length, longest) == sequence


@pytest.mark.parametrize("policy", ["mlp", "transformer"])
def test_nothing_waits_for_the_device(policy: str) -> None:
    """With tensors that have a shape and no values: whatever asked for a value would fail."""
    walk = Walk(policy, 4, longest=2)
    with FakeTensorMode(allow_non_fake_inputs=True):
        with pytest.raises(DataDependentOutputException):
            bool(walk.env.first.any())
        rollout = walk.collect()
        batch = rollout.gather(torch.arange(rollout.units))
        assert walk.policy.judge(batch).log_prob.shape == (rollout.units, rollout.sequence)
