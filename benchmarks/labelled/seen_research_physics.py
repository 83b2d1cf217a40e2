"""Trainings of physics and chemistry: molecules, elements of heat, waves in rock, and equations."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


def structural_encoding(graph: Any) -> Any:
    """Return the centralities of each atom, and how many others are at which distance."""
    import networkx as nx

    n = graph.number_of_nodes()
    distances = np.zeros((n, 8), np.float32)
    for atom, lengths in nx.all_pairs_shortest_path_length(graph):  # here
        for length in lengths.values():
            distances[atom, min(length, 7)] += 1  # here
    between = nx.betweenness_centrality(graph)  # here
    close = nx.closeness_centrality(graph)  # here
    centrality = np.array([[between[a], close[a]] for a in range(n)], np.float32)
    return np.concatenate([distances / n, centrality], 1)


def _ligands(count: int, atoms: int) -> Any:
    """Return a dataset of PyG of molecules, as trees with rings, which networkx describes."""
    import networkx as nx
    from torch_geometric.data import Data, Dataset

    class Ligands(Dataset):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.graphs = []
            for seed in range(count):
                rng = random.Random(seed)
                graph = nx.Graph((a, rng.randrange(max(0, a - 4), a)) for a in range(1, atoms))
                graph.add_edges_from((a, a + 5) for a in range(0, atoms - 5, 12))
                self.graphs.append(graph)

        def len(self) -> int:
            return 100 * count

        def get(self, idx: int) -> Any:
            graph = self.graphs[idx % count]
            x = torch.from_numpy(structural_encoding(graph))
            edges = torch.tensor(list(graph.edges)).T
            return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1), y=torch.tensor([idx % 7 / 7.0]))

    return Ligands()


@labelled(
    gpu="data-bound",
    cpu="data-bound",
    needs=("torch_geometric", "networkx"),
    helpers=(structural_encoding,),
)
def ligand_affinity(run: hoptui.Run, device: str) -> None:
    """A graph network for molecules, whose dataset has networkx compute centralities for each access.

    Three times a search from each of 50 atoms, in Python: more than 5 ms a molecule, and a batch has 20: more
    than 100 ms. Two graph convolutions over 1000 atoms need less than 15 ms.
    """
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GINConv, global_add_pool

    def layer(size: int) -> Any:
        return GINConv(nn.Sequential(nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, 32)))

    net = nn.ModuleList([layer(10), layer(32)]).to(device)
    head = nn.Linear(32, 1).to(device)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-3)
    loader = DataLoader(_ligands(30, atoms=50), batch_size=20, shuffle=True)
    while not run.stopping:
        for data in loader:
            data = data.to(device)
            h = data.x
            for conv in net:
                h = conv(h, data.edge_index).relu()
            affinity = head(global_add_pool(h, data.batch)).squeeze(1)
            loss = F.mse_loss(affinity, data.y.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=20)
            if run.stopping:
                break


class HeatSolve(torch.autograd.Function):
    """Temperatures on a grid whose edges have conductivities; its gradient is a second solution."""

    @staticmethod
    def forward(ctx: Any, density: Tensor, grid: Any) -> Tensor:
        from scipy.sparse.linalg import spsolve

        k = density.detach().double().cpu().numpy()
        matrix = grid.assemble(k)
        heat = spsolve(matrix, grid.load)  # here
        ctx.grid, ctx.matrix, ctx.heat = grid, matrix, heat
        ctx.device = density.device
        return torch.from_numpy(heat).float().to(density.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        from scipy.sparse.linalg import spsolve

        adjoint = spsolve(ctx.matrix.T.tocsc(), grad.double().cpu().numpy())  # here
        a, b = ctx.grid.edges
        per_edge = -(adjoint[a] - adjoint[b]) * (ctx.heat[a] - ctx.heat[b]) / 2
        out = np.bincount(a, per_edge, len(ctx.heat)) + np.bincount(b, per_edge, len(ctx.heat))
        return torch.from_numpy(out).float().to(ctx.device), None


class HeatGrid:
    """A square plate that is heated everywhere and loses heat at each cell."""

    def __init__(self, size: int) -> None:
        self.size = size
        cell = np.arange(size * size).reshape(size, size)
        right = np.stack([cell[:, :-1].ravel(), cell[:, 1:].ravel()])
        down = np.stack([cell[:-1].ravel(), cell[1:].ravel()])
        self.edges = np.concatenate([right, down], 1)
        self.load = np.ones(size * size)

    def assemble(self, k: Any) -> Any:
        from scipy.sparse import coo_matrix

        a, b = self.edges
        value = (k[a] + k[b]) / 2
        n = self.size**2
        rows, columns = np.concatenate([a, b, a, b]), np.concatenate([b, a, a, b])
        values = np.concatenate([-value, -value, value, value])
        diagonal = np.arange(n)
        rows, columns = np.concatenate([rows, diagonal]), np.concatenate([columns, diagonal])
        return coo_matrix((np.concatenate([values, np.full(n, 0.01)]), (rows, columns)), (n, n)).tocsc()


@labelled(gpu="host-bound", cpu="host-bound", needs=("scipy",), helpers=(HeatSolve,))
def topology_by_a_network(run: hoptui.Run, device: str) -> None:
    """A network gives the material of a plate; scipy solves for the heat within an autograd function.

    A sparse solution with 120 x 120 unknowns takes SuperLU more than 30 ms, forward and again backward: more
    than 60 ms. The network maps 14 400 points with 16 units in less than 12 ms.
    """
    grid = HeatGrid(120)
    axis = torch.linspace(-1, 1, 120, device=device)
    points = torch.cartesian_prod(axis, axis)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1), nn.Sigmoid()).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    while not run.stopping:
        density = net(points)[:, 0]
        heat = HeatSolve.apply(0.01 + density**3, grid)
        loss = heat.mean() + 10 * (density.mean() - 0.4) ** 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=1)


def laplacian(u: Tensor) -> Tensor:
    """Return the second differences of a field that is zero outside."""
    padded = F.pad(u, (1, 1, 1, 1))
    return padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:] - 4 * u


class Shot:
    """A source that is recorded at the surface, and the fields that its gradient needs."""

    def __init__(self, size: int, steps: int, device: str) -> None:
        self.steps, self.device = steps, device
        self.zero = torch.zeros(size, size, device=device)
        self.fields: list[Tensor] = []

    def forward(self, c2: Tensor, x: int) -> Tensor:
        """Return the trace at the surface."""
        self.fields.clear()
        u, last, trace = self.zero, self.zero, []
        for t in range(self.steps):
            u, last = 2 * u - last + c2 * laplacian(u), u
            u[2, x] += float(np.sin(0.3 * t))
            trace.append(u[1])
            self.fields.append(u.cpu())  # here
        return torch.stack(trace)

    def gradient(self, c2: Tensor, residual: Tensor) -> Tensor:
        """Return the gradient of the misfit, by the adjoint wave."""
        v, last, total = self.zero, self.zero, torch.zeros_like(c2)
        for t in reversed(range(self.steps)):
            v, last = 2 * v - last + laplacian(c2 * v), v
            v[1] += residual[t]
            field = self.fields[t].to(self.device)  # here
            total += v * laplacian(field)
        return total


@labelled(gpu="transfer-bound", cpu="healthy", helpers=(Shot,))
def full_waveform_inversion(run: hoptui.Run, device: str) -> None:
    """The speed of waves in rock is fitted to traces; the fields of all times are kept on the host.

    On a GPU: 30 fields of 4096 x 4096 numbers, 67 MB each, 2 GB down and 2 GB up in pageable memory: more
    than 250 ms at less than 16 GB/s. A time step reads or writes a field 27 times forward and 49 times
    backward: 30 x 5.1 GB = 150 GB, less than 50 ms. On the CPU: fields of 256 x 256, and nothing is copied.
    """
    size, steps = (256, 30) if device == "cpu" else (4096, 30)
    shot = Shot(size, steps, device)
    c2 = torch.full((size, size), 0.2, device=device)
    true = c2 + 0.05 * torch.rand(size, size, device=device)
    optimizer = torch.optim.SGD([c2], lr=1e-3)
    rng = random.Random(0)
    observed = {x: shot.forward(true, x) for x in range(10, size, size // 4)}
    while not run.stopping:
        x = rng.choice(list(observed))
        residual = shot.forward(c2, x) - observed[x]
        c2.grad = shot.gradient(c2, residual)
        optimizer.step()
        c2.clamp_(0.05, 0.4)
        run.log(loss=residual.square().mean().item(), samples=1)


def derivative(u: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]


@labelled(gpu="launch-bound", cpu="healthy", needs=("accelerate",), adapter=True)
def kuramoto_sivashinsky_pinn(run: AdapterRun, device: str) -> None:
    """A network for an equation with a fourth derivative, which autograd forms by nesting, with accelerate.

    Each derivative repeats the graph of the one before about twice: five layers with 12 kernels give more
    than 600 with the fourth derivative, and its backward pass as many again: more than 1200. On 256 x 32
    numbers they take about 2 microseconds each on a GPU: 3 ms. A launch with autograd takes the host more
    than 10 microseconds: more than 12 ms.
    """
    from accelerate import Accelerator

    from hoptui.integrations.accelerate import HoptuiTracker

    accelerator = Accelerator(cpu=device == "cpu", log_with=HoptuiTracker())
    accelerator.init_trackers(run.name)
    tracked: Any = accelerator.get_tracker("hoptui").tracker
    layers: list[nn.Module] = [nn.Linear(2, 32), nn.Tanh()]
    for _ in range(4):
        layers += [nn.Linear(32, 32), nn.Tanh()]
    net: Any = nn.Sequential(*layers, nn.Linear(32, 1))
    optimizer: Any = torch.optim.Adam(net.parameters(), lr=1e-3)
    net, optimizer = accelerator.prepare(net, optimizer)
    step = 0
    while step < run.iterations and not tracked.stopping:
        t = torch.rand(256, 1, device=accelerator.device, requires_grad=True)
        x = torch.rand(256, 1, device=accelerator.device, requires_grad=True)
        u = net(torch.cat([t, x], 1))
        u_x = derivative(u, x)
        u_xx = derivative(u_x, x)
        u_xxxx = derivative(derivative(u_xx, x), x)
        residual = derivative(u, t) + u * u_x + u_xx + u_xxxx
        start = net(torch.cat([torch.zeros_like(t), x], 1)) - (6.28 * x).cos()
        loss = residual.square().mean() + 10 * start.square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        accelerator.log({"loss": loss.item()}, step=step)
    accelerator.end_training()


class ContinuousFilter(nn.Module):
    """Energies of atoms from the distances of their neighbours, in the manner of SchNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.filters = nn.ModuleList(nn.Linear(20, width) for _ in range(3))
        self.dense = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.embed = nn.Parameter(torch.randn(width))
        self.out = nn.Linear(width, 1)

    def forward(self, distance: Tensor) -> Tensor:
        centres = torch.linspace(0, 5, 20, device=distance.device)
        rbf = torch.exp(-((distance[..., None] - centres) ** 2))
        h = self.embed.expand(len(distance), -1)
        for filtered, dense in zip(self.filters, self.dense, strict=True):
            message = (filtered(rbf) * h[:, None]).mean(1)
            h = h + F.silu(dense(message))
        return self.out(h).sum()  # type: ignore[no-any-return]


@labelled(gpu="compiling", cpu="compiling")
def energies_of_clusters(run: hoptui.Run, device: str) -> None:
    """An energy model is compiled for static shapes, and each cluster of atoms has another shape.

    The shape is one of 100 x 100 numbers of atoms and neighbours, so nearly each step traces the model
    forward and backward: more than 100 ms. The step itself has at most 120 x 120 distances with 8 channels:
    less than 20 ms.
    """
    import torch._dynamo

    model = ContinuousFilter(8).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rng = random.Random(0)
    limits: dict[str, Any] = {"recompile_limit": 1_000_000, "accumulated_recompile_limit": 1_000_000}
    with torch._dynamo.config.patch(limits):
        compiled = torch.compile(model, dynamic=False, backend="aot_eager")
        while not run.stopping:
            atoms, neighbours = rng.randrange(20, 120), rng.randrange(20, 120)
            distance = 5 * torch.rand(atoms, neighbours, device=device)
            loss = (compiled(distance) / atoms - 0.3).square()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=atoms)
