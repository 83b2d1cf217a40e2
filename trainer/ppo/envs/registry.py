"""The environments by their Gymnasium names."""

from __future__ import annotations

from trainer.ppo.envs.cartpole import CartPole
from trainer.ppo.envs.pendulum import Pendulum
from trainer.ppo.envs.physics import Physics

PHYSICS: dict[str, Physics] = {physics.id: physics for physics in (CartPole(), Pendulum())}
