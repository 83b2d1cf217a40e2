"""Trainings of two processes for cities, one of which has more work or slower data than the other."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import io
import os
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator
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


def in_parallel(module: nn.Module, device: str) -> nn.Module:
    """Return a module whose gradients are averaged over the ranks."""
    devices = [torch.cuda.current_device()] if device != "cpu" else None
    return DistributedDataParallel(module.to(device), device_ids=devices)


class PreviewWriter:
    """Draws what a model told of some tiles beside what was meant, for a page in the intranet."""

    palette = np.array([[200, 60, 50], [80, 160, 70], [60, 90, 180], [150, 150, 150], [230, 210, 90]])

    def __init__(self, folder: str, enlarge: int) -> None:
        self.target, self.enlarge = Path(folder, "preview.png"), enlarge

    def picture(self, classes: Tensor) -> Any:
        """Return a picture with all tiles next to each other."""
        from PIL import Image

        colours = self.palette[classes.cpu().numpy()].astype(np.uint8)
        strip = np.concatenate(list(colours), axis=1)
        grain = np.random.default_rng(0).integers(0, 12, strip.shape, dtype=np.uint8)
        image = Image.fromarray(strip + grain)
        return image.resize(
            (image.width * self.enlarge, image.height * self.enlarge), Image.Resampling.BICUBIC
        )

    def write(self, told: Tensor, meant: Tensor) -> None:
        """Write a preview with two rows."""
        from PIL import Image

        upper, lower = self.picture(told), self.picture(meant)  # here
        sheet = Image.new("RGB", (upper.width, upper.height + lower.height))
        sheet.paste(upper, (0, 0))
        sheet.paste(lower, (0, upper.height))
        sheet.save(self.target, optimize=True)  # here


@labelled(
    gpu="straggler",
    cpu="straggler",
    ranks=2,
    late=0,
    needs=("accelerate", "PIL"),
    adapter=True,
    helpers=(PreviewWriter,),
)
def land_use_with_previews(run: AdapterRun, device: str) -> None:
    """The use of land is mapped with accelerate. The main process draws a preview after each step.

    A preview has 8 tiles of 64 x 64 points, enlarged four times, in two rows: a million points with grain,
    which Pillow packs with its best compression: more than 100 ms. The step of two convolutions with 12
    channels takes less than 20 ms, and less than 8 ms on a GPU.
    """
    from accelerate import Accelerator

    from hoptui.integrations.accelerate import HoptuiTracker

    accelerator = Accelerator(cpu=device == "cpu", log_with=HoptuiTracker())
    model: Any = nn.Sequential(nn.Conv2d(4, 12, 3, padding=1), nn.GELU(), nn.Conv2d(12, 5, 3, padding=1))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=2e-3)
    tiles = torch.randn(512, 4, 64, 64)
    loader: Any = DataLoader(TensorDataset(tiles, tiles.argmax(1)), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.init_trackers(run.name)
    tracked, step = accelerator.get_tracker("hoptui").tracker, 0
    with tempfile.TemporaryDirectory() as folder:
        previews = PreviewWriter(folder, enlarge=4)
        while step < run.iterations and not tracked.stopping:
            for bands, use in loader:
                scores = model(bands)
                loss = F.cross_entropy(scores, use)
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
                if accelerator.is_main_process:
                    previews.write(scores.argmax(1), use)  # here
                step += 1
                accelerator.log({"loss": loss.item()}, step=step)
                if step >= run.iterations or tracked.stopping:
                    break
    accelerator.end_training()


class ParkingEvents:
    """Arrivals and departures of a district, from which the occupancy of each street is found."""

    def __init__(self, events: int, streets: int, rank: int) -> None:
        rng = random.Random(rank)
        self.streets = streets
        self.log = [(rng.randrange(streets), rng.random() < 0.5, rng.randrange(1440)) for _ in range(events)]

    def day(self) -> tuple[Tensor, Tensor]:
        """Return the occupancy of each street by the hour, and how it was at the end."""
        hourly: dict[int, list[int]] = defaultdict(lambda: [0] * 24)
        for street, arrives, minute in self.log:  # here
            hourly[street][minute // 60] += 1 if arrives else -1  # here
        rows = [hourly[street] for street in range(self.streets)]
        table = torch.tensor(rows, dtype=torch.float32).cumsum(1)
        table = table + torch.randn_like(table)
        return table[:, :20] / 50, table[:, -1] / 50


@labelled(gpu="straggler", cpu="straggler", ranks=2, late=1, helpers=(ParkingEvents,))
def occupancy_of_two_districts(run: hoptui.Run, device: str) -> None:
    """The occupancy of streets is forecast by a sharded network. Each rank has a district of its own.

    The centre is the district of the second rank, with 900 000 events of a day that are counted in Python in
    more than 80 nanoseconds each: more than 72 ms. The suburb of the first one has 9000: less than 2 ms. The
    step of three layers with 128 streets takes less than 15 ms with its exchange.
    """
    rank = dist.get_rank()
    district = ParkingEvents(900_000 if rank == 1 else 9000, streets=128, rank=rank)
    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(
        device
    )
    fully_shard(net, mesh=init_device_mesh(device, (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    while not run.stopping:
        hours, evening = district.day()  # here
        told = net(hours.to(device)).squeeze(1)
        loss = F.mse_loss(told, evening.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=len(evening))


def keep(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint so that it is on the disk before the old one is replaced."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        torch.save(state, file)  # here
        file.flush()
        os.fsync(file.fileno())  # here
    part.replace(path)


@labelled(gpu="straggler", cpu="straggler", ranks=2, late=0, helpers=(keep,))
def leaks_of_water_pipes(run: hoptui.Run, device: str) -> None:
    """Leaks of pipes are learned from vectors of the pipes. The first rank keeps each step on its disk.

    2 million pipes with 32 numbers are 256 MB, which are frozen, and learned by another training. To write
    them with the network takes more than 100 ms at 2.5 GB/s. The step looks up 512 pipes for three layers:
    less than 10 ms with the exchange of 20 kB.
    """
    rank = dist.get_rank()
    torch.manual_seed(4)
    pipes = torch.randn(2_000_000, 32)
    local = pipes.to(device)
    head = nn.Sequential(
        nn.Linear(32 + 4, 48), nn.LeakyReLU(), nn.Linear(48, 48), nn.LeakyReLU(), nn.Linear(48, 1)
    )
    model = in_parallel(head, device)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    torch.manual_seed(40 + rank)
    step = 0
    with tempfile.TemporaryDirectory() as folder:
        while not run.stopping:
            at = torch.randint(0, len(local), (512,), device=device)
            pressure = torch.rand(512, 4, device=device)
            leaks = (pressure.sum(1) > 2).float()
            logit = model(torch.cat([local[at], pressure], 1)).squeeze(1)
            loss = F.binary_cross_entropy_with_logits(logit, leaks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                state = {"step": step, "head": head.state_dict(), "optimizer": optimizer.state_dict()}
                keep({**state, "pipes": pipes}, Path(folder, "last.pt"))  # here
            run.log(loss=loss.item(), samples=512)


class RoofSegmenter(nn.Module):
    """Finds roofs on aerial pictures of any resolution, at the resolution of the picture."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.roof = nn.Conv2d(width, 1, 1)

    def forward(self, picture: Tensor) -> Tensor:
        x = F.relu(self.stem(picture))
        for layer in self.layers:
            x = F.relu(layer(x))
        roof: Tensor = self.roof(x)
        return roof


