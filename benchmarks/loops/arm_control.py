"""A policy gradient for a chain of three joints. The simulation is plain Python, in a pool of processes.

The processes of the pool are a knob, and so is the number of simulations that one task of the pool has.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributions import Normal

import hoptui
from benchmarks.loops.script import Script, options

ARMS, JOINTS, HORIZON = 64, 3, 16
Arm = tuple[float, ...]
Task = tuple[Arm, list[float], int]


def simulate(task: Task) -> tuple[Arm, float]:
    """Return the state after some small steps, and the reward."""
    arm, torques, steps = task
    angles, speeds = list(arm[:JOINTS]), list(arm[JOINTS:])
    for _ in range(steps):
        for j in range(JOINTS):
            pull = sum(math.sin(angle) for angle in angles[j:])
            drag = 0.5 * speeds[j] + 0.1 * (speeds[j] - speeds[j - 1])
            speeds[j] += 0.002 * (4.0 * torques[j] - 3.0 * pull - drag)
        for j in range(JOINTS):
            angles[j] = math.remainder(angles[j] + 0.002 * speeds[j], 2 * math.pi)
    height = -sum(math.cos(angle) for angle in angles) / JOINTS
    return (*angles, *speeds), height - 0.01 * sum(torque * torque for torque in torques)


class Simulators:
    """A pool that is started again when its size is changed."""

    def __init__(self, processes: int) -> None:
        self.pool = multiprocessing.get_context("fork").Pool(processes)

    def resize(self, processes: int) -> None:
        self.close()
        self.pool = multiprocessing.get_context("fork").Pool(processes)

    def close(self) -> None:
        self.pool.terminate()
        self.pool.join()


@contextmanager
def simulators(processes: int) -> Iterator[Simulators]:
    one = Simulators(processes)
    try:
        yield one
    finally:
        one.close()


def policy(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(2 * JOINTS, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, JOINTS)
    )


def collect(
    mean: nn.Module,
    spread: torch.Tensor,
    advance: Callable[[list[Task]], list[tuple[Arm, float]]],
    steps: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return states, torques and rewards of all arms, of `HORIZON` steps."""
    arms: list[Arm] = [tuple(row) for row in (0.3 * torch.randn(ARMS, 2 * JOINTS)).tolist()]
    states, torques, rewards = [], [], []
    for _ in range(HORIZON):
        state = torch.tensor(arms, device=spread.device)
        with torch.no_grad():
            torque = Normal(mean(state), spread.exp()).sample()
        tasks = [(arm, row, steps) for arm, row in zip(arms, torque.tolist(), strict=True)]
        results = advance(tasks)
        arms = [arm for arm, _ in results]
        states.append(state)
        torques.append(torque)
        rewards.append(torch.tensor([reward for _, reward in results], device=spread.device))
    return torch.stack(states), torch.stack(torques), torch.stack(rewards)


def main(script: Script) -> None:
    """Train until stopped."""
    device, large = script.device, script.device == "cuda"
    width, steps = (1024, 40) if large else (64, 8)
    mean = policy(width).to(device)
    spread = nn.Parameter(torch.zeros(JOINTS, device=device))
    optimizer = torch.optim.Adam([*mean.parameters(), spread], lr=3e-4)

    with hoptui.connect(script.name) as run, simulators(1) as simulator:
        run.knob(
            "sim_processes", 1, choices=[1, 2, 4, 8, 16] if large else [1, 2], effect="speed",
            cost="rebuild", apply=simulator.resize,
        )  # fmt: skip
        chunksize = run.knob("chunksize", 1, min=1, max=ARMS, effect="speed")

        def advance(tasks: list[Task]) -> list[tuple[Arm, float]]:
            return simulator.pool.map(simulate, tasks, chunksize=chunksize.value)

        for _ in run.iterations():
            states, torques, rewards = collect(mean, spread, advance, steps)
            gains = rewards.flip(0).cumsum(0).flip(0)
            gains = (gains - gains.mean(1, keepdim=True)) / (gains.std() + 1e-6)
            chosen = Normal(mean(states), spread.exp())
            loss = -(chosen.log_prob(torques).sum(-1) * gains).mean() - 1e-3 * chosen.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), reward=rewards.mean().item(), env_steps=ARMS * HORIZON)


if __name__ == "__main__":
    options(main)
