"""Loads of the second lot that was held out once: they wait for input."""

from __future__ import annotations

import gzip
import io
import queue
import random
import re
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from PIL import Image
from scipy import ndimage
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import hoptui
from benchmarks.labelled.catalogue import labelled

ATOM = re.compile(r"\[[^\]]+\]|Br|Cl|[BCNOPSFI]|[bcnops]|[=#/\\@+\-()]|\d")


def fingerprint(smiles: str) -> bytearray:
    """Which paths of one to six atoms a molecule has, each in a slot of a vector."""
    atoms = ATOM.findall(smiles)
    bits = bytearray(512)
    for length in range(1, 7):
        for start in range(len(atoms) - length + 1):  # here
            slot = 7
            for atom in atoms[start : start + length]:  # here
                slot = (slot * 31 + hash(atom)) % 512  # here
            bits[slot] = 1  # here
    return bits


@labelled(gpu="data-bound", cpu="data-bound", helpers=(fingerprint,))
def solubility_of_molecules(run: hoptui.Run, device: str) -> None:
    """Chemistry: the molecules are texts, and their descriptors are found when they are needed."""
    rng = random.Random(3)
    pieces = ["C", "c1ccccc1", "C(=O)O", "N", "[NH3+]", "Cl", "C#N", "OC", "S(=O)(=O)", "Br"]
    molecules = ["".join(rng.choices(pieces, k=8)) for _ in range(5000)]
    solubility = {molecule: rng.gauss(0, 1) for molecule in molecules}
    net = nn.Sequential(nn.Linear(512, 128), nn.SiLU(), nn.Linear(128, 1)).to(device)
    adam = torch.optim.Adam(net.parameters(), 1e-3)
    while not run.stopping:
        some = rng.sample(molecules, 256)
        with run.phase("descriptors"):
            bits = bytearray().join(fingerprint(molecule) for molecule in some)
            x = torch.frombuffer(bits, dtype=torch.uint8).view(-1, 512).to(device).float()
        y = torch.tensor([[solubility[molecule]] for molecule in some], device=device)
        loss = functional.huber_loss(net(x), y)
        adam.zero_grad()
        loss.backward()
        adam.step()
        run.log(huber=loss.item(), samples=256)


def render(scene: Any) -> Any:
    """Paint the stars of a scene, shape (N, 4), on a sky of 64 by 64."""
    rows, columns = np.mgrid[:64, :64]
    sky = np.random.normal(0.1, 0.02, (64, 64))  # here
    for row, column, width, light in scene:
        squared = (rows - row) ** 2 + (columns - column) ** 2  # here
        sky += light * np.exp(-squared / (2 * width**2))  # here
    return sky.astype(np.float32)


