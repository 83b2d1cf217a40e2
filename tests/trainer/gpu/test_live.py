"""Whole runs on a GPU whose knobs are turned to what its memory cannot hold: they are set back, and training
goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import hoptui
from hoptui.protocol.messages import Command, Outcome
from hoptui_trainer.common.options import KnobValues
from hoptui_trainer.lm import train as lm
from hoptui_trainer.lm.job import LMOptions
from hoptui_trainer.lm.state import LMState
from hoptui_trainer.ppo import train as ppo
from hoptui_trainer.ppo.job import PPOOptions
from hoptui_trainer.ppo.report import PPOResult
from hoptui_trainer.ppo.state import PPOState
from tests.run_state import queued_rows, run_state
from tests.trainer.gpu.small import scarce

PPO: KnobValues = {
    "num_envs": 32,
    "rollout_len": 16,
    "minibatch_size": 128,
    "epochs": 2,
    "precision": "fp32",
    "compile": "off",
}
LM: KnobValues = {"batch_tokens": 512, "micro_batch": 4, "seq_len": 32, "precision": "fp32", "compile": "off"}
ITERATIONS = 6


class Watched:
    """A run in this process; `before` maps its steps to what is done with its state right before their
    work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType, work: str) -> None:
        self.before: dict[int, Callable[[Any], None]] = {}
        connect, do = hoptui.connect, vars(module)[work]

        def seen_connect(*args: Any, **kwargs: Any) -> hoptui.Run:
            self.run = connect(*args, **kwargs)
            return self.run

        def seen(state: Any, *args: Any) -> Any:
            self.before.pop(self.run.step, lambda _: None)(state)
            return do(state, *args)

        monkeypatch.setattr(hoptui, "connect", seen_connect)
        monkeypatch.setattr(module, work, seen)

    def set(self, knob: str, value: int) -> None:
        command = Command(
            id=f"{knob} {value}",
            run=self.run.id,
            epoch=run_state(self.run).epoch,
            verb="set",
            knob=knob,
            value=value,
        )
        run_state(self.run).inbox.receive(command, time.monotonic(), self.run.step + 1)

    def outcome(self) -> Outcome:
        """The last that is said of the one command that there was."""
        return list(run_state(self.run).inbox.collect_outcomes())[-1]

    def known(self, name: str) -> list[float]:
        return [row[name] for _, _, row in queued_rows(run_state(self.run)) if name in row]


def train_ppo(device: torch.device) -> PPOResult:
    kind: Any = device.type
    job = PPOOptions(iterations=ITERATIONS, evaluate_every=0, device=kind, knobs=PPO)
    return ppo.train(job, lambda _: None)


@pytest.mark.parametrize("part", ["collect", "estimate"])
def test_environments_for_which_a_rollout_has_no_memory_are_taken_back(
    part: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch, ppo, "learned")

    def ask(_: PPOState) -> None:
        watched.set("num_envs", 64)

    def fill(state: PPOState) -> None:
        assert state.env.num_envs == 64
        monkeypatch.setattr(state.collector, part, scarce(getattr(state.collector, part)))

    watched.before = {1: ask, 2: fill}
    result = train_ppo(device)
    assert result.iterations == ITERATIONS
    outcome = watched.outcome()
    assert (outcome.stage, outcome.effective) == ("reverted", 32)
    assert "memory ran out" in outcome.fields["reason"]
    assert watched.known("env_steps") == [32.0 * 16] * ITERATIONS
    assert all(math.isfinite(loss) for loss in watched.known("value_loss"))


def test_environments_whose_storage_cannot_be_made_are_refused(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch, ppo, "learned")

    def ask(state: PPOState) -> None:
        monkeypatch.setattr(state.collector, "_stored_on", scarce(state.collector._stored_on))
        watched.set("num_envs", 64)

    watched.before = {1: ask}
    assert train_ppo(device).iterations == ITERATIONS
    outcome = watched.outcome()
    assert (outcome.stage, outcome.effective) == ("failed", 32)
    assert watched.known("env_steps") == [32.0 * 16] * ITERATIONS


def test_pieces_that_memory_is_short_for_are_told_as_a_knob(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch, ppo, "learned")

    def fill(state: PPOState) -> None:
        monkeypatch.setattr(state.update.gradient, "add", scarce(state.update.gradient.add))

    watched.before = {2: fill}
    assert train_ppo(device).iterations == ITERATIONS
    assert run_state(watched.run).declarations.knobs["grad_accum"].value == 2
    [reverted] = [note.fields for note in run_state(watched.run).notes if note.code == "knob.reverted"]
    assert (reverted["knob"], reverted["value"]) == ("grad_accum", 2)
    assert reverted["why"]["fields"]["reason"] == ppo.ran_out(1)


def train_lm(device: torch.device, folder: Path, monkeypatch: pytest.MonkeyPatch) -> lm.LMResult:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for number in range(60):
        (corpus / f"{number}.txt").write_text(" ".join(str(number * n % 97) for n in range(200)))
    kind: Any = device.type
    fixed: dict[str, Any] = {"preset": "tiny", "corpus": corpus, "corpus_mb": 0.0, "eval_tokens": 512}
    job = LMOptions(iterations=ITERATIONS, evaluate_every=0, device=kind, **fixed)
    return lm.train(job, LM, lambda _: None)


@pytest.mark.parametrize("when", ["tried_out", "used"])
def test_a_micro_batch_that_cannot_be_held_is_set_back_and_leaves_the_curve_alone(
    when: str, tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch, lm, "update")
    train_lm(device, tmp_path, monkeypatch)
    wanted = watched.known("loss")

    def ask(state: LMState) -> None:
        if when == "tried_out":
            monkeypatch.setattr(state, "forward", scarce(state.forward, lambda tokens: len(tokens) == 16))
        watched.set("micro_batch", 16)

    def fill(state: LMState) -> None:
        if when == "used":
            monkeypatch.setattr(state, "forward", scarce(state.forward))

    watched.before = {1: ask, 2: fill}
    train_lm(device, tmp_path, monkeypatch)
    outcome = watched.outcome()
    stage, left = ("failed", 4) if when == "tried_out" else ("reverted", 8)
    assert (outcome.stage, outcome.effective) == (stage, left)
    assert run_state(watched.run).declarations.knobs["micro_batch"].value == left
    assert watched.known("loss") == pytest.approx(wanted, abs=1e-4)
