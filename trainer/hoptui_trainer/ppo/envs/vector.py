"""Many copies of one environment, stepped together without a branch: finished ones start anew by
`torch.where`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from hoptui_trainer.common import counter_rng
from hoptui_trainer.common.ranks import ALONE, RankGroup
from hoptui_trainer.ppo.envs.physics import Physics


class Step(NamedTuple):
    """One step of N environments. `final_obs` is what the action led to; `obs` is the next episode's first
    where it ended."""

    obs: Tensor  # (N, O)
    reward: Tensor  # (N,)
    terminated: Tensor  # (N,) bool: the task ended
    truncated: Tensor  # (N,) bool: the time limit ended it, the task did not
    final_obs: Tensor  # (N, O)


class VectorEnv:
    """`num_envs` copies on `device`, in buffers that a step changes in place: it can be captured in a CUDA
    graph.

    Copy i of rank r is environment `index[i]` = i · world + r of all. What is random about an environment
    depends on the seed, on its index and on `counter`, the vector steps since the start of the run, and on
    nothing else: not on how many copies there are, nor on how many ranks hold them.

    `state` is (N, S), `age` (N,) int64 counts the steps of the episode in progress, `first` (N,) bool is set
    where the next step begins one. With `staggered` starts the first ages are random, so that time limits do
    not end all episodes in the same step.
    """

    capturable = True
    workers = 0
    index: Tensor
    state: Tensor
    age: Tensor
    first: Tensor

    def __init__(
        self,
        physics: Physics,
        num_envs: int,
        seed: int,
        device: torch.device | str = "cpu",
        *,
        ranks: RankGroup = ALONE,
        staggered: bool,
    ) -> None:
        self.task = physics
        self.counter = torch.zeros((), dtype=torch.int64, device=device)
        self._ranks = ranks
        self._start_key, self._age_key, self._reset_key = (
            counter_rng.key(seed, f"env {purpose}") for purpose in ("start", "age", "reset")
        )
        self._begin(num_envs, staggered)

    @property
    def num_envs(self) -> int:
        return self.state.shape[0]

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        """What a step reads and changes, `counter` aside, which stays the same tensor."""
        return self.index, self.state, self.age, self.first

    def move(self, buffers: tuple[Tensor, ...]) -> None:
        """Go on in buffers that were those of as many copies before: graphs may know them."""
        for now, own in zip(buffers, self.buffers, strict=True):
            now.copy_(own)
        self.index, self.state, self.age, self.first = buffers

    def observation(self) -> Tensor:
        """What the policy sees now (N, O); steps do not change it."""
        return self.task.observe(self.state.clone())

    def step(self, action: Tensor) -> Step:
        """Step all copies: `action` is (N,) int64 or (N, A) float32."""
        physics = self.task
        moved, reward, terminated = physics.move(self.state, action)
        age = self.age + 1
        truncated = (age >= physics.max_episode_steps) & ~terminated
        done = terminated | truncated
        fresh = self._first_states(self._reset_key)
        state = torch.where(done[:, None], fresh, moved)
        self.state.copy_(state)
        self.age.copy_(age.masked_fill(done, 0))
        self.first.copy_(done)
        self.counter.add_(1)
        return Step(physics.observe(state), reward, terminated, truncated, physics.observe(moved))

    def resize(self, num_envs: int) -> int:
        """Go on with `num_envs` copies in new buffers: the first ones keep their episodes, new ones start
        staggered.

        Returns how many unfinished episodes were dropped.
        """
        state, age, first = self.state, self.age, self.first
        kept = min(num_envs, self.num_envs)
        self._begin(num_envs, staggered=True)
        for now, before in ((self.state, state), (self.age, age), (self.first, first)):
            now[:kept] = before[:kept]
        return int((~first[kept:]).sum())

    def restart(self) -> None:
        """Begin all episodes anew, in place and as on the first day: not staggered, and at step 0 of the
        run."""
        self.counter.zero_()
        self.state.copy_(self._first_states(self._start_key))
        self.age.zero_()
        self.first.fill_(True)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in self._saved().items()}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Take over the saved copies: in place, or in new buffers if there are more or fewer of them."""
        if len(saved["age"]) != self.num_envs:
            self._begin(len(saved["age"]), staggered=False)
        for name, buffer in self._saved().items():
            buffer.copy_(saved[name])

    def close(self) -> None:
        """Nothing to let go of."""

    def _begin(self, num_envs: int, staggered: bool) -> None:
        ranks, device = self._ranks, self.counter.device
        self.index = torch.arange(num_envs, device=device) * ranks.world + ranks.rank
        self.state = self._first_states(self._start_key)
        self.age = torch.zeros_like(self.index)
        self.first = torch.ones_like(self.index, dtype=torch.bool)
        if staggered:
            unit = counter_rng.uniform(self._age_key, self.index, self.counter)[:, 0]
            self.age += (unit * self.task.max_episode_steps).to(torch.int64)

    def _first_states(self, key: int) -> Tensor:
        unit = counter_rng.uniform(key, self.index, self.counter, self.task.state_size)
        return self.task.initial(unit)

    def _saved(self) -> dict[str, Tensor]:
        return {"state": self.state, "age": self.age, "first": self.first, "counter": self.counter}
