"""Trainings for materials: crystals, an alloy that comes apart, relaxed atoms, hardness, a wide potential."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import hoptui
from benchmarks.labelled.catalogue import labelled


class Crystals(Dataset[Any]):
    """Crystals in the manner of CGCNN: the neighbours of an atom are looked up when a crystal is read."""

    def __init__(self, number: int, atoms: int, radius: float = 6.0, max_neighbours: int = 8) -> None:
        self.number, self.atoms, self.radius, self.max_neighbours = number, atoms, radius, max_neighbours
        self.images = np.array(list(itertools.product((-1, 0, 1), repeat=3)), np.float64)
        self.centres = np.arange(0, radius, 0.2)

    def neighbours(self, lattice: Any, places: Any) -> list[list[tuple[float, int]]]:
        """Return the nearest atoms of each atom, with those of the cells around."""
        copies = (places[None] + (self.images @ lattice)[:, None]).reshape(-1, 3)
        found = []
        for place in places:
            apart = np.sqrt(((copies - place) ** 2).sum(-1))  # here
            near = []
            for n, distance in enumerate(apart.tolist()):  # here
                if 1e-8 < distance < self.radius:  # here
                    near.append((distance, n % self.atoms))  # here
            near.sort()  # here
            found.append(near[: self.max_neighbours])
        return found

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Any:
        from torch_geometric.data import Data

        rng = np.random.default_rng(index)
        lattice = np.eye(3) * rng.uniform(8, 10, 3)
        found = self.neighbours(lattice, rng.uniform(0, 1, (self.atoms, 3)) @ lattice)  # here
        ends = [(j, i) for i, near in enumerate(found) for _, j in near]
        lengths = np.array([distance for near in found for distance, _ in near])
        edges = np.exp(-(((lengths[:, None] - self.centres) / 0.2) ** 2))
        return Data(
            z=torch.from_numpy(rng.integers(0, 90, self.atoms)),
            edge_index=torch.tensor(ends).t().contiguous(),
            edge_attr=torch.from_numpy(edges).float(),
            y=torch.tensor([float(lengths.mean())]),
            num_nodes=self.atoms,
        )


def _crystal_net(width: int, edge_dim: int) -> nn.Module:
    from torch_geometric.nn import CGConv, global_mean_pool

    class CrystalGraphNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.element = nn.Embedding(90, width)
            self.convs = nn.ModuleList(CGConv(width, edge_dim) for _ in range(2))
            self.head = nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, 1))

        def forward(self, data: Any) -> Tensor:
            h = self.element(data.z)
            for conv in self.convs:
                h = conv(h, data.edge_index, data.edge_attr)
            pooled: Tensor = self.head(global_mean_pool(h, data.batch))
            return pooled[:, 0]

    return CrystalGraphNet()


@labelled(gpu="data-bound", cpu="data-bound", needs=("torch_geometric",), helpers=(Crystals,))
def formation_energy_of_crystals(run: hoptui.Run, device: str) -> None:
    """A crystal graph network of PyG predicts energies. Its loader builds the graphs in the main process.

    80 atoms are compared with 27 x 80 copies: 172 800 turns of a loop of more than 35 nanoseconds: more than
    6 ms a crystal, and more than 72 ms for a batch of 12. Two convolutions of width 32 over 960 atoms and
    7700 edges need less than 12 ms with the step. On the CPU: width 8.
    """
    from torch_geometric.loader import DataLoader

    crystals = Crystals(4000, 80)
    loader = DataLoader(crystals, batch_size=12, shuffle=True, num_workers=0)
    net = _crystal_net(8 if device == "cpu" else 32, len(crystals.centres)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    while not run.stopping:
        for batch in loader:  # here
            if run.stopping:
                break
            batch = batch.to(device)
            loss = F.mse_loss(net(batch), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=batch.num_graphs)


class CahnHilliard(nn.Module):
    """The first benchmark of PFHub: an alloy comes apart. The steps are half implicit, in Fourier space."""

    wave_squares: Tensor

    def __init__(self, side: int, dt: float = 0.1) -> None:
        super().__init__()
        self.dt = dt
        self.log_mobility = nn.Parameter(torch.tensor(1.0))
        self.log_kappa = nn.Parameter(torch.tensor(0.5))
        full = 2 * torch.pi * torch.fft.fftfreq(side)
        half = 2 * torch.pi * torch.fft.rfftfreq(side)
        squares = full[:, None, None] ** 2 + full[None, :, None] ** 2 + half**2
        self.register_buffer("wave_squares", squares)

    def forward(self, c: Tensor, steps: int) -> Tensor:
        k2, mobility = self.wave_squares, self.log_mobility.exp()
        implicit = 1 / (1 + self.dt * mobility * self.log_kappa.exp() * k2 * k2)
        for _ in range(steps):
            chemical = 10.0 * (c - 0.3) * (0.7 - c) * (1.0 - 2 * c)
            moved = torch.fft.rfftn(c) - self.dt * mobility * k2 * torch.fft.rfftn(chemical)
            c = torch.fft.irfftn(moved * implicit, s=c.shape)
        return c


@labelled(gpu="memory-bandwidth-bound", cpu="healthy")
def alloy_that_comes_apart(run: hoptui.Run, device: str) -> None:
    """The mobility and the energy of interfaces are fitted through five steps of a phase field.

    On a GPU: 400 x 400 x 400 cells are 0.26 GB, and so are their Fourier coefficients. A step has three
    transforms, which read and write them three times or more, and some 12 operations with two or three:
    more than 45 passes, and twice as many backward. Five steps: 650 passes, 170 GB, more than 35 ms at 4.8
    TB/s. They are less than 500 launches. 5 floating-point operations a byte: less than 30 TFLOPS. On the
    CPU: 64 x 64 x 64 cells.
    """
    side = 64 if device == "cpu" else 400
    model = CahnHilliard(side).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    observed = 0.5 + 0.02 * torch.randn(side, side, side, device=device)
    while not run.stopping:
        start = 0.5 + 0.05 * torch.randn(side, side, side, device=device)
        loss = (model(start, steps=5) - observed).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), mobility=model.log_mobility.exp().item(), samples=1)


class PairPotential(nn.Module):
    """An energy that a small network gives each pair of atoms by their distance."""

    centres: Tensor

    def __init__(self, basis: int, width: int) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.5, 4.0, basis))
        self.net = nn.Sequential(nn.Linear(basis, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, places: Tensor) -> Tensor:
        apart = (places[:, :, None] - places[:, None]).square().sum(-1).add(1e-2).sqrt()
        basis = torch.exp(-4 * (apart[..., None] - self.centres).square())
        cutoff = torch.exp(-0.1 * apart.square())
        energy: Tensor = (self.net(basis)[..., 0] * cutoff).sum((1, 2))
        return energy


def relax(potential: PairPotential, places: Tensor, steps: int) -> Tensor:
    """Let atoms go along their forces, with some inertia."""
    velocity = torch.zeros_like(places)
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(potential(places).sum(), places, create_graph=True)
        velocity = 0.8 * velocity - 0.02 * gradient
        places = places + velocity.clamp(-0.1, 0.1)
    return places


@labelled(gpu="launch-bound", cpu="healthy")
def potential_through_a_relaxation(run: hoptui.Run, device: str) -> None:
    """A potential is trained so that relaxed atoms lie where they should, through all steps of relaxing.

    On a GPU: 50 steps on 4 cells of 16 atoms. A step has more than 18 operations forward, 35 for the forces,
    and 90 in the backward pass through both: more than 7000, which take the host more than 6 microseconds
    each: more than 42 ms. With 16 000 numbers or fewer, the GPU needs about 2 each: 14 ms. On the CPU: 5
    steps on 16 cells of 20 atoms.
    """
    cells, atoms, steps = (16, 20, 5) if device == "cpu" else (4, 16, 50)
    potential = PairPotential(16, 24).to(device)
    optimizer = torch.optim.Adam(potential.parameters(), lr=1e-3)
    lattice = torch.rand(1, atoms, 3, device=device) * 3
    while not run.stopping:
        rattled = (lattice + 0.2 * torch.randn(cells, atoms, 3, device=device)).requires_grad_()
        relaxed = relax(potential, rattled, steps)
        loss = F.mse_loss(relaxed, lattice.expand_as(relaxed))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(potential.parameters(), 10.0)
        optimizer.step()
        run.log(loss=loss.item(), samples=cells)


class ExactGP(nn.Module):
    """A Gaussian process with a length for each feature, and its marginal likelihood."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.log_lengths = nn.Parameter(torch.full((features,), 1.0))
        self.log_scale = nn.Parameter(torch.tensor(0.0))
        self.log_noise = nn.Parameter(torch.tensor(-2.0))

    def forward(self, x: Tensor, y: Tensor, eye: Tensor) -> Tensor:
        scaled = x / self.log_lengths.exp()
        norms = scaled.square().sum(1)
        squares = norms[:, None] + norms - 2 * scaled @ scaled.T
        kernel = torch.exp(self.log_scale - squares / 2) + self.log_noise.exp() * eye
        root = torch.linalg.cholesky(kernel)
        weights = torch.cholesky_solve(y[:, None], root)[:, 0]
        likelihood: Tensor = (y @ weights / 2 + root.diagonal().log().sum()) / len(y)
        return likelihood


