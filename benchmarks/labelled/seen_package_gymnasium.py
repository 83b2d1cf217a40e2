"""Trainings on environments, wrappers and vector environments of gymnasium."""

from __future__ import annotations

import io
import math
import random
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions.categorical import Categorical
from torch.distributions.normal import Normal

import hoptui
from benchmarks.labelled.catalogue import labelled

NEEDS = ("gymnasium",)


def layer_init(layer: nn.Linear, std: float = math.sqrt(2), bias_const: float = 0.0) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class ContinuousAgent(nn.Module):
    """The agent of CleanRL's ppo_continuous_action.py."""

    def __init__(self, size: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(size, 64)), nn.Tanh(), layer_init(nn.Linear(64, 1), std=1.0)
        )
        self.actor_mean = nn.Sequential(
            layer_init(nn.Linear(size, 64)), nn.Tanh(), layer_init(nn.Linear(64, actions), std=0.01)
        )
        self.actor_logstd = nn.Parameter(torch.zeros(1, actions))

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, ...]:
        mean = self.actor_mean(x)
        probs = Normal(mean, self.actor_logstd.expand_as(mean).exp())
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action).sum(1), probs.entropy().sum(1), self.critic(x).flatten()


def gae(rewards: Tensor, dones: Tensor, values: Tensor, next_value: Tensor, next_done: Tensor) -> Tensor:
    """Return the advantages of a rollout."""
    advantages = torch.zeros_like(rewards)
    lastgaelam = torch.zeros_like(next_value)
    for t in reversed(range(len(rewards))):
        nextnonterminal = 1.0 - (next_done if t == len(rewards) - 1 else dones[t + 1])
        nextvalues = next_value if t == len(rewards) - 1 else values[t + 1]
        delta = rewards[t] + 0.99 * nextvalues * nextnonterminal - values[t]
        advantages[t] = lastgaelam = delta + 0.99 * 0.95 * nextnonterminal * lastgaelam
    return advantages


def ppo_loss(ratio: Tensor, advantages: Tensor, value: Tensor, returns: Tensor, entropy: Tensor) -> Tensor:
    """Return the clipped loss of PPO."""
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    pg_loss = torch.max(-advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.2)).mean()
    return pg_loss - 0.01 * entropy.mean() + 0.5 * 0.5 * ((value - returns) ** 2).mean()


def _lidar_env() -> Any:
    """Return a robot between round obstacles whose observation is a ring of distances."""
    import gymnasium
    from gymnasium import spaces

    class PointRobotEnv(gymnasium.Env):  # type: ignore[misc]
        def __init__(self, obstacles: int = 80) -> None:
            self.observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float32)
            self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
            self.count = obstacles

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.obstacles = [
                tuple(map(float, row)) for row in self.np_random.uniform(-10, 10, (self.count, 2))
            ]
            self.x, self.y, self.heading, self.ticks = 0.0, 0.0, 0.0, 0
            self.goal = self.np_random.uniform(-8, 8, 2)
            return self._pose(), {}

        def _pose(self) -> Any:
            dx, dy = self.goal[0] - self.x, self.goal[1] - self.y
            return np.array([self.x, self.y, self.heading, dx, dy], np.float32)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.ticks += 1
            self.heading += 0.3 * float(np.clip(action[1], -1, 1))
            speed = 0.1 * (1 + float(np.clip(action[0], -1, 1)))
            self.x = max(-10.0, min(10.0, self.x + speed * math.cos(self.heading)))
            self.y = max(-10.0, min(10.0, self.y + speed * math.sin(self.heading)))
            distance = math.hypot(self.goal[0] - self.x, self.goal[1] - self.y)
            return self._pose(), -0.1 * distance, distance < 0.5, self.ticks >= 200, {}

    class LidarObservation(gymnasium.ObservationWrapper):  # type: ignore[misc]
        def __init__(self, env: Any, num_rays: int = 180, max_dist: float = 5.0) -> None:
            super().__init__(env)
            self.num_rays, self.max_dist = num_rays, max_dist
            self.observation_space = spaces.Box(-np.inf, np.inf, (num_rays + 2,), np.float32)

        def cast_ray(self, x: float, y: float, angle: float) -> float:
            dx, dy, nearest = math.cos(angle), math.sin(angle), self.max_dist
            for u, v in self.unwrapped.obstacles:  # here
                along = (u - x) * dx + (v - y) * dy  # here
                if 0.0 < along < nearest + 0.6:  # here
                    off = (u - x) ** 2 + (v - y) ** 2 - along * along  # here
                    if off < 0.36:
                        nearest = min(nearest, along - math.sqrt(0.36 - off))
            return nearest

        def observation(self, observation: Any) -> Any:
            x, y, heading = (float(value) for value in observation[:3])
            angles = [heading + 2 * math.pi * i / self.num_rays for i in range(self.num_rays)]
            return np.array([*(self.cast_ray(x, y, a) for a in angles), *observation[3:]], np.float32)

    return lambda: LidarObservation(PointRobotEnv())


