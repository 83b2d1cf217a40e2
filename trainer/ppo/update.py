"""The PPO update: clipped surrogate, squared value error and entropy, in epochs of minibatches (Schulman et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.ppo.config import PPOConfig
from trainer.ppo.policy import ActorCritic
from trainer.ppo.rollout import Rollout

LOSS_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def make_optimizer(policy: ActorCritic, lr: float, device: torch.device) -> torch.optim.AdamW:
    """AdamW in one fused kernel. Its learning rate is a tensor, changed in place by `set_lr`."""
    return torch.optim.AdamW(
        policy.parameters(), lr=torch.tensor(lr, device=device), eps=1e-5, weight_decay=0.0, fused=True
    )


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Let the next step use `lr`."""
    for group in optimizer.param_groups:
        group["lr"].fill_(lr)


def read_lr(optimizer: torch.optim.Optimizer) -> float:
    """The learning rate that the optimizer uses, to the seven digits that float32 holds."""
    return float(f"{float(optimizer.param_groups[0]['lr']):.7g}")


def normalised(advantage: Tensor) -> Tensor:
    """Advantages of a whole minibatch with mean 0 and variance 1 (all 0 where they are all equal)."""
    variance, mean = torch.var_mean(advantage, correction=0)
    return (advantage - mean) / (variance.sqrt() + 1e-8)


def update(
    policy: ActorCritic,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    config: PPOConfig,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Improve the policy on one rollout. Returns 0-d tensors on the device: means over all samples and epochs.

    `grad_norm` is the mean norm before clipping; `explained_variance` is of the values that the rollout was made with.
    Nothing in here waits for the device.
    """
    obs, action = rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1)
    log_prob, advantage = rollout.log_prob.flatten(), rollout.advantage.flatten()
    target = advantage + rollout.value.flatten()
    sums = torch.zeros(len(LOSS_METRICS), device=obs.device)
    grad_norm = torch.zeros((), device=obs.device)
    steps = 0
    for _ in range(config.epochs):
        order = torch.randperm(rollout.size, generator=generator, device=obs.device)
        for minibatch in torch.split(order, config.minibatch_used):
            optimizer.zero_grad(set_to_none=True)
            pieces = min(config.grad_accum, len(minibatch))
            scaled = normalised(advantage[minibatch])
            for index, weight in zip(
                minibatch.tensor_split(pieces), scaled.tensor_split(pieces), strict=True
            ):
                sums += add_gradient(
                    policy,
                    config,
                    len(minibatch),
                    (obs[index], action[index], log_prob[index], weight, target[index]),
                )
            grad_norm += nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
            optimizer.step()
            steps += 1
    means = dict(zip(LOSS_METRICS, sums / (config.epochs * rollout.size), strict=True))
    return {
        **means,
        "grad_norm": grad_norm / steps,
        "explained_variance": 1 - (target - rollout.value.flatten()).var() / target.var(),
    }


def add_gradient(policy: ActorCritic, config: PPOConfig, count: int, samples: Sequence[Tensor]) -> Tensor:
    """Add to the gradients the part that `samples` have in a minibatch of `count`.

    `samples` are observations, actions, old log-probabilities, normalised advantages and value targets of a part of the
    minibatch. Each sum is divided by the count of the whole, so the parts add up to the gradient of the minibatch
    however it is cut. Returns the sums of `LOSS_METRICS` over the samples.
    """
    obs, action, old_log_prob, advantage, target = samples
    now = policy.judge(obs, action)
    log_ratio = now.log_prob - old_log_prob
    ratio = log_ratio.exp()
    low, high = 1 - config.clip_range, 1 + config.clip_range
    policy_loss = -torch.minimum(advantage * ratio, advantage * ratio.clamp(low, high)).sum()
    value_loss = 0.5 * (now.value - target).square().sum()
    entropy = now.entropy.sum()
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    torch.autograd.backward(loss / count)
    with torch.no_grad():
        # Schulman's low-variance estimate of KL(old, new): http://joschu.net/blog/kl-approx.html
        kl = (ratio - 1 - log_ratio).sum()
        clipped = ((ratio - 1).abs() > config.clip_range).sum()
        return torch.stack((policy_loss, value_loss, entropy, kl, clipped))
