"""`grad_accum` of PPO is changed at any moment of an iteration: the change waits for the boundary, and tears
no window apart."""

from __future__ import annotations

import functools
import gc
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hoptui
from hoptui.protocol.messages import Command
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.memory import SizeTrial
from hoptui_trainer.common.phases import HostClock
from hoptui_trainer.ppo import train as training
from hoptui_trainer.ppo.collector import Collector
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.envs.registry import find_task, make_env
from hoptui_trainer.ppo.job import PPOOptions
from hoptui_trainer.ppo.memory import fewest_pieces, measured
from hoptui_trainer.ppo.rollout import Rollout
from hoptui_trainer.ppo.state import PPOState
from tests.run_state import run_state

SIZES: dict[str, Any] = {"num_envs": 4, "rollout_len": 4, "minibatch_size": 8, "epochs": 2, "hidden": 4}
ITERATIONS, ASKED_IN = 3, 1
COUNTS = (1, 2, 3)
PHASES: dict[str, tuple[type, str, int]] = {
    "in the rollout": (Rollout, "play", 3),
    "after the rollout": (Collector, "estimate", 1),
    "between two pieces": (FlatGradient, "add", 2),
    "between gradient and step": (FlatGradient, "clip", 2),
    "in the last minibatch": (FlatGradient, "clip", 4),
}
"""Where it is asked for: in which call of an iteration to which method."""


@functools.cache
def expected(old: int, new: int) -> tuple[Tensor, ...]:
    """The weights of a run that has `old` pieces up to the iteration in which it is asked, and `new` from the
    next one on."""
    config = PPOConfig(**SIZES, grad_accum=old)
    cpu = torch.device("cpu")
    env = make_env(find_task("CartPole-v1"), config.num_envs, 0, cpu, staggered=True)
    state, clock = PPOState(env, config, 0, cpu), HostClock(hoptui.connect("test"))
    for iteration in range(ITERATIONS):
        if iteration == ASKED_IN + 1:
            config.grad_accum = new
            state.cut_anew(sizes=False)
        assert training.learned(state, clock) is not None
        state.epoch += config.epochs
    return tuple(parameter.detach() for parameter in state.policy.parameters())


class Steered:
    """A run whose `grad_accum` is set to `new` in the middle of an iteration; `pieces` are the sizes in each
    iteration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, phase: str, new: int) -> None:
        self.pieces: list[list[int]] = []
        self._new, self._calls = new, 0
        connect, learned, add = hoptui.connect, training.learned, Rollout.gather
        owner, name, self._call = PHASES[phase]

        def seen_connect(*args: Any, **kwargs: Any) -> hoptui.Run:
            self.run = connect(*args, **kwargs)
            return self.run

        def seen_learned(state: PPOState, clock: Any) -> Any:
            self.state, self._calls = state, 0
            self.pieces.append([])
            return learned(state, clock)

        def seen_gather(rollout: Rollout, index: Tensor) -> Any:
            self.pieces[-1].append(len(index))
            return add(rollout, index)

        monkeypatch.setattr(gc, "collect", lambda: None)  # takes longer than all iterations together
        monkeypatch.setattr(hoptui, "connect", seen_connect)
        monkeypatch.setattr(training, "learned", seen_learned)
        monkeypatch.setattr(Rollout, "gather", seen_gather)
        monkeypatch.setattr(owner, name, self._asking(getattr(owner, name)))

    def _asking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if self.pieces and self.run.step == ASKED_IN:
                self._calls += 1
                if self._calls == self._call:
                    self._ask()
            return method(*args, **kwargs)

        return called

    def _ask(self) -> None:
        run = self.run
        ask = Command(
            id="n", run=run.id, epoch=run_state(run).epoch, verb="set", knob="grad_accum", value=self._new
        )
        [outcome] = run_state(run).inbox.receive(ask, time.monotonic(), run.step + 1)[-1:]
        assert outcome.stage == "scheduled"


@pytest.mark.parametrize("phase", PHASES)
def test_a_change_in_the_middle_of_an_iteration_counts_from_the_next_one_on(
    phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for old, new in itertools.product(COUNTS, COUNTS):
        with monkeypatch.context() as patch:
            steered = Steered(patch, phase, new)
            knobs = {**SIZES, "grad_accum": old}
            training.train(
                PPOOptions(iterations=ITERATIONS, evaluate_every=0, threads=1, knobs=knobs), lambda _: None
            )
        [outcome] = [o for o in run_state(steered.run).inbox.collect_outcomes() if o.id == "n"]
        assert (outcome.stage, outcome.step, outcome.effective) == ("applied", ASKED_IN + 1, new)
        sizes = {1: [8], 2: [4, 4], 3: [3, 3, 2]}
        assert steered.pieces == [sizes[old] * 4] * (ASKED_IN + 1) + [sizes[new] * 4] * (
            ITERATIONS - ASKED_IN - 1
        )
        for found, wanted in zip(steered.state.policy.parameters(), expected(old, new), strict=True):
            assert torch.equal(found, wanted), (old, new)


def test_the_weights_do_not_depend_on_the_number_of_pieces() -> None:
    for old, new in itertools.product(COUNTS, COUNTS):
        for found, wanted in zip(expected(old, new), expected(1, 1), strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def linear(size: int) -> SizeTrial:
    """What a piece takes: 1,000 bytes, and 10 for each unit."""
    return SizeTrial(size, 1000 + 10 * size, 0.0)


def test_two_sizes_of_pieces_are_measured() -> None:
    assert [trial.size for trial in measured(4096, linear)] == [256, 1024]
    assert [trial.size for trial in measured(3, linear)] == [1, 2]
    assert [trial.size for trial in measured(1, linear)] == [1]
    assert [trial.size for trial in measured(4096, lambda size: linear(size) if size < 1000 else None)] == [
        256
    ]
    with pytest.raises(MemoryError, match="256 units of a minibatch do not fit into the memory at once"):
        measured(4096, lambda size: None)


@pytest.mark.parametrize(
    ("share", "room", "pieces"),
    [
        (4096, 1_000_000, 1),
        (4096, 1000 + 10 * 4096, 1),
        (4096, 1000 + 10 * 4095, 2),
        (4096, 1000 + 10 * 1365, 4),
        (8192, 1000 + 10 * 4096, 2),  # a larger minibatch than the one that was measured
        (128, 1000 + 10 * 4096, 1),
        (4096, 100, 4096),  # not even one unit fits: that will be seen
    ],
)
def test_a_minibatch_is_cut_in_as_few_pieces_as_fit(share: int, room: int, pieces: int) -> None:
    assert fewest_pieces(share, measured(4096, linear), room) == pieces


def test_where_a_larger_piece_did_not_fit_pieces_are_as_large_as_the_one_that_did() -> None:
    assert fewest_pieces(4096, [linear(256)], 1 << 40) == 16
