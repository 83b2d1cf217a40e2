"""A recurrent language model: 64 sequences a step, some rows at a time, by one LSTM or cell by cell."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import hoptui
from benchmarks.loops.script import Script, options

VOCABULARY, SEQUENCES = 128, 64


class Recurrent(nn.Module):
    """Both ways of computing have the same weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.cell, self.head = nn.LSTMCell(width, width), nn.Linear(width, VOCABULARY)
        self.layer = nn.LSTM(width, width, batch_first=True)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            setattr(self.layer, f"{name}_l0", getattr(self.cell, name))

    def forward(self, x: torch.Tensor, y: torch.Tensor, whole: bool) -> torch.Tensor:
        x = self.tokens(x)
        if whole:
            states, _ = self.layer(x)
        else:
            h = c = x.new_zeros(len(x), x.shape[2])
            steps = []
            for t in range(x.shape[1]):
                h, c = self.cell(x[:, t], (h, c))
                steps.append(h)
            states = torch.stack(steps, dim=1)
        return F.cross_entropy(self.head(states).flatten(0, 1), y.flatten())


def main(script: Script) -> None:
    """Train until stopped."""
    device = script.device
    width, length = (1024, 256) if device == "cuda" else (32, 16)
    model = Recurrent(width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.randint(VOCABULARY, (200_000,))

    with hoptui.connect(script.name) as run:
        rows = run.knob("rows_at_once", 1, min=1, max=SEQUENCES, effect="speed")
        whole = run.knob("whole_sequence", False, effect="speed")
        for _ in run.iterations():
            starts = torch.randint(len(data) - length - 1, (SEQUENCES,))
            x = torch.stack([data[i : i + length + 1] for i in starts]).to(device)
            total = 0.0
            for part in x.split(rows.value):
                loss = model(part[:, :-1], part[:, 1:], whole.value) * (len(part) / SEQUENCES)
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss=total, tokens=SEQUENCES * length)


if __name__ == "__main__":
    options(main)