@labelled(gpu="env-bound", cpu="env-bound", needs=NEEDS, helpers=(_lidar_env,))
def gymnasium_ppo_lidar(run: hoptui.Run, device: str) -> None:
    """In the manner of CleanRL's ppo_continuous_action.py: PPO steers a robot by its lidar."""
    import gymnasium as gym

    envs = gym.vector.SyncVectorEnv([_lidar_env() for _ in range(8)])
    agent = ContinuousAgent(182, 2).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
    num_steps, num_envs = 32, 8
    obs = torch.zeros(num_steps, num_envs, 182, device=device)
    actions = torch.zeros(num_steps, num_envs, 2, device=device)
    logprobs, rewards, dones, values = torch.zeros(4, num_steps, num_envs, device=device)
    next_obs = torch.Tensor(envs.reset(seed=1)[0]).to(device)
    next_done = torch.zeros(num_envs, device=device)
    while not run.stopping:
        for step in range(num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
            actions[step], logprobs[step], values[step] = action, logprob, value
            new_obs, reward, terminations, truncations, _ = envs.step(action.cpu().numpy())
            rewards[step] = torch.tensor(reward).to(device).view(-1)
            next_obs = torch.Tensor(new_obs).to(device)
            next_done = torch.Tensor(np.logical_or(terminations, truncations)).to(device)
        with torch.no_grad():
            next_value = agent.critic(next_obs).flatten()
            advantages = gae(rewards, dones, values, next_value, next_done)
        b_obs, b_actions = obs.reshape(-1, 182), actions.reshape(-1, 2)
        b_logprobs, b_advantages = logprobs.reshape(-1), advantages.reshape(-1)
        b_returns = (advantages + values).reshape(-1)
        for _ in range(2):
            for mb_inds in np.array_split(np.random.permutation(num_steps * num_envs), 2):
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                    b_obs[mb_inds], b_actions[mb_inds]
                )
                ratio = (newlogprob - b_logprobs[mb_inds]).exp()
                loss = ppo_loss(ratio, b_advantages[mb_inds], newvalue, b_returns[mb_inds], entropy)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        run.log(loss=loss, samples=num_steps * num_envs)
    envs.close()


