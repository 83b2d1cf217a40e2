"""How good the policy really is: whole episodes, most probable actions, always the same first states."""

from __future__ import annotations

import torch

from trainer.ppo.policies.policy import Policy
from trainer.ppo.rollout import Environments

EPISODES = 200
SEED = 20_000
LOOK_EVERY = 50


@torch.no_grad()
def evaluate(policy: Policy, env: Environments) -> float:
    """Mean undiscounted return of the next full episode of every environment.

    `env` is made for the purpose, of `EPISODES` environments with `SEED`, each at the start of an episode: training
    goes on as if this had not happened.
    """
    memory = policy.memory(env.num_envs)
    running = torch.ones_like(env.first)
    total = torch.zeros_like(env.first, dtype=torch.float64)
    for t in range(env.task.max_episode_steps):
        step = env.step(policy.act(env.observation(), env.first, memory, None).action)
        total += step.reward * running
        running &= ~(step.terminated | step.truncated)
        if t % LOOK_EVERY == 0 and not running.any():
            break
    return float(total.mean())
