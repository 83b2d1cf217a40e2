"""The sizes of minibatches and of their pieces that memory allows, by measurement."""

from __future__ import annotations

from functools import partial

import torch

from hoptui_trainer.common.auto_batch import MOST_SAMPLES, choose_batch
from hoptui_trainer.common.memory import SizeTrial, on_all_ranks, peak_bytes
from hoptui_trainer.common.memory_budget import held_bytes, limit_bytes
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.ppo.collector import Collector
from hoptui_trainer.ppo.memory import climbed, fewest_pieces, measured, most_units
from hoptui_trainer.ppo.update import Update


class MinibatchSizes:
    """Finds sizes for the rollouts of a collector. All ranks call a method together, and find the same.

    What a sample takes is measured once, and again after `forget`.
    """

    def __init__(self, update: Update, collector: Collector, ranks: RankGroup, device: torch.device) -> None:
        self._update, self._collector, self._ranks, self._device = update, collector, ranks, device
        self._trials: list[SizeTrial] = []

    def forget(self) -> None:
        """What a sample takes may have changed."""
        self._trials = []

    def minibatch(self) -> tuple[int, str]:
        """The samples of an automatic minibatch, and a line that reports them: a rollout, what memory holds
        at once, or `MOST_SAMPLES`.

        Raises:
            MemoryError: memory does not hold one unit.
        """
        rollout, world = self._collector.rollout, self._ranks.world
        chosen = choose_batch(rollout.size * world, MOST_SAMPLES, self._fitting)
        size = self._update.cut(rollout, chosen.size).minibatch
        return size, chosen.note("minibatch_size", "samples", size)

    def pieces(self, share: int) -> int:
        """The fewest pieces in which a minibatch of `share` units on each rank fits.

        Raises:
            MemoryError: not even small pieces fit.
        """
        return int(max(self._ranks.gather(fewest_pieces(share, self._measured(share), self._room))))

    def _fitting(self, samples: int) -> int:
        """How many of the `samples` of all ranks memory holds at once."""
        world, room = self._ranks.world, self._room
        dealt = self._update.cut(self._collector.rollout, samples)
        share = dealt.share(0, world)
        if peak_bytes(self._device) is None:  # nothing can be measured
            return samples
        trials = self._climbed(share, room) if self._device.type == "cpu" else self._measured(share)
        units = int(min(self._ranks.gather(most_units(share, trials, room))))
        return samples if units == share else units * dealt.steps * world

    @property
    def _room(self) -> int:
        """The bytes that a piece of a minibatch may take for a while."""
        return limit_bytes(self._device, self._ranks.local_world) - held_bytes(self._device)

    def _climbed(self, share: int, room: int) -> list[SizeTrial]:
        self._ranks.all(True)  # have looked, before one takes memory of the machine that they share
        measure = partial(self._update.measure, self._collector.stored)
        return on_all_ranks(self._ranks, self._device, partial(climbed, share, measure, room))

    def _measured(self, share: int) -> list[SizeTrial]:
        if not self._trials:
            measure = partial(self._update.measure, self._collector.stored)
            self._trials = on_all_ranks(self._ranks, self._device, partial(measured, share, measure))
        return self._trials
