"""The knobs, the metrics and the cost that a run declares."""

from __future__ import annotations

import hoptui
from hoptui_trainer.common.applicability import Circumstances
from hoptui_trainer.common.knob_changes import KnobChanges
from hoptui_trainer.common.meter import Meter
from hoptui_trainer.vision.config import LOADING
from hoptui_trainer.vision.job import RULES
from hoptui_trainer.vision.state import VisionState


def declare(run: hoptui.Run, state: VisionState, meter: Meter) -> None:
    """Declare the run's knobs, metrics and cost. The run applies knobs between two iterations."""
    config = state.config
    tuning = KnobChanges(run, state, meter, lambda: declare_cost(run, state))
    reload = dict.fromkeys(LOADING, lambda _: state.reload())

    def circumstances() -> Circumstances:
        on_gpu = state.device.type == "cuda"
        return Circumstances(config=config, on_gpu=on_gpu, source=state.source.name)

    tuning.declare(
        RULES,
        circumstances,
        apply={"batch_size": tuning.batch("batch_size"), **reload},
        read={},
    )
    run.metric("samples_per_s", unit=f"{config.unit}/s", headline=True)
    run.metric("samples", unit=config.unit)
    run.metric("samples_total", unit=config.unit)
    run.metric("loss", unit="nat")
    run.metric("val_loss", unit="nat")
    declare_cost(run, state)


def declare_cost(run: hoptui.Run, state: VisionState) -> None:
    """Declare what an image or a clip costs; nothing on a CPU, whose peak is unknown."""
    if state.device.type == "cuda":
        cost = state.model.flops_per_sample()
        run.flops(cost, metric="samples_per_s", precision=state.precision)
