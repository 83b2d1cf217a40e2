"""Trainings of Stable-Baselines3 with own gymnasium environments and callbacks."""

from __future__ import annotations

import heapq
import math
import tempfile
from typing import Any

import numpy as np
import torch
from torch import nn

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

NEEDS = ("stable_baselines3", "gymnasium")


def _callback(run: AdapterRun, steps: int = 100) -> Any:
    from hoptui.integrations.sb3 import HoptuiCallback

    return HoptuiCallback(run.name, steps_per_iteration=steps)


class Warehouse:
    """A grid with shelves, in which a robot is rewarded for getting nearer to a parcel."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        rng = np.random.default_rng(seed)
        self.blocked = {(int(x), int(y)) for x, y in rng.integers(1, size, (size * size // 5, 2))}
        self.goal = (size - 1, 0)
        self.robot = (0, 0)

    def path_length(self, start: tuple[int, int]) -> int:
        """Return the length of the shortest path, by A* with the straight distance."""
        frontier, cost = [(0.0, start)], {start: 0}
        while frontier:
            _, here = heapq.heappop(frontier)  # here
            if here == self.goal:
                return cost[here]
            for dx, dy in ((0, 1), (1, 0), (0, -1), (-1, 0)):  # here
                there = (here[0] + dx, here[1] + dy)  # here
                if not (0 <= there[0] < self.size and 0 <= there[1] < self.size):  # here
                    continue
                if there in self.blocked:  # here
                    continue
                new = cost[here] + 1
                if new < cost.get(there, 1 << 30):  # here
                    cost[there] = new  # here
                    heapq.heappush(frontier, (new + math.dist(there, self.goal) * 0.5, there))  # here
        return self.size * self.size


def _warehouse_env(size: int) -> Any:
    import gymnasium
    from gymnasium import spaces

    class WarehouseEnv(gymnasium.Env):  # type: ignore[misc]
        def __init__(self) -> None:
            self.observation_space = spaces.Box(-1, 1, (4,), np.float32)
            self.action_space = spaces.Discrete(4)
            self.episode = 0

        def _obs(self) -> Any:
            (x, y), (u, v) = self.world.robot, self.world.goal
            return np.array([x, y, u - x, v - y], np.float32) / size

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.episode += 1
            self.world, self.t = Warehouse(size, self.episode % 10), 0
            self.distance = self.world.path_length(self.world.robot)
            return self._obs(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            dx, dy = ((0, 1), (1, 0), (0, -1), (-1, 0))[int(action)]
            x, y = self.world.robot
            moved = (min(max(x + dx, 0), size - 1), min(max(y + dy, 0), size - 1))
            if moved not in self.world.blocked:
                self.world.robot = moved
            before, self.distance = self.distance, self.world.path_length(self.world.robot)
            self.t += 1
            return self._obs(), float(before - self.distance), self.distance == 0, self.t >= 100, {}

    return WarehouseEnv


@labelled(gpu="env-bound", cpu="env-bound", needs=NEEDS, adapter=True, helpers=(Warehouse,))
def ppo_warehouse_robots(run: AdapterRun, device: str) -> None:
    """PPO in a grid whose reward is the length of the shortest path, found by A* in Python in each step.

    A search over hundreds of cells takes more than 1 ms. 128 of them are over 150 ms, and one
    epoch of two batches less than 15 ms.
    """
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    env = DummyVecEnv([_warehouse_env(72)] * 4)
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=1, device=device)
    model.learn(run.iterations * 128, callback=_callback(run))


def _cloth_env() -> Any:
    import gymnasium
    from gymnasium import spaces

    class ClothEnv(gymnasium.Env):  # type: ignore[misc]
        """A cloth of springs that is pulled at one corner, in sub-steps of NumPy."""

        def __init__(self) -> None:
            self.observation_space = spaces.Box(-np.inf, np.inf, (12,), np.float32)
            self.action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            grid = np.stack(np.meshgrid(np.arange(24), np.arange(24), [0.0], indexing="ij"), -1)[:, :, 0]
            self.x, self.v, self.t = grid.astype(np.float64), np.zeros((24, 24, 3)), 0
            return self._obs(), {}

        def _obs(self) -> Any:
            return self.x[::23, ::23].ravel().astype(np.float32)

        def _forces(self) -> Any:
            force = np.zeros_like(self.x)
            force[..., 2] -= 0.1
            for axis in (0, 1):
                d = np.diff(self.x, axis=axis)  # here
                length = np.linalg.norm(d, axis=-1, keepdims=True)  # here
                pull = 40.0 * d * (1 - 1 / np.maximum(length, 1e-6))  # here
                if axis == 0:
                    force[:-1] += pull  # here
                    force[1:] -= pull  # here
                else:
                    force[:, :-1] += pull  # here
                    force[:, 1:] -= pull  # here
            return force

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            for _ in range(100):
                self.v = 0.98 * self.v + 0.01 * self._forces()  # here
                self.v[0, 0] = 0.0
                self.v[-1, -1] = action
                self.x = self.x + 0.01 * self.v
            self.t += 1
            return self._obs(), -float(self.x[..., 2].std()), False, self.t >= 50, {}

    return ClothEnv


@labelled(gpu="env-bound", cpu="env-bound", needs=NEEDS, adapter=True, helpers=(_cloth_env,))
def td3_pulls_a_cloth(run: AdapterRun, device: str) -> None:
    """TD3 pulls a cloth of 576 points, which NumPy simulates in 100 sub-steps for each action.

    A step takes more than 6 ms. One update for each eighth step needs less than 10 ms, that is about 1 ms a
    step.
    """
    from stable_baselines3 import TD3

    model = TD3(
        "MlpPolicy",
        _cloth_env()(),
        learning_starts=32,
        train_freq=8,
        gradient_steps=1,
        batch_size=64,
        buffer_size=20_000,
        policy_kwargs={"net_arch": [64, 64]},
        device=device,
    )
    model.learn(run.iterations * 40, callback=_callback(run, 40))


def _maze_env() -> Any:
    import gymnasium
    from gymnasium import spaces

    class RayCastEnv(gymnasium.Env):  # type: ignore[misc]
        """Walls as seen by a walker, column by column."""

        def __init__(self) -> None:
            self.observation_space = spaces.Box(0, 255, (1, 36, 48), np.uint8)
            self.action_space = spaces.Discrete(3)
            walls = np.random.default_rng(0).random((16, 16)) < 0.06
            walls[0] = walls[-1] = walls[:, 0] = walls[:, -1] = True
            walls[8, 8] = False
            self.walls = walls.tolist()

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.x, self.y, self.angle, self.t = 8.5, 8.5, 0.0, 0
            return self.render_view(), {}

        def render_view(self) -> Any:
            view = np.zeros((1, 36, 48), np.uint8)
            for column in range(48):
                a = self.angle + (column - 24) / 40
                dx, dy = math.cos(a) * 0.003, math.sin(a) * 0.003
                x, y, distance = self.x, self.y, 0.003
                while not self.walls[int(x)][int(y)]:
                    x, y, distance = x + dx, y + dy, distance + 0.003
                half = min(18, int(9 / distance))
                view[0, 18 - half : 18 + half, column] = int(255 / (1 + distance))
            return view

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.t += 1
            self.angle += (0.0, 0.3, -0.3)[int(action)]
            x, y = self.x + 0.2 * math.cos(self.angle), self.y + 0.2 * math.sin(self.angle)
            free = not self.walls[int(x)][int(y)]
            if free:
                self.x, self.y = x, y
            return self.render_view(), float(free), not free, self.t >= 200, {}

    return RayCastEnv


@labelled(gpu="env-bound", cpu="env-bound", needs=NEEDS, adapter=True)
def dqn_walks_a_maze(run: AdapterRun, device: str) -> None:
    """DQN sees a maze by casting rays in Python, in an environment of another process.

    A view has 48 rays of some thousand points: more than 8 ms. The update of each 16th step needs less than
    15 ms, that is less than 1 ms a step.
    """
    from stable_baselines3 import DQN
    from stable_baselines3.common.vec_env import SubprocVecEnv

    env = SubprocVecEnv([_maze_env()])
    model = DQN(
        "MlpPolicy",
        env,
        buffer_size=4_000,
        learning_starts=64,
        train_freq=16,
        batch_size=16,
        policy_kwargs={"net_arch": [64]},
        device=device,
    )
    model.learn(run.iterations * 32, callback=_callback(run, 32))  # here
    env.close()


def _vectorized_pendulums(count: int) -> Any:
    """Return a VecEnv that computes all its pendulums in one go."""
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import VecEnv

    class Pendulums(VecEnv):  # type: ignore[misc]
        def __init__(self) -> None:
            box = spaces.Box(-8.0, 8.0, (3,), np.float32)
            super().__init__(count, box, spaces.Box(-2.0, 2.0, (1,), np.float32))
            self.rng, self.t = np.random.default_rng(0), 0

        def _obs(self) -> Any:
            return np.stack([np.cos(self.th), np.sin(self.th), self.w], 1).astype(np.float32)

        def reset(self) -> Any:
            self.th, self.w = self.rng.uniform(-3, 3, count), np.zeros(count)
            self.t = 0
            return self._obs()

        def step_async(self, actions: Any) -> None:
            self.u = np.clip(actions[:, 0], -2, 2)

        def step_wait(self) -> Any:
            self.w = np.clip(self.w + (15 * np.sin(self.th) + 3 * self.u) * 0.05, -8, 8)
            self.th = self.th + self.w * 0.05
            reward = -((np.cos(self.th) - 1) ** 2) - 0.01 * self.w**2
            self.t += 1
            done = np.full(count, self.t >= 200)
            infos: list[dict[str, Any]] = [{} for _ in range(count)]
            if self.t >= 200:
                last = self._obs()
                infos = [{"terminal_observation": row, "TimeLimit.truncated": True} for row in last]
                self.reset()
            return self._obs(), reward.astype(np.float32), done, infos

        def close(self) -> None:
            pass

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [getattr(self, attr_name, None)] * count

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            setattr(self, attr_name, value)

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return [None] * count

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * count

    return Pendulums()


@labelled(gpu="launch-bound", cpu="healthy", needs=NEEDS, adapter=True)
def ppo_vectorized_many_epochs(run: AdapterRun, device: str) -> None:
    """PPO goes many times over the steps of environments that are computed as arrays.

    On a GPU: 20 epochs of 16 batches of 64 rows with a small network: 320 updates of some hundred tiny
    kernels. On the CPU: batches of 512 rows with layers of 512, where the products are the work.
    """
    from stable_baselines3 import PPO

    cpu = device == "cpu"
    model = PPO(
        "MlpPolicy",
        _vectorized_pendulums(64),
        n_steps=16,
        batch_size=512 if cpu else 64,
        n_epochs=12 if cpu else 20,
        policy_kwargs={"net_arch": [512, 512] if cpu else [64, 64]},
        device=device,
    )
    model.learn(run.iterations * 1024, callback=_callback(run))


@labelled(gpu="save-bound", cpu="save-bound", needs=NEEDS, adapter=True)
def sac_checkpoint_callback(run: AdapterRun, device: str) -> None:
    """SAC with wide networks and the CheckpointCallback of Stable-Baselines3 at each fifth step.

    Five networks of 0.8 million weights with moments are about 45 MB, eight times for 40 steps: more than 100
    ms. 40 steps of a pendulum and one update need less than 60 ms.
    """
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import CheckpointCallback

    class KeepLastCallback(CheckpointCallback):  # type: ignore[misc]
        def _checkpoint_path(self, checkpoint_type: str = "", extension: str = "") -> str:
            return f"{self.save_path}/{self.name_prefix}{checkpoint_type}.{extension}"

    with tempfile.TemporaryDirectory() as folder:
        model = SAC(
            "MlpPolicy",
            "Pendulum-v1",
            learning_starts=40,
            train_freq=40,
            gradient_steps=1,
            batch_size=16,
            buffer_size=10_000,
            policy_kwargs={"net_arch": [768, 1024]},
            device=device,
        )
        saves = KeepLastCallback(save_freq=5, save_path=folder, name_prefix="last")
        model.learn(run.iterations * 40, callback=[saves, _callback(run, 40)])  # here


def tile_features(position: float, velocity: float, tilings: int) -> list[int]:
    """Return the active tiles of a state."""
    active = []
    for tiling in range(tilings):
        x = math.floor((position + 1.2) * 8 / 1.8 + tiling / tilings)  # here
        v = math.floor((velocity + 0.07) * 8 / 0.14 + tiling / tilings)  # here
        active.append((x * 31 + v * 17 + tiling * 101) % 4096)  # here
    return active


def _tiled(env: Any, tilings: int) -> Any:
    import gymnasium
    from gymnasium import spaces

    class TileCoding(gymnasium.ObservationWrapper):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(env)
            self.observation_space = spaces.Box(0.0, 1.0, (4096,), np.float32)

        def observation(self, observation: Any) -> Any:
            encoded = np.zeros(4096, np.float32)
            encoded[tile_features(float(observation[0]), float(observation[1]), tilings)] = 1.0  # here
            return encoded

    return TileCoding()


@labelled(gpu="env-bound", cpu="env-bound", needs=("gymnasium",), helpers=(tile_features, _tiled))
def reinforce_with_tile_coding(run: hoptui.Run, device: str) -> None:
    """REINFORCE in an own loop on gymnasium's MountainCar with an observation wrapper in Python.

    16 384 tilings are computed in Python in each step: more than 5 ms. The linear policy and its sampling
    need less than 0.5 ms a step, and the update of 16 steps less than 10 ms.
    """
    import gymnasium

    env = _tiled(gymnasium.make("MountainCar-v0"), 16_384)
    policy = nn.Linear(4096, 3).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    state, _ = env.reset(seed=0)
    while not run.stopping:
        log_probs, rewards = [], []
        for _ in range(16):
            logits = policy(torch.as_tensor(state, device=device))
            dist = torch.distributions.Categorical(logits=logits, validate_args=False)
            action = dist.sample()
            log_probs.append(dist.log_prob(action))
            state, reward, terminated, truncated, _ = env.step(int(action))
            rewards.append(float(reward))
            if terminated or truncated:
                state, _ = env.reset()
        returns = torch.tensor(rewards, device=device).flip(0).cumsum(0).flip(0)
        loss = -(torch.stack(log_probs) * (returns - returns.mean())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), env_steps=16)
