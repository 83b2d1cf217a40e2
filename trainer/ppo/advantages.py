"""Generalised advantage estimation (Schulman et al. 2016, eq. 16), in few launches."""

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

    `next_value[t]` is the value of what step t led to, before any reset: so an episode that the time limit cut off is
    continued by the critic's estimate, one that terminated is worth nothing more, and no sum crosses the end of either.
    """
    delta = reward + gamma * next_value * ~terminated - value
    return scan(delta, gamma * gae_lambda * (~(terminated | truncated)).to(delta.dtype))


def scan(delta: Tensor, carry: Tensor) -> Tensor:
    """The solution of x[t] = delta[t] + carry[t] · x[t + 1] with nothing after the last row.

    Each step is an affine map of what follows it. Maps are composed over 1, 2, 4, … steps (Hillis & Steele 1986), so T
    rows take log₂ T passes over all of them where a loop would launch T small kernels.
    """
    reach = 1
    while reach < len(delta):
        delta = torch.cat((torch.addcmul(delta[:-reach], carry[:-reach], delta[reach:]), delta[-reach:]))
        carry = torch.cat((carry[:-reach] * carry[reach:], carry[-reach:]))
        reach *= 2
    return delta
