"""The tokens of a step, as a function of the seed and of a position in an endless stream.

The stream repeats the corpus. Each pass cuts it into blocks at other places and shuffles them. A step takes
the next tokens of the stream, for any number of ranks and micro-batches and any sequence length. So a
change of these skips nothing and repeats nothing, and a checkpoint holds one number.

The order is computed from the seed, a few thousand blocks at a time. Its memory does not grow with the
corpus. It is the same for tokens on the device (`SequenceSampler`) and on disk (`streamed_sampler.py`).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from hoptui_trainer.common.counter_rng import bits, key, permuted

CHUNK = 4096
"""Blocks whose places are computed at once."""
KEPT = 4
"""Chunks that are kept: the ends of a step may lie in two, those of an epoch as well."""


def widened(tokens: Tensor) -> Tensor:
    """Tokens as they are stored, 16 or 32 bits without a sign in int16 or int32, to int64 (any shape)."""
    return tokens.long() & (0xFFFF if tokens.dtype == torch.int16 else 0xFFFF_FFFF)


class Sampler(Protocol):
    """Gives the sequences of a stream, from wherever its tokens are."""

    block: int

    def expect(self, share: range, stride: int) -> None:
        """Announce the tokens of the stream that this rank takes in the next step; the following step takes
        those `stride` tokens later. Waits until the first are there."""

    def take(self, position: int, sequences: int, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (sequences, length) int64 at `position` of the stream, counted in tokens from
        0."""
        ...


class BlockOrder:
    """Where the blocks of an endless stream begin in a corpus of `count` ≥ 2 tokens.

    `block` tokens stay together: the length of a sequence when the run begins, and for all of it. Every token
    is the input of one window an epoch, but for those of a last block that would be shorter than the others.
    """

    def __init__(self, count: int, seed: int, block: int) -> None:
        self.count = count
        self.block = min(block, count)
        self.blocks = count // self.block
        self._order_key, self._start_key = key(seed, "order of blocks"), key(seed, "start of blocks")
        self._chunks: dict[tuple[int, int], Tensor] = {}

    @property
    def epoch_tokens(self) -> int:
        """Tokens of one pass over the corpus."""
        return self.blocks * self.block

    def starts(self, first: int, last: int) -> Tensor:
        """The places (last − first,) int64 in 0 … count − 1 of the blocks `first` to `last` − 1 of the
        stream, on the CPU."""
        found = []
        while first < last:
            epoch, block = divmod(first, self.blocks)
            chunk, begin = divmod(block, CHUNK)
            places = self._chunk(epoch, chunk)
            part = places[begin : begin + last - first]
            found.append(part)
            first += len(part)
        return found[0] if len(found) == 1 else torch.cat(found)

    def _chunk(self, epoch: int, number: int) -> Tensor:
        """The places of the blocks of one chunk of an epoch."""
        name = epoch, number
        if name not in self._chunks:
            start = int(bits(self._start_key, torch.zeros((), dtype=torch.int64), epoch)) % self.count
            index = torch.arange(number * CHUNK, min((number + 1) * CHUNK, self.blocks))
            order = permuted(self._order_key, self.blocks, epoch, index)
            while len(self._chunks) >= KEPT:
                del self._chunks[next(iter(self._chunks))]
            self._chunks[name] = (start + order * self.block) % self.count
        return self._chunks[name]


class SequenceSampler:
    """An endless stream of the tokens (n,) int16 or int32, n ≥ 2, on their device.

    The target of a token is always the one that follows it in the corpus, also at the end of a block.
    """

    def __init__(self, tokens: Tensor, seed: int, block: int) -> None:
        self._tokens = tokens
        self._order = BlockOrder(len(tokens), seed, block)
        self.block, self.epoch_tokens = self._order.block, self._order.epoch_tokens

    def expect(self, share: range, stride: int) -> None:
        """The tokens are there."""

    def take(self, position: int, sequences: int, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (sequences, length) int64 at `position` of the stream, counted in tokens from 0.

        Reads no value from the device.
        """
        count, block, device = sequences * length, self.block, self._tokens.device
        first, last = position // block, (position + count - 1) // block
        table = self._order.starts(first, last + 1)
        if device.type == "cuda":
            table = table.pin_memory().to(device, non_blocking=True)
        offset = torch.arange(count, device=device) + (position - first * block)
        place = (table[offset // block] + offset % block) % len(self._tokens)
        following = (place + 1) % len(self._tokens)
        shape = (sequences, length)
        return widened(self._tokens[place]).view(shape), widened(self._tokens[following]).view(shape)
