"""The returns of training episodes: kept per environment while they run, summed on the device when they
end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from hoptui_trainer.ppo.envs.vector import Step


class EpisodeEnvironments(Protocol):
    """N environments: how many steps their episodes have taken, or are said to have, and which are about to
    begin one."""

    age: Tensor  # (N,) int64
    first: Tensor  # (N,) bool


class Episodes:
    """Follows episodes in buffers that are changed in place, so that a CUDA graph can hold `follow`.

    Episodes that were given a random age at their start are left out: they end early, so their returns would
    be better or worse than the true ones.
    """

    def __init__(self, env: EpisodeEnvironments) -> None:
        self._finished = torch.zeros(2, device=env.age.device)  # by environments that are no more
        self._begin(env)

    def follow(self, step: Step) -> None:
        """Account for one step of all environments: nothing is summed over them, which would take one block
        of threads."""
        done = step.terminated | step.truncated
        counted = done & self._whole
        self._running.add_(step.reward)
        self._returns.add_(self._running * counted)
        self._count.add_(counted)
        self._running.masked_fill_(done, 0.0)
        self._whole.logical_or_(done)

    def take(self) -> Tensor:
        """Sum of the returns, and number, of the episodes that ended since the last call: (2,) on the device.

        Under several ranks the caller adds them up before it divides.
        """
        finished = self._finished + torch.stack((self._returns.sum(), self._count.sum()))
        for sums in (self._finished, self._returns, self._count):
            sums.zero_()
        return finished

    def give(self, finished: Tensor) -> None:
        """Take back what was taken."""
        self._finished.add_(finished)

    def resize(self, env: EpisodeEnvironments) -> None:
        """Follow `env` after its own resize, in new buffers."""
        running, whole = self._running, self._whole
        self._finished = self.take()
        self._begin(env)
        self._go_on(running, whole)

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        """What `follow` reads and changes for each environment."""
        return self._running, self._whole, self._returns, self._count

    def move(self, buffers: tuple[Tensor, ...]) -> None:
        """Go on in buffers that were those of as many environments before: graphs may know them."""
        for now, own in zip(buffers, self.buffers, strict=True):
            now.copy_(own)
        self._running, self._whole, self._returns, self._count = buffers

    def state_dict(self) -> dict[str, Tensor]:
        return {"running": self._running.clone(), "whole": self._whole.clone()}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Go on with the saved episodes, as far as the environments do, which have loaded theirs before."""
        env = self._env
        if len(env.age) != len(self._running):
            self._finished = self.take()
            self._begin(env)
        self._go_on(saved["running"].to(env.age.device), saved["whole"].to(env.age.device))

    def _begin(self, env: EpisodeEnvironments) -> None:
        self._env = env
        self._running = torch.zeros_like(env.age, dtype=torch.float32)
        self._whole = env.age == 0
        # Of the episodes that ended since the last `take`: sum of their returns, and number.
        self._returns, self._count = torch.zeros_like(self._running), torch.zeros_like(self._running)

    def _go_on(self, running: Tensor, whole: Tensor) -> None:
        """Take over the first episodes; one that is about to begin is another one, whatever there was
        before."""
        kept = min(len(running), len(self._running))
        age, first = self._env.age[:kept], self._env.first[:kept]
        self._running[:kept] = running[:kept].masked_fill(first, 0.0)
        self._whole[:kept] = torch.where(first, age == 0, whole[:kept])