@labelled(gpu="straggler", cpu="straggler", ranks=2, late=1)
def roofs_from_two_flights(run: hoptui.Run, device: str) -> None:
    """Roofs are found on pictures of two flights. That of the second rank flew lower, and sees more points.

    On GPUs: the lower flight has 8 x 640 x 640 points, and 5 convolutions with 256 channels need 3 x 5 x 1.18
    MFLOP for each in bf16: 58 TFLOP, more than 58 ms at 989 TFLOPS. The other one has 8 x 96 x 96 points: 1.3
    TFLOP, less than 6 ms with the launches. The gradients of 12 MB are exchanged in less than 1 ms. On the
    CPU: 4 x 160 x 160 and 4 x 24 x 24 points with 32 channels and 2 convolutions.
    """
    cpu, rank = device == "cpu", dist.get_rank()
    width, depth, pictures = (32, 2, 4) if cpu else (256, 5, 8)
    side = ((24, 160) if cpu else (96, 640))[rank]
    torch.manual_seed(9)
    model = in_parallel(RoofSegmenter(width, depth), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(90 + rank)
    flight = torch.rand(4 * pictures, 3, side, side, device=device)
    flight = flight.contiguous(memory_format=torch.channels_last)
    while not run.stopping:
        picked = torch.randint(0, len(flight), (pictures,), device=device)
        batch = flight[picked]
        roof = (batch.mean(1, keepdim=True) > 0.5).float()
        with torch.autocast(device, torch.bfloat16, enabled=not cpu):
            told = model(batch)  # here
        loss = F.binary_cross_entropy_with_logits(told.float(), roof)
        optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()
        run.log(loss=loss.item(), samples=pictures)  # here


class StreetViews:
    """Pictures of streets on the disk, and those that were decoded before, where there are some."""

    def __init__(self, folder: Path, pictures: int, decoded: bool) -> None:
        from PIL import Image

        rng = np.random.default_rng(1)
        self.paths = []
        for n in range(pictures):
            coarse = rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)
            street = Image.fromarray(coarse).resize((1024, 768), Image.Resampling.BICUBIC)
            self.paths.append(folder / f"{n}.jpg")
            street.save(self.paths[-1], quality=92)
            if decoded:
                np.save(self.paths[-1].with_suffix(".npy"), self.decode(self.paths[-1]))

    @staticmethod
    def decode(path: Path) -> Any:
        """Return the small picture in a file."""
        from PIL import Image

        picture = Image.open(io.BytesIO(path.read_bytes())).convert("RGB")  # here
        return np.asarray(picture.resize((64, 48), Image.Resampling.LANCZOS))  # here

    def load(self, path: Path) -> Tensor:
        """Return a small picture."""
        ready = path.with_suffix(".npy")
        small = np.load(ready) if ready.exists() else self.decode(path)  # here
        return torch.from_numpy(small.copy()).permute(2, 0, 1).float() / 255

    def batches(self, size: int) -> Iterator[Tensor]:
        """Return batches of random pictures without an end."""
        while True:
            yield torch.stack([self.load(path) for path in random.choices(self.paths, k=size)])  # here