def _bit_flipping_env(n_bits: int) -> Any:
    """Return the environment of bits that have to be flipped until they are equal to those of a goal."""
    import gymnasium
    from gymnasium import spaces

    class BitFlippingEnv(gymnasium.Env):  # type: ignore[misc]
        def __init__(self) -> None:
            self.observation_space = spaces.Box(0.0, 1.0, (2 * n_bits,), np.float32)
            self.action_space = spaces.Discrete(n_bits)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.bits = self.np_random.integers(0, 2, 2 * n_bits).astype(np.float32)
            return self.bits.copy(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.bits[action] = 1 - self.bits[action]
            reached = bool((self.bits[:n_bits] == self.bits[n_bits:]).all())
            return self.bits.copy(), float(reached) - 1.0, False, False, {}

    return BitFlippingEnv


def store_hindsight(replay: deque[Any], episode: list[Any], n_bits: int, future_k: int) -> None:
    """Put an episode into the replay buffer, and again with goals that it reached later."""
    for t, (obs, action, reward, next_obs) in enumerate(episode):
        replay.append((obs, action, reward, next_obs))
        for _ in range(future_k):
            future = random.randint(t, len(episode) - 1)  # here
            new_goal = episode[future][3][:n_bits]  # here
            new_reward = 0.0 if np.array_equal(next_obs[:n_bits], new_goal) else -1.0  # here
            new_obs = np.concatenate([obs[:n_bits], new_goal])  # here
            new_next_obs = np.concatenate([next_obs[:n_bits], new_goal])  # here
            replay.append((new_obs, action, new_reward, new_next_obs))  # here


@labelled(gpu="host-bound", cpu="host-bound", needs=NEEDS, helpers=(store_hindsight,))
def gymnasium_dqn_hindsight(run: hoptui.Run, device: str) -> None:
    """In the manner of RL-Adventure-2's 8.her: DQN gives episodes of bit flips new goals afterwards."""
    import gymnasium as gym

    n_bits, num_envs = 40, 16
    envs = gym.vector.SyncVectorEnv([_bit_flipping_env(n_bits) for _ in range(num_envs)])
    q_network, target_network = (
        nn.Sequential(nn.Linear(2 * n_bits, 256), nn.ReLU(), nn.Linear(256, n_bits)).to(device)
        for _ in range(2)
    )
    optimizer = torch.optim.Adam(q_network.parameters(), lr=1e-3)
    replay: deque[Any] = deque(maxlen=100_000)
    while not run.stopping:
        obs, _ = envs.reset()
        episodes: list[list[Any]] = [[] for _ in range(num_envs)]
        for _ in range(n_bits):
            with torch.no_grad():
                actions = q_network(torch.Tensor(obs).to(device)).argmax(1).cpu().numpy()
            explore = np.random.rand(num_envs) < 0.2
            actions = np.where(explore, np.random.randint(0, n_bits, num_envs), actions)
            next_obs, rewards, _, _, _ = envs.step(actions)
            for i, episode in enumerate(episodes):
                episode.append((obs[i], int(actions[i]), float(rewards[i]), next_obs[i]))
            obs = next_obs
        for episode in episodes:
            store_hindsight(replay, episode, n_bits, future_k=24)
        for _ in range(4):
            batch = [replay[i] for i in np.random.randint(0, len(replay), 128)]
            b_obs, b_next_obs = (torch.Tensor(np.stack([row[j] for row in batch])).to(device) for j in (0, 3))
            b_actions = torch.tensor([row[1] for row in batch], device=device)
            b_rewards = torch.tensor([row[2] for row in batch], device=device)
            with torch.no_grad():
                td_target = b_rewards + 0.98 * (b_rewards != 0.0) * target_network(b_next_obs).max(1)[0]
            old_val = q_network(b_obs).gather(1, b_actions[:, None]).squeeze(1)
            loss = nn.functional.mse_loss(old_val, td_target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for target, source in zip(target_network.parameters(), q_network.parameters(), strict=True):
            target.data.lerp_(source.data, 0.05)
        run.log(loss=loss, samples=num_envs * n_bits)
    envs.close()


def _catch_env() -> Any:
    """Return a game in which a paddle has to catch a ball, seen by a noisy camera."""
    import gymnasium
    from gymnasium import spaces

    class CatchEnv(gymnasium.Env):  # type: ignore[misc]
        def __init__(self) -> None:
            self.observation_space = spaces.Box(0, 255, (128, 128), np.uint8)
            self.action_space = spaces.Discrete(3)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.ball, self.column, self.paddle = 0, int(self.np_random.integers(128)), 64
            return self._camera(), {}

        def _camera(self) -> Any:
            picture = self.np_random.integers(0, 60, (128, 128), dtype=np.uint8)
            picture[self.ball, self.column] = picture[127, self.paddle] = 255
            return picture

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.ball += 1
            self.paddle = max(0, min(127, self.paddle + int(action) - 1))
            ended = self.ball == 127
            return self._camera(), float(ended and self.paddle == self.column), ended, False, {}

    return CatchEnv


def save_episodes(directory: Path, episodes: list[dict[str, Any]]) -> None:
    """Write each episode into a compressed file."""
    for i, episode in enumerate(episodes):
        with io.BytesIO() as f1:
            np.savez_compressed(f1, **episode)  # here
            f1.seek(0)
            with (directory / f"episode-{i}.npz").open("wb") as f2:  # here
                f2.write(f1.read())  # here


@labelled(gpu="save-bound", cpu="save-bound", needs=NEEDS, helpers=(save_episodes,))
def gymnasium_saves_episodes(run: hoptui.Run, device: str) -> None:
    """In the manner of Dreamer's save_episodes: an actor and critic keep all that they see in files."""
    import gymnasium as gym

    num_steps, num_envs = 32, 16
    envs = gym.vector.SyncVectorEnv([_catch_env() for _ in range(num_envs)])
    network = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    optimizer = torch.optim.RMSprop(network.parameters(), lr=7e-4)
    obs, _ = envs.reset(seed=1)
    with tempfile.TemporaryDirectory() as folder:
        while not run.stopping:
            seen, taken, got, ended = [], [], [], []
            for _ in range(num_steps):
                with torch.no_grad():
                    logits = network(torch.as_tensor(obs[:, ::8, ::8], device=device).float() / 255)[:, :3]
                    actions = Categorical(logits=logits).sample().cpu().numpy()
                next_obs, rewards, terminations, _, _ = envs.step(actions)
                seen.append(obs)
                taken.append(actions)
                got.append(rewards)
                ended.append(terminations)
                obs = next_obs
            image, action, reward, done = (np.stack(rows, axis=1) for rows in (seen, taken, got, ended))
            episodes = [
                {"image": image[i], "action": action[i], "reward": reward[i], "terminal": done[i]}
                for i in range(num_envs)
            ]
            save_episodes(Path(folder), episodes)
            small = image[:, :, ::8, ::8].reshape(-1, 256)
            out = network(torch.as_tensor(small, device=device).float() / 255)
            returns = torch.as_tensor(reward.cumsum(1)[:, ::-1].reshape(-1), device=device).float()
            probs = Categorical(logits=out[:, :3])
            advantage = returns - out[:, 3]
            chosen = probs.log_prob(torch.as_tensor(action.reshape(-1), device=device))
            loss = (
                (advantage**2).mean() - (chosen * advantage.detach()).mean() - 0.01 * probs.entropy().mean()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss, samples=num_steps * num_envs)
    envs.close()


class LstmAgent(nn.Module):
    """The agent of CleanRL's ppo_atari_lstm.py, for two numbers in place of pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(layer_init(nn.Linear(2, 128)), nn.ReLU())
        self.lstm = nn.LSTM(128, 128)
        self.actor = layer_init(nn.Linear(128, 2), std=0.01)
        self.critic = layer_init(nn.Linear(128, 1), std=1)

    def get_states(
        self, x: Tensor, lstm_state: tuple[Tensor, Tensor], done: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch_size = lstm_state[0].shape[1]
        hidden = self.network(x).reshape(-1, batch_size, 128)
        done = done.reshape(-1, batch_size)
        new_hidden = []
        for h, d in zip(hidden, done, strict=True):
            keep = (1.0 - d).view(1, -1, 1)
            h, lstm_state = self.lstm(h.unsqueeze(0), (keep * lstm_state[0], keep * lstm_state[1]))
            new_hidden += [h]
        return torch.flatten(torch.cat(new_hidden), 0, 1), lstm_state

    def get_action_and_value(
        self, x: Tensor, lstm_state: tuple[Tensor, Tensor], done: Tensor, action: Tensor | None = None
    ) -> tuple[Any, ...]:
        hidden, lstm_state = self.get_states(x, lstm_state, done)
        probs = Categorical(logits=self.actor(hidden))
        if action is None:
            action = probs.sample()
        value = self.critic(hidden).flatten()
        return action, probs.log_prob(action), probs.entropy(), value, lstm_state


def _masked_cart_pole() -> Any:
    """Return CartPole without its speeds."""
    import gymnasium as gym

    env = gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))
    low, high = np.array([-4.8, -0.42], np.float32), np.array([4.8, 0.42], np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: obs[[0, 2]], gym.spaces.Box(low, high))


@labelled(gpu="launch-bound", cpu="healthy", needs=NEEDS)
def gymnasium_ppo_lstm(run: hoptui.Run, device: str) -> None:
    """In the manner of CleanRL's ppo_atari_lstm.py: PPO remembers where the pole was."""
    import gymnasium as gym

    num_steps, num_envs = 32, 8
    envs = gym.vector.SyncVectorEnv([_masked_cart_pole for _ in range(num_envs)])
    agent = LstmAgent().to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    obs = torch.zeros(num_steps, num_envs, 2, device=device)
    actions = torch.zeros(num_steps, num_envs, device=device, dtype=torch.long)
    logprobs, rewards, dones, values = torch.zeros(4, num_steps, num_envs, device=device)
    next_obs = torch.Tensor(envs.reset(seed=1)[0]).to(device)
    next_done = torch.zeros(num_envs, device=device)
    next_lstm_state = (
        torch.zeros(1, num_envs, 128, device=device),
        torch.zeros(1, num_envs, 128, device=device),
    )
    while not run.stopping:
        initial_lstm_state = (next_lstm_state[0].clone(), next_lstm_state[1].clone())
        for step in range(num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value, next_lstm_state = agent.get_action_and_value(
                    next_obs, next_lstm_state, next_done
                )
            actions[step], logprobs[step], values[step] = action, logprob, value
            new_obs, reward, terminations, truncations, _ = envs.step(action.cpu().numpy())
            rewards[step] = torch.tensor(reward).to(device).view(-1)
            next_obs = torch.Tensor(new_obs).to(device)
            next_done = torch.Tensor(np.logical_or(terminations, truncations)).to(device)
        with torch.no_grad():
            hidden, _ = agent.get_states(next_obs, next_lstm_state, next_done)
            advantages = gae(rewards, dones, values, agent.critic(hidden).flatten(), next_done)
            returns = advantages + values
        for _ in range(4):
            for mbenvinds in np.array_split(np.random.permutation(num_envs), 4):
                _, newlogprob, entropy, newvalue, _ = agent.get_action_and_value(
                    obs[:, mbenvinds].reshape(-1, 2),
                    (initial_lstm_state[0][:, mbenvinds], initial_lstm_state[1][:, mbenvinds]),
                    dones[:, mbenvinds].reshape(-1),
                    actions[:, mbenvinds].reshape(-1),
                )
                ratio = (newlogprob - logprobs[:, mbenvinds].reshape(-1)).exp()
                mb_advantages = advantages[:, mbenvinds].reshape(-1)
                loss = ppo_loss(ratio, mb_advantages, newvalue, returns[:, mbenvinds].reshape(-1), entropy)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        run.log(loss=loss, samples=num_steps * num_envs)
    envs.close()
