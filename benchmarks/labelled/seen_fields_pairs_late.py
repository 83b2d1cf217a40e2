"""Trainings of two processes that meet in each step, and do not come there at the same time."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import bz2
import importlib
import importlib.util
import math
import os
import sqlite3
import tempfile
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


class Spool:
    """The folder into which the receiver of a telescope puts its recordings."""

    def __init__(self, folder: Path, samples: int) -> None:
        self.folder, self.samples = folder, samples

    def latest(self, count: int) -> list[Path]:
        """Return the recordings that came last."""
        arrived = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime)  # here
        return arrived[-count:]

    def read(self, count: int) -> Tensor:
        """Return the power over time of the last recordings."""
        power = [np.frombuffer(path.read_bytes(), np.float32) for path in self.latest(count)]  # here
        return torch.from_numpy(np.stack(power)[:, : self.samples])


def record(folder: Path, old: int, new: int, samples: int) -> None:
    """Fill a spool. What was archived stays there with no content."""
    rng = np.random.default_rng(old)
    for n in range(old):
        Path(folder, f"{n:06d}.fil").touch()
    for n in range(old, old + new):
        path = Path(folder, f"{n:06d}.fil")
        path.write_bytes(rng.standard_normal(samples).astype(np.float32).tobytes())
        seconds = path.stat().st_mtime + 60 + n
        os.utime(path, (seconds, seconds))


@labelled(gpu="straggler", cpu="straggler", ranks=2, helpers=(Spool,))
def fast_radio_bursts(run: hoptui.Run, device: str) -> None:
    """Each rank looks for bursts in what the receiver beside it recorded last.

    The spool of the first rank has 64 files. In that of the second one the archived files were never
    deleted: 20 000 of them are listed, asked for their time and sorted, more than 3.5 microseconds each with
    pathlib: more than 70 ms. To read 16 files of 4 kB and to train a small convolution on them takes less
    than 15 ms, and less than 8 ms on a GPU.
    """
    rank, samples = dist.get_rank(), 1024
    backlog = 20_000 if rank == 1 else 48
    net = nn.Sequential(
        nn.Conv1d(1, 8, 15, stride=4), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(8, 2)
    ).to(device)
    detector = DistributedDataParallel(
        net, device_ids=None if device == "cpu" else [torch.cuda.current_device()]
    )
    optimizer = torch.optim.Adam(detector.parameters(), lr=1e-3)
    pulse = torch.exp(-0.5 * ((torch.arange(samples) - 500) / 6.0) ** 2)
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder), backlog, 16, samples)
        spool = Spool(Path(folder), samples)
        while not run.stopping:
            power = spool.read(16)
            injected = torch.randint(0, 2, (16,))
            power = power + 5 * injected[:, None] * pulse
            logits = detector(power[:, None].to(device))
            loss = F.cross_entropy(logits, injected.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=16)


def _report_page(folder: str, stations: int, hours: int) -> Any:
    """Return a callback that keeps a page with the errors of the last hours."""
    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)
    utilities: Any = importlib.import_module(f"{pl.__name__}.utilities")
    pd: Any = importlib.import_module("pandas")

    class StationReport(pl.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.columns = [f"WMO {10_000 + n}" for n in range(stations)]
            self.rows: deque[list[float]] = deque([[0.0] * stations] * hours, maxlen=hours)

        @utilities.rank_zero_only  # type: ignore[untyped-decorator]
        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            self.rows.append(outputs["errors"].tolist())
            table = pd.DataFrame(list(self.rows), columns=self.columns)
            page = table.to_html(float_format="{:.2f}".format)  # here
            Path(folder, "errors.html").write_text(page)

    return StationReport()


@labelled(
    gpu="straggler",
    cpu="straggler",
    ranks=2,
    needs=(PACKAGE, "pandas"),
    adapter=True,
    helpers=(_report_page,),
)
def lit_weather_stations(run: AdapterRun, device: str) -> None:
    """Forecasts of 200 stations under Lightning, with a page of the errors that a callback brings up to date.

    The callback works on the first rank only. pandas formats a table of 96 x 200 numbers as HTML, more than 6
    microseconds for a cell: more than 115 ms. The step of a recurrent network over 12 hours with 16
    sequences needs less than 30 ms under Lightning.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)
    stations, hours = 200, 96

    class Nowcast(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(stations, 64, batch_first=True)
            self.head = nn.Linear(64, stations)

        def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
            past, future = batch
            states, _ = self.rnn(past)
            error = (self.head(states[:, -1]) - future).abs()
            loss = error.mean()
            self.log("loss", loss)
            return {"loss": loss, "errors": error.detach().mean(0)}

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    world = int(os.environ.get("WORLD_SIZE", "1"))
    series = TensorDataset(torch.randn(2048, 12, stations), torch.randn(2048, stations))
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="cpu" if device == "cpu" else "gpu",
            devices=world,
            strategy="ddp" if world > 1 else "auto",
            max_steps=run.iterations,
            max_epochs=-1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[_report_page(folder, stations, hours), HoptuiCallback(run.name)],
        )
        trainer.fit(Nowcast(), DataLoader(series, batch_size=16, shuffle=True))


