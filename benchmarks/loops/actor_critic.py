"""PPO in one file, in the manner of CleanRL: environments in numpy, a network that is updated in minibatches.

The number of environments that one call of the network serves is a knob, and so is how Adam loops over
tensors.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import hoptui
from benchmarks.loops.script import Script, options

ENVIRONMENTS, STEPS, MINIBATCH = 64, 16, 256


class CartPoles:
    """Many cart poles at once: states of shape (environments, 4)."""

    def __init__(self, count: int) -> None:
        self.random = np.random.default_rng(0)
        self.state = self.random.uniform(-0.05, 0.05, (count, 4)).astype(np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rewards, and which have ended. These begin again."""
        x, speed, angle, spin = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        push = (force + 0.05 * spin**2 * np.sin(angle)) / 1.1
        turn = (9.8 * np.sin(angle) - np.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        moved = push - 0.05 * turn * np.cos(angle) / 1.1
        new = np.stack(
            (x + 0.02 * speed, speed + 0.02 * moved, angle + 0.02 * spin, spin + 0.02 * turn), axis=1
        )
        done = (np.abs(new[:, 0]) > 2.4) | (np.abs(new[:, 2]) > 0.21)
        new[done] = self.random.uniform(-0.05, 0.05, (int(done.sum()), 4))
        self.state = new.astype(np.float32)
        return np.where(done, 0.0, 1.0).astype(np.float32), done


def network(width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)
    )


def main(script: Script) -> None:
    """Train until stopped."""
    device, width = script.device, 256 if script.device == "cuda" else 64
    actor, critic = network(width, 2).to(device), network(width, 1).to(device)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2.5e-4)
    poles = CartPoles(ENVIRONMENTS)

    with hoptui.connect(script.name) as run:
        group = run.knob("envs_per_call", 2, choices=[1, 2, 4, 8, 16, 32, 64], effect="speed")
        fused = run.knob("foreach", False, effect="speed")
        for _ in run.iterations():
            states, actions, logs, rewards, ends, values = [], [], [], [], [], []
            for _ in range(STEPS):
                parts = []
                with torch.no_grad():
                    for part in torch.from_numpy(poles.state).split(group.value):
                        here = part.to(device)
                        chosen = Categorical(logits=actor(here))
                        action = chosen.sample()
                        parts.append((here, action, chosen.log_prob(action), critic(here)[:, 0]))
                state, action, log, value = (torch.cat(column) for column in zip(*parts, strict=True))
                reward, done = poles.step(action.cpu().numpy())
                states.append(state)
                actions.append(action)
                logs.append(log)
                values.append(value)
                rewards.append(torch.from_numpy(reward).to(device))
                ends.append(torch.from_numpy(done).to(device))
            returns, after = [], critic(torch.from_numpy(poles.state).to(device))[:, 0].detach()
            for reward_, end in zip(reversed(rewards), reversed(ends), strict=True):
                after = reward_ + 0.99 * after * ~end
                returns.append(after)
            everything = [torch.cat(c) for c in (states, actions, logs, values, list(reversed(returns)))]
            optimizer.param_groups[0]["foreach"] = fused.value
            last = 0.0
            for index in torch.randperm(ENVIRONMENTS * STEPS, device=device).split(MINIBATCH):
                state, action, log, value, returned = (column[index] for column in everything)
                chosen = Categorical(logits=actor(state))
                ratio, gained = (chosen.log_prob(action) - log).exp(), returned - value
                policy = -torch.min(ratio * gained, ratio.clamp(0.8, 1.2) * gained).mean()
                loss = (
                    policy
                    + 0.5 * (critic(state)[:, 0] - returned).square().mean()
                    - 0.01 * chosen.entropy().mean()
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                last = loss.item()
            run.log(value=last, samples=ENVIRONMENTS * STEPS)


if __name__ == "__main__":
    options(main)
