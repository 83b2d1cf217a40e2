"""Trainings for geology on the CPU: logs of wells, thin sections, faults, ore grades, and an aquifer."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import io
import math
import queue
import random
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import labelled

CURVES = ("DEPT", "GR", "RHOB", "NPHI", "DT", "RDEP")
FACIES = 6


def write_las(path: Path, rows: int, rng: Any) -> None:
    """Write the logs of a well as a LAS file of version 2."""
    head = ["~Version", " VERS. 2.0 :", "~Well", f" WELL. {path.stem} :", " NULL. -999.25 :", "~Curve"]
    head += [f" {name}.  : {name.lower()}" for name in (*CURVES, "FACIES")]
    values = rng.normal(size=(rows, len(CURVES) - 1)).cumsum(0) * 0.1 + 2
    kinds = (values[:, 0] * 3).astype(int) % FACIES
    body = []
    for n, (row, kind) in enumerate(zip(values.tolist(), kinds.tolist(), strict=True)):
        shown = [f"{v:12.4f}" if rng.random() > 0.03 else "    -999.2500" for v in row]
        body.append(f"{1500 + 0.1524 * n:12.4f}{''.join(shown)} {kind:3d}")
    path.write_text("\n".join([*head, "~ASCII", *body]))


class WellLogs(Dataset[tuple[Tensor, Tensor]]):
    """Windows of the logs of wells, read from LAS files."""

    def __init__(self, folder: Path, length: int) -> None:
        self.paths, self.length = sorted(folder.glob("*.las")), length

    def __len__(self) -> int:
        return 100 * len(self.paths)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        section, curves, facies = "", [], []
        with self.paths[i % len(self.paths)].open() as file:
            for line in file:  # here
                if line.startswith("~"):  # here
                    section = line[1]
                elif section == "A":  # here
                    *values, kind = line.split()  # here
                    row = [float(value) for value in values]  # here
                    curves.append([0.0 if value == -999.25 else value for value in row])  # here
                    facies.append(int(kind))  # here
        first = random.randrange(len(curves) - self.length)
        x = torch.tensor(curves[first : first + self.length])[:, 1:]
        return x.T, torch.tensor(facies[first : first + self.length])


class FaciesNet(nn.Module):
    """Dilated convolutions that name the rock at each depth."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(len(CURVES) - 1, width, 3, padding=1)
        self.rest = nn.ModuleList(nn.Conv1d(width, width, 3, padding=d, dilation=d) for d in (2, 4, 8))
        self.out = nn.Conv1d(width, FACIES, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for conv in self.rest:
            h = h + torch.tanh(conv(h))
        scores: Tensor = self.out(h)
        return scores


@labelled(cpu="data-bound", helpers=(WellLogs,))
def facies_of_wells(run: hoptui.Run, device: str) -> None:
    """Rocks are named from the logs of wells, which one process of the loader reads from LAS files.

    A file has 1600 lines, and a batch 16 files. Measured with a timer, the loop waits for the loader for 71
    to 74 % of an iteration of 0.11 s, and the network takes 26 %.
    """
    torch.manual_seed(31)
    net = FaciesNet(24).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    rng = np.random.default_rng(31)
    with tempfile.TemporaryDirectory() as folder:
        for n in range(12):
            write_las(Path(folder, f"15-9-{n}.las"), 1600, rng)
        loader = DataLoader(
            WellLogs(Path(folder), 256), batch_size=16, shuffle=True, num_workers=1, drop_last=True
        )
        while not run.stopping:
            for x, y in loader:  # here
                loss = F.cross_entropy(net(x.to(device)), y.to(device))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                run.log(loss=loss.item(), samples=len(y))
                if run.stopping:
                    break


def pack_sections(path: Path, sections: int) -> None:
    """Write pictures of thin sections into an archive, in both kinds of light."""
    from PIL import Image

    rng = np.random.default_rng(32)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for n in range(sections):
            for light in ("ppl", "xpl"):
                grains = rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)
                picture = Image.fromarray(grains).resize((320, 240), Image.Resampling.NEAREST)
                blob = io.BytesIO()
                picture.save(blob, "PNG")
                archive.writestr(f"{light}/{n:03d}.png", blob.getvalue())


