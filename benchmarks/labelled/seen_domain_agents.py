"""Training loops of agents, in the manner of public repositories."""

from __future__ import annotations

import math
import random
from collections import deque
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled

Array = npt.NDArray[Any]

# Stable-Baselines3


class RacingEnv:
    """A car between the walls of a ring, which sees the distances along some rays."""

    def __init__(self, beams: int = 31, walls: int = 48) -> None:
        self.beams = beams
        self.walls: list[tuple[float, float, float, float]] = []
        for radius in (6.0, 10.0):
            corners = [2 * math.pi * k / walls for k in range(walls + 1)]
            for a, b in pairwise(corners):
                start, end = (radius * math.cos(a), radius * math.sin(a)), (math.cos(b), math.sin(b))
                self.walls.append((*start, radius * end[0], radius * end[1]))

    def reset(self) -> Array:
        self.x, self.y, self.heading, self.speed, self.steps = 8.0, 0.0, math.pi / 2, 0.0, 0
        return self._observe()

    def _lidar(self, angle: float) -> float:
        dx, dy, nearest = math.cos(angle), math.sin(angle), 20.0
        for x1, y1, x2, y2 in self.walls:  # here
            wx, wy = x2 - x1, y2 - y1  # here
            det = dx * wy - dy * wx  # here
            if abs(det) < 1e-9:  # here
                continue
            t = ((x1 - self.x) * wy - (y1 - self.y) * wx) / det  # here
            u = ((x1 - self.x) * dy - (y1 - self.y) * dx) / det  # here
            if 0 < t < nearest and 0 <= u <= 1:  # here
                nearest = t
        return nearest

    def _observe(self) -> Array:
        spread = [self.heading + (k / (self.beams - 1) - 0.5) * math.pi for k in range(self.beams)]
        return np.array([*(self._lidar(angle) for angle in spread), self.speed], np.float32)  # here

    def step(self, action: int) -> tuple[Array, float, bool]:
        self.heading += (0.0, 0.1, -0.1)[action]
        self.speed = min(self.speed + 0.02, 0.4)
        self.x += self.speed * math.cos(self.heading)
        self.y += self.speed * math.sin(self.heading)
        self.steps += 1
        obs = self._observe()  # here
        return obs, self.speed, bool(obs[:-1].min() < 0.3) or self.steps > 400


class DummyVecEnv:
    """Environments that are stepped one after another."""

    def __init__(self, envs: list[RacingEnv]) -> None:
        self.envs = envs

    def reset(self) -> Array:
        return np.stack([env.reset() for env in self.envs])

    def step(self, actions: Array) -> tuple[Array, Array, Array]:
        obs, rewards, dones = [], [], []
        for env, action in zip(self.envs, actions, strict=True):
            new_obs, reward, done = env.step(int(action))  # here
            obs.append(env.reset() if done else new_obs)  # here
            rewards.append(reward)
            dones.append(done)
        return np.stack(obs), np.array(rewards, np.float32), np.array(dones)


