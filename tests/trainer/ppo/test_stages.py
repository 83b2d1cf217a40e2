"""A change of size prepares what it needs, keeps what it leaves for later, and leaves the training as it
would have been."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor

import hoptui
from hoptui.protocol.messages import Command
from hoptui.sdk import command_execution
from hoptui_trainer.common.cuda_graphs import Graphs, Work
from hoptui_trainer.common.phases import HostClock
from hoptui_trainer.ppo import collector, evaluate, update
from hoptui_trainer.ppo import state as states
from hoptui_trainer.ppo import train as training
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.job import PPOOptions
from hoptui_trainer.ppo.state import KEPT_SIZES, OPEN, PPOState
from hoptui_trainer.ppo.train import learned
from tests.run_state import run_state
from tests.trainer.gpu.small import iterate, ppo_state
from tests.trainer.tensors import assert_equal

CPU = torch.device("cpu")
CASES = [("CartPole-v1", "mlp"), ("CartPole-NoVel", "tiny")]


class Tape:
    """A recorder without a GPU, which counts what it captures."""

    def __init__(self) -> None:
        self.captures = 0

    def warm_up(self, function: Work) -> None:
        function()

    def capture(self, function: Work) -> Work:
        self.captures += 1
        return function

    def forget(self) -> None:
        pass


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    """What the graphs of a state are captured by, eager as they are."""
    made = Tape()
    monkeypatch.setattr(states, "graphs", lambda _: Graphs(made))
    for module in (collector, update, evaluate):
        monkeypatch.setattr(module, "compiled", lambda function, *_, **__: function)
    return made


def small(env: str = "CartPole-v1", **fields: Any) -> PPOState:
    sizes = {"num_envs": 6, "minibatch_size": 20, "sequence_len": 4}
    return ppo_state(CPU, env, **{**sizes, **OPEN, **fields})


def change(state: PPOState, prepared: bool, **values: int) -> None:
    """Turn knobs as the run would, or without the preparation."""
    for name, value in values.items():
        setattr(state.config, name, value)
    if values.keys() & {"num_envs", "rollout_len"}:
        state.fit()
    else:
        state.cut_anew()
    if prepared:
        state.prepare()


def assert_same(one: PPOState, other: PPOState) -> None:
    assert_equal(one.state_dict(), other.state_dict())
    assert torch.equal(one.collector.episodes.take(), other.collector.episodes.take())


CHANGES: list[dict[str, int]] = [
    {"num_envs": 9},
    {"rollout_len": 1},
    {"num_envs": 6, "rollout_len": 8},  # where it was before
    {"num_envs": 2},
    {"minibatch_size": 64, "grad_accum": 3},
    {"num_envs": 9},
]


@pytest.mark.parametrize(("env", "policy"), CASES)
def test_changes_that_are_prepared_and_kept_train_as_changes_that_are_not(
    env: str, policy: str, tape: Tape
) -> None:
    graphed, plain = small(env, policy=policy, compile="default"), small(env, policy=policy, compile="off")
    assert graphed.graphs.active
    iterate(graphed, 3)
    iterate(plain, 3)
    for values in CHANGES:
        change(graphed, True, **values)
        change(plain, False, **values)
        for _ in range(2):
            iterate(graphed)
            iterate(plain)
            assert_same(graphed, plain)
    assert tape.captures > 0


def test_what_a_change_needs_is_captured_in_it_and_never_again(tape: Tape) -> None:
    state = small(compile="default")
    iterate(state, 4)
    assert tape.captures == 6  # a step, an estimate, a deal, pieces of 20 and of 8; the optimizer's step
    sizes = [{"num_envs": n} for n in (12, 24, 6, 12, 24)]
    counts = []
    for values in sizes:
        change(state, True, **values)
        counts.append(tape.captures)
        iterate(state, 3)
        assert tape.captures == counts[-1]  # at full speed from the first iteration on
    assert counts == [11, 16, 16, 16, 16]


def test_the_sizes_left_longest_ago_go_first_and_all_where_memory_is_short(
    tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = small(compile="default")
    for count in range(7, 7 + KEPT_SIZES + 2):
        change(state, True, num_envs=count)
    assert len(state.collector._kept) == KEPT_SIZES
    assert not state.collector.keeps(PPOConfig(num_envs=7, rollout_len=8))
    assert state.collector.keeps(PPOConfig(num_envs=7 + KEPT_SIZES, rollout_len=8))
    owners = {owner for owner, _ in state.graphs._graphs}
    assert owners == {None, *state.collector._kept, state.collector.rollout.shape}
    bytes_kept = state.collector.kept_bytes
    monkeypatch.setattr(states, "free_bytes", lambda *_: int(bytes_kept / states.KEPT_SHARE / 2))
    change(state, True, num_envs=6)
    assert 0 < state.collector.kept_bytes <= bytes_kept / 2

    add, left = state.update.gradient.add, [1]

    def short(total: Tensor) -> None:
        if left:
            left.pop()
            raise torch.OutOfMemoryError("made up")
        add(total)

    monkeypatch.setattr(state.update.gradient, "add", short)
    state.graphs.clear()
    iterate(state)
    assert (state.collector.kept_bytes, state.grad_accum) == (
        0,
        1,
    )  # that was enough: pieces stay as they are


@pytest.mark.parametrize("where", ["estimate", "sums"])
def test_a_rollout_without_room_is_played_again_once_other_sizes_are_forgotten(
    where: str, tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = small(compile="default")
    change(state, True, num_envs=12)
    assert state.collector.kept_bytes > 0
    holder: Any = state.collector if where == "estimate" else update
    does, calls = getattr(holder, where), [0]

    def short(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise torch.OutOfMemoryError("made up")
        return does(*args)

    monkeypatch.setattr(holder, where, short)
    iterate(state)
    assert (calls, state.collector.kept_bytes, state.env.num_envs) == ([2], 0, 12)
    calls[0], weights = 0, [weight.detach().clone() for weight in state.policy.parameters()]
    assert learned(state, HostClock(hoptui.connect("test"))) is None  # there is nothing left to forget
    assert all(torch.equal(a, b) for a, b in zip(state.policy.parameters(), weights, strict=True))


def in_fp16(recorder: Tape | None = None) -> PPOState:
    """A state whose losses are scaled, and whose gradients are always longer than they may be."""
    return small(precision="fp16", compile="default" if recorder else "off", max_grad_norm=0.05)


@pytest.mark.parametrize("where", ["unscale_", "clip", "_account", "step"])
def test_in_fp16_a_step_without_room_is_taken_once_there_is_room(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough, scarce = in_fp16(), in_fp16()
    holders = {"unscale_": scarce.update.scaler, "clip": scarce.update.gradient, "_account": scarce.update}
    holder: Any = holders.get(where, scarce.optimizer)
    does, calls = getattr(holder, where), [0]

    def short(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise torch.OutOfMemoryError("made up")
        return does(*args)

    monkeypatch.setattr(holder, where, short)
    wanted, found = iterate(enough, 2), iterate(scarce, 2)
    assert calls[0] > 4
    assert_same(scarce, enough)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name].nan_to_num(), value.nan_to_num()), name


def test_in_fp16_a_step_is_taken_as_it_is_where_it_could_not_be_captured(
    tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scaler has been told then that the gradient is unscaled, and it is not: a capture computes
    nothing."""
    captured, plain = in_fp16(tape), in_fp16()
    gradient, capture = captured.update.gradient, tape.capture

    def full(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("made up")

    def short(function: Work) -> Work:
        if function != captured.update._step:
            return capture(function)
        held = gradient.exchanged.clone()
        with monkeypatch.context() as patch:
            patch.setattr(gradient, "clip", full)
            try:
                function()
            finally:
                gradient.exchanged.copy_(held)
        raise AssertionError("it was captured")

    monkeypatch.setattr(tape, "capture", short)
    iterate(captured, 3)
    iterate(plain, 3)
    assert captured.graphs.refused == 1
    assert_same(captured, plain)


def test_where_memory_has_run_out_the_size_that_was_too_much_is_not_kept(tape: Tape) -> None:
    state = small(compile="default")
    change(state, True, num_envs=12)
    state.proves_sizes = False
    captures = tape.captures
    change(state, True, num_envs=6)
    assert (state.collector.kept_bytes, tape.captures) == (0, captures)
    iterate(state)


def test_the_index_of_a_size_is_kept_by_the_graphs_that_read_it_alone(tape: Tape) -> None:
    state = small(compile="default")
    iterate(state, 4)
    assert set(state.update._index) == {20, 8}
    state.graphs.clear()
    assert not state.update._index


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds by which the run's clock is ahead of the machine's."""
    ahead = [0.0]

    class Ahead:
        @staticmethod
        def monotonic() -> float:
            return time.monotonic() + ahead[0]

        monotonic_ns = staticmethod(time.monotonic_ns)

    monkeypatch.setattr(command_execution, "time", Ahead)
    return ahead


def test_a_change_has_taken_as_long_as_what_had_to_be_compiled_for_it(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    met: set[tuple[int, ...]] = set()
    compilations: list[int] = []

    def slow(function: Any, mode: str, **_: Any) -> Any:
        """Compiles for each size of a piece, and takes seven seconds for it."""

        def called(*args: Any) -> Any:
            if len(args) == 5 and args[2].shape not in met:
                met.add(tuple(args[2].shape))
                compilations.append(run[0].step)
                clock[0] += 7.0
            return function(*args)

        return called

    for module in (collector, update, evaluate):
        monkeypatch.setattr(module, "compiled", slow)
    run: list[hoptui.Run] = []
    connect, learn = hoptui.connect, training.learned

    def seen_connect(*args: Any, **kwargs: Any) -> hoptui.Run:
        run.append(connect(*args, **kwargs))
        return run[0]

    def steered(*args: Any) -> Any:
        if run[0].step == 1:
            ask = Command(
                id="more",
                run=run[0].id,
                epoch=run_state(run[0]).epoch,
                verb="set",
                knob="minibatch_size",
                value=48,
            )
            run_state(run[0]).inbox.receive(ask, time.monotonic(), run[0].step + 1)
        return learn(*args)

    monkeypatch.setattr(hoptui, "connect", seen_connect)
    monkeypatch.setattr(training, "learned", steered)
    sizes: dict[str, Any] = {"num_envs": 8, "rollout_len": 16, "minibatch_size": 64, "compile": "default"}
    training.train(PPOOptions(iterations=4, evaluate_every=0, knobs=sizes), lambda _: None)
    [outcome] = run_state(run[0]).inbox.collect_outcomes()
    assert outcome.stage == "applied"
    assert outcome.took_s is not None
    assert 7.0 <= outcome.took_s < 14.0
    # Of pieces of 64; then in the boundary of the change of 48, and never of the rest of 32.
    assert compilations == [0, 2]
