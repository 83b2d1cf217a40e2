"""How much memory a setting needs, so that a knob is refused before the machine runs out, and not after."""

from __future__ import annotations

import torch

from trainer.common.device import free_bytes
from trainer.ppo.config import PPOConfig
from trainer.ppo.envs.physics import Discrete, Physics
from trainer.ppo.policy import HIDDEN

UPDATE_BYTES = 80
"""Per transition during an update: value targets, the permutation, the critic's passes, GAE (measured on an H100)."""
USABLE = 0.92
"""The part of the free memory that may be planned with."""
ACTIVATIONS_PER_UNIT = 2
"""Floats per sample and hidden unit at the peak of a backward pass: an activation and a gradient (measured likewise)."""


def bytes_needed(config: PPOConfig, physics: Physics) -> int:
    """Bytes of a rollout and of the largest micro-batch, to some 20 %."""
    actions = physics.actions
    action_bytes = 8 if isinstance(actions, Discrete) else 4 * actions.size
    stored = 2 * 4 * physics.observation_size + action_bytes + 4 * 4 + 2
    activations = 2 * sum(HIDDEN) * 4 * ACTIVATIONS_PER_UNIT
    return config.batch_size * (stored + UPDATE_BYTES) + config.micro_batch * activations


def check_memory(config: PPOConfig, physics: Physics, device: torch.device, held: int = 0) -> None:
    """Refuse a setting that the device's free memory, plus `held` bytes in use by the setting of before, cannot hold.

    Raises:
        MemoryError: one sentence with both figures.
    """
    needed = bytes_needed(config, physics)
    if needed <= held:
        return
    free = free_bytes(device) + held
    if needed > USABLE * free:
        raise MemoryError(
            f"{config.num_envs} environments × {config.rollout_len} steps, minibatches of {config.minibatch_used} in "
            f"{config.grad_accum_used} pieces: about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        )
