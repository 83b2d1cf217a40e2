"""Small models and steps of training for the labelled loads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Step = Callable[[Tensor], Tensor]


def mlp(device: str, width: int = 256, layers: int = 3) -> nn.Module:
    """A perceptron with inputs and outputs of this width."""
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts).to(device)


def trainer(model: nn.Module) -> Step:
    """Return a step of training to reproduce the input. It returns the loss, and waits for nothing."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = ((model(x) - x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, c))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


def transformer(device: str, width: int = 256, layers: int = 4, heads: int = 4) -> nn.Module:
    """Blocks of a transformer, without an embedding."""
    return nn.Sequential(*(Block(width, heads) for _ in range(layers))).to(device)


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device != "cpu":
        torch.cuda.synchronize()
