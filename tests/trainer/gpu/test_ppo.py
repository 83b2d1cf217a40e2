"""PPO eager, in graphs, and compiled in graphs is the same training, and in its steady state the host waits
for nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import hoptui
from hoptui_trainer.common.cuda_graphs import WARM_UPS, Graphs
from hoptui_trainer.common.metrics import measured
from hoptui_trainer.common.phases import phase_clock
from hoptui_trainer.ppo import collector, evaluate, state, update
from hoptui_trainer.ppo.state import PPOState
from tests.run_state import queued_rows, run_state
from tests.trainer.gpu.small import (
    Counting,
    assert_near,
    change,
    counting_graphs,
    iterate,
    memory_limit,
    ppo_state,
    scarce,
    weights,
)

NETWORKS = [("CartPole-v1", "mlp"), ("CartPole-NoVel", "tiny")]
CHANGES: list[dict[str, Any]] = [
    {},
    {"lr": 1e-4, "clip_range": 0.1, "gamma": 0.9, "entropy_coef": 0.01, "max_grad_norm": 0.1},
    {"num_envs": 48},
    {"minibatch_size": 256, "grad_accum": 2},
    {"rollout_len": 16},
    {"num_envs": 16, "minibatch_size": 128, "grad_accum": 1},
]
"""Pieces are of 128 samples in all of them, so that a loss is compiled once."""
ITERATIONS = 3
COMPILING_S = 180
MB = 1 << 20

Make = Callable[..., tuple[PPOState, Counting]]


@pytest.fixture
def in_graphs(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a state whose graphs are counted; with `compile="graphs"`, graphs of eager functions."""

    def make(device: torch.device, env: str, compile: str, **fields: Any) -> tuple[PPOState, Counting]:  # noqa: A002
        found: list[Counting] = []

        def graphs(device: torch.device) -> Graphs:
            made, counting = counting_graphs(device)
            found.append(counting)
            return made

        with monkeypatch.context() as patch:
            patch.setattr(state, "graphs", graphs)
            if compile == "graphs":
                for module in (collector, update, evaluate):
                    patch.setattr(module, "compiled", lambda function, *_, **__: function)
            mode = "default" if compile == "graphs" else compile
            return ppo_state(device, env, compile=mode, **fields), found[0]

    return make


@pytest.mark.parametrize(("env", "policy"), [*NETWORKS, ("Pendulum-v1", "mlp"), ("Acrobot-v1", "mlp")])
def test_training_in_graphs_is_eager_training_whatever_is_turned(
    env: str, policy: str, in_graphs: Make, device: torch.device
) -> None:
    eager = ppo_state(device, env, policy=policy)
    graphed, counting = in_graphs(device, env, "graphs", policy=policy, checkpointing=policy == "tiny")
    for turned in CHANGES:
        replays = counting.replays
        for each in (eager, graphed):
            change(each, **turned)
            iterate(each, ITERATIONS)
        assert_near(weights(graphed.policy), weights(eager.policy), 1e-5)
        assert counting.replays > replays + ITERATIONS * graphed.config.rollout_len // 2
    # A step, an estimate, a deal and the first pieces of minibatches for each of four sizes, and the
    # optimizer's step; with two pieces one for the second as well, at two sizes, and another deal for other
    # minibatches of the same size.
    assert graphed.graphs.captured == 4 * 4 + 1 + 2 + 1
    assert (graphed.graphs.refused, eager.graphs.captured) == (0, 0)
    saved, other = graphed.state_dict()["player"], eager.state_dict()["player"]
    assert_near(saved["env"]["state"], other["env"]["state"], 1e-4)
    assert torch.equal(saved["env"]["age"], other["env"]["age"])


@pytest.mark.timeout(COMPILING_S)
@pytest.mark.parametrize(("env", "policy"), NETWORKS)
def test_compiled_training_in_graphs_is_eager_training_and_compiles_nothing_for_other_sizes(
    env: str, policy: str, in_graphs: Make, device: torch.device
) -> None:
    eager = ppo_state(device, env, policy=policy)
    compiled, counting = in_graphs(device, env, "default", policy=policy, checkpointing=policy == "tiny")
    made = 0
    for turned in CHANGES:
        for each in (eager, compiled):
            change(each, **turned)
            iterate(each, ITERATIONS)
        assert_near(weights(compiled.policy), weights(eager.policy), 1e-5)
        if turned.keys() <= {"lr", "clip_range", "gamma", "entropy_coef", "max_grad_norm", "num_envs"}:
            assert made in (0, counters["stats"]["unique_graphs"])
        made = counters["stats"]["unique_graphs"]
    assert counting.replays > 0


