"""The knobs of a PPO run, declared once, and the recipe of each environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from hoptui import Knob
from hoptui_trainer.common import knobs

ROLLOUT = "rollout = num_envs × rollout_len × ranks"
MICRO_BATCH = "micro-batch = minibatch_size / grad_accum / ranks"

TRANSFORMERS: Mapping[str, Mapping[str, int]] = {
    "tiny": {"d_model": 32, "layers": 2, "heads": 2, "ff": 64},
    "h100-before": {"d_model": 256, "layers": 4, "heads": 8, "ff": 1024},
    "h100-after": {"d_model": 1024, "layers": 8, "heads": 16, "ff": 4096},
}
"""The transformers by name: 17 thousand, 3.1 million and 100.7 million parameters."""
MODEL_SIZES = ("d_model", "layers", "heads", "ff")
"""The sizes of a transformer that its name sets."""
OF_TRANSFORMERS = (*MODEL_SIZES, "context", "sequence_len", "checkpointing")
OF_THE_MLP = ("hidden",)
"""Knobs that only one kind of policy has."""


def _size(what: str, most: int) -> Knob:
    return Knob(
        0,
        most,
        scale="log",
        cost="restart",
        description=f"transformer: {what}, 0 for that of the policy; weights start anew",
    )


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
            description="parallel environments of each process",
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
    env_workers: Annotated[
        int,
        Knob(
            0,
            1_024,
            scale="log",
            cost="rebuild",
            description="Gymnasium: environments that step at once, each in a process of its own; 0: one "
            "after the other in the trainer; a change from or to 0 begins all episodes anew",
        ),
    ] = 0
    minibatch_size: Annotated[
        int,
        Knob(
            0,
            1 << 22,
            scale="log",
            cost="shape",
            keeps=MICRO_BATCH,
            description="samples of one optimizer step, of all processes; at most a rollout; 0 chooses by "
            "rollout and memory",
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
    checkpointing: knobs.Checkpointing = False

    policy: Annotated[
        str,
        Knob(
            choices=("mlp", "tiny", "h100-before", "h100-after"),
            cost="restart",
            description="network: an MLP, or a transformer, whose name sets its four sizes",
        ),
    ] = "mlp"
    hidden: Annotated[
        int,
        Knob(1, 8_192, scale="log", cost="restart", description="mlp: units of each hidden layer"),
    ] = 64
    d_model: Annotated[int, _size("width", 8_192)] = 0
    layers: Annotated[int, _size("blocks", 128)] = 0
    heads: Annotated[int, _size("attention heads", 128)] = 0
    ff: Annotated[int, _size("units of the hidden layer of a block", 32_768)] = 0
    context: Annotated[
        int,
        Knob(
            1,
            1_024,
            cost="restart",
            description="transformer: steps of an episode that it sees, with the present one",
        ),
    ] = 32
    sequence_len: Annotated[
        int,
        Knob(
            1,
            8_192,
            scale="log",
            cost="restart",
            description="transformer: steps that it learns from at once, if they divide a rollout",
        ),
    ] = 128

    def check(self) -> None:
        """Refuse sizes of a transformer that do not fit together.

        Raises:
            ValueError: one sentence that begins with the name of a knob.
        """
        if self.policy == "mlp":
            return
        sizes = model_sizes(self)
        if sizes["d_model"] % (2 * sizes["heads"]):
            raise ValueError(
                f"d_model = {sizes['d_model']} must be an even multiple of heads = {sizes['heads']}: "
                "positions turn pairs"
            )


def model_sizes(config: PPOConfig) -> dict[str, int]:
    """The sizes of the transformer that `config` asks for: a 0 is that of the policy's name. Empty for the
    MLP."""
    named = TRANSFORMERS.get(config.policy, {})
    return {name: getattr(config, name) or size for name, size in named.items()}


def not_of(policy: str) -> tuple[str, ...]:
    """The knobs that mean nothing to a policy."""
    return OF_TRANSFORMERS if policy == "mlp" else OF_THE_MLP


RECIPES: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {},
    "CartPole-NoVel": {"policy": "tiny", "context": 8},
    "Acrobot-v1": {"gamma": 0.99, "gae_lambda": 0.95, "reward_scale": 0.1},
    "Pendulum-v1": {"rollout_len": 128, "gamma": 0.9, "gae_lambda": 0.95, "reward_scale": 0.1},
}
"""Our own environments, and where their defaults differ from those of `PPOConfig`."""


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
