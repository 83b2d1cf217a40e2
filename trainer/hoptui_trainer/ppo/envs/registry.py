"""The environments by their names: ours, as tensors on any device, and beyond them those of Gymnasium, on the
CPU."""

from __future__ import annotations

import torch

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.ranks import ALONE, RankGroup
from hoptui_trainer.ppo.envs.acrobot import Acrobot
from hoptui_trainer.ppo.envs.cartpole import CartPole, CartPoleNoVel
from hoptui_trainer.ppo.envs.gym import GymEnv, GymTask, gym_task
from hoptui_trainer.ppo.envs.pendulum import Pendulum
from hoptui_trainer.ppo.envs.physics import Physics
from hoptui_trainer.ppo.envs.vector import VectorEnv

PHYSICS: dict[str, Physics] = {
    physics.id: physics for physics in (CartPole(), CartPoleNoVel(), Pendulum(), Acrobot())
}


def find_task(name: str) -> Physics | GymTask:
    """The environment of that name; one of ours before Gymnasium's, which `gymnasium:CartPole-v1` asks for.

    Raises:
        UsageError: there is none, or it cannot be learned here.
    """
    return PHYSICS[name] if name in PHYSICS else gym_task(name)


def make_env(
    task: Physics | GymTask,
    num_envs: int,
    seed: int,
    device: torch.device,
    *,
    ranks: RankGroup = ALONE,
    staggered: bool,
    workers: int = 0,
) -> VectorEnv | GymEnv:
    """`num_envs` copies; `workers` is for Gymnasium's alone.

    Raises:
        UsageError: Gymnasium's environments are asked for on a GPU.
    """
    if not isinstance(task, GymTask):
        return VectorEnv(task, num_envs, seed, device, ranks=ranks, staggered=staggered)
    if device.type != "cpu":
        raise UsageError(f"--env {task.id}: Gymnasium steps it on the CPU; use --rollout-device cpu")
    return GymEnv(task, num_envs, seed, ranks=ranks, staggered=staggered, workers=workers)
