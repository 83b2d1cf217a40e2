"""How well the model predicts text that it never saw, in bits a byte: the same scale for every tokenizer."""

from __future__ import annotations

import lzma
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from hoptui_trainer.common.modes import Precision
from hoptui_trainer.common.precision import autocast
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.lm.loss import Counted, head_nats, nats
from hoptui_trainer.lm.sequence_sampler import widened

NO_TARGET = -1


class HeldOut:
    """The beginning of the held-out stream in consecutive windows; each token but the first is predicted
    once.

    `inputs` and `targets` (windows, length) int64; where the last window is too long the target is −1.
    `tokens` and `bytes` are how long the predicted text is; `bytes` is None if that is not known.

    Args:
        lengths: the bytes of each token (vocabulary,), or those of a token on average; None: unknown.
    """

    def __init__(
        self,
        tokens: Tensor,
        lengths: Tensor | float | None,
        length: int,
        limit: int,
        device: torch.device,
    ) -> None:
        stream = widened(tokens[: limit + 1])
        inputs, targets = stream[:-1], stream[1:]
        missing = -len(targets) % length
        self.tokens = len(targets)
        self.bytes = _text_bytes(targets, lengths)
        self.inputs = functional.pad(inputs, (0, missing)).view(-1, length).to(device)
        self.targets = functional.pad(targets, (0, missing), value=NO_TARGET).view(-1, length).to(device)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def length(self) -> int:
        """Tokens of a window."""
        return self.inputs.shape[1]

    def bits_per_byte(self, nats_per_token: float) -> float | None:
        """The same cross-entropy over the bytes of the text; None if their number is not known."""
        return nats_per_token * self.tokens / math.log(2) / self.bytes if self.bytes else None


def _text_bytes(tokens: Tensor, lengths: Tensor | float | None) -> int | None:
    """The bytes of text that tokens (n,) stand for."""
    if lengths is None:
        return None
    if isinstance(lengths, Tensor):
        return int(lengths[tokens].sum())
    return round(lengths * len(tokens))


@torch.no_grad()
def nats_per_token(
    held_out: HeldOut,
    forward: Callable[[Tensor], Tensor],
    head: Tensor,
    batch: int,
    ranks: RankGroup,
    precision: Precision,
    count: Counted = nats,
    *,
    compiles: bool = False,
) -> float:
    """The mean cross-entropy over the held-out tokens, in nats as the loss of training has it, each rank
    computing its part. Waits for the device.

    Batches are filled up to `batch` windows, so that a compiled `forward` sees one shape; `compiles` where it
    is a new one.
    """
    device = held_out.inputs.device

    def nats_of(part: Tensor) -> Tensor:
        inputs, targets = held_out.inputs[part], held_out.targets[part]
        if missing := batch - len(part):
            # Of all windows and not of the part, which is empty where there are fewer windows than ranks.
            filler, nothing = held_out.inputs[:1], torch.full_like(held_out.targets[:1], NO_TARGET)
            inputs = torch.cat((inputs, filler.expand(missing, -1)))
            targets = torch.cat((targets, nothing.expand(missing, -1)))
        with autocast(precision, device):
            hidden = forward(inputs)
        return head_nats(hidden, head, targets, count).double()

    windows = torch.arange(ranks.rank, len(held_out), ranks.world, device=device)
    first, *others = torch.split(windows, batch)
    # As many on all ranks, which may meet in a pass.
    most = -(-len(held_out) // ranks.world)
    others += [windows[:0]] * (-(-most // batch) - 1 - len(others))
    with ranks.turn(compiles=compiles):
        total = nats_of(first)
    for part in others:
        total += nats_of(part)
    ranks.add(total)
    return float(total) / held_out.tokens


def lzma_bits_per_byte(text: bytes) -> float:
    """What a general-purpose compressor needs for the same text, without having learned from any other."""
    return 8 * len(lzma.compress(text)) / len(text)
