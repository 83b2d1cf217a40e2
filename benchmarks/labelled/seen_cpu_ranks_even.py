"""Trainings of two processes on the CPU that come to where they meet at the same time."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import labelled


class SharedPool:
    """Samples that lie in the memory of all ranks, and change places between them."""

    def __init__(self, samples: int, width: int, device: str) -> None:
        self.samples = torch.randn(samples, width, device=device)
        self.other = torch.empty_like(self.samples)

    def mix(self) -> None:
        """Exchange a part with each rank."""
        dist.all_to_all_single(self.other, self.samples)  # here
        self.samples, self.other = self.other, self.samples


@labelled(cpu="communication-bound", ranks=2, helpers=(SharedPool,))
def grains_in_a_pool(run: hoptui.Run, device: str) -> None:
    """Spectra of grains are sorted into kinds. The ranks mix their samples before each step.

    102 MB are mixed over gloo. Measured with a timer, this takes 91 % of an iteration of 0.11 s on both
    ranks, and the network 7 %.
    """
    torch.manual_seed(dist.get_rank())
    pool = SharedPool(200_000, 128, device)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 6)).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    while not run.stopping:
        pool.mix()  # here
        spectra = pool.samples[torch.randint(0, len(pool.samples), (64,), device=device)]
        loss = F.cross_entropy(model(spectra), spectra[:, :6].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=64)


class HalfOfTheFamilies:
    """Half of the protein families. The other half is on the other rank, and is fetched as a whole."""

    def __init__(self, families: int, width: int, device: str) -> None:
        self.mine = torch.randn(families, width, device=device)
        self.theirs = torch.empty_like(self.mine)
        self.peer = 1 - dist.get_rank()

    def visit(self) -> Tensor:
        """Return the other half."""
        swap = [dist.P2POp(dist.isend, self.mine, self.peer), dist.P2POp(dist.irecv, self.theirs, self.peer)]
        for request in dist.batch_isend_irecv(swap):
            request.wait()  # here
        return self.theirs


@labelled(cpu="communication-bound", ranks=2, helpers=(HalfOfTheFamilies,))
def proteins_of_two_sites(run: hoptui.Run, device: str) -> None:
    """Proteins are compared with relatives that the other site keeps. Gradients are averaged by hand.

    77 MB go each way over gloo. Measured with a timer, this takes 85 % of an iteration of 0.1 s on both
    ranks, and the encoder 4 %.
    """
    torch.manual_seed(22)
    encoder = nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 32)).to(device)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    half = HalfOfTheFamilies(200_000, 96, device)
    while not run.stopping:
        chosen = torch.randint(0, 200_000, (128,), device=device)
        relatives = half.visit()[chosen]  # here
        own = F.normalize(encoder(half.mine[chosen]))
        logits = own @ F.normalize(encoder(relatives)).T / 0.1
        loss = F.cross_entropy(logits, torch.arange(128, device=device))
        optimizer.zero_grad()
        loss.backward()
        for p in encoder.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad.div_(dist.get_world_size())
        optimizer.step()
        run.log(loss=loss.item(), samples=128)


@labelled(cpu="healthy", ranks=2, needs=("torchvision",))
def parts_on_two_belts(run: hoptui.Run, device: str) -> None:
    """Parts on two belts are classified by a small network of torchvision, with as much for each rank.

    Measured with a timer, 99 % of an iteration of 0.42 s is in the model, its backward pass and its
    optimizer. Gradients of 2.9 MB are exchanged in the backward pass.
    """
    from torchvision.models import squeezenet1_1

    torch.manual_seed(23)
    model = DistributedDataParallel(squeezenet1_1(weights=None, num_classes=12).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    pictures = torch.randn(64, 3, 128, 128, device=device)
    kinds = torch.randint(0, 12, (64,), device=device)
    while not run.stopping:
        chosen = torch.randperm(64)[:8]
        loss = F.cross_entropy(model(pictures[chosen]), kinds[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=8)


class SeasonOfSensors(Dataset[tuple[Tensor, Tensor]]):
    """The sensors of a field: a packed archive of NumPy for each season."""

    def __init__(self, folder: Path, seasons: int, hours: int) -> None:
        self.folder, self.seasons = folder, seasons
        rng = np.random.default_rng(dist.get_rank())
        for n in range(seasons):
            level = rng.normal(size=(hours, 12)).cumsum(0).round(2)
            np.savez_compressed(folder / f"{n}.npz", level=level, rain=rng.random(hours).round(2))

    def __len__(self) -> int:
        return 50 * self.seasons

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        with np.load(self.folder / f"{i % self.seasons}.npz") as archive:
            level, rain = archive["level"], archive["rain"]  # here
        near = np.lib.stride_tricks.sliding_window_view(level, 25, axis=0)
        steady = np.median(near, axis=-1)  # here
        return torch.tensor(steady[-64:], dtype=torch.float32), torch.tensor(rain[-1], dtype=torch.float32)


@labelled(cpu="data-bound", ranks=2, helpers=(SeasonOfSensors,))
def sensors_of_two_fields(run: hoptui.Run, device: str) -> None:
    """Each rank foresees the rain on one field, from archives that are smoothed when they are read.

    Each archive is unpacked, and a median of 25 hours is taken at 1000 hours of 12 sensors. Measured with
    a timer, the loader takes 84 to 88 % of an iteration of 0.49 s, and the network 11 to 15 %.
    """
    gru, head = nn.GRU(12, 24, batch_first=True), nn.Linear(24, 1)

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = gru, head

        def forward(self, x: Tensor) -> Tensor:
            rain: Tensor = self.head(self.gru(x)[0][:, -1])[:, 0]
            return rain

    model: Any = DistributedDataParallel(Forecast().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(SeasonOfSensors(Path(folder), 12, 1000), batch_size=16, shuffle=True)
        for level, rain in loader:  # here
            loss = F.mse_loss(model(level.to(device)), rain.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(rain))
            if run.stopping:
                break
