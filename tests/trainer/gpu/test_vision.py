"""The vision transformer on a GPU: what changes its speed or its memory does not change what it learns."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import hoptui
from tests.trainer.gpu.small import assert_near, scarce, vision_state, weights
from trainer.common.metrics import measured
from trainer.common.phases import phase_clock
from trainer.vision.images import Loading
from trainer.vision.loader import CHUNK, Folder
from trainer.vision.order import Order
from trainer.vision.state import TrainingState
from trainer.vision.update import update

CURVE = 1e-4
"""Nats an image that two losses of a curve may be apart in fp32 where sums are made in another order."""
HALF = 0.05
"""The same in bf16, whose numbers have 8 bits."""


def losses(state: TrainingState, times: int = 4) -> Tensor:
    """The losses (times,) of as many steps."""
    clock = phase_clock(hoptui.connect("gpu"), state.device)
    return torch.stack([update(state, 1e-3, clock)["loss"] for _ in range(times)]).cpu()


def test_micro_batches_leave_the_curve_alone(device: torch.device) -> None:
    whole, cut = vision_state(device), vision_state(device)
    found = []
    for micro_batch in (32, 9, 4):
        cut.config.micro_batch = micro_batch
        cut.fit()
        found.append(losses(cut, 2))
    assert_near(torch.cat(found), losses(whole, 6), CURVE)
    assert_near(weights(cut.model), weights(whole.model), CURVE)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", CURVE), ("bf16", HALF)])
def test_compiled_it_learns_the_same(precision: str, tolerance: float, device: torch.device) -> None:
    exact = losses(vision_state(device))
    assert_near(losses(vision_state(device, precision=precision, compile="default")), exact, tolerance)


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_shorter_numbers_learn_nearly_the_same(precision: str, device: torch.device) -> None:
    assert_near(losses(vision_state(device, precision=precision)), losses(vision_state(device)), HALF)


def test_a_steady_step_waits_for_nothing(device: torch.device) -> None:
    state = vision_state(device, precision="bf16", micro_batch=16)
    run = hoptui.connect("gpu")
    clock = phase_clock(run, device)
    for _ in range(2):
        update(state, 1e-3, clock)
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(2):
        metrics = update(state, 1e-3, clock)
        run.log(measured(metrics, device))
        clock.end_iteration()
    torch.cuda.set_sync_debug_mode("default")
    assert float(metrics["loss"]) > 0


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_batch_that_does_not_fit_is_computed_in_smaller_pieces(
    where: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough, short = vision_state(device), vision_state(device)
    wanted = losses(enough, 6)
    found = [losses(short, 2)]
    held = weights(short.model)
    seen: list[tuple[int, int]] = []

    def told(before: int, now: int) -> None:
        seen.append((before, now))
        assert torch.equal(weights(short.model), held)

    short.on_smaller = told
    if where == "forward":
        short._losses = scarce(short._losses)
    else:
        monkeypatch.setattr(torch.autograd, "backward", scarce(torch.autograd.backward))
    found.append(losses(short, 4))
    assert seen == [(32, 16)]
    assert (short.config.micro_batch, short.config.grad_accum) == (16, 2)
    assert_near(torch.cat(found), wanted, CURVE)


def test_a_step_of_the_optimizer_that_does_not_fit_is_an_error_and_changes_no_weight(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = vision_state(device)
    held = weights(state.model)
    monkeypatch.setattr(state.optimizer, "step", scarce(state.optimizer.step))
    with pytest.raises(torch.OutOfMemoryError):
        losses(state, 1)
    assert torch.equal(weights(state.model), held)


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
    order, position = Order(0, numbered.count, "cpu"), 0
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
