"""Many copies of one environment, stepped together without a branch: finished ones start anew by `torch.where`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.ppo.envs.physics import Physics


class Step(NamedTuple):
    """One step of N environments. `final_obs` is what the action led to; `obs` is the next episode's first where it ended."""

    obs: Tensor  # (N, O)
    reward: Tensor  # (N,)
    terminated: Tensor  # (N,) bool: the task ended
    truncated: Tensor  # (N,) bool: the time limit ended it, the task did not
    final_obs: Tensor  # (N, O)


class VectorEnv:
    """`num_envs` copies on the generator's device; everything random about them is drawn from `generator`.

    `state` is (N, S), `age` (N,) int64 counts the steps of the episode in progress. With `staggered` starts the first
    ages are random, so that time limits do not end all episodes in the same step for ever after.
    """

    def __init__(
        self, physics: Physics, num_envs: int, generator: torch.Generator, *, staggered: bool
    ) -> None:
        self.physics = physics
        self._generator = generator
        self.state, self.age = self._start(num_envs, staggered)

    @property
    def num_envs(self) -> int:
        return self.state.shape[0]

    def observation(self) -> Tensor:
        """What the policy sees now (N, O)."""
        return self.physics.observe(self.state)

    def step(self, action: Tensor) -> Step:
        """Step all copies: `action` is (N,) int64 or (N, A) float32."""
        physics = self.physics
        state, reward, terminated = physics.move(self.state, action)
        age = self.age + 1
        truncated = (age >= physics.max_episode_steps) & ~terminated
        done = terminated | truncated
        fresh = physics.initial(self.num_envs, self._generator)
        self.state = torch.where(done[:, None], fresh, state)
        self.age = torch.where(done, 0, age)
        return Step(self.observation(), reward, terminated, truncated, physics.observe(state))

    def resize(self, num_envs: int) -> int:
        """Go on with `num_envs` copies: the first ones keep their episodes, new ones start staggered.

        Returns how many unfinished episodes were dropped.
        """
        kept = min(num_envs, self.num_envs)
        dropped = int((self.age[kept:] > 0).sum())
        state, age = self._start(num_envs - kept, staggered=True)
        self.state = torch.cat((self.state[:kept], state))
        self.age = torch.cat((self.age[:kept], age))
        return dropped

    def state_dict(self) -> dict[str, Tensor]:
        return {"state": self.state, "age": self.age}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Take over the saved copies, however many they are."""
        self.state = saved["state"].to(self.state.device)
        self.age = saved["age"].to(self.age.device)

    def _start(self, count: int, staggered: bool) -> tuple[Tensor, Tensor]:
        generator, limit = self._generator, self.physics.max_episode_steps
        state = self.physics.initial(count, generator)
        if staggered:
            return state, torch.randint(limit, (count,), generator=generator, device=generator.device)
        return state, torch.zeros(count, dtype=torch.int64, device=generator.device)
