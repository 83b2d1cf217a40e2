"""A forecast of the load of power stations from the hours before. It logs histograms of all weights.

The knobs are the windows of a pass, and the iterations between two histograms.
"""

from __future__ import annotations

import math
import tempfile
from typing import IO

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import hoptui
from benchmarks.loops.script import Script, options

STATIONS, PAST, FUTURE = 32, 168, 24


class Mixer(nn.Module):
    """Mixes the hours of a window."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(PAST, width), nn.Linear(width, FUTURE)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = x[:, -1:]
        y = self.enter(x - last)
        for layer in self.layers:
            y = y + layer(y)
        return last + self.leave(y)


def write_histograms(model: nn.Module, step: int, file: IO[bytes]) -> None:
    """Replace the histograms of weights and of gradients in the file."""
    file.seek(0)
    for name, parameter in model.named_parameters():
        for kind, tensor in (("weight", parameter.detach()), ("gradient", parameter.grad)):
            if tensor is not None:
                counts, edges = np.histogram(tensor.float().cpu().numpy(), bins=64)
                file.write(f"{step} {name} {kind} {counts.tolist()} {edges[0]} {edges[-1]}\n".encode())
    file.truncate()


def main(script: Script) -> None:
    """Train until stopped."""
    device, large = script.device, script.device == "cuda"
    width, layers, windows = (1024, 3, 65_536) if large else (256, 3, 256)
    model = Mixer(width, layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    hours = torch.arange(20_000)[:, None] / 24 * 2 * math.pi
    load = (torch.sin(hours + torch.rand(STATIONS) * 6) + 0.2 * torch.randn(20_000, STATIONS)).to(device)
    whole = torch.arange(PAST + FUTURE, device=device)

    with hoptui.connect(script.name) as run, tempfile.TemporaryFile() as file:
        per_pass = run.knob(
            "windows_per_pass", 1024 if large else 8, min=1, max=windows, scale="pow2", effect="speed"
        )
        hist_every = run.knob("hist_every", 1, choices=[1, 5, 20, 100], effect="speed")
        for step in run.iterations():
            starts = torch.randint(len(load) - PAST - FUTURE, (windows,), device=device)
            stations = torch.randint(STATIONS, (windows,), device=device)
            window = load[starts[:, None] + whole, stations[:, None]]
            total = torch.zeros((), device=device)
            for part in window.split(per_pass.value):
                wrong = F.smooth_l1_loss(model(part[:, :PAST]), part[:, PAST:])
                loss = wrong * (len(part) / windows)
                loss.backward()
                total += loss.detach()
            if step % hist_every.value == 0:
                write_histograms(model, step, file)
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=total.item(), samples=windows)


if __name__ == "__main__":
    options(main)