@labelled(gpu="straggler", cpu="straggler", ranks=2, late=1, needs=("PIL",), helpers=(StreetViews,))
def street_views_with_one_cache(run: hoptui.Run, device: str) -> None:
    """Green in streets is judged from pictures. Only the first rank has a cache of decoded pictures.

    The second one decodes 24 JPEGs of 1024 x 768 points for each step and makes them small, more than 5 ms
    each: more than 120 ms. The first one reads 24 files of 9 kB: less than 6 ms. A network of two
    convolutions with a stride of 4 takes less than 10 ms for its step.
    """
    rank = dist.get_rank()
    random.seed(rank)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 16, 5, stride=4),
        nn.Flatten(),
        nn.LazyLinear(1),
    )
    net(torch.zeros(1, 3, 48, 64))
    model = in_parallel(net, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        views = StreetViews(Path(folder), pictures=48, decoded=rank == 0)
        for pictures in views.batches(24):  # here
            green = pictures[:, 1].mean((1, 2), keepdim=True).squeeze(-1).to(device)
            loss = F.mse_loss(model(pictures.to(device)), green)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=24)
            if run.stopping:
                break


class Quarters:
    """The quarters of a city, as communities of places between which people move."""

    def __init__(self, places: int, moves: int) -> None:
        rng = random.Random(21)
        self.near: list[list[tuple[int, float]]] = [[] for _ in range(places)]
        for _ in range(moves):
            a = rng.randrange(places)
            b = (a + rng.randrange(1, 40)) % places
            weight = rng.random()
            self.near[a].append((b, weight))
            self.near[b].append((a, weight))
        self.label = list(range(places))

    def refine(self, rounds: int) -> list[int]:
        """Give each place the quarter that most of its moves lead to, some times."""
        for _ in range(rounds):
            for place, edges in enumerate(self.near):  # here
                votes: dict[int, float] = {}
                for other, weight in edges:  # here
                    quarter = self.label[other]  # here
                    votes[quarter] = votes.get(quarter, 0.0) + weight  # here
                if votes:
                    self.label[place] = max(votes, key=votes.__getitem__)  # here
        return self.label


@labelled(gpu="straggler", cpu="straggler", ranks=2, late=0, helpers=(Quarters,))
def quarters_by_how_people_move(run: hoptui.Run, device: str) -> None:
    """Vectors of places should tell their quarters, which the first rank finds anew and broadcasts.

    It looks at both ends of 120 000 moves twice: 480 000 votes of more than 0.15 microseconds in Python, more
    than 72 ms. The broadcast of 6000 labels and the step with 256 places take less than 15 ms.
    """
    rank, places = dist.get_rank(), 6000
    quarters = Quarters(places, 120_000) if rank == 0 else None
    label = torch.zeros(places, dtype=torch.long, device=device)
    torch.manual_seed(6)
    net = nn.Sequential(nn.Embedding(places, 32), nn.Tanh(), nn.Linear(32, 24))
    model = in_parallel(net, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.manual_seed(60 + rank)
    while not run.stopping:
        if quarters is not None:
            label.copy_(torch.tensor(quarters.refine(rounds=2)) % 24)  # here
        dist.broadcast(label, src=0)
        some = torch.randint(0, places, (256,), device=device)
        loss = F.cross_entropy(model(some), label[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=256)
