"""Trainings for telecoms on the CPU: customers, base stations, frequencies, and radio channels."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled

KINDS = ("voice", "text", "data", "roaming")


def write_call_records(path: Path, rows: int, seed: int) -> None:
    """Write a month of calls, as the billing system exports them."""
    rng = random.Random(seed)
    with path.open("w") as file:
        file.write("caller,started,kind,seconds,cell,charge\n")
        for _ in range(rows):
            started = f"2024-03-{rng.randrange(1, 31):02d} {rng.randrange(24):02d}:{rng.randrange(60):02d}:00"
            kind, seconds = rng.choice(KINDS), int(rng.expovariate(0.01))
            cell, charge = rng.randrange(500), f"{rng.uniform(0, 3):.2f}"
            file.write(f"{rng.randrange(3000)},{started},{kind},{seconds},{cell},{charge}\n")


def customer_batches(paths: list[Path], customers: Any, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features of the customers who call within a part of an export, and whether they leave."""
    pd: Any = importlib.import_module("pandas")

    while True:
        for path in paths:
            with pd.read_csv(path, chunksize=chunk, parse_dates=["started"]) as reader:
                for calls in reader:  # here
                    calls["night"] = calls["started"].dt.hour.lt(7)  # here
                    calls["day"] = calls["started"].dt.date.astype(str)  # here
                    by_caller = calls.groupby("caller")  # here
                    sums = by_caller.agg(  # here
                        seconds=("seconds", "sum"),
                        charge=("charge", "mean"),
                        nights=("night", "mean"),
                        cells=("cell", "nunique"),
                        days=("day", "nunique"),
                    )
                    mix = calls.pivot_table("seconds", "caller", "kind", aggfunc="sum")  # here
                    longest = by_caller["seconds"].apply(lambda s: s.nlargest(2).mean())  # here
                    mix = mix.reindex(columns=KINDS).fillna(0)  # here
                    table = sums.join(mix).join(longest.rename("longest"))  # here
                    table = table.merge(customers, left_index=True, right_on="caller")  # here
                    leaves = table.pop("leaves").to_numpy(np.float32)
                    x = table.drop(columns="caller").to_numpy(np.float32)
                    yield torch.from_numpy(np.log1p(x)), torch.from_numpy(leaves)


@labelled(cpu="data-bound", needs=("pandas",), helpers=(customer_batches,))
def customers_who_leave(run: hoptui.Run, device: str) -> None:
    """Customers who leave are found by what they call. Exports are read and grouped by pandas as they come.

    A part has 1000 calls. Measured with a timer and one thread, it takes 98 % of an iteration of 0.13 s,
    and the network 2 %.
    """
    pd: Any = importlib.import_module("pandas")

    torch.manual_seed(91)
    rng = np.random.default_rng(91)
    customers = pd.DataFrame(
        {
            "caller": np.arange(3000),
            "age": rng.integers(18, 90, 3000),
            "months": rng.integers(1, 120, 3000),
            "leaves": rng.integers(0, 2, 3000),
        }
    )
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"calls{n}.csv") for n in range(3)]
        for n, path in enumerate(paths):
            write_call_records(path, 20_000, n)
        for x, leaves in customer_batches(paths, customers, 1000):  # here
            logits = model(x.to(device))[:, 0]
            loss = F.binary_cross_entropy_with_logits(logits, leaves.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(x))
            if run.stopping:
                break


