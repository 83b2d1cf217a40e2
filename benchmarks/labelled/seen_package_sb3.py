"""Trainings of Stable-Baselines3: its algorithms, vector environments, callbacks and replay buffers."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.labelled.catalogue import AdapterRun, labelled

NEEDS = ("stable_baselines3", "gymnasium")


def _spaces(size: int) -> tuple[Any, Any]:
    from gymnasium import spaces

    return spaces.Box(-10.0, 10.0, (size,), np.float32), spaces.Discrete(4)


def _environment(kind: type, size: int) -> Any:
    """Return a gymnasium environment around a world with `reset` and `advance`."""
    import gymnasium

    class World(gymnasium.Env):  # type: ignore[misc]
        def __init__(self) -> None:
            self.observation_space, self.action_space = _spaces(size)
            self.world, self.ticks = kind(), 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.ticks = 0
            return self.world.reset(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.ticks += 1
            observation, reward = self.world.advance(int(action))  # here
            return observation, reward, False, self.ticks >= 200, {}

    return World


class Bodies:
    """Planets that attract one another, integrated in Python."""

    def reset(self) -> Any:
        self.at = [[math.cos(i), math.sin(i)] for i in range(64)]
        self.speed = [[0.0, 0.0] for _ in range(64)]
        return np.zeros(2, np.float32)

    def advance(self, action: int) -> tuple[Any, float]:
        for i, (x, y) in enumerate(self.at):
            for u, v in self.at:
                square = (u - x) ** 2 + (v - y) ** 2 + 0.1  # here
                self.speed[i][0] += 1e-4 * (u - x) / (square * math.sqrt(square))  # here
                self.speed[i][1] += 1e-4 * (v - y) / (square * math.sqrt(square))  # here
        self.speed[0][action % 2] += 1e-3 if action < 2 else -1e-3
        self.at = [[x + a, y + b] for (x, y), (a, b) in zip(self.at, self.speed, strict=True)]
        return np.asarray(self.at[0], np.float32).clip(-10, 10), -math.hypot(*self.at[0])


class Pixels:
    """A ball whose picture is drawn at full size and then reduced."""

    def reset(self) -> Any:
        self.x, self.y = 160.0, 120.0
        return np.zeros(192, np.float32)

    def advance(self, action: int) -> tuple[Any, float]:
        self.x += (action == 0) - (action == 1)
        self.y += (action == 2) - (action == 3)
        rows, columns = np.mgrid[0:240, 0:320]  # here
        distance = np.hypot(rows - self.y, columns - self.x)  # here
        picture = np.exp(-distance / 20) + 0.1 * np.sin(distance)  # here
        return picture.reshape(12, 20, 16, 20).mean((1, 3)).ravel().astype(np.float32), 0.0


def _learn(run: AdapterRun, device: str, kind: type, size: int) -> None:
    """Run PPO's own `learn` on eight environments of this kind."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    from hoptui.integrations.sb3 import HoptuiCallback

    environments = make_vec_env(_environment(kind, size), n_envs=8)
    model = PPO("MlpPolicy", environments, device=device, n_steps=32, n_epochs=2)
    model.learn(run.iterations * 8 * model.n_steps, callback=HoptuiCallback(run.name))


@labelled(gpu="env-bound", cpu="env-bound", needs=NEEDS, adapter=True, helpers=(_environment, Bodies))
def sb3_ppo_bodies(run: AdapterRun, device: str) -> None:
    """PPO on physics in Python."""
    _learn(run, device, Bodies, 2)


@labelled(gpu="env-bound", cpu="env-bound", needs=NEEDS, adapter=True, helpers=(_environment, Pixels))
def sb3_ppo_pixels(run: AdapterRun, device: str) -> None:
    """PPO on pictures that are drawn in each step."""
    _learn(run, device, Pixels, 192)


class IDMVehicle:
    """A car that follows the one in front, and changes lanes where that lets it go faster."""

    def __init__(self, road: Any, position: float, lane: int, velocity: float) -> None:
        self.road, self.position, self.lane, self.velocity = road, position, lane, velocity
        self.target_velocity, self.action = velocity + 5.0, 0.0

    def acceleration(self, front: Any) -> float:
        acceleration = 3.0 * (1 - (self.velocity / self.target_velocity) ** 4)  # here
        if front is not None:
            d = max(front.position - self.position, 0.1)  # here
            dv = self.velocity - front.velocity
            gap = 10.0 + self.velocity * 1.5 + self.velocity * dv / (2 * math.sqrt(15.0))  # here
            acceleration -= 3.0 * (gap / d) ** 2  # here
        return max(-6.0, min(6.0, acceleration))

    def act(self) -> None:
        front, _ = self.road.neighbour_vehicles(self, self.lane)
        self.action = self.acceleration(front)
        for lane in (self.lane - 1, self.lane + 1):
            if 0 <= lane < self.road.lanes:
                preceding, following = self.road.neighbour_vehicles(self, lane)
                if following is not None and following.acceleration(self) < -2.0:
                    continue
                if self.acceleration(preceding) > self.action + 0.2:
                    self.lane = lane
                    return

    def step(self, dt: float) -> None:
        self.velocity = max(0.0, self.velocity + self.action * dt)
        self.position += self.velocity * dt


