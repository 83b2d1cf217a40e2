"""The policy: separate actor and critic, two hidden layers of tanh each, orthogonal weights (Andrychowicz et al. 2021)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainer.ppo.envs.physics import Continuous, Discrete, Physics

HIDDEN = (64, 64)


class Judgement(NamedTuple):
    """What the policy says of actions taken: all of shape (N,)."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


class Categorical(nn.Module):
    """Chooses one of k actions; the actor gives (N, k) logits."""

    def __init__(self, actions: Discrete) -> None:
        super().__init__()
        self.inputs = actions.choices

    def sample(self, logits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Actions (N,) int64 and their log-probabilities (N,)."""
        log_probs = logits.log_softmax(-1)
        # The smallest of exponentials with rates p_i is i with probability p_i: no cumulative sum, no host sync.
        wait = torch.empty_like(log_probs).exponential_(generator=generator)
        action = (log_probs.exp() / wait).argmax(-1)
        return action, log_probs.gather(-1, action[:, None])[:, 0]

    def best(self, logits: Tensor) -> Tensor:
        """The most probable actions (N,)."""
        return logits.argmax(-1)

    def judge(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (N,) of the actions and entropies (N,)."""
        log_probs = logits.log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return log_probs.gather(-1, action[:, None])[:, 0], entropy


class Gaussian(nn.Module):
    """Chooses k real numbers; the actor gives their means (N, k), the deviations are parameters of their own."""

    def __init__(self, actions: Continuous) -> None:
        super().__init__()
        self.inputs = actions.size
        self.log_std = nn.Parameter(torch.zeros(actions.size))

    def sample(self, mean: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Actions (N, k) and their log-probabilities (N,)."""
        noise = torch.empty_like(mean).normal_(generator=generator)
        return mean + self.log_std.exp() * noise, self._log_prob(noise)

    def best(self, mean: Tensor) -> Tensor:
        """The most probable actions (N, k)."""
        return mean

    def judge(self, mean: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (N,) of the actions and entropies (N,)."""
        entropy = (self.log_std + 0.5 + 0.5 * math.log(2 * math.pi)).sum()
        return self._log_prob((action - mean) * (-self.log_std).exp()), entropy.expand(mean.shape[0])

    def _log_prob(self, deviations: Tensor) -> Tensor:
        return -(0.5 * deviations.square() + self.log_std + 0.5 * math.log(2 * math.pi)).sum(-1)


class ActorCritic(nn.Module):
    """Maps observations (N, O) to actions and values. Made on the CPU from `generator`, so a seed means the same anywhere."""

    def __init__(self, physics: Physics, generator: torch.Generator) -> None:
        super().__init__()
        actions = physics.actions
        self.head = Categorical(actions) if isinstance(actions, Discrete) else Gaussian(actions)
        # A small last layer makes the first policy nearly uniform whatever the observation.
        self.actor = _mlp(physics.observation_size, self.head.inputs, last_gain=0.01, generator=generator)
        self.critic = _mlp(physics.observation_size, 1, last_gain=1.0, generator=generator)

    def act(self, obs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sampled actions and their log-probabilities (N,)."""
        return self.head.sample(self.actor(obs), generator)

    def act_best(self, obs: Tensor) -> Tensor:
        """The policy's most probable actions, for evaluation."""
        return self.head.best(self.actor(obs))

    def judge(self, obs: Tensor, action: Tensor) -> Judgement:
        """Log-probability, entropy and value of each observation and action, with gradients."""
        return Judgement(*self.head.judge(self.actor(obs), action), self.value(obs))

    def value(self, obs: Tensor) -> Tensor:
        """The critic's expected discounted return: (…, O) → (…)."""
        value: Tensor = self.critic(obs)
        return value[..., 0]


def _mlp(inputs: int, outputs: int, last_gain: float, generator: torch.Generator) -> nn.Sequential:
    sizes = (inputs, *HIDDEN, outputs)
    gains = [math.sqrt(2)] * len(HIDDEN) + [last_gain]
    layers: list[nn.Module] = []
    for before, after, gain in zip(sizes, sizes[1:], gains, strict=False):
        # Through the meta device, because torch's own initialisation would draw from the global generator.
        linear = nn.Linear(before, after, device="meta").to_empty(device="cpu")
        nn.init.orthogonal_(linear.weight, gain, generator=generator)
        nn.init.zeros_(linear.bias)
        layers += (linear, nn.Tanh())
    return nn.Sequential(*layers[:-1])
