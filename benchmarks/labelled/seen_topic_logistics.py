"""Trainings for logistics: the hold of a ship, a harbour, tours, demand, and roads."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import heapq
import json
import multiprocessing
import random
import socket
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


def _hold() -> Any:
    import gymnasium
    from gymnasium import spaces

    class Hold(gymnasium.Env):  # type: ignore[misc]
        """The hold of a ship, into which boxes are put where they lie flat."""

        length, width, height = 24, 20, 18
        observation_space = spaces.Box(0.0, 1.0, (24 * 20 + 3,), np.float32)
        action_space = spaces.Discrete(6)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.tops = [[0] * self.width for _ in range(self.length)]
            return self.seen(), {}

        def seen(self) -> Any:
            self.box = self.np_random.integers(2, 8, 3).tolist()
            tops = [top for row in self.tops for top in row]
            return np.array([*tops, *self.box], np.float32) / self.height

        def places(self, x: int, y: int) -> list[tuple[float, int, int, int]]:
            """Return where a box of this base could lie, with how much room is lost under it."""
            found = []
            for i in range(self.length - x + 1):  # here
                for j in range(self.width - y + 1):  # here
                    base = [top for row in self.tops[i : i + x] for top in row[j : j + y]]  # here
                    level = max(base)  # here
                    lost = level * len(base) - sum(base)  # here
                    found.append((lost + 0.1 * level, i, j, level))  # here
            return found  # here

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            turned = sorted(self.box, key=lambda side: (side * (int(action) + 1)) % 7)
            x, y, z = turned
            lost, i, j, level = min(min(self.places(x, y)), min(self.places(x, y)[::-1]))  # here
            if level + z > self.height:
                return self.seen(), -1.0, True, False, {}
            for row in self.tops[i : i + x]:
                row[j : j + y] = [level + z] * y
            return self.seen(), x * y * z / 200 - 0.01 * lost, False, False, {}

    return Hold


@labelled(gpu="env-bound", cpu="env-bound", needs=("gymnasium",), helpers=(_hold,))
def reinforce_stows_a_hold(run: hoptui.Run, device: str) -> None:
    """REINFORCE turns boxes, in four environments of gymnasium that look for the best place of each.

    A box has more than 300 places, which are looked at twice: more than 600 of more than 2 microseconds, so
    more than 1.2 ms. 24 steps of four environments take more than 115 ms. The policy is asked 24 times, less
    than 0.6 ms each, and its update with 96 states of 483 numbers needs less than 6 ms.
    """
    import gymnasium

    envs = gymnasium.vector.SyncVectorEnv([_hold()] * 4)
    policy = nn.Sequential(nn.Linear(24 * 20 + 3, 64), nn.Tanh(), nn.Linear(64, 6)).to(device)
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-3)
    state, _ = envs.reset(seed=11)
    while not run.stopping:
        log_probs, rewards, alive = [], [], []
        for _ in range(24):
            logits = policy(torch.as_tensor(state, device=device))
            choice = torch.distributions.Categorical(logits=logits, validate_args=False)
            action = choice.sample()
            state, reward, over, _, _ = envs.step(action.cpu().numpy())  # here
            log_probs.append(choice.log_prob(action))
            rewards.append(torch.as_tensor(reward, dtype=torch.float32))
            alive.append(torch.as_tensor(~over, dtype=torch.float32))
        gain, gains = torch.zeros(4), []
        for reward_t, alive_t in zip(reversed(rewards), reversed(alive), strict=True):
            gain = reward_t + 0.97 * gain * alive_t
            gains.append(gain)
        returns = torch.stack(gains[::-1]).to(device)
        advantage = (returns - returns.mean()) / (returns.std() + 1e-6)
        loss = -(torch.stack(log_probs) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), env_steps=96)


class Harbour:
    """Ships come to berths, are worked on by cranes, and go. Time goes from event to event."""

    def __init__(self, berths: int = 6, seed: int = 0) -> None:
        self.rng, self.clock, self.waiting = random.Random(seed), 0.0, 0
        self.events: list[tuple[float, int, str]] = [(0.0, -1, "arrival")]
        self.left = [0] * berths
        self.speed = [1.0] * berths

    def advance(self, events: int) -> list[float]:
        """Go on by some events, and return how busy the berths are."""
        for _ in range(events):  # here
            self.clock, berth, kind = heapq.heappop(self.events)  # here
            if kind == "arrival":  # here
                free = [n for n, left in enumerate(self.left) if left == 0]  # here
                if free:  # here
                    berth = self.rng.choice(free)  # here
                    self.left[berth] = self.rng.randint(20, 60)  # here
                    heapq.heappush(self.events, (self.clock + 0.05, berth, "lift"))  # here
                else:
                    self.waiting += 1
                heapq.heappush(self.events, (self.clock + self.rng.expovariate(0.8), -1, "arrival"))  # here
            else:
                self.left[berth] -= 1  # here
                if self.left[berth] > 0:  # here
                    lasts = self.rng.gammavariate(4.0, 0.02) / self.speed[berth]  # here
                    heapq.heappush(self.events, (self.clock + lasts, berth, "lift"))  # here
        late, self.waiting = self.waiting, 0
        return [*(left / 60 for left in self.left), float(late)]


def serve_harbour(connection: socket.socket, other: socket.socket, events: int) -> None:
    """Answer orders, a line of JSON each, until the other side hangs up."""
    other.close()
    harbour = Harbour()
    with connection, connection.makefile("rw") as lines:
        for line in lines:
            harbour.speed = [0.5 + share for share in json.loads(line)]
            lines.write(json.dumps(harbour.advance(events)) + "\n")  # here
            lines.flush()


class HarbourClient:
    """Speaks with a harbour in another process."""

    def __init__(self, events: int) -> None:
        here, there = socket.socketpair()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=serve_harbour, args=(there, here, events), daemon=True)
        self.process.start()
        there.close()
        self.socket, self.lines = here, here.makefile("rw")

    def work(self, cranes: list[float]) -> list[float]:
        """Give the berths their shares of the cranes, and return what is seen after a while."""
        self.lines.write(json.dumps(cranes) + "\n")
        self.lines.flush()
        answer: list[float] = json.loads(self.lines.readline())  # here
        return answer

    def close(self) -> None:
        """Hang up."""
        self.lines.close()
        self.socket.close()
        self.process.join(2)


@labelled(gpu="env-bound", cpu="env-bound", helpers=(Harbour, serve_harbour, HarbourClient))
def cranes_of_a_harbour(run: hoptui.Run, device: str) -> None:
    """A policy gives cranes to the berths of a harbour, which is simulated behind a socket.

    An order goes over 5000 events of more than 0.8 microseconds in Python: more than 4 ms. An episode of 24
    orders takes more than 96 ms. The policy is asked 24 times, less than 0.6 ms each, and its update with 24
    states needs less than 4 ms.
    """
    harbour = HarbourClient(5000)
    policy = nn.Sequential(nn.Linear(7, 32), nn.Tanh(), nn.Linear(32, 6)).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    seen = [0.0] * 7
    while not run.stopping:
        log_probs, costs = [], []
        for _ in range(24):
            alpha = F.softplus(policy(torch.tensor(seen, device=device))) + 0.5
            shares = torch.distributions.Dirichlet(alpha, validate_args=False)
            chosen = shares.sample()
            seen = harbour.work(chosen.tolist())  # here
            log_probs.append(shares.log_prob(chosen))
            costs.append(seen[-1])
        cost = torch.tensor(costs, device=device).flip(0).cumsum(0).flip(0)
        loss = (torch.stack(log_probs) * (cost - cost.mean()) / (cost.std() + 1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), late=sum(costs), env_steps=24)
    harbour.close()


def two_opt(tour: list[int], far: list[list[float]], sweeps: int) -> list[int]:
    """Shorten a tour by turning parts of it around."""
    size = len(tour)
    for _ in range(sweeps):
        better = False
        for i in range(1, size - 2):  # here
            before, first = tour[i - 1], tour[i]  # here
            row, head = far[before], far[before][first]  # here
            for j in range(i + 1, size - 1):  # here
                last, after = tour[j], tour[j + 1]  # here
                if row[last] + far[first][after] < head + far[last][after] - 1e-9:  # here
                    tour[i : j + 1] = tour[i : j + 1][::-1]  # here
                    first = tour[i]  # here
                    head, better = row[first], True  # here
        if not better:  # here
            break
    return tour  # here


class Heatmap(nn.Module):
    """Scores the edges between the stops of a tour."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stop = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width))
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, stops: Tensor) -> Tensor:
        h = self.stop(stops)
        h = h + h.mean(1, keepdim=True)
        scores: Tensor = self.query(h) @ self.key(h).transpose(1, 2) / h.shape[-1] ** 0.5
        return scores - 5 * torch.cdist(stops, stops)


