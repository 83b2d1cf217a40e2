"""The returns of training episodes: kept per environment while they run, summed on the device when they end."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trainer.ppo.envs.vector import Step, VectorEnv


class Episodes:
    """Follows the episodes of a `VectorEnv`.

    Episodes that were given a random age at their start are left out: they end early, so their returns would say
    something better or worse than the truth.
    """

    def __init__(self, env: VectorEnv) -> None:
        self._running = torch.zeros_like(env.state[:, 0])
        self._whole = env.age == 0
        self._finished = self._running.new_zeros(2)

    def follow(self, step: Step) -> None:
        """Account for one step of all environments."""
        done = step.terminated | step.truncated
        self._running += step.reward
        counted = done & self._whole
        self._finished += torch.stack(((self._running * counted).sum(), counted.sum()))
        self._running = torch.where(done, 0.0, self._running)
        self._whole |= done

    def take(self) -> tuple[Tensor, Tensor]:
        """Mean return (0-d, NaN if none) and number (0-d) of the episodes that ended since the last call."""
        (total, count), self._finished = self._finished, torch.zeros_like(self._finished)
        return total / count, count

    def resize(self, env: VectorEnv) -> None:
        """Follow `env` after its own resize."""
        kept = min(env.num_envs, self._running.shape[0])
        new = env.num_envs - kept
        self._running = torch.cat((self._running[:kept], self._running.new_zeros(new)))
        self._whole = torch.cat((self._whole[:kept], env.age[kept:] == 0))

    def state_dict(self) -> dict[str, Tensor]:
        return {"running": self._running, "whole": self._whole}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        self._running = saved["running"].to(self._running.device)
        self._whole = saved["whole"].to(self._whole.device)
