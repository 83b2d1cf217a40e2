"""Trainings of two processes for cities, each with the same share of the work."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


def replicated(module: nn.Module, device: str) -> DistributedDataParallel:
    """Move a module to the device of this rank, and keep its gradients equal on all ranks."""
    module = module.to(device)
    if device == "cpu":
        return DistributedDataParallel(module)
    return DistributedDataParallel(module, device_ids=[torch.cuda.current_device()])


class FacadeLevels(nn.Module):
    """The noise at each facade of a city, by what is learned about the facade and by the traffic."""

    def __init__(self, facades: int, width: int, device: str) -> None:
        super().__init__()
        with torch.device(device):
            self.facades = nn.Embedding(facades, width, sparse=True)
            self.level = nn.Linear(width + 2, 1)

    def forward(self, facade: Tensor, traffic: Tensor) -> Tensor:
        decibel: Tensor = self.level(torch.cat([self.facades(facade), traffic], 1)).squeeze(1)
        return decibel


@torch.no_grad()
def average_models(model: nn.Module) -> None:
    """Replace all parameters by their mean over the ranks, as local SGD does when it synchronises."""
    world = dist.get_world_size()
    for parameter in model.parameters():
        if parameter.is_cuda:
            dist.all_reduce(parameter, op=dist.ReduceOp.AVG)  # here
        else:
            dist.all_reduce(parameter)  # here
            parameter.div_(world)


@labelled(gpu="communication-bound", cpu="communication-bound", ranks=2, helpers=(average_models,))
def noise_levels_by_local_sgd(run: hoptui.Run, device: str) -> None:
    """Noise at facades is learned by local SGD, whose models are averaged after each step.

    On the CPU: 200 000 facades with 128 numbers are 102 MB over gloo: more than 60 ms. On GPUs: 40 million
    are 20.5 GB through NCCL, at most 450 GB/s: more than 45 ms. The step looks up 64 facades with sparse
    gradients: less than 8 ms.
    """
    facades = 200_000 if device == "cpu" else 40_000_000
    torch.manual_seed(5)
    model = FacadeLevels(facades, 128, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(50 + dist.get_rank())
    while not run.stopping:
        facade = torch.randint(0, facades, (64,), device=device)
        traffic = torch.rand(64, 2, device=device)
        loss = F.mse_loss(model(facade, traffic), traffic.sum(1).log1p())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average_models(model)  # here
        run.log(loss=loss.item(), samples=64)


class Footprints(IterableDataset[tuple[Tensor, Tensor]]):
    """Footprints of buildings from files of GeoJSON, as outlines of equal length with their area."""

    def __init__(self, folder: Path, files: int, buildings: int, rank: int) -> None:
        self.paths = []
        rng = random.Random(rank)
        for n in range(files):
            features = []
            for at in range(buildings):
                corners = [self.corner(rng, k) for k in range(60)]
                geometry = {"type": "Polygon", "coordinates": [corners]}
                features.append({"type": "Feature", "id": at, "geometry": geometry, "properties": {}})
            self.paths.append(folder / f"tile-{rank}-{n}.geojson")
            self.paths[-1].write_text(json.dumps({"type": "FeatureCollection", "features": features}))

    @staticmethod
    def corner(rng: random.Random, k: int) -> tuple[float, float]:
        """Return the longitude and latitude of a corner."""
        turn = math.tau * k / 60
        return 8.5 + 1e-4 * rng.random() * math.cos(turn), 47.4 + 1e-4 * rng.random() * math.sin(turn)

    @staticmethod
    def area(ring: list[list[float]]) -> float:
        """Return the area of a ring in square metres."""
        metres = [((x - 8.5) * 75_000, (y - 47.4) * 111_000) for x, y in ring]  # here
        pairs = zip(metres, metres[1:] + metres[:1], strict=True)  # here
        return abs(sum(x * v - u * y for (x, y), (u, v) in pairs)) / 2  # here

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for path in self.paths:
                for feature in json.loads(path.read_text())["features"]:  # here
                    ring = feature["geometry"]["coordinates"][0]
                    outline = torch.tensor(ring) - torch.tensor([8.5, 47.4])  # here
                    yield outline.flatten() * 1e4, torch.tensor(self.area(ring))  # here


@labelled(gpu="data-bound", cpu="data-bound", ranks=2, helpers=(Footprints,))
def footprints_of_buildings(run: hoptui.Run, device: str) -> None:
    """Heights of buildings are guessed by their footprints, which both ranks read from GeoJSON.

    A footprint has 60 corners, which are parsed, projected and made a tensor in more than 40 microseconds. A
    batch has 1600 of them: more than 64 ms on each rank. Two layers with 120 numbers take less than 10 ms
    for their step with the exchange of 35 kB, and less than 5 ms on a GPU.
    """
    rank = dist.get_rank()
    net = nn.Sequential(nn.Linear(120, 64), nn.Hardswish(), nn.Linear(64, 1))
    model = replicated(net, device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        footprints = Footprints(Path(folder), files=4, buildings=400, rank=rank)
        for outline, area in DataLoader(footprints, batch_size=1600):  # here
            height = 3 + area.to(device).sqrt()
            loss = F.l1_loss(model(outline.to(device)).squeeze(1), height)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(area))
            if run.stopping:
                break


def overlap(one: list[float], other: list[float]) -> float:
    """Return the intersection of two boxes over their union."""
    wide = min(one[2], other[2]) - max(one[0], other[0])  # here
    high = min(one[3], other[3]) - max(one[1], other[1])  # here
    if wide <= 0 or high <= 0:
        return 0.0
    both = wide * high
    first = (one[2] - one[0]) * (one[3] - one[1])
    second = (other[2] - other[0]) * (other[3] - other[1])
    return both / (first + second - both)


def average_precision(boxes: list[list[float]], scores: list[float], cars: list[list[float]]) -> float:
    """Return the average precision of the boxes of a picture."""
    order = sorted(range(len(boxes)), key=scores.__getitem__, reverse=True)
    taken: set[int] = set()
    hits, total = 0, 0.0
    for rank, n in enumerate(order, 1):
        found = [(overlap(boxes[n], car), at) for at, car in enumerate(cars) if at not in taken]  # here
        best, at = max(found, default=(0.0, -1))  # here
        if best > 0.3:
            taken.add(at)
            hits += 1
            total += hits / rank
    return total / max(len(cars), 1)


@labelled(
    gpu="host-bound",
    cpu="host-bound",
    ranks=2,
    needs=(PACKAGE,),
    adapter=True,
    helpers=(overlap, average_precision),
)
def lit_parked_cars(run: AdapterRun, device: str) -> None:
    """Parked cars are found from above under Lightning. Both ranks log the average precision of each step.

    12 pictures have 160 boxes and 160 cars, so that up to 25 600 pairs of boxes are compared in Python for
    each, more than 0.25 microseconds each, most of them: more than 60 ms. A step of two layers takes less
    than 20 ms under Lightning with the exchange of 0.3 MB.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)
    slots = 160

    class CarFinder(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 5 * slots))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            street, cars = batch
            told = self.body(street).view(-1, slots, 5)
            centre, size = told[..., :2].sigmoid(), 0.05 * told[..., 2:4].sigmoid()
            boxes = torch.cat([centre - size, centre + size], -1)
            loss: Tensor = F.l1_loss(boxes, cars) + 0.1 * told[..., 4].square().mean()
            self.log("loss", loss)
            self.log("precision", self.precision_of(boxes.detach(), told[..., 4].detach(), cars))
            return loss

        def precision_of(self, boxes: Tensor, scores: Tensor, cars: Tensor) -> float:
            pictures = zip(boxes.tolist(), scores.tolist(), cars.tolist(), strict=True)
            each = [average_precision(*picture) for picture in pictures]  # here
            return sum(each) / len(each)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    world = int(os.environ.get("WORLD_SIZE", "1"))
    corner = torch.rand(1024, slots, 2)
    cars = torch.cat([corner, corner + 0.03], -1)
    streets = TensorDataset(torch.randn(1024, 96), cars)
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
        callbacks=[HoptuiCallback(run.name)],
    )
    trainer.fit(CarFinder(), DataLoader(streets, batch_size=12, shuffle=True))


