"""Trainings for wildlife on the CPU: calls of bats, tracks of animals, patrols, herds, and coats."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
import math
import random
import tempfile
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


class BatNights(IterableDataset[tuple[Tensor, Tensor]]):
    """Nights of recorders as WAV. Calls are found where the spectrum is loud, and are cut out."""

    def __init__(self, folder: Path, nights: int, rate: int) -> None:
        rng = np.random.default_rng(11)
        self.paths = []
        for n in range(nights):
            sound = rng.normal(0, 300, rate)
            for start in rng.integers(0, rate - rate // 100, 7):
                t = np.arange(rate // 100) / rate
                sound[start : start + len(t)] += 9000 * np.sin(2 * np.pi * (60_000 - 2e6 * t) * t)
            self.paths.append(folder / f"night{n:03d}_{n % 6}.wav")
            with wave.open(str(self.paths[-1]), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(rate)
                file.writeframes(sound.astype("<i2").tobytes())

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        from scipy import ndimage, signal

        while True:
            for path in random.sample(self.paths, len(self.paths)):
                with wave.open(str(path), "rb") as file:
                    rate = file.getframerate()
                    sound = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
                band = signal.butter(6, (20_000, 90_000), "bandpass", fs=rate, output="sos")
                sound = signal.sosfiltfilt(band, sound)  # here
                _, _, power = signal.spectrogram(sound, rate, nperseg=512, noverlap=384)  # here
                level = 10 * np.log10(power + 1e-12)  # here
                level -= ndimage.median_filter(level, (1, 31))  # here
                spots, found = ndimage.label(ndimage.gaussian_filter(level, 1) > 6)  # here
                boxes = ndimage.find_objects(spots)  # here
                species = torch.tensor(int(path.stem[-1]))
                for box in boxes[: min(found, 30)]:
                    left = min(box[1].start, level.shape[1] - 32)
                    yield torch.from_numpy(level[:128, left : left + 32].astype(np.float32)), species


@labelled(cpu="data-bound", needs=("scipy",), helpers=(BatNights,))
def bats_of_a_night(run: hoptui.Run, device: str) -> None:
    """Species of bats are told by their calls, which are cut from recordings with scipy as they are read.

    A recording of a second has some seven calls. Measured with a timer and one thread, a batch of 12
    calls takes 96 % of an iteration of 0.08 to 0.1 s, and the network 3 %.
    """
    torch.manual_seed(11)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 128)), nn.Conv2d(1, 8, 5, stride=4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.LazyLinear(48), nn.ReLU(), nn.Linear(48, 6),
    )  # fmt: skip
    model(torch.zeros(1, 128, 32))
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        calls = DataLoader(BatNights(Path(folder), 12, 192_000), batch_size=12)
        for spectra, species in calls:  # here
            loss = F.cross_entropy(model(spectra.to(device) / 20), species.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(species))
            if run.stopping:
                break


def iou(a: list[float], b: list[float]) -> float:
    """Return by how much two boxes overlap."""
    wide = min(a[2], b[2]) - max(a[0], b[0])  # here
    high = min(a[3], b[3]) - max(a[1], b[1])  # here
    if wide <= 0 or high <= 0:  # here
        return 0.0
    both = wide * high  # here
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])  # here
    return both / (areas - both)


class TrackingScore:
    """Misses, false boxes and changes of identity of a tracker, over frames."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.reset()

    def reset(self) -> None:
        """Begin a new clip."""
        self.known: dict[int, int] = {}
        self.truths = self.missed = self.wrong = self.switched = 0

    def update(self, truth: list[list[float]], found: list[list[float]]) -> None:
        """Match the boxes of a frame, best first, and count."""
        pairs = []
        for n, box in enumerate(truth):
            for m, other in enumerate(found):  # here
                overlap = iou(box, other)  # here
                if overlap >= self.threshold:  # here
                    pairs.append((overlap, n, m))
        pairs.sort(reverse=True)
        matched: dict[int, int] = {}
        taken = set()
        for _, n, m in pairs:
            if n in matched or m in taken:
                continue
            matched[n] = m
            taken.add(m)
            if self.known.get(n, m) != m:
                self.switched += 1
            self.known[n] = m
        self.truths += len(truth)
        self.missed += len(truth) - len(matched)
        self.wrong += len(found) - len(taken)

    def accuracy(self) -> float:
        """Return the accuracy of the tracker so far."""
        return 1 - (self.missed + self.wrong + self.switched) / max(self.truths, 1)


