"""Loads of an earlier held-out lot, development loads since: Python, saving, copies or another rank."""

from __future__ import annotations

import io
import os
import random
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled


def edit_distance(a: list[int], b: list[int]) -> int:
    """Insertions, deletions and substitutions between two texts."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):  # here
        before, row[0] = row[0], i  # here
        for j, y in enumerate(b, 1):  # here
            best = min(row[j] + 1, row[j - 1] + 1, before + (x != y))  # here
            before, row[j] = row[j], best  # here
    return row[-1]


@labelled(gpu="host-bound", cpu="host-bound", helpers=(edit_distance,))
def error_rate_of_each_batch(run: hoptui.Run, device: str) -> None:
    """Speech: the word error rate is computed for each batch of training."""
    gru, head = nn.GRU(16, 32, batch_first=True).to(device), nn.Linear(32, 40).to(device)
    optimizer = torch.optim.Adam([*gru.parameters(), *head.parameters()], 1e-3)
    x, y = torch.randn(6, 20, 16, device=device), torch.randint(0, 40, (6, 120), device=device)
    while not run.stopping:
        logits = head(gru(x)[0]).repeat(1, 6, 1)
        loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        guesses, texts = logits.argmax(-1).tolist(), y.tolist()
        errors = [edit_distance(guess, text) for guess, text in zip(guesses, texts, strict=True)]
        run.log(loss=loss.item(), error_rate=sum(errors) / 720, samples=6)


def overlap(a: list[float], b: list[float]) -> float:
    """The intersection of two boxes over their union."""
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])  # here
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])  # here
    common = max(0.0, width) * max(0.0, height)  # here
    return common / (a[2] * a[3] + b[2] * b[3] - common + 1e-9)  # here


def match(boxes: list[list[float]], targets: list[list[float]]) -> list[int]:
    """For each target, the box that covers most of it and is free."""
    free, chosen = set(range(len(boxes))), []
    for target in targets:
        best = max(free, key=lambda i: overlap(boxes[i], target))  # here
        free.discard(best)
        chosen.append(best)
    return chosen


@labelled(gpu="host-bound", cpu="host-bound", helpers=(overlap, match))
def boxes_matched_in_python(run: hoptui.Run, device: str) -> None:
    """Detection: boxes are matched with targets between the forward pass and the loss."""
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    optimizer = torch.optim.AdamW(net.parameters())
    queries = torch.randn(4, 150, 32, device=device)
    targets = torch.rand(4, 40, 4, device=device)
    while not run.stopping:
        boxes = net(queries).sigmoid()
        pairs = [match(*each) for each in zip(boxes.tolist(), targets.tolist(), strict=True)]
        picked = torch.stack([boxes[i, torch.tensor(pair, device=device)] for i, pair in enumerate(pairs)])
        loss = functional.l1_loss(picked, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        run.log(loss=loss.item(), samples=4)


@labelled(gpu="host-bound", cpu="host-bound")
def histograms_of_weights(run: hoptui.Run, device: str) -> None:
    """A histogram of each weight and many metrics, after each step."""
    table = nn.Embedding(30_000, 32).to(device)
    net = nn.Linear(32, 8).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    summary: dict[str, Any] = {}
    while not run.stopping:
        loss = net(table(torch.randint(0, 30_000, (64,), device=device))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, weight in [*table.named_parameters(), *net.named_parameters("head")]:
            values = weight.detach().cpu().numpy().ravel()
            summary[name] = np.histogram(values, bins=np.quantile(values, np.linspace(0, 1, 30)))  # here
        norms = {f"norm_{name.replace('.', '_')}": p.norm().item() for name, p in net.named_parameters()}
        run.log(loss=loss.item(), samples=64, **norms)


def ngrams(text: list[int]) -> Counter[tuple[int, ...]]:
    """Count the pieces of one to four tokens."""
    return Counter(tuple(text[i : i + n]) for n in range(1, 5) for i in range(len(text) - n))  # here


@labelled(gpu="host-bound", cpu="host-bound", helpers=(ngrams,))
def bleu_in_the_loop(run: hoptui.Run, device: str) -> None:
    """Translation: a score of the guesses is the reward of the step."""
    net = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50)).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    texts = torch.randint(0, 50, (8, 100), device=device)
    references = [[random.choices(range(50), k=100) for _ in range(8)] for _ in range(8)]
    while not run.stopping:
        policy = torch.distributions.Categorical(logits=net(texts))
        sampled = policy.sample()
        scores = []
        for guess, texts_of_others in zip(sampled.tolist(), references, strict=True):
            found = ngrams(guess)
            common = [(found & ngrams(text)).total() for text in texts_of_others]  # here
            scores.append(max(common) / found.total())
        reward = torch.tensor(scores, device=device)[:, None]
        loss = -(policy.log_prob(sampled) * (reward - reward.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), bleu=sum(scores) / 8, samples=8)


class Tagger(nn.Module):
    """A small head on a frozen table of embeddings, which checkpoints contain too."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 64)
        self.words.weight.requires_grad_(False)
        self.head = nn.Linear(64, 9)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(ids))
        return out


