"""Separate actor and critic, two hidden layers of tanh each, orthogonal weights (Andrychowicz et al. 2021)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trainer.ppo.envs.physics import Task
from trainer.ppo.policies.memory import Memory
from trainer.ppo.policies.policy import Batch, Choice, Judgement, Policy

HIDDEN_LAYERS = 2


class MLP(Policy):
    """Sees one observation and remembers nothing. Made on the CPU from `generator`, so a seed means the same anywhere."""

    def __init__(self, task: Task, hidden: int, generator: torch.Generator) -> None:
        super().__init__(task, context=1)
        # A small last layer makes the first policy nearly uniform whatever the observation.
        sizes = (task.observation_size, *(hidden,) * HIDDEN_LAYERS)
        self.actor = _mlp((*sizes, self.head.inputs), last_gain=0.01, generator=generator)
        self.critic = _mlp((*sizes, 1), last_gain=1.0, generator=generator)

    def memory(self, num_envs: int, before: Memory | None = None) -> Memory | None:
        return None

    def refill(self, memory: Memory | None, obs: Tensor, first: Tensor) -> None:
        pass

    def act(self, obs: Tensor, first: Tensor, memory: Memory | None, noise: Tensor | None) -> Choice:
        said = self.actor(obs).float()
        if noise is None:
            action = self.head.best(said)
            log_prob, _ = self.head.judge(said, action)
        else:
            action, log_prob = self.head.sample(said, noise)
        return Choice(action, log_prob, self._critic(obs))

    def judge(self, batch: Batch) -> Judgement:
        said = self.actor(batch.obs).float()
        return Judgement(*self.head.judge(said, batch.action), self._critic(batch.obs))

    def value(self, obs: Tensor, first: Tensor) -> Tensor:
        return self._critic(obs[:, -1])

    def _critic(self, obs: Tensor) -> Tensor:
        value: Tensor = self.critic(obs)
        return value[..., 0].float()


def _mlp(sizes: tuple[int, ...], last_gain: float, generator: torch.Generator) -> nn.Sequential:
    gains = [math.sqrt(2)] * HIDDEN_LAYERS + [last_gain]
    layers: list[nn.Module] = []
    for before, after, gain in zip(sizes, sizes[1:], gains, strict=False):
        # Through the meta device, because torch's own initialisation would draw from the global generator.
        linear = nn.Linear(before, after, device="meta").to_empty(device="cpu")
        nn.init.orthogonal_(linear.weight, gain, generator=generator)
        nn.init.zeros_(linear.bias)
        layers += (linear, nn.Tanh())
    return nn.Sequential(*layers[:-1])
