"""One optimizer step: the gradient of a batch in pieces, summed over ranks, clipped, applied."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.common.phases import PhaseClock
from trainer.common.schedule import scale
from trainer.lm.config import LMConfig
from trainer.lm.state import TrainingState


def learning_rate(config: LMConfig, step: int, total: int) -> float:
    """The learning rate of step `step` (from 0) of `total`."""
    return config.lr * scale(
        config.schedule, step, total, warmup=config.warmup, cooldown=config.cooldown, final=config.final_lr
    )


def update(state: TrainingState, lr: float, clock: PhaseClock) -> dict[str, Tensor]:
    """Train on the next batch of the stream. Returns 0-d tensors: the mean loss in nats a token, the gradient's norm.

    Nothing in here waits for a GPU.

    Raises:
        torch.OutOfMemoryError: not even single sequences fit.
    """
    config, ranks = state.config, state.ranks
    share = config.share(ranks.rank, ranks.world)
    start = state.position + share.start * config.seq_len
    inputs, targets = state.windows.take(start, len(share), config.seq_len)

    def piece(part: slice) -> Tensor:
        loss = state.nats(inputs[part], targets[part])
        torch.autograd.backward(state.scaler.scale(loss / config.step_tokens))
        return loss.detach()

    with clock.queued("gradient"):
        loss = state.pieces.compute(len(share), piece, state.gradient.clear)
    with clock.queued("exchange"):
        ranks.add(state.gradient.flat)
        ranks.add(loss)
    with clock.queued("step"):
        state.scaler.unscale_(state.optimizer)
        norm = state.gradient.clip(config.grad_clip)
        state.optimizer.param_groups[0]["lr"].fill_(lr)
        state.scaler.step(state.optimizer)
        state.scaler.update()
    state.position += config.step_tokens
    return {"loss": loss / config.step_tokens, "grad_norm": norm}
