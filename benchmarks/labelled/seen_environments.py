"""Loads of an earlier held-out lot, development loads since: they wait for environments."""

from __future__ import annotations

import json
import math
import multiprocessing
import random
import subprocess
import sys
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled

SIDE = 48


class MazeEnv:
    """A maze whose reward is the length of the way to the exit. It is searched again after each step."""

    def __init__(self) -> None:
        draw = random.Random(5)
        self.walls = {(draw.randrange(SIDE), draw.randrange(SIDE)) for _ in range(260)} - {(0, 0)}
        self.at = (0, 0)

    def reset(self) -> list[float]:
        self.at = (0, 0)
        return [0.0, 0.0]

    def step(self, action: int) -> tuple[list[float], float, bool]:
        dx, dy = ((0, 1), (1, 0), (0, -1), (-1, 0))[action]
        goal = (min(SIDE - 1, max(0, self.at[0] + dx)), min(SIDE - 1, max(0, self.at[1] + dy)))
        self.at = goal if goal not in self.walls else self.at
        way = {self.at: 0}
        open_ = deque([self.at])
        while open_:  # here
            x, y = open_.popleft()  # here
            for cell in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):  # here
                if cell not in way and cell not in self.walls and min(cell) >= 0 and max(cell) < SIDE:  # here
                    way[cell] = way[x, y] + 1  # here
                    open_.append(cell)  # here
        left = way.get((SIDE - 1, SIDE - 1), 99)
        return [self.at[0] / SIDE, self.at[1] / SIDE], -left / 99, left == 0


@labelled(gpu="env-bound", cpu="env-bound", helpers=(MazeEnv,))
def q_learning_in_a_maze(run: hoptui.Run, device: str) -> None:
    """DQN with a replay buffer: one environment, and an update after each 16 steps."""
    net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    env, replay = MazeEnv(), deque[tuple[Any, ...]](maxlen=5000)
    seen, steps = env.reset(), 0
    while not run.stopping:
        for _ in range(16):
            with torch.no_grad():
                action = int(net(torch.tensor(seen, device=device)).argmax())
            action = random.randrange(4) if random.random() < 0.3 else action
            after, reward, done = env.step(action)
            replay.append((seen, action, reward, after))
            seen, steps = env.reset() if done or steps % 500 == 499 else after, steps + 1
        seens, actions, rewards, afters = zip(*random.choices(replay, k=64), strict=True)
        with torch.no_grad():
            following = net(torch.tensor(afters, device=device)).amax(1)
            aim = torch.tensor(rewards, device=device) + 0.99 * following
        values = net(torch.tensor(seens, device=device))
        loss = functional.mse_loss(values.gather(1, torch.tensor(actions, device=device)[:, None])[:, 0], aim)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), epsilon=0.3, replay=len(replay), samples=16)


class Acrobot:
    """Two joined rods, integrated by the method of Runge and Kutta."""

    def __init__(self) -> None:
        self.state = [random.uniform(-0.1, 0.1) for _ in range(4)]

    def derivative(self, s: list[float], torque: float) -> list[float]:
        a, b, da, db = s  # here
        d1 = 3.5 + math.cos(b)  # here
        d2 = 1.25 + 0.5 * math.cos(b)  # here
        phi2 = 4.9 * math.cos(a + b - math.pi / 2)  # here
        phi1 = -0.5 * db * db * math.sin(b) - db * da * math.sin(b) + 14.7 * math.cos(a - 1.57) + phi2  # here
        ddb = (torque + d2 / d1 * phi1 - 0.5 * da * da * math.sin(b) - phi2) / (1.25 - d2 * d2 / d1)  # here
        return [da, db, -(d2 * ddb + phi1) / d1, ddb]  # here

    def step(self, torque: float) -> tuple[list[float], float]:
        h, s = 0.05, self.state
        for _ in range(8):  # here
            k1 = self.derivative(s, torque)  # here
            k2 = self.derivative([x + h / 2 * k for x, k in zip(s, k1, strict=True)], torque)  # here
            k3 = self.derivative([x + h / 2 * k for x, k in zip(s, k2, strict=True)], torque)  # here
            k4 = self.derivative([x + h * k for x, k in zip(s, k3, strict=True)], torque)  # here
            slopes = zip(k1, k2, k3, k4, strict=True)  # here
            means = [(a + 2 * b + 2 * c + d) / 6 for a, b, c, d in slopes]  # here
            s = [x + h * k for x, k in zip(s, means, strict=True)]  # here
            s = [math.remainder(s[0], math.tau), math.remainder(s[1], math.tau), *s[2:]]  # here
            s[2:] = max(-9.0, min(9.0, s[2])), max(-9.0, min(9.0, s[3]))  # here
        self.state = s
        return s, -math.cos(s[0]) - math.cos(s[0] + s[1])


@labelled(gpu="env-bound", cpu="env-bound", helpers=(Acrobot,))
def rods_of_a_vector(run: hoptui.Run, device: str) -> None:
    """PPO in one file: a vector of environments that step one after another, with declared phases."""
    envs = [Acrobot() for _ in range(48)]
    actor, critic = nn.Linear(4, 3).to(device), nn.Linear(4, 1).to(device)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 3e-4)
    seen = torch.zeros(48, 4, device=device)
    while not run.stopping:
        states, taken, rewards = [], [], []
        with run.phase("rollout"):
            for _ in range(12):
                with torch.no_grad():
                    chosen = torch.distributions.Categorical(logits=actor(seen)).sample()
                moved = [env.step(action - 1.0) for env, action in zip(envs, chosen.tolist(), strict=True)]
                states.append(seen)
                taken.append(chosen)
                rewards.append(torch.tensor([reward for _, reward in moved]))
                seen = torch.tensor([state for state, _ in moved], device=device)
        with run.phase("update"):
            x, actions, gains = torch.cat(states), torch.cat(taken), torch.cat(rewards).to(device)
            for _ in range(2):
                policy = torch.distributions.Categorical(logits=actor(x))
                value = critic(x)[:, 0]
                gain = gains - value.detach()
                loss = functional.mse_loss(value, gains) - (policy.log_prob(actions) * gain).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        run.log(loss=loss.item(), reward=gains.mean().item(), samples=576)


