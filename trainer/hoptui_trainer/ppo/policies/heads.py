"""From what a network says to actions: one of several choices, or real numbers. Noise is given, never drawn
here."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hoptui_trainer.common import counter_rng
from hoptui_trainer.ppo.envs.physics import Continuous, Discrete


class Categorical(nn.Module):
    """Chooses one of k actions; the network gives logits (…, k), the noise is uniform (…, k)."""

    def __init__(self, actions: Discrete) -> None:
        super().__init__()
        self.inputs = actions.choices

    def noise(self, key: int, index: Tensor, counter: counter_rng.Counter) -> Tensor:
        """Noise for one action of each environment `index` (N,)."""
        return counter_rng.uniform(key, index, counter, self.inputs)

    def sample(self, logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (…) int64 and their log-probabilities (…)."""
        # The largest of log p_i plus Gumbel noise is i with probability p_i: no cumulative sum, no host sync.
        log_probs = logits.log_softmax(-1)
        action = (log_probs - (-noise.log()).log()).argmax(-1)
        return action, _of(log_probs, action)

    def best(self, logits: Tensor) -> Tensor:
        """The most probable actions (…)."""
        return logits.argmax(-1)

    def judge(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (…) of the actions and entropies (…)."""
        log_probs = logits.log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return _of(log_probs, action), entropy


def _of(log_probs: Tensor, action: Tensor) -> Tensor:
    # Not by gather, whose gradient is a scattered sum: this one is fused with what is around it.
    chosen = torch.arange(log_probs.shape[-1], device=action.device) == action[..., None]
    return torch.where(chosen, log_probs, 0.0).sum(-1)


class Gaussian(nn.Module):
    """Chooses k real numbers: the network gives their means (…, k), the deviations are parameters, the noise
    is normal."""

    def __init__(self, actions: Continuous) -> None:
        super().__init__()
        self.inputs = actions.size
        self.log_std = nn.Parameter(torch.zeros(actions.size))

    def noise(self, key: int, index: Tensor, counter: counter_rng.Counter) -> Tensor:
        """Noise for one action of each environment `index` (N,)."""
        return counter_rng.normal(key, index, counter, self.inputs)

    def sample(self, mean: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (…, k) and their log-probabilities (…)."""
        return mean + self.log_std.exp() * noise, self._log_prob(noise)

    def best(self, mean: Tensor) -> Tensor:
        """The most probable actions (…, k)."""
        return mean

    def judge(self, mean: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (…) of the actions and entropies (…)."""
        entropy = (self.log_std + 0.5 + 0.5 * math.log(2 * math.pi)).sum()
        return self._log_prob((action - mean) * (-self.log_std).exp()), entropy.expand(mean.shape[:-1])

    def _log_prob(self, deviations: Tensor) -> Tensor:
        return -(0.5 * deviations.square() + self.log_std + 0.5 * math.log(2 * math.pi)).sum(-1)


def make_head(actions: Discrete | Continuous) -> Categorical | Gaussian:
    """The head for a kind of action."""
    return Categorical(actions) if isinstance(actions, Discrete) else Gaussian(actions)
