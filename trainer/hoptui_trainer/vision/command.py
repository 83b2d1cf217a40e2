"""The command `hoptui train vision`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hoptui_trainer.common.options import KnobValues, knob_options
from hoptui_trainer.vision.config import PRESETS, VisionConfig, preset_config
from hoptui_trainer.vision.job import VisionOptions

if TYPE_CHECKING:
    VisionKnobs = KnobValues
else:
    VisionKnobs = knob_options(VisionConfig, {name: preset_config(name) for name in PRESETS})


def vision(
    *,
    job: Annotated[VisionOptions | None, Parameter(name="*")] = None,
    knobs: Annotated[VisionKnobs | None, Parameter(name="*")] = None,
) -> int:
    """Train a vision transformer to classify images. The options with bounds are knobs: `hoptui set` changes
    them while the run goes on.

    Presets: tiny (digits, seconds on one core; the default without a GPU), vit-s, vit-b (the default on a
    GPU), vit-l, vit-g (1.0 billion parameters). Several GPUs: `torchrun --nproc_per_node 2 -m hoptui_trainer
    vision`. Ctrl-C or SIGTERM finishes the iteration, writes a checkpoint if there is a folder for it, and
    exits with 0; a second one ends at once. An accuracy or loss asked for and not reached exits with 1, a
    bad option with 2.
    """
    job = job or VisionOptions()
    # Here and not above, because it imports torch, which takes seconds.
    from hoptui_trainer.vision.train import train

    result = train(job, knobs or {}, partial(print, flush=True))
    return job.exit_code(result.ending)
