"""Trainings on graphs: cliques, large networks, circuits, and facts about entities."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled

NEEDS = ("torch_geometric",)


class ConditionalExpectation:
    """Rounds probabilities of nodes to a clique, node after node, by the method of Erdos."""

    def __init__(self, adjacency: Any, penalty: float = 4.0) -> None:
        self.adjacency, self.absent = adjacency, 1.0 - adjacency - np.eye(len(adjacency))
        self.penalty = penalty

    def expected(self, p: Any) -> float:
        """Return the expected loss when each node is drawn by itself."""
        return float(self.penalty * p @ (self.absent @ p) - p @ (self.adjacency @ p))  # here

    def __call__(self, probabilities: Any) -> set[int]:
        p = probabilities.astype(np.float64)
        for node in np.argsort(-p):
            p[node] = 1.0
            taken = self.expected(p)  # here
            p[node] = 0.0
            if taken < self.expected(p):  # here
                p[node] = 1.0
        return set(np.flatnonzero(p).tolist())


@labelled(gpu="host-bound", cpu="host-bound", needs=NEEDS, helpers=(ConditionalExpectation,))
def erdos_goes_neural(run: hoptui.Run, device: str) -> None:
    """A network learns to find cliques, and the cliques of each step are decoded for the log.

    A decoding of a graph with 320 nodes computes 640 expectations, of two products of a matrix of 102 000
    numbers with a vector: more than 30 microseconds, so more than 19 ms. A batch has 6 graphs: more than 115
    ms. Two layers of GINConv of width 16 on 1920 nodes and 12 000 edges need less than 20 ms.
    """
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GINConv

    nodes, graphs = 320, 6
    generator = torch.Generator().manual_seed(0)
    batch, decoders = [], []
    for _ in range(graphs):
        half = (torch.rand(nodes, nodes, generator=generator) < 0.02).triu(1)
        adjacency = (half | half.T).double()
        decoders.append(ConditionalExpectation(adjacency.numpy()))
        batch.append(Data(x=torch.rand(nodes, 8), edge_index=adjacency.nonzero().T.contiguous()))
    data: Any = Batch.from_data_list(batch).to(device)
    layers = nn.ModuleList(
        GINConv(nn.Sequential(nn.Linear(w, 16), nn.ReLU(), nn.Linear(16, 16))) for w in (8, 16)
    ).to(device)
    head = nn.Linear(16, 1).to(device)
    opt = torch.optim.Adam([*layers.parameters(), *head.parameters()], lr=1e-3)
    row, col = data.edge_index
    while not run.stopping:
        h = data.x
        for conv in layers:
            h = F.normalize(conv(h, data.edge_index)).relu()
        p = head(h).sigmoid()[:, 0]
        inside = (p[row] * p[col]).sum()
        loss = (4 * p.view(graphs, nodes).sum(1).square().sum() - 5 * inside) / graphs
        opt.zero_grad()
        loss.backward()
        opt.step()
        found = p.detach().view(graphs, nodes).cpu().numpy()
        cliques = [decode(q) for decode, q in zip(decoders, found, strict=True)]  # here
        run.log(loss=loss.item(), clique=max(map(len, cliques)), samples=graphs)


class Line:
    """LINE of the second order: edges are drawn by their weights, and the gradient is written down."""

    def __init__(self, nodes: int, edges: int, dim: int, device: str) -> None:
        with torch.device(device):
            self.src, self.dst = torch.randint(0, nodes, (2, edges))
            self.cumulative = torch.rand(edges, dtype=torch.float64).cumsum(0)
            self.vertex, self.context = torch.randn(nodes, dim) / dim, torch.zeros(nodes, dim)
        self.nodes = nodes

    def draw(self, count: int) -> Tensor:
        """Return edges, drawn by their weights."""
        at = torch.rand(count, dtype=torch.float64, device=self.cumulative.device) * self.cumulative[-1]
        return torch.searchsorted(self.cumulative, at)

    def update(self, count: int, lr: float) -> Tensor:
        """Take a step on edges and as many pairs of nodes that are no edges."""
        edge = self.draw(count)
        u, v = self.src[edge], self.dst[edge]
        loss = self.cumulative.new_zeros(())
        for other, label in ((v, 1.0), (torch.randint_like(v, self.nodes), 0.0)):
            a, b = self.vertex[u], self.context[other]
            score = (a * b).sum(-1, keepdim=True)
            pull = lr * (label - score.sigmoid())
            self.vertex.index_add_(0, u, pull * b)
            self.context.index_add_(0, other, pull * a)
            loss -= F.logsigmoid(score if label else -score).mean()
        return loss


@labelled(gpu="memory-latency-bound", cpu="healthy")
def line_on_weighted_citations(run: hoptui.Run, device: str) -> None:
    """LINE on a graph with weighted edges, whose nodes have vectors of four numbers.

    On a GPU: a drawn edge is found in 200 million sums of weights by 28 reads, each of which waits for the
    one before, and about ten of them are in no cache. Its nodes and their vectors are read and written at
    random places of 1 to 1.6 GB, 16 bytes at most. 16 draws of 4 million edges are some 1.3 billion such
    reads: more than 40 ms. What is read in order is less than 35 GB: 7 ms. On the CPU: 2 draws of 131 072 of
    2 million edges.
    """
    cpu = device == "cpu"
    nodes, edges, draws, count = (
        (200_000, 2_000_000, 2, 131_072) if cpu else (64_000_000, 200_000_000, 16, 1 << 22)
    )
    line = Line(nodes, edges, 4, device)
    samples = 0
    while not run.stopping:
        losses = [line.update(count, 0.025) for _ in range(draws)]
        samples += draws * count
        run.log(loss=torch.stack(losses).mean().item(), samples=draws * count)


class CircuitEncoder(nn.Module):
    """Passes messages along the levels of a circuit, each of which waits for the one before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score, self.message = nn.Linear(2 * width, 1), nn.Linear(width, width)
        self.cell = nn.GRUCell(width, width)
        self.kind = nn.Embedding(4, width)

    def forward(self, kinds: Tensor, wires: Tensor) -> Tensor:
        from torch_geometric.utils import scatter, softmax

        levels, gates = kinds.shape
        h: Tensor = self.kind(kinds[0])
        to = torch.arange(gates, device=h.device).repeat_interleave(wires.shape[-1])
        for level in range(1, levels):
            own = self.kind(kinds[level])
            source = h[wires[level].flatten()]
            alpha = softmax(self.score(torch.cat([source, own[to]], -1)), to, num_nodes=gates)
            gathered = scatter(alpha * self.message(source), to, 0, gates)
            h = self.cell(gathered, own)
        return h


