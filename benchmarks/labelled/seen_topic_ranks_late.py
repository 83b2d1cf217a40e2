"""Trainings of two processes, one of which has more to do before they meet."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import difflib
import heapq
import importlib
import importlib.util
import lzma
import math
import os
import random
import tempfile
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

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


def shared(model: nn.Module, device: str) -> nn.Module:
    """Return the model under DistributedDataParallel."""
    ids = None if device == "cpu" else [torch.cuda.current_device()]
    return DistributedDataParallel(model.to(device), device_ids=ids)


class RadialSpectrum:
    """How much power a map has at each distance from the centre of its transform."""

    def __init__(self, size: int) -> None:
        y, x = np.mgrid[:size, :size] - size // 2
        self.radius = np.hypot(x, y).astype(int).ravel().tolist()
        self.rings = max(self.radius) + 1

    def __call__(self, field: Any) -> list[float]:
        power = np.abs(np.fft.fftshift(np.fft.fft2(field))) ** 2  # here
        total, count = [0.0] * self.rings, [0] * self.rings
        for ring, value in zip(self.radius, power.ravel().tolist(), strict=True):  # here
            total[ring] += value  # here
            count[ring] += 1  # here
        return [t / max(c, 1) for t, c in zip(total, count, strict=True)]  # here


def _spectra_callback(size: int) -> Any:
    """Return a callback of Lightning that compares spectra on the first rank."""
    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)

    class SpectraOfFields(pl.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.spectrum = RadialSpectrum(size)

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if not trainer.is_global_zero:
                return
            fields = outputs["fields"].cpu().numpy()
            spectra = np.array([self.spectrum(field) for field in fields])  # here
            self.slope = float(np.polyfit(np.arange(1, 9), np.log(spectra.mean(0)[1:9] + 1e-9), 1)[0])

    return SpectraOfFields()


@labelled(
    gpu="straggler",
    cpu="straggler",
    ranks=2,
    needs=(PACKAGE,),
    adapter=True,
    helpers=(RadialSpectrum, _spectra_callback),
)
def lit_colour_of_the_sea(run: AdapterRun, device: str) -> None:
    """Gaps in maps of chlorophyll are filled under Lightning, and a callback watches the spectra of the maps.

    It does so on the first rank only, for 16 maps before and after: 32 x 160 x 160 numbers, each of which
    takes Python more than 0.1 microseconds: more than 82 ms. The network works on 40 x 40 cells with 8
    channels: less than 25 ms under Lightning.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)
    size = 160

    class GapFiller(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Conv2d(2, 8, 4, stride=4), nn.ConvTranspose2d(8, 1, 4, stride=4)

        def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
            (sea,) = batch
            cloudy = (torch.rand_like(sea[:, :1, ::16, ::16]) < 0.4).float()
            seen = 1 - cloudy.repeat_interleave(16, 2).repeat_interleave(16, 3)
            filled = self.up(self.down(torch.cat([sea * seen, seen], 1)).relu())
            loss = F.l1_loss(filled, sea)
            self.log("loss", loss)
            return {"loss": loss, "fields": torch.cat([filled.detach(), sea])[:, 0]}

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    world = int(os.environ.get("WORLD_SIZE", "1"))
    maps = TensorDataset(torch.randn(512, 1, size, size))
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
        callbacks=[_spectra_callback(size), HoptuiCallback(run.name)],
    )
    trainer.fit(GapFiller(), DataLoader(maps, batch_size=16, shuffle=True))


