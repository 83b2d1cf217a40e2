"""AdamW, and all gradients of a model as one vector: cleared, summed over ranks, measured and clipped in one go each.

Several ranks exchange it in one all-reduce after the last piece, without DistributedDataParallel: a rank that runs out
of memory in its last piece leaves the others in no half-finished collective, the compiled graph stays whole, and what
is lost is the overlap of one exchange a step (0.5 GB at 124M: 1.3 ms over NVLink in a step of 500 ms).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

BETAS = (0.9, 0.95)


class FlatGradient:
    """`flat` (n,) float32 on the parameters' device; each parameter's `grad` is a view of it, added to in place."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        sizes = [parameter.numel() for parameter in parameters]
        self.flat = torch.zeros(sum(sizes), device=parameters[0].device)
        for parameter, part in zip(parameters, torch.split(self.flat, sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def clear(self) -> None:
        self.flat.zero_()

    def clip(self, limit: float) -> Tensor:
        """Scale the gradient to a norm of at most `limit` (0: leave it). Returns its norm before, 0-d."""
        norm: Tensor = torch.linalg.vector_norm(self.flat)
        if limit:
            self.flat.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
        return norm


def make_optimizer(model: nn.Module, weight_decay: float, device: torch.device) -> torch.optim.AdamW:
    """AdamW in one fused kernel. Its learning rate is a tensor, filled before each step."""
    lr = torch.zeros((), device=device)
    return torch.optim.AdamW(model.parameters(), lr=lr, betas=BETAS, weight_decay=weight_decay, fused=True)
