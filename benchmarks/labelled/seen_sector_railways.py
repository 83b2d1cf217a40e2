"""Trainings for railways: flat wheels, a single-track line, rails, delays, and the wear of a contact wire."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import hashlib
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import labelled


class AxleBoxPassages(Dataset[tuple[Tensor, int]]):
    """Accelerations of axle boxes, as spectra over the turns of the wheel."""

    rate = 10_000
    orders = 128

    def __init__(self, passages: int, seconds: float) -> None:
        self.passages, self.samples = passages, int(seconds * self.rate)

    def __len__(self) -> int:
        return self.passages

    def passage(self, index: int) -> tuple[Any, Any, int]:
        """Return the angle of the wheel, its acceleration, and whether it is flat."""
        rng = np.random.default_rng(index)
        flat = index % 3 == 0
        speed = 40 + 5 * np.sin(np.linspace(0, 3, self.samples) + rng.uniform(0, 6))
        angle = np.cumsum(speed) / self.rate
        acceleration = rng.standard_normal(self.samples)
        if flat:
            acceleration += 6 * np.exp(-40 * (angle / (2 * np.pi) % 1))
        return angle, acceleration, int(flat)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from scipy import signal

        angle, acceleration, flat = self.passage(index)  # here
        band = signal.butter(6, (800, 3000), "bandpass", fs=self.rate, output="sos")
        envelope = np.abs(signal.hilbert(signal.sosfiltfilt(band, acceleration)))  # here
        turns = np.linspace(angle[0], angle[-1], 1 << 16)
        even = np.interp(turns, angle, envelope)  # here
        _, _, power = signal.spectrogram(even, nperseg=4096, noverlap=3840)  # here
        return torch.from_numpy(np.log1p(power[: self.orders]).mean(1)).float(), flat


@labelled(gpu="data-bound", cpu="data-bound", needs=("scipy",), helpers=(AxleBoxPassages,))
def flat_wheels_by_order_spectra(run: hoptui.Run, device: str) -> None:
    """Flat wheels are found by the spectrum of an envelope. Two workers of a loader compute the spectra.

    A passage has 60 000 values, which are filtered twice, enveloped, resampled and cut into 240 windows: more
    than 10 ms. A batch has 48 of them: more than 240 ms with two workers. The step of three small layers on
    48 x 128 numbers takes less than 5 ms.
    """
    torch.manual_seed(0)
    passages = AxleBoxPassages(20_000, seconds=6.0)
    loader = DataLoader(passages, batch_size=48, shuffle=True, num_workers=2, persistent_workers=True)
    head = nn.Sequential(nn.Linear(passages.orders, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    for spectra, flat in loader:  # here
        loss = F.cross_entropy(head(spectra.to(device)), flat.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=len(flat))
        if run.stopping:
            break


class SingleTrackLine:
    """Trains in both directions on a line with one track, and loops in which they can pass each other."""

    def __init__(self, trains: int, sections: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.trains, self.sections = trains, sections
        self.reset()

    def reset(self) -> None:
        """Begin a day."""
        self.place = [self.rng.uniform(0, self.sections) for _ in range(self.trains)]
        self.way = [1 if n % 2 else -1 for n in range(self.trains)]
        self.speed = [self.rng.uniform(0.02, 0.05) for _ in range(self.trains)]
        self.late = [0.0] * self.trains
        self.minute = 0

    def ahead(self, train: int) -> float:
        """Return how far the next train is that comes towards this one, or that it follows."""
        here, way = self.place[train], self.way[train]
        nearest = float(self.sections)
        for other, place in enumerate(self.place):  # here
            if other == train:  # here
                continue
            gap = (place - here) * way  # here
            if 0 <= gap < nearest:  # here
                nearest = gap * (0.5 if self.way[other] != way else 1.0)  # here
        return nearest

    def step(self, priority: int) -> float:
        """Let all trains run for a minute, and return what the delays cost."""
        for train in range(self.trains):  # here
            gap = self.ahead(train)  # here
            urgent = train % 4 == priority
            slack = 1.0 if gap > 0.3 else (0.6 if urgent else 0.1)
            moved = self.speed[train] * slack
            self.late[train] += self.speed[train] - moved
            self.place[train] += moved * self.way[train]
            if not 0 <= self.place[train] <= self.sections:
                self.way[train] = -self.way[train]
                self.place[train] = min(max(self.place[train], 0.0), float(self.sections))
        self.minute += 1
        cost = sum(self.late) / self.trains
        if self.minute % 240 == 0:
            self.reset()
        return -cost

    def look(self) -> list[float]:
        """Return how many trains are where, and how late those of each priority are."""
        density = [0.0] * 12
        for place in self.place:
            density[min(int(12 * place / self.sections), 11)] += 1 / self.trains
        return density + [sum(self.late[n::4]) for n in range(4)]


class Dispatcher(nn.Module):
    """Chooses whom to give way, and judges the state of the line."""

    def __init__(self, seen: int, choices: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(seen, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, choices), nn.Linear(64, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(seen)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


@labelled(gpu="env-bound", cpu="env-bound", helpers=(SingleTrackLine,))
def dispatcher_of_a_single_track(run: hoptui.Run, device: str) -> None:
    """Proximal policy optimisation gives trains the right of way on six lines that are simulated in Python.

    A minute compares 120 trains with each other: 14 400 pairs of more than 60 nanoseconds, more than 0.85 ms.
    24 minutes of six lines take more than 120 ms. The policy is asked 24 times, less than 0.5 ms each, and
    three epochs over 144 states take less than 12 ms.
    """
    lines = [SingleTrackLine(120, 40, seed) for seed in range(6)]
    agent = Dispatcher(16, 4).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
    horizon, gamma, lam, clip = 24, 0.98, 0.9, 0.2
    seen = torch.tensor([line.look() for line in lines])
    while not run.stopping:
        memory: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []
        for _ in range(horizon):
            with torch.no_grad():
                logits, value = agent(seen.to(device))
            policy = torch.distributions.Categorical(logits=logits.cpu())
            choice = policy.sample()
            told = zip(lines, choice.tolist(), strict=True)
            reward = torch.tensor([line.step(first) for line, first in told])  # here
            memory.append((seen, choice, policy.log_prob(choice), reward, value.cpu()))
            seen = torch.tensor([line.look() for line in lines])
        states, choices, old, rewards, values = (torch.stack(each) for each in zip(*memory, strict=True))
        advantage, running = torch.zeros_like(rewards), torch.zeros(len(lines))
        following = torch.cat([values[1:], values[-1:]])
        for t in reversed(range(horizon)):
            running = rewards[t] + gamma * following[t] - values[t] + gamma * lam * running
            advantage[t] = running
        target = (advantage + values).flatten().to(device)
        gain = ((advantage - advantage.mean()) / (advantage.std() + 1e-6)).flatten().to(device)
        flat, taken, before = (x.flatten(0, 1).to(device) for x in (states, choices, old))
        for _ in range(3):
            logits, value = agent(flat)
            now = logits.log_softmax(-1).gather(1, taken[:, None]).squeeze(1)
            ratio = (now - before).exp()
            surrogate = torch.min(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain).mean()
            loss = F.mse_loss(value, target) * 0.5 - surrogate
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
        run.log(loss=loss.item(), reward=rewards.mean().item(), env_steps=horizon * len(lines))


@labelled(gpu="healthy compute-bound power-limited", needs=("torchvision",))
def damage_of_rail_heads(run: hoptui.Run, device: str) -> None:
    """Damage of rail heads is classified by torchvision's VGG-16 in bf16, with averaged weights.

    On a GPU: 256 pictures are 256 x 15.5 x 2 x 3 = 23.8 TFLOP: more than 24 ms at 989 TFLOPS, and more than
    45 ms at what convolutions reach. The pictures are uint8 numbers in the memory of the GPU. Activations of
    13.6 million numbers a picture in bf16 are 7 GB, which are read or written about 12 times: less than 18
    ms. The weights of 138 million numbers, their moments and averages take less than 3 ms. They are less than
    400 launches. On the CPU: 2 pictures of 32 x 32 points.
    """
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    from torchvision.models import vgg16

    cpu = device == "cpu"
    batch, side = (2, 32) if cpu else (256, 224)
    torch.backends.cudnn.benchmark = True
    net = vgg16(weights=None, num_classes=7).to(device, memory_format=torch.channels_last)
    averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.05, fused=not cpu)
    heads = torch.randint(0, 256, (4 * batch, 3, side, side), dtype=torch.uint8, device=device)
    kinds = torch.randint(0, 7, (4 * batch,), device=device)
    mean = torch.tensor([123.7, 116.3, 103.5], device=device).view(3, 1, 1)
    seen = 0.0
    while not run.stopping:
        for part in torch.randperm(4 * batch, device=device).split(batch):
            pictures = heads[part].float().sub_(mean).div_(58.0)
            pictures = pictures.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device, torch.bfloat16, enabled=not cpu):
                loss = F.cross_entropy(net(pictures), kinds[part], label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            averaged.update_parameters(net)
            seen += batch
            run.log(loss=loss.item(), seen=seen, samples=batch)
            if run.stopping:
                break


class DelayPropagation(nn.Module):
    """Hands the state of each train from station to station, and keeps the headway to the train before."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.run_time = nn.GRUCell(features, width)
        self.dwell = nn.Linear(width, 1)
        self.gate = nn.Linear(width + 1, width)

    def forward(self, stations: Tensor) -> Tensor:
        trains = stations.shape[1]
        state = stations.new_zeros(trains, self.run_time.hidden_size)
        delay = stations.new_zeros(trains, 1)
        arrivals = []
        for station in stations:
            state = self.run_time(station, state)
            change = torch.tanh(self.dwell(state))
            held = F.relu(delay.roll(1, 0) - delay - 0.5)
            delay = F.softplus(delay + change + 0.1 * held)
            state = state * torch.sigmoid(self.gate(torch.cat([state, delay], 1)))
            arrivals.append(delay)
        return torch.cat(arrivals, 1)


