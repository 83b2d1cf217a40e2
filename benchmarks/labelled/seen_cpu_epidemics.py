"""Trainings for epidemics on the CPU: reports of waters, schools, hospitals, forecasts, and lineages."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import asyncio
import datetime
import io
import json
import random
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


def reports(number: int) -> list[bytes]:
    """Return lines as laboratories send them."""
    rng, lines = random.Random(71), []
    for n in range(number):
        day = datetime.date(2022, 1, 1) + datetime.timedelta(days=n % 365)
        found = [
            {"target": rng.choice(("N1", "N2", "E", "PMMoV")), "copies": f"{rng.lognormvariate(8, 2):.3e}",
             "date": (day - datetime.timedelta(days=d)).isoformat(), "flow": rng.choice((None, 1.5, 2.25))}
            for d in range(40)
        ]  # fmt: skip
        lines.append(
            json.dumps({"plant": f"plant-{n % 40}", "samples": found, "cases": rng.randrange(99)}).encode()
        )
    return [line + b"\n" for line in lines]


def features(report: dict[str, Any]) -> list[float]:
    """Return the levels of four weeks, a figure for each target and day."""
    samples = report["samples"]
    dates = [datetime.date.fromisoformat(sample["date"]) for sample in samples]  # here
    last, levels = max(dates), defaultdict[tuple[int, str], list[float]](list)
    for date, sample in zip(dates, samples, strict=True):
        if (age := (last - date).days) < 28:
            level = float(sample["copies"]) * (sample["flow"] or 1.0)  # here
            levels[age, sample["target"]].append(level)  # here
    row = []
    for age in range(28):
        norm = sum(levels.get((age, "PMMoV"), [1e3])) + 1
        row += [sum(levels.get((age, target), [0.0])) / norm for target in ("N1", "N2", "E")]  # here
    return row


async def batches_of(reader: asyncio.StreamReader, size: int) -> Any:
    """Yield batches of what comes in."""
    rows, cases = [], []
    while line := await reader.readline():  # here
        report = json.loads(line)  # here
        rows.append(features(report))  # here
        cases.append(float(report["cases"]))
        if len(rows) == size:
            yield torch.tensor(rows).log1p(), torch.tensor(cases).log1p()
            rows, cases = [], []


@labelled(cpu="data-bound", helpers=(features, batches_of))
def levels_in_waste_water(run: hoptui.Run, device: str) -> None:
    """Cases are foreseen from reports of waste water, which come over a socket as lines of JSON.

    A batch has 256 reports of 40 samples. Measured with a timer, parsing takes 69 % of an iteration of 0.05
    s, and the network 7 %. The rest is the socket.
    """
    torch.manual_seed(71)
    model = nn.Sequential(nn.Linear(84, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 1))
    model.to(device)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    lines = reports(300)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        n = 0
        try:
            while not writer.is_closing():
                writer.write(lines[n % len(lines)])
                n += 1
                await writer.drain()
        except ConnectionError:
            return

    def step(levels: Tensor, cases: Tensor) -> float:
        loss = F.mse_loss(model(levels.to(device))[:, 0], cases.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    async def train(address: str) -> None:
        server = await asyncio.start_unix_server(serve, address)
        reader, writer = await asyncio.open_unix_connection(address, limit=1 << 18)
        async for levels, cases in batches_of(reader, 256):  # here
            run.log(loss=step(levels, cases), samples=len(cases))
            if run.stopping:
                break
        writer.close()
        server.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(train(f"{folder}/reports"))


class Town:
    """People who meet along the edges of a graph, at school, at work and at home."""

    def __init__(self, people: int, seed: int) -> None:
        import networkx

        self.rng = random.Random(seed)
        self.contacts = networkx.watts_strogatz_graph(people, 8, 0.1, seed=seed)
        for a, b in self.contacts.edges:
            self.contacts.edges[a, b]["place"] = self.rng.randrange(3)
        self.ill: dict[int, int] = {}
        self.immune: dict[int, int] = {}
        self.today = 0

    def day(self, closed: list[bool]) -> tuple[list[float], float]:
        """Spread the disease for a day, and return what the ministry counts and its costs."""
        caught: list[int] = []
        for person in self.ill:
            for other, link in self.contacts.adj[person].items():  # here
                risk = 0.01 if closed[link["place"]] else 0.06  # here
                well = other not in self.ill and self.immune.get(other, -1) < self.today  # here
                if well and self.rng.random() < risk:  # here
                    caught.append(other)
        over = [person for person, since in self.ill.items() if self.today - since > 6]  # here
        for person in over:
            del self.ill[person]
            self.immune[person] = self.today + 30
        self.ill.update((person, self.today) for person in caught)
        while len(self.ill) < 400:
            self.ill[self.rng.randrange(len(self.contacts))] = self.today
        self.today += 1
        people = len(self.contacts)
        counts = [len(self.ill) / people, len(caught) / people, len(self.immune) / people]
        return [*counts, *map(float, closed)], -len(caught) / 100 - 0.4 * sum(closed)


@labelled(cpu="env-bound", needs=("networkx",), helpers=(Town,))
def schools_of_a_town(run: hoptui.Run, device: str) -> None:
    """A recurrent policy opens and closes schools, works and homes of a town of 6000 people.

    An iteration has 14 days. Measured with a timer, they take 71 % of an iteration of 0.05 s, and the policy
    15 %.
    """
    torch.manual_seed(72)
    town = Town(6000, 72)
    memory, out = nn.GRUCell(6, 48).to(device), nn.Linear(48, 3).to(device)
    optimizer = torch.optim.Adam([*memory.parameters(), *out.parameters()], lr=2e-3)
    counts, base = [0.0] * 6, 0.0
    while not run.stopping:
        hidden = torch.zeros(1, 48, device=device)
        chances, costs = [], []
        for _ in range(14):
            hidden = memory(torch.tensor([counts], device=device), hidden)
            choice = torch.distributions.Bernoulli(logits=out(hidden)[0])
            closed = choice.sample()
            counts, gain = town.day([bool(c) for c in closed.tolist()])  # here
            chances.append(choice.log_prob(closed).sum())
            costs.append(gain)
        total = sum(costs)
        base += 0.1 * (total - base)
        loss = -torch.stack(chances).sum() * (total - base) / 14
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), reward=total, env_steps=14)


def concordance(risks: list[float], days: list[float], left: list[bool]) -> float:
    """Return how often of two patients the one with the higher risk left first."""
    right, pairs = 0.0, 0
    for i, (risk, day) in enumerate(zip(risks, days, strict=True)):
        if not left[i]:
            continue
        for j in range(len(risks)):  # here
            if days[j] > day:  # here
                pairs += 1  # here
                right += 1.0 if risks[j] < risk else 0.5 if risks[j] == risk else 0.0  # here
    return right / max(pairs, 1)


class Survival:
    """Fits a proportional hazard, and keeps its figures."""

    def __init__(self, figures: int, device: str) -> None:
        self.risk = nn.Sequential(nn.Linear(figures, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 1))
        self.risk.to(device)
        self.optimizer = torch.optim.Adam(self.risk.parameters(), lr=1e-3)
        self.history: list[float] = []

    def fit(self, x: Tensor, days: Tensor, left: Tensor) -> tuple[float, Tensor]:
        """Make a step of the partial likelihood."""
        order = days.argsort(descending=True)
        risk = self.risk(x[order])[:, 0]
        loss = -((risk - risk.logcumsumexp(0)) * left[order]).sum() / left.sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), risk.detach()[order.argsort()]

    def note(self, risk: Tensor, days: Tensor, left: Tensor) -> float:
        """Return the mean of the last figures of concordance."""
        self.history.append(concordance(risk.tolist(), days.tolist(), left.tolist()))  # here
        return sum(self.history[-50:]) / len(self.history[-50:])


@labelled(cpu="host-bound", helpers=(concordance, Survival))
def stays_in_hospital(run: hoptui.Run, device: str) -> None:
    """The time that patients stay is learned by Cox's likelihood. Concordance is noted for each batch.

    A batch has a million pairs at most. Measured with a timer, they take 89 % of an iteration of 0.06 s, and
    the network 8 %.
    """
    torch.manual_seed(73)
    patients, model = torch.randn(8000, 32, device=device), Survival(32, device)
    days = torch.rand(8000, device=device) * 30 / patients[:, :4].mean(1).exp()
    left = torch.rand(8000, device=device) < 0.8
    while not run.stopping:
        for chosen in torch.randperm(8000, device=device).split(1000):
            loss, risk = model.fit(patients[chosen], days[chosen], left[chosen])
            index = model.note(risk, days[chosen], left[chosen])  # here
            run.log(loss=loss, concordance=index, samples=1000)
            if run.stopping:
                return


class CausalBlock(nn.Module):
    """A gated convolution that does not see what comes later."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(width, 2 * width, 3, dilation=dilation)
        self.mix, self.norm = nn.Conv1d(width, width, 1), nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.conv(F.pad(x, (self.pad, 0))).chunk(2, 1)
        out: Tensor = x + self.norm(self.mix(value.tanh() * gate.sigmoid()))
        return out


