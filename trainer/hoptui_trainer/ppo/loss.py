"""The loss of PPO: clipped surrogate, squared value error and entropy (Schulman et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from hoptui_trainer.ppo.coefficients import Coefficients
from hoptui_trainer.ppo.policies.policy import Batch, Policy
from hoptui_trainer.ppo.rollout import Rollout

LOSS_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def loss(policy: Policy, batch: Batch, scale: Tensor, coefficients: Coefficients) -> tuple[Tensor, Tensor]:
    """The part that `batch` has in the loss of its minibatch, and the sums of `LOSS_METRICS` over its
    samples.

    `scale` holds mean and inverse deviation of the minibatch's advantages, and 1 / its count: the parts of a
    minibatch add up to the loss of the whole however it is cut.
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


def gathered_loss(
    policy: Policy, rollout: Rollout, index: Tensor, scale: Tensor, coefficients: Coefficients
) -> tuple[Tensor, Tensor]:
    """The `loss` of the units `index`, which are gathered in here to be compiled together with what reads
    them."""
    return loss(policy, rollout.gather(index), scale, coefficients)
