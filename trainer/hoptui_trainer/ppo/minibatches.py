"""Which samples make up which minibatch: the same ones, on however many ranks the environments live."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hoptui_trainer.common import counter_rng
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.ppo.rollout import Rollout

SortKeys = Callable[[int, Tensor, counter_rng.Counter], Tensor]
STRATA = 8
"""Strata where the environments divide so: up to so many ranks then draw the minibatches that one process
would draw."""


@dataclass(frozen=True)
class Cut:
    """How the units of a rollout on all ranks are dealt out. A unit is what is sampled as one: `steps` steps
    in a row.

    Environment g of all belongs to stratum g modulo `strata`. Each stratum is shuffled by itself and cut into
    chunks of `chunk` units; minibatch k is the k-th chunk of every stratum. As a multiple of `world`,
    `strata` leaves every stratum on one rank, so no rank has to know what another one drew.
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

    def share(self, minibatch: int, world: int) -> int:
        """Units of the minibatch of that number on each of `world` ranks."""
        return self.samples(minibatch) // (self.steps * world)


class Deal:
    """How one pass over a rollout is dealt out to the minibatches of this rank: its units, and the sums of
    their advantages."""

    def __init__(self, units: int, minibatches: int, device: torch.device) -> None:
        self.units = torch.empty(units, dtype=torch.int64, device=device)
        self.statistics = torch.empty(minibatches, 2, dtype=torch.float64, device=device)


def cut(num_envs: int, rows: int, steps: int, minibatch_size: int, world: int) -> Cut:
    """Deal out `rows` units of each of `num_envs` environments a rank, to minibatches of about
    `minibatch_size` samples.

    The size is rounded to what every stratum can give an equal part of, and is at most the whole rollout.
    """
    wanted = max(1, min(minibatch_size, num_envs * world * rows * steps) // steps)
    strata = world
    while strata * 2 <= STRATA and num_envs * world % (strata * 2) == 0 and wanted % (strata * 2) == 0:
        strata *= 2
    return Cut(strata, num_envs * world * rows // strata, max(1, wanted // strata), steps)


def order(
    cut: Cut,
    num_envs: int,
    ranks: RankGroup,
    key: int,
    epoch: counter_rng.Counter,
    device: torch.device,
    sort_keys: SortKeys = counter_rng.sort_keys,
) -> Tensor:
    """This rank's units in the order of a pass, minibatch after minibatch, as row · `num_envs` + environment,
    int64.

    The order depends on the key, on the epoch (passes since the start of the run) and on all environments
    together. `sort_keys` may be given compiled: as it is written it is some sixty kernels.
    """
    own = cut.strata // ranks.world  # strata on this rank
    stratum = torch.arange(own, device=device)[:, None]
    # In one dimension: a size of 1 would be compiled for itself.
    number = torch.arange(own * cut.units, device=device)
    index = number % cut.units * cut.strata + (number // cut.units * ranks.world + ranks.rank)
    keys = sort_keys(key, index, epoch).view(own, -1)
    del number, index  # sorting takes much memory of its own
    drawn = torch.argsort(keys, -1)
    # A stratum has every own-th of this rank's environments in each row, so its unit i is that of this number
    # in all rows.
    shuffled = torch.add(stratum, drawn, alpha=own)
    whole = cut.units // cut.chunk * cut.chunk
    chunks = shuffled[:, :whole].view(own, -1, cut.chunk).transpose(0, 1).reshape(-1)
    return chunks if whole == cut.units else torch.cat((chunks, shuffled[:, whole:].reshape(-1)))


def statistics_of(rollout: Rollout, dealt: Cut, units: Tensor, world: int) -> Tensor:
    """Sum and sum of squares of the advantages that this rank has in each minibatch of a pass: (minibatches,
    2) float64."""
    rows = rollout.units // rollout.num_envs
    by_unit = rollout.advantage.view(rows, dealt.steps, rollout.num_envs).transpose(1, 2).flatten(0, 1)
    drawn = by_unit[units].double()
    whole, size = dealt.units // dealt.chunk, dealt.share(0, world)
    parts = [drawn[: whole * size].view(whole, -1), drawn[whole * size :].reshape(1, -1)]
    return torch.cat([torch.stack((part.sum(1), part.square().sum(1)), 1) for part in parts if part.numel()])
