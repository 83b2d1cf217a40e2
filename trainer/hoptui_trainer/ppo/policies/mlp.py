"""Separate actor and critic, two hidden layers of tanh each, orthogonal weights (Andrychowicz et al.
2021)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from hoptui_trainer.ppo.envs.physics import Task
from hoptui_trainer.ppo.policies.memory import AttentionCache
from hoptui_trainer.ppo.policies.policy import Batch, Choice, Judgement, Policy

HIDDEN_LAYERS = 2
NARROW = 128
"""Hidden units up to which a GPU's matrix products take the time of their memory traffic, however much they
multiply."""


class MLP(Policy):
    """Sees one observation and remembers nothing. Made on the CPU from `generator`, so a seed means the same
    anywhere."""

    hidden_corners: Tensor
    last_corners: Tensor

    def __init__(self, task: Task, hidden: int, generator: torch.Generator) -> None:
        super().__init__(task, context=1)
        # A small last layer makes the first policy nearly uniform whatever the observation.
        sizes = (task.observation_size, *(hidden,) * HIDDEN_LAYERS)
        self.actor = _mlp((*sizes, self.head.inputs), last_gain=0.01, generator=generator)
        self.critic = _mlp((*sizes, 1), last_gain=1.0, generator=generator)
        self._narrow = hidden <= NARROW
        if self._narrow:
            self.register_buffer("hidden_corners", _corners(hidden, hidden, hidden), persistent=False)
            self.register_buffer("last_corners", _corners(self.head.inputs, 1, hidden), persistent=False)

    def memory(self, num_envs: int, before: AttentionCache | None = None) -> AttentionCache | None:
        return None

    def refill(self, memory: AttentionCache | None, obs: Tensor, first: Tensor) -> None:
        pass

    def act(self, obs: Tensor, first: Tensor, memory: AttentionCache | None, noise: Tensor | None) -> Choice:
        said, value = self._say(obs)
        if noise is None:
            action = self.head.best(said)
            log_prob, _ = self.head.judge(said, action)
        else:
            action, log_prob = self.head.sample(said, noise)
        return Choice(action, log_prob, value)

    def judge(self, batch: Batch) -> Judgement:
        said, value = self._say(batch.obs)
        return Judgement(*self.head.judge(said, batch.action), value)

    def value(self, obs: Tensor, first: Tensor) -> Tensor:
        value: Tensor = self.critic(obs[:, -1])
        return value[..., 0].float()

    def _say(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The head's inputs (…, k) and values (…), float32."""
        if self._narrow and obs.is_cuda:
            said, value = self.together(obs)
        else:
            said, value = self.actor(obs), self.critic(obs)[..., 0]
        return said.float(), value.float()

    def together(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """What a narrow actor (…, k) and critic (…) say, with one matrix product a layer for both.

        Their first weights are one above the other, the later ones in two corners of a matrix that is zero
        elsewhere: more to multiply, in half as many kernels. Not as a batch of two products: the gradients of
        their weights are sums over all samples, and cuBLAS may leave each of a batch to a single processor.
        """
        x = linear(obs, *self._both(0)).tanh()
        x = linear(x, *self._both(2, self.hidden_corners)).tanh()
        both = linear(x, *self._both(4, self.last_corners))
        return both[..., :-1], both[..., -1]

    def _both(self, place: int, corners: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Weights and biases of both networks' layer in that place; with `corners`, each sees its own half of
        the inputs."""
        ours, theirs = self.actor[place], self.critic[place]
        assert isinstance(ours, nn.Linear)
        assert isinstance(theirs, nn.Linear)
        weight = torch.cat((ours.weight, theirs.weight))
        if corners is not None:
            weight = weight.repeat(1, 2) * corners
        return weight, torch.cat((ours.bias, theirs.bias))


def _corners(first: int, second: int, width: int) -> Tensor:
    """Ones (first + second, 2 · width) in two corners: the left of the first rows, the right of the
    others."""
    corners = torch.zeros(first + second, 2 * width)
    corners[:first, :width] = 1
    corners[first:, width:] = 1
    return corners


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