class CellEncoder(nn.Module):
    """An autoencoder of counted genes, whose latent space should not know the donors."""

    def __init__(self, genes: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(genes, 64), nn.SiLU(), nn.Linear(64, latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.SiLU(), nn.Linear(64, genes))

    def forward(self, counts: Tensor) -> Tensor:
        rate = F.softplus(self.decoder(self.encoder(torch.log1p(counts))))
        return F.poisson_nll_loss(rate, counts, log_input=False)


@labelled(gpu="straggler", cpu="straggler", ranks=2, needs=("accelerate", "sklearn"), adapter=True)
def integrated_cell_atlas(run: AdapterRun, device: str) -> None:
    """An atlas of cells with accelerate. The main process tells after each step how well donors are mixed.

    The silhouette of 5000 cells needs 25 million distances, and scikit-learn sums them for each cell: more
    than 160 ms. The autoencoder of 200 genes with 32 cells, and the encoder with the 5000 cells, take less
    than 35 ms, and less than 10 ms on a GPU.
    """
    from accelerate import Accelerator

    from hoptui.integrations.accelerate import HoptuiTracker

    metrics: Any = importlib.import_module("sklearn.metrics")
    accelerator = Accelerator(cpu=device == "cpu", log_with=HoptuiTracker())
    genes, panel = 200, 5000
    rng = np.random.default_rng(7)
    counts = torch.from_numpy(rng.poisson(1.5, (8192, genes)).astype(np.float32))
    donors = rng.integers(0, 6, panel)
    model = CellEncoder(genes, latent=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(counts), batch_size=32, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    reference = counts[:panel].to(accelerator.device)
    accelerator.init_trackers(run.name)
    tracked, step = accelerator.get_tracker("hoptui").tracker, 0

    def donor_mixing() -> float:
        with torch.no_grad():
            latent = accelerator.unwrap_model(model).encoder(torch.log1p(reference)).cpu().numpy()
        return 1 - abs(float(metrics.silhouette_score(latent, donors)))  # here

    while step < run.iterations and not tracked.stopping:
        for (cells,) in loader:
            loss = model(cells)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            values = {"loss": loss.item()}
            if accelerator.is_main_process:
                values["mixing"] = donor_mixing()
            accelerator.log(values, step=step)
            if step >= run.iterations or tracked.stopping:
                break
    accelerator.end_training()


@torch.no_grad()
def transport_plan(cost: Tensor, reg: float, tol: float = 1e-4, max_iter: int = 1000) -> Tensor:
    """Return the entropic plan between two clouds of as many points, by iterations in the log domain."""
    n = len(cost)
    f, g = cost.new_zeros(n), cost.new_zeros(n)
    for i in range(max_iter):
        f = -reg * (torch.logsumexp((g - cost) / reg, dim=1) + math.log(n))  # here
        g = -reg * (torch.logsumexp((f[:, None] - cost) / reg, dim=0) + math.log(n))  # here
        if i % 20 == 0:
            rows = torch.logsumexp((f[:, None] + g - cost) / reg, dim=1)
            if (rows + math.log(n)).exp().sub(1).abs().max() < tol:
                break
    return torch.exp((f[:, None] + g - cost) / reg)


@torch.no_grad()
def mean_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average the gradients of all ranks as one vector."""
    grads = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(part.view_as(grad))


@labelled(gpu="straggler", cpu="straggler", ranks=2, helpers=(transport_plan,))
def drifting_buoys(run: hoptui.Run, device: str) -> None:
    """A network learns where buoys drift to, from clouds of positions that are matched by optimal transport.

    Each rank has one water. In the bay of the first rank the costs are smaller than the regularisation: it
    is matched in less than 50 iterations. On the ocean of the second rank they are 100 times as large, and
    all 1000 iterations are needed. An iteration has more than 12 operations on 64 x 64 numbers, of more than
    5 microseconds each by either device: more than 60 ms. The rest of the step takes less than 8 ms.
    """
    rank = dist.get_rank()
    torch.manual_seed(3)
    spread = 2.0 if rank == 1 else 0.05
    drift = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.Adam(drift.parameters(), lr=1e-3)
    torch.manual_seed(30 + rank)
    while not run.stopping:
        today = spread * torch.randn(64, 2, device=device)
        tomorrow = spread * torch.randn(64, 2, device=device) + 0.1
        moved = today + spread * torch.tanh(drift(today))
        cost = (moved[:, None] - tomorrow).square().sum(-1)
        plan = transport_plan(cost.detach(), reg=0.03)
        loss = (plan * cost).sum()
        optimizer.zero_grad()
        loss.backward()
        mean_gradients(drift.parameters())
        optimizer.step()
        run.log(loss=loss.item(), samples=64)


class ComplexityMeter:
    """Estimates how many bits a value of a gradient needs, by the size of its packed bytes."""

    def __init__(self) -> None:
        self.bits: dict[str, float] = {}

    def attach(self, module: nn.Module, name: str) -> None:
        """Measure what a module gets in the backward pass."""

        def measure(_: nn.Module, grad_input: Any, grad_output: Any) -> None:
            values = grad_output[0].detach().float().cpu().numpy()
            self.bits[name] = 8 * len(bz2.compress(values.tobytes())) / values.size  # here

        module.register_full_backward_hook(measure)


class TraceMixer(nn.Module):
    """Cuts seismograms into pieces, and mixes the numbers of a piece."""

    def __init__(self, piece: int, width: int) -> None:
        super().__init__()
        self.piece = piece
        self.inward = nn.Linear(piece, width)
        self.mix = nn.Linear(width, width)
        self.outward = nn.Linear(width, piece)

    def forward(self, trace: Tensor) -> Tensor:
        pieces = trace.unflatten(-1, (-1, self.piece))
        hidden = F.gelu(self.inward(pieces))
        hidden = hidden + F.gelu(self.mix(hidden))
        noise: Tensor = self.outward(hidden)
        return trace - noise.flatten(-2)


@labelled(gpu="straggler", cpu="straggler", ranks=2, helpers=(ComplexityMeter,))
def seismograms_without_noise(run: hoptui.Run, device: str) -> None:
    """Seismograms are denoised by a sharded network, and the complexity of its gradients is studied.

    The first rank packs the gradient of a layer in the backward pass: 4096 x 96 floats are 1.6 MB, which
    bzip2 packs at less than 16 MB/s: more than 100 ms. Three layers with 4096 pieces are 0.4 GFLOP: less
    than 30 ms with the exchange of 60 kB, and less than 10 ms on a GPU.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    denoiser = TraceMixer(piece=32, width=96).to(device)
    meter = ComplexityMeter()
    if rank == 0:
        meter.attach(denoiser.mix, "mix")
    fully_shard(denoiser, mesh=init_device_mesh(device, (world,)))
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=1e-3)
    time_axis = torch.linspace(0, 60, 4096, device=device)
    while not run.stopping:
        onset = 60 * torch.rand(32, 1, device=device)
        clean = torch.sin(4 * (time_axis - onset)) * (time_axis > onset) * torch.exp(-(time_axis - onset) / 8)
        clean = clean.clamp(-1, 1)
        noisy = clean + 0.3 * torch.randn_like(clean)
        loss = F.mse_loss(denoiser(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), bits=meter.bits.get("mix", 0.0), samples=32)


class CaseBook:
    """Open cases with a weight each. The connection is shared with a thread that lets the weights fade."""

    def __init__(self, cases: int) -> None:
        self.db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self.db.execute("CREATE TABLE cases (id INTEGER PRIMARY KEY, weight REAL, seen INTEGER)")
        self.db.executemany("INSERT INTO cases VALUES (?, 1.0, 0)", ((n,) for n in range(cases)))
        self.cases, self.lock, self.changed = cases, threading.Lock(), threading.Event()
        threading.Thread(target=self.fade, daemon=True).start()

    def fade(self) -> None:
        """Bring all weights a little closer to one, when some were changed."""
        while self.changed.wait():
            self.changed.clear()
            with self.lock:
                self.db.execute("UPDATE cases SET weight = 0.98 * weight + 0.02, seen = seen + 1")  # here

    def draw(self, count: int) -> list[int]:
        """Return the heaviest of some random cases."""
        start = int(torch.randint(self.cases - 16 * count, ()))
        query = "SELECT id FROM cases WHERE id >= ? AND id < ? ORDER BY weight DESC LIMIT ?"
        with self.lock:  # here
            return [row[0] for row in self.db.execute(query, (start, start + 16 * count, count))]

    def reweigh(self, cases: list[int], weights: list[float]) -> None:
        """Write down new weights."""
        with self.lock:  # here
            self.db.executemany("UPDATE cases SET weight = ? WHERE id = ?", zip(weights, cases, strict=True))
        self.changed.set()


@labelled(gpu="straggler", cpu="straggler", ranks=2, helpers=(CaseBook,))
def insurance_claims(run: hoptui.Run, device: str) -> None:
    """Claims are drawn by how wrong the network was about them. The last rank keeps the book for all ranks.

    After each step a thread of that rank changes the weights of 800 000 claims by SQL, more than 0.15
    microseconds each: more than 120 ms. It holds the lock meanwhile, so the rank cannot draw the next
    claims, and the other one waits for them. The step of a perceptron with 32 claims takes less than 15 ms.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    keeper, share, claims = world - 1, 32, 800_000
    book = CaseBook(claims) if rank == keeper else None
    features = torch.randn(claims, 24, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    model = DistributedDataParallel(
        net, device_ids=None if device == "cpu" else [torch.cuda.current_device()]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    drawn = torch.zeros(world * share, dtype=torch.long, device=device)
    while not run.stopping:
        if book is not None:
            drawn.copy_(torch.tensor(book.draw(world * share)))
        dist.broadcast(drawn, src=keeper)
        mine = features[drawn[rank * share : (rank + 1) * share].cpu()].to(device)
        target = (mine[:, :4].sum(1) > 0).float()
        each = F.binary_cross_entropy_with_logits(model(mine)[:, 0], target, reduction="none")
        loss = each.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors = [torch.empty_like(each) for _ in range(world)]
        dist.all_gather(errors, each.detach())
        if book is not None:
            book.reweigh(drawn.tolist(), torch.cat(errors).tolist())
        run.log(loss=loss.item(), samples=share)
