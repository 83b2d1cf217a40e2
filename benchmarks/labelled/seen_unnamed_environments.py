"""Loads of the second lot that was held out once: they wait for environments."""

from __future__ import annotations

import heapq
import math
import multiprocessing
import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled

Cell = tuple[int, int]


class Market:
    """An exchange with a book of limit orders, and many traders who do not think."""

    def __init__(self) -> None:
        self.asks: list[tuple[float, int]] = []
        self.bids: list[tuple[float, int]] = []
        self.price, self.stock, self.money = 100.0, 0, 0.0

    def trade(self) -> None:
        """Execute what the best bid and the best ask agree on."""
        while self.asks and self.bids and -self.bids[0][0] >= self.asks[0][0]:  # here
            ask, seller = heapq.heappop(self.asks)  # here
            bid, buyer = heapq.heappop(self.bids)  # here
            self.price = (ask - bid) / 2  # here
            self.stock += (buyer == 0) - (seller == 0)  # here
            self.money += self.price * ((seller == 0) - (buyer == 0))  # here

    def open_for_a_minute(self, spread: float) -> list[float]:
        """Let everybody trade, with quotes of this spread by the market maker."""
        heapq.heappush(self.asks, (self.price + spread, 0))
        heapq.heappush(self.bids, (spread - self.price, 0))
        for trader in range(1, 150):  # here
            limit = self.price * (1 + random.gauss(0, 0.01))  # here
            if random.random() < 0.5:  # here
                heapq.heappush(self.asks, (limit, trader))  # here
            else:
                heapq.heappush(self.bids, (-limit, trader))  # here
            self.trade()  # here
        self.asks, self.bids = heapq.nsmallest(40, self.asks), heapq.nsmallest(40, self.bids)  # here
        return [self.price / 100, self.stock / 10, len(self.asks) / 40, len(self.bids) / 40]