class ActorCriticPolicy(nn.Module):
    def __init__(self, obs_dim: int, n_actions: int) -> None:
        super().__init__()
        self.mlp_extractor = nn.Sequential(nn.Linear(obs_dim, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.action_net, self.value_net = nn.Linear(64, n_actions), nn.Linear(64, 1)

    def forward(self, obs: Tensor) -> tuple[torch.distributions.Categorical, Tensor]:
        latent = self.mlp_extractor(obs)
        logits = self.action_net(latent)
        return torch.distributions.Categorical(logits=logits), self.value_net(latent).flatten()


class A2C:
    def __init__(self, env: DummyVecEnv, device: str, n_steps: int = 5) -> None:
        self.env, self.device, self.n_steps = env, device, n_steps
        self.policy = ActorCriticPolicy(32, 3).to(device)
        self.optimizer = torch.optim.RMSprop(self.policy.parameters(), lr=7e-4)
        self._last_obs = env.reset()

    def collect_rollouts(self) -> tuple[Array, Array, Array]:
        observations, actions, rewards = [], [], []
        for _ in range(self.n_steps):
            with torch.no_grad():
                distribution, _ = self.policy(torch.as_tensor(self._last_obs, device=self.device))
                action = distribution.sample().cpu().numpy()
            new_obs, reward, _ = self.env.step(action)  # here
            observations.append(self._last_obs)
            actions.append(action)
            rewards.append(reward)
            self._last_obs = new_obs
        returns = np.cumsum(np.stack(rewards)[::-1], axis=0)[::-1].copy()
        return np.concatenate(observations), np.concatenate(actions), returns.reshape(-1)

    def train(self, rollout: tuple[Array, Array, Array]) -> float:
        obs, actions, returns = (torch.as_tensor(part, device=self.device) for part in rollout)
        distribution, values = self.policy(obs)
        advantages = returns - values.detach()
        policy_loss = -(advantages * distribution.log_prob(actions)).mean()
        loss = policy_loss + 0.5 * F.mse_loss(returns, values) - 0.01 * distribution.entropy().mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
        self.optimizer.step()
        return float(loss.item())


@labelled(gpu="env-bound", cpu="env-bound", helpers=(RacingEnv, DummyVecEnv, A2C))
def a2c_racing(run: hoptui.Run, device: str) -> None:
    """In the manner of Stable-Baselines3's A2C: eight cars are simulated one after another."""
    model = A2C(DummyVecEnv([RacingEnv() for _ in range(8)]), device)
    while not run.stopping:
        rollout = model.collect_rollouts()  # here
        run.log(loss=model.train(rollout), samples=40)


# Backgammon

START = [0, 2, 0, 0, 0, 0, -5, 0, -3, 0, 0, 0, 5, -5, 0, 0, 0, 3, 0, 5, 0, 0, 0, 0, -2, 0]
"""The checkers of the points 1 to 24. Those of the first player are positive, and move upwards."""
Board = tuple[int, ...]


class Backgammon:
    """The rules, without doubling and without gammons."""

    def __init__(self) -> None:
        self.board: Board = (*START, 0, 0)

    @staticmethod
    def mirrored(board: Board) -> Board:
        return (*(-n for n in board[25::-1]), board[27], board[26])

    @staticmethod
    def single_moves(board: Board, die: int) -> list[Board]:
        """Return what follows from one die. The bar is point 0, and the place 26 counts who is off."""
        moves = []
        home = not any(board[point] > 0 for point in range(19))  # here
        for point in (0,) if board[0] > 0 else range(1, 25):  # here
            if board[point] <= 0:  # here
                continue
            target = point + die  # here
            if target > 24 and not home:  # here
                continue
            if target <= 24 and board[target] < -1:  # here
                continue
            after = list(board)  # here
            after[point] -= 1  # here
            if target > 24:
                after[26] += 1
            elif after[target] == -1:
                after[target] = 1
                after[25] -= 1
            else:
                after[target] += 1  # here
            moves.append(tuple(after))  # here
        return moves

    def get_valid_plays(self, board: Board, roll: tuple[int, int]) -> list[Board]:
        orders = [[roll[0]] * 4] if roll[0] == roll[1] else [list(roll), list(reversed(roll))]
        plays: list[Board] = []
        for dice in orders:
            states = [board]
            for i, die in enumerate(dice):
                following = [after for state in states for after in self.single_moves(state, die)]  # here
                if not following:
                    break
                states = list(set(following)) if i == 3 else following
            plays += states
        return plays

    @staticmethod
    def get_board_features(board: Board) -> list[float]:
        features: list[float] = []
        for n in board[1:25]:  # here
            for side in (n, -n):  # here
                features += (  # here
                    float(side >= 1), float(side >= 2), float(side >= 3), max(0, side - 3) / 2.0,  # here
                )  # fmt: skip
        return [*features, board[0] / 2, -board[25] / 2, board[26] / 15, board[27] / 15]

    def get_observations(self, boards: list[Board]) -> Array:
        rows = [self.get_board_features(board) for board in boards]  # here
        return np.array(rows, dtype=np.float32)  # here


class TDGammon(nn.Module):
    def __init__(self, hidden_units: int = 40, lr: float = 0.1, lamda: float = 0.7) -> None:
        super().__init__()
        self.lr, self.lamda = lr, lamda
        self.hidden = nn.Sequential(nn.Linear(196, hidden_units), nn.Sigmoid())
        self.output = nn.Sequential(nn.Linear(hidden_units, 1), nn.Sigmoid())
        self.eligibility_traces: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.hidden(x))
        return out

    def init_eligibility_traces(self) -> None:
        self.eligibility_traces = [torch.zeros_like(weights) for weights in self.parameters()]

    def update_weights(self, p: Tensor, p_next: float) -> Tensor:
        self.zero_grad()
        p.backward()
        with torch.no_grad():
            td_error = p_next - p
            for trace, weights in zip(self.eligibility_traces, self.parameters(), strict=True):
                assert weights.grad is not None
                trace.mul_(self.lamda).add_(weights.grad)
                weights.add_(self.lr * td_error * trace)
        return td_error


class TDAgent:
    def __init__(self, net: TDGammon, env: Backgammon, device: str) -> None:
        self.net, self.env, self.device = net, env, device

    def predict(self, boards: list[Board]) -> Tensor:
        observations = self.env.get_observations(boards)  # here
        out: Tensor = self.net(torch.from_numpy(observations).to(self.device)).flatten()
        return out

    def choose_best_action(self, board: Board) -> tuple[Board, float]:
        roll = (random.randint(1, 6), random.randint(1, 6))
        plays = self.env.get_valid_plays(board, roll)  # here
        with torch.no_grad():
            best = self.predict(plays).topk(min(2, len(plays))).indices.tolist()  # here
            values = [self.look_ahead(plays[i]) for i in best]  # here
        return plays[best[int(np.argmax(values))]], max(values)

    def look_ahead(self, board: Board, rolls: int = 3) -> float:
        """Return the mean of the best replies to some rolls."""
        total = 0.0
        for _ in range(rolls):
            roll = (random.randint(1, 6), random.randint(1, 6))
            replies = self.env.get_valid_plays(self.env.mirrored(board), roll)  # here
            total += 1 - float(self.predict(replies).max())  # here
        return total / rolls


@labelled(gpu="env-bound", cpu="env-bound", helpers=(Backgammon, TDAgent))
def td_gammon(run: hoptui.Run, device: str) -> None:
    """In the manner of td-gammon's train.py: a small net looks two plies ahead."""
    net = TDGammon().to(device)
    while not run.stopping:
        env, plies = Backgammon(), 0
        agent = TDAgent(net, env, device)
        net.init_eligibility_traces()
        board, loss = env.board, torch.zeros(1)
        while board[27] < 15 and plies < 40:
            after, p_next = agent.choose_best_action(board)  # here
            p = agent.predict([board]).squeeze()
            loss = net.update_weights(p, 1.0 if after[26] == 15 else p_next)
            board, plies = env.mirrored(after), plies + 1
        run.log(loss=float(loss), samples=plies)


# CleanRL


class BreakoutNoFrameskip:
    """A ball, a paddle and rows of bricks, drawn as an Atari draws them."""

    def reset(self) -> Array:
        self.bricks = {(row, column) for row in range(6) for column in range(18)}
        self.paddle, self.x, self.y, self.vx, self.vy = 72.0, 80.0, 120.0, 1.7, 2.3
        return self.render()

    def render(self) -> Array:
        frame = np.zeros((210, 160, 3), np.uint8)
        frame[17:32] = frame[:, :8] = frame[:, 152:] = 142
        for scanline in range(32, 210):  # here
            row = (scanline - 57) // 6  # here
            if 0 <= row < 6:  # here
                colour = (200 - 20 * row, 72 + 20 * row, 72)  # here
                for column in range(18):  # here
                    if (row, column) in self.bricks:  # here
                        frame[scanline, 8 + 8 * column : 16 + 8 * column] = colour  # here
            if 189 <= scanline < 193:  # here
                frame[scanline, int(self.paddle) : int(self.paddle) + 16] = (200, 72, 72)
            if self.y <= scanline < self.y + 4:  # here
                frame[scanline, int(self.x) : int(self.x) + 2] = (200, 72, 72)
        return frame

    def step(self, action: int) -> tuple[Array, float, bool]:
        self.paddle = min(max(self.paddle + (0, 0, 3, -3)[action], 8), 136)
        self.x, self.y, reward = self.x + self.vx, self.y + self.vy, 0.0
        if not 9 < self.x < 149:
            self.vx, self.x = -self.vx, min(max(self.x, 9), 149)
        if self.y < 33 or (self.y > 186 and self.paddle - 4 < self.x < self.paddle + 20):
            self.vy, self.y = -self.vy, min(max(self.y, 33), 186)
        for row, column in self.bricks:  # here
            top, left = 57 + 6 * row, 8 + 8 * column  # here
            if top <= self.y < top + 6 and left <= self.x < left + 8:  # here
                self.bricks.remove((row, column))
                self.vy, reward = -self.vy, 1.0
                break
        return self.render(), reward, self.y > 200  # here


class MaxAndSkipEnv:
    def __init__(self, env: BreakoutNoFrameskip, skip: int = 4) -> None:
        self.env, self._skip = env, skip

    def reset(self) -> Array:
        return self.env.reset()

    def step(self, action: int) -> tuple[Array, float, bool]:
        frames, total_reward, done = [], 0.0, False
        for _ in range(self._skip):
            obs, reward, done = self.env.step(action)  # here
            frames.append(obs)
            total_reward += reward
            if done:
                break
        return np.max(frames[-2:], axis=0), total_reward, done  # here


class GrayScaleFrameStack:
    """Gray frames of 84 x 84 pixels, four at a time."""

    def __init__(self, env: MaxAndSkipEnv) -> None:
        self.env, self.frames = env, deque[Array](maxlen=4)
        self.rows = np.linspace(0, 209, 84).astype(int)
        self.columns = np.linspace(0, 159, 84).astype(int)

    def observation(self, frame: Array) -> Array:
        gray = (frame @ np.array([0.299, 0.587, 0.114], np.float32)).astype(np.uint8)  # here
        resized: Array = gray[self.rows][:, self.columns]  # here
        return resized

    def reset(self) -> Array:
        self.frames.extend([self.observation(self.env.reset())] * 4)
        return np.stack(self.frames)

    def step(self, action: int) -> tuple[Array, float, bool]:
        obs, reward, done = self.env.step(action)  # here
        self.frames.append(self.observation(obs))  # here
        return np.stack(self.frames), float(np.sign(reward)), done


class QNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(4, 8, 8, stride=4), nn.ReLU(), nn.Conv2d(8, 16, 4, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(16 * 81, 64), nn.ReLU(), nn.Linear(64, 4),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x / 255.0)
        return out


HELPERS = (BreakoutNoFrameskip, MaxAndSkipEnv, GrayScaleFrameStack)


@labelled(gpu="env-bound", cpu="env-bound", helpers=HELPERS)
def dqn_breakout(run: hoptui.Run, device: str) -> None:
    """In the manner of CleanRL's dqn_atari.py: the game is drawn line by line, four frames for a step."""
    envs = GrayScaleFrameStack(MaxAndSkipEnv(BreakoutNoFrameskip()))
    q_network, target_network = QNetwork().to(device), QNetwork().to(device)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), lr=1e-4)
    rb = deque[tuple[Array, Array, int, float, bool]](maxlen=2000)
    obs, global_step = envs.reset(), 0
    while not run.stopping:
        global_step += 1
        epsilon = max(0.05, 1 - global_step / 2000)
        if random.random() < epsilon:
            action = random.randrange(4)
        else:
            q_values = q_network(torch.from_numpy(obs)[None].to(device))
            action = int(q_values.argmax(dim=1).cpu())
        next_obs, reward, termination = envs.step(action)  # here
        rb.append((obs, next_obs, action, reward, termination))
        obs = envs.reset() if termination else next_obs
        if global_step > 32 and global_step % 16 == 0:
            data = list(zip(*random.sample(rb, 16), strict=True))
            observations, next_observations = (
                torch.from_numpy(np.stack(d)).to(device) for d in (data[0], data[1])
            )
            actions, rewards, dones = (torch.tensor(d, device=device) for d in data[2:])
            with torch.no_grad():
                target_max, _ = target_network(next_observations).max(dim=1)
                td_target = rewards + 0.99 * target_max * (1 - dones.float())
            old_val = q_network(observations).gather(1, actions[:, None]).squeeze()
            loss = F.mse_loss(td_target, old_val)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=16)


