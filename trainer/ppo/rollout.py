"""A rollout: T steps of N environments under one policy, stored on the device that made them."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.common.phases import PhaseClock
from trainer.ppo.advantages import gae
from trainer.ppo.config import PPOConfig
from trainer.ppo.envs.physics import Discrete, Physics
from trainer.ppo.envs.vector import VectorEnv
from trainer.ppo.episodes import Episodes
from trainer.ppo.policy import ActorCritic

CRITIC_CHUNK = 1 << 18
"""Observations that the critic sees at once outside of the update: bounds its activations to 64 MiB a layer."""


class Rollout:
    """Storage for T × N transitions, allocated once per shape. Fields are (T, N) or (T, N, size)."""

    def __init__(self, physics: Physics, length: int, num_envs: int, device: torch.device) -> None:
        def field(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(length, num_envs, *size, dtype=dtype, device=device)

        self.length, self.num_envs = length, num_envs
        self.obs = field(physics.observation_size)
        self.next_obs = field(physics.observation_size)
        actions = physics.actions
        self.action = field(dtype=torch.int64) if isinstance(actions, Discrete) else field(actions.size)
        self.log_prob, self.reward, self.value, self.advantage = field(), field(), field(), field()
        self.terminated, self.truncated = field(dtype=torch.bool), field(dtype=torch.bool)

    @property
    def size(self) -> int:
        """Transitions stored: T × N."""
        return self.length * self.num_envs

    @torch.no_grad()
    def collect(
        self,
        env: VectorEnv,
        episodes: Episodes,
        policy: ActorCritic,
        generator: torch.Generator,
        clock: PhaseClock,
    ) -> None:
        """Fill the storage by playing T steps. Nothing in here waits for the device."""
        obs = env.observation()
        for t in range(self.length):
            with clock.queued("policy"):
                action, log_prob = policy.act(obs, generator)
            with clock.queued("env"):
                step = env.step(action)
                episodes.follow(step)
            self.obs[t] = obs
            self.action[t] = action
            self.log_prob[t] = log_prob
            self.reward[t] = step.reward
            self.next_obs[t] = step.final_obs
            self.terminated[t] = step.terminated
            self.truncated[t] = step.truncated
            obs = step.obs

    @torch.no_grad()
    def estimate(self, policy: ActorCritic, config: PPOConfig) -> None:
        """Fill in values and advantages, with the policy that made the rollout."""
        self.value.copy_(_values(policy, self.obs))
        self.advantage.copy_(
            gae(
                self.reward * config.reward_scale,
                self.value,
                _values(policy, self.next_obs),
                self.terminated,
                self.truncated,
                gamma=config.gamma,
                gae_lambda=config.gae_lambda,
            )
        )


def _values(policy: ActorCritic, obs: Tensor) -> Tensor:
    flat = obs.flatten(0, 1)
    return torch.cat([policy.value(chunk) for chunk in torch.split(flat, CRITIC_CHUNK)]).view(obs.shape[:2])
