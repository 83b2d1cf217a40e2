"""Trainings of agents: satellites, ropes, factories, and grippers."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import copy
import math
import queue
import random
import threading
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

SB3 = ("stable_baselines3", "gymnasium")


def accelerations(position: Any, mass: Any) -> Any:
    """Return the pull of all bodies on each other."""
    offset = position[None] - position[:, None]  # here
    cubed = ((offset**2).sum(-1) + 0.01) ** 1.5  # here
    return (offset * (mass[None, :, None] / cubed[..., None])).sum(1)  # here


def _debris_env() -> Any:
    import gymnasium
    from gymnasium import spaces

    class DebrisEnv(gymnasium.Env):  # type: ignore[misc]
        """A satellite among debris, which it is to stay away from."""

        def __init__(self, bodies: int = 60) -> None:
            self.observation_space = spaces.Box(-np.inf, np.inf, (8,), np.float32)
            self.action_space = spaces.Box(-1, 1, (2,), np.float32)
            self.mass = np.full(bodies, 1e-3)
            self.bodies = bodies

        def _obs(self) -> Any:
            nearest = self.position[1:][((self.position[1:] - self.position[0]) ** 2).sum(1).argsort()[:2]]
            return np.concatenate([self.position[0], self.velocity[0], nearest.ravel()]).astype(np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.position = self.np_random.normal(size=(self.bodies, 2))
            self.velocity = self.np_random.normal(size=(self.bodies, 2)) * 0.1
            self.t = 0
            return self._obs(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.velocity[0] += 0.05 * action
            for _ in range(16):
                half = self.velocity + 0.005 * accelerations(self.position, self.mass)
                self.position = self.position + 0.01 * half
                self.velocity = half + 0.005 * accelerations(self.position, self.mass)
            gap = float(np.sqrt(((self.position[1:] - self.position[0]) ** 2).sum(1)).min())
            self.t += 1
            return self._obs(), min(gap, 1.0), gap < 0.01, self.t >= 200, {}

    return DebrisEnv


@labelled(gpu="env-bound", cpu="env-bound", needs=SB3, adapter=True, helpers=(accelerations,))
def ppo_avoids_debris(run: AdapterRun, device: str) -> None:
    """PPO steers a satellite among 60 bodies, whose pull on each other NumPy sums in 16 sub-steps.

    32 sums over 3600 pairs take more than 130 microseconds each: more than 4 ms a step of the environment,
    or 200 ms for 48 of them. Acting takes less than 0.8 ms a step, and one epoch of one batch less than 10
    ms: less than 50 ms together.
    """
    from stable_baselines3 import PPO

    from hoptui.integrations.sb3 import HoptuiCallback

    model = PPO("MlpPolicy", _debris_env()(), n_steps=48, batch_size=48, n_epochs=1, device=device)
    callback = HoptuiCallback(run.name, steps_per_iteration=48)
    model.learn(run.iterations * 48, callback=callback)


class Rope:
    """A rope of links that is held at one end, and whose other end is to be brought to a place."""

    def __init__(self, links: int = 24) -> None:
        self.links = links
        self.reset()

    def reset(self) -> list[float]:
        self.x = [0.1 * n for n in range(self.links)]
        self.y = [0.0] * self.links
        self.vx, self.vy = [0.0] * self.links, [0.0] * self.links
        self.t = 0
        return self.observation()

    def observation(self) -> list[float]:
        return [self.x[0], self.y[0], self.x[-1], self.y[-1], self.vx[-1], self.vy[-1]]

    def step(self, action: Any) -> tuple[list[float], float, bool]:
        for _ in range(120):
            self.vx[0], self.vy[0] = float(action[0]), float(action[1])
            for n in range(1, self.links):  # here
                dx, dy = self.x[n] - self.x[n - 1], self.y[n] - self.y[n - 1]  # here
                length = math.sqrt(dx * dx + dy * dy) + 1e-6  # here
                pull = 40.0 * (length - 0.1) / length  # here
                self.vx[n] -= 0.002 * (pull * dx + 0.2 * self.vx[n])  # here
                self.vy[n] -= 0.002 * (pull * dy + 0.2 * self.vy[n] + 9.8)  # here
                self.vx[n - 1] += 0.002 * pull * dx  # here
                self.vy[n - 1] += 0.002 * pull * dy  # here
            for n in range(self.links):  # here
                self.x[n] += 0.002 * self.vx[n]  # here
                self.y[n] += 0.002 * self.vy[n]  # here
        self.t += 1
        reward = -math.hypot(self.x[-1] - 0.5, self.y[-1] + 1.0)
        return self.observation(), reward, self.t >= 40


class OfflineData:
    """Transitions that someone has recorded."""

    def __init__(self, size: int, device: str) -> None:
        self.obs, self.next_obs = torch.randn(size, 6, device=device), torch.randn(size, 6, device=device)
        self.action = torch.rand(size, 2, device=device) * 2 - 1
        self.reward = -torch.rand(size, 1, device=device)

    def sample(self, count: int) -> tuple[Tensor, ...]:
        rows = torch.randint(0, len(self.obs), (count,), device=self.obs.device)
        return self.obs[rows], self.action[rows], self.reward[rows], self.next_obs[rows]


def eval_policy(actor: nn.Module, device: str) -> float:
    """Return the sum of rewards of an episode."""
    rope, total, done = Rope(), 0.0, False
    obs = rope.observation()
    while not done:
        with torch.no_grad():
            action = actor(torch.tensor(obs, device=device)).cpu().numpy()
        obs, reward, done = rope.step(action)
        total += reward
    return total


@labelled(gpu="env-bound", cpu="env-bound", helpers=(Rope,))
def td3_bc_with_evaluation(run: hoptui.Run, device: str) -> None:
    """TD3+BC learns from recorded transitions, and plays one episode after each update to see its return.

    A step of the environment moves 24 links 120 times, with 30 operations in Python for each: more than 0.7
    microseconds a link, or 2 ms a step, and an episode has 40 steps: more than 80 ms. 40 passes of the
    actor take less than 9 ms, and the update less than 4 ms.
    """
    actor = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2), nn.Tanh()).to(device)
    critic = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    target = copy.deepcopy(critic)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=3e-4)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=3e-4)
    data = OfflineData(10_000, device)
    while not run.stopping:
        obs, action, reward, next_obs = data.sample(256)
        with torch.no_grad():
            wanted = reward + 0.99 * target(torch.cat([next_obs, actor(next_obs)], 1))
        critic_loss = F.mse_loss(critic(torch.cat([obs, action], 1)), wanted)
        critic_opt.zero_grad()
        critic_loss.backward()
        critic_opt.step()
        chosen = actor(obs)
        q = critic(torch.cat([obs, chosen], 1))
        actor_loss = -(2.5 / q.abs().mean().detach()) * q.mean() + F.mse_loss(chosen, action)
        actor_opt.zero_grad()
        actor_loss.backward()
        actor_opt.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                old.lerp_(new, 0.005)
        run.log(loss=critic_loss.item(), reward=eval_policy(actor, device), samples=256)


class FlowShop:
    """Jobs that pass several machines in the order that an agent gives them."""

    def __init__(self, seed: int, jobs: int = 30, machines: int = 12) -> None:
        self.rng, self.jobs, self.machines = random.Random(seed), jobs, machines

    def reset(self) -> list[float]:
        self.times = [[self.rng.randint(1, 9) for _ in range(self.machines)] for _ in range(self.jobs)]
        self.order: list[int] = []
        self.span = 0
        return self.observation()

    def makespan(self, order: list[int]) -> int:
        """Return when the last machine is done."""
        free = [0] * self.machines
        for job in order:  # here
            done = 0
            for machine, time in enumerate(self.times[job]):  # here
                done = max(done, free[machine]) + time  # here
                free[machine] = done  # here
        return free[-1]

    def observation(self) -> list[float]:
        left = [n for n in range(self.jobs) if n not in self.order]
        if not left:
            return [0.0] * 10
        spans = sorted(self.makespan([*self.order, n]) for n in left)
        return [float(span - self.span) / 10 for span in (spans + spans[-1:] * 10)[:10]]

    def step(self, action: int) -> tuple[list[float], float, bool]:
        left = [n for n in range(self.jobs) if n not in self.order]
        ranked = sorted(left, key=lambda n: self.makespan([*self.order, n]))
        self.order.append(ranked[min(action, len(ranked) - 1)])
        before, self.span = self.span, self.makespan(self.order)
        return self.observation(), float(before - self.span) / 10, len(self.order) == self.jobs


class ImpalaActor(threading.Thread):
    """Plays with a copy of the policy, and puts its trajectories into a queue."""

    def __init__(self, seed: int, policy: nn.Module, full: queue.Queue[Any], stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.env, self.policy, self.full, self.stop = FlowShop(seed), copy.deepcopy(policy).cpu(), full, stop

    def run(self) -> None:
        obs = self.env.reset()
        while not self.stop.is_set():
            steps = []
            for _ in range(30):
                with torch.no_grad():
                    logits = self.policy(torch.tensor(obs))
                action = int(torch.distributions.Categorical(logits=logits).sample())
                following, reward, done = self.env.step(action)
                steps.append((obs, action, reward))
                obs = self.env.reset() if done else following
            while not self.stop.is_set():
                try:
                    self.full.put(steps, timeout=0.5)
                    break
                except queue.Full:
                    continue


def next_trajectories(full: queue.Queue[Any], count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Wait for trajectories of the actors, and return them as a batch."""
    steps = [step for _ in range(count) for step in full.get()]  # here
    obs, action, reward = zip(*steps, strict=True)
    return torch.tensor(obs), torch.tensor(action), torch.tensor(reward)


