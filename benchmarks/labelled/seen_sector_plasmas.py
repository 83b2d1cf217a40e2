"""Trainings for fusion plasmas: equilibria, disruptions, coefficients of transport, and edges of profiles."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
import importlib.util
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


class FluxFunction(nn.Module):
    """The poloidal flux of a plasma over radius and height."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(2, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 1)

    def forward(self, place: Tensor) -> Tensor:
        x = torch.sin(self.first(place))
        for layer in self.hidden:
            x = x + torch.tanh(layer(x))
        flux: Tensor = self.last(x)
        return flux


def grad_shafranov(flux: FluxFunction, place: Tensor) -> Tensor:
    """Return the elliptic operator of the flux, minus the current."""
    place = place.requires_grad_()
    psi = flux(place)
    (slope,) = torch.autograd.grad(psi.sum(), place, create_graph=True)
    d_r, d_z = slope.unbind(-1)
    (second_r,) = torch.autograd.grad(d_r.sum(), place, create_graph=True)
    (second_z,) = torch.autograd.grad(d_z.sum(), place, create_graph=True)
    radius = place[:, 0] + 1.5
    operator = second_r[:, 0] - d_r / radius + second_z[:, 1]
    residual: Tensor = operator + radius.square() * (1 - psi[:, 0])
    return residual


@labelled(gpu="launch-bound", cpu="healthy")
def equilibrium_of_a_tokamak(run: hoptui.Run, device: str) -> None:
    """A network solves the equation of an equilibrium, whose second derivatives come from autograd.

    On a GPU: 10 layers of width 48. Each of four parts of the plasma has some 60 operations forward, 250 for
    the derivatives and more than 600 for the gradient, on 256 places: more than 3600 launches of more than 5
    microseconds for the host, and of about 2.5 for the GPU. On the CPU: 3 layers of width 96 and 2048 places.
    """
    width, depth, places = (96, 3, 2048) if device == "cpu" else (48, 10, 256)
    flux = FluxFunction(width, depth).to(device)
    optimizer = torch.optim.Adam(flux.parameters(), lr=1e-3)
    corners = torch.tensor([[-0.4, -0.5], [0.0, -0.5], [-0.4, 0.0], [0.0, 0.0]], device=device)
    wall = torch.linspace(0, 2 * torch.pi, 128, device=device)
    border = torch.stack([0.4 * wall.cos(), 0.5 * wall.sin()], -1)
    while not run.stopping:
        residuals = []
        for corner in corners:
            inside = corner + torch.rand(places, 2, device=device) * torch.tensor([0.4, 0.5], device=device)
            residuals.append(grad_shafranov(flux, inside).square().mean())
        loss = torch.stack(residuals).mean() + 10 * flux(border).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=4 * places)


class Shots(Dataset[tuple[Tensor, Tensor]]):
    """Shots of a machine. Each is a packed file with channels that were sampled at different rates."""

    def __init__(self, folder: Path, shots: int, channels: int, samples: int) -> None:
        self.files, self.channels = [], channels
        rng = np.random.default_rng(3)
        for n in range(shots):
            signals: dict[str, Any] = {}
            for channel in range(channels):
                noise = rng.standard_normal(samples + 50 * channel).cumsum()
                signals[f"ch{channel:02d}"] = noise.astype(np.float32)
            self.files.append(folder / f"{n}.npz")
            np.savez_compressed(self.files[-1], **signals)

    def __len__(self) -> int:
        return 200 * len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        base = np.linspace(0, 1, 512)
        rows = []
        with np.load(self.files[index % len(self.files)]) as shot:
            for channel in sorted(shot.files):
                signal = shot[channel]  # here
                time = np.linspace(0, 1, len(signal))
                smooth = np.convolve(signal, np.hanning(31) / 16, mode="same")  # here
                rows.append(np.interp(base, time, smooth))  # here
        table = torch.from_numpy(np.stack(rows)).float()
        return (table - table.mean(1, True)) / (table.std(1, keepdim=True) + 1e-3), torch.tensor(index % 2.0)