# Spinning Up


class HopperEnv:
    """A chain of masses on springs that hops. Its contacts are solved one by one."""

    def __init__(self, links: int = 12, frame_skip: int = 20) -> None:
        self.links, self.frame_skip = links, frame_skip

    def reset(self) -> Array:
        self.q = [[0.2 * i, 1.0 + 0.1 * random.random()] for i in range(self.links)]
        self.v = [[0.0, 0.0] for _ in range(self.links)]
        self.steps = 0
        return self._get_obs()

    def _get_obs(self) -> Array:
        return np.array([*self.q, *self.v], np.float32).ravel()

    def do_simulation(self, ctrl: Array, h: float = 0.005) -> None:
        for _ in range(self.frame_skip):
            for i, v in enumerate(self.v):
                v[1] -= 9.81 * h
                v[0] += float(ctrl[i % 3]) * h
            for _ in range(80):
                for i in range(self.links - 1):  # here
                    a, b, va, vb = self.q[i], self.q[i + 1], self.v[i], self.v[i + 1]  # here
                    dx, dy = b[0] - a[0], b[1] - a[1]  # here
                    length = math.sqrt(dx * dx + dy * dy) + 1e-9  # here
                    nx, ny = dx / length, dy / length  # here
                    speed = (vb[0] - va[0]) * nx + (vb[1] - va[1]) * ny  # here
                    impulse = -0.5 * (speed + 0.2 * (length - 0.2) / h)  # here
                    va[0] -= impulse * nx  # here
                    va[1] -= impulse * ny  # here
                    vb[0] += impulse * nx  # here
                    vb[1] += impulse * ny  # here
                for q, v in zip(self.q, self.v, strict=True):  # here
                    if q[1] <= 0 and v[1] < 0:  # here
                        v[1] = 0.0
                        v[0] *= 0.9
            for q, v in zip(self.q, self.v, strict=True):
                q[0] += v[0] * h
                q[1] = max(q[1] + v[1] * h, 0.0)

    def step(self, a: Array) -> tuple[Array, float, bool]:
        before = sum(q[0] for q in self.q) / self.links
        self.do_simulation(a * 20)  # here
        after = sum(q[0] for q in self.q) / self.links
        self.steps += 1
        return self._get_obs(), after - before - 1e-3 * float(np.square(a).sum()), self.steps >= 200


