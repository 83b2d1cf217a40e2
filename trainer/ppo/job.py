"""What one `trainer ppo` command asks for, and how that is settled with the checkpoint it resumes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.common.device import DeviceName
from trainer.common.errors import UsageError
from trainer.common.options import KnobValues, check_options, declared, option_name
from trainer.ppo.config import RECIPES, PPOConfig, recipe

DEFAULT_ENV = "CartPole-v1"


@dataclass(frozen=True, kw_only=True)
class Job:
    """The options of one command; None stands for one that was not given. `knobs` holds only the ones that were."""

    env: str | None = None
    name: str | None = None
    seed: int | None = None
    iterations: int = 1000
    device: DeviceName = "auto"
    threads: int | None = None
    evaluate_every: int = 10
    until_return: float | None = None
    checkpoint_dir: Path | None = None
    checkpoint_every: int = 0
    resume: Path | None = None
    knobs: KnobValues = dataclasses.field(default_factory=dict)

    def evaluation_due(self, iteration: int) -> bool:
        """Whether to evaluate after so many iterations: every few, and after the last."""
        if not self.evaluate_every:
            return False
        return iteration % self.evaluate_every == 0 or iteration == self.iterations


@dataclass(frozen=True)
class Plan:
    """A job settled: what will be run. `notes` says which source won for each knob that two sources disagree on."""

    env: str
    name: str
    seed: int
    config: PPOConfig
    notes: tuple[str, ...] = ()


def settle(job: Job, saved: Mapping[str, Any] | None) -> Plan:
    """Command line before checkpoint before the environment's recipe.

    Raises:
        UsageError: an unknown environment, a value that a knob does not take, or an option that would make the resumed
            run another one.
    """
    given = check_options(PPOConfig, job.knobs)
    if saved is None:
        env = job.env or DEFAULT_ENV
        _check_env(env)
        config = dataclasses.replace(recipe(env), **given)
        return Plan(env, job.name or _run_name(env), job.seed or 0, config)
    env, seed = saved["env"], saved["seed"]
    if job.env not in (None, env):
        raise UsageError(f"--env {job.env}: the checkpoint's run is of {env}")
    if job.seed not in (None, seed):
        raise UsageError(
            f"--seed {job.seed}: the checkpoint's run goes on with its own random numbers, of seed {seed}"
        )
    _check_env(env)
    held = PPOConfig(**saved["config"])
    config = dataclasses.replace(held, **given)
    notes = tuple(_origins(recipe(env), held, config, given))
    return Plan(env, job.name or saved["name"], seed, config, notes)


def _check_env(env: str) -> None:
    if env not in RECIPES:
        raise UsageError(f"--env {env}: there is no such environment; there are {', '.join(RECIPES)}")


def _run_name(env: str) -> str:
    return f"ppo-{env.split('-')[0].lower()}"


def _origins(default: PPOConfig, held: PPOConfig, settled: PPOConfig, given: KnobValues) -> list[str]:
    notes = []
    for name, _, _ in declared(PPOConfig):
        value, before, usual = (getattr(config, name) for config in (settled, held, default))
        if name in given and value != before:
            notes.append(f"{name} = {value:g} from {option_name(name)} (the checkpoint has {before:g})")
        elif value != usual:
            source = "the checkpoint" if name not in given else option_name(name)
            notes.append(f"{name} = {value:g} from {source} (the default is {usual:g})")
    return notes
