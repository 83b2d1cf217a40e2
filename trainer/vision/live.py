"""What the run shows of itself and lets others change while it goes on."""

from __future__ import annotations

from collections.abc import Callable

import hoptui
from trainer.common.device import gpu_uuid
from trainer.vision.state import AUTOMATIC, TrainingState


def declare(run: hoptui.Run, state: TrainingState) -> None:
    """Tell the run its knobs, its metrics, its GPU and its cost. Knobs are applied by the run, between two iterations."""
    config, world = state.config, state.ranks.world
    matrices = state.optimizer.param_groups[0]

    def chosen(name: str, then: Callable[[], None]) -> Callable[[object], None]:
        """What follows a choice by somebody: it is kept in checkpoints as theirs, unless they left it open again."""

        def apply(value: object) -> None:
            then()
            (state.automatic.add if value == AUTOMATIC.get(name) else state.automatic.discard)(name)
            declare_cost(run, state)

        return apply

    def cut(grad_accum: int) -> None:
        config.micro_batch = -(-config.largest_share(world) // grad_accum) if grad_accum else 0
        state.fit()
        (state.automatic.discard if grad_accum else state.automatic.add)("micro_batch")

    def decay(weight_decay: float) -> None:
        matrices["weight_decay"] = weight_decay

    reload = dict.fromkeys(("num_workers", "prefetch_factor", "pin_memory"), lambda _: state.reload())
    handles = run.knobs(
        config,
        apply={
            "batch_size": lambda _: state.fit(),
            "micro_batch": chosen("micro_batch", state.fit),
            "grad_accum": cut,
            "weight_decay": decay,
            "precision": chosen("precision", state.rebuild),
            "compile": chosen("compile", state.rebuild),
            **reload,
        },
        read={"weight_decay": lambda: matrices["weight_decay"]},
    )

    def smaller(before: int, now: int) -> None:
        reason = f"out of memory with micro-batches of {before}: the same batch is computed again in pieces of {now}"
        handles["micro_batch"].revert(now, reason)

    state.on_smaller = smaller
    run.metric("samples_per_s", unit="images/s", headline=True)
    run.metric("samples", unit="images")
    run.metric("samples_total", unit="images")
    run.metric("loss", unit="nat")
    if uuid := gpu_uuid(state.device):
        run.gpus([uuid])
    declare_cost(run, state)


def declare_cost(run: hoptui.Run, state: TrainingState) -> None:
    """Tell the run what an image costs; nothing on a CPU, whose peak nobody knows."""
    if state.device.type == "cuda":
        cost = state.model.flops_per_image()
        run.flops(cost, metric="samples_per_s", precision=state.precision)
