"""The command `hoptui train lm`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hoptui_trainer.common.options import KnobValues, knob_options
from hoptui_trainer.lm.config import PRESETS, LMConfig, preset_config
from hoptui_trainer.lm.job import LMOptions

if TYPE_CHECKING:
    LMKnobs = KnobValues
else:
    LMKnobs = knob_options(LMConfig, {name: preset_config(name) for name in PRESETS})


def lm(
    *,
    job: Annotated[LMOptions | None, Parameter(name="*")] = None,
    knobs: Annotated[LMKnobs | None, Parameter(name="*")] = None,
) -> int:
    """Train a language model on text of this machine. The options with bounds are knobs: `hoptui set` changes
    them while the run goes on.

    Presets: tiny (seconds on two cores; the default without a GPU), 124m (the default on a GPU), 350m, 760m.
    Several GPUs: `torchrun --nproc_per_node 2 -m hoptui_trainer lm`. Ctrl-C or SIGTERM finishes the
    iteration, writes a checkpoint if there is a folder for it, and exits with 0; a second one ends at once.
    A held-out loss asked for and not reached exits with 1, a bad option with 2.
    """
    job = job or LMOptions()
    # Here and not above, because it imports torch, which takes seconds.
    from hoptui_trainer.lm.train import train

    result = train(job, knobs or {}, partial(print, flush=True))
    return job.exit_code(result.ending)