SIMULATOR = """
import json, sys
height = [i % 17 / 17 for i in range(900)]
for line in sys.stdin:
    push = json.loads(line)
    for _ in range(60):
        height = [0.5 * (height[i - 1] + height[(i + 1) % 900]) + 0.001 * push for i in range(900)]
    print(json.dumps(height[:8] + [sum(height) / 900]), flush=True)
"""
"""Water in a channel, as a program of its own."""


@labelled(gpu="env-bound", cpu="env-bound")
def simulator_behind_a_pipe(run: hoptui.Run, device: str) -> None:
    """A policy that steers a simulator in another program, which speaks lines of JSON."""
    net = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    command = [sys.executable, "-u", "-c", SIMULATOR]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as simulator:
        assert simulator.stdin is not None
        assert simulator.stdout is not None
        state = torch.zeros(9, device=device)

        def env_step(push: float) -> list[float]:
            assert simulator.stdin is not None
            assert simulator.stdout is not None
            simulator.stdin.write(json.dumps(push) + "\n")
            simulator.stdin.flush()
            answer: list[float] = json.loads(simulator.stdout.readline())  # here
            return answer

        while not run.stopping:
            push = net(state)
            *level, mean = env_step(push.item())
            state = torch.tensor([*level, mean], device=device)
            loss = (push * (mean - 0.5)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(level=mean, samples=1)


def play(learner: Connection) -> None:
    """Play with the weights of the learner, and send what happened, in a process."""
    env = MazeEnv()
    while (weights := learner.recv()) is not None:
        seen, seens, rewards = env.reset(), [], []
        for _ in range(60):
            action = int(np.argmax(weights @ np.array(seen) + np.random.gumbel(size=4)))
            seens.append((*seen, float(action)))
            seen, reward, _ = env.step(action)
            rewards.append(reward)
        learner.send((seens, rewards))


@labelled(gpu="env-bound", cpu="env-bound")
def actors_in_two_processes(run: hoptui.Run, device: str) -> None:
    """A learner that waits for the episodes of its actors."""
    context = multiprocessing.get_context("spawn")
    policy = nn.Linear(2, 4).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    pipes = [context.Pipe() for _ in range(2)]
    actors = [context.Process(target=play, args=(theirs,), daemon=True) for _, theirs in pipes]
    for actor in actors:
        actor.start()

    def collect_episodes() -> list[Any]:
        weights = policy.weight.detach().cpu().numpy()
        for pipe, _ in pipes:
            pipe.send(weights)
        return [pipe.recv() for pipe, _ in pipes]  # here

    while not run.stopping:
        episodes = collect_episodes()
        x = torch.tensor([each for seens, _ in episodes for each in seens], device=device)
        gains = torch.tensor([each for _, rewards in episodes for each in rewards], device=device)
        chosen: Tensor = policy(x[:, :2]).log_softmax(1).gather(1, x[:, 2:].long())[:, 0]
        loss = -(chosen * (gains - gains.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), episodes=2, samples=120)
    for (pipe, theirs), actor in zip(pipes, actors, strict=True):
        pipe.send(None)
        actor.join()
        pipe.close()
        theirs.close()


class Lander:
    """A craft that falls through wind and has two engines."""

    def reset(self) -> list[float]:
        self.height, self.speed, self.side, self.drift = 100.0, 0.0, 0.0, 0.0
        return [1.0, 0.0, 0.0, 0.0]

    def step(self, up: float, right: float) -> tuple[list[float], float, bool]:
        for _ in range(10):  # here
            wind = math.sin(self.height / 7) + 0.3 * math.sin(self.height / 3)  # here
            self.speed += 0.02 * (max(0.0, up) * 4 - 1.6 - 0.01 * self.speed * abs(self.speed))  # here
            self.drift += 0.02 * (right + wind - 0.02 * self.drift)  # here
            self.height = max(0.0, self.height + 0.02 * self.speed)  # here
            self.side += 0.02 * self.drift  # here
        return (
            [self.height / 100, self.speed / 10, self.side / 10, self.drift / 10],
            -abs(self.side) - abs(self.speed),
            self.height <= 0,
        )


@labelled(gpu="env-bound", cpu="env-bound", helpers=(Lander,))
def evolution_of_a_lander(run: hoptui.Run, device: str) -> None:
    """Evolution strategies: a population of policies, each of which plays an episode."""
    centre, env = torch.zeros(8, device=device), Lander()
    while not run.stopping:
        noise = torch.randn(32, 8, device=device)
        returns = []
        for a, b, c, d, e, f, g, h in (centre + 0.1 * noise).tolist():
            (y, v, x, u), total = env.reset(), 0.0
            for _ in range(150):
                (y, v, x, u), reward, done = env.step(
                    a * y + b * v + c * x + d * u, e * y + f * v + g * x + h * u
                )
                total += reward
                if done:
                    break
            returns.append(total)
        score = torch.tensor(returns, device=device)
        centre += 0.05 * ((score - score.mean()) / (score.std() + 1e-6)) @ noise / 32
        run.log(best=max(returns), mean=score.mean().item(), samples=32)
