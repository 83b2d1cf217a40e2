"""How good the policy really is: whole episodes, most probable actions, always the same first states."""

from __future__ import annotations

import torch

from hoptui_trainer.common.compilation import compiled
from hoptui_trainer.common.cuda_graphs import Graphs
from hoptui_trainer.common.modes import CompileMode
from hoptui_trainer.ppo.envs.gym import GymEnv, GymTask
from hoptui_trainer.ppo.envs.physics import Physics
from hoptui_trainer.ppo.envs.registry import make_env
from hoptui_trainer.ppo.envs.vector import VectorEnv
from hoptui_trainer.ppo.policies.policy import Policy

EPISODES, GYM_EPISODES = 64, 20
"""Enough for a gate; those of Gymnasium are stepped one by one."""
SEED = 20_000
LOOK_EVERY = 50
"""Steps after which it is asked whether all episodes have ended: on a GPU, to ask is to wait."""


def episodes(task: Physics | GymTask) -> int:
    """The episodes of one evaluation."""
    return GYM_EPISODES if isinstance(task, GymTask) else EPISODES


class Evaluation:
    """Evaluates `policy` in environments of its own: training goes on as if this had not happened.

    A step of all environments changes buffers that stay where they are, so that on a GPU it is captured once
    and then replayed, also in later evaluations; a replay gives the numbers that the step gives as it is.
    `compiles` is set where the next one is the first.
    """

    def __init__(self, task: Physics | GymTask, policy: Policy, device: torch.device, graphs: Graphs) -> None:
        self._task, self._policy, self._device, self._graphs = task, policy, device, graphs
        self._env: VectorEnv | GymEnv | None = None
        self.use("off")

    def use(self, mode: CompileMode) -> None:
        """Step compiled like this, and captured unless it is `off`; previous graphs must be cleared."""
        self._plain = mode == "off" or isinstance(self._task, GymTask)
        self._compiled = compiled(self._step, "off" if self._plain else mode)
        self.compiles = not self._plain

    @torch.no_grad()
    def run(self) -> float:
        """Mean undiscounted return of the first full episode of every environment. Waits for the device."""
        self._begin()
        for t in range(1, self._task.max_episode_steps + 1):
            if self._plain:
                self._step()
            else:
                self._graphs.run("evaluation step", self._compiled)
            if t % LOOK_EVERY == 0 and not self._running.any():
                break
        self.compiles = False
        return float(self._total.mean())

    def close(self) -> None:
        """End the environments."""
        if self._env is not None:
            self._env.close()

    def _begin(self) -> None:
        if self._env is None:
            env = self._env = make_env(self._task, episodes(self._task), SEED, self._device, staggered=False)
            self._memory = self._policy.memory(env.num_envs)
            self._total = torch.zeros_like(env.first, dtype=torch.float64)
            self._running = torch.ones_like(env.first)
        else:
            self._env.restart()
            obs, first = self._env.observation(), self._env.first
            self._policy.refill(self._memory, obs.new_empty(0, *obs.shape), first.new_empty(0, *first.shape))
            self._total.zero_()
            self._running.fill_(True)

    def _step(self) -> None:
        env = self._env
        assert env is not None
        step = env.step(self._policy.act(env.observation(), env.first, self._memory, None).action)
        self._total.add_(step.reward * self._running)
        self._running.logical_and_(~(step.terminated | step.truncated))
