"""Trainings for insurance: a book of policies, scores in a file, claims, and prices on a market."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled


class AliasSampler:
    """Draws policies by their exposure with the alias method of Walker."""

    def __init__(self, policies: int, device: str) -> None:
        self.policies, self.device = policies, device
        with torch.device(device):
            self.keep = torch.rand(policies)
            self.alias = torch.randint(0, policies, (policies,), dtype=torch.int32)

    def draw(self, number: int) -> Tensor:
        """Return the numbers of some policies."""
        first = torch.randint(0, self.policies, (number,), dtype=torch.int32, device=self.device)
        keep = torch.rand(number, device=self.device) < self.keep.index_select(0, first)
        return torch.where(keep, first, self.alias.index_select(0, first))


@labelled(gpu="memory-latency-bound", cpu="healthy")
def frailties_of_single_policies(run: hoptui.Run, device: str) -> None:
    """A logit for each policy is learned from policies that are drawn by their exposure.

    On a GPU: 400 million policies, so four tables of 1.6 GB. 16 million draws look up or change four bytes at
    five random places: 1.7 billion in 20 rounds, more than 45 ms at 38 billion a second. What is read or
    written in order is some 90 bytes a draw: 30 GB, less than 8 ms. On the CPU: 2 million policies, and 8
    rounds of 100 000 draws.
    """
    cpu = device == "cpu"
    policies, draws, rounds = (2_000_000, 100_000, 8) if cpu else (400_000_000, 1 << 24, 20)
    sampler = AliasSampler(policies, device)
    with torch.device(device):
        frailty = torch.zeros(policies)
        claimed = torch.rand(policies).round_()
    while not run.stopping:
        for _ in range(rounds):
            drawn = sampler.draw(draws)
            error = torch.sigmoid(frailty.index_select(0, drawn)) - claimed.index_select(0, drawn)
            frailty.index_add_(0, drawn, error, alpha=-0.1)
        run.log(loss=error.abs().mean().item(), samples=rounds * draws)


def export_scores(scores: Tensor, path: Path) -> None:
    """Write the scores of a book of policies to a table in Parquet, for the actuaries."""
    pd: Any = importlib.import_module("pandas")

    perils = ["fire", "water", "storm", "hail", "theft", "glass", "liability", "legal"]
    table = pd.DataFrame(scores.cpu().numpy(), columns=perils)
    table.insert(0, "policy", np.arange(len(table)))
    table.to_parquet(path, compression="zstd")  # here


@labelled(
    gpu="save-bound",
    cpu="save-bound",
    needs=("pandas", "pyarrow"),
    helpers=(export_scores,),
)
def scores_of_a_book_as_parquet(run: hoptui.Run, device: str) -> None:
    """The premium of each peril is learned, and after each step the whole book is scored and written.

    800 000 policies with eight scores are 26 MB in float32, and 6 MB of numbers. pyarrow encodes, compresses
    and writes them at less than 250 MB/s: more than 120 ms. To score the book and to bring it to the host
    takes less than 15 ms, and the step with 2048 policies less than 4 ms. On the CPU, the scores are a
    product with one matrix: less than 15 ms.
    """
    policies = 800_000
    book = torch.rand(policies, 6, device=device)
    rates = nn.Linear(6, 8).to(device)
    optimizer = torch.optim.SGD(rates.parameters(), lr=0.05)
    with tempfile.TemporaryDirectory() as folder:
        step = 0
        while not run.stopping:
            policy = book[torch.randint(0, policies, (2048,), device=device)]
            claims = torch.poisson(policy.sum(1, keepdim=True).expand(-1, 8) / 3)
            loss = F.poisson_nll_loss(rates(policy), claims)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            with torch.no_grad():
                export_scores(rates(book), Path(folder, f"scores-{step % 3}.parquet"))  # here
            run.log(loss=loss.item(), samples=2048)


class SeverityRegressor:
    """An estimator in the manner of skorch, for the severity of claims. It works on the device given."""

    def __init__(self, features: int, hidden: int, lr: float = 1e-3, device: str = "cpu") -> None:
        self.device = device
        self.module = nn.Sequential(
            nn.Linear(features, hidden),
            nn.SELU(),
            nn.Linear(hidden, hidden),
            nn.SELU(),
            nn.Linear(hidden, hidden),
            nn.SELU(),
            nn.Linear(hidden, 2),
        ).to(device)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=lr)

    def partial_fit(self, x: Any, y: Any) -> float:
        """Learn from some claims once, and return the loss."""
        inputs = torch.as_tensor(x, device=self.device)
        severity = torch.as_tensor(y, device=self.device)
        mean, log_scale = self.module(inputs).unbind(-1)  # here
        loss = F.gaussian_nll_loss(mean, severity, log_scale.clamp(-4, 4).exp())
        self.optimizer.zero_grad()
        loss.backward()  # here
        self.optimizer.step()  # here
        return loss.item()


@labelled(gpu="wrong-device", cpu="healthy", helpers=(SeverityRegressor,))
def severities_by_an_estimator(run: hoptui.Run, device: str) -> None:
    """The severity of claims is learned by an estimator whose device is the CPU, unless one asks for another.

    The script prints which device there is, but never passes it on. Two layers of 2048 x 2048 and 512 claims
    are 27 GFLOP with the backward pass: more than 25 ms on the CPU. The claims are made in less than 2 ms.
    """
    print(f"using {device}")
    regressor = SeverityRegressor(features=48, hidden=2048)  # here
    rng = np.random.default_rng(19)
    while not run.stopping:
        claims = rng.standard_normal((512, 48), dtype=np.float32)
        severity = np.log1p(np.abs(claims[:, 0])) + claims[:, 1] * 0.2
        loss = regressor.partial_fit(claims, severity)  # here
        run.log(loss=loss, samples=512)


def _market(customers: int) -> Any:
    import gymnasium
    from gymnasium import spaces

    class MarketEnv(gymnasium.Env):  # type: ignore[misc]
        """Customers compare the prices of four insurers each year. One of the insurers learns."""

        observation_space = spaces.Box(-10.0, 10.0, (9,), np.float32)
        action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            risks = self.np_random.gamma(2.0, 0.5, customers).tolist()
            loyal = self.np_random.uniform(0.0, 0.3, customers).tolist()
            self.customers = list(zip(risks, loyal, strict=True))
            self.insurer = [n % 4 for n in range(customers)]
            self.others = [1.1, 1.2, 1.3]
            return np.zeros(9, np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            base, by_risk, discount = (1.0 + 0.5 * float(part) for part in action)
            chosen, profit = [0, 0, 0, 0], 0.0
            draws = self.np_random.random(customers).tolist()
            for n, (risk, loyal) in enumerate(self.customers):  # here
                own = 0.4 * base + by_risk * risk  # here
                stays = self.insurer[n]  # here
                best, cheapest = 0, own * (1 - 0.1 * discount) if stays == 0 else own  # here
                for other, factor in enumerate(self.others, 1):  # here
                    price = 0.4 + factor * risk - (loyal if stays == other else 0.0)  # here
                    if price < cheapest:  # here
                        best, cheapest = other, price  # here
                self.insurer[n] = best  # here
                chosen[best] += 1  # here
                if best == 0:  # here
                    profit += cheapest + risk * math.log(draws[n] + 1e-9)  # here
            self.others = [
                max(0.8, factor + (0.02 if count > customers / 4 else -0.02))
                for factor, count in zip(self.others, chosen[1:], strict=True)
            ]
            seen = [*(count / customers for count in chosen), *self.others, profit / customers, 1.0]
            return np.array(seen, np.float32).clip(-10, 10), profit / customers, False, False, {}

    return MarketEnv


@labelled(gpu="env-bound", cpu="env-bound", needs=("gymnasium",), helpers=(_market,))
def premiums_on_a_market(run: hoptui.Run, device: str) -> None:
    """An actor and a critic set the premiums of an insurer in an environment of gymnasium with its wrappers.

    A year asks 12 000 customers, who compare four prices: more than 0.3 microseconds in Python each, so more
    than 3.6 ms. 20 years take more than 70 ms. The actor is asked 20 times, less than 0.5 ms each, and the
    update with 20 years needs less than 5 ms.
    """
    import gymnasium

    market: Any = gymnasium.wrappers.TimeLimit(_market(12_000)(), max_episode_steps=20)
    market = gymnasium.wrappers.RecordEpisodeStatistics(market)
    actor = nn.Sequential(nn.Linear(9, 48), nn.Tanh(), nn.Linear(48, 3), nn.Tanh()).to(device)
    critic = nn.Sequential(nn.Linear(9, 48), nn.Tanh(), nn.Linear(48, 1)).to(device)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
    episode = 0
    while not run.stopping:
        seen, _ = market.reset(seed=episode)
        states, actions, rewards, over = [], [], [], False
        while not over:
            state = torch.as_tensor(seen, device=device)
            with torch.no_grad():
                action = (actor(state) + 0.2 * torch.randn(3, device=device)).clamp(-1, 1)
            seen, reward, ended, cut, _ = market.step(action.cpu().numpy())  # here
            over = ended or cut
            states.append(state)
            actions.append(action)
            rewards.append(float(reward))
        returns = torch.tensor(rewards, device=device).flip(0).cumsum(0).flip(0)
        batch = torch.stack(states)
        value = critic(batch)[:, 0]
        distance = (torch.stack(actions) - actor(batch)).square().sum(-1) / 0.08
        loss = ((returns - value).detach() * distance).mean() + F.mse_loss(value, returns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        episode += 1
        run.log(loss=loss.item(), profit=sum(rewards), env_steps=len(rewards))
