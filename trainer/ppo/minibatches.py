"""Which samples make up which minibatch: the same ones, on however many ranks the environments live."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.common import random
from trainer.common.ranks import Ranks

STRATA = 8
"""Strata where the environments divide so: up to so many ranks then draw the minibatches that one process would draw."""


@dataclass(frozen=True)
class Cut:
    """How the units of a rollout on all ranks are dealt out. A unit is what is sampled as one: `steps` steps in a row.

    Environment g of all belongs to stratum g modulo `strata`. Each stratum is shuffled by itself and cut into chunks of
    `chunk` units; minibatch k is the k-th chunk of every stratum. As a multiple of `world`, `strata` leaves every
    stratum on one rank, so no rank has to know what another one drew.
    """

    strata: int
    units: int  # of a stratum
    chunk: int
    steps: int

    @property
    def count(self) -> int:
        """Minibatches of one pass; the last one may be smaller."""
        return -(-self.units // self.chunk)

    @property
    def minibatch(self) -> int:
        """Samples of a minibatch over all ranks, the last one aside."""
        return self.strata * self.chunk * self.steps

    def samples(self, minibatch: int) -> int:
        """Samples of the minibatch of that number over all ranks."""
        return self.strata * self.steps * min(self.chunk, self.units - minibatch * self.chunk)


def cut(num_envs: int, rows: int, steps: int, minibatch_size: int, world: int) -> Cut:
    """Deal out `rows` units of each of `num_envs` environments a rank, to minibatches of about `minibatch_size` samples.

    The size is rounded to what every stratum can give an equal part of, and is at most the whole rollout.
    """
    wanted = max(1, min(minibatch_size, num_envs * world * rows * steps) // steps)
    strata = world
    while strata * 2 <= STRATA and num_envs * world % (strata * 2) == 0 and wanted % (strata * 2) == 0:
        strata *= 2
    return Cut(strata, num_envs * world * rows // strata, max(1, wanted // strata), steps)


def order(cut: Cut, num_envs: int, ranks: Ranks, key: int, epoch: int, device: torch.device) -> Tensor:
    """This rank's units in the order of a pass, minibatch after minibatch, as row · `num_envs` + environment, int64.

    The order depends on the key, on the epoch (passes since the start of the run) and on all environments together.
    """
    own = cut.strata // ranks.world  # strata on this rank
    rows = cut.units * own // num_envs
    stratum = torch.arange(own, device=device)[:, None] * ranks.world + ranks.rank
    position = torch.arange(cut.units, device=device)
    words = random.bits(key, position * cut.strata + stratum, epoch)[..., 0]
    drawn = torch.argsort((words - (1 << 31)).to(torch.int32), -1)  # no two are equal
    # Unit i of a stratum is, with J environments in it, environment i mod J in row i // J; that holds for any world.
    units = torch.arange(rows * num_envs, device=device).view(rows, num_envs // own, own)
    shuffled = units.permute(2, 0, 1).reshape(own, cut.units).gather(1, drawn)
    whole = cut.units // cut.chunk * cut.chunk
    chunks = shuffled[:, :whole].view(own, -1, cut.chunk).transpose(0, 1)
    return torch.cat((chunks.reshape(-1), shuffled[:, whole:].reshape(-1)))
