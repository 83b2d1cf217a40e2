"""The command `trainer lm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from trainer.common.options import KnobValues, knob_options
from trainer.lm.config import PRESETS, LMConfig, preset_config
from trainer.lm.job import LMOptions

if TYPE_CHECKING:
    LMKnobs = KnobValues
else:
    LMKnobs = knob_options(LMConfig, {name: preset_config(name) for name in PRESETS})

NOT_REACHED = 1


def lm(
    *,
    job: Annotated[LMOptions | None, Parameter(name="*")] = None,
    knobs: Annotated[LMKnobs | None, Parameter(name="*")] = None,
) -> int:
    """Train a language model on text of this machine. The options with bounds are knobs: `hoptui set` changes them
    while the run goes on.

    Presets: tiny (seconds on two cores; the default without a GPU), 124m (the default on a GPU), 350m, 760m. Several
    GPUs: `torchrun --nproc_per_node 2 -m trainer lm`. Ctrl-C or SIGTERM finishes the iteration, writes a checkpoint if
    there is a folder for it, and exits with 0; a second one ends at once. Bits a byte asked for and not reached exit
    with 1, a bad option with 2.
    """
    job = job or LMOptions()
    # Here and not above, because it imports torch, which takes seconds.
    from trainer.lm.train import train

    result = train(job, knobs or {}, _line)
    return NOT_REACHED if job.until_bpb is not None and result.ending == "finished" else 0


def _line(text: str) -> None:
    print(text, flush=True)