class RadioNetwork:
    """Base stations that may sleep, and phones that walk between them. All have a share of a station."""

    def __init__(self, stations: int, phones: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.stations = self.rng.uniform(0, 10, (stations, 2))
        self.phones = self.rng.uniform(0, 10, (phones, 2))
        self.served = np.ones(phones)

    def gains(self) -> np.ndarray:
        """Return how well each phone hears each station, with shadows of buildings."""
        apart = self.phones[:, None] - self.stations  # here
        far = np.sqrt((apart**2).sum(-1)) + 0.05  # here
        shadow = self.rng.normal(0, 4, far.shape)  # here
        gains: np.ndarray = 10 ** ((-30 - 35 * np.log10(far) + shadow) / 10)  # here
        return gains

    def step(self, awake: np.ndarray) -> tuple[np.ndarray, float]:
        """Serve all phones for a minute. Return the load of each station, and the reward."""
        self.phones = (self.phones + self.rng.normal(0, 0.1, self.phones.shape)) % 10
        heard = self.gains() * np.where(awake, 1.0, 1e-6)  # here
        at = heard.argmax(1)  # here
        noise = heard.sum(1) - heard.max(1) + 1e-9  # here
        rate = np.log2(1 + heard.max(1) / noise)  # here
        load = np.zeros(len(self.stations))
        for station in range(len(self.stations)):
            mine = np.flatnonzero(at == station)  # here
            for _ in range(min(len(mine), 12)):  # here
                first = mine[np.argmax(rate[mine] / self.served[mine])]  # here
                self.served[first] += rate[first] / 12  # here
            load[station] = len(mine)
        self.served *= 0.95
        fair = np.log(self.served).mean()  # here
        return load / len(self.phones) * len(self.stations), float(fair - 0.5 * awake.mean())


@labelled(cpu="env-bound", helpers=(RadioNetwork,))
def base_stations_that_sleep(run: hoptui.Run, device: str) -> None:
    """By the cross-entropy of good hours: which base stations may sleep. The network is simulated by NumPy.

    Measured with a timer and one thread, 48 steps of the network of 24 stations and 300 phones take 83 %
    of an iteration of 0.05 s, and the policy 8 %.
    """
    torch.manual_seed(92)
    network = RadioNetwork(24, 300, 92)
    policy = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 24)).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    load = np.ones(24)
    while not run.stopping:
        hours = []
        for _ in range(4):
            loads, choices, total = [], [], 0.0
            for _ in range(12):
                state = torch.tensor(load, dtype=torch.float32, device=device)
                with torch.no_grad():
                    awake = torch.bernoulli(policy(state).sigmoid())
                loads.append(state)
                choices.append(awake)
                load, reward = network.step(awake.cpu().numpy() > 0.5)  # here
                total += reward
            hours.append((total, torch.stack(loads), torch.stack(choices)))
        hours.sort(key=lambda hour: hour[0], reverse=True)
        states = torch.cat([hour[1] for hour in hours[:2]])
        chosen = torch.cat([hour[2] for hour in hours[:2]])
        loss = F.binary_cross_entropy_with_logits(policy(states), chosen)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), reward=hours[0][0], mean_reward=sum(hour[0] for hour in hours) / 4)


class ChannelPlan:
    """Links that disturb each other, and a search that repairs a plan of their channels."""

    def __init__(self, links: int, channels: int, seed: int) -> None:
        rng = random.Random(seed)
        self.links, self.channels = links, channels
        self.near: list[set[int]] = [set() for _ in range(links)]
        for _ in range(6 * links):
            a, b = rng.sample(range(links), 2)
            self.near[a].add(b)
            self.near[b].add(a)

    def edges(self) -> list[tuple[int, int]]:
        """Return all pairs that disturb each other, in both directions."""
        return [(a, b) for a, others in enumerate(self.near) for b in others]

    def clashes(self, plan: list[int], link: int) -> int:
        """Return with how many a link clashes."""
        return sum(plan[other] == plan[link] for other in self.near[link])  # here

    def repair(self, plan: list[int], moves: int) -> tuple[list[int], int]:
        """Move links to better channels, with a list of moves that are forbidden for a while."""
        plan = list(plan)
        forbidden: dict[int, int] = {}
        for move in range(moves):
            bad = [link for link in range(self.links) if self.clashes(plan, link) > 0]  # here
            if not bad:
                break
            free = [link for link in bad if forbidden.get(link, 0) <= move] or bad  # here
            worst = max(free, key=lambda link: self.clashes(plan, link))  # here
            used = Counter(plan[other] for other in self.near[worst])  # here
            plan[worst] = min(range(self.channels), key=lambda channel: used[channel])  # here
            forbidden[worst] = move + 7
        return plan, sum(self.clashes(plan, link) for link in range(self.links)) // 2  # here