class Skies(Dataset[tuple[Any, Any]]):
    """Skies that exist as soon as somebody looks at them."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        scene = np.random.default_rng(index).random((24, 4)) * [64, 64, 2, 1] + [0, 0, 0.8, 0.1]
        return render(scene), np.float32(scene[:, 3].sum())


class Astronomer:
    """Guesses how much light the stars of a sky give."""

    def __init__(self, device: str) -> None:
        layers = nn.Conv2d(1, 4, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 15 * 15, 1)
        self.device, self.net = device, nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 1e-4)

    def train_epoch(self, loader: DataLoader[tuple[Any, Any]], run: hoptui.Run) -> None:
        for sky, light in loader:
            guess = self.net(sky[:, None].to(self.device))[:, 0]
            loss = (guess - light.to(self.device)).abs().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            run.log(error=loss.item(), samples=len(sky))
            if run.stopping:
                return


@labelled(gpu="data-bound", cpu="data-bound", helpers=(render,))
def light_of_rendered_stars(run: hoptui.Run, device: str) -> None:
    """Astronomy: a dataset that renders its images, and a loader without workers."""
    astronomer, loader = Astronomer(device), DataLoader(Skies(), batch_size=32, shuffle=True)
    while not run.stopping:
        astronomer.train_epoch(loader, run)


class Album(Dataset[tuple[Tensor, int]]):
    """Photographs in JPEG files, as people take them: large, and shown small."""

    def __init__(self, files: list[bytes]) -> None:
        self.files = files

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(io.BytesIO(self.files[index % len(self.files)])) as photograph:
            small = photograph.convert("RGB").rotate(index % 7 - 3).resize((48, 48), Image.Resampling.LANCZOS)
        return torch.from_numpy(np.array(small)).permute(2, 0, 1).float().div(255), index % 10


@labelled(gpu="data-bound", cpu="data-bound")
def holidays_in_large_photographs(run: hoptui.Run, device: str) -> None:
    """Vision: two spawned workers decode photographs that are far larger than the network needs."""
    noise = np.random.default_rng(0).integers(0, 255, (4, 40, 60, 3), np.uint8)
    files = []
    for pixels in noise:
        file = io.BytesIO()
        Image.fromarray(pixels).resize((1200, 800), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    loader = DataLoader(
        Album(files),
        16,
        shuffle=True,
        num_workers=2,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    net.append(nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    while not run.stopping:
        for photographs, places in loader:  # here
            loss = functional.cross_entropy(net(photographs.to(device)), places.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=16)
            if run.stopping:
                break


@labelled(gpu="data-bound", cpu="data-bound")
def sensors_of_a_database(run: hoptui.Run, device: str) -> None:
    """Time series: each window of measurements is a query of its own to SQLite."""
    folder = tempfile.TemporaryDirectory()
    db = sqlite3.connect(Path(folder.name) / "plant.db")
    db.execute("create table measured (sensor integer, at integer, value real)")
    readings = ((at % 40, at // 40, random.random()) for at in range(40_000))
    db.executemany("insert into measured values (?, ?, ?)", readings)
    db.commit()
    wanted = "select value from measured where sensor = ? and at >= ? order by at limit 49"

    def window(sensor: int, at: int) -> list[float]:
        return [value for (value,) in db.execute(wanted, (sensor, at))]  # here

    forecaster = nn.Linear(48, 1).to(device)
    optimizer = torch.optim.SGD(forecaster.parameters(), 0.01)
    while not run.stopping:
        with run.phase("history"):
            values = [window(random.randrange(40), random.randrange(900)) for _ in range(24)]
            past = torch.tensor(values, device=device)
        with run.phase("fit"):
            loss = functional.mse_loss(forecaster(past[:, :48]), past[:, 48:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        run.log(mse=loss.item(), samples=24)
    db.close()
    folder.cleanup()


REQUEST = re.compile(r'(\S+) - (\S+) \[([^\]]+)\] "(\w+) ([^"]*) HTTP/1.1" (\d+) (\d+) "([^"]*)"')


def fields(line: str) -> tuple[list[float], float]:
    """What a line of the log of a web server says of a request, and whether it failed."""
    found = REQUEST.match(line)  # here
    assert found is not None
    host, user, at, verb, path, status, size, agent = found.groups()
    moment = datetime.strptime(at, "%d/%b/%Y:%H:%M:%S %z")  # here
    known = [float(part) / 255 for part in host.split(".")] + [moment.hour / 24, moment.weekday() / 7]  # here
    known += [float(verb == "GET"), float(user != "-"), path.count("/") / 5, len(path) / 80]  # here
    return [*known, int(size) / 5000, len(agent) / 60], float(status >= "500")  # here


class Requests(IterableDataset[tuple[Tensor, float]]):
    """The requests in a packed log, from its beginning to its end."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __iter__(self) -> Iterator[tuple[Tensor, float]]:
        with gzip.open(self.log, "rt") as lines:
            for line in lines:
                known, failed = fields(line)
                yield torch.tensor(known), failed  # here


