"""Trainings of two processes on the CPU. One has more to do than the other, or waits longer."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import bz2
import json
import math
import pickle
import random
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import labelled


def average(model: nn.Module) -> None:
    """Average the gradients of all ranks, as one flat tensor."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = nn.utils.parameters_to_vector(grads)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for grad in grads:
        grad.copy_(flat[at : at + grad.numel()].view_as(grad))
        at += grad.numel()


class Archive:
    """An archive of waveforms, asked over a connection. It answers after the latency of its network."""

    def __init__(self, latency: float, seed: int) -> None:
        self.near, far = socket.socketpair()
        waves = torch.randn(64, 3, 200, generator=torch.Generator().manual_seed(seed))
        self.shape = waves.shape[1:]

        def answer() -> None:
            pause = threading.Event()
            while request := far.recv(64):
                pause.wait(latency)
                rows = [int(n) % len(waves) for n in request.split(b",")]
                far.sendall(waves[rows].numpy().tobytes())

        threading.Thread(target=answer, daemon=True).start()

    def get(self, rows: list[int]) -> Tensor:
        """Return some waveforms."""
        self.near.sendall(",".join(map(str, rows)).encode())
        size, blob = 4 * len(rows) * math.prod(self.shape), bytearray()
        while len(blob) < size:
            blob += self.near.recv(1 << 16)  # here
        return torch.frombuffer(blob, dtype=torch.float32).view(len(rows), *self.shape)

    def close(self) -> None:
        """End the connection."""
        self.near.shutdown(socket.SHUT_RDWR)


@labelled(cpu="straggler", ranks=2, late=1, helpers=(Archive,))
def quakes_of_two_networks(run: hoptui.Run, device: str) -> None:
    """Phases of earthquakes are picked. Each rank asks an archive of its own, and that of the second is far.

    Measured with a timer, the second rank waits for its archive for 94 % of an iteration of 0.17 s, and the
    first one for 1 %.
    """
    rank = dist.get_rank()
    archive = Archive(0.16 if rank == 1 else 0.0002, rank)
    torch.manual_seed(81)
    picker = nn.Sequential(nn.Conv1d(3, 16, 7, padding=3), nn.ReLU(), nn.Conv1d(16, 3, 7, padding=3))
    model = DistributedDataParallel(picker.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rng = random.Random(rank)
    while not run.stopping:
        waves = archive.get([rng.randrange(64) for _ in range(12)]).to(device)  # here
        phases = waves.abs().argmax(1)
        loss = F.cross_entropy(model(waves), phases)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=len(waves))
    archive.close()


def hits_of_neighbours(known: list[list[float]], asked: list[list[float]], k: int) -> float:
    """Return how many of the nearest sentences are translations."""
    hits = 0
    for n, query in enumerate(asked):
        near = []
        for m, key in enumerate(known):
            near.append((sum(q * v for q, v in zip(query, key, strict=True)), m))  # here
        near.sort(reverse=True)  # here
        hits += any(m == n for _, m in near[:k])
    return hits / len(asked)


@labelled(cpu="straggler", ranks=2, late=0, helpers=(hits_of_neighbours,))
def sentences_of_two_languages(run: hoptui.Run, device: str) -> None:
    """Sentences of two languages are brought together. The first rank looks at neighbours after each step.

    It compares 200 x 200 sentences in Python. Measured with a timer, this takes 80 % of an iteration of 0.09
    s on the first rank. The second one has nothing of it.
    """
    torch.manual_seed(82)
    rank = dist.get_rank()
    encoders = nn.ModuleList(
        nn.Sequential(nn.EmbeddingBag(3000, 64), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 16))
        for _ in range(2)
    ).to(device)
    optimizer = torch.optim.Adam(encoders.parameters(), lr=2e-3)
    torch.manual_seed(83 + rank)
    while not run.stopping:
        words = torch.randint(0, 3000, (200, 18), device=device)
        one = F.normalize(encoders[0](words))
        other = F.normalize(encoders[1]((words * 7 + 11) % 3000))
        logits = one @ other.T / 0.07
        target = torch.arange(200, device=device)
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        average(encoders)
        optimizer.step()
        hits = 0.0
        if rank == 0:
            hits = hits_of_neighbours(one.tolist(), other.tolist(), 5)  # here
        run.log(loss=loss.item(), hits=hits, samples=200)


class Keeper:
    """Keeps a training, as one file that the next stage reads."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder, "positions.bz2")

    def keep(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write everything."""
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        blob = pickle.dumps(state)  # here
        self.path.write_bytes(bz2.compress(blob, 5))  # here


