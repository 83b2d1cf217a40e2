"""Generalised advantage estimation (Schulman et al. 2016, eq. 16), and the explained variance."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float | Tensor,
    gae_lambda: float | Tensor,
) -> Tensor:
    """Advantages (T, N) from tensors of shape (T, N); the factors are numbers or 0-d tensors.

    `next_value[t]` is the value of what step t led to, before any reset: so an episode that the time limit
    cut off is continued by the critic's estimate, one that terminated is worth nothing more, and no sum
    crosses the end of either.
    """
    delta = reward + gamma * next_value * ~terminated - value
    return scan(delta, gamma * gae_lambda * (~(terminated | truncated)).to(delta.dtype))


def scan(delta: Tensor, carry: Tensor) -> Tensor:
    """The solution of x[t] = delta[t] + carry[t] · x[t + 1] with nothing after the last row.

    Each step is an affine map of what follows it. Maps are composed over 1, 2, 4, … steps (Hillis & Steele
    1986), so T rows take log₂ T passes over all of them where a loop would launch T small kernels.
    """
    reach = 1
    while reach < len(delta):
        delta = torch.cat((torch.addcmul(delta[:-reach], carry[:-reach], delta[reach:]), delta[-reach:]))
        carry = torch.cat((carry[:-reach] * carry[reach:], carry[-reach:]))
        reach *= 2
    return delta


def sums(advantage: Tensor, target: Tensor) -> Tensor:
    """Sum and sum of squares of both, (4,) float64: of several ranks they are added up."""
    return torch.cat((_sums(advantage), _sums(target)))


def _sums(values: Tensor) -> Tensor:
    values = values.double()
    return torch.stack((values.sum(), values.square().sum()))


def explained_variance(means: Tensor) -> Tensor:
    """The part of the variance of the targets that the values explain, 0-d, from `sums` over the number of
    samples.

    A target is a value and its advantage, so an advantage is what the value left unexplained.
    """
    residual, its_square, target, target_square = means
    explained: Tensor = 1 - (its_square - residual.square()) / (target_square - target.square())
    return explained
