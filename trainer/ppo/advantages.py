"""Generalised advantage estimation (Schulman et al. 2016, eq. 16)."""

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
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Advantages (T, N) from tensors of shape (T, N).

    `next_value[t]` is the value of what step t led to, before any reset: so an episode that the time limit cut off is
    continued by the critic's estimate, one that terminated is worth nothing more, and no sum crosses the end of either.
    """
    delta = reward + gamma * next_value * ~terminated - value
    carry = gamma * gae_lambda * (~(terminated | truncated)).to(delta.dtype)
    advantage = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        following = torch.addcmul(delta[t], carry[t], following, out=advantage[t])
    return advantage
