"""Everything that a training run is made of, and that its checkpoints hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from trainer.common.streams import Streams, stream
from trainer.ppo.config import PPOConfig
from trainer.ppo.envs.physics import Physics
from trainer.ppo.envs.vector import VectorEnv
from trainer.ppo.episodes import Episodes
from trainer.ppo.memory import bytes_needed, check_memory
from trainer.ppo.policy import ActorCritic
from trainer.ppo.rollout import Rollout
from trainer.ppo.update import make_optimizer

PURPOSES = ("env", "policy", "minibatch")


class TrainingState:
    """Policy, optimizer, environments, random streams and counters; `config` is changed by knobs between iterations.

    `iteration` counts finished iterations, `env_steps` the steps in them, `evaluation_return` is the newest one.

    Raises:
        MemoryError: the device has not the memory for `config`.
    """

    def __init__(self, physics: Physics, config: PPOConfig, seed: int, device: torch.device) -> None:
        check_memory(config, physics, device)
        self.physics, self.config, self.seed, self.device = physics, config, seed, device
        self.streams = Streams(seed, PURPOSES, device)
        self.env = VectorEnv(physics, config.num_envs, self.streams["env"], staggered=True)
        self.episodes = Episodes(self.env)
        self.policy = ActorCritic(physics, stream(seed, "policy weights")).to(device)
        self.optimizer = make_optimizer(self.policy, config.lr, device)
        self.rollout = Rollout(physics, config.rollout_len, config.num_envs, device)
        self._held = bytes_needed(config, physics)
        self.iteration = 0
        self.env_steps = 0
        self.evaluation_return: float | None = None

    def fit(self) -> int:
        """Bring environments and storage to the sizes that `config` now has; nothing changes if that is impossible.

        Environments that stay keep their episodes. Returns how many unfinished episodes were dropped.

        Raises:
            MemoryError: the device has not the memory.
        """
        config, rollout = self.config, self.rollout
        check_memory(config, self.physics, self.device, self._held)
        if (rollout.length, rollout.num_envs) != (config.rollout_len, config.num_envs):
            self.rollout = Rollout(self.physics, config.rollout_len, config.num_envs, self.device)
        self._held = bytes_needed(config, self.physics)
        if config.num_envs == self.env.num_envs:
            return 0
        dropped = self.env.resize(config.num_envs)
        self.episodes.resize(self.env)
        return dropped

    def state_dict(self) -> dict[str, Any]:
        """All that decides how training goes on, as tensors, numbers, text and dicts of them."""
        return {
            "env": self.physics.id,
            "seed": self.seed,
            "device": self.device.type,
            "config": dataclasses.asdict(self.config),
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "evaluation_return": self.evaluation_return,
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "environments": self.env.state_dict(),
            "episodes": self.episodes.state_dict(),
            "streams": self.streams.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> int:
        """Go on where `saved` was taken, with this object's own `config`; returns the unfinished episodes dropped.

        The random streams continue if `saved` comes from the same kind of device; else they begin anew, from numbers
        that depend on the seed and on the iteration.
        """
        self.iteration, self.env_steps = saved["iteration"], saved["env_steps"]
        self.evaluation_return = saved["evaluation_return"]
        self.policy.load_state_dict(saved["policy"])
        lr = self.optimizer.param_groups[0]["lr"]
        self.optimizer.load_state_dict(saved["optimizer"])
        self.optimizer.param_groups[0]["lr"] = lr  # of `config`, on this process's device
        self.env.load_state_dict(saved["environments"])
        self.episodes.load_state_dict(saved["episodes"])
        if saved["device"] == self.device.type:
            self.streams.load_state_dict(saved["streams"])
        else:
            self.streams.restart(self.seed, f"from iteration {self.iteration}")
        return self.fit()