@labelled(cpu="host-bound", helpers=(ChannelPlan,))
def channels_without_clashes(run: hoptui.Run, device: str) -> None:
    """A graph network proposes channels of links. A tabu search repairs them, and is what it is taught.

    The search makes 60 moves. Measured with a timer and one thread, it takes 87 to 90 % of an iteration
    of 0.05 s, and the network 6 %.
    """
    torch.manual_seed(93)
    links, channels = 400, 6
    search = ChannelPlan(links, channels, 93)
    source, target = torch.tensor(search.edges(), device=device).T
    degree = torch.zeros(links, device=device).index_add(0, target, torch.ones(len(target), device=device))
    embed = nn.Embedding(links, 32)
    layers = nn.ModuleList(nn.Linear(64, 32) for _ in range(2))
    head = nn.Linear(32, channels)
    model = nn.ModuleList((embed, layers, head)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    fewest = len(source)
    while not run.stopping:
        h = embed.weight
        for layer in layers:
            heard = torch.zeros_like(h).index_add(0, target, h[source]) / degree.clamp(min=1)[:, None]
            h = layer(torch.cat((h, heard), 1)).relu()
        logits = head(h)
        proposed = logits.argmax(1).tolist()
        repaired, clashes = search.repair(proposed, 60)  # here
        taught = F.cross_entropy(logits, torch.tensor(repaired, device=device))
        p = logits.softmax(1)
        loss = taught + 0.1 * (p[source] * p[target]).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        fewest = min(fewest, clashes)
        run.log(loss=loss.item(), clashes=clashes, fewest=fewest)


class Experts(nn.Module):
    """Perceptrons of which each token takes the two best."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.flatten(0, 1)
        gates = self.gate(flat).softmax(1)
        best, which = gates.topk(2)
        out = torch.zeros_like(flat)
        for n, expert in enumerate(self.experts):
            rows, slot = (which == n).nonzero(as_tuple=True)
            out = out.index_add(0, rows, best[rows, slot, None] * expert(flat[rows]))
        used = F.one_hot(which[:, 0], len(self.experts)).float().mean(0)
        return out.view_as(x), len(self.experts) * (used * gates.mean(0)).sum()


class ChannelExperts(nn.Module):
    """Layers that mix antennas by a convolution and have experts for what the channel is like."""

    def __init__(self, antennas: int, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(2, width)
        self.mix = nn.ModuleList(nn.Conv1d(width, width, 5, padding=2, groups=4) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.experts = nn.ModuleList(Experts(width, 6) for _ in range(2))
        self.leave = nn.Linear(width, 2)

    def forward(self, pilots: Tensor) -> tuple[Tensor, Tensor]:
        h, balance = self.enter(pilots), pilots.new_zeros(())
        for mix, norm, experts in zip(self.mix, self.norms, self.experts, strict=True):
            h = h + mix(h.transpose(1, 2)).transpose(1, 2)
            out, used = experts(norm(h))
            h, balance = h + out, balance + used
        return self.leave(h), balance


@labelled(cpu="healthy")
def channels_by_experts(run: hoptui.Run, device: str) -> None:
    """A mixture of experts estimates radio channels of 32 antennas from pilots with noise.

    Measured with a timer and one thread, 96 % of an iteration of 0.09 s is in the model, its backward
    pass and its optimizer.
    """
    torch.manual_seed(94)
    model = ChannelExperts(32, 96).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    channels = torch.randn(2000, 32, 2, device=device).cumsum(1) / 4
    while not run.stopping:
        true = channels[torch.randint(0, 2000, (64,), device=device)]
        strength = torch.rand(64, 1, 1, device=device)
        found, balance = model(true + strength * torch.randn_like(true))
        loss = F.mse_loss(found, true) + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        run.log(loss=loss.item(), balance=balance.item(), samples=64)
