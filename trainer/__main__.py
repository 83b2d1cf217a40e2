"""The `trainer` command: `trainer ppo --env CartPole-v1 --until-return 475`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts
from cyclopts import Parameter
from cyclopts.validators import Number

import hoptui
from trainer.common.errors import UsageError
from trainer.common.options import KnobValues, knob_options, whole_number
from trainer.ppo.config import RECIPES, PPOConfig, recipe

if TYPE_CHECKING:
    PPOKnobs = KnobValues
else:
    PPOKnobs = knob_options(PPOConfig, {env: recipe(env) for env in RECIPES})

BAD_USAGE = 2
NOT_REACHED = 1
INTERRUPTED = 130

app = cyclopts.App(
    name="trainer",
    version=hoptui.__version__,
    help="Training workloads that hoptui can steer.",
    suppress_keyboard_interrupt=False,
)
AtLeastOne = Annotated[int, Parameter(converter=whole_number, validator=Number(gte=1))]
NotNegative = Annotated[int, Parameter(converter=whole_number, validator=Number(gte=0))]


@app.command
def ppo(
    *,
    env: str | None = None,
    name: str | None = None,
    seed: NotNegative | None = None,
    iterations: AtLeastOne = 1000,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: AtLeastOne | None = None,
    evaluate_every: NotNegative = 10,
    until_return: float | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    checkpoint_dir: Path | None = None,
    checkpoint_every: NotNegative = 0,
    resume: Path | None = None,
    knobs: Annotated[PPOKnobs | None, Parameter(name="*")] = None,
) -> int:
    """Train a policy by PPO. The options with bounds are knobs: `hoptui set` changes them while the run goes on.

    Ctrl-C or SIGTERM finishes the iteration, writes a checkpoint if there is a folder for it, and exits with 0; a
    second one ends at once. A return asked for and not reached exits with 1, a bad option with 2.

    Parameters
    ----------
    env
        Environment: CartPole-v1 or Pendulum-v1 [default: CartPole-v1].
    name
        Name of the run in hoptui [default: ppo-cartpole, ppo-pendulum].
    seed
        Seed of all random numbers; the same seed gives the same run [default: 0].
    iterations
        Iterations (one rollout and one update) after which to end, counted from the start of the run.
    device
        Where to train; auto takes the first GPU if there is one.
    threads
        CPU threads of torch [default: by the size of a micro-batch].
    evaluate_every
        Iterations between two evaluations; 0 is never.
    until_return
        End as soon as an evaluation returns at least so much.
    json
        Print nothing but the result, as one line of JSON.
    checkpoint_dir
        Folder for checkpoints; one is written at the end.
    checkpoint_every
        Iterations between two checkpoints; 0 is only at the end and on request.
    resume
        Checkpoint to go on from, or a folder whose newest is taken. Options given win over what it holds.
    """
    if until_return is not None and not math.isfinite(until_return):
        raise UsageError(f"--until-return takes a finite number, not {until_return}")
    if until_return is not None and not evaluate_every:
        raise UsageError("--until-return needs evaluations: --evaluate-every must not be 0")
    if checkpoint_every and checkpoint_dir is None:
        raise UsageError("--checkpoint-every needs a folder: --checkpoint-dir")

    # Here and not above, because they import torch, which takes seconds.
    from trainer.ppo.job import Job
    from trainer.ppo.train import train

    job = Job(
        env=env,
        name=name,
        seed=seed,
        iterations=iterations,
        device=device,
        threads=threads,
        evaluate_every=evaluate_every,
        until_return=until_return,
        checkpoint_dir=checkpoint_dir,
        checkpoint_every=checkpoint_every,
        resume=resume,
        knobs=knobs or {},
    )
    result = train(job, _silent if json else _line)
    if json:
        _line(result.json())
    return NOT_REACHED if until_return is not None and result.ending == "finished" else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (cyclopts.CycloptsError, UsageError) as error:
        print(f"trainer: {error}", file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        print("trainer: ended at once", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the lines has gone; without this, Python would complain once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_REACHED
    return code or 0


def _line(text: str) -> None:
    print(text, flush=True)


def _silent(_: str) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
