"""Sequences of tokens that stay on disk: threads read ahead what the next steps take, into pinned memory.

What is read ahead depends on the steps to come, the tokens of a step never do: they are those that
`SequenceSampler` gives for the same seed and position.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from hoptui_trainer.lm.sequence_sampler import BlockOrder, widened
from hoptui_trainer.lm.token_shards import STORED, TokenShards

UNIT = 1 << 16
"""Tokens of the stream that are read together; fewer where an epoch has fewer."""
AHEAD = 64
"""Units that are read, or being read: the memory is at most so many × 2 × 65,536 tokens, 17 MB of 16 bits."""
STEPS = 4
"""Steps after the present one that are read ahead."""
THREADS = 4


class StreamedSampler:
    """An endless stream of the tokens in files, for a device."""

    def __init__(self, shards: TokenShards, seed: int, block: int, device: torch.device) -> None:
        self._shards, self._device = shards, device
        self._order = BlockOrder(len(shards), seed, block)
        self.block, self.epoch_tokens = self._order.block, self._order.epoch_tokens
        self._stored = STORED[shards.dtype]
        self._unit = min(UNIT, self.epoch_tokens)
        self._units: dict[int, Future[Tensor]] = {}
        self._newest = -1
        self._share, self._stride = range(0), 0
        # The threads end with this object: an executor that nobody holds lets them go.
        self._readers = ThreadPoolExecutor(THREADS, thread_name_prefix="tokens")

    def expect(self, share: range, stride: int) -> None:
        """Read ahead what this rank takes in the next step and in those after it; waits for that of the next
        one, as far as it is read ahead."""
        self._share, self._stride = share, stride
        if share:
            wanted = self._read_from(share.start // self._unit)
            last = (share.stop - 1) // self._unit
            for unit in wanted:
                if unit <= last:
                    self._units[unit].result()

    def take(self, position: int, sequences: int, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (sequences, length) int64 at `position` of the stream, counted in tokens from 0.

        Raises:
            UsageError: a file cannot be read, or holds a token out of the vocabulary.
        """
        at, end = position, position + sequences * length
        raw = torch.empty(2, end - at, dtype=self._stored, device=self._device)
        while at < end:
            unit, begin = divmod(at, self._unit)
            if unit != self._newest:
                self._read_from(unit)
            buffer, count = self._units[unit].result(), min(self._unit - begin, end - at)
            to = slice(at - position, at - position + count)
            for row in range(2):  # each of them contiguous, so that the copy waits for nothing
                raw[row, to].copy_(buffer[row, begin : begin + count], non_blocking=True)
            at += count
        inputs, targets = widened(raw).view(2, sequences, length)
        return inputs, targets

    def _read_from(self, unit: int) -> list[int]:
        """Read this unit and those that come after it, and forget all others; returns which they are."""
        self._newest, wanted = unit, list(self._upcoming(unit))
        self._units = {number: self._units.get(number) or self._begin(number) for number in wanted}
        return wanted

    def _upcoming(self, unit: int) -> Iterator[int]:
        """The units that are taken from this one on, in their order, as far as they are read ahead."""
        yield unit
        left, after = AHEAD - 1, unit
        for step in range(STEPS + 1):
            start, stop = (place + step * self._stride for place in (self._share.start, self._share.stop))
            for number in range(max(after + 1, start // self._unit), -(-stop // self._unit)):
                if not left:
                    return
                yield number
                left, after = left - 1, number

    def _begin(self, unit: int) -> Future[Tensor]:
        """Begin to read a unit."""
        begin, end = unit * self._unit, (unit + 1) * self._unit
        first, last = begin // self.block, (end - 1) // self.block
        starts = self._order.starts(first, last + 1)
        # Torch takes a pinned buffer that is let go again only when the copies out of it are done.
        pinned = self._device.type == "cuda"
        buffer = torch.empty(2, self._unit, dtype=self._stored, pin_memory=pinned)
        skipped = begin - first * self.block
        return self._readers.submit(_gather, self._shards, starts, skipped, self.block, buffer)


def _gather(shards: TokenShards, starts: Tensor, skipped: int, block: int, buffer: Tensor) -> Tensor:
    """Fill `buffer` (2, n) with inputs and targets from blocks of the corpus, the first one without its
    first `skipped` tokens."""
    inputs, targets = buffer.numpy().view(shards.numpy)
    done = 0
    for start in starts.tolist():
        count = min(block - skipped, len(inputs) - done)
        window = np.empty(count + 1, shards.numpy)
        shards.read(start + skipped, window)
        inputs[done : done + count] = window[:-1]
        targets[done : done + count] = window[1:]
        done, skipped = done + count, 0
    shards.check(inputs)
    shards.check(targets)
    return buffer
