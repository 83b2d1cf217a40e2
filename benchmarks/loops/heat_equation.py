"""A network that solves the heat equation: it learns from the residual at random points of space and time.

The points of a pass are a knob. So is cuDNN's search for algorithms, although all layers are linear.
"""

from __future__ import annotations

import math

import torch
from torch import nn

import hoptui
from benchmarks.loops.script import Script, options

DIFFUSION = 0.1


class Field(nn.Module):
    """The temperature at a place and a time."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh())
        for _ in range(depth - 1):
            self.layers.extend((nn.Linear(width, width), nn.Tanh()))
        self.layers.append(nn.Linear(width, 1))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        inside = x * (1 - x)
        value: torch.Tensor = torch.sin(math.pi * x) + t * inside * self.layers(torch.cat((x, t), dim=1))
        return value


def slope(of: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(of.sum(), by, create_graph=True)[0]


def residual(field: Field, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Return by how much the field misses the equation."""
    x, t = x.requires_grad_(), t.requires_grad_()
    u = field(x, t)
    return slope(u, t) - DIFFUSION * slope(slope(u, x), x)


def main(script: Script) -> None:
    """Train until stopped."""
    device, large = script.device, script.device == "cuda"
    width, points = (512, 65_536) if large else (32, 1024)
    field = Field(width, 4).to(device)
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)

    def search(on: bool) -> None:
        torch.backends.cudnn.benchmark = on

    search(False)
    with hoptui.connect(script.name) as run:
        run.knob(
            "cudnn_benchmark", False, effect="speed",
            apply=search, read=lambda: torch.backends.cudnn.benchmark,
        )  # fmt: skip
        per_pass = run.knob(
            "points_per_pass",
            2048 if large else 16,
            min=256 if large else 8,
            max=points,
            scale="pow2",
            effect="speed",
        )
        for _ in run.iterations():
            x, t = torch.rand(2, points, 1, device=device)
            optimizer.zero_grad()
            total = torch.zeros((), device=device)
            for start in range(0, points, per_pass.value):
                part = slice(start, start + per_pass.value)
                loss = residual(field, x[part], t[part]).square().sum() / points
                loss.backward()
                total += loss.detach()
            optimizer.step()
            run.log(loss=total.item(), samples=points)


if __name__ == "__main__":
    options(main)