@labelled(gpu="env-bound", cpu="env-bound", helpers=(FlowShop, next_trajectories))
def impala_flow_shop(run: hoptui.Run, device: str) -> None:
    """Two threads play at planning a factory in Python, and a learner waits for their trajectories.

    A step of the environment plans up to 30 jobs on 12 machines for each job that is left, twice: 15 x 15 x
    12 operations on average, more than 0.5 ms. A batch has 2 x 30 steps: more than 30 ms, as the threads
    share one interpreter. The learner's step on 60 rows takes less than 4 ms.
    """
    policy = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5)).to(device)
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-3)
    full: queue.Queue[Any] = queue.Queue(maxsize=4)
    stop = threading.Event()
    actors = [ImpalaActor(seed, policy, full, stop) for seed in range(2)]
    for actor in actors:
        actor.start()
    try:
        while not run.stopping:
            obs, action, reward = (each.to(device) for each in next_trajectories(full, 2))
            log_prob = F.log_softmax(policy(obs), -1).gather(1, action[:, None])[:, 0]
            advantage = reward.flip(0).cumsum(0).flip(0)
            loss = -(log_prob * (advantage - advantage.mean())).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for actor in actors:
                actor.policy.load_state_dict(policy.state_dict())
            run.log(loss=loss.item(), env_steps=len(obs))
    finally:
        stop.set()
        for actor in actors:
            actor.join(5)