@labelled(gpu="launch-bound", cpu="healthy", needs=NEEDS)
def signals_of_deep_circuits(run: hoptui.Run, device: str) -> None:
    """The probabilities of signals are learned level by level, in the manner of DeepGate.

    On a GPU: 160 levels of 48 gates with two inputs. A level has about 30 operations with the softmax of PyG,
    and 45 of its backward pass: 12 000 operations. They take the host more than 5 microseconds each, more
    than 60 ms, and the GPU about 2: 25 ms. On the CPU: 8 levels of 1500 gates with vectors of 96 numbers.
    """
    levels, gates, width = (8, 1500, 96) if device == "cpu" else (160, 48, 32)
    encoder, head = CircuitEncoder(width).to(device), nn.Linear(width, 1).to(device)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-4)
    while not run.stopping:
        kinds = torch.randint(0, 4, (levels, gates), device=device)
        wires = torch.randint(0, gates, (levels, gates, 2), device=device)
        probability = head(encoder(kinds, wires)).sigmoid()
        loss = F.l1_loss(probability, torch.rand(gates, 1, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=gates)


def publish(memory: Any, shape: tuple[int, int], path: str, orders: Any, finished: Any) -> None:
    """Write the vectors that lie in shared memory for the service of answers, whenever it is told to."""
    table = np.frombuffer(memory, np.float32).reshape(shape)
    while orders.get() is not None:
        with Path(path).open("wb") as file:
            np.save(file, table)  # here
            file.flush()
            os.fsync(file.fileno())  # here
        finished.put(True)


@labelled(gpu="save-bound", cpu="save-bound", needs=NEEDS, helpers=(publish,))
def facts_for_a_search_service(run: hoptui.Run, device: str) -> None:
    """TransE of PyG, and a process that publishes the vectors of the entities after each step.

    The vectors are 400 000 x 128 numbers, 205 MB. They are written and synchronised with the disk in more
    than 80 ms at 2.5 GB/s, and the shared memory may only be changed again after that. A step of 256 facts
    has sparse gradients, and some 1000 rows are copied to the shared memory: less than 15 ms together.
    """
    from torch_geometric.nn import TransE

    entities, relations, dim = 400_000, 40, 128
    fork = multiprocessing.get_context("fork")
    memory = fork.RawArray("f", entities * dim)
    orders, finished = fork.Queue(), fork.Queue()
    shared = torch.from_numpy(np.frombuffer(memory, np.float32).reshape(entities, dim))
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder, "entities.npy"))
        args = (memory, (entities, dim), target, orders, finished)
        publisher = fork.Process(target=publish, args=args, daemon=True)
        publisher.start()
        model: Any = TransE(entities, relations, dim, sparse=True).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        shared.copy_(model.node_emb.weight.detach())
        finished.put(True)
        while not run.stopping:
            head = torch.randint(0, entities, (256,), device=device)
            relation = torch.randint(0, relations, (256,), device=device)
            loss = model.loss(head, relation, torch.randint(0, entities, (256,), device=device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            changed = model.node_emb.weight.grad.coalesce().indices()[0]
            rows = model.node_emb.weight.detach()[changed].cpu()
            finished.get()  # here
            shared[changed.cpu()] = rows
            orders.put(True)
            run.log(loss=loss.item(), samples=256)
        finished.get()
        orders.put(None)
        publisher.join()
