"""GraphSAGE on a graph of citations, with sampled neighbours: the seed nodes of a step are cut into blocks.

One knob is the seeds of a block. The other computes a node once that a block has several times.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import hoptui
from benchmarks.loops.script import Script, options

CLASSES = 16


class Sage(nn.Module):
    """Two layers: each joins a node with the mean of its neighbours."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2 * features, width), nn.Linear(2 * width, CLASSES)

    def embed(self, features: torch.Tensor, table: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        around = features[table[nodes]].mean(1)
        return F.relu(self.first(torch.cat((features[nodes], around), dim=1)))

    def forward(
        self, features: torch.Tensor, table: torch.Tensor, seeds: torch.Tensor, dedup: bool
    ) -> torch.Tensor:
        block = torch.cat((seeds[:, None], table[seeds]), dim=1)
        if dedup:
            nodes, places = block.unique(return_inverse=True)
            hidden = self.embed(features, table, nodes)[places]
        else:
            hidden = self.embed(features, table, block.flatten()).unflatten(0, block.shape)
        return self.second(torch.cat((hidden[:, 0], hidden[:, 1:].mean(1)), dim=1))


def main(script: Script) -> None:
    """Train until stopped."""
    device, large = script.device, script.device == "cuda"
    count, size, width, fanout, seeds = (100_000, 256, 1024, 15, 8192) if large else (4000, 64, 256, 8, 256)
    labels = torch.randint(CLASSES, (count,), device=device)
    features = torch.randn(count, size, device=device) + F.one_hot(labels, size)
    known = torch.rand(count, 4 * fanout, device=device)
    cited = (count * known**3).long()
    model = Sage(size, width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    with hoptui.connect(script.name) as run:
        choices = [64, 256, 1024, 4096, 8192] if large else [4, 16, 64, 128, 256]
        per_block = run.knob("seeds_per_block", choices[0], choices=choices, effect="speed", cost="shape")
        dedup = run.knob("dedup", False, effect="speed")
        for _ in run.iterations():
            table = cited[:, torch.randperm(cited.shape[1], device=device)[:fanout]]
            chosen = torch.randperm(count, device=device)[:seeds]
            total = torch.zeros((), device=device)
            for block in chosen.split(per_block.value):
                guess = model(features, table, block, dedup.value)
                loss = F.cross_entropy(guess, labels[block], reduction="sum") / seeds
                loss.backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=total.item(), samples=seeds)


if __name__ == "__main__":
    options(main)
