"""Trainings of two processes on the CPU that are done with their work at the same time."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import hoptui
from benchmarks.labelled.catalogue import labelled


class TrackPatches(nn.Module):
    """A transformer over patches of photographs of rails."""

    def __init__(self, patch: int, width: int, depth: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, width, patch, stride=patch)
        self.place = nn.Parameter(0.02 * torch.randn(1, (64 // patch) ** 2, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 3 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(width, 6)

    def forward(self, photographs: Tensor) -> Tensor:
        tokens = self.cut(photographs).flatten(2).transpose(1, 2) + self.place
        scores: Tensor = self.out(self.blocks(tokens).mean(1))
        return scores


@labelled(cpu="healthy", ranks=2)
def rails_of_two_lines(run: hoptui.Run, device: str) -> None:
    """Damage of rails is seen by a transformer over patches. Each rank has the photographs of one line.

    Measured with a timer and one thread, 96 to 99 % of an iteration of 0.14 to 0.19 s is in the model,
    its backward pass and its optimizer. Gradients of 1.2 MB are exchanged in the backward pass.
    """
    torch.manual_seed(41)
    model = DistributedDataParallel(TrackPatches(8, 96, 3).to(device), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    torch.manual_seed(410 + dist.get_rank())
    photographs = torch.rand(400, 1, 64, 64, device=device)
    damage = torch.randint(0, 6, (400,), device=device)
    while not run.stopping:
        rows = torch.randint(0, 400, (16,), device=device)
        loss = F.cross_entropy(model(photographs[rows]), damage[rows], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.log(loss=loss.item(), samples=16)


KNIGHT = ((1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1), (-2, 1), (-1, 2))
WAYS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))


class Openings(Dataset[tuple[Tensor, int]]):
    """Openings of chess as moves, which are replayed to count what each side attacks."""

    def __init__(self, games: int, plies: int) -> None:
        rng = random.Random(42)
        squares = [(x, y) for x in range(8) for y in range(8)]
        self.games = [
            (
                " ".join("{}{}{}{}".format(*rng.choice(squares), *rng.choice(squares)) for _ in range(plies)),
                n % 5,
            )
            for n in range(games)
        ]

    def __len__(self) -> int:
        return 40 * len(self.games)

    def attacked(self, board: list[list[str]]) -> list[list[float]]:
        """Return how often each square is attacked by white, less how often by black."""
        count = [[0.0] * 8 for _ in range(8)]
        for y in range(8):
            for x in range(8):  # here
                piece = board[y][x]  # here
                if piece == ".":  # here
                    continue
                side = 1.0 if piece.isupper() else -1.0
                kind = piece.lower()  # here
                ways = (
                    KNIGHT if kind == "n" else WAYS[:4] if kind == "r" else WAYS[4:] if kind == "b" else WAYS
                )
                for dx, dy in ways:  # here
                    for far in range(1, 8 if kind in "rbq" else 2):  # here
                        to_x, to_y = x + far * dx, y + far * dy  # here
                        if not (0 <= to_x < 8 and 0 <= to_y < 8):  # here
                            break
                        count[to_y][to_x] += side  # here
                        if board[to_y][to_x] != ".":  # here
                            break
        return count

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        moves, opening = self.games[i % len(self.games)]
        board = [list(row) for row in ("RNBQKBNR", "PPPPPPPP", *["." * 8] * 4, "pppppppp", "rnbqkbnr")]
        planes = []
        for move in moves.split():
            from_x, from_y, to_x, to_y = map(int, move)
            board[to_y][to_x], board[from_y][from_x] = board[from_y][from_x], "."
            planes.append(self.attacked(board))  # here
        return torch.tensor(planes), opening  # here


@labelled(cpu="data-bound", ranks=2, helpers=(Openings,))
def openings_on_two_servers(run: hoptui.Run, device: str) -> None:
    """Openings of chess are told apart by what is attacked. Both ranks replay games in their data sets.

    A batch has 64 games of 12 moves. Measured with a timer and one thread, they take 78 to 88 % of an
    iteration of 0.11 to 0.17 s on both ranks, and the network with its exchange 11 to 21 %.
    """
    torch.manual_seed(42)
    net = nn.Sequential(nn.Flatten(2), nn.Linear(64, 24), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 24, 5))
    model = DistributedDataParallel(net.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    openings = Openings(300, 12)
    sampler: Any = DistributedSampler(openings, seed=42)
    loader = DataLoader(openings, batch_size=64, sampler=sampler)
    epoch = 0
    while not run.stopping:
        sampler.set_epoch(epoch)
        for planes, opening in loader:  # here
            loss = F.cross_entropy(model(planes.to(device)), opening.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), epoch=epoch, samples=len(opening))
            if run.stopping:
                break
        epoch += 1


class SumForward(torch.autograd.Function):
    """The sum of what all ranks have. Gradients pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the sum."""
        total = x.clone()
        dist.all_reduce(total)  # here
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Return the gradient as it is."""
        return grads[0]


class SumBackward(torch.autograd.Function):
    """What is given. Its gradient is the sum of those of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return what is given."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Return the sum of the gradients."""
        total = grads[0].clone()
        dist.all_reduce(total)  # here
        return total


class SplitBlock(nn.Module):
    """A perceptron whose hidden units are split among the ranks."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.enter = nn.Linear(width, hidden // dist.get_world_size())
        self.leave = nn.Linear(hidden // dist.get_world_size(), width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add to a tensor of any number of rows."""
        part = self.leave(F.gelu(self.enter(SumBackward.apply(self.norm(x)))))
        total: Tensor = x + SumForward.apply(part)
        return total


@labelled(cpu="communication-bound", ranks=2, helpers=(SumForward, SumBackward))
def fares_of_split_layers(run: hoptui.Run, device: str) -> None:
    """Fares are learned by a deep perceptron whose layers are split among the ranks.

    There are 48 sums of 48 KB in a step. Measured with a timer and one thread, they take 75 % of an
    iteration of 0.11 s on both ranks.
    """
    torch.manual_seed(43)
    trips = torch.randn(4000, 24, device=device)
    fares = trips[:, :5].square().sum(1)
    enter, leave = nn.Linear(24, 128), nn.Linear(128, 1)
    torch.manual_seed(430 + dist.get_rank())
    blocks = [SplitBlock(128, 64) for _ in range(24)]
    model = nn.Sequential(enter, *blocks, leave).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    chosen = torch.Generator().manual_seed(43)
    while not run.stopping:
        rows = torch.randint(0, 4000, (96,), generator=chosen).to(device)
        loss = F.smooth_l1_loss(model(trips[rows])[:, 0], fares[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=len(rows))
