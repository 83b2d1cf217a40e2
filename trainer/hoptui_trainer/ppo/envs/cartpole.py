"""CartPole-v1: a pole on a cart, pushed left or right (Barto, Sutton & Anderson 1983, as in Gymnasium)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hoptui_trainer.ppo.envs.physics import Discrete, Transition

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = 1.0 + POLE_MASS
HALF_LENGTH = 0.5
POLE_MOMENT = POLE_MASS * HALF_LENGTH
FORCE = 10.0
SECONDS_PER_STEP = 0.02
X_LIMIT = 2.4
ANGLE_LIMIT = 12 * 2 * math.pi / 360


class CartPole:
    """State and observation: position (m), velocity, angle (rad), angular velocity. One point of reward per
    step."""

    id = "CartPole-v1"
    state_size = 4
    observation_size = 4
    actions = Discrete(2)
    max_episode_steps = cut_spacing = 500

    def initial(self, unit: Tensor) -> Tensor:
        return unit * 0.1 - 0.05

    def observe(self, state: Tensor) -> Tensor:
        return state

    def move(self, state: Tensor, action: Tensor) -> Transition:
        x, velocity, angle, spin = state.unbind(-1)
        force = FORCE * (2 * action - 1)
        cos, sin = angle.cos(), angle.sin()
        push = (force + POLE_MOMENT * spin.square() * sin) / TOTAL_MASS
        spin_change = (GRAVITY * sin - cos * push) / (
            HALF_LENGTH * (4 / 3 - POLE_MASS * cos.square() / TOTAL_MASS)
        )
        acceleration = push - POLE_MOMENT * spin_change * cos / TOTAL_MASS
        change = torch.stack((velocity, acceleration, spin, spin_change), -1)
        following = state + SECONDS_PER_STEP * change
        terminated = (following[:, 0].abs() > X_LIMIT) | (following[:, 2].abs() > ANGLE_LIMIT)
        return Transition(following, torch.ones_like(x), terminated)


class CartPoleNoVel(CartPole):
    """CartPole-v1 that shows position and angle alone: to balance, a policy has to remember what it saw
    before."""

    id = "CartPole-NoVel"
    observation_size = 2

    def observe(self, state: Tensor) -> Tensor:
        return state[:, ::2]
