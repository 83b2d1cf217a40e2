"""Trainings for the climate: charts of sea ice, winds, rivers, the ocean, and an emulator of the weather."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


class IceCharts(Dataset[tuple[Tensor, Tensor]]):
    """Charts of sea ice, which are drawn as polygons, and the radar image of the same day."""

    def __init__(self, charts: int, size: int = 96, floes: int = 12, corners: int = 60) -> None:
        self.charts, self.size = charts, size
        self.ys, self.xs = np.mgrid[:size, :size].astype(np.float64)
        rng = np.random.default_rng(4)
        angle = np.linspace(0, 2 * np.pi, corners, endpoint=False)
        self.polygons = []
        for _ in range(32):
            centre = rng.uniform(0, size, (floes, 2, 1))
            radius = rng.uniform(8, 20, (floes, 1)) * (1 + 0.2 * rng.standard_normal((floes, corners)))
            outline = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1) + centre
            self.polygons.append(outline.transpose(0, 2, 1))

    def covered(self, outline: Any) -> Any:
        """Return which cells lie within an outline, by the rule of even and odd crossings."""
        inside = np.zeros((self.size, self.size), bool)
        for (x0, y0), (x1, y1) in zip(outline, np.roll(outline, -1, 0), strict=True):  # here
            between = (y0 > self.ys) != (y1 > self.ys)  # here
            crossing = x0 + (self.ys - y0) * (x1 - x0) / (y1 - y0 + 1e-12)  # here
            inside ^= between & (self.xs < crossing)  # here
        return inside  # here

    def __len__(self) -> int:
        return self.charts

    def __getitem__(self, day: int) -> tuple[Tensor, Tensor]:
        stage = np.zeros((self.size, self.size), np.int64)
        for n, outline in enumerate(self.polygons[day % len(self.polygons)]):
            stage[self.covered(outline)] = 1 + n % 4  # here
        ice = torch.from_numpy(stage)
        radar = ice[None] + 0.5 * torch.randn(2, self.size, self.size)
        return radar, ice


@labelled(gpu="data-bound", cpu="data-bound", needs=(PACKAGE,), adapter=True, helpers=(IceCharts,))
def lit_sea_ice_charts(run: AdapterRun, device: str) -> None:
    """Types of ice are told apart under Lightning. A chart is painted from its polygons when it is read.

    12 polygons with 60 edges, each of which is compared with 96 x 96 cells by ten operations of NumPy: more
    than 13 microseconds, so more than 9 ms a chart, and more than 72 ms for a batch of 8. The network works
    on 24 x 24 cells with 24 channels: less than 15 ms under Lightning.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)

    class IceAnalyst(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(2, 24, 4, stride=4), nn.ReLU(), nn.Conv2d(24, 5, 1))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            radar, ice = batch
            loss = F.cross_entropy(self.body(radar), ice[:, 2::4, 2::4])
            self.log("train/loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 10)]

    class IceData(pl.LightningDataModule):  # type: ignore[misc]
        def setup(self, stage: str) -> None:
            self.charts = IceCharts(8000)

        def train_dataloader(self) -> Any:
            return DataLoader(self.charts, batch_size=8, shuffle=True)

    trainer = pl.Trainer(
        accelerator="cpu" if device == "cpu" else "gpu",
        devices=1,
        max_steps=run.iterations,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[HoptuiCallback(run.name)],
    )
    trainer.fit(IceAnalyst(), datamodule=IceData())


class PressureSolve(torch.autograd.Function):
    """Solves for the pressure that takes the divergence out of winds over a density of the air."""

    @staticmethod
    def forward(ctx: Any, divergence: Tensor, grid: Any, density: Any) -> Tensor:
        ctx.grid, ctx.density = grid, density
        found = grid.solve(density, divergence.detach().cpu().double().numpy())  # here
        return torch.from_numpy(found).to(divergence)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.grid.solve(ctx.density, grads[0].cpu().double().numpy())  # here
        return torch.from_numpy(found).to(grads[0]), None, None


class StaggeredGrid:
    """A grid over a region, with winds between its cells."""

    def __init__(self, side: int) -> None:
        self.side = side
        self.sparse: Any = importlib.import_module("scipy.sparse")
        self.linalg: Any = importlib.import_module("scipy.sparse.linalg")
        step = self.sparse.diags([-np.ones(side), np.ones(side - 1)], [0, 1])
        eye = self.sparse.identity(side)
        self.gradient = self.sparse.vstack([self.sparse.kron(eye, step), self.sparse.kron(step, eye)]).tocsr()

    def laplacian(self, density: Any) -> Any:
        """Return the operator for a density of the air, which is symmetric."""
        weights = self.sparse.diags(np.tile(1 / density, 2))  # here
        return (self.gradient.T @ weights @ self.gradient).tocsc()  # here

    def solve(self, density: Any, rhs: Any) -> Any:
        """Return the pressures."""
        return self.linalg.spsolve(self.laplacian(density), rhs)  # here


@labelled(gpu="host-bound", cpu="host-bound", needs=("scipy",), helpers=(PressureSolve, StaggeredGrid))
def winds_without_divergence(run: hoptui.Run, device: str) -> None:
    """Winds are downscaled, and a solver of scipy in an autograd function takes their divergence away.

    The matrix of 130 x 130 cells is built and factorised in the forward and again in the backward pass: more
    than 25 ms each, so more than 50 ms. The network on coarse maps of 65 x 65 cells needs less than 10 ms.
    """
    side = 130
    grid = StaggeredGrid(side)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 1, 3, padding=1)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    while not run.stopping:
        coarse = torch.randn(1, 3, side // 2, side // 2, device=device)
        potential = F.interpolate(net(coarse), scale_factor=2, mode="bilinear")[0, 0]
        observed = 0.01 * torch.randn(side * side, device=device)
        density = rng.uniform(0.8, 1.2, side * side)
        pressure: Tensor = PressureSolve.apply(potential.flatten() * 0.01, grid, density)  # here
        loss = F.mse_loss(pressure, observed)
        optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()
        run.log(loss=loss.item(), samples=1)


class Catchments(nn.Module):
    """A bucket model of hydrology, day by day, whose parameters a network finds from what a basin is like."""

    def __init__(self, attributes: int, width: int) -> None:
        super().__init__()
        self.regionalise = nn.Sequential(nn.Linear(attributes, width), nn.ReLU(), nn.Linear(width, 6))

    def forward(self, basins: Tensor, rain: Tensor, warmth: Tensor) -> Tensor:
        degree, field, shape, fast, slow, seep = self.regionalise(basins).sigmoid().unbind(-1)
        snow = torch.zeros_like(degree)
        soil, upper, lower = snow + 0.2, snow + 0.1, snow + 0.1
        flow = []
        for p, t in zip(rain, warmth, strict=True):
            frozen = p * (t < 0)
            melt = torch.minimum(snow, degree * t.clamp(min=0))
            snow = snow + frozen - melt
            water = p - frozen + melt
            wet = (soil / (field + 0.1)).clamp(0.01, 1) ** (1 + 4 * shape)
            recharge = water * wet
            soil = (soil + water - recharge - 0.05 * wet).clamp(min=1e-3)
            percolated = seep * upper
            quick = fast * upper.clamp(min=1e-4) ** 1.2
            upper = (upper + recharge - percolated - quick).clamp(min=1e-3)
            base = 0.1 * slow * lower
            lower = lower + percolated - base
            flow.append(quick + base)
        return torch.stack(flow)


@labelled(gpu="launch-bound", cpu="healthy")
def rivers_by_a_hybrid_model(run: hoptui.Run, device: str) -> None:
    """Gradients go through all days of a bucket model (HBV) to the network that gives its parameters.

    On a GPU: 300 days with some 35 operations, and 50 of their backward pass, on 128 basins: 25 000
    operations. They take the host more than 5 microseconds each: more than 125 ms, and the GPU about 2: 50
    ms. On the CPU: 40 days and 16 384 basins.
    """
    days, basins = (40, 16_384) if device == "cpu" else (300, 128)
    model = Catchments(27, 64).to(device)
    optimizer = torch.optim.Adadelta(model.parameters())
    attributes = torch.randn(basins, 27, device=device)
    gauge = torch.rand(days, basins, device=device) / 10
    while not run.stopping:
        rain = torch.rand(days, basins, device=device).square()
        warmth = torch.randn(days, basins, device=device)
        simulated = model(attributes, rain, warmth)
        efficiency = 1 - (simulated - gauge).square().sum(0) / (gauge - gauge.mean(0)).square().sum(0)
        loss = -efficiency.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        run.log(loss=loss.item(), samples=basins)


def advect(c: Tensor, u: float, v: float, kappa: Tensor, dt: float = 0.1) -> Tensor:
    """Move a tracer by a time step with upwind differences and diffusion."""
    west, east = c.roll(1, -1), c.roll(-1, -1)
    south, north = c.roll(1, -2), c.roll(-1, -2)
    flux = u * (c - west) + v * (c - south)
    spread = kappa * (west + east + south + north - 4 * c)
    return c + dt * (spread - flux)


@labelled(gpu="memory-bandwidth-bound", cpu="healthy")
def tracers_of_an_ocean(run: hoptui.Run, device: str) -> None:
    """Where a tracer was released is found by gradients through some steps of a model of the ocean.

    On a GPU: 48 layers of 1024 x 1024 cells are 50 million numbers, 0.2 GB. A step has some 20 operations
    that read or write two or three such fields, and twice as many in the backward pass. So six steps move
    0.2 GB about 900 times: 180 GB, with Adam 190 GB, more than 40 ms at 4.8 TB/s. The 450 launches take the
    host less than 6 ms, and there is no product of matrices. On the CPU: 12 layers of 256 x 256 cells.
    """
    shape = (12, 256, 256) if device == "cpu" else (48, 1024, 1024)
    with torch.device(device):
        seen = torch.rand(shape)
        weight = (torch.rand(shape) < 0.1).float()
    release = torch.zeros(shape, device=device, requires_grad=True)
    log_kappa = torch.zeros((), device=device, requires_grad=True)
    optimizer = torch.optim.Adam([release, log_kappa], lr=0.01, fused=True)
    while not run.stopping:
        tracer = release
        for _ in range(6):
            tracer = advect(tracer, 0.4, -0.3, log_kappa.exp())
        loss = (weight * (tracer - seen).square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), kappa=log_kappa.exp().item(), samples=1)


