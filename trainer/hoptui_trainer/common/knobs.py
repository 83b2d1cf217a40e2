"""Knobs that more than one workload has, declared once: name their type in a config and give the workload's
default."""

from __future__ import annotations

from typing import Annotated

from hoptui import Knob
from hoptui_trainer.common.lr_schedule import SCHEDULES
from hoptui_trainer.common.modes import COMPILE_MODES, OPTIMIZERS, Precision

LearningRate = Annotated[float, Knob(1e-6, 1e-1, scale="log", description="highest learning rate of AdamW")]
Schedule = Annotated[str, Knob(choices=SCHEDULES, description="course of the learning rate")]
WarmUp = Annotated[
    float, Knob(0.0, 0.9, description="part of the iterations in which the learning rate rises")
]
WarmUpSteps = Annotated[
    int,
    Knob(
        0,
        1_000_000,
        scale="log",
        description="iterations in which the learning rate rises; 0 leaves that to warmup",
    ),
]
CoolDown = Annotated[
    float, Knob(0.01, 1.0, description="part of the iterations in which it falls at the end, with wsd")
]
FinalRate = Annotated[float, Knob(0.0, 1.0, description="learning rate at the end, as a part of the highest")]
GradientClip = Annotated[
    float, Knob(0.0, 100.0, description="greatest norm of a step's gradient; 0 does not clip")
]
Optimizer = Annotated[
    str,
    Knob(
        choices=OPTIMIZERS,
        cost="rebuild",
        description="adamw8bit keeps AdamW's moments in 8 bits: 2 bytes a weight instead of 8",
    ),
]
Compile = Annotated[
    str,
    Knob(choices=("auto", *COMPILE_MODES), effect="speed", cost="rebuild", description="torch.compile"),
]
Checkpointing = Annotated[
    bool,
    Knob(
        effect="speed",
        cost="rebuild",
        description="compute activations twice instead of keeping them: less memory, a third more work",
    ),
]
GradAccum = Annotated[
    int,
    Knob(
        0,
        1 << 16,
        scale="log",
        effect="speed",
        cost="shape",
        keeps="grad_accum × micro_batch",
        description="pieces that a GPU computes its part of a step in; 0 follows from micro_batch",
    ),
]


Width = Annotated[int, Knob(16, 8_192, scale="log", cost="restart", description="width; weights start anew")]
Layers = Annotated[int, Knob(1, 128, scale="log", cost="restart", description="blocks; weights start anew")]
Heads = Annotated[
    int, Knob(1, 128, scale="log", cost="restart", description="attention heads; weights start anew")
]


def micro_batch(samples: str, most: int) -> Knob:
    """How many `samples` a GPU computes at once."""
    return Knob(
        0,
        most,
        scale="log",
        effect="speed",
        cost="shape",
        keeps="grad_accum × micro_batch",
        description=f"{samples} that a GPU computes at once; 0 chooses by measurement",
    )


def precision(*names: Precision) -> Knob:
    """The number formats that a workload can compute in."""
    return Knob(
        choices=("auto", *names), effect="speed", cost="rebuild", description="of the matrix products"
    )