def mlp(sizes: list[int], output_activation: type[nn.Module] = nn.Identity) -> nn.Sequential:
    layers: list[nn.Module] = []
    for j in range(len(sizes) - 1):
        act = nn.ReLU if j < len(sizes) - 2 else output_activation
        layers += [nn.Linear(sizes[j], sizes[j + 1]), act()]
    return nn.Sequential(*layers)


@labelled(gpu="env-bound", cpu="env-bound", helpers=(HopperEnv,))
def spinningup_ddpg(run: hoptui.Run, device: str) -> None:
    """In the manner of Spinning Up's ddpg.py: a step of the simulator takes longer than an update."""
    env, polyak, update_every = HopperEnv(), 0.995, 10
    pi, q = mlp([48, 64, 64, 3], nn.Tanh).to(device), mlp([51, 64, 64, 1]).to(device)
    pi_targ, q_targ = mlp([48, 64, 64, 3], nn.Tanh).to(device), mlp([51, 64, 64, 1]).to(device)
    pi_optimizer = torch.optim.Adam(pi.parameters(), lr=1e-3)
    q_optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
    replay_buffer = deque[tuple[Array, Array, float, Array]](maxlen=10_000)

    def update(data: list[tuple[Array, Array, float, Array]]) -> float:
        columns = (np.asarray(column, np.float32) for column in zip(*data, strict=True))
        o, a, r, o2 = (torch.from_numpy(column).to(device) for column in columns)
        with torch.no_grad():
            backup = r + 0.99 * q_targ(torch.cat([o2, pi_targ(o2)], dim=-1)).squeeze(-1)
        loss_q = ((q(torch.cat([o, a], dim=-1)).squeeze(-1) - backup) ** 2).mean()
        q_optimizer.zero_grad()
        loss_q.backward()
        q_optimizer.step()
        loss_pi = -q(torch.cat([o, pi(o)], dim=-1)).mean()
        pi_optimizer.zero_grad()
        loss_pi.backward()
        pi_optimizer.step()
        with torch.no_grad():
            for net, targ in ((pi, pi_targ), (q, q_targ)):
                for p, p_targ in zip(net.parameters(), targ.parameters(), strict=True):
                    p_targ.mul_(polyak).add_((1 - polyak) * p)
        return float(loss_q.detach())

    o, t = env.reset(), 0
    while not run.stopping:
        t += 1
        with torch.no_grad():
            a = pi(torch.as_tensor(o, device=device)).cpu().numpy()
        a = np.clip(a + 0.1 * np.random.randn(3), -1, 1).astype(np.float32)
        o2, r, d = env.step(a)  # here
        replay_buffer.append((o, a, r, o2))
        o = env.reset() if d else o2
        if t >= 20 and t % update_every == 0:
            loss = 0.0
            for _ in range(update_every):
                loss = update(random.sample(replay_buffer, min(len(replay_buffer), 100)))
            run.log(loss=loss, samples=100 * update_every)