class Road:
    """A highway with its cars."""

    def __init__(self, lanes: int, count: int) -> None:
        self.lanes = lanes
        self.vehicles = [IDMVehicle(self, 14.0 * i, i % lanes, 20.0 + i % 5) for i in range(count)]

    def neighbour_vehicles(self, vehicle: IDMVehicle, lane: int) -> tuple[Any, Any]:
        front = rear = None
        s = vehicle.position
        s_front, s_rear = math.inf, -math.inf
        for v in self.vehicles:  # here
            if v is not vehicle and v.lane == lane:  # here
                if s <= v.position < s_front:  # here
                    s_front, front = v.position, v
                elif s_rear < v.position < s:  # here
                    s_rear, rear = v.position, v
        return front, rear

    def act(self) -> None:
        for vehicle in self.vehicles:
            vehicle.act()

    def step(self, dt: float) -> None:
        for vehicle in self.vehicles:
            vehicle.step(dt)


def _highway_env() -> Any:
    """Return an environment in which a car drives among others on a highway."""
    import gymnasium
    from gymnasium import spaces

    class HighwayEnv(gymnasium.Env):  # type: ignore[misc]
        def __init__(self) -> None:
            self.observation_space = spaces.Box(-np.inf, np.inf, (5, 3), np.float32)
            self.action_space = spaces.Discrete(5)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.road, self.time = Road(4, 80), 0
            self.vehicle = self.road.vehicles[40]
            return self._observe(), {}

        def _observe(self) -> Any:
            ego = self.vehicle
            close = sorted(self.road.vehicles, key=lambda v: abs(v.position - ego.position))[:5]
            rows = [
                ((v.position - ego.position) / 100, (v.lane - ego.lane) / 4, v.velocity / 40) for v in close
            ]
            return np.array(rows, np.float32)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.time += 1
            self.vehicle.target_velocity += (0, 0, 0, 5, -5)[int(action)]
            self.vehicle.target_velocity = max(10.0, min(40.0, self.vehicle.target_velocity))
            self.vehicle.lane = max(0, min(3, self.vehicle.lane + (0, -1, 1, 0, 0)[int(action)]))
            for _ in range(15):
                self.road.act()
                self.road.step(1 / 15)
            reward = (self.vehicle.velocity - 20.0) / 10.0
            return self._observe(), reward, False, self.time >= 40, {}

    return HighwayEnv


@labelled(gpu="env-bound", cpu="env-bound", needs=NEEDS, adapter=True, helpers=(IDMVehicle, Road))
def sb3_highway_dqn(run: AdapterRun, device: str) -> None:
    """In the manner of HighwayEnv's sb3_highway_dqn.py: DQN drives among cars that Python simulates."""
    from stable_baselines3 import DQN

    from hoptui.integrations.sb3 import HoptuiCallback

    env = _highway_env()()
    model = DQN(
        "MlpPolicy",
        env,
        policy_kwargs={"net_arch": [256, 256]},
        learning_rate=5e-4,
        buffer_size=15_000,
        learning_starts=200,
        batch_size=32,
        gamma=0.8,
        train_freq=4,
        gradient_steps=1,
        target_update_interval=50,
        device=device,
    )
    model.learn(run.iterations * 20, callback=HoptuiCallback(run.name, steps_per_iteration=20))


