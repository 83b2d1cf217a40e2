"""What a PPO run can be told: its knobs, declared once, and the recipe of each environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from hoptui import Knob


@dataclass(kw_only=True)
class PPOConfig:
    """The values of one run. Fields with a `Knob` are command-line options and can change while the run goes on.

    `grad_accum` changes memory and speed alone: however a minibatch is cut, the gradient is that of the whole.
    """

    num_envs: Annotated[
        int, Knob(1, 65_536, scale="log", cost="shape", description="environments that step side by side")
    ] = 64
    rollout_len: Annotated[
        int, Knob(1, 8_192, scale="log", description="steps of each environment between two updates")
    ] = 32
    minibatch_size: Annotated[
        int, Knob(1, 1 << 22, scale="log", cost="shape", description="samples of one optimizer step")
    ] = 512
    epochs: Annotated[int, Knob(1, 64, description="passes over a rollout in one update")] = 10
    grad_accum: Annotated[
        int, Knob(1, 256, scale="log", effect="speed", description="pieces that a minibatch is computed in")
    ] = 1
    lr: Annotated[float, Knob(1e-6, 1e-1, scale="log", description="learning rate of AdamW")] = 1e-3
    clip_range: Annotated[
        float, Knob(0.01, 1.0, description="how far one update may move a probability ratio from 1")
    ] = 0.2
    entropy_coef: Annotated[
        float, Knob(0.0, 1.0, description="weight of the policy's entropy in the loss")
    ] = 0.0

    gamma: float = 0.98
    gae_lambda: float = 0.8
    value_coef: float = 0.5
    max_grad_norm: float = 0.5
    reward_scale: float = 1.0

    @property
    def batch_size(self) -> int:
        """Samples in one rollout."""
        return self.num_envs * self.rollout_len

    @property
    def minibatch_used(self) -> int:
        """Samples of one optimizer step: `minibatch_size`, or the whole batch where that is less."""
        return min(self.minibatch_size, self.batch_size)

    @property
    def grad_accum_used(self) -> int:
        """Pieces that a minibatch is computed in: `grad_accum`, or one per sample where that is less."""
        return min(self.grad_accum, self.minibatch_used)

    @property
    def micro_batch(self) -> int:
        """Samples of the largest piece that a gradient is computed for at once."""
        return -(-self.minibatch_used // self.grad_accum_used)


RECIPES: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {},
    "Pendulum-v1": {"rollout_len": 128, "gamma": 0.9, "gae_lambda": 0.95, "reward_scale": 0.1},
}
"""Where an environment's defaults differ from those of `PPOConfig`."""


def recipe(env: str) -> PPOConfig:
    """The defaults for an environment."""
    return PPOConfig(**RECIPES[env])
