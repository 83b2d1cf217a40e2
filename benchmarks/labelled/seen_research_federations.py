"""Trainings of many small parts: clients of a federation, partitions of a graph, and populations."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import copy
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled


class Participant:
    """A participant with its own handwriting, who trains a copy of the model."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.rand(64, 1, 28, 28, generator=generator)
        self.y = torch.randint(0, 10, (64,), generator=generator)
        self.device = torch.device("cpu")

    def update(self, model: nn.Module, batch_size: int = 16) -> tuple[dict[str, Tensor], float]:
        """Train for one batch, and return the weights and the loss."""
        local = copy.deepcopy(model).to(self.device)
        opt = torch.optim.SGD(local.parameters(), lr=0.05)
        rows = torch.randint(0, len(self.x), (batch_size,))
        loss = F.cross_entropy(local(self.x[rows]), self.y[rows])
        loss.backward()
        opt.step()
        return local.state_dict(), loss.item()


@labelled(gpu="wrong-device", cpu="healthy")
def fedavg_simulation(run: hoptui.Run, device: str) -> None:
    """Federated averaging: the model of the server is on the device, and its clients train on the CPU.

    Two convolutions on 16 digits are 16 x 784 x 64 x 32 x 9 x 2 = 460 MFLOP, 1.4 GFLOP with the backward
    pass: more than 12 ms for each of 8 clients, about 100 ms a round. The average of 8 x 80 000 weights on
    the device needs less than 5 ms.
    """
    server = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(64 * 49, 10),
    ).to(device)
    clients = [Participant(seed) for seed in range(20)]
    rng = random.Random(0)
    while not run.stopping:
        losses, updates = [], []
        for client in rng.sample(clients, 8):
            weights, loss = client.update(server)
            updates.append(weights)
            losses.append(loss)
        state = server.state_dict()
        for name in state:
            state[name] = torch.stack([update[name].to(device) for update in updates]).mean(0)
        server.load_state_dict(state)
        run.log(loss=sum(losses) / len(losses), samples=8 * 16)


class GradientCompressor:
    """Keeps the largest gradients of a client, and adds the rest to those of later rounds."""

    def __init__(self, model: nn.Module, ratio: float, momentum: float = 0.9) -> None:
        self.ratio, self.momentum = ratio, momentum
        self.velocity: dict[nn.Parameter, Any] = {}
        self.residual: dict[nn.Parameter, Any] = {}
        self.sent = 0
        for p in model.parameters():
            self.velocity[p] = np.zeros(p.numel(), np.float32)
            self.residual[p] = np.zeros(p.numel(), np.float32)
            p.register_post_accumulate_grad_hook(self.compress)

    def compress(self, p: nn.Parameter) -> None:
        assert p.grad is not None
        velocity, residual = self.velocity[p], self.residual[p]
        velocity *= self.momentum  # here
        velocity += p.grad.cpu().numpy().ravel()  # here
        residual += velocity  # here
        size = np.abs(residual)  # here
        sent = size >= np.quantile(size, 1 - self.ratio)  # here
        sparse = np.where(sent, residual, np.float32(0))  # here
        velocity[sent] = 0  # here
        residual[sent] = 0  # here
        self.sent += int(sent.sum())
        p.grad.copy_(torch.from_numpy(sparse).view_as(p))


@labelled(gpu="host-bound", cpu="host-bound", helpers=(GradientCompressor,))
def deep_gradient_compression(run: hoptui.Run, device: str) -> None:
    """Gradients are thinned out by NumPy in a hook of each weight, as for a slow network between clients.

    Of 8.4 million gradients the largest hundredth is kept. A quantile sorts them in part, more than 10 ns
    each, and eight passes of sums and selections take about 1 ns each: more than 90 ms. The
    copies of 2 x 34 MB take less than 12 ms on a GPU, and a step with 2 rows less than 22 ms on a CPU.
    """
    model = nn.Sequential(
        nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1536)
    ).to(device)
    compressor = GradientCompressor(model, ratio=0.01)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    while not run.stopping:
        x, y = torch.randn(2, 512, device=device), torch.randint(0, 1536, (2,), device=device)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(loss=loss.item(), samples=2, sent=compressor.sent)


class EntityPartition:
    """The vectors of a part of all entities, which are on the device only while they are trained."""

    def __init__(self, entities: int, dim: int) -> None:
        self.stored = torch.empty(entities, dim).normal_(std=0.1)
        self.loaded: Tensor | None = None

    def load(self, device: str) -> Tensor:
        self.loaded = self.stored.to(device)  # here
        return self.loaded

    def store(self) -> None:
        assert self.loaded is not None
        self.stored.copy_(self.loaded)  # here
        self.loaded = None


@labelled(gpu="transfer-bound", cpu="healthy", helpers=(EntityPartition,))
def knowledge_graph_in_partitions(run: hoptui.Run, device: str) -> None:
    """Vectors of entities are swapped in and out for each bucket of edges, as PyTorch-BigGraph does.

    On a GPU: two partitions of 1 million x 128 numbers are 1.02 GB up, and as much down, from pageable
    memory: more than 120 ms at less than 16 GB/s. The bucket has 4096 edges, of which only the rows
    that occur get gradients: less than 10 ms. On the CPU nothing is copied, and 16 384 edges are trained.
    """
    cpu = device == "cpu"
    entities, edges, dim, lr = (20_000 if cpu else 1_000_000), (16_384 if cpu else 4096), 128, 0.1
    partitions = [EntityPartition(entities, dim) for _ in range(6)]
    relations = nn.Embedding(50, dim).to(device)
    optimizer = torch.optim.Adagrad(relations.parameters(), lr=0.01)
    rng = random.Random(0)
    while not run.stopping:
        lhs, rhs = rng.sample(partitions, 2)
        heads, tails = lhs.load(device), rhs.load(device)
        source, target = (torch.randint(0, entities, (edges,), device=device) for _ in range(2))
        kind = torch.randint(0, 50, (edges,), device=device)
        h, t = (part[rows].requires_grad_() for part, rows in ((heads, source), (tails, target)))
        moved = h + relations(kind)
        positive = F.pairwise_distance(moved, t)
        negative = F.pairwise_distance(moved, t.roll(1, 0))
        loss = F.relu(1 + positive - negative).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for part, rows, vectors in ((heads, source, h), (tails, target, t)):
            assert vectors.grad is not None
            part.index_add_(0, rows, vectors.grad, alpha=-lr)
        lhs.store()
        rhs.store()
        run.log(loss=loss.item(), samples=edges)


