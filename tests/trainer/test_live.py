"""The trainer beside a real daemon: steered over the wire, and not changed by being watched."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import hoptui
from hoptui.domain.knobs import relations
from hoptui_trainer.__main__ import main
from hoptui_trainer.common.checkpoint import read_checkpoint
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.ranks import ALONE
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.declarations import declare, declare_cost, flops_per_step, set_threads
from hoptui_trainer.ppo.envs.registry import find_task, make_env
from hoptui_trainer.ppo.job import PPOOptions
from hoptui_trainer.ppo.policies.transformer import Widths
from hoptui_trainer.ppo.state import PPOState
from tests.conftest import TestNode, until
from tests.run_state import run_state
from tests.trainer.warm import Warm

SMALL = ("--num-envs", "8", "--rollout-len", "16", "--minibatch-size", "64", "--epochs", "2")
COMMAND = ("ppo", *SMALL, "--evaluate-every", "0")


def training(node: TestNode, *options: str) -> Warm:
    """A training process without end on this node."""
    endless = ("--iterations", "1000000")
    return Warm("-m", "hoptui_trainer", *COMMAND, *endless, *options, environment=node.environment)


def test_knobs_a_checkpoint_and_a_pause_over_the_wire(node: TestNode, tmp_path: Path) -> None:
    viewer = node.viewer()
    with training(node, "--name", "wired", "--checkpoint-dir", str(tmp_path)) as process:
        until(lambda: (run := viewer.run("wired")).knobs and run.headline, what="its knobs and its headline")
        run = viewer.run("wired")
        assert (run.headline, run.total) == ("env_steps_per_s", 1_000_000)
        assert {"checkpoint", "pause", "stop"} <= set(run.can)
        knobs = {state.spec.name: state for state in run.knobs}
        assert knobs["num_envs"].value == 8
        assert knobs["grad_accum"].spec.effect == "speed"
        for knob, value in {"num_envs": 4, "lr": 5e-4}.items():
            outcome = viewer.outcome(viewer.command(run, knob=knob, value=value))
            assert (outcome.stage, outcome.effective) == ("applied", value)
        refused = viewer.outcome(viewer.command(run, knob="num_envs", value=0))
        assert (refused.stage, refused.code) == ("rejected", "out_of_range")
        written = viewer.outcome(viewer.command(run, "checkpoint"))
        assert written.stage == "applied"
        assert read_checkpoint(tmp_path, "ppo")["config"]["num_envs"] == 4
        assert viewer.outcome(viewer.command(run, "pause")).stage == "applied"
        process.terminate()  # a signal ends a paused run, too
        assert process.wait(15) == 0
    ended = until(lambda: next((r for r in viewer.state().runs if r.exit_reason), None), what="the end")
    assert (ended.exit_reason, ended.exit_detail) == ("stopped", "by SIGTERM")


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["ppo", "lm", "vision"])
def test_a_run_is_seen_while_it_is_set_up_and_what_fails_there_is_told(
    node: TestNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], workload: str
) -> None:
    viewer = node.viewer()
    for name in ("HOPTUI", "HOPTUI_DIR", "HOPTUI_STATE_DIR"):
        monkeypatch.setenv(name, node.environment.get(name, ""))

    said = "--preset: it is not to be"

    def fail(*_: object) -> None:
        run = viewer.run("early")
        assert run.knobs == ()
        until(lambda: viewer.vital(run.run).phase == "setup", what="the phase")
        raise UsageError(said)

    monkeypatch.setattr(f"hoptui_trainer.{workload}.train.prepare", fail)
    assert main([workload, "--name", "early", "--device", "cpu"]) == 2
    assert said in capsys.readouterr().err
    ended = until(lambda: next((r for r in viewer.state().runs if r.exit_reason), None), what="the end")
    assert (ended.exit_reason, ended.exit_detail) == ("exception", f"UsageError: {said}")


def test_training_is_the_same_without_hoptui_and_watched(
    node: TestNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = node.viewer()
    with training(node, "--checkpoint-dir", str(tmp_path / "watched")) as watched:
        run = viewer.run("ppo-cartpole")
        source = f"run/{run.run}"
        until(lambda: viewer.fetch(run=run.run, cursors={source: 0}, wait_s=0.05).columns, what="rows")
        for _ in range(20):
            viewer.fetch(run=run.run, cursors={source: 0}, wait_s=0.01)
        assert viewer.outcome(viewer.command(run, "stop")).stage == "applied"
        assert watched.wait(15) == 0
    first = read_checkpoint(tmp_path / "watched", "ppo")

    monkeypatch.setenv("HOPTUI", "off")
    iterations = ("--iterations", str(first["iteration"]))
    assert main([*COMMAND, *iterations, "--checkpoint-dir", str(tmp_path / "alone")]) == 0
    assert_same_numbers(first, read_checkpoint(tmp_path / "alone", "ppo"))


def assert_same_numbers(first: Any, second: Any) -> None:
    """Equal bit for bit, but for what names the run."""
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first.keys() - {"run"}:
            assert_same_numbers(first[key], second[key])
    elif isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, list):
        for one, other in zip(first, second, strict=True):
            assert_same_numbers(one, other)
    else:
        assert first == second


def state_of(config: PPOConfig, env: str = "CartPole-v1") -> PPOState:
    cpu = torch.device("cpu")
    return PPOState(make_env(find_task(env), config.num_envs, 0, cpu, staggered=True), config, 0, cpu)


def test_what_was_chosen_before_the_first_iteration_is_told_once() -> None:
    state = state_of(PPOConfig(num_envs=8, rollout_len=16, minibatch_size=64))
    chosen = "grad_accum chosen by measurement: 2"
    state.notes.append(chosen)
    run = hoptui.connect("chosen")
    declare(run, PPOOptions(), state)
    run_state(run).declarations.knobs["grad_accum"].set(4, "kim")
    assert [note.text for note in run_state(run).notes] == [chosen]


@pytest.mark.parametrize("changed", [{}, {"grad_accum": 4}, {"minibatch_size": 32}, {"num_envs": 16}])
def test_the_sizes_that_a_knob_is_said_to_imply_are_those_that_are_computed(changed: dict[str, int]) -> None:
    state = state_of(PPOConfig(num_envs=8, rollout_len=16, minibatch_size=64, grad_accum=2))
    run = hoptui.connect("sizes")
    handles = declare(run, PPOOptions(), state)
    knobs = run_state(run).declarations.knobs
    for name, value in changed.items():
        knobs[name].set(value, "kim")
    values = {name: handle.value for name, handle in handles.items()} | {"ranks": 1}
    said: dict[str, float] = {}
    for name in ("num_envs", "rollout_len", "minibatch_size", "grad_accum"):
        for one in relations(knobs[name].spec.keeps):
            result = math.prod(values[f] for f in one.over) / math.prod(values[f] for f in one.under)
            assert said.setdefault(one.name, result) == result
            assert one.name or one.over == ("minibatch_size",)
    rollout = state.collector.rollout
    assert said == {
        "rollout": rollout.num_envs * rollout.length,
        "micro-batch": state.update.pieces.micro_batch,
        "": state.dealt.minibatch,
    }


def test_what_an_environment_step_costs_is_told_where_a_gpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of(PPOConfig(epochs=3, num_envs=2))
    run = hoptui.connect("cost")
    declare(run, PPOOptions(), state)
    run_state(run).declarations.knobs["epochs"].set(3, "kim")
    assert run_state(run).declarations.flops is None  # on a CPU, whose peak nobody knows
    monkeypatch.setattr(state, "device", torch.device("cuda"))
    monkeypatch.setattr(state.collector, "device", torch.device("cuda"))
    declare_cost(run, state)
    weights = (4 * 64 + 64 * 64 + 64 * 2) + (4 * 64 + 64 * 64 + 64)  # actor and critic, biases left out
    cost = run_state(run).declarations.flops
    assert cost is not None
    assert cost.per_unit == weights * (2 + 3 * 6)
    assert (cost.metric, cost.precision) == ("env_steps_per_s", "fp32")
    monkeypatch.setattr(state.collector, "device", torch.device("cpu"))
    declare_cost(run, state)
    cost = run_state(run).declarations.flops
    assert cost is not None
    assert cost.per_unit == weights * 3 * 6  # the CPU acts: none of the GPU's work


def test_a_transformer_pays_for_its_attention_too() -> None:
    state = state_of(PPOConfig(policy="tiny", context=8, epochs=1, num_envs=2), "CartPole-NoVel")
    widths = Widths(d_model=32, layers=2, heads=2, ff=64)
    d = widths.d_model
    weights = 2 * d + widths.layers * (4 * d * d + 2 * d * widths.ff) + 2 * d + d
    assert flops_per_step(state) == (2 * weights + 4 * widths.layers * d * 8) * 4


def test_a_change_of_sizes_leaves_the_threads_alone_where_a_gpu_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Code compiled for the GPU is of one number of threads too: another one compiled all of it anew."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    for minibatch_size in (256, 4096):
        config = PPOConfig(minibatch_size=minibatch_size, num_envs=256)
        set_threads(PPOOptions(iterations=1), config, torch.device("cuda"), ALONE)
        assert torch.get_num_threads() == 1
