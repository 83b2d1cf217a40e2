"""Trainings of two processes on the CPU that have the same to do."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import csv
import gzip
import random
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import hoptui
from benchmarks.labelled.catalogue import labelled


class RainCell(nn.Module):
    """A convolutional LSTM that goes on from the last pictures of a radar."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.gates = nn.Conv2d(1 + width, 4 * width, 3, padding=1)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        b, _, h, w = pictures.shape
        hidden = cell = pictures.new_zeros(b, self.width, h, w)
        shown = []
        for picture in pictures.unbind(1):
            i, f, o, g = self.gates(torch.cat((picture[:, None], hidden), 1)).chunk(4, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            shown.append(self.out(hidden)[:, 0])
        return torch.stack(shown, 1)


@labelled(cpu="healthy", ranks=2)
def rain_of_two_radars(run: hoptui.Run, device: str) -> None:
    """Each rank foresees the rain of a radar with a convolutional LSTM. Every other step exchanges gradients.

    Measured with a timer, 99 % of an iteration of 0.22 s is in the model, its backward pass and its
    optimizer. Gradients of 40 KB are exchanged in the backward pass.
    """
    torch.manual_seed(91)
    model = DistributedDataParallel(RainCell(16).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    pictures = torch.rand(40, 9, 48, 48, device=device)
    step = 0
    while not run.stopping:
        chosen = pictures[torch.randint(0, 40, (4,), device=device)]
        last = step % 2 == 1
        with nullcontext() if last else model.no_sync():
            loss = F.mse_loss(model(chosen[:, :-1]), chosen[:, 1:])
            (loss / 2).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        run.log(loss=loss.item(), samples=4)


class PackedTables(IterableDataset[tuple[Tensor, Tensor]]):
    """Rows of packed tables, of which each rank has every other one."""

    def __init__(self, folder: Path, tables: int, rows: int) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        rng = random.Random(92)
        self.paths = [folder / f"loans{n}.csv.gz" for n in range(tables)]
        for path in self.paths:
            with gzip.open(path, "wt", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["grade", "term", *(f"x{n}" for n in range(20)), "paid"])
                for _ in range(rows):
                    figures = [f"{rng.gauss(0, 1):.4f}" if rng.random() > 0.05 else "" for _ in range(20)]
                    writer.writerow(
                        [rng.choice("ABCDEFG"), f"{rng.choice((36, 60))} months", *figures, rng.randrange(2)]
                    )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for path in self.paths[self.rank :: self.ranks]:
                with gzip.open(path, "rt", newline="") as file:
                    for row in csv.DictReader(file):  # here
                        grade = [float(row["grade"] == letter) for letter in "ABCDEFG"]  # here
                        term = float(row["term"].split()[0]) / 60  # here
                        figures = [float(row[f"x{n}"] or 0) for n in range(20)]  # here
                        yield torch.tensor([*grade, term, *figures]), torch.tensor(float(row["paid"]))  # here


@labelled(cpu="data-bound", ranks=2, helpers=(PackedTables,))
def loans_in_packed_tables(run: hoptui.Run, device: str) -> None:
    """Whether loans are paid back is learned from packed tables of text, half of them on each rank.

    A batch has 512 rows. Measured with a timer, they take 76 % of an iteration of 0.07 s on both ranks, and
    the network 23 %.
    """
    torch.manual_seed(92)
    net = nn.Sequential(nn.Linear(28, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    model = DistributedDataParallel(net.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        loader = DataLoader(PackedTables(folder, 4, 1500), batch_size=512)
        for x, paid in loader:  # here
            loss = F.binary_cross_entropy_with_logits(model(x.to(device))[:, 0], paid.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(paid))
            if run.stopping:
                break


def share(table: Tensor, ranks: int) -> None:
    """Make a table the mean of those of all ranks."""
    dist.all_reduce(table)  # here
    table /= ranks  # here


@labelled(cpu="communication-bound", ranks=2, helpers=(share,))
def senses_of_words(run: hoptui.Run, device: str) -> None:
    """Senses of words are learned from their neighbours. The whole table is averaged after each step.

    The gradients of the table are sparse, so it is not wrapped. The table has 80 MB. Measured with a timer,
    averaging takes 84 to 86 % of an iteration of 0.16 s on both ranks, and the model 13 %.
    """
    torch.manual_seed(93)
    table = nn.Embedding(200_000, 100, sparse=True).to(device)
    optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=1e-3)
    rng = torch.Generator().manual_seed(dist.get_rank())
    while not run.stopping:
        words, near = torch.randint(0, 200_000, (2, 256), generator=rng).to(device)
        far = torch.randint(0, 200_000, (256, 5), generator=rng).to(device)
        one = table(words)
        good = F.logsigmoid((one * table(near)).sum(1))
        bad = F.logsigmoid(-(table(far) @ one[..., None])[..., 0]).sum(1)
        loss = -(good + bad).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        share(table.weight.data, dist.get_world_size())  # here
        run.log(loss=loss.item(), samples=256)