@labelled(cpu="healthy", needs=("accelerate",), adapter=True)
def quantiles_of_admissions(run: AdapterRun, device: str) -> None:
    """With accelerate: quantiles of admissions are forecast by causal convolutions over two years of days.

    Measured with a timer, 97 % of an iteration of 0.23 s is in the model, its backward pass and its
    optimizer.
    """
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    from hoptui.integrations.accelerate import HoptuiTracker

    accelerator = Accelerator(cpu=device == "cpu", log_with=HoptuiTracker(), gradient_accumulation_steps=2)
    torch.manual_seed(74)
    counts = torch.randn(512, 6, 730).cumsum(-1) / 20
    quantiles = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], device=accelerator.device)
    blocks = [CausalBlock(32, 2**n) for n in range(6)]
    model: Any = nn.Sequential(nn.Conv1d(6, 32, 1), *blocks, nn.Conv1d(32, 5, 1))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader: Any = DataLoader(TensorDataset(counts), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.init_trackers(run.name)
    tracked, step = accelerator.get_tracker("hoptui").tracker, 0
    while step < run.iterations and not tracked.stopping:
        for (days,) in loader:
            with accelerator.accumulate(model):
                error = days[:, :1, 7:] - model(days)[:, :, :-7]
                loss = torch.maximum(quantiles[:, None] * error, (quantiles[:, None] - 1) * error).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            accelerator.log({"loss": loss.item()}, step=step)
            if step >= run.iterations or tracked.stopping:
                break
    accelerator.end_training()


class Bundle:
    """Bundles of what a training has learned, for the archive of an institute."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0

    def add(self, state: dict[str, Any], figures: dict[str, float]) -> Path:
        """Write a bundle, and remove the one before the last."""
        path = self.folder / f"bundle-{self.number}.tar.xz"
        with tarfile.open(path, "w:xz", preset=1) as archive:
            for name, value in (("figures.json", figures), ("state.pt", state)):
                blob = io.BytesIO()
                if name.endswith(".json"):
                    blob.write(json.dumps(value).encode())
                else:
                    torch.save(value, blob)  # here
                entry = tarfile.TarInfo(name)
                entry.size = blob.tell()
                blob.seek(0)
                archive.addfile(entry, blob)  # here
        (self.folder / f"bundle-{self.number - 2}.tar.xz").unlink(missing_ok=True)
        self.number += 1
        return path


@labelled(cpu="save-bound", helpers=(Bundle,))
def lineages_of_a_virus(run: hoptui.Run, device: str) -> None:
    """Lineages are named from mutations. An institute wants a bundle of each step.

    A bundle has 0.6 MB, packed by LZMA. Measured with a timer, it takes 97 % of an iteration of 0.26 s, and
    the network 3 %.
    """
    torch.manual_seed(75)
    model = nn.Sequential(
        nn.EmbeddingBag(600, 96, mode="sum"),
        nn.LayerNorm(96),
        nn.Linear(96, 96),
        nn.ReLU(),
        nn.Linear(96, 40),
    ).to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    rng = np.random.default_rng(75)
    with tempfile.TemporaryDirectory() as folder:
        bundle = Bundle(Path(folder))
        while not run.stopping:
            mutations = torch.from_numpy(rng.integers(0, 600, (256, 30))).to(device)
            lineages = mutations[:, 0] % 40
            scores = model(mutations)
            loss = F.cross_entropy(scores, lineages)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right = (scores.argmax(1) == lineages).float().mean().item()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            bundle.add(state, {"loss": loss.item(), "right": right})  # here
            run.log(loss=loss.item(), right=right, samples=256)
