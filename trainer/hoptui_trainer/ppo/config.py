"""The knobs of a PPO run, declared once, and the recipe of each environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from hoptui import Knob

ROLLOUT = "rollout = num_envs × rollout_len × ranks"
MICRO_BATCH = "micro-batch = minibatch_size / grad_accum / ranks"


@dataclass(kw_only=True)
class PPOConfig:
    """The values of one run. Fields with a `Knob` are command-line options and can change while the run goes
    on.

    `grad_accum` changes memory and speed alone: however a minibatch is cut, the gradient is that of the
    whole. 0 and `auto` are chosen when training starts.
    """

    num_envs: Annotated[
        int,
        Knob(
            1,
            65_536,
            scale="log",
            cost="shape",
            keeps=ROLLOUT,
            description="environments of each process, side by side",
        ),
    ] = 64
    rollout_len: Annotated[
        int,
        Knob(
            1,
            8_192,
            scale="log",
            cost="shape",
            keeps=ROLLOUT,
            description="steps of each environment between two updates",
        ),
    ] = 32
    minibatch_size: Annotated[
        int,
        Knob(
            1,
            1 << 22,
            scale="log",
            cost="shape",
            keeps=MICRO_BATCH,
            description="samples of one optimizer step, of all processes; at most a rollout",
        ),
    ] = 512
    epochs: Annotated[int, Knob(1, 64, description="passes over a rollout in one update")] = 10
    grad_accum: Annotated[
        int,
        Knob(
            0,
            4_096,
            scale="log",
            effect="speed",
            cost="shape",
            keeps=f"minibatch_size; {MICRO_BATCH}",
            description="pieces that a minibatch is computed in, more where memory runs out; 0 chooses by "
            "measurement",
        ),
    ] = 0
    lr: Annotated[float, Knob(1e-6, 1e-1, scale="log", description="learning rate of AdamW")] = 1e-3
    clip_range: Annotated[
        float, Knob(0.01, 1.0, description="how far one update may move a probability ratio from 1")
    ] = 0.2
    entropy_coef: Annotated[
        float, Knob(0.0, 1.0, description="weight of the policy's entropy in the loss")
    ] = 0.0

    gamma: Annotated[float, Knob(0.0, 1.0, description="discount of a reward one step later")] = 0.98
    gae_lambda: Annotated[
        float, Knob(0.0, 1.0, description="how far advantages look ahead before they trust the critic")
    ] = 0.8
    value_coef: Annotated[
        float, Knob(0.0, 10.0, description="weight of the squared value error in the loss")
    ] = 0.5
    max_grad_norm: Annotated[
        float, Knob(1e-3, 1e3, scale="log", description="longest gradient; longer ones are scaled down to it")
    ] = 0.5
    reward_scale: Annotated[
        float, Knob(1e-3, 1e3, scale="log", description="factor of the rewards that are learned from")
    ] = 1.0

    precision: Annotated[
        str,
        Knob(
            choices=("auto", "fp32", "tf32", "bf16", "fp16"),
            cost="rebuild",
            description="number format of the matrix products",
        ),
    ] = "auto"
    compile: Annotated[
        str,
        Knob(
            choices=("auto", "off", "default", "max-autotune"),
            effect="speed",
            cost="rebuild",
            description="torch.compile, and on a GPU CUDA graphs; off is plain eager code",
        ),
    ] = "auto"

    policy: Annotated[
        str,
        Knob(
            choices=("mlp", "tiny", "h100-before", "h100-after"),
            cost="restart",
            description="network: an MLP, or a transformer of one of three sizes",
        ),
    ] = "mlp"
    hidden: Annotated[
        int, Knob(1, 8_192, scale="log", cost="restart", description="units of each hidden layer of the MLP")
    ] = 64
    context: Annotated[
        int,
        Knob(
            1,
            1_024,
            cost="restart",
            description="steps of an episode that a transformer sees, with the present one",
        ),
    ] = 32
    sequence_len: Annotated[
        int,
        Knob(
            1,
            8_192,
            scale="log",
            cost="restart",
            description="steps that a transformer learns from at once, if they divide a rollout",
        ),
    ] = 128


RECIPES: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {},
    "CartPole-NoVel": {"policy": "tiny", "context": 8},
    "Acrobot-v1": {"gamma": 0.99, "gae_lambda": 0.95, "reward_scale": 0.1},
    "Pendulum-v1": {"rollout_len": 128, "gamma": 0.9, "gae_lambda": 0.95, "reward_scale": 0.1},
}
"""Where an environment's defaults differ from those of `PPOConfig`."""


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"num_envs": 4, "rollout_len": 8, "minibatch_size": 32, "epochs": 1},
    "cartpole": {
        "num_envs": 16_384,
        "minibatch_size": 32_768,
        "epochs": 4,
        "lr": 3e-3,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "entropy_coef": 0.01,
    },
    "h100-before": {
        "policy": "h100-before",
        "num_envs": 4,
        "rollout_len": 512,
        "minibatch_size": 256,
        "epochs": 4,
    },
    "h100-after": {
        "policy": "h100-after",
        "num_envs": 256,
        "rollout_len": 8_192,
        "minibatch_size": 32_768,
        "epochs": 4,
        "lr": 3e-4,
    },
}
"""Settings by name, for any environment: for a test, for a full GPU, and the two settings of the H100
guide."""


def recipe(env: str) -> PPOConfig:
    """The defaults for an environment."""
    return PPOConfig(**RECIPES.get(env, {}))