# Traffic lights


class World:
    """A grid of crossings with cars, second by second."""

    def __init__(self, rows: int, columns: int, cars: int) -> None:
        self.rows, self.columns = rows, columns
        self.phases = [[0] * columns for _ in range(rows)]
        self.cars = [self._new_car() for _ in range(cars)]

    def _new_car(self) -> list[float]:
        heading = random.randrange(4)
        return [random.randrange(self.rows), random.randrange(self.columns), heading, random.uniform(0, 300)]

    def next_step(self) -> None:
        ends: dict[tuple[float, float, float], float] = {}
        for car in sorted(self.cars, key=lambda each: each[3]):  # here
            row, column, heading, distance = car  # here
            lane = (row, column, heading)  # here
            free = max(distance - 11.0, ends.get(lane, 0.0) + 7.5)  # here
            green = self.phases[int(row)][int(column)] == heading % 2  # here
            if free <= 0.0 and green:  # here
                row += (0, 1, 0, -1)[int(heading)]
                column += (1, 0, -1, 0)[int(heading)]
                if not (0 <= row < self.rows and 0 <= column < self.columns):
                    car[:] = self._new_car()
                    continue
                turned = (heading + random.choice((-1, 0, 0, 1))) % 4
                car[:] = [row, column, turned, 300.0]
            else:
                car[3] = min(distance, max(free, 0.0))  # here
                ends[lane] = car[3]  # here

    def get_info(self) -> Array:
        waiting = np.zeros((self.rows, self.columns, 4), np.float32)
        for row, column, heading, distance in self.cars:  # here
            if distance < 60:  # here
                waiting[int(row), int(column), int(heading)] += 1  # here
        return waiting.reshape(-1, 4)