def greedy_tour(scores: list[list[float]]) -> list[int]:
    """Go to the best stop that was not visited."""
    tour, left = [0], set(range(1, len(scores)))
    while left:
        tour.append(max(left, key=scores[tour[-1]].__getitem__))  # here
        left.discard(tour[-1])
    return tour


@labelled(
    gpu="host-bound",
    cpu="host-bound",
    needs=("accelerate",),
    adapter=True,
    helpers=(two_opt, greedy_tour),
)
def tours_improved_by_two_opt(run: AdapterRun, device: str) -> None:
    """With accelerate: a network is taught by its own tours, after a local search has made them better.

    A sweep of 2-opt over 60 stops looks at 1650 pairs, each more than 0.12 microseconds in Python: more than
    0.2 ms. A tour needs more than five sweeps: more than 1 ms with the greedy tour, and 80 tours more than 80
    ms. The network of width 32 with 80 x 60 stops needs less than 20 ms.
    """
    from accelerate import Accelerator

    from hoptui.integrations.accelerate import HoptuiTracker

    accelerator = Accelerator(cpu=device == "cpu", log_with=HoptuiTracker())
    model: Any = Heatmap(32)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.init_trackers(run.name)
    tracked, step, tours = accelerator.get_tracker("hoptui").tracker, 0, 80
    while step < run.iterations and not tracked.stopping:
        stops = torch.rand(tours, 60, 2, device=accelerator.device)
        scores = model(stops)
        distances = torch.cdist(stops, stops).tolist()
        found = []
        for row, far in zip(scores.tolist(), distances, strict=True):
            found.append(two_opt(greedy_tour(row), far, sweeps=20))  # here
        tour = torch.tensor(found, device=accelerator.device)
        following = torch.empty_like(tour).scatter_(1, tour, tour.roll(-1, 1))
        loss = F.cross_entropy(scores.transpose(1, 2), following)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        accelerator.log({"loss": loss.item()}, step=step)
    accelerator.end_training()


