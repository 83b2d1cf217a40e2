"""The optimizer of the language model."""

from __future__ import annotations

import torch
from torch import nn

BETAS = (0.9, 0.95)


def make_optimizer(model: nn.Module, weight_decay: float, device: torch.device) -> torch.optim.AdamW:
    """AdamW in one fused kernel. Its learning rate is a tensor, filled before each step."""
    lr = torch.zeros((), device=device)
    return torch.optim.AdamW(model.parameters(), lr=lr, betas=BETAS, weight_decay=weight_decay, fused=True)
