"""`hoptui train ppo`: the command line of the workload. torch is imported when training starts, not
before."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hoptui_trainer.common.options import KnobValues, knob_options
from hoptui_trainer.ppo.config import RECIPES, PPOConfig, recipe
from hoptui_trainer.ppo.job import PPOOptions

if TYPE_CHECKING:
    PPOKnobs = KnobValues
else:
    PPOKnobs = knob_options(PPOConfig, {env: recipe(env) for env in RECIPES})


def ppo(
    job: Annotated[PPOOptions | None, Parameter(name="*")] = None,
    *,
    knobs: Annotated[PPOKnobs | None, Parameter(name="*")] = None,
) -> int:
    """Train a policy by PPO. The options with bounds are knobs: `hoptui set` changes them while the run goes
    on.

    Presets: tiny (seconds on two cores), cartpole (a full GPU), h100-before and h100-after (a large
    transformer with the two settings of the H100 guide). Several GPUs: `torchrun --nproc_per_node 2 -m
    hoptui_trainer ppo`. Ctrl-C or SIGTERM finishes the iteration, writes a checkpoint if there is a folder
    for it, and exits with 0; a second one ends at once. A return asked for and not reached exits with 1, a
    bad option with 2.
    """
    from hoptui_trainer.ppo.train import train

    job = dataclasses.replace(job or PPOOptions(), knobs=knobs or {})
    result = train(job, partial(print, flush=True))
    return job.exit_code(result.ending)
