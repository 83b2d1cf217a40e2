"""The PPO update: clipped surrogate, squared value error and entropy, in epochs of minibatches (Schulman et al. 2017)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from trainer.common import random
from trainer.common.compile import compiled
from trainer.common.flat_gradient import FlatGradient
from trainer.common.gradient import Pieces
from trainer.common.graphs import Graphs
from trainer.common.memory import is_out_of_memory
from trainer.common.modes import CompileMode, Precision
from trainer.common.precision import autocast
from trainer.common.ranks import Ranks
from trainer.ppo.coefficients import Coefficients
from trainer.ppo.minibatches import Cut, cut, order
from trainer.ppo.policies.policy import Batch, Policy
from trainer.ppo.rollout import Rollout

LOSS_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


class NoRoomError(Exception):
    """Memory ran out however small the pieces of a minibatch were."""


class Update:
    """Improves a policy on rollouts, together with the other ranks.

    A piece of a minibatch and the optimizer's step are the units that become CUDA graphs; between the two the gradient
    is added up over the ranks. Every sum is divided by the count of the minibatch on all ranks, so neither the number of
    pieces nor that of ranks changes the result.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        coefficients: Coefficients,
        *,
        seed: int,
        ranks: Ranks,
        graphs: Graphs,
        pieces: Pieces,
    ) -> None:
        self._policy, self._optimizer, self._coefficients = policy, optimizer, coefficients
        self._ranks, self._graphs, self.pieces = ranks, graphs, pieces
        self._key = random.key(seed, "minibatch")
        self.gradient = FlatGradient(policy.parameters())
        self._device = self.gradient.flat.device
        self._scale = torch.zeros(3, device=self._device)
        self._figures = torch.zeros(len(LOSS_METRICS), device=self._device)
        self._length = torch.zeros((), device=self._device)
        self._index: dict[int, Tensor] = {}
        self.use("off", "fp32")

    def use(self, mode: CompileMode, precision: Precision) -> None:
        """Compute losses compiled like this and in this precision; the graphs of before must be cleared."""
        self._loss = compiled(_gathered_loss, mode)
        self._precision = precision

    def cut(self, rollout: Rollout, minibatch_size: int) -> Cut:
        """How a rollout would be dealt out to minibatches."""
        rows, steps = rollout.units // rollout.num_envs, rollout.size // rollout.units
        return cut(rollout.num_envs, rows, steps, minibatch_size, self._ranks.world)

    def run(self, rollout: Rollout, *, epochs: int, minibatch_size: int, epoch: int) -> dict[str, Tensor]:
        """Improve the policy on one rollout. Returns 0-d tensors on the device: means over all samples and epochs.

        `epoch` counts the passes since the start of the run. `grad_norm` is the mean norm before clipping;
        `explained_variance` is of the values that the rollout was made with. Nothing in here waits for the device.

        Raises:
            NoRoomError: single units do not fit; on all ranks alike, and before the optimizer took the step.
        """
        dealt = self.cut(rollout, minibatch_size)
        totals = torch.zeros(len(LOSS_METRICS), dtype=torch.float64, device=self._device)
        self._length.zero_()
        for number in range(epoch, epoch + epochs):
            units = order(dealt, rollout.num_envs, self._ranks, self._key, number, self._device)
            parts = torch.split(units, dealt.chunk * dealt.strata // self._ranks.world)
            for part, scale in zip(parts, self._scales(rollout, dealt, units), strict=True):
                self._scale.copy_(scale)
                totals += self._gradient_of(rollout, part)
                self._ranks.add(self.gradient.flat)
                self._graphs.run("optimizer step", self._step)
        sums = torch.cat((totals / epochs, _sums(rollout.advantage), _sums(rollout.target)))
        self._ranks.add(sums)
        means = sums / (rollout.size * self._ranks.world)
        residual, its_square, target, target_square = means[len(LOSS_METRICS) :]
        unexplained = (its_square - residual.square()) / (target_square - target.square())
        return {
            **dict(zip(LOSS_METRICS, means.float(), strict=False)),
            "grad_norm": self._length / (epochs * dealt.count),
            "explained_variance": (1 - unexplained).float(),
        }

    def _gradient_of(self, rollout: Rollout, units: Tensor) -> Tensor:
        """Compute the gradient of a minibatch in pieces; returns the sums of `LOSS_METRICS`."""
        try:
            return self.pieces.compute(len(units), partial(self._piece, rollout, units), self.gradient.clear)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise NoRoomError("not even single units of a minibatch fit into memory") from None
            raise

    def _scales(self, rollout: Rollout, dealt: Cut, units: Tensor) -> Tensor:
        """For each minibatch of a pass: mean and inverse deviation of its advantages on all ranks, and 1 / its count.

        (minibatches, 3); a minibatch whose advantages are all equal has them scaled to 0.
        """
        rows = rollout.units // rollout.num_envs
        by_unit = rollout.advantage.view(rows, dealt.steps, rollout.num_envs).transpose(1, 2).flatten(0, 1)
        drawn = by_unit[units].double()
        whole = dealt.units // dealt.chunk
        size = dealt.chunk * dealt.strata // self._ranks.world
        parts = [drawn[: whole * size].view(whole, -1), drawn[whole * size :].reshape(1, -1)]
        sums = torch.cat(
            [torch.stack((part.sum(1), part.square().sum(1)), 1) for part in parts if part.numel()]
        )
        self._ranks.add(sums)
        # Not from a list: copying one to a GPU waits for it.
        count = torch.full((dealt.count,), dealt.minibatch, device=self._device)
        count[-1].fill_(dealt.samples(dealt.count - 1))
        mean, square = (sums / count[:, None]).unbind(1)
        deviation = (square - mean.square()).clamp(min=0).sqrt()
        return torch.stack((mean, 1 / (deviation + 1e-8), 1 / count), 1).float()

    def _piece(self, rollout: Rollout, units: Tensor, part: slice) -> Tensor:
        """Add the gradient of a part of a minibatch; returns the sums of `LOSS_METRICS` over its samples."""
        wanted = units[part]
        size = len(wanted)
        if size not in self._index:
            self._index[size] = torch.empty_like(wanted)
        index = self._index[size].copy_(wanted)
        self._graphs.run(("piece", size), partial(self._add_gradient, rollout, index))
        return self._figures.clone()

    def _add_gradient(self, rollout: Rollout, index: Tensor) -> None:
        with autocast(self._precision, self._device):
            total, figures = self._loss(self._policy, rollout, index, self._scale, self._coefficients)
        self.gradient.add(total)
        self._figures.copy_(figures)

    def _step(self) -> None:
        self._length.add_(self.gradient.clip(self._coefficients.max_grad_norm))
        self._optimizer.step()


def loss(policy: Policy, batch: Batch, scale: Tensor, coefficients: Coefficients) -> tuple[Tensor, Tensor]:
    """The part that `batch` has in the loss of its minibatch, and the sums of `LOSS_METRICS` over its samples.

    `scale` holds mean and inverse deviation of the minibatch's advantages, and 1 / its count: the parts of a minibatch
    add up to the loss of the whole however it is cut.
    """
    mean, inverse_deviation, share = scale.unbind()
    advantage = (batch.advantage - mean) * inverse_deviation
    now = policy.judge(batch)
    log_ratio = now.log_prob - batch.log_prob
    ratio = log_ratio.exp()
    reach = coefficients.clip_range
    policy_loss = -torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - reach, 1 + reach)).sum()
    value_loss = 0.5 * (now.value - batch.target).square().sum()
    entropy = now.entropy.sum()
    total = policy_loss + coefficients.value_coef * value_loss - coefficients.entropy_coef * entropy
    with torch.no_grad():
        # Schulman's low-variance estimate of KL(old, new): http://joschu.net/blog/kl-approx.html
        kl = (ratio - 1 - log_ratio).sum()
        clipped = ((ratio - 1).abs() > reach).sum()
        figures = torch.stack((policy_loss, value_loss, entropy, kl, clipped))
    return total * share, figures


def _gathered_loss(
    policy: Policy, rollout: Rollout, index: Tensor, scale: Tensor, coefficients: Coefficients
) -> tuple[Tensor, Tensor]:
    """The `loss` of the units `index`, which are gathered in here to be compiled together with what reads them."""
    return loss(policy, rollout.gather(index), scale, coefficients)


def _sums(values: Tensor) -> Tensor:
    """Sum and sum of squares (2,) in float64."""
    values = values.double()
    return torch.stack((values.sum(), values.square().sum()))
