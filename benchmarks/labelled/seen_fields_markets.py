"""Trainings for markets: options, portfolios, risks, hedges, and the labels of events."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


def american_put(spot: float, strike: float, rate: float, vol: float, years: float, steps: int) -> float:
    """Return the price of an American put by a binomial tree of Cox, Ross and Rubinstein."""
    dt = years / steps
    up = np.exp(vol * np.sqrt(dt))
    p, discount = (np.exp(rate * dt) - 1 / up) / (up - 1 / up), np.exp(-rate * dt)
    prices = spot * up ** np.arange(-steps, steps + 1, 2.0)
    value = np.maximum(strike - prices, 0.0)
    for _ in range(steps):
        prices = prices[1:] / up  # here
        held = discount * (p * value[1:] + (1 - p) * value[:-1])  # here
        value = np.maximum(held, strike - prices)  # here
    return float(value[0])


@labelled(
    gpu="env-bound",
    cpu="env-bound",
    needs=("stable_baselines3", "gymnasium"),
    adapter=True,
    helpers=(american_put,),
)
def a2c_hedges_american_puts(run: AdapterRun, device: str) -> None:
    """A2C hedges a put that may be exercised early, in an environment which prices it by a tree.

    A tree of 500 levels is 500 times some eight calls of NumPy: more than 3 ms, and the price of today and
    after a shift of the spot make two of them. 4 environments and 8 steps are 32 x 6 ms: more than 190 ms.
    8 choices and one update of a small network need less than 20 ms.
    """
    import gymnasium
    from gymnasium import spaces
    from stable_baselines3 import A2C

    from hoptui.integrations.sb3 import HoptuiCallback

    class PutDesk(gymnasium.Env):  # type: ignore[misc]
        """A desk that is short one put."""

        def __init__(self, levels: int = 500) -> None:
            self.levels = levels
            self.observation_space = spaces.Box(-10.0, 10.0, (4,), np.float32)
            self.action_space = spaces.Box(-1.0, 0.0, (1,), np.float32)

        def _mark(self) -> Any:
            left = (60 - self.day) / 252
            self.price = american_put(self.spot, 100.0, 0.03, 0.25, left, self.levels)  # here
            bumped = american_put(self.spot * 1.01, 100.0, 0.03, 0.25, left, self.levels)  # here
            delta = (bumped - self.price) / (0.01 * self.spot)
            return np.array([self.spot / 100 - 1, left, self.price / 10, delta], np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.spot, self.day = 100.0, 0
            return self._mark(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            spot, price = self.spot, self.price
            self.spot *= float(np.exp(0.25 / 252**0.5 * self.np_random.standard_normal()))
            self.day += 1
            obs = self._mark()
            profit = float(action[0]) * (self.spot - spot) - (self.price - price)
            return obs, -abs(profit), False, self.day >= 50, {}

    from stable_baselines3.common.vec_env import DummyVecEnv

    model = A2C("MlpPolicy", DummyVecEnv([PutDesk] * 4), n_steps=8, device=device)
    model.learn(run.iterations * 32, callback=HoptuiCallback(run.name))


class SPOPlus(torch.autograd.Function):
    """The loss of Elmachtoub and Grigas, which asks for the best decision under a shifted prediction."""

    @staticmethod
    def forward(ctx: Any, predicted: Tensor, true: Tensor, decided: Tensor, desk: Any) -> Tensor:
        shifted = (2 * predicted - true).detach().cpu().double().numpy()
        found = np.stack([desk.decide(row) for row in shifted])  # here
        weights = torch.as_tensor(found, dtype=predicted.dtype, device=predicted.device)
        ctx.save_for_backward(decided, weights)
        regret = ((true - 2 * predicted) * weights).sum(-1) + 2 * (predicted * decided).sum(-1)
        return (regret - (true * decided).sum(-1)).mean()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        decided, weights = ctx.saved_tensors
        return grads[0] * 2 * (decided - weights) / len(weights), None, None, None


class AllocationDesk:
    """Chooses the weights of assets, under limits for sectors and factors."""

    def __init__(self, assets: int, limits: int) -> None:
        rng = np.random.default_rng(0)
        self.exposures = rng.uniform(0.0, 1.0, (limits, assets))
        self.caps = rng.uniform(0.55, 0.65, limits)

    def decide(self, costs: Any) -> Any:
        """Return the weights with the least costs."""
        from scipy.optimize import linprog

        budget = np.ones((1, len(costs)))
        solved = linprog(costs, self.exposures, self.caps, budget, [1.0], (0.0, 0.2))  # here
        return solved.x if solved.x is not None else np.full(len(costs), 1 / len(costs))


@labelled(gpu="host-bound", cpu="host-bound", needs=("scipy",), helpers=(SPOPlus, AllocationDesk))
def portfolios_by_spo_plus(run: hoptui.Run, device: str) -> None:
    """Returns are predicted for the portfolios that follow from them: a linear program for each sample.

    A program of 60 assets and 25 limits takes scipy's `linprog` more than 2 ms, most of it in Python. 48 of
    them are more than 96 ms. A perceptron of width 64 on 48 rows needs less than 8 ms with its step.
    """
    assets, rows = 60, 48
    desk = AllocationDesk(assets, 25)
    signals = torch.randn(512, 20)
    costs = signals @ torch.randn(20, assets) / 5 + 0.3 * torch.randn(512, assets)
    best = torch.tensor(np.stack([desk.decide(c) for c in costs[:192].double().numpy()])).float()
    signals, costs, best = signals[:192].to(device), costs[:192].to(device), best.to(device)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, assets)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    while not run.stopping:
        at = torch.randint(0, 192, (rows,), device=device)
        loss: Tensor = SPOPlus.apply(model(signals[at]), costs[at], best[at], desk)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=rows)


@labelled(gpu="transfer-bound")
def shortfall_of_a_trading_book(run: hoptui.Run, device: str) -> None:
    """Hedges against the expected shortfall. The profits of all scenarios go to the ledger of the auditors.

    98 304 scenarios and 4096 positions are 1.6 GB in float32, which are copied to pageable memory: more than
    80 ms, as it takes less than 20 GB/s. The product with 24 factors is 20 GFLOP, and the profits are read or
    written less than eight times on the GPU: 13 GB, 4 ms. With the rest of the step less than 12 ms.
    """
    scenarios, positions, factors = 98_304, 4096, 24
    shocks = torch.randn(scenarios, factors, device=device)
    loadings = torch.randn(factors, positions, device=device) / factors**0.5
    hedge = nn.Linear(factors, 1, bias=False).to(device)
    optimizer = torch.optim.Adam(hedge.parameters(), lr=1e-2)
    ledger = torch.zeros(scenarios, positions)
    while not run.stopping:
        with torch.no_grad():
            moved = shocks.roll(int(torch.randint(0, scenarios, ())), 0)
            profits = moved @ loadings
        total = profits.mean(-1) + hedge(moved)[:, 0]
        loss = -total.topk(scenarios // 40, largest=False).values.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ledger.copy_(profits)  # here
        run.log(loss=loss.item(), worst=ledger[0, 0].item(), samples=scenarios)


class HestonMarket:
    """Spots and variances of paths, a date at a time."""

    def __init__(self, paths: int, device: str, dt: float = 1 / 252) -> None:
        self.dt, self.device, self.paths = dt, device, paths
        self.spot = torch.ones(paths, 1, device=device)
        self.variance = torch.full((paths, 1), 0.04, device=device)

    def advance(self) -> Tensor:
        """Go to the next date, and return how the spots changed."""
        z, w = torch.randn(2, self.paths, 1, device=self.device)
        vol = (self.variance.clamp(min=1e-6) * self.dt).sqrt()
        change: Tensor = self.spot * vol * z
        self.spot = self.spot + change
        self.variance = (
            self.variance + 2.0 * (0.04 - self.variance) * self.dt + 0.3 * vol * (0.8 * w - 0.6 * z)
        )
        return change


@labelled(gpu="launch-bound", cpu="healthy")
def deep_hedging_of_a_cliquet(run: hoptui.Run, device: str) -> None:
    """A hedge is learned through all dates of an option under Heston's model.

    On a GPU: 150 dates with some 40 operations for the market, the strategy and the costs, and 50 of their
    backward pass: 13 000 operations on 256 paths. They take the host more than 5 microseconds each: more than
    65 ms, and the GPU about 2: 27 ms. On the CPU: 24 dates and 8192 paths with 64 units.
    """
    paths, dates, width = (8192, 24, 64) if device == "cpu" else (256, 150, 32)
    strategy = nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    ).to(device)
    premium = nn.Parameter(torch.zeros((), device=device))
    optimizer = torch.optim.Adam([*strategy.parameters(), premium], lr=1e-3)
    while not run.stopping:
        market = HestonMarket(paths, device)
        held = torch.zeros(paths, 1, device=device)
        wealth, coupon = premium + held, held
        for date in range(dates):
            left = torch.full_like(held, 1 - date / dates)
            wanted = strategy(torch.cat([market.spot.log(), market.variance, held, left], 1))
            wealth = wealth - 5e-4 * (wanted - held).abs() * market.spot
            held = wanted
            before = market.spot
            change = market.advance()
            wealth = wealth + held * change
            coupon = coupon + (change / before).clamp(-0.01, 0.02)
        shortfall = F.relu(coupon - wealth)
        loss = premium.square() + shortfall.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=paths)


class TripleBarriers(IterableDataset[tuple[Tensor, Tensor]]):
    """Windows of prices, with the barrier that is touched first after each of their days."""

    def __init__(self, days: int = 128, horizon: int = 60) -> None:
        self.days, self.horizon = days, horizon
        walk = np.random.default_rng(0).standard_normal(50_000) * 0.01
        self.closes: list[float] = np.exp(np.cumsum(walk - walk.mean())).tolist()

    def touched(self, day: int, width: float) -> int:
        """Return 1 for the upper barrier, 2 for the lower one, and 0 for the end of the horizon."""
        entry = self.closes[day]
        for later in range(day + 1, day + self.horizon):  # here
            change = self.closes[later] / entry - 1  # here
            if change > width:  # here
                return 1
            if change < -width:  # here
                return 2
        return 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rng = random.Random(0)
        while True:
            start = rng.randrange(len(self.closes) - self.days - self.horizon)
            window = self.closes[start : start + self.days]
            mean = sum(window) / len(window)
            spread = (sum((c - mean) ** 2 for c in window) / len(window)) ** 0.5 / mean
            widths = [spread * scale for scale in (1.0, 1.5, 2.0, 3.0)]
            labels = [[self.touched(start + d, w) for w in widths] for d in range(self.days)]  # here
            yield torch.tensor(window), torch.tensor(labels)


@labelled(gpu="data-bound", cpu="data-bound", helpers=(TripleBarriers,))
def labels_of_three_barriers(run: hoptui.Run, device: str) -> None:
    """A worker looks for the barriers of prices, day by day, while a convolution learns to foresee them.

    A window has 128 days and four widths. A barrier is met after some 30 days, each more than 0.1
    microseconds of Python: more than 1.5 ms a window, and more than 140 ms for 96 windows. The network has 16
    channels on 96 x 128 days: less than 15 ms.
    """
    loader = DataLoader(TripleBarriers(), batch_size=96, num_workers=1)
    net = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 12, 5, padding=2)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for closes, labels in loader:  # here
        prices = closes.to(device)[:, None]
        scores = net(prices / prices.mean(-1, keepdim=True) - 1).unflatten(1, (3, 4))
        loss = F.cross_entropy(scores, labels.to(device).transpose(1, 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=len(closes))
        if run.stopping:
            break