class Site:
    """The archive of one telescope. Some keep their tiles as they came, and some have packed them."""

    def __init__(self, tiles: int, size: int, packed: bool) -> None:
        rng = np.random.default_rng(packed)
        self.size, self.packed = size, packed
        self.blobs = []
        for _ in range(tiles):
            raw = rng.poisson(100, (size, size)).astype(np.uint16).tobytes()
            self.blobs.append(lzma.compress(raw, preset=1) if packed else raw)

    def read(self, tile: int) -> Any:
        """Return a tile."""
        blob = self.blobs[tile]
        raw = lzma.decompress(blob) if self.packed else blob  # here
        return np.frombuffer(raw, np.uint16).reshape(self.size, self.size)

    def stream(self, batch: int) -> Iterator[Tensor]:
        """Yield tiles, made smaller."""
        rng = random.Random(0)
        while True:
            tiles = [self.read(rng.randrange(len(self.blobs))) for _ in range(batch)]  # here
            yield torch.from_numpy(np.stack([tile[::4, ::4] for tile in tiles]).astype(np.float32))


@labelled(gpu="straggler", cpu="straggler", ranks=2, helpers=(Site,))
def survey_of_two_sites(run: hoptui.Run, device: str) -> None:
    """Each rank reads the tiles of one telescope. The second one has packed its archive with LZMA.

    A tile of 256 x 256 numbers is packed to some 60 kB, which are unpacked at less than 30 MB/s: more than 2
    ms. A batch of 40 tiles takes more than 80 ms on that rank, and less than 2 ms on the other one. The
    autoencoder with 64 x 64 points and a stride of 4 needs less than 20 ms, and less than 8 ms on a GPU.
    """
    site = Site(tiles=32, size=256, packed=dist.get_rank() == 1)
    net = nn.Sequential(nn.Conv2d(1, 16, 4, stride=4), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, stride=4))
    model = shared(net, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for tiles in site.stream(40):  # here
        light = (tiles.to(device)[:, None] - 100) / 10
        loss = F.mse_loss(model(light), light)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=len(tiles))
        if run.stopping:
            break


