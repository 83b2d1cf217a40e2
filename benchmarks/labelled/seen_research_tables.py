"""Trainings on tables, sessions of customers, and series of measurements."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
import importlib.util
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


class DiverseBatches(Sampler[list[int]]):
    """Batches of sessions that have few items in common, so that other sessions serve as negatives."""

    def __init__(self, sessions: list[set[int]], batch_size: int, pool_size: int) -> None:
        self.sessions, self.batch_size, self.pool_size = sessions, batch_size, pool_size
        self.rng = random.Random(0)

    def __len__(self) -> int:
        return len(self.sessions) // self.batch_size

    def overlap(self, n: int, taken: set[int]) -> int:
        return len(self.sessions[n] & taken)  # here

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            pool = self.rng.sample(range(len(self.sessions)), self.pool_size)
            batch = [pool.pop()]
            taken = set(self.sessions[batch[0]])
            while len(batch) < self.batch_size:
                best = min(pool, key=lambda n: self.overlap(n, taken))  # here
                pool.remove(best)
                batch.append(best)
                taken |= self.sessions[best]
            yield batch


class Sessions(Dataset[Tensor]):
    """The items of each session, of the same number."""

    def __init__(self, count: int, items: int, length: int) -> None:
        rng = np.random.default_rng(0)
        self.rows = (rng.pareto(1.2, (count, length)) * 40).astype(np.int64) % items

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, idx: int) -> Tensor:
        return torch.from_numpy(self.rows[idx])


@labelled(gpu="data-bound", cpu="data-bound", helpers=(DiverseBatches,))
def session_rec_in_batch_negatives(run: hoptui.Run, device: str) -> None:
    """The batch sampler of a recommender chooses sessions that share few items, one after another.

    For each of 64 sessions it intersects sets for about 1400 candidates: 90 000 times more than 1
    microsecond, more than 90 ms a batch. Two towers of width 32 see 64 x 40 items: less than 10 ms.
    """
    data = Sessions(count=4000, items=20_000, length=40)
    sessions = [set(row.tolist()) for row in data.rows]
    loader = DataLoader(data, batch_sampler=DiverseBatches(sessions, 64, 1450))
    items = nn.Embedding(20_000, 32, sparse=True).to(device)
    optimizer = torch.optim.SGD(items.parameters(), lr=0.5)
    while not run.stopping:
        for rows in loader:
            rows = rows.to(device)
            user, bought = items(rows[:, :-1]).mean(1), items(rows[:, -1])
            scores = user @ bought.T
            loss = F.cross_entropy(scores, torch.arange(len(rows), device=device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(rows))
            if run.stopping:
                break


def _meter_windows(meters: int, rows: int, hours: int) -> Any:
    """Return a dataset of the last hours of a meter, which pandas cuts out of a table of all meters."""
    pd: Any = importlib.import_module("pandas")

    class MeterWindows(Dataset[tuple[Tensor, Tensor]]):
        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            stamps = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(rows) * 5, unit="min")
            self.table = pd.DataFrame(
                {
                    "meter": rng.integers(0, meters, rows),
                    "time": stamps,
                    "kwh": rng.gamma(2.0, 1.0, rows).astype(np.float32),
                }
            )

        def __len__(self) -> int:
            return 64 * meters

        def __getitem__(self, idx: int) -> tuple[Tensor, Tensor]:
            return window_of(self.table, idx % meters, idx, hours)

    return MeterWindows()


def window_of(table: Any, meter: int, start: int, hours: int) -> tuple[Tensor, Tensor]:
    """Return the hourly means of a meter, smoothed, and the value that follows."""
    own = table[table["meter"] == meter].set_index("time")["kwh"]  # here
    hourly = own.resample("1h").mean().interpolate()  # here
    smooth = hourly.rolling(6, min_periods=1).median()  # here
    first = start % (len(smooth) - hours - 1)
    values = smooth.iloc[first : first + hours + 1].to_numpy(np.float32).copy()
    return torch.from_numpy(values[:-1]), torch.from_numpy(values[-1:])


@labelled(gpu="data-bound", cpu="data-bound", needs=(PACKAGE, "pandas"), adapter=True, helpers=(window_of,))
def lit_load_forecast(run: AdapterRun, device: str) -> None:
    """A forecast of the use of energy, under Lightning, whose dataset asks pandas for each window.

    A window filters a table of 400 000 rows, averages 33 000 hours, fills gaps, and takes running medians:
    more than 6 ms. A batch has 24: more than 140 ms. A perceptron on 48 hours needs less than 20 ms.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)

    class LoadForecast(pl.LightningModule):  # type: ignore[misc]
        def __init__(self, hours: int) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(hours, 64), nn.ReLU(), nn.Linear(64, 1))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            past, following = batch
            loss = F.huber_loss(self.net(past), following)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 10)]

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
    loader = DataLoader(_meter_windows(meters=40, rows=400_000, hours=48), batch_size=24, shuffle=True)
    trainer.fit(LoadForecast(48), loader)


