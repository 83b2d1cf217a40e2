"""The policies by name."""

from __future__ import annotations

from collections.abc import Mapping

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.init_rng import stream
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.envs.physics import Task
from hoptui_trainer.ppo.policies.mlp import MLP
from hoptui_trainer.ppo.policies.policy import Policy
from hoptui_trainer.ppo.policies.transformer import Transformer, Widths

SIZES: Mapping[str, Widths] = {
    "tiny": Widths(d_model=32, heads=2, layers=2, ff=64),
    "h100-before": Widths(d_model=256, heads=8, layers=4, ff=1024),
    "h100-after": Widths(d_model=1024, heads=16, layers=8, ff=4096),
}
"""The transformers: 17 thousand, 3.1 million and 100.7 million parameters."""
POLICIES = ("mlp", *SIZES)


def make_policy(config: PPOConfig, task: Task, seed: int) -> Policy:
    """The policy that `config` asks for, on the CPU, with the weights of `seed`.

    Raises:
        UsageError: there is no such policy.
    """
    generator = stream(seed, "policy weights")
    if config.policy == "mlp":
        return MLP(task, config.hidden, generator)
    if config.policy not in SIZES:
        raise UsageError(
            f"--policy {config.policy}: there is no such policy; there are {', '.join(POLICIES)}"
        )
    return Transformer(task, SIZES[config.policy], config.context, generator)
