from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hoptui
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.ranks import ALONE, RankGroup
from hoptui_trainer.common.setup import check_alike, check_resumed, explained, preparing
from hoptui_trainer.common.signals import StopOnSignal
from tests.run_state import run_state


def test_a_set_up_that_fails_names_the_option_to_blame() -> None:
    with pytest.raises(UsageError, match=r"^--micro-batch: not one fits"), explained(None, "--micro-batch"):
        raise MemoryError("not one fits")
    foreign = pytest.raises(UsageError, match=r"^--resume old\.ckpt: it does not fit this trainer")
    with foreign, explained(Path("old.ckpt"), "--micro-batch"):
        raise KeyError("weights")
    with pytest.raises(KeyError), explained(None, "--micro-batch"):
        raise KeyError("a fault of ours")
    with (
        pytest.raises(UsageError, match=r"^--preset, --micro-batch: too large"),
        explained(None, "--micro-batch"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_run_that_is_prepared_has_its_gpu_and_a_phase_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoptui_trainer.common.setup.gpu_uuid", lambda device: f"GPU-{device}")
    run = hoptui.connect("prepared")
    with StopOnSignal(run) as signals, preparing(run, signals, torch.device("cuda:3")):
        assert (run_state(run).declarations.gpu_uuids, run_state(run).phases.current) == (
            ("GPU-cuda:3",),
            "setup",
        )
    assert run_state(run).phases.current == ""


class Two(RankGroup):
    """Rank 0 of two, of which the other one has begun with `other`."""

    other: Any

    def gather(self, value: object) -> list[Any]:
        return [value, self.other]


def two(other: Any) -> RankGroup:
    ranks = Two(0, 2, 0, 2)
    object.__setattr__(ranks, "other", other)
    return ranks


def test_ranks_that_begin_with_different_things_are_refused() -> None:
    check_alike(ALONE, "a", "--corpus", "texts")
    check_alike(two("a"), "a", "--corpus", "texts")
    with pytest.raises(UsageError, match=r"^--corpus: rank 1 has texts other than rank 0's"):
        check_alike(two("b"), "a", "--corpus", "texts")


def test_all_ranks_go_on_from_one_iteration_of_one_run() -> None:
    saved = {"run": {"run": "abc", "epoch": 2}, "iteration": 40}
    check_resumed(two(("abc", 40)), Path("ck"), saved)
    check_resumed(two(None), Path("ck"), None)  # a new run on both
    for other, own in ((("abc", 20), saved), (("xyz", 40), saved), (None, saved), (("abc", 40), None)):
        with pytest.raises(UsageError, match=r"^--resume ck: rank 1 has a checkpoint other than rank 0's"):
            check_resumed(two(other), Path("ck"), own)
