"""Trainings for aviation on the CPU: surveillance, approaches, rotations of aircraft, and engines."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import heapq
import math
import random
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

GENERATOR = 0x1FFF409


def longitude_zones(lat: float) -> int:
    """Return how many zones of longitude there are at a latitude."""
    part = 1 - math.cos(math.pi / 30)
    return int(2 * math.pi / math.acos(1 - part / math.cos(math.radians(lat)) ** 2))


def remainder(message: str) -> int:
    """Return the remainder of a message of 112 bits, 0 if it came whole."""
    bits = int(message, 16)
    for shift in range(87, -1, -1):
        if bits >> (shift + 24) & 1:  # here
            bits ^= GENERATOR << shift  # here
    return bits & 0xFFFFFF


def squitter(icao: int, lat: float, lon: float, height: int, odd: int) -> str:
    """Return the message by which an aircraft tells where it is."""
    high = 360 / (60 - odd)
    y = round(131072 * (lat % high) / high) % 131072
    wide = 360 / max(longitude_zones(lat) - odd, 1)
    x = round(131072 * (lon % wide) / wide) % 131072
    body = 11 << 51 | (height // 25) << 36 | odd << 34 | y << 17 | x
    head = f"8D{icao:06X}{body:014X}"
    return head + f"{remainder(head + '000000'):06X}"


def position(even: str, odd: str) -> tuple[float, float, int]:
    """Return latitude, longitude and height, from two messages."""
    first, second = int(even[8:22], 16), int(odd[8:22], 16)  # here
    y0, y1 = (first >> 17 & 0x1FFFF) / 131072, (second >> 17 & 0x1FFFF) / 131072  # here
    x0, x1 = (first & 0x1FFFF) / 131072, (second & 0x1FFFF) / 131072  # here
    zone = math.floor(59 * y0 - 60 * y1 + 0.5)  # here
    lat = 6 * (zone % 60 + y0)  # here
    zones = longitude_zones(lat)  # here
    turn = math.floor(x0 * (zones - 1) - x1 * zones + 0.5)  # here
    return lat, 360 / zones * (turn % zones + x0), 25 * (first >> 36 & 0xFFF)  # here


class Squitters(Dataset[tuple[Tensor, Tensor]]):
    """Flights as a receiver has written them down, one message a line."""

    def __init__(self, folder: Path, flights: int, fixes: int) -> None:
        rng, self.fixes = random.Random(71), fixes
        self.files = []
        for n in range(flights):
            lat, lon, height = rng.uniform(46, 54), rng.uniform(2, 15), rng.randrange(8000, 38000, 25)
            course, lines = rng.uniform(0, 2 * math.pi), []
            for _ in range(fixes + 1):
                lines += [squitter(0x3C0000 + n, lat, lon, height, odd) for odd in (0, 1)]
                lat, lon = lat + 0.01 * math.cos(course), lon + 0.015 * math.sin(course)
                course += rng.gauss(0, 0.05)
            self.files.append(folder / f"flight{n:04d}.adsb")
            self.files[-1].write_text("\n".join(lines))

    def __len__(self) -> int:
        return 50 * len(self.files)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        messages = self.files[i % len(self.files)].read_text().split()  # here
        whole = [message for message in messages if remainder(message) == 0]  # here
        fixes = [position(*pair) for pair in zip(whole[::2], whole[1::2], strict=True)]  # here
        track = torch.tensor([[lat - 50, (lon - 8) / 2, height / 40000] for lat, lon, height in fixes])
        return track[:-1:4], track[-1, :2] - track[-2, :2]


@labelled(cpu="data-bound", helpers=(remainder, position, Squitters))
def tracks_of_airliners(run: hoptui.Run, device: str) -> None:
    """A recurrent network foresees where airliners go. Its data set decodes messages of their transponders.

    A batch has 64 flights of 98 messages. Measured with a timer and one thread, they take 92 % of an
    iteration of 0.05 s, and the network 7 %.
    """
    torch.manual_seed(71)

    class NextFix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 48, batch_first=True)
            self.out = nn.Linear(48, 2)

        def forward(self, track: Tensor) -> Tensor:
            moved: Tensor = self.out(self.rnn(track)[1][-1])
            return moved

    model = NextFix().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(Squitters(Path(folder), 120, 48), batch_size=64, shuffle=True)
        while not run.stopping:
            for track, moved in loader:  # here
                loss = F.smooth_l1_loss(model(track.to(device)), moved.to(device) * 50)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                run.log(loss=loss.item(), samples=len(track))
                if run.stopping:
                    break


class TerminalArea:
    """Aircraft that descend to one runway. A controller changes the speed of one of them at a time."""

    def __init__(self, aircraft: int, seed: int) -> None:
        self.rng, self.aircraft = random.Random(seed), aircraft
        self.reset()

    def reset(self) -> np.ndarray:
        """Put all aircraft back to where they come in."""
        self.fleet = [self.entering() for _ in range(self.aircraft)]
        self.turn = 0
        return self.view()

    def entering(self) -> dict[str, float]:
        """Return an aircraft at the edge of the area."""
        around = self.rng.uniform(-math.pi, math.pi)
        far = self.rng.uniform(20, 60)
        return {"x": far * math.cos(around), "y": far * math.sin(around), "z": far * 0.3, "v": 0.06}

    def view(self) -> np.ndarray:
        """Return what is seen of the aircraft whose turn it is, and of its four neighbours."""
        own = self.fleet[self.turn]
        near = sorted(self.fleet, key=lambda a: (a["x"] - own["x"]) ** 2 + (a["y"] - own["y"]) ** 2)  # here
        return np.array([a[name] / 20 for a in near[:5] for name in "xyzv"], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        """Go on for some seconds, and return the view, the reward and whether two came too close."""
        own = self.fleet[self.turn]
        own["v"] = min(0.09, max(0.03, own["v"] + (action - 1) * 0.01))
        reward, lost = 0.0, 0
        for _ in range(6):
            reward += self.fly(2.0)  # here
            lost = max(lost, self.losses())  # here
        self.turn = (self.turn + 1) % self.aircraft
        return self.view(), reward - 0.1 * lost, lost > 60  # here

    def fly(self, seconds: float) -> float:
        """Move all aircraft, and return how many have landed."""
        landed = 0.0
        for n, plane in enumerate(self.fleet):
            far = math.hypot(plane["x"], plane["y"])  # here
            if far < 1.0:
                self.fleet[n] = self.entering()
                landed += 1.0
                continue
            plane["x"] -= plane["v"] * seconds * plane["x"] / far  # here
            plane["y"] -= plane["v"] * seconds * plane["y"] / far  # here
            plane["z"] += 0.04 * (far * 0.3 - plane["z"])  # here
        return landed

    def losses(self) -> int:
        """Return how many pairs are too close to each other."""
        lost = 0
        for n, one in enumerate(self.fleet):
            for other in self.fleet[:n]:  # here
                if abs(one["z"] - other["z"]) > 0.3:  # here
                    continue
                if (one["x"] - other["x"]) ** 2 + (one["y"] - other["y"]) ** 2 < 9:  # here
                    lost += 1
        return lost


@labelled(cpu="env-bound", helpers=(TerminalArea,))
def sequence_of_approaches(run: hoptui.Run, device: str) -> None:
    """An actor and its critic learn to space aircraft that approach a runway, in a simulator in Python.

    There are 100 aircraft, and each pair is checked. Measured with a timer and one thread, 40 steps take
    87 % of an iteration of 0.08 s, and the network 4 %.
    """
    torch.manual_seed(72)
    body = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 4)).to(device)
    optimizer = torch.optim.RMSprop(body.parameters(), lr=7e-4)
    area = TerminalArea(100, 72)
    seen, episodes = area.reset(), 0
    while not run.stopping:
        views, actions, rewards, ends = [], [], [], []
        for _ in range(40):
            with torch.no_grad():
                logits = body(torch.from_numpy(seen).to(device))[:3]
            action = int(torch.distributions.Categorical(logits=logits).sample())
            views.append(seen)
            seen, reward, end = area.step(action)  # here
            if end:
                seen, episodes = area.reset(), episodes + 1  # here
            actions.append(action)
            rewards.append(reward)
            ends.append(end)
        returns, total = [], 0.0
        for reward, end in zip(reversed(rewards), reversed(ends), strict=True):
            total = reward + 0.97 * total * (not end)
            returns.append(total)
        goal = torch.tensor(returns[::-1], device=device)
        out = body(torch.from_numpy(np.stack(views)).to(device))
        log_p = torch.log_softmax(out[:, :3], 1)
        chosen = log_p[torch.arange(40), torch.tensor(actions, device=device)]
        advantage = goal - out[:, 3]
        entropy = -(log_p.exp() * log_p).sum(1).mean()
        loss = -(chosen * advantage.detach()).mean() + 0.5 * advantage.square().mean() - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(body.parameters(), 0.5)
        optimizer.step()
        run.log(loss=loss.item(), reward=sum(rewards), env_steps=40, episodes=episodes)


class Timetable:
    """A day of flights. An aircraft that comes late leaves late, and so does a crew."""

    def __init__(self, flights: int, tails: int) -> None:
        rng = random.Random(73)
        self.legs = []
        for n in range(flights):
            leaves = 300 + 1000 * n // flights + rng.randrange(20)
            self.legs.append((leaves, rng.randrange(60, 200), n % tails, rng.randrange(tails)))

    def knock_on(self, own: list[float]) -> tuple[float, int]:
        """Return the mean delay if each flight adds its own, and how many are more than 15 minutes late."""
        queue = [(leaves, n) for n, (leaves, *_) in enumerate(self.legs)]
        heapq.heapify(queue)
        ready: dict[tuple[str, int], float] = {}
        late: dict[int, float] = {}
        while queue:
            now, n = heapq.heappop(queue)  # here
            leaves, minutes, tail, crew = self.legs[n]  # here
            earliest = max(ready.get(("tail", tail), 0.0), ready.get(("crew", crew), 0.0))  # here
            if earliest > now + 0.5 and earliest - leaves < 240:  # here
                heapq.heappush(queue, (int(earliest) + 1, n))  # here
                continue
            gone = max(now, leaves) + max(0.0, own[n])  # here
            late[n] = gone - leaves  # here
            ready["tail", tail] = gone + minutes + 35  # here
            ready["crew", crew] = gone + minutes + 20  # here
        return sum(late.values()) / len(late), sum(minutes > 15 for minutes in late.values())


@labelled(cpu="host-bound", helpers=(Timetable,))
def delays_of_rotations(run: hoptui.Run, device: str) -> None:
    """Own delays of flights are predicted. Each step logs what they would do to the rest of the day.

    The day has 18 000 flights. Measured with a timer and one thread, replaying it takes 93 % of an iteration
    of 0.07 to 0.11 s, and the network 3 %.
    """
    torch.manual_seed(73)
    flights, tails = 18_000, 3000
    carriers, airports = nn.Embedding(40, 16), nn.Embedding(300, 32)
    head = nn.Sequential(nn.Linear(16 + 64 + 8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    model = nn.ModuleList((carriers, airports, head)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    carrier = torch.randint(0, 40, (flights,), device=device)
    ends = torch.randint(0, 300, (flights, 2), device=device)
    weather = torch.randn(flights, 8, device=device)
    delays = 5 * weather[:, 0].relu() + torch.rand(flights, device=device) * 8
    timetable, minutes = Timetable(flights, tails), torch.zeros(flights, device=device)
    while not run.stopping:
        batch = torch.randperm(flights, device=device)[:256]
        x = torch.cat((carriers(carrier[batch]), airports(ends[batch]).flatten(1), weather[batch]), 1)
        predicted = head(x)[:, 0]
        loss = F.huber_loss(predicted, delays[batch], delta=5.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        minutes[batch] = predicted.detach()
        mean, late = timetable.knock_on(minutes.tolist())  # here
        run.log(loss=loss.item(), knock_on=mean, late=late, samples=len(batch))


class EngineLife(nn.Module):
    """Two recurrent layers over the last cycles of an engine, and what of them to look at."""

    def __init__(self, sensors: int, width: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(sensors, width, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.look = nn.Linear(2 * width, 1)
        self.out = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, cycles: Tensor) -> Tensor:
        h, _ = self.rnn(cycles)
        weight = self.look(h).softmax(1)
        left: Tensor = self.out((weight * h).sum(1))[:, 0]
        return left


@labelled(cpu="healthy")
def life_left_of_engines(run: hoptui.Run, device: str) -> None:
    """A recurrent network tells from the sensors of engines how many cycles they have left.

    Measured with a timer and one thread, 97 % of an iteration of 0.06 s is in the model, its backward
    pass and its optimizer.
    """
    torch.manual_seed(74)
    engines = torch.randn(100, 220, 21, device=device).cumsum(1) / 10
    model = EngineLife(21, 112).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000, gamma=0.7)
    steps = torch.arange(40, device=device)
    history: list[Any] = []
    while not run.stopping:
        which = torch.randint(0, 100, (48,), device=device)
        last = torch.randint(40, 220, (48,), device=device)
        windows = engines[which[:, None], last[:, None] - 40 + steps]
        left = (220 - last).clamp(max=125).float() / 125
        loss = F.mse_loss(model(windows), left)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        history = [*history[-99:], loss.item()]
        run.log(loss=history[-1], mean_loss=sum(history) / len(history), samples=48)
