"""What the run shows of itself and lets others change while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import hoptui
from trainer.common.device import gpu_uuid
from trainer.common.restart import Restart
from trainer.lm.state import AUTOMATIC, TrainingState

RESTARTS = ("d_model", "layers", "heads")


def declare(run: hoptui.Run, state: TrainingState, restart: Restart) -> Mapping[str, hoptui.KnobHandle[Any]]:
    """Tell the run its knobs, its metrics, its GPU and its cost; returns the knobs' handles.

    Knobs are applied by the run, between two iterations.

    What needs another compilation or other memory is rehearsed before it is said to be applied: it stands still there,
    and what cannot be is refused there, not in the next step.
    """
    config, world = state.config, state.ranks.world

    def chosen(name: str, then: Callable[[], None]) -> Callable[[object], None]:
        """What follows a choice by somebody: it is kept in checkpoints as theirs, unless they left it open again."""

        def apply(value: object) -> None:
            then()
            (state.automatic.add if value == AUTOMATIC.get(name) else state.automatic.discard)(name)
            declare_cost(run, state)

        return apply

    told = len(state.notes)

    def tell() -> None:
        """What was measured to choose something, as an event."""
        nonlocal told
        for note in state.notes[told:]:
            run.event(note)
        told = len(state.notes)

    def cut() -> None:
        in_use = state.pieces.micro_batch
        state.fit()
        tell()
        if state.pieces.micro_batch != in_use:  # else memory has just run out, and it was halved already
            state.rehearse()

    def accumulate(grad_accum: int) -> None:
        config.micro_batch = config.piece_for(grad_accum, world) if grad_accum else config.micro_batch
        cut()
        state.automatic.discard("micro_batch")

    def lengthen(length: int) -> None:
        """A piece keeps its tokens, so that it takes the memory that it took."""
        config.check(world)
        held = state.held_out.length
        config.micro_batch = max(1, config.micro_batch * held // length)
        state.fit()
        tell()
        state.rehearse()
        declare_cost(run, state)

    def resize(_: int) -> None:
        state.fit()
        state.rehearse()

    def rebuild() -> None:
        state.rebuild()
        tell()
        state.rehearse()

    def decay(weight_decay: float) -> None:
        state.optimizer.param_groups[0]["weight_decay"] = weight_decay

    def begin_anew(name: str) -> Callable[[int], None]:
        ask = restart.ask(name, lambda: state.shape[name])

        def apply(value: int) -> None:
            config.check(world)
            ask(value)

        return apply

    handles = run.knobs(
        config,
        apply={
            "batch_tokens": resize,
            "micro_batch": chosen("micro_batch", cut),
            "grad_accum": accumulate,
            "seq_len": lengthen,
            "weight_decay": decay,
            "precision": chosen("precision", rebuild),
            "compile": chosen("compile", rebuild),
            "checkpointing": chosen("checkpointing", rebuild),
            **{name: begin_anew(name) for name in RESTARTS},
        },
        read={
            "batch_tokens": lambda: config.step_tokens,
            "weight_decay": lambda: state.optimizer.param_groups[0]["weight_decay"],
        },
    )

    def smaller(before: int, now: int) -> None:
        reason = f"out of memory with micro-batches of {before}: the same batch is computed again in pieces of {now}"
        left_open = set(state.automatic)
        handles["micro_batch"].revert(now, reason)
        state.automatic |= left_open

    state.on_smaller = smaller
    run.metric("tokens_per_s", unit="tokens/s", headline=True)
    run.metric("tokens", unit="tokens")
    run.metric("tokens_total", unit="tokens")
    run.metric("loss", unit="nat/token")
    run.metric("val_loss", unit="nat/token")
    run.metric("val_bpb", unit="bit/byte")
    if uuid := gpu_uuid(state.device):
        run.gpus([uuid])
    declare_cost(run, state)
    return handles


def declare_cost(run: hoptui.Run, state: TrainingState) -> None:
    """Tell the run what a token costs: nothing on a CPU, whose peak nobody knows, nor under FP8, which has two."""
    if state.device.type == "cuda":
        known = state.precision != "fp8"
        cost = state.model.flops_per_token(state.config.seq_len) if known else 0.0
        run.flops(cost, metric="tokens_per_s", precision=state.precision)
