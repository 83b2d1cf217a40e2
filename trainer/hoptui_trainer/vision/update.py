"""One optimizer step: the gradient of a batch in pieces, summed over ranks, clipped, applied."""

from __future__ import annotations

import torch
from torch import Tensor

from hoptui_trainer.common.optimizer import take_step
from hoptui_trainer.common.phases import PhaseClock
from hoptui_trainer.vision.sampler import share
from hoptui_trainer.vision.state import VisionState


def update(state: VisionState, lr: float, clock: PhaseClock) -> dict[str, Tensor]:
    """Train on the next batch of the stream. Returns 0-d tensors: means over the batch, and the gradient's
    norm.

    On a GPU nothing in here waits for it; the phase `data` is then the time that it waited for images.

    Raises:
        UsageError: an image cannot be read.
        torch.OutOfMemoryError: not even single images fit.
        TornStepError: memory ran out in the middle of the optimizer's step.
    """
    config, ranks = state.config, state.ranks
    mine = share(state.position, config.batch_size, ranks.rank, ranks.world)
    with clock.queued("data"):
        state.feed.begin(mine)

    def piece(part: slice) -> Tensor:
        places = mine[part]
        positions = torch.arange(places.start, places.stop, places.step, device=state.device)
        batch = state.feed.take(places)
        return state.add_gradient((batch.images, batch.labels, positions), config.batch_size)

    with clock.queued("gradient"):
        found = state.pieces.compute(len(mine), piece, state.gradient.clear)
    with clock.queued("step"):
        state.gradient.exchange()
        ranks.add(found)
        norm = take_step(state.optimizer, state.scaler, state.gradient, lr=lr, longest=config.grad_clip)
    state.position += config.batch_size
    loss, right = found / config.batch_size
    return {"loss": loss, "train_accuracy": right, "grad_norm": norm}


def evaluate(state: VisionState) -> dict[str, float]:
    """The held-out images: `val_loss`, their mean cross-entropy in nats, and `accuracy`, the part that is
    classified right. Waits for the device."""
    ranks, device = state.ranks, state.device
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    size = state.config.micro_batch
    for part in state.source.held_out(ranks.rank, ranks.world, size, state.loading, device):
        sums[:2] += state.judge(part)
        sums[2] += len(part)
    ranks.add(sums)
    loss, right, count = sums.tolist()
    return {"val_loss": loss / count, "accuracy": right / count}