class FlowBlock(nn.Module):
    """Attention over the sensors of a city, and a perceptron with a gate."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.join = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 8 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        x = x + self.join(mixed.transpose(1, 2).flatten(-2))
        value, gate = self.up(self.between(x)).chunk(2, -1)
        out: Tensor = x + self.down(value * F.silu(gate))
        return out


@labelled(gpu="healthy compute-bound power-limited", cpu="healthy", ranks=2)
def traffic_of_all_sensors_sharded(run: hoptui.Run, device: str) -> None:
    """The traffic at the sensors of a city is forecast by blocks that FSDP2 shards, in bf16.

    On GPUs: 8 blocks of width 4096 have 2.1 billion weights. 16 cities of 1024 sensors on each rank need 6 x
    2.1 billion x 16 384 = 211 TFLOP: more than 210 ms at 989 TFLOPS, and some 330 ms at what is reached. A
    block of 0.54 GB is gathered twice, and its gradients are scattered, while others are computed: less than
    60 ms by NVLink in all. On the CPU: 3 blocks of width 128 with 4 x 256 sensors; less than 15 MB are
    exchanged.
    """
    cpu = device == "cpu"
    depth, width, heads, cities, sensors = (3, 128, 4, 4, 256) if cpu else (8, 4096, 32, 16, 1024)
    torch.manual_seed(2)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    with torch.device(device):
        blocks = [FlowBlock(width, heads) for _ in range(depth)]
        network = nn.Sequential(nn.Linear(12, width), *blocks, nn.Linear(width, 3))
    if not cpu:
        network = network.to(torch.bfloat16)
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(network, mesh=mesh)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=not cpu)
    dtype = torch.float32 if cpu else torch.bfloat16
    torch.manual_seed(20 + dist.get_rank())
    history = torch.randn(4 * cities, sensors, 12, device=device, dtype=dtype)
    step = 0
    while not run.stopping:
        past = history[step % 4 * cities :][:cities]
        loss = F.smooth_l1_loss(network(past).float(), past[..., 9:].float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        run.log(loss=loss.item(), samples=cities)


class Crossing(nn.Module):
    """The phase of the lights of a crossing, second by second, by the queues of its four arms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sense = nn.Linear(8, width)
        self.state = nn.Linear(width, width)
        self.lights = nn.Linear(width, 4)

    def forward(self, arriving: Tensor) -> Tensor:
        queue = arriving.new_zeros(arriving.shape[1:])
        green = torch.full_like(queue, 0.25)
        hidden = self.sense.bias.expand(len(queue), -1)
        waiting = queue.sum()
        for cars in arriving:
            seen = torch.cat([queue, green], -1)
            hidden = torch.tanh(self.sense(seen) + self.state(hidden))
            green = torch.softmax(self.lights(hidden), -1)
            queue = F.relu(queue + cars - 0.8 * green)
            waiting = waiting + queue.mean()
        return waiting / len(arriving)