def _jss_env() -> Any:
    """Return an environment in which operations of jobs are given to machines."""
    import gymnasium
    from gymnasium import spaces

    class JssEnv(gymnasium.Env):  # type: ignore[misc]
        def __init__(self, jobs: int = 40, machines: int = 20) -> None:
            rng = np.random.default_rng(0)
            self.jobs, self.machines = jobs, machines
            self.instance = [
                [(int(machine), int(rng.integers(1, 99))) for machine in rng.permutation(machines)]
                for _ in range(jobs)
            ]
            self.observation_space = spaces.Box(0.0, 10.0, (2 * jobs,), np.float32)
            self.action_space = spaces.Discrete(jobs)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.todo = [0] * self.jobs
            self.job_free, self.machine_free = [0] * self.jobs, [0] * self.machines
            self.makespan = self._dispatch(0)
            return self._state(), {}

        def _state(self) -> Any:
            todo = np.array(self.todo, np.float32) / self.machines
            return np.concatenate([todo, np.array(self.job_free, np.float32) / 2_000])

        def _dispatch(self, rule: int) -> int:
            """Return the makespan if this rule of dispatching gave out all operations that are left."""
            todo, job_free, machine_free = self.todo[:], self.job_free[:], self.machine_free[:]
            left = [job for job in range(self.jobs) if todo[job] < self.machines]
            while left:
                best, chosen = (math.inf, math.inf), -1
                for job in left:  # here
                    machine, duration = self.instance[job][todo[job]]  # here
                    start = max(job_free[job], machine_free[machine])  # here
                    key = (start, (duration, -duration, job)[rule])  # here
                    if key < best:  # here
                        best, chosen = key, job
                machine, duration = self.instance[chosen][todo[chosen]]
                job_free[chosen] = machine_free[machine] = int(best[0]) + duration
                todo[chosen] += 1
                if todo[chosen] == self.machines:
                    left.remove(chosen)
            return max(machine_free)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            job = int(action)
            if self.todo[job] == self.machines:
                job = min(range(self.jobs), key=self.todo.__getitem__)
            machine, duration = self.instance[job][self.todo[job]]
            end = max(self.job_free[job], self.machine_free[machine]) + duration
            self.job_free[job] = self.machine_free[machine] = end
            self.todo[job] += 1
            before, self.makespan = self.makespan, min(self._dispatch(rule) for rule in range(3))
            return self._state(), (before - self.makespan) / 100, min(self.todo) == self.machines, False, {}

    return JssEnv


@labelled(gpu="env-bound", cpu="env-bound", needs=NEEDS, adapter=True, helpers=(_jss_env,))
def sb3_jss_subproc(run: AdapterRun, device: str) -> None:
    """In the manner of JSSEnv's train_ppo.py: PPO schedules jobs in environments of other processes."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

    from hoptui.integrations.sb3 import HoptuiCallback

    vec_env = VecNormalize(make_vec_env(_jss_env(), n_envs=4, vec_env_cls=SubprocVecEnv))
    model = PPO("MlpPolicy", vec_env, n_steps=16, batch_size=64, n_epochs=2, device=device)
    model.learn(run.iterations * 64, callback=HoptuiCallback(run.name))  # here
    vec_env.close()


def dtw(first: list[list[float]], second: list[list[float]]) -> float:
    """Return how far two trajectories are from one another under dynamic time warping."""
    last = [0.0] + [math.inf] * len(second)
    for x in first:
        row = [math.inf]
        for j, y in enumerate(second):  # here
            distance = math.dist(x, y)  # here
            row.append(distance + min(last[j], last[j + 1], row[j]))  # here
        last = row
    return last[-1]


def _diversity_callback() -> Any:
    """Return a callback that logs how much the trajectories of a rollout differ."""
    from stable_baselines3.common.callbacks import BaseCallback

    class TrajectoryDiversityCallback(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            observations = self.model.rollout_buffer.observations
            trajectories = [observations[:, i].tolist() for i in range(observations.shape[1])]
            distances = [dtw(a, b) for i, a in enumerate(trajectories) for b in trajectories[:i]]
            self.logger.record("rollout/diversity", sum(distances) / len(distances))

    return TrajectoryDiversityCallback()


@labelled(gpu="host-bound", cpu="host-bound", needs=NEEDS, adapter=True, helpers=(dtw,))
def sb3_diversity_callback(run: AdapterRun, device: str) -> None:
    """In the manner of the callbacks of Stable-Baselines3's guide: a metric at the end of each rollout."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    from hoptui.integrations.sb3 import HoptuiCallback

    env = make_vec_env("CartPole-v1", n_envs=32)
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=256, n_epochs=1, device=device)
    model.learn(run.iterations * 2_048, callback=[_diversity_callback(), HoptuiCallback(run.name)])


def aggregate_iqm(scores: Any) -> float:
    """Return the mean of the middle half."""
    ordered = np.sort(scores, axis=None)  # here
    quarter = len(ordered) // 4
    return float(np.mean(ordered[quarter : len(ordered) - quarter]))  # here


