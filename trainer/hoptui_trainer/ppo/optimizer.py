"""The optimizer of PPO, whose learning rate is changed in place."""

from __future__ import annotations

import torch
from torch import nn


def make_optimizer(policy: nn.Module, lr: float, device: torch.device) -> torch.optim.AdamW:
    """AdamW in one fused kernel, fit for CUDA graphs. Its learning rate is a tensor, changed in place by
    `set_lr`."""
    return torch.optim.AdamW(
        policy.parameters(),
        lr=torch.tensor(lr, device=device),
        eps=1e-5,
        weight_decay=0.0,
        fused=True,
        capturable=device.type == "cuda",
    )


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Let the next step use `lr`."""
    for group in optimizer.param_groups:
        group["lr"].fill_(lr)


def read_lr(optimizer: torch.optim.Optimizer) -> float:
    """The learning rate that the optimizer uses, to the seven digits that float32 holds."""
    return float(f"{float(optimizer.param_groups[0]['lr']):.7g}")
