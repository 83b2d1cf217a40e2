"""Trainings for robots on the CPU: scans, a cable robot, a legged one, balance, and a glider."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import math
import random
import struct
import tempfile
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

RETURN = struct.Struct("<HHHBB")


def record_scans(path: Path, scans: int, returns: int) -> None:
    """Write scans as a driver records them: beam, azimuth, range, intensity, flags."""
    rng = random.Random(61)
    with path.open("wb") as file:
        for _ in range(scans):
            far = rng.randrange(2000, 9000)
            for n in range(returns):
                near = max(50, int(rng.gauss(far, 900)))
                file.write(RETURN.pack(n % 32, n * 36_000 // returns, near, rng.randrange(256), n % 7 == 0))


class ScanReader:
    """Grids of heights from recorded scans."""

    def __init__(self, path: Path, returns: int, cells: int) -> None:
        self.path, self.size, self.cells = path, returns * RETURN.size, cells
        self.scans = path.stat().st_size // self.size
        self.tilt = [math.radians(-25 + 1.2 * beam) for beam in range(32)]

    def grid(self, n: int) -> list[list[float]]:
        """Return the height of what each cell of the ground has."""
        with self.path.open("rb") as file:
            file.seek(n % self.scans * self.size)
            packet = file.read(self.size)
        heights = [[0.0] * self.cells for _ in range(self.cells)]
        for beam, azimuth, near, intensity, flags in RETURN.iter_unpack(packet):  # here
            if flags or intensity < 8:  # here
                continue
            flat = near * 0.01 * math.cos(self.tilt[beam])  # here
            turn = math.radians(azimuth * 0.01)  # here
            column = int(flat * math.cos(turn) / 4 + self.cells / 2)  # here
            row = int(flat * math.sin(turn) / 4 + self.cells / 2)  # here
            if 0 <= row < self.cells and 0 <= column < self.cells:  # here
                height = 1.8 + near * 0.01 * math.sin(self.tilt[beam])  # here
                heights[row][column] = max(heights[row][column], height)  # here
        return heights

    def batch(self, chosen: list[int]) -> Tensor:
        """Return the grids of some scans."""
        return torch.tensor([self.grid(n) for n in chosen])[:, None]  # here


@labelled(cpu="data-bound", helpers=(ScanReader,))
def heights_from_scans(run: hoptui.Run, device: str) -> None:
    """An autoencoder of heights around a vehicle. Two threads turn recorded scans into grids ahead of it.

    A batch has eight scans of 12 000 returns. Measured with a timer, the loop waits for the threads for 67 to
    77 % of an iteration of 0.1 s. The network takes 21 to 27 %.
    """
    torch.manual_seed(61)
    encoder = nn.Sequential(nn.Conv2d(1, 6, 4, stride=4), nn.ReLU(), nn.Conv2d(6, 12, 3, stride=3))
    decoder = nn.Sequential(nn.ConvTranspose2d(12, 6, 3, stride=3), nn.ReLU(), nn.ConvTranspose2d(6, 1, 4, 4))
    model = nn.Sequential(encoder, decoder).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rng = random.Random(62)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        record_scans(Path(folder, "drive.bin"), 20, 12_000)
        reader = ScanReader(Path(folder, "drive.bin"), 12_000, 48)
        ahead: deque[Future[Tensor]] = deque()
        while not run.stopping:
            while len(ahead) < 4:
                ahead.append(pool.submit(reader.batch, [rng.randrange(reader.scans) for _ in range(8)]))
            grids = ahead.popleft().result().to(device)  # here
            known = torch.rand_like(grids) > 0.3
            loss = F.l1_loss(model(grids * known), grids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(grids))
        for future in ahead:
            future.cancel()


def _cable_robot() -> Any:
    """Return the class of a platform that hangs from eight cables."""
    import gymnasium
    from gymnasium import spaces

    class CableRobot(gymnasium.Env):  # type: ignore[misc]
        observation_space = spaces.Box(-20.0, 20.0, (6,), np.float32)
        action_space = spaces.Box(-1.0, 1.0, (8,), np.float32)

        def __init__(self) -> None:
            sides = (-2.0, 2.0)
            self.anchors = np.array([(x, y, z) for x in sides for y in sides for z in sides])

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.place, self.speed, self.ticks = self.np_random.uniform(-0.5, 0.5, 3), np.zeros(3), 0
            return np.concatenate((self.place, self.speed)).astype(np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            tension = 40 + 30 * np.asarray(action, float)
            for _ in range(60):
                cables = self.anchors - self.place  # here
                lengths = np.linalg.norm(cables, axis=1)  # here
                force = (cables / lengths[:, None] * tension[:, None]).sum(0)  # here
                stretch = np.clip(lengths - 3.5, 0, None) @ (cables / lengths[:, None])  # here
                pull = force + 5 * stretch - 0.8 * self.speed  # here
                self.speed = self.speed + 0.0005 * (pull / 3 - np.array([0, 0, 9.81]))  # here
                self.place = np.clip(self.place + 0.0005 * self.speed, -1.8, 1.8)  # here
            self.ticks += 1
            reward = -float(np.abs(self.place).sum() + 0.01 * np.abs(self.speed).sum())
            seen = np.concatenate((self.place, self.speed.clip(-20, 20))).astype(np.float32)
            return seen, reward, False, self.ticks >= 100, {}

    return CableRobot


def make_cable_robot() -> Any:
    """Return a platform."""
    return _cable_robot()()


@labelled(cpu="env-bound", needs=("gymnasium",), helpers=(_cable_robot,))
def platform_on_cables(run: hoptui.Run, device: str) -> None:
    """PPO holds four platforms that hang from cables. gymnasium runs each in a process.

    A rollout has 32 steps of 60 parts. Measured with a timer, the loop waits for the processes for 90 % of an
    iteration of 0.23 s, and the network takes 4 %.
    """
    from gymnasium.vector import AsyncVectorEnv

    torch.manual_seed(62)
    robots = AsyncVectorEnv([make_cable_robot] * 4)
    net = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 9)).to(
        device
    )
    spread = nn.Parameter(torch.zeros(8, device=device))
    optimizer = torch.optim.Adam([*net.parameters(), spread], lr=3e-4)
    seen, _ = robots.reset(seed=62)
    while not run.stopping:
        kept: list[tuple[Tensor, ...]] = []
        for _ in range(32):
            state = torch.from_numpy(seen).to(device)
            with torch.no_grad():
                out = net(state)
                choice = torch.distributions.Normal(out[:, :8], spread.exp())
                action = choice.sample()
                log_p = choice.log_prob(action).sum(1)
            seen, reward, *_ = robots.step(action.clamp(-1, 1).cpu().numpy())  # here
            kept.append((state, action, log_p, out[:, 8], torch.from_numpy(reward).float().to(device)))
        states, actions, old, values, rewards = (torch.stack(column) for column in zip(*kept, strict=True))
        returns, total = torch.zeros_like(rewards), values[-1]
        for t in range(31, -1, -1):
            total = rewards[t] + 0.97 * total
            returns[t] = total
        gain = returns - values
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        for _ in range(2):
            out = net(states)
            choice = torch.distributions.Normal(out[..., :8], spread.exp())
            ratio = (choice.log_prob(actions).sum(-1) - old).exp()
            loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            loss = loss + 0.5 * F.mse_loss(out[..., 8], returns)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        run.log(loss=loss.item(), reward=rewards.mean().item(), env_steps=32 * 4)
    robots.close()


class Hopper:
    """A body on legs of springs, whose feet meet the ground many times in a tick."""

    def __init__(self, legs: int) -> None:
        self.legs = legs
        self.height, self.fall, self.pitch, self.turn = 1.0, 0.0, 0.0, 0.0
        self.rest = [0.8] * legs

    def tick(self, wanted: list[float]) -> tuple[list[float], float]:
        """Let 50 ms go by, and return what is felt and how upright the body is."""
        load = [0.0] * self.legs
        for _ in range(100):
            push, torque = 0.0, 0.0
            for leg in range(self.legs):  # here
                arm = (leg + 0.5) / self.legs - 0.5  # here
                self.rest[leg] += 0.02 * (0.8 + 0.1 * wanted[leg] - self.rest[leg])  # here
                foot = self.height + arm * math.sin(self.pitch) - self.rest[leg]  # here
                load[leg] = max(0.0, -900 * foot - 20 * self.fall) if foot < 0 else 0.0  # here
                push += load[leg]  # here
                torque += load[leg] * arm * math.cos(self.pitch)  # here
            self.fall += 0.0005 * (push / 20 - 9.81)
            self.turn += 0.0005 * (torque / 2 - 0.5 * self.turn)
            self.height = min(2.0, max(0.2, self.height + 0.0005 * self.fall))
            self.pitch = min(1.0, max(-1.0, self.pitch + 0.0005 * self.turn))
        felt = [self.height, self.fall / 5, self.pitch, self.turn / 5, *(force / 200 for force in load)]
        return felt, 1 - abs(self.pitch) - 0.2 * abs(self.height - 0.9)


@labelled(cpu="env-bound", needs=("stable_baselines3", "gymnasium"), adapter=True, helpers=(Hopper,))
def legs_of_springs(run: AdapterRun, device: str) -> None:
    """A2C of Stable-Baselines3 keeps a body upright on twelve legs, which Python simulates.

    A rollout has 60 steps of 100 parts. Measured with a timer, they take 71 % of an iteration of 0.12 s, and
    the policy and its update 15 %.
    """
    import gymnasium
    from gymnasium import spaces
    from stable_baselines3 import A2C
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    from hoptui.integrations.sb3 import HoptuiCallback

    class Stand(gymnasium.Env):  # type: ignore[misc]
        observation_space = spaces.Box(-50.0, 50.0, (16,), np.float32)
        action_space = spaces.Box(-1.0, 1.0, (12,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.hopper, self.ticks = Hopper(12), 0
            return np.zeros(16, np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            felt, upright = self.hopper.tick(action.tolist())  # here
            self.ticks += 1
            return np.array(felt, np.float32).clip(-50, 50), upright, upright < 0, self.ticks >= 200, {}

    stands = VecMonitor(DummyVecEnv([Stand] * 6))
    model = A2C("MlpPolicy", stands, n_steps=10, seed=63, device=device)
    model.learn(run.iterations * 60, callback=HoptuiCallback(run.name))


@labelled(cpu="healthy", needs=("stable_baselines3", "gymnasium"), adapter=True)
def balance_with_a_wide_policy(run: AdapterRun, device: str) -> None:
    """PPO of Stable-Baselines3 balances a pole of gymnasium. Its wide policy has ten passes of updates.

    Measured with a timer, 91 % of an iteration of 0.15 s is in the policy, its backward passes and its
    optimizer.
    """
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    from hoptui.integrations.sb3 import HoptuiCallback

    poles = make_vec_env("CartPole-v1", n_envs=4, seed=64)
    shape = {"net_arch": {"pi": [384, 384], "vf": [384, 384]}}
    model = PPO(
        "MlpPolicy",
        poles,
        n_steps=64,
        batch_size=128,
        n_epochs=10,
        policy_kwargs=shape,
        seed=64,
        device=device,
    )
    model.learn(run.iterations * 4 * 64, callback=HoptuiCallback(run.name))


class Advantages:
    """Returns and advantages of flights, with a trace of each flight of its own."""

    def __init__(self, gamma: float, lam: float) -> None:
        self.gamma, self.lam = gamma, lam
        self.mean, self.square = 0.0, 1.0

    def of(self, gains: list[float], values: list[float]) -> tuple[list[float], list[float]]:
        """Return advantages and returns of one flight."""
        forward, returns = [], []
        for t in range(len(gains)):
            weight, advantage = 1.0, 0.0
            for k in range(t, min(len(gains), t + 32)):  # here
                after = values[k + 1] if k + 1 < len(values) else 0.0  # here
                delta = gains[k] + self.gamma * after - values[k]  # here
                advantage += weight * delta  # here
                weight *= self.gamma * self.lam  # here
            forward.append(advantage)
            returns.append(advantage + values[t])
        return forward, returns

    def scaled(self, rows: list[list[float]]) -> list[list[float]]:
        """Return them with a running mean of 0 and a spread of 1."""
        for row in rows:
            for value in row:
                self.mean += 1e-4 * (value - self.mean)  # here
                self.square += 1e-4 * (value * value - self.square)  # here
        spread = math.sqrt(max(self.square - self.mean**2, 1e-6))
        return [[(value - self.mean) / spread for value in row] for row in rows]  # here

    def of_all(self, gains: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return scaled advantages and returns of all flights, flights x ticks."""
        weights, goals = [], []
        for gain, value in zip(gains.tolist(), values.tolist(), strict=True):  # here
            forward, returns = self.of(gain, value)  # here
            weights.append(forward)
            goals.append(returns)
        scaled = torch.tensor(self.scaled(weights), device=gains.device)  # here
        return scaled, torch.tensor(goals, device=gains.device)  # here


