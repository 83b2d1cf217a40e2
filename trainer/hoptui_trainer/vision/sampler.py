"""The image at each position of an endless stream, as a function of the seed and the position.

A batch is the next positions of the stream, for any number of ranks and micro-batches. So a change of these
or of the loader's workers skips nothing and repeats nothing, and neither does a resumed checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hoptui_trainer.common.counter_rng import key, shuffled


class ImageSampler:
    """`count` images again and again, in another order each time; `device` is where the indices are
    wanted."""

    def __init__(self, seed: int, count: int, device: torch.device | str) -> None:
        self._key = key(seed, "order of images")
        self._count, self._device = count, device
        self._epochs: dict[int, Tensor] = {}

    def images(self, positions: range) -> Tensor:
        """The indices (n,) int64 of the images at `positions`. Reads nothing from the device."""
        if not positions:
            return torch.empty(0, dtype=torch.int64, device=self._device)
        first, last = positions[0] // self._count, positions[-1] // self._count
        tables = [self._of(epoch) for epoch in range(first, last + 1)]
        table = (
            tables[0] if len(tables) == 1 else torch.cat(tables)
        )  # which copies millions of numbers for a few
        self._epochs = {epoch: order for epoch, order in self._epochs.items() if epoch >= last}
        start = first * self._count
        return table[positions.start - start : positions.stop - start : positions.step]

    def _of(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            self._epochs[epoch] = shuffled(self._key, self._count, epoch, self._device)
        return self._epochs[epoch]


def share(position: int, count: int, rank: int, world: int) -> range:
    """The positions of a rank among the `count` from `position` on: every `world`-th of the whole stream.

    What a rank loads next does not depend on the size of a batch, so images loaded ahead stay the right ones
    when that changes.
    """
    start = position + (rank - position) % world
    return range(start, position + count, world)
