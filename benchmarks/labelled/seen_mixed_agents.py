"""Agents whose environments take long: chemistry, networks and board games."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


def reaction(t: float, y: Any, heating: float) -> list[float]:
    """Return the rates of change of three substances and the temperature in a stirred tank."""
    a, b, c, temperature = y
    k1 = 7.2e2 * math.exp(-2.5e3 / temperature)  # here
    k2 = 1.1e3 * math.exp(-3.1e3 / temperature)  # here
    made, lost = k1 * a * b, k2 * c  # here
    heat = 30.0 * made - 8.0 * lost + heating - 0.4 * (temperature - 300.0)  # here
    return [lost - made + 0.1 * (1 - a), lost - made + 0.1 * (1 - b), made - lost - 0.1 * c, heat]  # here


def _tank() -> Any:
    import gymnasium
    from gymnasium import spaces
    from scipy.integrate import solve_ivp

    class StirredTank(gymnasium.Env):  # type: ignore[misc]
        """A reactor whose heating is chosen."""

        def __init__(self) -> None:
            self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
            self.action_space = spaces.Discrete(3)

        def _obs(self) -> Any:
            return (self.y * np.array([1, 1, 1, 1 / 300])).astype(np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.y, self.t = np.array([1.0, 1.0, 0.0, 300.0 + 10 * self.np_random.random()]), 0
            return self._obs(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            heating = (0.0, 20.0, 40.0)[int(action)]
            span = (0.0, 2.0)
            sol = solve_ivp(reaction, span, self.y, args=(heating,), rtol=1e-8, max_step=0.02)  # here
            self.y = sol.y[:, -1]
            self.t += 1
            return self._obs(), float(self.y[2]), False, self.t >= 50, {}

    return StirredTank


def layer_init(layer: nn.Linear, std: float = math.sqrt(2)) -> nn.Linear:
    """Initialize as CleanRL does."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


@labelled(gpu="env-bound", cpu="env-bound", needs=("gymnasium", "scipy"), helpers=(reaction, _tank))
def ppo_heats_a_tank(run: hoptui.Run, device: str) -> None:
    """CleanRL's PPO with two tanks in a SyncVectorEnv, whose equations are solved by scipy in each step.

    A step of a tank is 100 steps of Runge-Kutta with six evaluations: more than 8 ms. Two tanks and 8
    steps are more than 130 ms. Eight choices of the policy and four updates of 4 rows need less than 25
    ms.
    """
    import gymnasium

    num_envs, num_steps = 2, 8
    envs = gymnasium.vector.SyncVectorEnv([_tank() for _ in range(num_envs)])
    actor = nn.Sequential(layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 3), 0.01)).to(
        device
    )
    critic = nn.Sequential(layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 1), 1.0)).to(
        device
    )
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=2.5e-4, eps=1e-5)
    next_obs, _ = envs.reset(seed=1)
    while not run.stopping:
        obs, actions, logprobs, rewards = [], [], [], []
        for _ in range(num_steps):
            ob = torch.as_tensor(next_obs, dtype=torch.float32, device=device)
            with torch.no_grad():
                probs = Categorical(logits=actor(ob), validate_args=False)
                action = probs.sample()
            obs.append(ob)
            actions.append(action)
            logprobs.append(probs.log_prob(action))
            next_obs, reward, _, _, _ = envs.step(action.cpu().numpy())
            rewards.append(torch.as_tensor(reward, dtype=torch.float32, device=device))
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0).flatten()
        b_obs, b_actions, b_logprobs = torch.cat(obs), torch.cat(actions), torch.cat(logprobs)
        for mb_inds in torch.randperm(num_envs * num_steps, device=device).chunk(4):
            value = critic(b_obs[mb_inds])[:, 0]
            newlogprob = Categorical(logits=actor(b_obs[mb_inds]), validate_args=False).log_prob(
                b_actions[mb_inds]
            )
            ratio = (newlogprob - b_logprobs[mb_inds]).exp()
            advantage = returns[mb_inds] - value.detach()
            pg_loss = -torch.min(advantage * ratio, advantage * ratio.clamp(0.8, 1.2)).mean()
            loss = pg_loss + 0.5 * F.mse_loss(value, returns[mb_inds])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        run.log(loss=loss.item(), env_steps=num_envs * num_steps)