@labelled(gpu="data-bound", cpu="data-bound", needs=(PACKAGE,), adapter=True, helpers=(Shots,))
def disruptions_of_shots(run: AdapterRun, device: str) -> None:
    """Disruptions are told from the signals of a shot under Lightning. The loader has no workers.

    A shot has 24 channels of more than 8000 values, which are unpacked, smoothed and resampled: 0.8 MB at
    less than 200 MB/s, and more than 0.2 ms a channel: more than 8 ms. A batch has 16: more than 130 ms. A
    temporal convolution with 16 channels takes less than 15 ms for its step.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)

    class DisruptionAlarm(pl.LightningModule):  # type: ignore[misc]
        def __init__(self, channels: int, width: int) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.body = nn.Sequential(
                nn.Conv1d(channels, width, 5, stride=2, dilation=1),
                nn.ReLU(),
                nn.Conv1d(width, width, 5, stride=2, dilation=2),
                nn.ReLU(),
                nn.AdaptiveMaxPool1d(1),
                nn.Flatten(),
            )
            self.alarm = nn.Linear(width, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            signals, disrupted = batch
            logit = self.alarm(self.body(signals)).squeeze(1)
            loss = F.binary_cross_entropy_with_logits(logit, disrupted)
            self.log_dict({"loss": loss, "alarms": (logit > 0).float().mean()})
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.RAdam(self.parameters(), lr=1e-3)

    with tempfile.TemporaryDirectory() as folder:
        shots = Shots(Path(folder), shots=24, channels=24, samples=8000)
        trainer = pl.Trainer(
            accelerator="cpu" if device == "cpu" else "gpu",
            devices=1,
            max_steps=run.iterations,
            max_epochs=-1,
            logger=False,
            gradient_clip_val=1.0,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[HoptuiCallback(run.name)],
        )
        trainer.fit(DisruptionAlarm(24, 16), DataLoader(shots, batch_size=16, shuffle=True, num_workers=0))


class SplineLayer(nn.Module):
    """A layer of a Kolmogorov-Arnold network, whose edges are splines over a fixed grid."""

    grid: Tensor

    def __init__(self, inputs: int, outputs: int, cells: int = 5, order: int = 3) -> None:
        super().__init__()
        self.order = order
        knots = torch.arange(-order, cells + order + 1) * 2.0 / cells - 1
        self.register_buffer("grid", knots[:, None, None].repeat(1, 1, inputs))
        self.coefficients = nn.Parameter(0.1 * torch.randn(cells + order, outputs, inputs))
        self.base = nn.Linear(inputs, outputs)

    def bases(self, x: Tensor) -> Tensor:
        """Return the values of all basis functions, by the recursion of Cox and de Boor."""
        grid = self.grid
        values = ((x >= grid[:-1]) & (x < grid[1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - grid[: -k - 1]) / (grid[k:-1] - grid[: -k - 1])
            right = (grid[k + 1 :] - x) / (grid[k + 1 :] - grid[1:-k])
            values = left * values[:-1] + right * values[1:]
        return values

    def forward(self, x: Tensor) -> Tensor:
        splines = torch.einsum("kbi,koi->bo", self.bases(x), self.coefficients)
        out: Tensor = splines + self.base(F.silu(x))
        return out


@labelled(gpu="memory-bandwidth-bound", cpu="healthy")
def coefficients_of_transport(run: hoptui.Run, device: str) -> None:
    """Coefficients of turbulent transport are learned by a Kolmogorov-Arnold network from local gradients.

    On a GPU: a layer has a million places with 12 inputs and some 10 basis functions: 480 MB in float32. The
    recursion reads or writes such a tensor some 45 times forward, and 80 times backward but in the first
    layer, whose inputs need no gradient: 65 GB and 77 GB. That is more than 29 ms at 4.8 TB/s. There are less
    than 500 launches, and the products with 96 x 12 weights are 0.02 TFLOP. The tensors that are kept need
    less than 30 GB. On the CPU: 4096 places.
    """
    places = 4096 if device == "cpu" else 1_000_000
    network = nn.Sequential(
        SplineLayer(12, 12), nn.Tanh(), SplineLayer(12, 12), nn.Tanh(), SplineLayer(12, 3)
    )
    network.to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-4)
    annealed = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5000)
    with torch.device(device):
        gradients = 2 * torch.rand(places, 12) - 1
        fluxes = torch.stack([gradients[:, n : n + 4].relu().sum(1) for n in (0, 4, 8)], 1)
    while not run.stopping:
        noisy = (gradients + 0.01 * torch.randn_like(gradients)).clamp_(-1, 1)
        loss = F.mse_loss(network(noisy), fluxes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        annealed.step()
        run.log(loss=loss.item(), samples=places)


def pedestal(radius: Any, height: float, width: float, centre: float, slope: float) -> Any:
    """Return a hyperbolic tangent with a slope inside, as the edge of a profile is described."""
    inside = np.clip(centre - radius, 0, None)
    return 0.5 * height * (1 + np.tanh((centre - radius) / width)) + slope * inside


class PedestalMonitor:
    """Fits the edge of each profile that is told, so that its height and width can be followed."""

    def __init__(self, points: int) -> None:
        self.radius = np.linspace(0.7, 1.05, points)

    def fit(self, profile: Any) -> Any:
        """Return the four numbers of an edge."""
        from scipy.optimize import curve_fit

        start = (max(float(profile[0]), 0.1), 0.05, 0.95, 0.1)
        try:
            found, _ = curve_fit(pedestal, self.radius, profile, start, maxfev=400)  # here
        except RuntimeError:
            return np.array(start)
        return found

    def follow(self, profiles: Tensor) -> dict[str, float]:
        """Return the means over some profiles."""
        edges = np.stack([self.fit(profile) for profile in profiles.detach().cpu().double().numpy()])  # here
        return dict(zip(("height", "width", "centre", "slope"), np.median(edges, 0).tolist(), strict=True))


@labelled(gpu="host-bound", cpu="host-bound", needs=("scipy",), helpers=(PedestalMonitor,))
def edges_of_profiles(run: hoptui.Run, device: str) -> None:
    """Profiles of temperature are told from the settings of a shot. After each step their edges are fitted.

    A fit of scipy calls the function more than 15 times, and takes more than 0.6 ms. A batch has 160
    profiles: more than 95 ms. The step of three layers takes less than 5 ms.
    """
    points = 60
    monitor = PedestalMonitor(points)
    layers = [nn.Linear(8, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, points), nn.Softplus()]
    regressor = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(regressor.parameters(), lr=3e-3)
    radius = torch.from_numpy(monitor.radius).float().to(device)
    while not run.stopping:
        settings = torch.rand(160, 8, device=device)
        height, width = 0.5 + settings[:, :1], 0.02 + 0.05 * settings[:, 1:2]
        measured = 0.5 * height * (1 + torch.tanh((0.96 - radius) / width))
        measured = measured + 0.02 * torch.randn_like(measured)
        told = regressor(settings)
        loss = F.huber_loss(told, measured, delta=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        edges = monitor.follow(told)  # here
        run.log(loss=loss.item(), height=edges["height"], width=edges["width"], samples=160)
