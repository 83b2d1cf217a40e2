"""Batches that are too large for the memory there is: computed in smaller pieces, or refused before anything
is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.vision import images as rooms
from hoptui_trainer.vision.config import PRESETS, VisionConfig
from hoptui_trainer.vision.images import CHUNK, Images
from hoptui_trainer.vision.loader import Folder
from hoptui_trainer.vision.state import VisionState
from tests.golden import Golden
from tests.run_state import run_state
from tests.trainer.vision.conftest import SteeredVision, assert_equal


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_out_of_memory_computes_the_same_batch_in_smaller_pieces(
    tmp_path: Path, steered_vision: SteeredVision, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    steered_vision.train(tmp_path / "plenty")

    def shrink() -> None:
        state = steered_vision.state
        losses, backward = state._losses, torch.autograd.backward
        size = 0

        def forward(images: Tensor, labels: Tensor) -> Tensor:
            nonlocal size
            size = len(images)
            if where == "forward" and size > 8:
                raise torch.OutOfMemoryError("made up")
            found: Tensor = losses(images, labels)
            return found

        def back(loss: Tensor) -> None:
            backward(loss)
            if where == "backward" and size > 8:
                raise torch.OutOfMemoryError("made up")

        state._losses = forward
        monkeypatch.setattr(torch.autograd, "backward", back)

    steered_vision.after = {1: shrink}
    result = steered_vision.train(tmp_path / "short")
    assert (result.iterations, result.micro_batch) == (4, 8)
    assert_equal(tmp_path / "plenty", tmp_path / "short", tolerance=2e-5)
    notes = run_state(steered_vision.run).notes
    reverted = [note.fields for note in notes if note.code == "knob.reverted"]
    assert [(fields["knob"], fields["before"], fields["value"]) for fields in reverted] == [
        ("micro_batch", 32, 16),
        ("micro_batch", 16, 8),
    ]
    assert all("out of memory" in fields["why"]["fields"]["reason"] for fields in reverted)
    assert run_state(steered_vision.run).declarations.knobs["micro_batch"].value == 8
    assert run_state(steered_vision.run).declarations.knobs["grad_accum"].value == 4


def test_a_batch_that_memory_is_too_short_for_is_taken_in_pieces(
    tmp_path: Path, steered_vision: SteeredVision, monkeypatch: pytest.MonkeyPatch
) -> None:
    larger = steered_vision.set(batch_size=64, micro_batch=64)
    steered_vision.after = {1: larger}
    steered_vision.train(tmp_path / "plenty")
    take = rooms._ResidentFeed.take

    def short(feed: rooms._ResidentFeed, positions: range) -> Images:
        if len(positions) > 32:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory (a test)")
        return take(feed, positions)

    monkeypatch.setattr(rooms._ResidentFeed, "take", short)
    result = steered_vision.train(tmp_path / "short")
    assert [row["samples"] for row in steered_vision.rows()] == [32, 32, 64, 64]
    assert result.micro_batch == 32
    assert_equal(tmp_path / "plenty", tmp_path / "short", tolerance=2e-5)


def test_a_batch_of_files_that_memory_has_no_room_for_is_refused(
    image_folder: Path, steered_vision: SteeredVision, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    # Nothing is read ahead, but for the chunk that is handed over.
    monkeypatch.setattr("hoptui_trainer.vision.state.limit_bytes", lambda *_: (50 + CHUNK) * 3 * 8 * 8)
    steered_vision.after = {
        0: steered_vision.set(num_workers=1),
        1: steered_vision.set(batch_size=83),
        2: steered_vision.set(grad_clip=2.0),
    }
    steered_vision.train(data=str(image_folder))
    outcomes = steered_vision.outcomes()
    assert (outcomes["num_workers"].stage, outcomes["num_workers"].effective) == ("failed", 0)
    assert (outcomes["batch_size"].stage, outcomes["batch_size"].effective) == ("failed", 32)
    golden("".join(f"{outcomes[knob].fields['error']}\n" for knob in ("num_workers", "batch_size")))
    assert outcomes["grad_clip"].stage == "applied"
    assert [row["samples"] for row in steered_vision.rows()] == [32] * 4


class Scarce(RankGroup):
    """Rank 0 of two machines, of which the other has little memory."""

    def gather(self, value: object) -> list[Any]:
        return [value, 50 * 3 * 8 * 8] if isinstance(value, int) else [value]


def test_all_ranks_refuse_a_batch_that_one_machine_has_no_room_for(image_folder: Path) -> None:
    """One that went on would wait for ever for the one that refuses."""
    config = VisionConfig(**{**PRESETS["tiny"], "batch_size": 101, "num_workers": 0})
    with pytest.raises(ValueError, match="batch_size = 101: its images take"):
        VisionState(config, 0, torch.device("cpu"), Scarce(0, 2, 0, 1), Folder(image_folder, 8))
