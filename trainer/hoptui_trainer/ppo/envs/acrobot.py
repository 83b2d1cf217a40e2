"""Acrobot-v1: swing the end of a double pendulum up, with a motor at the elbow (Sutton 1996, as in
Gymnasium).

The equations of motion are those of Sutton & Barto's book: links of 1 m and 1 kg, centres of mass in their
middle, moments of inertia of 1 kg·m².
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hoptui_trainer.ppo.envs.physics import Discrete, Transition

GRAVITY = 9.8
SECONDS_PER_STEP = 0.2
CENTRE = 0.5
SHOULDER_SPEED_LIMIT = 4 * math.pi
ELBOW_SPEED_LIMIT = 9 * math.pi
GOAL_HEIGHT = 1.0


class Acrobot:
    """State: angles of shoulder (0 hangs down) and elbow (0 is straight) in −π … π, and their velocities
    (rad/s).

    Observation: cosine and sine of either angle, the velocities. An action is a torque of −1, 0 or 1 N·m at
    the elbow. Each step costs a point but the one that brings the end a link's length above the shoulder,
    which ends the episode.
    """

    id = "Acrobot-v1"
    state_size = 4
    observation_size = 6
    actions = Discrete(3)
    max_episode_steps = cut_spacing = 500

    def initial(self, unit: Tensor) -> Tensor:
        return unit * 0.2 - 0.1

    def observe(self, state: Tensor) -> Tensor:
        shoulder, elbow, shoulder_speed, elbow_speed = state.unbind(-1)
        seen = (shoulder.cos(), shoulder.sin(), elbow.cos(), elbow.sin(), shoulder_speed, elbow_speed)
        return torch.stack(seen, -1)

    def move(self, state: Tensor, action: Tensor) -> Transition:
        torque = (action - 1).to(state.dtype)
        shoulder, elbow, shoulder_speed, elbow_speed = _integrated(state, torque).unbind(-1)
        shoulder, elbow = _wrapped(shoulder), _wrapped(elbow)
        shoulder_speed = shoulder_speed.clamp(-SHOULDER_SPEED_LIMIT, SHOULDER_SPEED_LIMIT)
        elbow_speed = elbow_speed.clamp(-ELBOW_SPEED_LIMIT, ELBOW_SPEED_LIMIT)
        terminated = -shoulder.cos() - (shoulder + elbow).cos() > GOAL_HEIGHT
        following = torch.stack((shoulder, elbow, shoulder_speed, elbow_speed), -1)
        return Transition(following, terminated.to(state.dtype) - 1, terminated)


def _integrated(state: Tensor, torque: Tensor) -> Tensor:
    """The state one step later, by one step of the classic Runge–Kutta method of fourth order."""
    half = SECONDS_PER_STEP / 2
    k1 = _derivative(state, torque)
    k2 = _derivative(state + half * k1, torque)
    k3 = _derivative(state + half * k2, torque)
    k4 = _derivative(state + SECONDS_PER_STEP * k3, torque)
    return state + SECONDS_PER_STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def _derivative(state: Tensor, torque: Tensor) -> Tensor:
    shoulder, elbow, shoulder_speed, elbow_speed = state.unbind(-1)
    cos, sin = elbow.cos(), elbow.sin()
    # The mass matrix is ((inertia, coupling), (coupling, 1 + CENTRE²)).
    inertia = 2 * CENTRE**2 + 3 + 2 * CENTRE * cos
    coupling = CENTRE**2 + 1 + CENTRE * cos
    elbow_weight = CENTRE * GRAVITY * (shoulder + elbow).sin()
    shoulder_load = (
        -CENTRE * sin * elbow_speed * (elbow_speed + 2 * shoulder_speed)
        + (CENTRE + 1) * GRAVITY * shoulder.sin()
        + elbow_weight
    )
    elbow_load = torque - CENTRE * sin * shoulder_speed.square() - elbow_weight
    ratio = coupling / inertia
    elbow_change = (elbow_load + ratio * shoulder_load) / (1 + CENTRE**2 - ratio * coupling)
    shoulder_change = -(coupling * elbow_change + shoulder_load) / inertia
    return torch.stack((shoulder_speed, elbow_speed, shoulder_change, elbow_change), -1)


def _wrapped(angle: Tensor) -> Tensor:
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
