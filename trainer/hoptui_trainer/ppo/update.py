"""The PPO update: epochs of minibatches, each computed in pieces and together with the other ranks (Schulman
et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from hoptui_trainer.common import counter_rng
from hoptui_trainer.common.compilation import compiled
from hoptui_trainer.common.cuda_graphs import Graphs, Work
from hoptui_trainer.common.device import wait_for
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.gradient import Pieces
from hoptui_trainer.common.memory import (
    SizeTrial,
    insist,
    is_out_of_memory,
    peak_bytes,
    release,
    set_peak_aside,
)
from hoptui_trainer.common.modes import CompileMode, Precision
from hoptui_trainer.common.precision import autocast, grad_scaler
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.ppo.coefficients import Coefficients
from hoptui_trainer.ppo.gae import explained_variance, sums
from hoptui_trainer.ppo.loss import LOSS_METRICS, gathered_loss
from hoptui_trainer.ppo.memory import NoRoomError
from hoptui_trainer.ppo.minibatches import Cut, Deal, cut, order, statistics_of
from hoptui_trainer.ppo.policies.policy import Policy
from hoptui_trainer.ppo.rollout import Rollout

NO_ROLLOUT = -1
"""In place of a minibatch: memory ran out before the first."""


PieceLoss = Callable[[Policy, Rollout, Tensor, Tensor, Coefficients], tuple[Tensor, Tensor]]


class Update:
    """Improves a policy on rollouts, together with the other ranks.

    The dealing out of a pass, a piece of a minibatch and the optimizer's step are the units that become CUDA
    graphs; before a step the gradient is added up over the ranks. Every sum is divided by the count of the
    minibatch on all ranks, so neither the number of pieces nor that of ranks changes the result.

    `scaler` scales losses under fp16. `make_way` is called where memory has run out: it gives back what is
    only kept for later, and returns how much there was of it.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        coefficients: Coefficients,
        *,
        seed: int,
        ranks: RankGroup,
        graphs: Graphs,
        pieces: Pieces,
        make_way: Callable[[], int],
    ) -> None:
        self._policy, self._optimizer, self._coefficients = policy, optimizer, coefficients
        self._ranks, self._graphs, self.pieces, self._make_way = ranks, graphs, pieces, make_way
        self._key = counter_rng.key(seed, "minibatch")
        self.gradient = FlatGradient(policy.parameters(), notes=1)
        self._device = self.gradient.flat.device
        self._scale = torch.zeros(3, device=self._device)
        self._totals = torch.zeros(len(LOSS_METRICS), dtype=torch.float64, device=self._device)
        self._found = torch.zeros(len(LOSS_METRICS), device=self._device)
        self._length = torch.zeros((), device=self._device)
        self._skipped = torch.ones((), device=self._device)
        # A graph holds the function that it repeats, and with it what this one reads and fills; no other
        # object has to.
        self._index: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._deals: WeakValueDictionary[tuple[tuple[int, int], Cut], Deal] = WeakValueDictionary()
        self._number = torch.zeros((), dtype=torch.int64, device=self._device)
        self.use("off", "fp32")
        # This step is skipped, but allocates the moments. So no later step has to find memory for them.
        optimizer.step()

    def use(self, mode: CompileMode, precision: Precision) -> None:
        """Compute losses compiled like this and in this precision; previous graphs must be cleared."""
        self._loss = compiled(gathered_loss, mode)
        self._sort_keys = compiled(counter_rng.sort_keys, mode, dynamic=True)
        self._precision = precision
        self.scaler = grad_scaler(precision, self._device)
        self.scaler.scale(self._length)  # makes its own tensors now, outside of any graph
        # A fused AdamW takes no step where this is 1. Under fp16 the scaler brings a tensor of its own for
        # each step.
        self._optimizer.found_inf = self._skipped  # type: ignore[attr-defined]

    def cut(self, rollout: Rollout, minibatch_size: int) -> Cut:
        """How a rollout would be dealt out to minibatches."""
        rows, steps = rollout.units // rollout.num_envs, rollout.size // rollout.units
        return cut(rollout.num_envs, rows, steps, minibatch_size, self._ranks.world)

    def run(
        self, rollout: Rollout, *, epochs: int, minibatch_size: int, epoch: int, ready: bool = True
    ) -> dict[str, Tensor]:
        """Improve the policy on one rollout. Returns 0-d tensors on the device: means over all samples and
        epochs.

        `epoch` counts the passes since the start of the run; `ready` is false where this rank's memory was
        too short for its rollout. `grad_norm` is the mean norm before clipping; `explained_variance` is of
        the values that the rollout was made with. Nothing in here waits for the device, and the ranks wait
        for each other once, at the end.

        Raises:
            NoRoomError: a rank was not ready, or single units do not fit; on all ranks alike, and before the
                optimizer took the step.
        """
        dealt = self.cut(rollout, minibatch_size)
        begin, end = 0, epochs * dealt.count
        self._totals.zero_()
        self._length.zero_()
        judged = _judged(rollout) if ready else None
        trouble = NO_ROLLOUT if judged is None else None
        while True:
            trouble = self._learn(rollout, dealt, epoch, range(begin, end), trouble)
            if self._ranks.all(trouble is None):
                break
            begin, trouble = self._give_way(dealt, trouble), None
        assert judged is not None  # else there was trouble
        found = torch.cat((self._totals / epochs, judged))
        self._ranks.add(found)
        means = found / (rollout.size * self._ranks.world)
        return {
            **dict(zip(LOSS_METRICS, means.float(), strict=False)),
            "grad_norm": self._length / end,
            "explained_variance": explained_variance(means[len(LOSS_METRICS) :]).float(),
        }

    def prepare(self, rollout: Rollout, minibatch_size: int) -> None:
        """Compile and capture what `run` will do; nothing else is different afterwards.

        Raises:
            torch.OutOfMemoryError: there is no memory for it.
        """
        dealt = self.cut(rollout, minibatch_size)
        micro_batch, owner = self.pieces.micro_batch, rollout.shape
        shares = [dealt.share(minibatch, self._ranks.world) for minibatch in (0, dealt.count - 1)]
        pieces = {
            (min(micro_batch, share - start), start == 0)
            for share in shares
            for start in range(0, share, micro_batch)
        }
        self._scale.zero_()
        try:
            for size, first in sorted(pieces, reverse=True):
                key, work = self._work(rollout, self._index_of(size).zero_(), first)
                if self._graphs.active or size == micro_batch:
                    self._graphs.prepare(key, work, owner, before=self.gradient.clear)
            if not self._graphs.active:
                return
            work = partial(self._deal, rollout, dealt, self._deal_of(rollout, dealt))
            self._graphs.prepare(("deal", dealt), work, owner, before=self._number.zero_)
            if not self.scaler.is_enabled():  # to skip a step would change its scale
                self._graphs.prepare(
                    "optimizer step", self._step, before=partial(self.gradient.notes.fill_, 1)
                )
        finally:
            self.gradient.clear()

    def measure(self, rollout: Rollout, size: int) -> SizeTrial | None:
        """The memory that a piece of `size` units takes for a while, as it is written: compiled it takes
        less.

        None if it does not fit, or if the device does not report it.
        """
        index = torch.zeros(size, dtype=torch.int64, device=self._device)
        self._scale.zero_()
        release(self._device)
        set_peak_aside(self._device)
        before, peak = peak_bytes(self._device), None
        try:
            self._add_gradient(gathered_loss, rollout, index, first=True)
            wait_for(self._device)
            peak = peak_bytes(self._device)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        self.gradient.clear()
        release(self._device)
        return None if before is None or peak is None else SizeTrial(size, peak - before, 0.0)

    def _learn(
        self, rollout: Rollout, dealt: Cut, epoch: int, minibatches: range, trouble: int | None
    ) -> int | None:
        """Take the steps of these minibatches, counted over all epochs.

        Returns for which of them memory ran out on this rank; it may be in `trouble` from the beginning.

        The ranks do not ask each other how they are. One in trouble owes the others every sum that they will
        wait for: it goes on with zeros, and with a note beside the gradient which keeps all ranks from that
        step and from those after it. So all have the same weights: those before the first step that a
        rank had no memory for. Alone, it stops there at once.
        """
        world = self._ranks.world
        statistics = torch.zeros(dealt.count, 2, dtype=torch.float64, device=self._device)
        for number in range(minibatches.start // dealt.count, -(-minibatches.stop // dealt.count)):
            first = max(minibatches.start, number * dealt.count)
            parts: tuple[Tensor, ...] = ()
            if trouble is None:
                try:
                    deal = self._dealt_out(rollout, dealt, epoch + number)
                    parts = torch.split(deal.units, dealt.share(0, world))
                    statistics.copy_(deal.statistics)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    trouble = first
            if trouble is not None:
                statistics.zero_()
            self._ranks.add(statistics)
            scales = self._scales(dealt, statistics)
            for minibatch in range(first, (number + 1) * dealt.count):
                if trouble is None:
                    part = parts[minibatch % dealt.count]
                    self._scale.copy_(scales[minibatch % dealt.count])
                    found, _ = self.pieces.attempt(len(part), partial(self._piece, rollout, part))
                    if found is None:
                        trouble = minibatch
                if trouble is not None:
                    if world == 1:
                        return trouble
                    self.gradient.clear()
                    self.gradient.notes.fill_(1)
                self._ranks.add(self.gradient.exchanged)
                self._graphs.run("optimizer step", self._step)
        return trouble

    def _dealt_out(self, rollout: Rollout, dealt: Cut, number: int) -> Deal:
        """What this rank learns from in the pass of that number, counted since the start of the run."""
        self._number.fill_(number)
        deal = self._deal_of(rollout, dealt)
        self._graphs.run(("deal", dealt), partial(self._deal, rollout, dealt, deal), rollout.shape)
        return deal

    def _deal(self, rollout: Rollout, dealt: Cut, deal: Deal) -> None:
        units = order(
            dealt, rollout.num_envs, self._ranks, self._key, self._number, self._device, self._sort_keys
        )
        deal.units.copy_(units)
        deal.statistics.copy_(statistics_of(rollout, dealt, units, self._ranks.world))

    def _give_way(self, dealt: Cut, trouble: int | None) -> int:
        """Make room on all ranks, because memory ran out on one of them. Returns the minibatch to go on
        with."""
        known: list[tuple[int | None, int]] = self._ranks.gather((trouble, self._make_way()))
        first = min(minibatch for minibatch, _ in known if minibatch is not None)
        freed = any(spare for _, spare in known)
        if first == NO_ROLLOUT:
            raise NoRoomError("there was no memory for a rollout", freed=freed, rollout=True)
        if freed:
            release(self._device)
            return first
        try:
            self.pieces.smaller(dealt.share(first % dealt.count, self._ranks.world))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise NoRoomError("not even single units of a minibatch fit into memory") from None
        return first

    def _scales(self, dealt: Cut, sums: Tensor) -> Tensor:
        """For each minibatch of a pass: mean and inverse deviation of its advantages on all ranks, and 1 /
        its count.

        (minibatches, 3) from the sums over all ranks; a minibatch whose advantages are all equal has them
        scaled to 0.
        """
        # Not from a list: copying one to a GPU waits for it.
        count = torch.full((dealt.count,), dealt.minibatch, device=self._device)
        count[-1].fill_(dealt.samples(dealt.count - 1))
        mean, square = (sums / count[:, None]).unbind(1)
        deviation = (square - mean.square()).clamp(min=0).sqrt()
        return torch.stack((mean, 1 / (deviation + 1e-8), 1 / count), 1).float()

    def _piece(self, rollout: Rollout, units: Tensor, part: slice) -> Tensor:
        """Add the gradient of a part of a minibatch; returns the sums of `LOSS_METRICS` over its samples and
        those before."""
        index = self._index_of(part.stop - part.start).copy_(units[part])
        self._graphs.run(*self._work(rollout, index, part.start == 0), rollout.shape)
        return self._found

    def _work(self, rollout: Rollout, index: Tensor, first: bool) -> tuple[Hashable, Work]:
        """What computes the units `index`, the first of a minibatch or further ones, and its key among
        graphs.

        Only pieces of the regular size are compiled: the rest of a minibatch, or the last minibatch, would be
        worth no compilation of its own, which pauses the run.
        """
        regular = len(index) == self.pieces.micro_batch
        loss = self._loss if regular else gathered_loss
        return ("piece", len(index), first, regular), partial(self._add_gradient, loss, rollout, index, first)

    def _index_of(self, size: int) -> Tensor:
        """The index that pieces of so many units are read by: the same one, as long as a graph knows it."""
        index = self._index.get(size)
        if index is None:
            index = self._index[size] = torch.empty(size, dtype=torch.int64, device=self._device)
        return index

    def _deal_of(self, rollout: Rollout, dealt: Cut) -> Deal:
        """Likewise, where a pass over the rollout is dealt out to."""
        deal = self._deals.get((rollout.shape, dealt))
        if deal is None:
            deal = Deal(rollout.units, dealt.count, self._device)
            self._deals[rollout.shape, dealt] = deal
        return deal

    def _add_gradient(self, loss: PieceLoss, rollout: Rollout, index: Tensor, first: bool) -> None:
        with autocast(self._precision, self._device):
            total, figures = loss(self._policy, rollout, index, self._scale, self._coefficients)
        if first:
            self.gradient.clear()
            self._found.zero_()
        self.gradient.add(self.scaler.scale(total))
        self._found.add_(figures)

    def _step(self) -> None:
        """Where memory runs out, the part that found none is done again: each takes all its memory before it
        changes anything."""
        device = self._device
        try:
            insist(device, self._unscale)
            norm = insist(device, self.gradient.clip, self._coefficients.max_grad_norm)
            insist(device, self._account, norm)
            insist(device, self.scaler.step, self._optimizer)
            self.scaler.update()
        except (RuntimeError, MemoryError):
            # A capture that failed has computed nothing, and the scaler believes that it has.
            if self.scaler.is_enabled():
                self.scaler.update(new_scale=self.scaler._scale)
            raise

    def _unscale(self) -> None:
        if self.scaler.is_enabled():
            self.gradient.flat.masked_fill_(self.gradient.notes[0] > 0, torch.inf)  # which it looks for, too
        self.scaler.unscale_(self._optimizer)

    def _account(self, norm: Tensor) -> None:
        """Let the step be skipped if a rank was in trouble, or else count in the means of the update."""
        skipped, found = self.gradient.notes[0].clamp(max=1), self._found.double()
        taken = 1 - skipped
        self._totals.addcmul_(found, taken)
        self._length.addcmul_(norm, taken)
        self._skipped.copy_(skipped)


def _judged(rollout: Rollout) -> Tensor | None:
    """The `sums` of a rollout; None where there is no memory for them."""
    try:
        return sums(rollout.advantage, rollout.target)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    return None