def fit_dataset(net: nn.Module, requests: Requests, run: hoptui.Run, device: str) -> None:
    """Train on all requests once."""
    optimizer = torch.optim.Adagrad(net.parameters(), 0.01)
    for known, failed in DataLoader(requests, batch_size=1024):
        loss = functional.binary_cross_entropy_with_logits(
            net(known.to(device))[:, 0], failed.float().to(device)
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(bce=loss.item(), samples=len(known))
        if run.stopping:
            break


@labelled(gpu="data-bound", cpu="data-bound", helpers=(fields, Requests))
def requests_of_a_web_server(run: hoptui.Run, device: str) -> None:
    """Anomalies: an iterable dataset parses the log of a server line by line."""
    rng = random.Random(5)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "access.log.gz"
        with gzip.open(log, "wt", compresslevel=1) as file:
            for i in range(20_000):
                host, path = f"10.{i % 256}.{i % 99}.7", "/".join(f"/p{rng.randrange(999)}" for _ in range(4))
                at = f"{1 + i % 28:02}/Mar/2021:{i % 24:02}:{i % 60:02}:09 +0100"
                status = rng.choice((200, 200, 304, 503))
                file.write(f'{host} - - [{at}] "GET {path} HTTP/1.1" {status} {i % 5000} "curl/7.{i % 80}"\n')
        net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
        while not run.stopping:
            fit_dataset(net, Requests(log), run, device)


def deform(scan: Any, organ: Any) -> tuple[Any, Any]:
    """Bend a slice of a scan and the mask of an organ in it in the same way."""
    bend = np.random.normal(0, 30, (2, *scan.shape))  # here
    bend = np.stack([ndimage.gaussian_filter(each, 12) for each in bend])  # here
    where = np.indices(scan.shape) + bend
    bent = ndimage.map_coordinates(scan, where, order=3, mode="reflect")  # here
    return bent, ndimage.map_coordinates(organ, where, order=0, mode="reflect")  # here


@labelled(gpu="data-bound", cpu="data-bound", helpers=(deform,))
def organs_bent_at_random(run: hoptui.Run, device: str) -> None:
    """Medicine: a network for masks whose few slices are deformed at each look."""
    scans = np.random.default_rng(8).random((20, 128, 128)).astype(np.float32)
    organs = (ndimage.gaussian_filter(scans, (0, 5, 5)) > 0.5).astype(np.float32)
    down, up = nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 1, 2, stride=2)
    net = nn.Sequential(down, nn.ReLU(), up).to(device)
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)

    def examples(count: int) -> tuple[Tensor, Tensor]:
        pairs = [deform(scans[i], organs[i]) for i in np.random.randint(0, 20, count)]
        seen, masks = (torch.from_numpy(np.stack(each)[:, None]) for each in zip(*pairs, strict=True))
        return seen.to(device), masks.to(device)

    while not run.stopping:
        with run.phase("fresh slices"):
            seen, masks = examples(6)
        guess = net(seen).sigmoid()
        loss = 1 - (2 * (guess * masks).sum() + 1) / (guess.sum() + masks.sum() + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(dice=1 - loss.item(), samples=6)


def thin_out(points: Any, kept: int) -> Any:
    """Keep points that are far from each other: each one is the farthest from those before."""
    chosen, distance = [0], np.full(len(points), np.inf)
    while len(chosen) < kept:
        distance = np.minimum(distance, ((points - points[chosen[-1]]) ** 2).sum(1))  # here
        chosen.append(int(distance.argmax()))
    return points[chosen]


@labelled(gpu="data-bound", cpu="data-bound", helpers=(thin_out,))
def shapes_thinned_beside_the_loop(run: hoptui.Run, device: str) -> None:
    """Point clouds: a thread chooses points of each shape, and the loop takes what is ready."""
    clouds, ready = np.random.default_rng(2).normal(size=(30, 3000, 3)), queue.Queue[Any](3)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            shapes = [thin_out(clouds[random.randrange(30)], 192) for _ in range(8)]
            with suppress(queue.Full):
                ready.put(np.stack(shapes).astype(np.float32), timeout=0.5)

    threading.Thread(target=work, daemon=True).start()
    each, whole = nn.Sequential(nn.Linear(3, 32), nn.ReLU()).to(device), nn.Linear(32, 4).to(device)
    optimizer = torch.optim.SGD([*each.parameters(), *whole.parameters()], 0.01)
    while not run.stopping:
        shapes = torch.from_numpy(ready.get()).to(device)  # here
        loss = -whole(each(shapes).amax(1)).log_softmax(-1)[:, 0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(nll=loss.item(), samples=8)
    stop.set()
