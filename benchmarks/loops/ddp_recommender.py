"""A click model under DistributedDataParallel: 2,048 impressions a rank and step, with embeddings and an MLP.

An impression has numbers and the ids of categories. The rows of a pass, one lookup for all categories or one
for each, and the transfer of the columns are knobs.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import hoptui
from benchmarks.loops.script import Script, options, ranks

BATCH, NUMBERS, CATEGORIES = 2048, 13, 12


class ClickModel(nn.Module):
    """The embeddings of all categories are in one table, one category after another."""

    first: torch.Tensor
    pairs: torch.Tensor

    def __init__(self, ids: int, width: int, hidden: int) -> None:
        super().__init__()
        self.ids = ids
        self.table = nn.Embedding(CATEGORIES * ids, width)
        self.numbers = nn.Sequential(
            nn.Linear(NUMBERS, hidden), nn.ReLU(), nn.Linear(hidden, width), nn.ReLU()
        )
        pairs = (CATEGORIES + 1) * CATEGORIES // 2
        self.head = nn.Sequential(
            nn.Linear(width + pairs, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )
        self.register_buffer("first", torch.arange(CATEGORIES) * ids)
        self.register_buffer("pairs", torch.triu_indices(CATEGORIES + 1, CATEGORIES + 1, 1))

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor, one_lookup: bool) -> torch.Tensor:
        if one_lookup:
            embedded = self.table(ids + self.first)
        else:
            columns = [self.table(ids[:, i] + i * self.ids) for i in range(CATEGORIES)]
            embedded = torch.stack(columns, dim=1)
        dense = self.numbers(numbers)
        vectors = torch.cat([dense.unsqueeze(1), embedded], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        crossed = products[:, self.pairs[0], self.pairs[1]]
        return self.head(torch.cat([dense, crossed], dim=1)).squeeze(1)


def impressions(count: int, ids: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return numbers, ids and clicks. Few ids are frequent, and each makes a click more or less likely."""
    numbers = torch.randn(count, NUMBERS)
    chosen = (torch.rand(count, CATEGORIES) ** 3 * ids).long()
    liked = torch.randn(ids, CATEGORIES).gather(0, chosen).sum(dim=1)
    clicks = torch.rand(count) < torch.sigmoid(liked + numbers[:, 0] - 1)
    return numbers, chosen, clicks.float()


def main(script: Script) -> None:
    """Train until stopped."""
    with ranks(script) as (rank, world, device):
        large = script.device == "cuda"
        ids, width, hidden = (100_000, 64, 512) if large else (500, 8, 32)
        numbers, chosen, clicks = impressions(400_000 if large else 40_000, ids)
        model = DistributedDataParallel(ClickModel(ids, width, hidden).to(device))
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
        torch.manual_seed(1_000 * script.seed + rank)

        run = hoptui.connect(script.name)
        rows = run.knob("rows_per_pass", 32, choices=[32, 128, 512, 2048], effect="speed")
        one_lookup = run.knob("one_lookup", False, effect="speed")
        transfer = run.knob("transfer", "columns", choices=["columns", "table"], effect="speed")
        for _ in run.iterations():
            batch = torch.randint(len(clicks), (BATCH,))
            if transfer.value == "table":
                x, c = numbers[batch].to(device), chosen[batch].to(device)
            else:
                x = torch.stack([numbers[batch, i].to(device) for i in range(NUMBERS)], dim=1)
                c = torch.stack([chosen[batch, i].to(device) for i in range(CATEGORIES)], dim=1)
            y = clicks[batch].to(device)
            total = torch.zeros((), device=device)
            size = rows.value
            for start in range(0, BATCH, size):
                piece = slice(start, start + size)
                last = start + size >= BATCH
                with nullcontext() if last else model.no_sync():
                    logits = model(x[piece], c[piece], one_lookup.value)
                    loss = F.binary_cross_entropy_with_logits(logits, y[piece], reduction="sum") / BATCH
                    loss.backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            dist.all_reduce(total)
            run.log(loss=total.item() / world, samples=BATCH * world)
        run.close()


if __name__ == "__main__":
    options(main)