class TSCEnv:
    """The task of the lights. An action holds for some seconds."""

    def __init__(self, world: World, action_interval: int = 10) -> None:
        self.world, self.action_interval = world, action_interval

    def step(self, actions: Array) -> tuple[Array, Array]:
        self.world.phases = actions.reshape(self.world.rows, self.world.columns).tolist()
        for _ in range(self.action_interval):
            self.world.next_step()  # here
        obs = self.world.get_info()  # here
        return obs, -obs.sum(axis=1) * 0.25


@labelled(gpu="env-bound", cpu="env-bound", helpers=(World, TSCEnv))
def presslight_dqn(run: hoptui.Run, device: str) -> None:
    """In the manner of tsc_baselines' run_presslight.py: ten seconds of traffic lie between two actions."""
    env = TSCEnv(World(6, 6, 4000))
    model = mlp([4, 20, 20, 2]).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    memory = deque[tuple[Array, Array, Array, Array]](maxlen=500)
    last_obs = env.world.get_info()
    while not run.stopping:
        with torch.no_grad():
            actions = model(torch.from_numpy(last_obs).to(device)).argmax(dim=1).cpu().numpy()
        explore = np.random.rand(len(actions)) < 0.1
        actions = np.where(explore, np.random.randint(2, size=len(actions)), actions)
        obs, rewards = env.step(actions)  # here
        memory.append((last_obs, actions, rewards, obs))
        last_obs = obs
        minibatch = random.sample(memory, min(len(memory), 16))
        columns = (np.concatenate(column) for column in zip(*minibatch, strict=True))
        o, a, r, o2 = (torch.from_numpy(column).to(device) for column in columns)
        target = r + 0.95 * model(o2).max(dim=1).values.detach()
        loss = F.mse_loss(model(o).gather(1, a[:, None]).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=len(o))