def get_interval_estimates(scores: Any, reps: int) -> dict[str, Any]:
    """Return bootstrapped confidence intervals of some statistics of the scores."""
    metrics: dict[str, Callable[[Any], Any]] = {
        "iqm": aggregate_iqm,
        "median": np.median,
        "mean": np.mean,
        "std": np.std,
    }
    rng = np.random.default_rng(0)
    intervals: dict[str, Any] = {}
    for name, metric in metrics.items():
        values = []
        for _ in range(reps):
            sample = scores[rng.integers(0, len(scores), len(scores))]  # here
            values.append(metric(sample))  # here
        intervals[name] = np.percentile(values, [2.5, 97.5])
    return intervals


def _rliable_callback() -> Any:
    """Return a callback that logs how sure the mean of the last episodes is."""
    from stable_baselines3.common.callbacks import BaseCallback

    class RliableCallback(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            scores = np.array([info["r"] for info in self.model.ep_info_buffer] or [0.0])
            for name, (low, high) in get_interval_estimates(scores, 10_000).items():
                self.logger.record(f"eval/{name}_low", low)
                self.logger.record(f"eval/{name}_high", high)

    return RliableCallback()


@labelled(
    gpu="host-bound",
    cpu="host-bound",
    needs=NEEDS,
    adapter=True,
    helpers=(aggregate_iqm, get_interval_estimates),
)
def sb3_rliable_intervals(run: AdapterRun, device: str) -> None:
    """In the manner of rliable's get_interval_estimates: A2C resamples its scores thousands of times."""
    from stable_baselines3 import A2C
    from stable_baselines3.common.env_util import make_vec_env

    from hoptui.integrations.sb3 import HoptuiCallback

    env = make_vec_env("CartPole-v1", n_envs=8)
    model = A2C("MlpPolicy", env, n_steps=64, device=device)
    model.learn(run.iterations * 512, callback=[HoptuiCallback(run.name), _rliable_callback()])


def _sensor_env() -> Any:
    """Return an environment whose observation has the values of many sensors."""
    import gymnasium
    from gymnasium import spaces

    class SensorEnv(gymnasium.Env):  # type: ignore[misc]
        def __init__(self) -> None:
            self.observation_space = spaces.Box(-np.inf, np.inf, (400,), np.float32)
            self.action_space = spaces.Discrete(4)
            self.weights = np.random.default_rng(0).standard_normal((4, 400)).astype(np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.ticks, self.state = 0, np.zeros(400, np.float32)
            return self.state, {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.ticks += 1
            self.state = 0.9 * self.state + 0.1 * self.weights[int(action)]
            return self.state, -float(abs(self.state[0])), False, self.ticks >= 200, {}

    return SensorEnv


def _replay_checkpoint_callback(save_freq: int, save_path: str) -> Any:
    """Return a callback that saves the model and its replay buffer again and again."""
    from stable_baselines3.common.callbacks import BaseCallback

    class SaveReplayBufferCallback(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            if self.n_calls % save_freq == 0:
                self.model.save(f"{save_path}/rl_model")  # here
                self.model.save_replay_buffer(f"{save_path}/rl_model_replay_buffer")  # here
            return True

    return SaveReplayBufferCallback()


@labelled(
    gpu="save-bound", cpu="save-bound", needs=NEEDS, adapter=True, helpers=(_replay_checkpoint_callback,)
)
def sb3_saves_replay_buffer(run: AdapterRun, device: str) -> None:
    """In the manner of issue 1016 of Stable-Baselines3: DQN saves its replay buffer with each checkpoint."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_vec_env

    from hoptui.integrations.sb3 import HoptuiCallback

    env = make_vec_env(_sensor_env(), n_envs=16)
    model = DQN("MlpPolicy", env, buffer_size=60_000, learning_starts=400, train_freq=4, device=device)
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [HoptuiCallback(run.name), _replay_checkpoint_callback(8, folder)]
        model.learn(run.iterations * 128, callback=callbacks)


@labelled(gpu="launch-bound", cpu="healthy", needs=NEEDS, adapter=True)
def sb3_sac_pendulum(run: AdapterRun, device: str) -> None:
    """In the manner of issue 122 of Stable-Baselines3: SAC learns to swing a pendulum up."""
    from stable_baselines3 import SAC

    from hoptui.integrations.sb3 import HoptuiCallback

    model = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        buffer_size=100_000,
        batch_size=256,
        policy_kwargs={"net_arch": [256, 256]},
        device=device,
    )
    model.learn(run.iterations * 50, callback=HoptuiCallback(run.name, steps_per_iteration=50))
