"""Pendulum-v1: swing a pendulum up with a weak motor and hold it there (as in Gymnasium). Never
terminates."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hoptui_trainer.ppo.envs.physics import Continuous, Transition

GRAVITY = 10.0
SECONDS_PER_STEP = 0.05
TORQUE_LIMIT = 2.0
SPIN_LIMIT = 8.0


class Pendulum:
    """State: angle (rad, 0 is upright), angular velocity. Observation: its cosine and sine, angular velocity.

    The reward is the negative cost of angle, velocity and torque in the state that the step starts from.
    """

    id = "Pendulum-v1"
    state_size = 2
    observation_size = 3
    actions = Continuous(1)
    max_episode_steps = cut_spacing = 200

    def initial(self, unit: Tensor) -> Tensor:
        angle, spin = (unit * 2 - 1).unbind(-1)
        return torch.stack((angle * math.pi, spin), -1)

    def observe(self, state: Tensor) -> Tensor:
        angle, spin = state.unbind(-1)
        return torch.stack((angle.cos(), angle.sin(), spin), -1)

    def move(self, state: Tensor, action: Tensor) -> Transition:
        angle, spin = state.unbind(-1)
        torque = action[:, 0].clamp(-TORQUE_LIMIT, TORQUE_LIMIT)
        from_upright = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = from_upright.square() + 0.1 * spin.square() + 0.001 * torque.square()
        spin = spin + (1.5 * GRAVITY * angle.sin() + 3.0 * torque) * SECONDS_PER_STEP
        spin = spin.clamp(-SPIN_LIMIT, SPIN_LIMIT)
        following = torch.stack((angle + spin * SECONDS_PER_STEP, spin), -1)
        return Transition(following, -cost, torch.zeros_like(angle, dtype=torch.bool))
