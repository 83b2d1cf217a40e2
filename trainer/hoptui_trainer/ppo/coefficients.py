"""The numbers of the config that run on the device: tensors that stay where they are, so that a CUDA graph
sees them change."""

from __future__ import annotations

import torch

from hoptui_trainer.ppo.config import PPOConfig

NAMES = ("clip_range", "entropy_coef", "value_coef", "max_grad_norm", "gamma", "gae_lambda", "reward_scale")


class Coefficients:
    """One 0-d float32 tensor for each number, named as in `PPOConfig`.

    A Python float in compiled code costs a compilation for each value, and in a CUDA graph it is frozen.
    """

    def __init__(self, config: PPOConfig, device: torch.device) -> None:
        self.clip_range = torch.empty((), device=device)
        self.entropy_coef = torch.empty((), device=device)
        self.value_coef = torch.empty((), device=device)
        self.max_grad_norm = torch.empty((), device=device)
        self.gamma = torch.empty((), device=device)
        self.gae_lambda = torch.empty((), device=device)
        self.reward_scale = torch.empty((), device=device)
        self.fill(config)

    def fill(self, config: PPOConfig) -> None:
        """Let the next step use the numbers of `config`."""
        for name in NAMES:
            getattr(self, name).fill_(getattr(config, name))

    def read(self, name: str) -> float:
        """The number in use, to the seven digits that float32 holds."""
        return float(f"{float(getattr(self, name)):.7g}")