@pytest.mark.parametrize(("env", "policy"), NETWORKS)
def test_what_a_change_prepares_and_keeps_leaves_the_training_as_it_would_have_been(
    env: str, policy: str, in_graphs: Make, device: torch.device
) -> None:
    eager = ppo_state(device, env, policy=policy)
    graphed, counting = in_graphs(device, env, "graphs", policy=policy)
    captured = []
    for turned in ({}, {"num_envs": 48}, {"num_envs": 32}, {"num_envs": 48}, {"num_envs": 32}):
        for each in (eager, graphed):
            change(each, **turned)
        captured.append(graphed.graphs.captured)
        replays = counting.replays
        for each in (eager, graphed):
            iterate(each, 2)
        # A step for each row, an estimate; in each of two epochs a deal, and for each minibatch a piece and a
        # step.
        assert counting.replays - replays == 2 * (8 + 1 + 2 * (1 + 2 * graphed.dealt.count))
        assert_near(weights(graphed.policy), weights(eager.policy), 1e-5)
    assert captured == [5, 9, 9, 9, 9]
    saved, other = graphed.state_dict()["player"], eager.state_dict()["player"]
    assert_near(saved["env"]["state"], other["env"]["state"], 1e-4)
    assert torch.equal(saved["env"]["age"], other["env"]["age"])


@pytest.mark.parametrize(("env", "policy"), NETWORKS)
def test_an_evaluation_in_graphs_is_an_eager_evaluation_and_captured_once(
    env: str, policy: str, in_graphs: Make, device: torch.device
) -> None:
    eager = ppo_state(device, env, policy=policy)
    graphed, counting = in_graphs(device, env, "graphs", policy=policy)
    expected = eager.evaluation.run()
    for _ in range(3):
        assert graphed.evaluation.run() == expected
    assert graphed.graphs.captured == 1
    assert counting.replays > 0
    iterate(graphed, 3)
    with torch.no_grad():
        for own, wanted in zip(eager.policy.parameters(), graphed.policy.parameters(), strict=True):
            own.copy_(wanted)
    assert graphed.evaluation.run() == eager.evaluation.run()


@pytest.mark.timeout(COMPILING_S)
def test_a_compiled_evaluation_is_an_eager_one(in_graphs: Make, device: torch.device) -> None:
    eager = ppo_state(device)
    compiled, _ = in_graphs(device, "CartPole-v1", "default")
    assert compiled.evaluation.run() == pytest.approx(eager.evaluation.run(), rel=0.05)


def test_a_coefficient_that_is_turned_is_not_frozen_in_a_graph(in_graphs: Make, device: torch.device) -> None:
    turned, counting = in_graphs(device, "CartPole-v1", "graphs")
    left, _ = in_graphs(device, "CartPole-v1", "graphs")
    for name, value in (
        ("lr", 1e-2),
        ("clip_range", 0.01),
        ("gamma", 0.5),
        ("gae_lambda", 0.1),
        ("reward_scale", 0.1),
        ("entropy_coef", 0.5),
        ("value_coef", 0.01),
        ("max_grad_norm", 1e-3),
    ):
        begin = copy.deepcopy(left.state_dict())
        for each in (turned, left):
            each.graphs.clear()  # loading replaces tensors
            each.load_state_dict(copy.deepcopy(begin))
            iterate(each, 3)
        assert torch.equal(weights(turned.policy), weights(left.policy)), name
        replays, captured = counting.replays, turned.graphs.captured
        change(turned, **{name: value})
        for each in (turned, left):
            iterate(each)
        assert not torch.equal(weights(turned.policy), weights(left.policy)), name
        assert turned.graphs.captured == captured, name  # none was made anew for it
        assert counting.replays > replays
        change(turned, **{name: getattr(left.config, name)})


@pytest.mark.parametrize("policy", ["mlp", "tiny"])
def test_a_steady_iteration_waits_for_nothing(policy: str, in_graphs: Make, device: torch.device) -> None:
    trained, _ = in_graphs(device, "CartPole-NoVel", "graphs", policy=policy)
    run = hoptui.connect("gpu")
    clock = phase_clock(run, device)
    iterate(trained, WARM_UPS + 2, clock)
    trained.since = WARM_UPS + 2
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(2):
        metrics = iterate(trained, 1, clock)
        run.log(measured(metrics, device))
        clock.end_iteration()
    with pytest.raises(RuntimeError, match="synchroniz"):
        float(metrics["entropy"])  # the alarm works
    torch.cuda.set_sync_debug_mode("default")
    assert all(bool(torch.isfinite(value)) for name, value in metrics.items() if name != "episode_return")


def test_rollouts_on_the_cpu_train_the_same_network(device: torch.device) -> None:
    beside, apart = ppo_state(device), ppo_state(device, rollout_device=torch.device("cpu"))
    for each in (beside, apart):
        iterate(each, 3)
        change(each, num_envs=48)
        iterate(each, 2)
    assert_near(weights(apart.policy), weights(beside.policy), 1e-4)
    assert apart.collector.rollout.obs.is_pinned()


