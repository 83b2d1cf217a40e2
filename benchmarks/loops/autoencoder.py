"""A variational autoencoder on a table, whose examples are gathered one by one or all together."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import hoptui
from benchmarks.loops.script import Script, options

BATCH, COLUMNS, HIDDEN = 256, 64, 16


def main(script: Script) -> None:
    """Train until stopped."""
    device = script.device
    width = 2048 if device == "cuda" else 64
    table = torch.randn(20_000, COLUMNS)
    encoder = nn.Sequential(nn.Linear(COLUMNS, width), nn.ReLU(), nn.Linear(width, 2 * HIDDEN)).to(device)
    decoder = nn.Sequential(nn.Linear(HIDDEN, width), nn.ReLU(), nn.Linear(width, COLUMNS)).to(device)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=1e-3)

    with hoptui.connect(script.name) as run:
        size = run.knob("piece", 4, choices=[4, 16, 64, 256], effect="speed")
        gather = run.knob("gather", "loop", choices=["loop", "stack", "index"], effect="speed")
        for _ in run.iterations():
            chosen = torch.randint(len(table), (BATCH,))
            if gather.value == "index":
                x = table[chosen]
            elif gather.value == "stack":
                x = torch.stack([table[i] for i in chosen.tolist()])
            else:
                x = torch.empty(BATCH, COLUMNS)
                for i, place in enumerate(chosen.tolist()):
                    x[i] = table[place]
            total = 0.0
            for part in x.to(device).split(size.value):
                mean, spread = encoder(part).chunk(2, dim=1)
                hidden = mean + torch.randn_like(mean) * (spread / 2).exp()
                wrong = F.mse_loss(decoder(hidden), part)
                apart = 0.5 * (mean.square() + spread.exp() - spread - 1).mean()
                loss = (wrong + 0.01 * apart) * (len(part) / BATCH)
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss=total, samples=BATCH)


if __name__ == "__main__":
    options(main)
