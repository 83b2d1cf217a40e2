from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.ppo import memory
from hoptui_trainer.ppo import state as states
from hoptui_trainer.ppo.collector import Collector
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.envs.registry import PHYSICS
from hoptui_trainer.ppo.envs.vector import VectorEnv
from hoptui_trainer.ppo.rank_layout import joined, shared
from hoptui_trainer.ppo.state import OPEN, PPOState
from tests.trainer.gpu.small import iterate, ppo_state
from tests.trainer.tensors import assert_equal, tensors

CPU = torch.device("cpu")
CASES = [("CartPole-v1", "mlp"), ("Pendulum-v1", "mlp"), ("CartPole-NoVel", "tiny")]


def small(env: str = "CartPole-v1", **fields: Any) -> PPOState:
    sizes = {"num_envs": 6, "rollout_len": 4, "minibatch_size": 12, "sequence_len": 4}
    return ppo_state(CPU, env, **{**sizes, **OPEN, **fields})


def envs_of(state: PPOState) -> VectorEnv:
    assert isinstance(state.env, VectorEnv)
    return state.env


def assert_same(first: PPOState, second: PPOState) -> None:
    assert_equal(first.state_dict(), second.state_dict())


def test_ranks_take_turns_where_something_must_be_compiled_and_not_where_it_is_only_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sizes of pieces and sequences are compiled for; the numbers of environments and of steps are
    not."""
    turns: list[bool] = []

    def on_all_ranks(
        ranks: RankGroup, device: torch.device, work: Callable[[], object], compiles: bool = False
    ) -> object:
        if work.__name__ != "both":
            return work()
        turns.append(compiles)
        return None

    monkeypatch.setattr(states, "on_all_ranks", on_all_ranks)
    state = small("CartPole-NoVel", policy="tiny", compile="default", rollout_len=8, grad_accum=1)

    def prepared() -> bool:
        state.prepare()
        return turns.pop()

    assert [prepared(), prepared()] == [True, False]
    state.config.num_envs = 12
    state.fit()
    assert not prepared()
    state.config.grad_accum = 2
    state.cut_anew()
    assert [prepared(), prepared()] == [True, False]
    state.config.rollout_len = 6  # sequences of 3
    state.fit()
    assert prepared()
    state.rebuild()
    state.cut_anew()
    assert prepared()


def test_growing_keeps_environments_and_fits_the_storage() -> None:
    state = small()
    kept = envs_of(state).state.clone()
    state.config.num_envs = 20
    assert state.fit() == 0
    torch.testing.assert_close(envs_of(state).state[:6], kept, rtol=0, atol=0)
    assert (state.collector.rollout.length, state.collector.rollout.num_envs) == (4, 20)
    iterate(state)


def test_shrinking_keeps_the_first_environments_and_tells_what_was_dropped() -> None:
    state = small()
    state.env.age[:] = torch.tensor([1, 2, 3, 4, 0, 6])
    state.env.first[:] = torch.tensor([False, False, False, False, True, False])
    kept = envs_of(state).state[:2].clone()
    state.config.num_envs = 2
    assert state.fit() == 3
    torch.testing.assert_close(envs_of(state).state, kept, rtol=0, atol=0)
    assert state.collector.rollout.obs.shape == (4, 2, 4)
    iterate(state)


def test_a_size_beyond_the_free_memory_is_refused_and_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = small()
    env, rollout = envs_of(state).state, state.collector.rollout
    monkeypatch.setattr(states, "free_bytes", lambda *_: 1_000_000_000)
    state.config.num_envs, state.config.rollout_len = 65_536, 8_192
    with pytest.raises(
        MemoryError, match=r"65536 environments × 8192 steps: about [\d.]+ GB, and 1\.0 GB are free for them"
    ):
        state.fit()
    assert envs_of(state).state is env
    assert state.collector.rollout is rollout
    state.config.num_envs, state.config.rollout_len = 6, 4
    monkeypatch.setattr(states, "free_bytes", lambda *_: 0)
    state.fit()  # the setting of before needs no more than it has


def test_a_refusal_by_the_memory_limit_names_the_sizes_and_what_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = small()
    held = state.collector.rollout.nbytes
    monkeypatch.setattr(states, "bytes_within_limit", lambda *_: 1_000_000_000 - held)
    state.config.num_envs, state.config.rollout_len = 65_536, 8_192
    needs = r"65536 environments × 8192 steps: about [\d.]+ GB, and --memory-limit leaves 1\.0 GB for them"
    with pytest.raises(MemoryError, match=needs):
        state.fit()


def test_ranks_look_at_the_memory_that_they_share_before_one_takes_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, int]] = []

    class Twin(RankGroup):
        """Another rank on this machine, which says what this one does."""

        def gather(self, value: object) -> list[Any]:
            told.append(("gather", self.world))
            return [value, value]

    def free(_: torch.device, local_world: int) -> int:
        told.append(("free_bytes", local_world))
        return 10**9

    def fit(collector: Collector, config: PPOConfig) -> int:
        told.append(("fit", config.num_envs))
        return taken(collector, config)

    taken = Collector.fit
    monkeypatch.setattr(states, "free_bytes", free)
    monkeypatch.setattr(Collector, "fit", fit)
    twin = Twin(0, 2, 0, 2)
    config = PPOConfig(num_envs=6, rollout_len=4, minibatch_size=12)
    env = VectorEnv(PHYSICS["CartPole-v1"], 6, 0, ranks=twin, staggered=True)
    state = PPOState(env, config, 0, CPU, ranks=twin)
    assert told[:2] == [("free_bytes", 2), ("gather", 2)]
    told.clear()
    state.config.num_envs = 8
    state.fit()
    assert told[:3] == [("free_bytes", 2), ("gather", 2), ("fit", 8)]


def test_a_rollout_needs_the_bytes_that_it_has() -> None:
    state = small(num_envs=10, rollout_len=8)
    fields = (f for f in vars(state.collector.rollout).values() if isinstance(f, Tensor))
    stored = sum(field.nbytes for field in fields)
    needed = memory.bytes_needed(state.config, PHYSICS["CartPole-v1"], state.policy, "fp32")
    assert stored + 80 * 30 < needed < stored + 80 * 120


def test_pieces_follow_the_knob_and_the_size_of_a_minibatch() -> None:
    state = small(num_envs=16, rollout_len=16, minibatch_size=64)
    assert (state.grad_accum, state.update.pieces.micro_batch) == (1, 64)
    state.config.grad_accum = 3
    state.cut_anew()
    assert (state.grad_accum, state.update.pieces.micro_batch) == (3, 22)
    state.config.grad_accum = 1000
    state.cut_anew()
    assert (state.grad_accum, state.update.pieces.micro_batch) == (64, 1)
    state.config.grad_accum, state.config.minibatch_size = 2, 128
    state.cut_anew()
    assert (state.grad_accum, state.update.pieces.micro_batch) == (2, 64)


@pytest.mark.parametrize(("env", "policy"), CASES)
def test_a_state_goes_through_a_dict_unchanged_and_goes_on_the_same(env: str, policy: str) -> None:
    state, other = small(env, policy=policy), small(env, policy=policy)
    for _ in range(2):
        iterate(state)
    state.iteration, state.env_steps = 7, 168
    state.evaluations.add({"evaluation_return": 12.5}, 5)
    saved = state.state_dict()
    held = {name: value.clone() for name, value in tensors(saved).items()}
    assert other.load_state_dict(copy.deepcopy(saved)) == 0
    assert (other.iteration, other.env_steps, other.epoch) == (7, 168, 4)
    assert other.evaluations.state_dict() == state.evaluations.state_dict()
    assert_same(state, other)
    for each in (state, other):
        iterate(each)
    assert_same(state, other)
    collector = {name: value for name, value in held.items() if name.startswith("/player")}
    assert collector
    for name, value in collector.items():
        assert torch.equal(tensors(saved)[name], value), f"{name} is not a copy"


def test_a_state_of_another_size_is_fitted_to_the_config_that_loads_it() -> None:
    state, fewer = small(), small(num_envs=2, lr=5e-4)
    iterate(state)
    assert fewer.load_state_dict(state.state_dict()) == int((~state.env.first[2:]).sum())
    torch.testing.assert_close(envs_of(fewer).state, envs_of(state).state[:2], rtol=0, atol=0)
    assert float(fewer.optimizer.param_groups[0]["lr"]) == pytest.approx(5e-4)
    iterate(fewer)


def test_another_network_begins_with_weights_of_its_own_and_the_environments_go_on() -> None:
    state, wider = small(), small(hidden=16)
    iterate(state)
    before = wider.policy.get_parameter("actor.0.weight").clone()
    saved = state.state_dict()
    assert wider.has_other_network(saved)
    wider.load_state_dict(saved)
    assert torch.equal(wider.policy.get_parameter("actor.0.weight"), before)
    assert wider.kept is not None
    assert 0 < wider.kept.kept < wider.kept.total == sum(p.numel() for p in wider.policy.parameters())
    assert torch.equal(envs_of(wider).state, envs_of(state).state)
    assert wider.epoch == state.epoch
    iterate(wider)


def test_all_numbers_are_read_from_where_they_are_used() -> None:
    state = small()
    for name in ("clip_range", "gamma", "gae_lambda", "reward_scale", "max_grad_norm", "value_coef"):
        setattr(state.config, name, 0.123)
        state.turn()
        assert state.coefficients.read(name) == 0.123
        assert state.collector.coefficients.read(name) == 0.123


def test_auto_is_settled_and_what_the_device_has_not_is_refused() -> None:
    state = small()
    assert (state.config.precision, state.config.compile) == ("fp32", "off")
    saved = state.state_dict()["config"]
    assert (saved["precision"], saved["compile"]) == ("auto", "auto")  # a GPU chooses otherwise
    state.config.precision = "tf32"
    with pytest.raises(UsageError, match="--precision tf32: it needs a GPU"):
        state.rebuild()
    state.config.precision = "bf16"
    state.rebuild()
    saved = state.state_dict()["config"]
    assert (saved["precision"], saved["compile"]) == ("bf16", "auto")
    iterate(state)
    assert state.policy.get_parameter("actor.0.weight").dtype == torch.float32


@pytest.mark.parametrize("world", [1, 2, 3])
def test_environments_of_several_ranks_are_joined_in_their_global_order(world: int) -> None:
    whole = {"a": torch.arange(12.0).view(2, 6), "count": torch.tensor(5)}
    parts = [shared(whole, 1, rank, world) for rank in range(world)]
    assert [int(part["a"][0, 0]) for part in parts] == list(range(world))
    again = joined(parts, 1)
    assert torch.equal(again["a"], whole["a"])
    assert int(again["count"]) == 5


@pytest.mark.parametrize(("env", "policy"), CASES)
def test_what_a_piece_takes_is_measured_without_a_trace_in_the_training(env: str, policy: str) -> None:
    state, other = small(env, policy=policy), small(env, policy=policy)
    for each in (state, other):
        iterate(each)
    trial = state.update.measure(state.collector.stored, 2)
    assert trial is not None
    assert trial.size == 2
    assert trial.peak_bytes >= 0
    for each in (state, other):
        iterate(each)
    assert_same(state, other)


def test_a_piece_that_does_not_fit_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: Any) -> None:
        raise torch.OutOfMemoryError("made up")

    state = small()
    monkeypatch.setattr(state.update.gradient, "add", short)
    assert state.update.measure(state.collector.stored, 2) is None
    assert not state.update.gradient.exchanged.any()


@pytest.mark.parametrize(("env", "policy"), [CASES[0], CASES[2]])
def test_in_fp16_losses_are_scaled_and_a_step_that_overflows_is_left_out(env: str, policy: str) -> None:
    half, exact = (small(env, policy=policy, precision=precision) for precision in ("fp16", "fp32"))
    for state in (half, exact):
        for _ in range(3):
            iterate(state)
    for own, wanted in zip(half.policy.parameters(), exact.policy.parameters(), strict=True):
        torch.testing.assert_close(own, wanted, rtol=0, atol=0.02)
    assert half.update.scaler.get_scale() > 1
    half.update.scaler.update(new_scale=2.0**40)
    held = [parameter.detach().clone() for parameter in half.policy.parameters()]
    iterate(half)
    assert half.update.scaler.get_scale() < 2.0**40
    for own, before in zip(half.policy.parameters(), held, strict=True):
        assert torch.equal(own, before)
    again = small(env, policy=policy, precision="fp16")
    again.load_state_dict(half.state_dict())
    assert again.update.scaler.get_scale() == half.update.scaler.get_scale()
    half.config.precision = "fp32"
    half.rebuild()
    iterate(half)
    assert not torch.equal(next(half.policy.parameters()), held[0])


def test_a_config_is_plain_data() -> None:
    saved = small().state_dict()["config"]
    assert PPOConfig(**saved) == dataclasses.replace(PPOConfig(), **saved)
