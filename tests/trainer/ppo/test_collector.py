from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import hoptui
from hoptui_trainer.common.phases import HostClock
from hoptui_trainer.ppo import collector
from hoptui_trainer.ppo import state as states
from hoptui_trainer.ppo.collector import HybridCollector
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.envs.registry import find_task, make_env
from hoptui_trainer.ppo.state import PPOState
from hoptui_trainer.ppo.train import learned

CPU = torch.device("cpu")


def small(env: str, **fields: Any) -> PPOState:
    sizes = {
        "num_envs": 6,
        "rollout_len": 8,
        "minibatch_size": 24,
        "context": 4,
        "sequence_len": 4,
        "epochs": 2,
    }
    config = PPOConfig(**{**sizes, **fields})
    return PPOState(make_env(find_task(env), config.num_envs, 0, CPU, staggered=True), config, 0, CPU)


def iterate(state: PPOState, times: int) -> None:
    for _ in range(times):
        assert learned(state, HostClock(hoptui.connect("test"))) is not None
        state.epoch += state.config.epochs
        state.since += 1


def weights(state: PPOState) -> Tensor:
    return torch.cat([p.detach().flatten() for p in state.policy.parameters()])


@pytest.mark.parametrize(("env", "policy"), [("CartPole-v1", "mlp"), ("CartPole-NoVel", "tiny")])
def test_with_a_copy_of_the_policy_rollouts_are_the_same(
    env: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = small(env, policy=policy)
    iterate(plain, 3)
    monkeypatch.setattr(states, "make_collector", HybridCollector)
    hybrid = small(env, policy=policy)
    assert hybrid.collector.policy is not hybrid.policy
    iterate(hybrid, 3)
    assert hybrid.collector.batch() is not hybrid.collector.rollout
    assert torch.equal(weights(hybrid), weights(plain))
    hybrid.config.num_envs = plain.config.num_envs = 9
    for state in (hybrid, plain):
        state.fit()
        iterate(state, 1)
    assert torch.equal(weights(hybrid), weights(plain))


class Phases:
    """A clock that notes the paths of phases, in the order in which they end."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self._path: list[str] = []

    @contextmanager
    def queued(self, name: str) -> Iterator[None]:
        self._path.append(name)
        yield
        self.ended.append("/".join(self._path))
        self._path.pop()

    waited = queued

    def end_iteration(self) -> None:
        pass


def test_both_transfers_of_a_hybrid_run_are_phases_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, seen = Phases(), Phases()
    assert learned(small("CartPole-v1"), plain) is not None
    assert not [path for path in plain.ended if path.startswith("transfer")]
    monkeypatch.setattr(states, "make_collector", HybridCollector)
    assert learned(small("CartPole-v1"), seen) is not None
    outer = [path for path in seen.ended if not path.startswith("rollout/")]
    weights, batch = ["transfer/weights", "transfer"], ["transfer/batch", "transfer"]
    assert outer == [*weights, "rollout", "update", *batch, "update"]


def test_an_evaluation_is_of_the_weights_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "make_collector", HybridCollector)
    hybrid = small("CartPole-v1")
    iterate(hybrid, 1)
    name = "actor.0.weight"
    trained, acting = (p.get_parameter(name) for p in (hybrid.policy, hybrid.collector.policy))
    assert not torch.equal(acting, trained)
    hybrid.collector.renew()
    assert torch.equal(acting, trained)


def test_weights_that_are_cast_once_act_as_those_that_are_cast_at_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once = small("CartPole-NoVel", policy="tiny", precision="bf16")
    monkeypatch.setattr(collector, "_acting_in", lambda policy, dtype: policy)
    always = small("CartPole-NoVel", policy="tiny", precision="bf16")
    for state in (once, always):
        iterate(state, 3)
    for name in ("action", "log_prob", "value", "advantage"):
        assert torch.equal(getattr(once.collector.rollout, name), getattr(always.collector.rollout, name)), (
            name
        )
    assert torch.equal(weights(once), weights(always))


def test_only_what_autocast_would_cast_is_held_in_half_precision() -> None:
    state = small("CartPole-NoVel", policy="tiny", precision="bf16")
    iterate(state, 1)
    acting = state.collector._acting
    state.collector.renew()
    for name, trained in state.policy.named_parameters():
        own, half = acting.get_parameter(name), name.startswith("blocks.") and "norms" not in name
        assert trained.dtype == torch.float32, name
        assert own.dtype == (torch.bfloat16 if half else torch.float32), name
        assert torch.equal(own, trained.detach().to(own.dtype)), name
    state.config.precision = "fp32"
    state.rebuild()
    assert state.collector._acting is state.policy
    iterate(state, 1)


@pytest.fixture
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Trace, guard and recompile as ever, but run the graph by a backend of torch's own kernels: C++ takes
    minutes."""
    compile_: Callable[..., Any] = torch.compile

    def begin(backend: str) -> None:
        monkeypatch.setattr(
            torch, "compile", lambda f, *, mode, **options: compile_(f, backend=backend, **options)
        )

    torch.compiler.reset()
    yield begin
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize(("env", "policy"), [("Pendulum-v1", "mlp"), ("CartPole-NoVel", "tiny")])
def test_compiled_training_is_eager_training_and_knows_every_number_of_environments(
    env: str, policy: str, without_inductor: Callable[[str], None]
) -> None:
    without_inductor("aot_eager")
    compiled = small(env, policy=policy, compile="default", checkpointing=policy == "tiny")
    eager = small(env, policy=policy)
    for state in (compiled, eager):
        iterate(state, 2)
    before = counters["stats"]["unique_graphs"]
    assert before > 0
    for change in (
        {"num_envs": 9},
        {"num_envs": 12, "lr": 1e-4, "clip_range": 0.1, "gamma": 0.5, "epochs": 1},
        {"rollout_len": 12},
    ):
        for state in (compiled, eager):
            for name, value in change.items():
                setattr(state.config, name, value)
            state.turn()
            state.fit()
            iterate(state, 2)
    assert counters["stats"]["unique_graphs"] == before
    torch.testing.assert_close(weights(compiled), weights(eager), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_memory_that_runs_out_in_the_steady_state_may_compile_smaller_pieces(
    monkeypatch: pytest.MonkeyPatch, without_inductor: Callable[[str], None]
) -> None:
    without_inductor("eager")  # whether it may is decided before a backend is asked
    state = small("CartPole-v1", compile="default")
    iterate(state, 2)
    add = state.update.gradient.add

    def short(left: list[int], total: Tensor) -> None:
        if left:
            left.pop()
            raise torch.OutOfMemoryError("made up")
        add(total)

    monkeypatch.setattr(state.update.gradient, "add", partial(short, [1]))
    iterate(state, 1)
    assert state.grad_accum == 2
