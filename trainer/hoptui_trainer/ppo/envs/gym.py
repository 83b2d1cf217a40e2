"""Any environment of Gymnasium, on the CPU, with the interface of `VectorEnv`.

Gymnasium never resets by itself here (`AutoresetMode.DISABLED`): the copies that are done are reset in the
same step, by a mask. So every step leads to an observation of its own episode and every sample may be learned
from. Under Gymnasium's default, NEXT_STEP, the step after the end of an episode ignores its action and would
have to be masked out of every batch; SAME_STEP hides final observations in arrays of objects and is 10 %
slower. Vector entry points are left aside for that reason, and because they take one seed for all copies:
those of Gymnasium 1.4 know NEXT_STEP alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Space
from torch import Tensor

from hoptui_trainer.common import counter_rng
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.ranks import ALONE, RankGroup
from hoptui_trainer.ppo.envs.physics import Continuous, Discrete
from hoptui_trainer.ppo.envs.vector import Step
from hoptui_trainer.ppo.envs.workers import Permits, close, vectorised

LONGEST_EPISODE = 10_000
"""Steps after which an episode is cut off that has no time limit of its own."""


@dataclass(frozen=True)
class GymTask:
    """An environment of Gymnasium: its sizes, and the spaces that they describe."""

    id: str
    observation_size: int
    actions: Discrete | Continuous
    max_episode_steps: int
    observation_space: Space[Any]
    action_space: Space[Any]
    cut_spacing: int = 1  # an environment may cut an episode off whenever it likes

    def seen(self, obs: Any) -> Tensor:
        """Observations of N copies as (N, observation_size) float32; one of k values as k numbers, one of
        them 1."""
        if isinstance(self.observation_space, Box):
            return torch.as_tensor(obs).reshape(len(obs), -1).to(torch.float32, copy=True)
        value = torch.as_tensor(obs - self.observation_space.start)
        return torch.nn.functional.one_hot(value, self.observation_size).to(torch.float32)

    def taken(self, action: Tensor) -> Any:
        """Actions (N,) int64 or (N, A) float32 as Gymnasium takes them; real numbers are clipped to the
        space."""
        space = self.action_space
        if isinstance(space, Box):
            numbers = action.numpy().reshape(len(action), *space.shape)
            return np.clip(numbers, space.low, space.high).astype(space.dtype)
        return action.numpy() + space.start


def gym_task(id: str) -> GymTask:  # noqa: A002 (Gymnasium's word)
    """What there is to know of an environment by its Gymnasium name, such as `LunarLander-v3` or
    `module:Name-v0`.

    Raises:
        UsageError: there is none, it cannot be made here, or its spaces are no numbers or choices.
    """
    try:
        env = gymnasium.make(id, disable_env_checker=True)
    except (gymnasium.error.Error, ImportError, ValueError) as error:
        raise UsageError(f"--env {id}: {' '.join(str(error).split())}") from None
    limit = env.spec.max_episode_steps
    seen, taken = env.observation_space, env.action_space
    env.close()
    if isinstance(seen, Box):
        size = int(np.prod(seen.shape))
    elif isinstance(seen, gymnasium.spaces.Discrete):
        size = int(seen.n)
    else:
        raise UsageError(
            f"--env {id}: its observations are {seen}; only Box and Discrete can be learned from"
        )
    actions: Discrete | Continuous
    if isinstance(taken, gymnasium.spaces.Discrete):
        actions = Discrete(int(taken.n))
    elif isinstance(taken, Box) and np.issubdtype(taken.dtype, np.floating):
        actions = Continuous(int(np.prod(taken.shape)))
    else:
        raise UsageError(
            f"--env {id}: its actions are {taken}; only real Box and Discrete can be chosen from"
        )
    return GymTask(id, size, actions, limit or LONGEST_EPISODE, seen, taken)


class GymEnv:
    """`num_envs` copies of an environment of Gymnasium.

    Like a `VectorEnv`: copy i of rank r is environment `index[i]` of all, and its episodes depend on the
    seed, on its index and on its actions alone. Unlike one, it cannot be captured in a CUDA graph, and its
    episodes cannot be moved: after `resize` and `load_state_dict`, and where `employ` turns copies into
    processes or back, all of them begin anew. Many environments cannot be pickled, and those that pickle the
    arguments of their constructor alone would lose their state without a word. With `workers` each copy is a
    process, of which so many step at once. `close` it when it is no longer needed.

    With `staggered` starts the first episodes are cut off at random ages.
    """

    capturable = False
    index: Tensor
    age: Tensor
    first: Tensor
    _envs: Any  # of Gymnasium

    def __init__(
        self,
        task: GymTask,
        num_envs: int,
        seed: int,
        *,
        ranks: RankGroup = ALONE,
        staggered: bool,
        workers: int = 0,
    ) -> None:
        self.task = task
        self.counter = torch.zeros((), dtype=torch.int64)
        self._ranks = ranks
        self._permits = Permits(workers) if workers else None
        self._seed_key, self._age_key = counter_rng.key(seed, "gym seed"), counter_rng.key(seed, "gym age")
        self._begin(num_envs, staggered)

    @property
    def num_envs(self) -> int:
        return len(self.index)

    @property
    def workers(self) -> int:
        """How many copies step at once, each in a process of its own; 0 where they do so in this process."""
        return min(self._permits.count, self.num_envs) if self._permits else 0

    def observation(self) -> Tensor:
        """What the policy sees now (N, O); steps do not change it."""
        return self._obs

    def step(self, action: Tensor) -> Step:
        """Step all copies: `action` is (N,) int64 or (N, A) float32, on the CPU."""
        task = self.task
        obs, reward, ended, cut, _ = self._envs.step(task.taken(action))
        final_obs = self._obs = task.seen(obs)
        self.age += 1
        terminated = torch.as_tensor(ended)
        truncated = (torch.as_tensor(cut) | (self.age >= task.max_episode_steps)) & ~terminated
        done = self.first = terminated | truncated
        if done.any():
            obs, _ = self._envs.reset(options={"reset_mask": done.numpy()})
            self._obs = torch.where(done[:, None], task.seen(obs), final_obs)
            self.age[done] = 0
        self.counter += 1
        return Step(self._obs, torch.as_tensor(reward, dtype=torch.float32), terminated, truncated, final_obs)

    def resize(self, num_envs: int) -> int:
        """Go on with `num_envs` new copies, staggered; no episode is kept. Returns how many unfinished ones
        were dropped."""
        dropped = int((~self.first).sum())
        self.close()
        self._begin(num_envs, staggered=True)
        return dropped

    def employ(self, workers: int) -> int | None:
        """Let so many copies step at once. Returns None where all episodes go on.

        From or to 0 copies are made anew, and begin new episodes, staggered: then it returns how many
        unfinished ones were dropped. If the new ones cannot be made, nothing changes.
        """
        if self._permits and workers:
            self._permits.change(workers)
            return None
        if not self._permits and not workers:
            return None
        dropped = int((~self.first).sum())
        before, permits = self._envs, Permits(workers) if workers else None
        self._envs = vectorised(self.task.id, self.num_envs, permits)
        self._permits = permits
        close(before)
        self._start(staggered=True)
        return dropped

    def restart(self) -> None:
        """Begin all episodes anew, as on the first day: not staggered, and at step 0 of the run."""
        self.counter.zero_()
        self.age.zero_()
        self.first = torch.ones_like(self.first)
        self._reset()

    def state_dict(self) -> dict[str, Tensor]:
        return {"age": self.age.clone(), "counter": self.counter.clone()}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """As many copies as were saved, and as late in the run; Gymnasium cannot save episodes, so they begin
        anew."""
        self.close()
        self.counter.copy_(saved["counter"])
        self._begin(len(saved["age"]), staggered=True)

    def close(self) -> None:
        """End the copies, and their processes."""
        close(self._envs)

    def _begin(self, num_envs: int, staggered: bool) -> None:
        ranks = self._ranks
        self.index = torch.arange(num_envs) * ranks.world + ranks.rank
        self._envs = vectorised(self.task.id, num_envs, self._permits)
        self._start(staggered)

    def _start(self, staggered: bool) -> None:
        """Begin an episode in each copy."""
        self.age = torch.zeros_like(self.index)
        self.first = torch.ones_like(self.index, dtype=torch.bool)
        if staggered:
            unit = counter_rng.uniform(self._age_key, self.index, self.counter)[:, 0]
            self.age += (unit * self.task.max_episode_steps).to(torch.int64)
        self._reset()

    def _reset(self) -> None:
        seeds = counter_rng.bits(self._seed_key, self.index, self.counter)[:, 0].tolist()
        obs, _ = self._envs.reset(seed=seeds)
        self._obs = self.task.seen(obs)
