"""Any environment of Gymnasium, on the CPU, with the interface of `VectorEnv`.

Copies step one after the other in this process (`SyncVectorEnv`), or each in a process of its own
(`AsyncVectorEnv`) where a step takes long enough to be worth it: 64 CartPoles make 110,000 steps/s in one
process, 5,000 in 64.

Gymnasium never resets by itself here (`AutoresetMode.DISABLED`): the copies that are done are reset in the
same step, by a mask. So every step leads to an observation of its own episode and every sample may be learned
from. Under Gymnasium's default, NEXT_STEP, the step after the end of an episode ignores its action and would
have to be masked out of every batch; SAME_STEP hides final observations in arrays of objects and is 10 %
slower. Vector entry points are left aside for that reason, and because they take one seed for all copies:
those of Gymnasium 1.4 know NEXT_STEP alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Space
from gymnasium.vector import AutoresetMode
from torch import Tensor

from hoptui_trainer.common import counter_rng
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.ranks import ALONE, RankGroup
from hoptui_trainer.ppo.envs.physics import Continuous, Discrete
from hoptui_trainer.ppo.envs.vector import Step

CLOSE_S = 5.0
"""So long a step that is under way may take until its process is ended."""
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
    episodes cannot be kept: after `resize` and `load_state_dict` all of them begin anew. With `workers` each
    copy is a process, of which so many step at once. `close` it when it is no longer needed.

    With `staggered` starts the first episodes are cut off at random ages.
    """

    capturable = False
    index: Tensor
    age: Tensor
    first: Tensor

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
        self._ranks, self._workers = ranks, workers
        self._seed_key, self._age_key = counter_rng.key(seed, "gym seed"), counter_rng.key(seed, "gym age")
        self._begin(num_envs, staggered)

    @property
    def num_envs(self) -> int:
        return len(self.index)

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
        try:
            self._envs.close(timeout=CLOSE_S)
        except (OSError, EOFError):  # one of the processes is gone, and will not answer
            self._envs.close(terminate=True)

    def _begin(self, num_envs: int, staggered: bool) -> None:
        ranks = self._ranks
        self.index = torch.arange(num_envs) * ranks.world + ranks.rank
        self.age = torch.zeros_like(self.index)
        self.first = torch.ones_like(self.index, dtype=torch.bool)
        if staggered:
            unit = counter_rng.uniform(self._age_key, self.index, self.counter)[:, 0]
            self.age += (unit * self.task.max_episode_steps).to(torch.int64)
        self._envs = _vectorised(self.task.id, num_envs, self._workers)
        self._reset()

    def _reset(self) -> None:
        seeds = counter_rng.bits(self._seed_key, self.index, self.counter)[:, 0].tolist()
        obs, _ = self._envs.reset(seed=seeds)
        self._obs = self.task.seen(obs)


def _vectorised(id: str, num_envs: int, workers: int) -> Any:  # noqa: A002
    options: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED, "copy": False}
    wrappers = []
    if workers:
        # Forking a process with threads, as this one has, may copy a lock that no thread will release.
        options |= {"context": "forkserver", "max_concurrency": workers}
        wrappers.append(partial(_apart, os.getpid()))
    envs = gymnasium.make_vec(
        id,
        num_envs,
        vectorization_mode="async" if workers else "sync",
        vector_kwargs=options,
        wrappers=wrappers,
        disable_env_checker=True,
    )
    assert envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    return envs


def _apart(trainer: int, env: Any) -> Any:
    """In a worker: a signal to the whole group, such as Ctrl-C or torchrun's SIGTERM, asks the trainer to
    stop, not this.

    The trainer itself, which makes a copy to look at, stays where it is.
    """
    if os.getpid() != trainer:
        os.setsid()
    return env
