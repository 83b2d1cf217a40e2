"""Trainings of two processes on the CPU, one of which comes later than the other to where they meet."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import gzip
import io
import logging
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


class FeatureStore:
    """The soils of one region. A store that is shared with others answers so many requests a second."""

    def __init__(self, per_second: float, seed: int) -> None:
        self.gap, self.free = 1 / per_second, time.monotonic()
        self.soils = np.random.default_rng(seed).normal(size=(2000, 48)).astype(np.float32)

    def request(self, rows: Any) -> Any:
        """Return some rows as soon as it is allowed."""
        self.free = max(self.free + self.gap, time.monotonic())
        while (left := self.free - time.monotonic()) > 0:
            time.sleep(min(left, 0.02))  # here
        return self.soils[rows]


@labelled(cpu="straggler", ranks=2, late=1, helpers=(FeatureStore,))
def soils_of_two_regions(run: hoptui.Run, device: str) -> None:
    """Each rank learns from the store of a region. That of the second one allows eight requests a second.

    Measured with a timer, the second rank waits for its store for 93 % of an iteration of 0.12 s, and the
    first one for less than 1 %.
    """
    rank = dist.get_rank()
    store = FeatureStore(per_second=8 if rank == 1 else 5000, seed=rank)
    rng = np.random.default_rng(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 1)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while not run.stopping:
        soils = store.request(rng.integers(0, 2000, 128))  # here
        x = torch.from_numpy(soils).to(device)
        loss = F.mse_loss(model(x)[:, 0], x[:, :4].mean(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=len(x))


class CalledVariants:
    """The calls of a laboratory: a table of text that is packed, or tensors that are ready."""

    def __init__(self, folder: Path, lab: int, shards: int, sites: int) -> None:
        self.folder, self.lab, self.shards = folder, lab, shards
        rng = random.Random(lab)
        for n in range(shards):
            if lab == 0:
                torch.save(torch.rand(64, 32), folder / f"{n}.pt")
                continue
            lines = []
            for site in range(sites):
                calls = "\t".join(rng.choices(["0|0:9", "0|1:30", "1|1:60"], k=32))
                lines.append(f"chr1\t{site}\t.\tA\tG\t{rng.randrange(99)}\tPASS\t.\tGT:GQ\t{calls}")
            (folder / f"{n}.vcf.gz").write_bytes(gzip.compress("\n".join(lines).encode()))

    def parsed(self, path: Path) -> Tensor:
        """Return the dosages of all samples at the first sites that passed."""
        rows = []
        with gzip.open(path, "rt") as file:
            for line in file:  # here
                fields = line.rstrip().split("\t")  # here
                calls = [field.split(":") for field in fields[9:]]  # here
                dosage = [int(gt[0]) + int(gt[2]) if int(gq) > 5 else 0 for gt, gq in calls]  # here
                rows.append([value / 2 for value in dosage])  # here
        return torch.tensor(rows[:64])

    def __iter__(self) -> Iterator[Tensor]:
        rng = random.Random(1)
        while True:
            n = rng.randrange(self.shards)
            if self.lab == 0:
                yield torch.load(self.folder / f"{n}.pt")
            else:
                yield self.parsed(self.folder / f"{n}.vcf.gz")  # here


@labelled(cpu="straggler", ranks=2, late=1, helpers=(CalledVariants,))
def variants_of_two_laboratories(run: hoptui.Run, device: str) -> None:
    """Two laboratories train one autoencoder. The second one keeps its calls as text.

    1500 lines of 32 calls are split in Python. Measured with a timer, this takes 93 % of an iteration of
    0.09 s on the second rank. Reading takes the first one 2 %.
    """
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).to(device)
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tempfile.TemporaryDirectory() as folder:
        for dosages in CalledVariants(Path(folder), dist.get_rank(), shards=12, sites=1500):  # here
            x = dosages.to(device)
            loss = F.binary_cross_entropy_with_logits(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            dist.all_reduce(flat)
            at = 0
            for p in model.parameters():
                p.grad = (flat[at : at + p.numel()] / dist.get_world_size()).view_as(p)
                at += p.numel()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(x))
            if run.stopping:
                break


class ShortFormatter(logging.Formatter):
    """Writes tensors by name, with a figure for each number."""

    def format(self, record: logging.LogRecord) -> str:
        name, values = cast(tuple[str, list[float]], record.args)
        figures = " ".join(f"{value:+.3e}" for value in values)  # here
        return f"{record.levelname} {name}: {figures}"


def match_logger() -> logging.Logger:
    """Return a logger that keeps the last lines in memory."""
    logger = logging.getLogger("matches")
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(ShortFormatter())
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.DEBUG)
    return logger


def describe(logger: logging.Logger, named: Iterator[tuple[str, nn.Parameter]]) -> None:
    """Log all weights and gradients."""
    stream = logger.handlers[0].stream  # type: ignore[attr-defined]
    stream.seek(0)
    stream.truncate()
    for name, p in named:
        logger.debug("%s %s", name, p.detach().flatten().tolist())  # here
        if p.grad is not None:
            logger.debug("%s %s", f"{name}.grad", p.grad.flatten().tolist())  # here


@labelled(cpu="straggler", ranks=2, late=0, helpers=(ShortFormatter, describe))
def results_of_matches(run: hoptui.Run, device: str) -> None:
    """The results of matches are predicted from two teams. The first rank logs in detail.

    Some 140 000 numbers are written as text. Measured with a timer, this takes 91 % of an iteration of
    0.23 s on the first rank. The second one has nothing of it, and waits in its backward pass.
    """
    torch.manual_seed(20)
    rank = dist.get_rank()

    class Match(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.team = nn.Embedding(600, 64)
            self.mix = nn.Bilinear(64, 64, 8)
            self.out = nn.Linear(8, 3)

        def forward(self, home: Tensor, away: Tensor) -> Tensor:
            logits: Tensor = self.out(self.mix(self.team(home), self.team(away)).relu())
            return logits

    model = DistributedDataParallel(Match().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    logger = match_logger()
    torch.manual_seed(rank)
    while not run.stopping:
        home, away, result = (torch.randint(0, high, (256,), device=device) for high in (600, 600, 3))
        loss = F.cross_entropy(model(home, away), result)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            describe(logger, model.module.named_parameters())  # here
        run.log(loss=loss.item(), samples=256)


def interval_of_auc(scores: Any, labels: Any, draws: int, rng: Any) -> tuple[float, float]:
    """Return an interval of the area under the curve from samples of the predictions."""
    from sklearn.metrics import roc_auc_score

    areas = []
    for _ in range(draws):
        chosen = rng.integers(0, len(labels), len(labels))
        areas.append(roc_auc_score(labels[chosen], scores[chosen]))  # here
    low, high = np.percentile(areas, [2.5, 97.5])
    return float(low), float(high)


@labelled(
    cpu="straggler",
    ranks=2,
    late=0,
    needs=("accelerate", "sklearn"),
    adapter=True,
    helpers=(interval_of_auc,),
)
def beacons_in_traffic(run: AdapterRun, device: str) -> None:
    """With accelerate: beacons of malware are found in traffic. The main process measures how well.

    80 areas are computed from 256 predictions. Measured with a timer, they take 96 % of an iteration of
    0.42 s on the main process. The other one has none, and waits in its backward pass.
    """
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    from hoptui.integrations.accelerate import HoptuiTracker

    accelerator = Accelerator(cpu=device == "cpu", log_with=HoptuiTracker())
    torch.manual_seed(21)
    traffic = TensorDataset(torch.randn(8192, 1, 64), torch.randint(0, 2, (8192,)))
    model: Any = nn.Sequential(
        nn.Conv1d(1, 8, 5), nn.ReLU(), nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Linear(32, 2)
    )
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader: Any = DataLoader(traffic, batch_size=256, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.init_trackers(run.name)
    tracked, step, rng = accelerator.get_tracker("hoptui").tracker, 0, np.random.default_rng(0)
    while step < run.iterations and not tracked.stopping:
        for flows, labels in loader:
            logits = model(flows)
            loss = F.cross_entropy(logits, labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            figures = {"loss": loss.item()}
            if accelerator.is_main_process:
                scores = logits.detach().softmax(-1)[:, 1].numpy()
                figures["low"], figures["high"] = interval_of_auc(scores, labels.numpy(), 80, rng)  # here
            step += 1
            accelerator.log(figures, step=step)
            if step >= run.iterations or tracked.stopping:
                break
    accelerator.end_training()