@labelled(cpu="host-bound", helpers=(iou, TrackingScore))
def antelopes_with_names(run: hoptui.Run, device: str) -> None:
    """Where antelopes move to is learned from clips of a drone. Each step scores the tracks of its clip.

    A clip has 12 frames of 90 animals. Measured with a timer and one thread, scores take 85 to 88 % of an
    iteration of 0.06 s, and the network 8 to 10 %.
    """
    torch.manual_seed(12)
    motion = nn.GRUCell(4, 48).to(device)
    out = nn.Linear(48, 4).to(device)
    optimizer = torch.optim.Adam([*motion.parameters(), *out.parameters()], lr=2e-3)
    score = TrackingScore(0.4)
    while not run.stopping:
        corner = 80 * torch.rand(90, 2, device=device)
        boxes = torch.cat((corner, corner + 1 + 3 * torch.rand(90, 2, device=device)), 1)
        walk = 0.3 * torch.randn(90, 2, device=device)
        h, loss = torch.zeros(90, 48, device=device), torch.zeros((), device=device)
        guesses, truths = [], []
        for _ in range(12):
            h = motion(boxes / 80, h)
            guess = boxes + out(h)
            walk = walk + 0.05 * torch.randn_like(walk)
            boxes = boxes + walk.repeat(1, 2)
            loss = loss + F.smooth_l1_loss(guess, boxes)
            guesses.append(guess)
            truths.append(boxes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        score.reset()
        for truth, guess in zip(truths, guesses, strict=True):
            score.update(truth.tolist(), guess.tolist())  # here
        run.log(loss=loss.item(), mota=score.accuracy(), switches=score.switched, samples=90)


class Reserve:
    """A reserve of cells with animals, poachers who learn where rangers are, and snares that stay."""

    def __init__(self, side: int, poachers: int, seed: int) -> None:
        self.rng, self.side, self.poachers = random.Random(seed), side, poachers
        self.animals = [[self.rng.random() for _ in range(side)] for _ in range(side)]
        self.reset()

    def reset(self) -> list[float]:
        """Begin a season."""
        self.snares: dict[tuple[int, int], int] = {}
        self.seen = [[0.0] * self.side for _ in range(self.side)]
        self.at, self.day = (self.side // 2, self.side // 2), 0
        return self.view()

    def view(self) -> list[float]:
        """Return where the rangers are, and what is around."""
        y, x = self.at
        around = [
            self.seen[(y + dy) % self.side][(x + dx) % self.side] for dy in (-1, 0, 1) for dx in (-1, 0, 1)
        ]
        return [y / self.side, x / self.side, self.day / 100, *around]

    def lure(self, y: int, x: int) -> float:
        """Return how much a poacher would like a cell."""
        risk = 0.0
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):  # here
                seen = self.seen[(y + dy) % self.side][(x + dx) % self.side]  # here
                risk += seen / (1 + abs(dy) + abs(dx))  # here
        return math.exp(3 * self.animals[y][x] - 2 * risk)  # here

    def step(self, action: int) -> tuple[list[float], float, bool]:
        """Walk on, while poachers set snares."""
        dy, dx = ((0, 1), (0, -1), (1, 0), (-1, 0), (0, 0))[action]
        self.at = (self.at[0] + dy) % self.side, (self.at[1] + dx) % self.side
        freed = self.snares.pop(self.at, 0)
        for row in self.seen:
            row[:] = [0.97 * seen for seen in row]  # here
        self.seen[self.at[0]][self.at[1]] = 1.0
        cells = [(y, x) for y in range(self.side) for x in range(self.side)]
        lures = [self.lure(y, x) for y, x in cells]  # here
        for cell in self.rng.choices(cells, lures, k=self.poachers):
            self.snares[cell] = self.snares.get(cell, 0) + 1
        caught = sum(self.rng.random() < 0.01 * self.animals[y][x] for y, x in self.snares)  # here
        self.day += 1
        return self.view(), freed - 0.5 * caught, self.day >= 100


def make_patrol(side: int, seed: int) -> Any:
    """Return the reserve as an environment."""
    gymnasium: Any = importlib.import_module("gymnasium")

    class Patrol(gymnasium.Env):  # type: ignore[misc]
        def __init__(self) -> None:
            self.reserve = Reserve(side, 5, seed)
            self.observation_space = gymnasium.spaces.Box(-1, 2, (12,), np.float32)
            self.action_space = gymnasium.spaces.Discrete(5)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            super().reset(seed=seed)
            return np.array(self.reserve.reset(), np.float32), {}

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            seen, reward, end = self.reserve.step(int(action))  # here
            return np.array(seen, np.float32), reward, False, end, {}

    return Patrol()


@labelled(
    cpu="env-bound",
    needs=("stable_baselines3", "gymnasium"),
    adapter=True,
    helpers=(Reserve, make_patrol),
)
def patrols_against_snares(run: AdapterRun, device: str) -> None:
    """A2C of Stable-Baselines3 plans patrols of rangers. Poachers of the reserve are simulated in Python.

    The reserve has 3600 cells. Measured with a timer and one thread, 32 steps take 84 % of an iteration
    of 0.18 s, and the policy 10 %.
    """
    from stable_baselines3 import A2C

    from hoptui.integrations.sb3 import HoptuiCallback

    model = A2C(
        "MlpPolicy", make_patrol(60, 13), n_steps=32, ent_coef=0.01, seed=13, device=device, verbose=0
    )
    model.learn(run.iterations * 32, callback=HoptuiCallback(run.name), log_interval=None)


@labelled(cpu="healthy", needs=("torch_geometric",))
def herds_on_the_move(run: hoptui.Run, device: str) -> None:
    """Messages between animals that see each other foresee how a herd moves, with edge convolutions of PyG.

    Measured with a timer and one thread, 98 % of an iteration of 0.03 s is in the model, its backward
    pass and its optimizer.
    """
    from torch_geometric.nn import GATv2Conv, GINEConv

    class Herd(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.enter, self.edge = nn.Linear(6, width), nn.Linear(3, width)
            self.hops = nn.ModuleList(
                GINEConv(nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)))
                for _ in range(3)
            )
            self.look = GATv2Conv(width, width // 4, heads=4)
            self.leave = nn.Linear(width, 2)

        def forward(self, x: Tensor, edges: Tensor, apart: Tensor) -> Tensor:
            h, e = self.enter(x), self.edge(apart)
            for hop in self.hops:
                h = h + hop(h, edges, e).relu()
            moved: Tensor = self.leave(self.look(h, edges).relu())
            return moved

    torch.manual_seed(14)
    places = torch.rand(1500, 2, device=device)
    x = torch.cat((places, torch.randn(1500, 4, device=device)), 1)
    near = torch.cdist(places, places).topk(9, largest=False).indices[:, 1:]
    edges = torch.stack((near.flatten(), torch.arange(1500, device=device).repeat_interleave(8)))
    offset = places[edges[0]] - places[edges[1]]
    apart = torch.cat((offset, offset.norm(dim=1, keepdim=True)), 1)
    goal = torch.zeros_like(places).index_add(0, edges[1], offset)
    model = Herd(64).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    while not run.stopping:
        shaken = x + 0.01 * torch.randn_like(x)
        loss = F.l1_loss(model(shaken, edges, apart), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=len(x))


@labelled(cpu="healthy", needs=("diffusers",))
def coats_by_diffusion(run: hoptui.Run, device: str) -> None:
    """Patterns of coats are learned by a small U-Net of diffusers that takes their noise away.

    Measured with a timer and one thread, 96 % of an iteration of 0.1 s is in the model, its backward pass
    and its optimizer.
    """
    from diffusers import DDPMScheduler, UNet2DModel

    torch.manual_seed(15)
    unet = UNet2DModel(
        sample_size=24,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(32, 48),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=16,
        norm_num_groups=8,
    ).to(device)
    scheduler = DDPMScheduler(num_train_timesteps=400, beta_schedule="squaredcos_cap_v2")
    optimizer = torch.optim.AdamW(unet.parameters(), lr=2e-4)
    grid = torch.stack(torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij")).float().to(device)
    waves = torch.randn(300, 2, 1, 1, device=device) * 0.8
    coats = torch.sin((grid * waves).sum(1, keepdim=True)).sign()
    while not run.stopping:
        clean = coats[torch.randint(0, 300, (8,), device=device)]
        noise = torch.randn_like(clean)
        steps = torch.randint(0, 400, (8,), device=device)
        noisy = scheduler.add_noise(clean, noise, steps)
        loss = F.mse_loss(unet(noisy, steps).sample, noise)
        loss.backward()
        nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss.item(), samples=8)