def fit(net: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> float:
    """One step of training of a tagger."""
    loss = functional.cross_entropy(net(ids), ids % 9)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@labelled(gpu="save-bound", cpu="save-bound")
def checkpoint_every_third_step(run: hoptui.Run, device: str) -> None:
    """A checkpoint that replaces the one before as a whole."""
    net = Tagger(200_000).to(device)
    optimizer = torch.optim.Adam(net.head.parameters())
    ids, step = torch.randint(0, 200_000, (64,), device=device), 0
    with tempfile.TemporaryDirectory() as folder:
        while not run.stopping:
            loss, step = fit(net, optimizer, ids), step + 1
            if step % 3 == 1:
                part = Path(folder) / "checkpoint.part"
                state = {"net": net.state_dict(), "adam": optimizer.state_dict(), "step": step}
                with part.open("wb") as file:
                    torch.save(state, file)  # here
                    os.fsync(file.fileno())  # here
                part.replace(Path(folder) / "checkpoint.pt")
            run.log(loss=loss, samples=64)


@labelled(gpu="save-bound", cpu="save-bound")
def compressed_snapshots(run: hoptui.Run, device: str) -> None:
    """An average of the weights, saved in a compressed archive after each step."""
    net = Tagger(12_000).to(device)
    average = {name: weight.clone() for name, weight in net.state_dict().items()}
    optimizer = torch.optim.SGD(net.head.parameters(), 0.1)
    ids = torch.randint(0, 12_000, (32,), device=device)
    with tempfile.TemporaryDirectory() as folder:
        while not run.stopping:
            loss = fit(net, optimizer, ids)
            for name, weight in net.state_dict().items():
                average[name].lerp_(weight, 0.01)
            with run.phase("checkpoint"):
                arrays: dict[str, Any] = {name: weight.cpu().numpy() for name, weight in average.items()}
                np.savez_compressed(Path(folder) / "average.npz", **arrays)  # here
            run.log(loss=loss, samples=32)


@labelled(gpu="save-bound", cpu="save-bound")
def weights_in_a_database(run: hoptui.Run, device: str) -> None:
    """The state of a run is committed to a table of SQLite after each step."""
    net = Tagger(120_000).to(device)
    optimizer = torch.optim.SGD(net.head.parameters(), 0.1)
    ids = torch.randint(0, 120_000, (32,), device=device)
    with tempfile.TemporaryDirectory() as folder:
        database = sqlite3.connect(Path(folder) / "state.db")
        database.execute("create table state (name text primary key, weight blob)")

        def save_state() -> None:
            for name, weight in net.state_dict().items():
                packed = io.BytesIO()
                torch.save(weight, packed)  # here
                row = (name, packed.getbuffer())
                database.execute("insert or replace into state values (?, ?)", row)  # here
            database.commit()  # here

        while not run.stopping:
            loss = fit(net, optimizer, ids)
            save_state()
            run.log(loss=loss, samples=32)
        database.close()


@labelled(gpu="transfer-bound")
def activations_kept_on_the_host(run: hoptui.Run, device: str) -> None:
    """Activations are offloaded in the forward pass, and come back in the backward pass."""
    net = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(1024, 1024), nn.Tanh()))).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    x = torch.randn(16_384, 1024, device=device)
    while not run.stopping:
        with torch.autograd.graph.save_on_cpu():
            loss = net(x).square().mean()  # here
        optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()
        run.log(loss=loss.item(), samples=16_384)


@labelled(gpu="transfer-bound")
def frames_of_a_replay_buffer(run: hoptui.Run, device: str) -> None:
    """Recurrent Q-learning: stretches of frames from a buffer in the memory of the host."""
    frames = torch.randint(0, 255, (20_000, 4, 84, 84), dtype=torch.uint8)
    net = nn.Sequential(nn.AvgPool2d(12), nn.Flatten(), nn.Linear(196, 18)).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    while not run.stopping:
        start = random.randrange(12_000)
        seen = frames[start : start + 8000].to(device)  # here
        loss = net(seen.float() / 255).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=8000)


@labelled(gpu="transfer-bound")
def teacher_that_comes_and_goes(run: hoptui.Run, device: str) -> None:
    """Distillation: the teacher is on the GPU for its forward pass alone."""
    teacher = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(6)))
    student = nn.Linear(4096, 4096).to(device)
    optimizer = torch.optim.SGD(student.parameters(), 1e-3)
    x = torch.randn(256, 4096, device=device)
    while not run.stopping:
        teacher.to(device)  # here
        with torch.no_grad():
            wanted = teacher(x)
        teacher.to("cpu")  # here
        loss = functional.mse_loss(student(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=256)


def average_gradients(net: nn.Module) -> None:
    """Average the gradients of all ranks."""
    flat = nn.utils.parameters_to_vector([p.grad for p in net.parameters() if p.grad is not None])
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(
        flat / dist.get_world_size(), [p.grad for p in net.parameters() if p.grad is not None]
    )


@labelled(cpu="straggler", ranks=2)
def rank_zero_validates(run: hoptui.Run, device: str) -> None:
    """The first rank validates after each step, and the other one waits for it at the next exchange."""
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    x, held_back = torch.randn(64, 64), torch.randn(49_152, 64)
    while not run.stopping:
        loss = functional.mse_loss(net(x), x)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(net)
        optimizer.step()
        if dist.get_rank() == 0:
            with torch.no_grad():
                for part in held_back.split(1024):
                    functional.mse_loss(net(part), part).item()  # here
        run.log(loss=loss.item(), samples=64)


@labelled(cpu="straggler", ranks=2)
def longer_texts_on_one_rank(run: hoptui.Run, device: str) -> None:
    """Texts were sorted by length before they were divided, so one rank has ten times the tokens."""
    net = nn.GRU(64, 64, batch_first=True).to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    x = torch.randn(8, 20 if dist.get_rank() == 0 else 200, 64)
    while not run.stopping:
        loss = net(x)[0].square().mean()  # here
        optimizer.zero_grad()
        loss.backward()  # here
        average_gradients(net)
        optimizer.step()
        run.log(loss=loss.item(), samples=8)