@labelled(gpu="launch-bound", cpu="healthy")
def delays_from_station_to_station(run: hoptui.Run, device: str) -> None:
    """Delays are handed on along a line, station by station, in a loop over the stations.

    On a GPU: 280 stations with some 18 kernels forward and more than 25 backward, on 32 trains of 64 numbers:
    more than 12 000 launches of more than 5 microseconds for the host, and of about 2.5 for the GPU. On the
    CPU: 12 stations and 256 trains of 256 numbers.
    """
    stations, trains, width = (12, 256, 256) if device == "cpu" else (280, 32, 64)
    line = DelayPropagation(10, width).to(device)
    optimizer = torch.optim.RMSprop(line.parameters(), lr=5e-4, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=500)
    while not run.stopping:
        timetable = torch.randn(stations, trains, 10, device=device)
        measured = timetable[..., 0].cumsum(0).T.abs() / stations**0.5
        loss = F.huber_loss(line(timetable), measured)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(line.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        run.log(loss=loss.item(), lr=schedule.get_last_lr()[0], samples=trains)


class CheckpointRegistry:
    """Keeps checkpoints by the hash of their content, and a link to the newest one."""

    def __init__(self, root: Path, keep: int) -> None:
        self.root, self.keep = root, keep
        self.published: list[Path] = []

    def publish(self, state: dict[str, Any]) -> str:
        """Write a checkpoint to the disk, and return its hash."""
        draft = self.root / "draft.pt"
        with draft.open("wb") as file:
            torch.save(state, file)  # here
            file.flush()
            os.fsync(file.fileno())  # here
        with draft.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()  # here
        target = self.root / f"{digest[:16]}.pt"
        shutil.copyfile(draft, target)  # here
        self.published.append(target)
        while len(self.published) > self.keep:
            self.published.pop(0).unlink(missing_ok=True)  # here
        return digest


@labelled(gpu="save-bound", cpu="save-bound", helpers=(CheckpointRegistry,))
def wear_of_a_contact_wire(run: hoptui.Run, device: str) -> None:
    """The wear of each metre of a contact wire is learned, and each step is published in a registry.

    400 000 metres with 96 numbers are 154 MB. They are written to the disk, hashed at less than 2 GB/s, and
    copied: more than 130 ms. A step changes 1024 rows with sparse gradients: less than 8 ms.
    """
    metres = nn.Embedding(400_000, 96, sparse=True).to(device)
    readout = nn.Linear(96 + 3, 1).to(device)
    optimizer = torch.optim.SGD([*metres.parameters(), *readout.parameters()], lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        registry = CheckpointRegistry(Path(folder), keep=2)
        passes = 0
        while not run.stopping:
            at = torch.randint(0, 400_000, (1024,), device=device)
            weather = torch.rand(1024, 3, device=device)
            thickness = readout(torch.cat([metres(at), weather], 1)).squeeze(1)
            loss = F.l1_loss(thickness, 12 - weather.sum(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            passes += 1
            version = registry.publish(  # here
                {"metres": metres.state_dict(), "readout": readout.state_dict(), "passes": passes}
            )
            run.log(loss=loss.item(), version=int(version[:6], 16), samples=1024)