def _gripper_env() -> Any:
    import gymnasium
    from gymnasium import spaces

    class GripperEnv(gymnasium.Env):  # type: ignore[misc]
        """A gripper that is moved to an object."""

        def __init__(self) -> None:
            self.observation_space = spaces.Box(-10, 10, (6,), np.float32)
            self.action_space = spaces.Box(-1, 1, (3,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.state = self.np_random.uniform(-1, 1, 6).astype(np.float32)
            self.t = 0
            return self.state, {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.state = self.state.copy()
            self.state[:3] += 0.1 * action
            self.t += 1
            gap = float(np.abs(self.state[:3] - self.state[3:]).sum())
            return self.state, -gap, gap < 0.05, self.t >= 50, {}

    return GripperEnv()


@labelled(gpu="wrong-device", cpu="healthy", needs=SB3, adapter=True)
def sac_grasping_baseline(run: AdapterRun, device: str) -> None:
    """Soft actor-critic whose networks stay on the CPU, as the script sets its device for a laptop.

    Layers of 640 and 640 units and batches of 256: 2 x 256 x 0.42 million = 0.21 GFLOP for a pass. An update
    has about 16 of them with the backward passes, 3.4 GFLOP: more than 30 ms on one core. A step of the
    environment is a few additions: less than 0.1 ms.
    """
    from stable_baselines3 import SAC

    from hoptui.integrations.sb3 import HoptuiCallback

    config = {"device": "cpu", "batch_size": 256, "buffer_size": 20_000, "learning_starts": 60}
    model = SAC("MlpPolicy", _gripper_env(), policy_kwargs={"net_arch": [640, 640]}, **config)
    model.learn(60 + run.iterations * 4, callback=HoptuiCallback(run.name, steps_per_iteration=4))
