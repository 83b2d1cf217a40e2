"""The options of `hoptui train ppo`, and how they combine with a checkpoint."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from hoptui_trainer.common.applicability import Circumstances, Rule, check_applies
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.job import (
    THREAD_RULE,
    JobOptions,
    NotNegative,
    Target,
    options_given,
    preset,
    refused_by_option,
    resolve,
)
from hoptui_trainer.common.options import KnobValues
from hoptui_trainer.ppo.config import (
    MODEL_SIZES,
    OF_THE_MLP,
    OF_TRANSFORMERS,
    PRESETS,
    RECIPES,
    TRANSFORMERS,
    PPOConfig,
    model_sizes,
    recipe,
)

DEFAULT_ENV = "CartPole-v1"


def _no_mlp(where: Circumstances) -> str:
    policy = where.config.policy
    if policy == "mlp":
        return ""
    return f"the policy {policy} is a transformer, whose sizes are {', '.join(MODEL_SIZES)}"


def _no_transformer(where: Circumstances) -> str:
    policy = where.config.policy
    return f"the policy {policy} is no transformer; {', '.join(TRANSFORMERS)} are" if policy == "mlp" else ""


def _no_workers(where: Circumstances) -> str:
    if where.source not in RECIPES:
        return ""
    return (
        f"{where.source} steps all its copies as one; only Gymnasium's have workers, as gymnasium:CartPole-v1"
    )


RULES = (
    THREAD_RULE,
    Rule(OF_THE_MLP, _no_mlp),
    Rule(OF_TRANSFORMERS, _no_transformer),
    Rule(("env_workers",), _no_workers),
)
"""When options and knobs have an effect. The policy of a process does not change."""


@dataclass(frozen=True, kw_only=True)
class PPOOptions(JobOptions):
    """The options of one command; None means that it was not given. `knobs` holds only the ones that
    were.

    Parameters
    ----------
    env
        Environment: CartPole-v1, CartPole-NoVel, Pendulum-v1 or Acrobot-v1 on the training device; any other
        id of Gymnasium (or gymnasium:CartPole-v1) on the CPU [default: CartPole-v1].
    rollout_device
        Where environments and policy act: beside the training, or on the CPU with a copy of the weights.
    until_return
        End as soon as an evaluation returns at least so much.
    """

    env: str | None = None
    rollout_device: Literal["auto", "cpu"] = "auto"
    evaluate_every: NotNegative = 10
    until_return: float | None = None
    knobs: Annotated[KnobValues, Parameter(parse=False)] = dataclasses.field(default_factory=dict)

    def check(self) -> None:
        if self.until_return is not None and not math.isfinite(self.until_return):
            raise UsageError(f"--until-return takes a finite number, not {self.until_return}")
        super().check()

    @property
    def targets(self) -> Mapping[str, Target]:
        if self.until_return is None:
            return {}
        return {"--until-return": Target("evaluation_return", self.until_return, higher=True)}


@dataclass(frozen=True)
class PPOPlan:
    """What will be run. `notes` names the source of each knob that two sources disagree on."""

    env: str
    name: str
    seed: int
    config: PPOConfig
    notes: tuple[str, ...] = ()


def make_plan(job: PPOOptions, saved: Mapping[str, Any] | None, *, on_gpu: bool = False) -> PPOPlan:
    """Command line before checkpoint before preset before the environment's recipe.

    Raises:
        UsageError: a value that a knob does not take, or an option that would make the resumed run another
            one.
    """
    env, seed = job.env or DEFAULT_ENV, job.seed or 0
    if saved is not None:
        env, seed = saved["env"], saved["seed"]
        if job.env not in (None, env):
            raise UsageError(f"--env {job.env}: the checkpoint's run is of {env}")
        if job.seed not in (None, seed):
            raise UsageError(
                f"--seed {job.seed}: the checkpoint's run goes on with its own random numbers, of seed {seed}"
            )
    default = recipe(env)
    if job.preset is not None:
        default = dataclasses.replace(default, **preset(PRESETS, job.preset))
    held = dict(saved["config"]) if saved else None
    policy = job.knobs.get("policy", (held or {}).get("policy", default.policy))
    if held is not None and policy != held["policy"]:
        held |= dict.fromkeys(MODEL_SIZES, 0)  # they were those of the policy before
    named: Mapping[str, Any] = TRANSFORMERS.get(str(policy), {})
    default = dataclasses.replace(default, **named)
    config, notes = resolve(default, None if held is None else _filled(held, named), job.knobs)
    on_cpu = job.rollout_device == "cpu" or env not in RECIPES
    where = Circumstances(config=config, on_gpu=on_gpu, source=env, acts_on_cpu=on_cpu)
    check_applies(RULES, where, {**options_given(job), **job.knobs})
    with refused_by_option():
        config.check()
    sizes: Mapping[str, Any] = model_sizes(config)
    config = dataclasses.replace(config, **sizes)
    return PPOPlan(env, job.name or (saved["name"] if saved else _run_name(env)), seed, config, notes)


def _filled(held: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a checkpoint, with the sizes that it leaves to the policy's name."""
    return {**held, **{name: held.get(name) or size for name, size in named.items()}}


def _run_name(env: str) -> str:
    """ppo-cartpole for CartPole-v1, ppo-cartpole for phys2d/CartPole-v1."""
    return "ppo-" + re.split("[/:]", env)[-1].split("-")[0].lower()
