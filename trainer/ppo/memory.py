"""Whether a rollout fits into memory: asked before it is made, because on a CPU the answer afterwards is the kernel's."""

from __future__ import annotations

import torch

from trainer.common.device import free_bytes
from trainer.common.memory import USABLE
from trainer.ppo.config import PPOConfig
from trainer.ppo.envs.gym import GymTask
from trainer.ppo.envs.physics import Physics
from trainer.ppo.policies.policy import Policy
from trainer.ppo.rollout import Rollout

UPDATE_BYTES = 80
"""Per transition during an update: order, statistics in float64, the estimate's passes (measured on an H100)."""


def bytes_needed(config: PPOConfig, task: Physics | GymTask, policy: Policy) -> int:
    """Bytes of a rollout, to the byte, and of what an update holds beside it however small its pieces are."""
    meta = torch.device("meta")
    rollout = Rollout(
        task, policy, config.rollout_len, config.num_envs, meta, longest_sequence=config.sequence_len
    )
    fields = (field for field in vars(rollout).values() if isinstance(field, torch.Tensor))
    return sum(field.nbytes for field in fields) + rollout.size * UPDATE_BYTES


def check_memory(
    config: PPOConfig, task: Physics | GymTask, policy: Policy, device: torch.device, held: int = 0
) -> int:
    """Refuse sizes that the device's free memory, plus `held` bytes in use by the sizes of before, cannot hold.

    Returns the bytes needed.

    Raises:
        MemoryError: one sentence with both figures.
    """
    needed = bytes_needed(config, task, policy)
    free = free_bytes(device) + held
    if needed > max(held, USABLE * free):
        raise MemoryError(
            f"{config.num_envs} environments × {config.rollout_len} steps: about {needed / 1e9:.1f} GB, "
            f"and {free / 1e9:.1f} GB are free"
        )
    return needed