class ThinSections:
    """Pairs of pictures from an archive, turned under the microscope and bent a little."""

    def __init__(self, path: Path, sections: int) -> None:
        self.archive, self.sections = zipfile.ZipFile(path), sections
        self.rng = np.random.default_rng(33)

    def picture(self, name: str) -> Any:
        """Return a picture as an array."""
        from PIL import Image

        with self.archive.open(name) as file:
            return np.asarray(Image.open(file), np.float32) / 255  # here

    def bent(self, picture: Any, angle: float) -> Any:
        """Return the middle of a picture that was turned and bent."""
        from scipy import ndimage

        turned = ndimage.rotate(picture, angle, reshape=False, order=1)  # here
        noise = self.rng.normal(size=(2, *turned.shape[:2]))  # here
        shift = 60 * ndimage.gaussian_filter(noise, (0, 12, 12))  # here
        where = np.indices(turned.shape[:2]) + shift  # here
        layers = [ndimage.map_coordinates(turned[..., c], where, order=1) for c in range(3)]  # here
        return np.stack(layers)[:, 56:184, 96:224]

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches for ever."""
        while True:
            pairs, minerals = [], []
            for n in self.rng.integers(0, self.sections, size).tolist():
                angle = self.rng.uniform(0, 90)
                names = [f"{light}/{n:03d}.png" for light in ("ppl", "xpl")]
                both = [self.bent(self.picture(name), angle) for name in names]  # here
                pairs.append(np.concatenate(both))
                minerals.append(n % 5)
            yield torch.from_numpy(np.stack(pairs)).float(), torch.tensor(minerals)


@labelled(cpu="data-bound", needs=("PIL", "scipy"), helpers=(ThinSections,))
def minerals_in_thin_sections(run: hoptui.Run, device: str) -> None:
    """Minerals are told from two pictures of a thin section, which SciPy turns and bends in the loop.

    A batch has six pairs of 320 x 240 pixels. Measured with a timer, they take 97 % of an iteration of 0.6 s,
    and the network 2 %.
    """
    torch.manual_seed(32)
    net = nn.Sequential(
        nn.Conv2d(6, 12, 5, stride=4), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    right = 0.0
    with tempfile.TemporaryDirectory() as folder:
        pack_sections(Path(folder, "sections.zip"), 30)
        sections = ThinSections(Path(folder, "sections.zip"), 30)
        for pairs, minerals in sections.batches(6):  # here
            scores = net(pairs.to(device))
            loss = F.cross_entropy(scores, minerals.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right = 0.95 * right + 0.05 * (scores.argmax(1).cpu() == minerals).float().mean().item()
            run.log(loss=loss.item(), right=right, samples=len(minerals))
            if run.stopping:
                break
        sections.archive.close()


class FaultNet(nn.Module):
    """A U-Net of two levels over cubes of amplitudes."""

    def __init__(self, width: int) -> None:
        super().__init__()

        def twice(into: int, out: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv3d(into, out, 3, padding=1), nn.InstanceNorm3d(out), nn.LeakyReLU(0.1),
                nn.Conv3d(out, out, 3, padding=1), nn.InstanceNorm3d(out), nn.LeakyReLU(0.1),
            )  # fmt: skip

        self.down, self.low = twice(1, width), twice(width, 2 * width)
        self.up = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.last, self.out = twice(2 * width, width), nn.Conv3d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        low = self.up(self.low(F.max_pool3d(high, 2)))
        logits: Tensor = self.out(self.last(torch.cat((high, low), 1)))
        return logits


@labelled(cpu="healthy")
def faults_in_seismic_cubes(run: hoptui.Run, device: str) -> None:
    """Faults are segmented in seismic cubes by a U-Net. A thread cuts the next cubes from a survey in memory.

    Measured with a timer, 98 % of an iteration of 0.07 s is in the model, its backward pass and its
    optimizer.
    """
    torch.manual_seed(33)
    survey, faults = torch.randn(160, 160, 160), (torch.rand(160, 160, 160) > 0.97).float()
    ready: queue.Queue[tuple[Tensor, Tensor]] = queue.Queue(maxsize=4)
    over = threading.Event()

    def cut() -> None:
        rng = random.Random(33)
        while not over.is_set():
            at = [tuple(slice(o, o + 24) for o in rng.choices(range(137), k=3)) for _ in range(2)]
            cubes = torch.stack([survey[where] for where in at])[:, None]
            marks = torch.stack([faults[where] for where in at])[:, None]
            while not over.is_set():
                try:
                    ready.put((cubes, marks), timeout=0.1)
                    break
                except queue.Full:
                    continue

    cutter = threading.Thread(target=cut, daemon=True)
    cutter.start()
    net = FaultNet(8).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    weight = torch.tensor(10.0, device=device)
    while not run.stopping:
        cubes, marks = ready.get()
        logits = net(cubes.to(device))
        marks = marks.to(device)
        cross = F.binary_cross_entropy_with_logits(logits, marks, pos_weight=weight)
        overlap = 2 * (logits.sigmoid() * marks).sum() / (logits.sigmoid().sum() + marks.sum() + 1)
        loss = cross + 1 - overlap
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        run.log(loss=loss.item(), dice=overlap.item(), samples=2)
    over.set()
    cutter.join(5)


def variogram(places: list[list[float]], left: list[float], step: float, lags: int) -> list[float]:
    """Return half the mean squared difference of what is left, for each distance."""
    sums, counts = [0.0] * lags, [0] * lags
    for i, (x, y, z) in enumerate(places):
        for j in range(i):  # here
            u, v, w = places[j]  # here
            lag = int(math.sqrt((x - u) ** 2 + (y - v) ** 2 + (z - w) ** 2) / step)  # here
            if lag < lags:  # here
                sums[lag] += (left[i] - left[j]) ** 2  # here
                counts[lag] += 1  # here
    return [0.5 * total / max(count, 1) for total, count in zip(sums, counts, strict=True)]


@labelled(cpu="host-bound", helpers=(variogram,))
def ore_grades(run: hoptui.Run, device: str) -> None:
    """Grades of ore are interpolated between drill holes. A variogram checks what is left at each step.

    The variogram has 80 000 pairs in Python. Measured with a timer, it takes 85 % of an iteration of 0.05 s,
    and the network 11 %.
    """
    torch.manual_seed(34)
    holes = torch.rand(4000, 3, device=device) * 100
    grades = (holes / 17).sin().prod(1) + 0.1 * torch.randn(4000, device=device)
    frequencies = torch.randn(3, 64, device=device) / 8
    field = nn.Sequential(nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 1))
    field.to(device)
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)
    nugget: list[float] = []
    while not run.stopping:
        chosen = torch.randint(0, 4000, (600,), device=device)
        angles = holes[chosen] @ frequencies
        predicted = field(torch.cat((angles.sin(), angles.cos()), 1))[:, 0]
        loss = F.huber_loss(predicted, grades[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        left = (grades[chosen] - predicted.detach())[:400]
        gamma = variogram(holes[chosen][:400].tolist(), left.tolist(), 8.0, 12)  # here
        nugget.append(gamma[0])
        run.log(loss=loss.item(), nugget=sum(nugget[-20:]) / len(nugget[-20:]), samples=600)


class Aquifer:
    """Heads of groundwater on a grid, which wells draw down. A day is solved implicitly."""

    def __init__(self, cells: int, wells: int, seed: int) -> None:
        from scipy import sparse

        rng = np.random.default_rng(seed)
        self.cells, self.rng = cells, rng
        self.wells = rng.choice(cells * cells, wells, replace=False)
        line = sparse.diags([np.ones(cells - 1), -2 * np.ones(cells), np.ones(cells - 1)], [-1, 0, 1])
        flat = sparse.kronsum(line, line)
        self.storage = sparse.diags(rng.uniform(0.5, 1.5, cells * cells))
        self.flow = (self.storage - 0.8 * flat).tocsc()
        self.head = np.full(cells * cells, 10.0)

    def day(self, rates: Any) -> tuple[Any, float]:
        """Pump for a day, and return the heads at the wells and the profit."""
        from scipy.sparse.linalg import spsolve

        source = self.storage @ self.head + 0.05 * self.rng.random(len(self.head))
        source[self.wells] -= rates
        self.head = np.maximum(spsolve(self.flow, source), -5.0)  # here
        drawn = self.head[self.wells]
        profit = float((rates * (drawn > 2)).sum() - 0.2 * (drawn < 0).sum())
        return drawn.astype(np.float32), profit


@labelled(cpu="env-bound", needs=("scipy",), helpers=(Aquifer,))
def pumping_of_an_aquifer(run: hoptui.Run, device: str) -> None:
    """An actor and a critic choose how much twelve wells pump. SciPy solves for the water of each day.

    An iteration has eight days of 64 x 64 cells. Measured with a timer, they take 88 % of an iteration of
    0.16 s, and the networks 4 %.
    """
    torch.manual_seed(35)
    aquifer = Aquifer(64, 12, 35)
    body = nn.Sequential(nn.Linear(12, 64), nn.Tanh()).to(device)
    actor, critic = nn.Linear(64, 12).to(device), nn.Linear(64, 1).to(device)
    optimizer = torch.optim.RMSprop([*body.parameters(), *actor.parameters(), *critic.parameters()], lr=7e-4)
    heads = np.zeros(12, np.float32)
    while not run.stopping:
        log_p, values, profits = [], [], []
        for _ in range(8):
            h = body(torch.from_numpy(heads).to(device) / 10)
            pump = torch.distributions.Normal(actor(h), 0.3)
            chosen = pump.sample()
            heads, profit = aquifer.day(chosen.sigmoid().cpu().numpy() * 3)  # here
            log_p.append(pump.log_prob(chosen).sum())
            values.append(critic(h)[0])
            profits.append(profit)
        returns, total = [], critic(body(torch.from_numpy(heads).to(device) / 10)).item()
        for profit in reversed(profits):
            total = profit + 0.98 * total
            returns.append(total)
        goal = torch.tensor(returns[::-1], device=device)
        value = torch.stack(values)
        loss = -(torch.stack(log_p) * (goal - value.detach())).mean() + F.mse_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), profit=sum(profits) / 8, env_steps=8)