@labelled(gpu="launch-bound", cpu="healthy", ranks=2)
def lights_of_all_crossings(run: hoptui.Run, device: str) -> None:
    """The lights of crossings are learned through a differentiable simulation, second by second.

    On GPUs: 360 seconds with some 14 kernels forward and more than 22 backward, on 64 x 48 numbers: more than
    12 000 launches of more than 5 microseconds for the host, and of about 2.5 for the GPU. On the CPU: 24
    seconds of 384 crossings with 256 numbers; 0.3 MB of gradients are exchanged.
    """
    seconds, crossings, width = (24, 384, 256) if device == "cpu" else (360, 64, 48)
    model = replicated(Crossing(width), device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    torch.manual_seed(7 + dist.get_rank())
    while not run.stopping:
        rush = torch.rand(1, crossings, 4, device=device)
        arriving = torch.rand(seconds, crossings, 4, device=device) * rush * 0.6
        loss = model(arriving)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=crossings)


class BikeNetwork:
    """Stations with bicycles, riders between them, and a van that moves bicycles."""

    def __init__(self, stations: int, riders: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.places = [(self.rng.random(), self.rng.random()) for _ in range(stations)]
        self.riders = riders
        self.reset()

    def reset(self) -> list[float]:
        """Begin a day with as many bicycles everywhere."""
        self.bikes = [10] * len(self.places)
        self.hour, self.missed = 0, 0
        return self.look()

    def look(self) -> list[float]:
        """Return how full each eighth of the stations is, and the hour."""
        count = len(self.bikes) // 8
        return [*(sum(self.bikes[n::8]) / (20 * count) for n in range(8)), self.hour / 24, 1.0]

    def nearest(self, x: float, y: float, wants_bike: bool) -> int:
        """Return the nearest station that has a bicycle or room for one."""
        best, at = 9.0, -1
        for n, (px, py) in enumerate(self.places):  # here
            away = (px - x) * (px - x) + (py - y) * (py - y)  # here
            if away < best and (self.bikes[n] > 0 if wants_bike else self.bikes[n] < 20):  # here
                best, at = away, n  # here
        return at if best < 0.001 else -1

    def step(self, source: int, target: int) -> tuple[list[float], float, bool]:
        """Let the van drive and the riders ride for an hour."""
        for n in range(source, len(self.bikes), 8):
            moved = min(2, self.bikes[n])
            self.bikes[n] -= moved
            self.bikes[(n - source + target) % len(self.bikes)] += moved
        missed = 0
        for _ in range(self.riders):  # here
            start = self.nearest(self.rng.random(), self.rng.random() ** 1.5, True)  # here
            end = self.nearest(self.rng.random() ** 1.5, self.rng.random(), False)  # here
            if start < 0 or end < 0:
                missed += 1
                continue
            self.bikes[start] -= 1
            self.bikes[end] += 1
        self.hour += 1
        over = self.hour == 24
        return (self.reset() if over else self.look()), -missed / self.riders, over


@labelled(gpu="env-bound", cpu="env-bound", ranks=2, helpers=(BikeNetwork,))
def bicycles_where_they_are_wanted(run: hoptui.Run, device: str) -> None:
    """REINFORCE with a baseline moves bicycles. Each rank simulates a day of two cities in Python.

    An hour of 30 riders looks through 400 stations twice for each: 24 000 stations of more than 80
    nanoseconds, more than 1.9 ms. A day of two cities takes more than 90 ms on each rank. The policy is asked
    24 times, less than 0.4 ms each, and the update with 48 hours takes less than 8 ms with the exchange.
    """
    rank = dist.get_rank()
    cities = [BikeNetwork(400, 30, 10 * rank + n) for n in range(2)]
    policy = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 64)).to(device)
    shared = replicated(policy, device)
    optimizer = torch.optim.Adam(shared.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    seen, usual = [city.reset() for city in cities], 0.0
    while not run.stopping:
        states, moves, rewards = [], [], []
        for _ in range(24):
            state = torch.tensor(seen, device=device)
            with torch.no_grad():
                move = torch.distributions.Categorical(logits=policy(state)).sample()
            states.append(state)
            moves.append(move)
            hour = [city.step(*divmod(m, 8)) for city, m in zip(cities, move.tolist(), strict=True)]  # here
            seen = [after for after, _, _ in hour]
            rewards.append([reward for _, reward, _ in hour])
        gained = torch.tensor(rewards, device=device).flip(0).cumsum(0).flip(0)
        usual = 0.9 * usual + 0.1 * gained.mean().item()
        told = shared(torch.cat(states)).log_softmax(-1).gather(1, torch.cat(moves)[:, None]).squeeze(1)
        loss = -(told * (gained.flatten() - usual)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), usual=usual, env_steps=48)