@labelled(gpu="compute-bound power-limited", cpu="healthy")
def hardness_by_a_gaussian_process(run: hoptui.Run, device: str) -> None:
    """The hardness of alloys by an exact Gaussian process in float64, whose kernel is fitted with Adam.

    On a GPU: with n = 10 240 alloys, the factor is n^3 / 3 operations, and its gradient is a product and two
    triangular solves: 4 n^3. Together 4.6 TFLOP: more than 70 ms at 67 TFLOPS. A matrix is 0.84 GB, and some
    40 passes over one take 34 GB: less than 10 ms. On the CPU: 768 alloys.
    """
    alloys = 768 if device == "cpu" else 10_240
    with torch.device(device):
        elements = torch.rand(alloys, 14, dtype=torch.float64)
        hardness = elements[:, 0].sin() + elements[:, 1] * elements[:, 2] + 0.1 * elements[:, 3]
        hardness = (hardness - hardness.mean()) / hardness.std()
        eye = torch.eye(alloys, dtype=torch.float64)
    model = ExactGP(14).double().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    while not run.stopping:
        loss = model(elements, hardness, eye)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), noise=model.log_noise.exp().item(), samples=alloys)


@labelled(gpu="save-bound", cpu="save-bound")
def last_layer_with_distributed_checkpoints(run: hoptui.Run, device: str) -> None:
    """The last layer of a wide potential is tuned, and the distributed checkpoint of PyTorch keeps it all.

    Four layers with 4096 x 4096 frozen weights are 270 MB, which are written and brought to the disk after
    each step: more than 80 ms at 3.3 GB/s. A step with 64 rows of fingerprints needs less than 6 ms. On the
    CPU: two such layers, and 8 rows.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    layers, rows = (2, 8) if device == "cpu" else (4, 64)
    with torch.device(device):
        wide = [(nn.Linear(4096, 4096), nn.SiLU()) for _ in range(layers)]
        trunk = nn.Sequential(nn.Linear(180, 4096), *itertools.chain(*wide)).requires_grad_(False)
        head = nn.Linear(4096, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3, momentum=0.9)
    with tempfile.TemporaryDirectory() as scratch:
        step = 0
        while not run.stopping:
            fingerprints = torch.randn(rows, 180, device=device)
            energy = fingerprints.square().mean(1).sqrt()
            loss = F.huber_loss(head(trunk(fingerprints))[:, 0], energy)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            state: dict[str, Any] = {"trunk": trunk.state_dict(), "head": head.state_dict(), "step": step}
            save(state, checkpoint_id=Path(scratch, f"kept-{step % 2}"), no_dist=True)  # here
            run.log(loss=loss.item(), samples=rows)
