"""A rollout: T steps of N environments under one policy, stored on the device that made them.

A policy with a memory is rolled out in sequences of L steps. Each begins with a memory refilled from the
context − 1 observations before it, with the weights of now; so the update, which reads the same observations,
finds the rollout's own log-probabilities as long as the weights are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch._dynamo import maybe_mark_dynamic
from torch.nn.functional import pad

from hoptui_trainer.common.phases import PhaseClock
from hoptui_trainer.ppo.envs.physics import Discrete, Task
from hoptui_trainer.ppo.envs.vector import Step
from hoptui_trainer.ppo.gae import gae
from hoptui_trainer.ppo.policies.memory import AttentionCache
from hoptui_trainer.ppo.policies.policy import Batch, Policy


class Environments(Protocol):
    """N environments that step side by side.

    `index` (N,) int64 are their global numbers, `counter` (0-d int64) the steps since the start of the run,
    `first` (N,) bool is set where the next step begins an episode.
    """

    @property
    def task(self) -> Task: ...

    @property
    def num_envs(self) -> int: ...

    @property
    def index(self) -> Tensor: ...

    @property
    def counter(self) -> Tensor: ...

    @property
    def first(self) -> Tensor: ...

    def observation(self) -> Tensor: ...

    def step(self, action: Tensor) -> Step: ...


class Follower(Protocol):
    """Receives every step."""

    def follow(self, step: Step) -> None: ...


def sequence_length(length: int, longest: int) -> int:
    """Steps of a sequence in a rollout of `length`: the most, up to `longest`, that divide it.

    The whole rollout where that would be less than half of `longest`: short sequences waste work on their
    prefixes.
    """
    if length <= longest:
        return length
    fitting = (n for n in range(longest, longest // 2, -1) if length % n == 0)
    return next(fitting, length)


class Rollout:
    """Storage for T × N transitions, allocated once per shape. Fields are (T, N) or (T, N, size).

    Unit i of the update is sequence i // N of environment i % N; for a policy without a memory it is one
    transition. `obs` and `first` have context − 1 rows more, in front: what came before the rollout.
    """

    def __init__(
        self,
        task: Task,
        policy: Policy,
        length: int,
        num_envs: int,
        device: torch.device,
        *,
        longest_sequence: int,
    ) -> None:
        def field(*size: int, rows: int = length, dtype: torch.dtype = torch.float32) -> Tensor:
            zeros = torch.zeros(rows, num_envs, *size, dtype=dtype, device=device)
            # The update is compiled for its sizes of minibatches, and for all sizes of what these are
            # gathered from.
            maybe_mark_dynamic(zeros, [0, 1])
            return zeros

        self.length, self.num_envs = length, num_envs
        self.prefix = policy.context - 1
        self.sequence = sequence_length(length, longest_sequence) if self.prefix else 1
        self.obs = field(task.observation_size, rows=self.prefix + length)
        self.first = field(rows=self.prefix + length, dtype=torch.bool).fill_(True)
        actions = task.actions
        self.action = field(dtype=torch.int64) if isinstance(actions, Discrete) else field(actions.size)
        self.log_prob, self.reward, self.value = field(), field(), field()
        self.advantage, self.target = field(), field()
        self.terminated, self.truncated = field(dtype=torch.bool), field(dtype=torch.bool)
        # Two episodes of one environment are not cut off within so many steps, which therefore share a row.
        self._stride = min(length, task.cut_spacing)
        self.final_obs = field(task.observation_size, rows=-(-length // self._stride))
        self.last_value = torch.zeros(num_envs, device=device)
        self._memory: AttentionCache | None = None
        self._row = torch.zeros(1, dtype=torch.int64, device=device)
        # A tensor: compiled code would be that of one number.
        self._row_steps = torch.full((1,), self._stride, device=device)

    @property
    def size(self) -> int:
        """Transitions stored: T × N."""
        return self.length * self.num_envs

    @property
    def shape(self) -> tuple[int, int]:
        """Steps and environments: (T, N)."""
        return self.length, self.num_envs

    @property
    def nbytes(self) -> int:
        """Bytes of the storage, and of the policy's memory since there is one."""
        stored = sum(field.nbytes for field in vars(self).values() if isinstance(field, Tensor))
        return stored + (self._memory.nbytes if self._memory else 0)

    @property
    def units(self) -> int:
        """What minibatches are drawn from: sequences, each of `sequence` transitions."""
        return self.size // self.sequence

    @torch.no_grad()
    def collect(self, env: Environments, policy: Policy, step: Callable[[], None]) -> None:
        """Fill the storage: T calls of `step`, which is `play` with its arguments, or a capture of that.

        Nothing in here waits for the device.
        """
        self.begin(policy)
        self._keep_history()
        for t in range(self.length):
            if t % self.sequence == 0:
                before = slice(t, t + self.prefix)
                policy.refill(self._memory, self.obs[before], self.first[before])
            step()
        self.last_value.copy_(policy.act(env.observation(), env.first, self._memory, None).value)

    def begin(self, policy: Policy) -> None:
        """Let the next step be the first row's."""
        self._memory = policy.memory(self.num_envs, self._memory)
        self._row.zero_()

    @torch.no_grad()
    def play(
        self, env: Environments, policy: Policy, episodes: Follower, key: int, clock: PhaseClock
    ) -> None:
        """One step of all environments, stored in the next row; `key` is that of the policy's random numbers.

        Always the same kernels on the same buffers: a CUDA graph of one call can be replayed for every step.
        """
        with clock.queued("policy"):
            obs, first = env.observation(), env.first
            self._put(self.obs, self._row + self.prefix, obs)
            self._put(self.first, self._row + self.prefix, first)
            noise = policy.noise(key, env.index, env.counter)
            action, log_prob, value = policy.act(obs, first, self._memory, noise)
            for field, now in ((self.action, action), (self.log_prob, log_prob), (self.value, value)):
                self._put(field, self._row, now)
        with clock.queued("env"):
            step = env.step(action)
            episodes.follow(step)
            self._put(self.reward, self._row, step.reward)
            self._put(self.terminated, self._row, step.terminated)
            self._put(self.truncated, self._row, step.truncated)
            row = self._row // self._row_steps
            cut = torch.where(step.truncated[:, None], step.final_obs, self.final_obs.index_select(0, row)[0])
            self._put(self.final_obs, row, cut)
            self._row.add_(1)

    @torch.no_grad()
    def estimate(
        self,
        policy: Policy,
        *,
        gamma: float | Tensor,
        gae_lambda: float | Tensor,
        reward_scale: float | Tensor,
    ) -> None:
        """Fill in advantages and value targets, with the policy that made the rollout.

        A step that a time limit cut off leads to its final observation. That is read behind the context − 1
        observations before it, as a memory refilled there would do: of each environment, context observations
        for every `cut_spacing` steps.
        """
        following = torch.cat((self.value[1:], self.last_value[None]))
        finals = self._final_values(policy).repeat_interleave(self._stride, 0)[: self.length]
        advantage = gae(
            self.reward * reward_scale,
            self.value,
            torch.where(self.truncated, finals, following),
            self.terminated,
            self.truncated,
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
        self.advantage.copy_(advantage)
        torch.add(advantage, self.value, out=self.target)

    def gather(self, index: Tensor) -> Batch:
        """The units `index` (U,) int64, on the rollout's device."""
        num_envs = self.obs.shape[1]  # a size, which may change without a compilation; a number may not
        start, env = index // num_envs * self.sequence, index % num_envs
        steps = torch.arange(self.prefix + self.sequence, device=index.device)
        read = (start[:, None] + steps) * num_envs + env[:, None]
        done = read[:, : self.sequence]  # without the rows in front, the same numbers are those of the steps
        stored = (self.action, self.log_prob, self.advantage, self.target)
        return Batch(
            self.obs.flatten(0, 1)[read],
            self.first.flatten(0, 1)[read],
            *(field.flatten(0, 1)[done] for field in stored),
        )

    def state_dict(self) -> dict[str, Tensor]:
        """What the next rollout must know of this one: the observations that a memory is refilled from."""
        return {"obs": self.obs[self.length :], "first": self.first[self.length :]}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Go on after another rollout, also one of another length, with more or fewer environments or
        context.

        What was stored here before is forgotten.
        """
        rows = min(self.prefix, len(saved["obs"]))
        if not rows:
            return
        self.first.fill_(True)
        envs = min(self.num_envs, saved["obs"].shape[1])
        begin = len(self.obs) - rows
        self.obs[begin:, :envs] = saved["obs"][-rows:, :envs].to(self.obs.device)
        self.first[begin:, :envs] = saved["first"][-rows:, :envs].to(self.first.device)
        if rows < self.prefix:
            self.first[begin] = True  # what came before is not known

    def _keep_history(self) -> None:
        for field in (self.obs, self.first):
            field[: self.prefix] = field[self.length :].clone()

    def _final_values(self, policy: Policy) -> Tensor:
        """Values (rows of `final_obs`, N) of the final observations; of no meaning where there was none."""
        rows, steps = len(self.final_obs), torch.arange(self.length, device=self.obs.device)
        cut = torch.where(self.truncated, steps[:, None], 0)
        cut = pad(cut, (0, 0, 0, rows * self._stride - self.length)).view(rows, -1, self.num_envs).amax(1)
        before = torch.arange(self.prefix, device=cut.device) + 1
        envs = torch.arange(self.num_envs, device=cut.device)
        read = (cut[..., None] + before) * self.num_envs + envs[:, None]  # (rows, N, context − 1)
        obs = torch.cat((self.obs.flatten(0, 1)[read], self.final_obs[:, :, None]), 2)
        first = pad(self.first.flatten(0, 1)[read], (0, 1))
        return policy.value(obs.flatten(0, 1), first.flatten(0, 1)).view(rows, self.num_envs)

    @staticmethod
    def _put(field: Tensor, row: Tensor, values: Tensor) -> None:
        field.index_copy_(0, row, values[None])