class BoostedResiduals:
    """What a network does not explain is left to boosted trees, which are fitted anew each time."""

    def __init__(self, trees: int, rows: int) -> None:
        self.trees, self.rows = trees, rows
        self.features: list[Any] = []
        self.residuals: list[Any] = []

    def refit(self, features: Tensor, residuals: Tensor) -> float:
        """Fit the trees to the last rows, and return how much of them is explained."""
        from sklearn.ensemble import GradientBoostingRegressor

        self.features = [*self.features, features.cpu().numpy()][-self.rows // len(features) :]
        self.residuals = [*self.residuals, residuals.cpu().numpy()][-self.rows // len(features) :]
        x, y = np.concatenate(self.features), np.concatenate(self.residuals)
        forest = GradientBoostingRegressor(n_estimators=self.trees, max_depth=3, subsample=0.8)
        return float(forest.fit(x, y).score(x[-512:], y[-512:]))  # here


@labelled(gpu="host-bound", cpu="host-bound", needs=("sklearn",), helpers=(BoostedResiduals,))
def demand_with_boosted_residuals(run: hoptui.Run, device: str) -> None:
    """The demand of depots is predicted by a network, and scikit-learn's trees explain the rest of it.

    50 trees of depth 3 are fitted to 2048 rows with 12 features on one thread: more than 2 ms each, so more
    than 100 ms. A perceptron of width 64 with 256 rows needs less than 6 ms with its step.
    """
    net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.NAdam(net.parameters(), lr=1e-3)
    boosted = BoostedResiduals(50, 2048)
    history = torch.randn(20_000, 12, device=device)
    while not run.stopping:
        rows = history[torch.randint(0, len(history), (256,), device=device)]
        demand = rows[:, 0] * rows[:, 1] + rows[:, 2].abs() + 0.1 * torch.randn_like(rows[:, 3])
        predicted = net(rows)[:, 0]
        loss = F.smooth_l1_loss(predicted, demand)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        explained = boosted.refit(rows, (demand - predicted).detach())  # here
        run.log(loss=loss.item(), explained=explained, samples=256)


class RoadNetwork:
    """Crossings with four roads each, and what a vehicle expects to spend from each of them."""

    def __init__(self, crossings: int, device: str) -> None:
        self.crossings, self.device = crossings, device
        with torch.device(device):
            self.roads = torch.randint(0, crossings, (4 * crossings,), dtype=torch.int32)
            self.minutes = torch.rand(4 * crossings)
            self.expected = torch.zeros(crossings)

    def drive(self, at: Tensor, lr: float, gamma: float = 0.95) -> tuple[Tensor, Tensor]:
        """Go along a random road from each crossing, and learn by the temporal difference."""
        road = at * 4 + torch.randint(0, 4, at.shape, dtype=torch.int32, device=self.device)
        to = self.roads.index_select(0, road)
        error = self.minutes.index_select(0, road) + gamma * self.expected.index_select(0, to)
        error -= self.expected.index_select(0, at)
        self.expected.index_add_(0, at, error, alpha=lr)
        return to, error


@labelled(gpu="memory-latency-bound", cpu="healthy")
def vehicles_on_a_road_network(run: hoptui.Run, device: str) -> None:
    """The costs to go on a network of roads are learned by vehicles that drive around in it.

    On a GPU: 100 million crossings, so tables of 1.6, 1.6 and 0.4 GB. 16 million vehicles read or write four
    bytes at five random places in each of 24 steps: 1.9 billion, more than 50 ms. What is read or written in
    order is less than 1.2 GB a step: 29 GB, 8 ms. On the CPU: 1 million crossings and 12 steps of 150 000
    vehicles.
    """
    cpu = device == "cpu"
    crossings, vehicles, steps = (1_000_000, 150_000, 12) if cpu else (100_000_000, 1 << 24, 24)
    network = RoadNetwork(crossings, device)
    at = torch.randint(0, crossings, (vehicles,), dtype=torch.int32, device=device)
    while not run.stopping:
        for _ in range(steps):
            at, error = network.drive(at, lr=0.1)
        run.log(loss=error.square().mean().item(), samples=steps * vehicles)