class PopulationMember:
    """One of a population: a model, its rate of learning, and its files."""

    def __init__(self, number: int, device: str, folder: Path) -> None:
        self.path = folder / f"member_{number}.pt"
        self.model = nn.Sequential(nn.EmbeddingBag(100_000, 128, sparse=True), nn.Linear(128, 2)).to(device)
        self.lr, self.score = 10 ** random.Random(number).uniform(-2, 0), 0.0
        self.device = device

    def train(self) -> float:
        ids = torch.randint(0, 100_000, (64, 20), device=self.device)
        y = (ids.sum(1) % 2).to(self.device)
        loss = F.cross_entropy(self.model(ids), y)
        self.model.zero_grad()
        loss.backward()
        opt = torch.optim.SGD(self.model.parameters(), lr=self.lr)
        opt.step()
        self.score = 0.9 * self.score - 0.1 * loss.item()
        return loss.item()

    def checkpoint(self) -> None:
        torch.save({"model": self.model.state_dict(), "lr": self.lr, "score": self.score}, self.path)  # here

    def exploit(self, other: PopulationMember) -> None:
        self.model.load_state_dict(torch.load(other.path, map_location=self.device))
        self.lr = other.lr * random.choice((0.8, 1.25))


@labelled(gpu="save-bound", cpu="save-bound", helpers=(PopulationMember,))
def population_based_training(run: hoptui.Run, device: str) -> None:
    """Each of four members of a population writes its weights in each generation, for others to copy.

    A member has 12.8 million weights, 51 MB, and a generation 205 MB: more than 100 ms at 2 GB/s. Gradients
    are sparse, and four steps with 64 x 20 rows need less than 20 ms. The worst copies the best in every
    50th generation.
    """
    with tempfile.TemporaryDirectory() as folder:
        population = [PopulationMember(n, device, Path(folder)) for n in range(4)]
        generation = 0
        while not run.stopping:
            losses = []
            for member in population:
                losses.append(member.train())
                member.checkpoint()
            generation += 1
            if generation % 50 == 0:
                ranked = sorted(population, key=lambda member: member.score)
                ranked[0].exploit(ranked[-1])
            run.log(loss=min(losses), samples=4 * 64)


class CoordinatewiseLSTM(nn.Module):
    """An optimizer that is learned: one small LSTM for all coordinates, in the manner of L2O."""

    def __init__(self, hidden: int = 20) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(2, hidden), nn.Linear(hidden, 1)
        self.hidden = hidden

    def forward(self, grad: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        flat = grad.detach().reshape(-1, 1)
        size = flat.abs().clamp(min=1e-8).log() / 10
        h, c = self.cell(torch.cat([size, flat.sign()], 1), state)
        return 0.01 * self.out(h).view_as(grad), (h, c)


@labelled(gpu="launch-bound", cpu="healthy")
def learned_optimizer(run: hoptui.Run, device: str) -> None:
    """An optimizer is learned by unrolling 20 of its steps on a small network with 6 tensors of weights.

    A step has 6 x 15 kernels for the updates, 30 for the loss and its gradients, and as many again for the
    outer gradient: more than 250, or 5000 for 20 steps. They work on at most 320 x 20 numbers and take 2
    microseconds each on a GPU: 10 ms. With autograd a launch takes the host more than 8 microseconds: more
    than 40 ms. On the CPU it is unrolled over 5 steps.
    """
    steps = 5 if device == "cpu" else 20
    meta = CoordinatewiseLSTM().to(device)
    meta_opt = torch.optim.Adam(meta.parameters(), lr=1e-3)
    shapes = [(16, 20), (16,), (16, 16), (16,), (4, 16), (4,)]
    while not run.stopping:
        x, y = torch.randn(32, 20, device=device), torch.randint(0, 4, (32,), device=device)
        weights = [0.1 * torch.randn(shape, device=device) for shape in shapes]
        states = [tuple(torch.zeros(2, w.numel(), meta.hidden, device=device)) for w in weights]
        total = torch.zeros((), device=device)
        for _ in range(steps):
            weights = [w if w.requires_grad else w.requires_grad_() for w in weights]
            hidden = F.relu(F.linear(x, weights[0], weights[1]))
            hidden = F.relu(F.linear(hidden, weights[2], weights[3]))
            loss = F.cross_entropy(F.linear(hidden, weights[4], weights[5]), y)
            grads = torch.autograd.grad(loss, weights, retain_graph=True)
            total = total + loss
            for n, grad in enumerate(grads):
                update, states[n] = meta(grad, states[n])
                weights[n] = weights[n] - update
        meta_opt.zero_grad()
        (total / steps).backward()
        meta_opt.step()
        run.log(loss=total.item() / steps, samples=steps * 32)