def _backbone(size: int) -> Any:
    import gymnasium
    import networkx as nx
    from gymnasium import spaces

    class Backbone(gymnasium.Env):  # type: ignore[misc]
        """A network of routers. The agent raises the cost of a link, and traffic takes the cheapest paths."""

        def __init__(self) -> None:
            self.observation_space = spaces.Box(0.0, np.inf, (16,), np.float32)
            self.action_space = spaces.Discrete(16)
            self.graph = nx.barabasi_albert_graph(size, 3, seed=1)
            self.links = list(self.graph.edges)[:16]

        def _obs(self) -> Any:
            return np.array([self.graph.edges[link]["weight"] for link in self.links], np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            for n, link in enumerate(self.graph.edges):
                self.graph.edges[link]["weight"] = 1.0 + n % 5
            self.t = 0
            return self._obs(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.graph.edges[self.links[int(action)]]["weight"] += 0.5
            source = self.t % size
            lengths = nx.single_source_dijkstra_path_length(self.graph, source)  # here
            self.t += 1
            return self._obs(), -max(lengths.values()), False, self.t >= 64, {}

    return Backbone()


@labelled(
    gpu="env-bound",
    cpu="env-bound",
    needs=("stable_baselines3", "gymnasium", "networkx"),
    adapter=True,
    helpers=(_backbone,),
)
def a2c_routes_traffic(run: AdapterRun, device: str) -> None:
    """A2C of Stable-Baselines3 in a network of 2000 routers, in which networkx finds the cheapest paths.

    Dijkstra from one of 2000 routers with 6000 links takes more than 8 ms in Python. An iteration of 16
    steps is more than 130 ms. 16 choices and one update of 16 rows need less than 25 ms.
    """
    from stable_baselines3 import A2C

    from hoptui.integrations.sb3 import HoptuiCallback

    model = A2C("MlpPolicy", _backbone(2000), n_steps=16, device=device)
    callback = HoptuiCallback(run.name, steps_per_iteration=16)
    model.learn(run.iterations * 16, callback=callback)


ROWS, COLUMNS = 6, 7
WINDOWS = [
    [(r + k * dr, c + k * dc) for k in range(4)]
    for r in range(ROWS)
    for c in range(COLUMNS)
    for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1))
    if 0 <= r + 3 * dr < ROWS and 0 <= c + 3 * dc < COLUMNS
]


class ConnectFour:
    """Four in a row against an opponent who searches some moves ahead."""

    def __init__(self) -> None:
        self.board = [[0] * COLUMNS for _ in range(ROWS)]

    def free(self) -> list[int]:
        """Return the columns with room."""
        return [c for c in range(COLUMNS) if self.board[0][c] == 0]

    def drop(self, column: int, player: int) -> int:
        """Put a stone of a player (1 or -1) into a column, and return its row."""
        row = max(r for r in range(ROWS) if self.board[r][column] == 0)  # here
        self.board[row][column] = player
        return row

    def score(self) -> int:
        """Return the value of the board for player 1: large if won."""
        board, total = self.board, 0
        for window in WINDOWS:  # here
            s = sum([board[r][c] for r, c in window])  # here
            total += 1000 * (s // 4 if s > 0 else -(-s // 4)) + s  # here
        return total

    def search(self, depth: int, player: int, alpha: int, beta: int) -> tuple[int, int]:
        """Return the best value for a player and its column, by alpha-beta search."""
        value = player * self.score()
        if depth == 0 or abs(value) > 500:
            return value, -1
        best, column = -(10**6), -1
        for c in self.free():
            row = self.drop(c, player)
            found = -self.search(depth - 1, -player, -beta, -alpha)[0]
            self.board[row][c] = 0
            if found > best:
                best, column = found, c
            alpha = max(alpha, best)
            if alpha >= beta:
                break
        return best, column

    def step(self, action: int) -> tuple[float, bool]:
        """Move, and let the opponent answer. Return the reward and whether the game is over."""
        self.drop(action, 1)
        if self.score() > 500 or not self.free():
            return 1.0, True
        _, reply = self.search(3, -1, -(10**6), 10**6)
        self.drop(reply if reply >= 0 else self.free()[0], -1)
        over = abs(self.score()) > 500 or not self.free()
        return -float(over), over

    def planes(self, device: str) -> Tensor:
        """Return the board for the policy."""
        return torch.tensor(self.board, dtype=torch.float32, device=device).flatten()


def games(policy: nn.Module, device: str) -> Iterator[tuple[Tensor, float]]:
    """Yield the log-probabilities of the moves of whole games, and their results."""
    while True:
        game, over, reward, log_probs = ConnectFour(), False, 0.0, []
        while not over:
            closed = torch.full((COLUMNS,), -torch.inf)
            closed[game.free()] = 0
            probs = Categorical(logits=policy(game.planes(device)) + closed.to(device), validate_args=False)
            move = probs.sample()
            log_probs.append(probs.log_prob(move))
            reward, over = game.step(int(move))
        yield torch.stack(log_probs), reward


@labelled(gpu="env-bound", cpu="env-bound", helpers=(ConnectFour,))
def generator_of_games(run: hoptui.Run, device: str) -> None:
    """REINFORCE on games of four in a row that a generator yields. The opponent is part of the environment.

    The opponent searches three moves ahead, and values a hundred boards or more, each in more than 20
    microseconds: more than 3 ms. A choice of the policy needs less than 0.5 ms. A game has 4 moves or
    more, so four games are more than 50 ms, and their update is less than 5 ms.
    """
    policy = nn.Sequential(nn.Linear(ROWS * COLUMNS, 64), nn.ReLU(), nn.Linear(64, COLUMNS)).to(device)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
    losses: list[Tensor] = []
    for log_probs, reward in games(policy, device):
        losses.append(-log_probs.sum() * reward)
        if len(losses) < 4:
            continue
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.clear()
        run.log(loss=loss.item(), episodes=4)
        if run.stopping:
            break
