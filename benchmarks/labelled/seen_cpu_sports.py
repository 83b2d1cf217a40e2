"""Trainings for sports on the CPU: players on a pitch, poses, rallies, and a game against oneself."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import csv
import io
import multiprocessing
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled


@labelled(cpu="healthy", needs=("torch_geometric",))
def passes_on_a_pitch(run: hoptui.Run, device: str) -> None:
    """Attention of PyG over 22 players tells who gets the next pass. The batches are made beforehand.

    Measured with a timer, 98 % of an iteration of 0.05 s is in the model, its backward pass and its
    optimizer.
    """
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GATv2Conv

    torch.manual_seed(11)
    pairs = torch.cartesian_prod(torch.arange(22), torch.arange(22)).T
    pairs = pairs[:, pairs[0] != pairs[1]]

    def frame() -> Any:
        x = torch.randn(22, 6)
        return Data(
            x=x, edge_index=pairs, edge_attr=x[pairs[0], :2] - x[pairs[1], :2], y=torch.randint(0, 22, (1,))
        )

    frames = [Batch.from_data_list([frame() for _ in range(16)]).to(device) for _ in range(6)]

    class PassNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = GATv2Conv(6, 16, heads=4, edge_dim=2)
            self.second = GATv2Conv(64, 16, heads=4, edge_dim=2)
            self.score = nn.Linear(64, 1)

        def forward(self, data: Any) -> Tensor:
            h = self.first(data.x, data.edge_index, data.edge_attr).relu()
            h = self.second(h, data.edge_index, data.edge_attr).relu()
            scores: Tensor = self.score(h).view(-1, 22)
            return scores

    model = PassNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    rng = random.Random(2)
    while not run.stopping:
        data = rng.choice(frames)
        loss = F.cross_entropy(model(data), data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=16)


def export_joints(path: Path, clip: int, joints: Tensor, sure: Tensor) -> None:
    """Append the joints of a clip to the table for the analysts."""
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        for frame, (places, weights) in enumerate(zip(joints.tolist(), sure.tolist(), strict=True)):
            for n, (xyz, w) in enumerate(zip(places, weights, strict=True)):
                writer.writerow((clip, frame, n, *xyz, w))  # here


@labelled(cpu="save-bound", helpers=(export_joints,))
def poses_of_a_broadcast(run: hoptui.Run, device: str) -> None:
    """Poses are lifted to three dimensions, and the joints of each batch are appended to a table.

    A batch has 16 x 120 x 17 joints, a row for each. Measured with a timer, writing them takes 96 % of an
    iteration of 0.38 s, and the network 3 %.
    """
    torch.manual_seed(12)
    lift = nn.Sequential(nn.Conv1d(34, 64, 3, padding=1), nn.ReLU(), nn.Conv1d(64, 68, 3, padding=1)).to(
        device
    )
    optimizer = torch.optim.Adam(lift.parameters(), lr=1e-3)
    clip = 0
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "joints.csv")
        while not run.stopping:
            flat = torch.randn(16, 34, 120, device=device)
            out = lift(flat).transpose(1, 2).view(16, 120, 17, 4)
            loss = (out[..., :2] - flat.transpose(1, 2).view(16, 120, 17, 2)).abs().mean()
            loss = loss + 0.1 * out[:, 1:].sub(out[:, :-1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            joints, sure = out[..., :3].detach().cpu(), out[..., 3].detach().sigmoid().cpu()
            for n in range(16):
                export_joints(table, clip + n, joints[n], sure[n])  # here
            clip += 16
            if table.stat().st_size > 1 << 26:
                table.unlink()
            run.log(loss=loss.item(), samples=16)


def strokes_apart(said: list[int], played: list[int]) -> int:
    """Return how many strokes differ between two rallies."""
    above = list(range(len(played) + 1))
    for i, one in enumerate(said, 1):
        row = [i]
        for j, other in enumerate(played, 1):  # here
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (one != other)))  # here
        above = row
    return above[-1]


class Logbook:
    """Gathers figures of a training, and prints their means to a text."""

    def __init__(self) -> None:
        self.rows: dict[str, list[float]] = {}
        self.text = io.StringIO()

    def add(self, **figures: float) -> None:
        """Add figures of a step."""
        for name, value in figures.items():
            self.rows.setdefault(name, []).append(value)
        if len(self.rows["loss"]) == 20:
            print({name: sum(row) / len(row) for name, row in self.rows.items()}, file=self.text)
            self.rows.clear()


@labelled(cpu="host-bound", helpers=(strokes_apart,))
def rallies(run: hoptui.Run, device: str) -> None:
    """A network hears the strokes of rallies. How far they are from those played is logged for each batch.

    The distances of 16 rallies go over 80 x 80 cells in Python. Measured with a timer, they take 96 % of
    an iteration of 0.22 s, and the network 2 %.
    """
    torch.manual_seed(13)
    first, second = nn.Conv1d(16, 24, 5, padding=2), nn.Conv1d(24, 12, 5, padding=2)
    ears = nn.Sequential(first, nn.GELU(), second).to(device)
    optimizer = torch.optim.Adam(ears.parameters(), lr=1e-3)
    log = Logbook()
    while not run.stopping:
        strokes = torch.randint(0, 12, (16, 80), device=device)
        sound = F.one_hot(strokes, 16).float().transpose(1, 2)
        scores = ears(sound + 0.3 * torch.randn_like(sound))
        loss = F.cross_entropy(scores, strokes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wrong = 0
        for said, played in zip(scores.argmax(1).tolist(), strokes.tolist(), strict=True):
            wrong += strokes_apart(said, played)  # here
        log.add(loss=loss.item(), error=wrong / strokes.numel())
        run.log(loss=loss.item(), error=wrong / strokes.numel(), samples=16)


def play(job: tuple[list[float], int]) -> tuple[list[list[float]], list[int], float]:
    """Play a short game of two teams with a linear policy, and return what happened."""
    weights, seed = job
    rng = random.Random(seed)
    ball, score = [0.5, 0.5], 0.0
    teams = [[[rng.random(), rng.random()] for _ in range(11)] for _ in range(2)]
    states, moves = [], []
    for _ in range(40):
        near = [min((x - ball[0]) ** 2 + (y - ball[1]) ** 2 for x, y in team) for team in teams]
        state = [*ball, *near, teams[0][0][0], teams[1][0][0]]
        values = [
            sum(w * s for w, s in zip(weights[6 * m : 6 * m + 6], state, strict=True)) for m in range(4)
        ]
        move = max(range(4), key=lambda m: values[m] + rng.gauss(0, 1))
        states.append(state)
        moves.append(move)
        for _ in range(10):
            for team in teams:
                for player in team:  # here
                    for axis in (0, 1):  # here
                        noise = rng.uniform(-0.004, 0.004)  # here
                        player[axis] += 0.01 * (ball[axis] - player[axis]) + noise  # here
            ball[0] = min(1.0, max(0.0, ball[0] + 0.01 * (move % 2 - 0.5) + rng.uniform(-0.01, 0.01)))
            ball[1] = min(1.0, max(0.0, ball[1] + 0.01 * (move // 2 - 0.5)))
        score += ball[0] - 0.5
    return states, moves, score


@labelled(cpu="env-bound", helpers=(play,))
def football_by_reinforce(run: hoptui.Run, device: str) -> None:
    """REINFORCE with games that a pool of two processes plays.

    A game moves 22 players 400 times in Python. Measured with a timer, the loop waits for the games for
    94 % of an iteration of 0.08 s, and the policy takes 3 %.
    """
    torch.manual_seed(14)
    policy = nn.Linear(6, 4, bias=False).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    generation = 0
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        while not run.stopping:
            weights = policy.weight.detach().flatten().tolist()
            games = pool.map(play, [(weights, 1000 * generation + n) for n in range(8)])  # here
            scores = torch.tensor([score for _, _, score in games], device=device)
            advantage = (scores - scores.mean()) / (scores.std() + 1e-6)
            states = torch.tensor([states for states, _, _ in games], device=device)
            moves = torch.tensor([moves for _, moves, _ in games], device=device)
            log_p = policy(states).log_softmax(-1).gather(2, moves[..., None])[..., 0]
            loss = -(log_p.sum(1) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            generation += 1
            run.log(loss=loss.item(), score=scores.mean().item(), env_steps=8 * 40)
