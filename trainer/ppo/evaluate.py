"""How good the policy really is: whole episodes, most probable actions, always the same first states."""

from __future__ import annotations

import torch

from trainer.common.streams import stream
from trainer.ppo.envs.physics import Physics
from trainer.ppo.envs.vector import VectorEnv
from trainer.ppo.policy import ActorCritic

EPISODES = 200
SEED = 20_000
LOOK_EVERY = 50


@torch.no_grad()
def evaluate(policy: ActorCritic, physics: Physics, device: torch.device) -> float:
    """Mean undiscounted return of `EPISODES` full episodes.

    It has environments and random numbers of its own: training goes on as if it had not happened.
    """
    env = VectorEnv(physics, EPISODES, stream(SEED, "evaluation", device), staggered=False)
    obs = env.observation()
    running = torch.ones(EPISODES, dtype=torch.bool, device=device)
    total = torch.zeros(EPISODES, device=device)
    for t in range(physics.max_episode_steps):
        step = env.step(policy.act_best(obs))
        total += step.reward * running
        running &= ~(step.terminated | step.truncated)
        obs = step.obs
        if t % LOOK_EVERY == 0 and not running.any():
            break
    return float(total.double().mean())
