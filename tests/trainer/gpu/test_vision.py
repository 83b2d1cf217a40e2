"""The vision transformer on a GPU: what changes its speed or its memory does not change what it learns."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch

from hoptui_trainer.common.attention import candidates
from hoptui_trainer.vision.images import CHUNK, Loading
from hoptui_trainer.vision.loader import Folder
from hoptui_trainer.vision.sampler import ImageSampler
from tests.trainer.gpu.small import assert_near, vision_state
from tests.trainer.gpu.supervised import CURVE, WORKLOADS


@pytest.fixture
def numbered(tmp_path: Path) -> Folder:
    """200 images of 8 × 8 pixels, each of which is its number."""
    for number in range(200):
        path = tmp_path / "ab"[number % 2] / f"{number:03}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, np.full((8, 8, 3), number, np.uint8))
    return Folder(tmp_path, 8)


def test_workers_are_exchanged_while_the_gpu_is_in_use_and_nothing_is_lost(
    numbered: Folder, device: torch.device
) -> None:
    busy = torch.randn(256, 256, device=device)
    before = set(multiprocessing.active_children())
    feed = numbered.feed(0, 0, 1, Loading(num_workers=2, prefetch_factor=2, pin_memory=True), device)
    order, position = ImageSampler(0, numbered.count, "cpu"), 0
    try:
        for turn in range(12):
            if turn == 3:
                feed.change(Loading(num_workers=1, prefetch_factor=4, pin_memory=False))
            if turn == 7:
                feed.change(Loading(num_workers=3, prefetch_factor=2, pin_memory=True))
            busy = (busy @ busy).tanh()
            positions = range(position, position + CHUNK + 5)
            batch = feed.take(positions)
            assert batch.images.device == device
            files = [numbered._train.files.path(i) for i in order.images(positions).tolist()]
            assert batch.images[:, 0, 0, 0].tolist() == [int(path.stem) for path in files], turn
            assert batch.labels.tolist() == [int(path.stem) % 2 for path in files], turn
            position = positions.stop
    finally:
        feed.close()
    assert set(multiprocessing.active_children()) <= before
    assert bool(torch.isfinite(busy).all())


def test_checkpointing_of_activations_changes_nothing_and_takes_less_memory(device: torch.device) -> None:
    peaks, curves = [], []
    for checkpointing in (False, True):
        state = vision_state(
            device, checkpointing=checkpointing, layers=8, image_size=64, batch_size=256, micro_batch=256
        )
        WORKLOADS["vision"].losses(state, 1)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        curves.append(WORKLOADS["vision"].losses(state, 2))
        peaks.append(torch.cuda.max_memory_allocated(device) - before)
        del state
    assert_near(curves[1], curves[0], CURVE)
    assert peaks[1] < 0.6 * peaks[0]


def test_the_fastest_attention_is_chosen_by_measurement(device: torch.device) -> None:
    state = vision_state(device, precision="bf16", image_size=64)
    [note] = [note for note in state.notes if note.startswith("attention: ")]
    assert note.split()[1] in candidates(), note
    assert note.count(" ms") >= 2


@pytest.mark.timeout(180)
def test_clips_are_learned_compiled_and_checkpointed_as_they_are_plainly(device: torch.device) -> None:
    clips = {"frames": 8, "tubelet": 2, "batch_size": 16, "micro_batch": 8}
    plain = WORKLOADS["vision"].losses(vision_state(device, **clips))
    fast = vision_state(device, **clips, precision="bf16", compile="default", checkpointing=True)
    assert_near(WORKLOADS["vision"].losses(fast), plain, WORKLOADS["vision"].half)
