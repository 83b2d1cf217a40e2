"""The tokens of a step, as a function of the seed and of a position in an endless stream.

The stream repeats the corpus. Each pass cuts it into blocks at other places and shuffles them. A step takes
the next tokens of the stream, for any number of ranks and micro-batches and any sequence length. So a
change of these skips nothing and repeats nothing, and a checkpoint holds one number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hoptui_trainer.common.counter_rng import bits, key, shuffled


def widened(tokens: Tensor) -> Tensor:
    """16-bit tokens as they are stored to int64 (any shape)."""
    return tokens.long() & 0xFFFF


class SequenceSampler:
    """An endless stream of the tokens (n,) int16, n ≥ 2, on their device.

    `block` tokens stay together: the length of a sequence when the run begins, and for all of it. Every token
    is the input of one window an epoch, but for those of a last block that would be shorter than the others;
    its target is always the token that follows it in the corpus, also at the end of a block.
    """

    def __init__(self, tokens: Tensor, seed: int, block: int) -> None:
        self._tokens = tokens
        self.block = min(block, len(tokens))
        self._blocks = len(tokens) // self.block
        self._order_key, self._start_key = key(seed, "order of blocks"), key(seed, "start of blocks")
        self._starts: dict[int, Tensor] = {}

    @property
    def epoch_tokens(self) -> int:
        """Tokens of one pass over the corpus."""
        return self._blocks * self.block

    def take(self, position: int, sequences: int, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (sequences, length) int64 at `position` of the stream, counted in tokens from 0.

        Reads no value from the device.
        """
        count = sequences * length
        first, last = position // self.epoch_tokens, (position + count - 1) // self.epoch_tokens
        table = torch.cat([self._starts_of(epoch) for epoch in range(first, last + 1)])
        self._starts = {epoch: starts for epoch, starts in self._starts.items() if epoch >= last}
        offset = torch.arange(count, device=self._tokens.device) + (position - first * self.epoch_tokens)
        place = (table[offset // self.block] + offset % self.block) % len(self._tokens)
        following = (place + 1) % len(self._tokens)
        shape = (sequences, length)
        return widened(self._tokens[place]).view(shape), widened(self._tokens[following]).view(shape)

    def _starts_of(self, epoch: int) -> Tensor:
        """Where each block of an epoch begins in the corpus, in the order in which they come."""
        if epoch not in self._starts:
            start = int(bits(self._start_key, torch.zeros((), dtype=torch.int64), epoch)) % len(self._tokens)
            order = shuffled(self._order_key, self._blocks, epoch, self._tokens.device)
            self._starts[epoch] = start + order * self.block
        return self._starts[epoch]