def stream_to_disk(state: dict[str, Any], target: Path) -> None:
    """Let `dd` write a state to a file and to the disk, so that a full buffer does not stay in memory."""
    command = ["dd", f"of={target}", "bs=1M", "iflag=fullblock", "conv=fsync", "status=none"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as dd:  # here
        assert dd.stdin is not None
        torch.save(state, dd.stdin)  # here
        dd.stdin.close()  # here
        dd.wait()  # here


@labelled(gpu="save-bound", cpu="save-bound", helpers=(stream_to_disk,))
def restarts_of_an_emulator(run: hoptui.Run, device: str) -> None:
    """An emulator learns something about each cell of the globe, and keeps a restart file of each step.

    The vectors of 721 x 1440 cells with 56 numbers are 233 MB. They go through a pipe to a program that
    writes them and waits for the disk: more than 90 ms at 2.5 GB/s. A step looks at 2048 cells with sparse
    gradients and a small perceptron: less than 12 ms.
    """
    cells = 721 * 1440
    climate = nn.Embedding(cells, 56, sparse=True).to(device)
    head = nn.Sequential(nn.Linear(56 + 5, 64), nn.SiLU(), nn.Linear(64, 5)).to(device)
    optimizer = torch.optim.SGD([*climate.parameters(), *head.parameters()], lr=0.02)
    with tempfile.TemporaryDirectory() as scratch:
        step = 0
        while not run.stopping:
            where = torch.randint(0, cells, (2048,), device=device)
            now = torch.randn(2048, 5, device=device)
            after = head(torch.cat([climate(where), now], -1)) + now
            loss = F.huber_loss(after, 0.9 * now)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            state = {"step": step, "climate": climate.state_dict(), "head": head.state_dict()}
            stream_to_disk(state, Path(scratch, "restart.pt"))  # here
            run.log(loss=loss.item(), samples=2048)
