"""The policies by name."""

from __future__ import annotations

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.init_rng import stream
from hoptui_trainer.ppo.config import TRANSFORMERS, PPOConfig, model_sizes
from hoptui_trainer.ppo.envs.physics import Task
from hoptui_trainer.ppo.policies.mlp import MLP
from hoptui_trainer.ppo.policies.policy import Policy
from hoptui_trainer.ppo.policies.transformer import Transformer, Widths

POLICIES = ("mlp", *TRANSFORMERS)


def make_policy(config: PPOConfig, task: Task, seed: int) -> Policy:
    """The policy that `config` asks for, on the CPU, with the weights of `seed`.

    Raises:
        UsageError: there is no such policy.
    """
    generator = stream(seed, "policy weights")
    if config.policy == "mlp":
        return MLP(task, config.hidden, generator)
    if config.policy not in TRANSFORMERS:
        raise UsageError(
            f"--policy {config.policy}: there is no such policy; there are {', '.join(POLICIES)}"
        )
    return Transformer(task, Widths(**model_sizes(config)), config.context, generator)
