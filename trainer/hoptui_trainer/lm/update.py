"""One optimizer step: the gradient of a batch in pieces, summed over ranks, clipped, applied."""

from __future__ import annotations

from torch import Tensor

from hoptui_trainer.common.optimizer import take_step
from hoptui_trainer.common.phases import PhaseClock
from hoptui_trainer.lm.state import LMState


def update(state: LMState, lr: float, clock: PhaseClock) -> dict[str, Tensor]:
    """Train on the next batch of the stream. Returns 0-d tensors: the mean loss in nats a token, the
    gradient's norm.

    Nothing in here waits for a GPU. The phase `data` is the time that a GPU waited for tokens from disk.

    Raises:
        UsageError: tokens cannot be read from disk.
        torch.OutOfMemoryError: not even single sequences fit.
        TornStepError: memory ran out in the middle of the optimizer's step.
    """
    config, ranks = state.config, state.ranks
    share = config.share(ranks.rank, ranks.world)

    begin, end = (state.position + place * config.seq_len for place in (share.start, share.stop))
    if state.streamed:
        with clock.queued("data"):
            state.sampler.expect(range(begin, end), config.step_tokens)

    def piece(part: slice) -> Tensor:
        state.gradient.before_piece(last=part.stop == len(share))
        start = begin + part.start * config.seq_len
        inputs = state.sampler.take(start, part.stop - part.start, config.seq_len)
        return state.add_gradient(inputs, config.step_tokens)

    with clock.queued("gradient"):
        loss = state.pieces.compute(len(share), piece, state.gradient.clear)
    with clock.queued("exchange"):
        state.gradient.exchange()
        ranks.add(loss)
    with clock.queued("step"):
        norm = take_step(state.optimizer, state.scaler, state.gradient, lr=lr, longest=config.grad_clip)
    state.position += config.step_tokens
    return {"loss": loss / config.step_tokens, "grad_norm": norm}