class Depot:
    """A depot with shelves. An agent chooses what to fetch, and the way there is found by A*."""

    def __init__(self, side: int, seed: int) -> None:
        self.rng, self.side = random.Random(seed), side
        self.blocked = {
            (x, y)
            for x in range(1, side - 1, 3)
            for y in range(1, side - 1)
            if y % 8 and self.rng.random() < 0.9
        }
        self.at = (0, 0)
        self.orders = [self.place() for _ in range(4)]

    def place(self) -> tuple[int, int]:
        """Return a free place."""
        while True:
            place = (self.rng.randrange(self.side), self.rng.randrange(self.side))
            if place not in self.blocked:
                return place

    def way(self, goal: tuple[int, int]) -> int:
        """Return how far it is to a place."""
        best, heap = {self.at: 0}, [(0, 0, self.at)]
        while heap:  # here
            _, far, place = heapq.heappop(heap)  # here
            if place == goal:  # here
                return far  # here
            x, y = place  # here
            for to in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):  # here
                if not (0 <= to[0] < self.side and 0 <= to[1] < self.side) or to in self.blocked:  # here
                    continue  # here
                if far + 1 < best.get(to, 1 << 30):  # here
                    best[to] = far + 1  # here
                    left = abs(goal[0] - to[0]) + abs(goal[1] - to[1])  # here
                    heapq.heappush(heap, (far + 1 + left // 2, far + 1, to))  # here
        return 2 * self.side

    def step(self, order: int) -> tuple[list[float], float]:
        """Fetch one of the orders, and return what is seen and the reward."""
        goal = self.orders[order]
        far = self.way(goal)  # here
        self.at, self.orders[order] = goal, self.place()
        seen = [c / self.side for place in (self.at, *self.orders) for c in place]
        return seen, -far / self.side


@labelled(gpu="straggler", cpu="straggler", ranks=2, helpers=(Depot,))
def agents_of_two_depots(run: hoptui.Run, device: str) -> None:
    """Two ranks share a policy, and each has its own depot. That of the first rank is much larger.

    A way through 96 x 96 places looks at more than 1500 of them, each more than 1.5 microseconds in Python:
    more than 2 ms. A rollout of 48 orders takes more than 96 ms there. In the depot of 12 x 12 places it
    takes less than 6 ms. The choices and the update need less than 25 ms on each rank.
    """
    rank = dist.get_rank()
    depot = Depot(side=96 if rank == 0 else 12, seed=rank)
    policy = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 4))
    model = shared(policy, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    seen = [0.0] * 10
    while not run.stopping:
        states, actions, rewards = [], [], []
        for _ in range(48):
            with torch.no_grad():
                logits = policy(torch.tensor(seen, device=device))
                action = int(torch.multinomial(logits.softmax(-1), 1))
            states.append(seen)
            actions.append(action)
            seen, reward = depot.step(action)  # here
            rewards.append(reward)
        gains = torch.tensor(rewards, device=device)
        log_p = model(torch.tensor(states, device=device)).log_softmax(-1)
        chosen = log_p.gather(1, torch.tensor(actions, device=device)[:, None])[:, 0]
        loss = -(chosen * (gains - gains.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), reward=gains.mean().item(), env_steps=48)


class SetOfStars(nn.Module):
    """Predicts a set of stars from a patch of the sky."""

    def __init__(self, queries: int, width: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 8, stride=8)
        self.queries = nn.Parameter(torch.randn(queries, width) / 4)
        self.out = nn.Linear(width, 3)

    def forward(self, sky: Tensor) -> Tensor:
        h = self.patch(sky).flatten(2).transpose(1, 2)
        attended = (self.queries @ h.transpose(1, 2) / h.shape[-1] ** 0.5).softmax(-1) @ h
        stars: Tensor = self.out(attended + self.queries)
        return stars


def matched(predicted: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """Return which prediction belongs to which star, at the lowest cost."""
    optimize: Any = importlib.import_module("scipy.optimize")
    cost = torch.cdist(predicted.detach(), true, p=1).cpu().numpy()
    rows, columns = optimize.linear_sum_assignment(cost)  # here
    return torch.as_tensor(rows), torch.as_tensor(columns)


@labelled(
    gpu="straggler",
    cpu="straggler",
    ranks=2,
    needs=("accelerate", "scipy"),
    adapter=True,
    helpers=(matched,),
)
def stars_in_a_cluster(run: AdapterRun, device: str) -> None:
    """With accelerate: predicted stars are matched to those of a catalogue, in the manner of DETR.

    The second process has the core of a cluster with 360 stars in a patch, which scipy matches to 360
    predictions in more than 15 ms: more than 90 ms for 6 patches. The first one has the halo with 12 stars:
    less than 1 ms a patch. The network with 64 patches of the sky needs less than 25 ms on each of them.
    """
    from accelerate import Accelerator

    from hoptui.integrations.accelerate import HoptuiTracker

    accelerator = Accelerator(cpu=device == "cpu", log_with=HoptuiTracker())
    model: Any = SetOfStars(360, 32)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.init_trackers(run.name)
    tracked, step = accelerator.get_tracker("hoptui").tracker, 0
    stars = 360 if accelerator.process_index == 1 else 12
    while step < run.iterations and not tracked.stopping:
        catalogue = torch.rand(6, stars, 3, device=accelerator.device)
        sky = torch.randn(6, 1, 64, 64, device=accelerator.device)
        predicted = model(sky)
        losses = []
        for found, true in zip(predicted, catalogue, strict=True):
            rows, columns = matched(found, true)  # here
            losses.append(F.l1_loss(found[rows], true[columns]))
        loss = torch.stack(losses).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        accelerator.log({"loss": loss.item()}, step=step)
    accelerator.end_training()


class Gazetteer:
    """The streets of a country. What is not written as in the register is looked for."""

    def __init__(self, streets: int, seed: int) -> None:
        rng = random.Random(seed)
        parts = ["ber", "lin", "hof", "au", "stein", "wald", "rue", "mont", "bel", "ville", "port", "saint"]
        self.streets = ["".join(rng.choices(parts, k=3)) for _ in range(streets)]
        self.known = {name: n for n, name in enumerate(self.streets)}

    def find(self, written: str) -> int:
        """Return the number of a street."""
        found = self.known.get(written)
        if found is None:
            close = difflib.get_close_matches(written, self.streets, n=1, cutoff=0.5)  # here
            found = self.known[close[0]] if close else 0  # here
        return found  # here

    def mangled(self, rng: random.Random) -> str:
        """Return a street as somebody writes it by hand."""
        name = rng.choice(self.streets)
        at = rng.randrange(len(name))
        return name[:at] + rng.choice("xyzq") + name[at + 1 :]


@labelled(gpu="straggler", cpu="straggler", ranks=2, helpers=(Gazetteer,))
def addresses_of_two_countries(run: hoptui.Run, device: str) -> None:
    """A sharded network learns where parcels go. The addresses of the second rank are written by hand.

    A street that is not in the register is compared with 300 others by difflib, more than 4 microseconds
    each: more than 1.2 ms. 64 of them take more than 76 ms. On the first rank a street is found in a
    dictionary. Two layers with 64 addresses need less than 25 ms with the exchange.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    gazetteer, rng = Gazetteer(300, rank), random.Random(rank)
    net = nn.Sequential(nn.Embedding(300, 64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 20)).to(device)
    fully_shard(net, mesh=init_device_mesh(device, (world,)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    while not run.stopping:
        if rank == 1:
            written = [gazetteer.mangled(rng) for _ in range(64)]
        else:
            written = rng.choices(gazetteer.streets, k=64)
        streets = torch.tensor([gazetteer.find(name) for name in written], device=device)  # here
        loss = F.cross_entropy(net(streets), streets % 20)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=64)


def _preview_callback(folder: str, bands: int, frames: int) -> Any:
    """Return a callback of transformers that draws what the model hears, on the main process."""
    transformers: Any = importlib.import_module("transformers")
    image: Any = importlib.import_module("PIL.Image")

    class SpectrogramPreview(transformers.TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.colours = [
                tuple(int(128 + 127 * math.sin(n / 40 + shift)) for shift in (0, 2, 4)) for n in range(256)
            ]

        def paint(self, values: list[list[float]]) -> Any:
            picture = image.new("RGB", (frames, bands))
            for y, row in enumerate(values):
                for x, value in enumerate(row):  # here
                    level = min(255, max(0, int(64 * value + 128)))  # here
                    picture.putpixel((x, bands - 1 - y), self.colours[level])  # here
            return picture

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                wide = torch.randn(bands, frames)
                picture = self.paint(wide.tolist())  # here
                picture.save(Path(folder, "preview.png"), compress_level=1)  # here

    return SpectrogramPreview()


@labelled(
    gpu="straggler",
    cpu="straggler",
    ranks=2,
    needs=("transformers", "accelerate", "PIL"),
    adapter=True,
    helpers=(_preview_callback,),
)
def trainer_with_spectrograms(run: AdapterRun, device: str) -> None:
    """Commands are recognised under the Trainer, and the main process draws a preview after each step.

    It sets 320 x 480 pixels one by one, more than 0.6 microseconds each: more than 92 ms with the file. The
    transformer has 2 layers of width 48 and 8 x 32 patches: less than 35 ms with what the Trainer does, and
    less than 20 ms with GPUs.
    """
    from transformers import ASTConfig, ASTForAudioClassification, Trainer, TrainingArguments

    from hoptui.integrations.transformers import HoptuiCallback

    config = ASTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
        num_mel_bins=32,
        max_length=256,
        frequency_stride=16,
        time_stride=16,
        num_labels=10,
    )
    commands = [{"input_values": torch.randn(256, 32), "labels": n % 10} for n in range(128)]
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=run.iterations,
            per_device_train_batch_size=8,
            learning_rate=5e-4,
            use_cpu=device == "cpu",
            ddp_backend="gloo" if device == "cpu" else "nccl",
            remove_unused_columns=False,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=25,
        )
        trainer = Trainer(
            model=ASTForAudioClassification(config),
            args=args,
            train_dataset=commands,
            callbacks=[_preview_callback(folder, 320, 480), HoptuiCallback(run.name)],
        )
        trainer.train()