class MarketMaker(nn.Module):
    """Chooses how far apart the quotes are."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def trade_a_day(self, device: str) -> tuple[Tensor, float]:
        """Return the log-probabilities of the spreads, and what was won."""
        market, seen, likely = Market(), [1.0, 0.0, 0.0, 0.0], []
        for _ in range(20):
            chosen = torch.distributions.Normal(self.mean(torch.tensor(seen, device=device)), 0.1)
            spread = chosen.sample()
            likely.append(chosen.log_prob(spread))
            for _ in range(30):
                seen = market.open_for_a_minute(abs(spread.item()))
        return torch.cat(likely), market.money + market.stock * market.price


@labelled(gpu="env-bound", cpu="env-bound", helpers=(Market,))
def quotes_of_a_market_maker(run: hoptui.Run, device: str) -> None:
    """Finance: a simulated exchange with an order book, and a policy gradient after each day."""
    maker = MarketMaker().to(device)
    optimizer = torch.optim.Adam(maker.parameters(), 1e-3)
    while not run.stopping:
        likely, won = maker.trade_a_day(device)
        loss = -likely.sum() * max(-1.0, min(1.0, won / 100))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(won=won, samples=20)


class Warehouse:
    """Robots that carry boxes between shelves, and must not run into each other."""

    def __init__(self, robots: int = 100, size: int = 36) -> None:
        self.size = size
        free = [(x, y) for x in range(size) for y in range(size)]
        self.robots = random.sample(free, robots)
        self.goals = random.sample(free, robots)

    def crowd(self, at: Cell) -> int:
        """How many robots are near."""
        return sum(abs(at[0] - x) + abs(at[1] - y) < 4 for x, y in self.robots)  # here

    def tick(self, directions: list[int]) -> tuple[list[list[float]], int]:
        """Move each robot if its way is free. Return what each of them sees, and how many arrived."""
        taken, arrived = set(self.robots), 0
        for i, direction in enumerate(directions):
            dx, dy = ((1, 0), (-1, 0), (0, 1), (0, -1))[direction]
            x, y = self.robots[i]
            there = (x + dx) % self.size, (y + dy) % self.size
            if there not in taken:
                taken.discard((x, y))
                taken.add(there)
                self.robots[i] = there
            if self.robots[i] == self.goals[i]:
                self.goals[i] = random.randrange(self.size), random.randrange(self.size)
                arrived += 1
        seen: list[list[float]] = [
            [gx - x, gy - y, *(self.crowd((x + dx, y + dy)) for dx in (-2, 0, 2) for dy in (-2, 0, 2))]
            for (x, y), (gx, gy) in zip(self.robots, self.goals, strict=True)
        ]
        return seen, arrived


@labelled(gpu="env-bound", cpu="env-bound", helpers=(Warehouse,))
def robots_of_a_warehouse(run: hoptui.Run, device: str) -> None:
    """Many agents with one Q-function, and a buffer of what they saw."""
    net = nn.Sequential(nn.Linear(11, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    optimizer, memory = torch.optim.Adam(net.parameters()), deque[tuple[Tensor, Tensor, int]](maxlen=500)
    warehouse = Warehouse()
    seen, _ = warehouse.tick([0] * 100)
    while not run.stopping:
        with run.phase("shift"):
            for _ in range(4):
                now = torch.tensor(seen, dtype=torch.float32, device=device)
                with torch.no_grad():
                    chosen = net(now).argmax(1)
                seen, arrived = warehouse.tick(chosen.tolist())
                memory.append((now, chosen, arrived))
        past, taken, score = random.choice(memory)
        value = net(past).gather(1, taken[:, None])
        loss = (value - score / 100).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(td=loss.item(), arrived=arrived, samples=400)


class PowerGrid:
    """Stations and lines of a grid, whose flow is found by the method of Newton."""

    def __init__(self, stations: int = 160) -> None:
        rng = np.random.default_rng(4)
        lines = np.triu(rng.random((stations, stations)) < 0.05, 1) * rng.uniform(1, 4, (stations, stations))
        self.lines = lines + lines.T + np.eye(stations)
        self.demand = rng.normal(0, 0.05, stations)

    def dispatch(self, power: Any) -> Any:
        """Return the angles at which the lines carry this power."""
        angles = np.zeros(len(power))
        wanted = power - power.mean() + self.demand
        for _ in range(4):
            between = angles[:, None] - angles[None]  # here
            flow = (self.lines * np.sin(between)).sum(1)  # here
            slope = -self.lines * np.cos(between)  # here
            slope[np.diag_indices_from(slope)] += 1e-3 - slope.sum(1)  # here
            angles += np.linalg.solve(slope, wanted - flow)  # here
        self.demand += np.random.normal(0, 0.01, len(power))
        return angles


@labelled(gpu="env-bound", cpu="env-bound", helpers=(PowerGrid,))
def dispatcher_of_a_power_grid(run: hoptui.Run, device: str) -> None:
    """Actor and critic for the load flow of a grid, with phases in the words of engineers."""
    actor, critic = nn.Linear(160, 160).to(device), nn.Linear(160, 1).to(device)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 1e-3)
    grid, angles = PowerGrid(), np.zeros(160)
    while not run.stopping:
        states, strain = [], []
        with run.phase("operate the grid"):
            for _ in range(8):
                states.append(torch.from_numpy(angles).float())
                with torch.no_grad():
                    power = actor(states[-1].to(device)).cpu().numpy()
                angles = grid.dispatch(0.1 * np.tanh(power))
                strain.append(float(np.abs(angles).max()))
        with run.phase("improve the dispatcher"):
            seen = torch.stack(states).to(device)
            better = critic(seen)[:, 0] + torch.tensor(strain, device=device)
            loss = better.square().mean() + (actor(seen).tanh().mean(1) * better.detach()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        run.log(loss=loss.item(), strain=max(strain), samples=8)


def serve_a_day(weights: list[float], seed: int) -> tuple[list[float], float]:
    """Simulate the elevators of a building for a day. Return features of the decisions, and the waiting."""
    rng, floors, calls, waited = random.Random(seed), [0, 10, 20], deque[tuple[int, int]](), 0.0
    total = [0.0] * 3
    for second in range(12_000):
        if rng.random() < 0.2:
            calls.append((second, rng.randrange(30)))
        if calls and second % 4 == 0:
            since, floor = calls.popleft()
            features = [[abs(at - floor) / 30, math.sin(at), rng.random()] for at in floors]
            cost = [sum(w * x for w, x in zip(weights, each, strict=True)) for each in features]
            car = cost.index(min(cost))
            waited += second - since + abs(floors[car] - floor)
            floors[car], total = floor, [a + b for a, b in zip(total, features[car], strict=True)]
    return total, waited / 1000


@labelled(gpu="env-bound", cpu="env-bound")
def elevators_in_other_processes(run: hoptui.Run, device: str) -> None:
    """A learner that hands its weights to a pool, and waits until six days have been simulated."""
    chooser = nn.Linear(3, 1, bias=False).to(device)
    optimizer = torch.optim.SGD(chooser.parameters(), 1e-3)

    def days(pool: ProcessPoolExecutor) -> Iterator[tuple[list[float], float]]:
        weights = chooser.weight[0].tolist()
        yield from pool.map(serve_a_day, [weights] * 6, random.sample(range(10**6), 6))  # here

    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        while not run.stopping:
            with run.phase("six days"):
                features, waited = zip(*days(pool), strict=True)  # here
            x, y = (torch.tensor(each, device=device) for each in (features, waited))
            loss = (chooser(x / 1000)[:, 0] * (y - y.mean())).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(waited=y.mean().item(), samples=6)


@labelled(cpu="env-bound")
def acrobats_of_gymnasium(run: hoptui.Run, device: str) -> None:
    """A2C with a vector of environments of Gymnasium."""
    import gymnasium

    acrobats = gymnasium.make_vec("Acrobot-v1", num_envs=64, vectorization_mode="sync")
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.RMSprop(net.parameters(), 7e-4)
    seen, _ = acrobats.reset(seed=1)
    while not run.stopping:
        terms = []
        for _ in range(5):
            *logits, value = net(torch.from_numpy(seen).to(device)).unbind(1)
            policy = torch.distributions.Categorical(logits=torch.stack(logits, 1))
            chosen = policy.sample()
            seen, reward, *_ = acrobats.step(chosen.cpu().numpy())  # here
            better = torch.from_numpy(reward).float().to(device) - value
            terms.append(better.square() - policy.log_prob(chosen) * better.detach())
        loss = torch.stack(terms).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), env_steps=320, samples=320)
    acrobats.close()