class BayesianPlateau(LRScheduler):
    """Lowers the rate where a Gaussian process says that the loss no longer falls."""

    def __init__(self, optimizer: torch.optim.Optimizer, history: list[float], window: int) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF

        self.history, self.window = history, window
        self.processes = [
            GaussianProcessRegressor(RBF(scale), alpha=0.1, optimizer=None, normalize_y=True)
            for scale in np.geomspace(0.02, 1.0, 12)
        ]
        super().__init__(optimizer)

    def slope(self) -> float:
        """Return the slope of the likeliest process at the end of the history."""
        losses = np.array(self.history[-self.window :])
        times = np.linspace(0, 1, len(losses))[:, None]
        for process in self.processes:
            process.fit(times, losses)  # here
        best = max(self.processes, key=lambda process: process.log_marginal_likelihood_value_)
        before, after = best.predict(np.array([[0.95], [1.0]]))
        return float(after - before)

    def get_lr(self) -> list[float | Tensor]:
        rates = [group["lr"] for group in self.optimizer.param_groups]
        if len(self.history) < self.window:
            return rates
        return [max(1e-5, rate * (0.999 if self.slope() > 0 else 1.0)) for rate in rates]


@labelled(gpu="host-bound", cpu="host-bound", needs=("sklearn",), helpers=(BayesianPlateau,))
def credit_scores_with_a_scheduler(run: hoptui.Run, device: str) -> None:
    """A scheduler of the learning rate fits Gaussian processes to the last losses after each step.

    12 processes on 500 losses: for each a matrix of 250 000 exponentials, its Cholesky factor, and its
    likelihood: more than 8 ms, together more than 100 ms. The classifier of 256 rows needs less than 10 ms.
    """
    table = torch.randn(10_000, 40)
    default = (table[:, :4].sum(1) + torch.randn(10_000) > 0).long()
    table, default = table.to(device), default.to(device)
    model = nn.Sequential(nn.Linear(40, 64), nn.SiLU(), nn.Dropout(0.1), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    history = [0.7] * 500
    scheduler = BayesianPlateau(optimizer, history, window=500)
    while not run.stopping:
        rows = torch.randint(0, len(table), (256,), device=device)
        loss = F.cross_entropy(model(table[rows]), default[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        scheduler.step()
        run.log(loss=history[-1], lr=scheduler.get_last_lr()[0])


class ImplicitFactors:
    """A factorisation of clicks with the interface of scikit-learn, which keeps its best self in a file."""

    def __init__(self, users: int, items: int, dim: int, path: Path) -> None:
        self.users, self.items, self.dim, self.path = users, items, dim, path

    def save(self) -> None:
        joblib: Any = importlib.import_module("joblib")
        state = {"user": self.user.state_dict(), "item": self.item.state_dict(), "loss": self.best}
        joblib.dump(state, self.path)  # here

    def partial_fit(self, clicks: Tensor) -> float:
        user, item = clicks.unbind(1)
        negative = torch.randint_like(item, self.items)
        u = self.user(user)
        loss = -F.logsigmoid((u * self.item(item)).sum(1) - (u * self.item(negative)).sum(1)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, clicks: Tensor, run: hoptui.Run) -> ImplicitFactors:
        self.user = nn.Embedding(self.users, self.dim, sparse=True).to(clicks.device)
        self.item = nn.Embedding(self.items, self.dim, sparse=True).to(clicks.device)
        self.optimizer = torch.optim.SGD([*self.user.parameters(), *self.item.parameters()], lr=0.05)
        self.best = float("inf")
        while not run.stopping:
            batch = clicks[torch.randint(0, len(clicks), (1024,), device=clicks.device)]
            loss = self.partial_fit(batch)
            if loss < self.best + 10.0:  # a tolerance, as the losses of batches differ
                self.best = min(loss, self.best)
                self.save()
            run.log(loss=loss, samples=len(batch))
        return self


@labelled(gpu="save-bound", cpu="save-bound", needs=("joblib",), helpers=(ImplicitFactors,))
def bpr_estimator(run: hoptui.Run, device: str) -> None:
    """Factors of users and items are dumped with joblib whenever the loss is not much worse than before.

    The tables have 300 000 and 100 000 rows of 128 numbers, 205 MB: more than 100 ms at 2 GB/s. A step looks
    up 3 x 1024 rows, and its gradients are sparse: less than 15 ms.
    """
    with tempfile.TemporaryDirectory() as folder:
        clicks = torch.stack([torch.randint(0, n, (100_000,)) for n in (300_000, 100_000)], 1).to(device)
        ImplicitFactors(300_000, 100_000, 128, Path(folder, "factors.joblib")).fit(clicks, run)
