"""Checkpoints go between devices: a run of a GPU goes on, on a GPU as if nothing had happened, and on a CPU,
and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hoptui_trainer.common.checkpoint import best_path, checkpoint_path, read_checkpoint
from hoptui_trainer.lm.job import LMOptions
from hoptui_trainer.lm.train import train as train_lm
from hoptui_trainer.ppo.job import PPOOptions
from hoptui_trainer.ppo.train import train as train_ppo
from hoptui_trainer.vision.job import VisionOptions
from hoptui_trainer.vision.train import train as train_vision

EXACT = {"precision": "fp32", "compile": "off"}
KNOBS: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 16, "rollout_len": 16, "minibatch_size": 64, "epochs": 2, **EXACT},
    "lm": {"batch_tokens": 512, "micro_batch": 8, "seq_len": 32, **EXACT},
    "vision": {"batch_size": 32, "micro_batch": 32, **EXACT},
}
REPEATED = 1e-5
"""How far weights may be apart where the same is computed again: some of CUDA's kernels add in no fixed
order."""
OTHER_DEVICE = 1e-3
"""How far they may be apart where another device computed some of the steps."""


Train = Callable[..., Path]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Trains up to an iteration, from the beginning or from a checkpoint; returns the folder of the new
    checkpoints."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(60):
        (corpus / f"{number}.txt").write_text(" ".join(str(number * n % 97) for n in range(200)))

    def train(
        workload: str,
        name: str,
        device: torch.device,
        iterations: int,
        resume: Path | None,
        evaluate_every: int = 0,
    ) -> Path:
        options: dict[str, Any] = {
            "iterations": iterations,
            "evaluate_every": evaluate_every,
            "device": device.type,
            "checkpoint_dir": tmp_path / name,
            "checkpoint_every": 3,
            "resume": resume,
        }
        knobs = {} if resume else KNOBS[workload]
        if workload == "ppo":
            train_ppo(PPOOptions(**options, knobs=knobs), ignore)
        elif workload == "lm":
            fixed: dict[str, Any] = {} if resume else {"preset": "tiny", "corpus_mb": 0.0, "eval_tokens": 512}
            train_lm(LMOptions(corpus=corpus, **options, **fixed), knobs, ignore)
        else:
            train_vision(VisionOptions(**options, preset=None if resume else "tiny"), knobs, ignore)
        return tmp_path / name

    return train


def ignore(_: str) -> None:
    pass


def tensors(state: Any, path: str = "") -> dict[str, Tensor]:
    """All floating-point tensors of a nested state, by path."""
    if isinstance(state, Tensor):
        return {path: state} if state.is_floating_point() else {}
    children = (
        state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    )
    return {name: t for key, child in children for name, t in tensors(child, f"{path}/{key}").items()}


def assert_near(first: Path, second: Path, workload: str, tolerance: float) -> None:
    one, other = (read_checkpoint(folder, workload) for folder in (first, second))
    assert one["iteration"] == other["iteration"]
    found, wanted = tensors(other), tensors(one)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("workload", KNOBS)
def test_on_the_gpu_a_run_goes_on_as_if_nothing_had_happened(
    workload: str, train: Train, device: torch.device
) -> None:
    whole = train(workload, "whole", device, 6, None)
    rest = train(workload, "rest", device, 6, checkpoint_path(whole, workload, 3))
    assert_near(whole, rest, workload, REPEATED)


@pytest.mark.parametrize("workload", KNOBS)
def test_a_run_moves_to_the_cpu_and_back(workload: str, train: Train, device: torch.device) -> None:
    first = train(workload, "first", device, 2, None)
    stayed = train(workload, "stayed", device, 4, first)
    moved = train(workload, "moved", torch.device("cpu"), 4, first)
    assert_near(stayed, moved, workload, OTHER_DEVICE)
    saved = read_checkpoint(train(workload, "back", device, 5, moved), workload)
    assert saved["iteration"] == 5
    assert all(bool(torch.isfinite(value).all()) for value in tensors(saved).values())


@pytest.mark.parametrize("workload", KNOBS)
def test_the_best_weights_are_those_of_their_iteration(
    workload: str, train: Train, device: torch.device
) -> None:
    folder = train(workload, "judged", device, 6, None, 2)
    last, best = read_checkpoint(folder, workload), read_checkpoint(best_path(folder, workload), workload)
    at = best["iteration"]
    assert at == last["evaluations"]["best_iteration"] in (2, 4, 6)
    assert best["evaluations"]["best"] == last["evaluations"]["best"]
    plain = read_checkpoint(train(workload, "plain", device, at, None), workload)
    found, wanted = tensors(best), tensors(plain)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=REPEATED, atol=REPEATED, msg=name)
    again = train(workload, "again", device, at + 1, best_path(folder, workload))
    assert read_checkpoint(again, workload)["iteration"] == at + 1
