"""A diffusion model: a small U-Net that predicts noise. A batch in chunks, activations kept or recomputed."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import hoptui
from benchmarks.loops.script import Script, options

BATCH = 64


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1),
            nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1),
        )  # fmt: skip
        self.time = nn.Linear(1, channels)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x + self.time(t)[:, :, None, None])


class UNet(nn.Module):
    """`again`: activations are computed again in the backward pass."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.again = False
        self.enter, self.leave = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(2 * width, 3, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.outer, self.inner, self.back = Residual(width), Residual(2 * width), Residual(width)

    def run(self, block: nn.Module, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, t, use_reentrant=False) if self.again else block(x, t)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        x = self.run(self.outer, self.enter(x), t)
        y = self.up(self.run(self.inner, self.down(x), t))
        return self.leave(torch.cat((x, self.run(self.back, y, t)), dim=1))


def main(script: Script) -> None:
    """Train until stopped."""
    device = script.device
    large = device == "cuda"
    width, side = (128, 64) if large else (8, 16)
    model = UNet(width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images = torch.randn(1024, 3, side, side)

    with hoptui.connect(script.name) as run:
        chunk = run.knob("chunk", 4, min=1, max=BATCH, scale="pow2", effect="speed")
        run.knob(
            "recompute", True, effect="speed",
            apply=lambda on: setattr(model, "again", on), read=lambda: model.again,
        )  # fmt: skip
        model.again = True
        half = run.knob("bf16", False, effect="speed") if large else None
        for _ in run.iterations():
            x = images[torch.randint(len(images), (BATCH,))].to(device)
            t, noise = torch.rand(BATCH, 1, device=device), torch.randn_like(x)
            noisy = x * (1 - t)[:, :, None, None] + noise * t[:, :, None, None]
            total = 0.0
            for part in range(0, BATCH, chunk.value):
                here = slice(part, part + chunk.value)
                with torch.autocast(device, torch.bfloat16, enabled=bool(half and half.value)):
                    predicted = model(noisy[here], t[here])
                loss = F.mse_loss(predicted.float(), noise[here]) * (len(noisy[here]) / BATCH)
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(train_loss=total, samples=BATCH)


if __name__ == "__main__":
    options(main)