@labelled(cpu="straggler", ranks=2, late=0, helpers=(Keeper,))
def portfolios_of_two_desks(run: hoptui.Run, device: str) -> None:
    """Two desks train one network for their positions. The first rank keeps it after each step.

    Weights and moments are packed by bzip2. Measured with a timer, this takes 76 to 84 % of an iteration of
    0.1 s on the first rank. The second one waits at a barrier.
    """
    torch.manual_seed(84)
    net = nn.Sequential(nn.Linear(60, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 60))
    model = DistributedDataParallel(net.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    with tempfile.TemporaryDirectory() as folder:
        keeper, step = Keeper(folder), 0
        while not run.stopping:
            returns = 0.01 * torch.randn(256, 60, device=device)
            weights = model(returns * 50).softmax(1)
            earned = (weights * (returns + 0.001)).sum(1)
            loss = earned.std() - 2 * earned.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if dist.get_rank() == 0:
                keeper.keep(step, net, optimizer)  # here
            dist.barrier()
            run.log(loss=loss.item(), samples=256)


class Notes(Dataset[tuple[list[int], int]]):
    """Notes of doctors. Those of one hospital are long, and have words without spaces."""

    def __init__(self, folder: str, spaced: bool) -> None:
        rng = random.Random(85)
        self.words = {"".join(rng.choices("abcdefgh", k=rng.randrange(2, 7))): n + 1 for n in range(1500)}
        self.spaced, listed = spaced, list(self.words)
        self.path = Path(folder, "notes.jsonl")
        notes = ((" " if spaced else "").join(rng.choices(listed, k=60)) for _ in range(200))
        rows = [json.dumps({"note": note, "code": n % 8}) for n, note in enumerate(notes)]
        self.path.write_text("\n".join(rows))
        self.rows = self.path.read_text().splitlines()

    def __len__(self) -> int:
        return 100 * len(self.rows)

    def longest(self, text: str) -> Iterator[int]:
        """Yield the longest words from both ends, whichever way has fewer."""
        ways = []
        for back in (False, True):
            rest, found = text, []
            while rest:
                for size in range(min(6, len(rest)), 0, -1):  # here
                    piece = rest[-size:] if back else rest[:size]  # here
                    if piece in self.words or size == 1:  # here
                        break
                found.append(self.words.get(piece, 0))  # here
                rest = rest[:-size] if back else rest[size:]  # here
            ways.append(found[::-1] if back else found)
        yield from min(ways, key=len)

    def __getitem__(self, i: int) -> tuple[list[int], int]:
        row = json.loads(self.rows[i % len(self.rows)])
        if self.spaced:
            return [self.words[word] for word in row["note"].split()], row["code"]
        return list(self.longest(row["note"])), row["code"]  # here


def together(notes: list[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
    """Return the first words of each note, and their codes."""
    words = [(ids + [0] * 40)[:40] for ids, _ in notes]
    return torch.tensor(words), torch.tensor([code for _, code in notes])


@labelled(cpu="straggler", ranks=2, late=1, helpers=(Notes,))
def notes_of_two_hospitals(run: hoptui.Run, device: str) -> None:
    """Two hospitals train one network to code their notes. The second one has to find the words first.

    A batch has 256 notes. Measured with a timer, they take 70 to 77 % of an iteration of 0.07 to 0.1 s on the
    second rank, and 11 to 15 % on the first one.
    """
    torch.manual_seed(86)
    net = nn.Sequential(nn.EmbeddingBag(1600, 64), nn.ReLU(), nn.Linear(64, 8))
    model: Any = DistributedDataParallel(net.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        notes = Notes(folder, spaced=dist.get_rank() == 0)
        loader: Any = DataLoader(notes, batch_size=256, shuffle=True, collate_fn=together)
        for words, codes in loader:  # here
            loss = F.cross_entropy(model(words.to(device)), codes.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(codes))
            if run.stopping:
                break


class Arms:
    """Arms of three joints that carry something. More joints need more parts of a second."""

    def __init__(self, arms: int, parts: int, seed: int) -> None:
        self.rng, self.parts = random.Random(seed), parts
        self.angle = [[self.rng.uniform(-1, 1) for _ in range(3)] for _ in range(arms)]
        self.speed = [[0.0] * 3 for _ in range(arms)]

    def move(self, pushes: list[list[float]]) -> tuple[list[list[float]], list[float]]:
        """Push all joints for a while, and return where they are and what that is worth."""
        for angle, speed, push in zip(self.angle, self.speed, pushes, strict=True):
            for _ in range(self.parts):  # here
                bent = angle[0] + angle[1] + angle[2]  # here
                for joint in range(3):  # here
                    pull = -math.sin(bent) * (3 - joint) - 0.4 * speed[joint] + 3 * push[joint]  # here
                    speed[joint] += pull * 0.05 / self.parts  # here
                    turned = angle[joint] + speed[joint] * 0.05 / self.parts  # here
                    angle[joint] = max(-3.0, min(3.0, turned))  # here
        seen = [[*angle, *speed] for angle, speed in zip(self.angle, self.speed, strict=True)]
        return seen, [-abs(1.2 - sum(angle)) for angle in self.angle]


@labelled(cpu="straggler", ranks=2, late=1, helpers=(Arms,))
def arms_of_two_stations(run: hoptui.Run, device: str) -> None:
    """Each rank moves sixteen arms, and gradients are averaged. Those of the second one are simulated finely.

    A tick has 160 parts there, and 3 on the first rank. Measured with a timer, ticks take 69 to 77 % of an
    iteration of 0.08 s on the second rank, and 1 to 3 % on the first one.
    """
    rank = dist.get_rank()
    torch.manual_seed(87)
    policy = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 4)).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    arms = Arms(16, 160 if rank == 1 else 3, rank)
    torch.manual_seed(rank)
    seen = [[0.0] * 6 for _ in range(16)]
    while not run.stopping:
        log_p, values, worth = [], [], []
        for _ in range(10):
            out = policy(torch.tensor(seen, device=device))
            push = torch.distributions.Normal(out[:, :3], 0.4)
            chosen = push.sample()
            seen, gains = arms.move(chosen.tolist())  # here
            log_p.append(push.log_prob(chosen).sum(1))
            values.append(out[:, 3])
            worth.append(gains)
        goal = torch.tensor(worth, device=device).flip(0).cumsum(0).flip(0) / 10
        value = torch.stack(values)
        loss = -(torch.stack(log_p) * (goal - value.detach())).mean() + F.mse_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        average(policy)
        optimizer.step()
        run.log(loss=loss.item(), reward=goal[0].mean().item(), env_steps=160)