def test_both_transfers_of_a_hybrid_run_take_time_of_their_own(device: torch.device) -> None:
    run = hoptui.connect("gpu")
    clock = phase_clock(run, device)
    state = ppo_state(device, rollout_device=torch.device("cpu"), num_envs=512, rollout_len=32)
    for _ in run.iterations(4):
        iterate(state, 1, clock)
        clock.end_iteration()
    known = [row for _, _, row in queued_rows(run_state(run)) if "phase/transfer" in row]
    assert len(known) == 3
    for row in known:
        assert row["phase/transfer/weights"] > 0
        assert row["phase/transfer/batch"] > 0
        assert row["phase/transfer"] < row["phase/rollout"]


def everything_of(trained: PPOState) -> tuple[Tensor, list[Tensor]]:
    held = trained.optimizer.state.values()
    return weights(trained.policy), [value.clone() for state in held for value in state.values()]


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("compile", ["off", "graphs"])
def test_a_minibatch_that_does_not_fit_is_computed_in_smaller_pieces(
    where: str,
    compile: str,  # noqa: A002
    in_graphs: Make,
    device: torch.device,
) -> None:
    enough, (short, _) = ppo_state(device), in_graphs(device, "CartPole-v1", compile)
    for each in (enough, short):
        iterate(each)
    before = everything_of(short)
    seen: list[tuple[Tensor, list[Tensor]]] = []
    smaller = short._smaller

    def told(size: int, then: int) -> None:
        seen.append(everything_of(short))
        smaller(size, then)

    short.update.pieces._on_smaller = told
    if where == "forward":
        short.update._loss = scarce(short.update._loss)
    else:
        short.update.gradient.add = scarce(short.update.gradient.add)  # type: ignore[method-assign]
    short.graphs.clear()  # what is replayed calls nothing
    for each in (enough, short):
        iterate(each, 2)
    assert (short.grad_accum, enough.grad_accum) == (2, 1)
    [(held, moments)] = seen
    assert torch.equal(held, before[0])
    assert all(torch.equal(one, other) for one, other in zip(moments, before[1], strict=True))
    assert_near(weights(short.policy), weights(enough.policy), 1e-5)


def test_where_memory_stays_short_pieces_stay_small(device: torch.device) -> None:
    """What the four hidden layers keep of 32,768 samples is 2 GB; AdamW's state and a second gradient are 400
    MB."""
    sizes: dict[str, Any] = {
        "num_envs": 512,
        "rollout_len": 64,
        "minibatch_size": 32_768,
        "epochs": 1,
        "hidden": 4096,
    }
    enough = ppo_state(device, **sizes)
    iterate(enough, 2)
    wanted = weights(enough.policy)
    del enough
    short = ppo_state(device, **sizes)
    with memory_limit(1400 * MB):
        iterate(short, 2)
    assert short.grad_accum >= 2
    assert_near(weights(short.policy), wanted, 1e-5)


@pytest.mark.parametrize(
    ("compile", "precision", "part"),
    [
        ("off", "fp32", "clip"),
        ("graphs", "fp32", "_account"),
        ("off", "fp16", "clip"),
        ("graphs", "fp16", "_unscale"),
        ("graphs", "fp16", "_account"),
    ],
)
def test_a_step_of_the_optimizer_that_does_not_fit_is_taken_once_there_is_room(
    compile: str,  # noqa: A002
    precision: str,
    part: str,
    in_graphs: Make,
    device: torch.device,
) -> None:
    enough = ppo_state(device, precision=precision)
    short, _ = in_graphs(device, "CartPole-v1", compile, precision=precision)
    holder: Any = short.update.gradient if part == "clip" else short.update
    setattr(holder, part, scarce(getattr(holder, part)))
    for each in (enough, short):
        iterate(each, 2)
    assert short.grad_accum == 1
    assert_near(weights(short.policy), weights(enough.policy), 1e-5)


def test_in_fp16_a_step_is_taken_as_it_is_where_it_cannot_be_captured(
    in_graphs: Make, device: torch.device
) -> None:
    enough = ppo_state(device, precision="fp16")
    short, _ = in_graphs(device, "CartPole-v1", "graphs", precision="fp16")
    clip = short.update.gradient.clip

    def full(longest: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise torch.OutOfMemoryError("made up")
        return clip(longest)

    short.update.gradient.clip = full  # type: ignore[method-assign, assignment]
    for each in (enough, short):
        iterate(each, 4)
    assert short.graphs.refused == 1
    assert_near(weights(short.policy), weights(enough.policy), 1e-5)


@pytest.mark.parametrize("compile", ["off", "graphs"])
def test_in_fp16_losses_are_scaled_and_steps_that_overflow_are_left_out(
    compile: str,  # noqa: A002
    in_graphs: Make,
    device: torch.device,
) -> None:
    exact = ppo_state(device)
    half, _ = in_graphs(device, "CartPole-v1", compile, precision="fp16")
    before = weights(half.policy)
    for each in (exact, half):
        iterate(each, 4)
    assert 0 < float(half.update.scaler.get_scale()) <= 65536
    assert not torch.equal(weights(half.policy), before)
    assert_near(weights(half.policy), weights(exact.policy), 0.02)