@labelled(cpu="host-bound", helpers=(Advantages,))
def gliders_in_thermals(run: hoptui.Run, device: str) -> None:
    """1536 gliders fly as tensors. Their advantages are computed in lists, flight by flight.

    A flight has 32 ticks. Measured with a timer, the advantages take 64 % of an iteration of 0.35 s, and the
    network 21 %.
    """
    torch.manual_seed(65)
    actor = nn.Sequential(nn.Linear(4, 64), nn.ELU(), nn.Linear(64, 4)).to(device)
    optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    advantages = Advantages(0.99, 0.95)
    place = torch.randn(1536, 4, device=device)
    while not run.stopping:
        states, log_p, values, gains = [], [], [], []
        for _ in range(32):
            out = actor(place)
            bank = torch.distributions.Categorical(logits=out[:, :3])
            turn = bank.sample()
            states.append(place)
            log_p.append(bank.log_prob(turn))
            values.append(out[:, 3])
            lift = (-place[:, :2].square().sum(1)).exp()
            gains.append(lift - 0.1)
            heading = place[:, 2] + 0.3 * (turn - 1)
            moved = place[:, :2] + 0.1 * torch.stack((heading.cos(), heading.sin()), 1)
            place = torch.cat((moved.clamp(-3, 3), heading[:, None], lift[:, None]), 1)
        value = torch.stack(values, 1)
        weights, goal = advantages.of_all(torch.stack(gains, 1), value)  # here
        loss = -(torch.stack(log_p, 1) * weights).mean() + 0.5 * F.mse_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), lift=torch.stack(gains).mean().item(), env_steps=1536 * 32)
