"""The knobs, the metrics and the cost that a run declares."""

from __future__ import annotations

import hoptui
from hoptui_trainer.common.applicability import Circumstances
from hoptui_trainer.common.knob_changes import KnobChanges
from hoptui_trainer.common.meter import Meter
from hoptui_trainer.lm.job import RULES
from hoptui_trainer.lm.state import LMState


def declare(run: hoptui.Run, state: LMState, meter: Meter) -> None:
    """Declare the run's knobs, metrics and cost. The run applies knobs between two iterations."""
    config, world = state.config, state.ranks.world
    tuning = KnobChanges(run, state, meter, lambda: declare_cost(run, state))

    in_use = config.seq_len
    sequences, of = config.micro_batch, in_use  # a piece as a user, the tuner or memory chose it

    def lengthen(length: int) -> None:
        """A piece keeps its tokens, so that it takes the memory that it took: back at a length, it is the
        same one again."""
        nonlocal in_use, sequences, of
        config.check(world)
        before = config.micro_batch
        if before != max(1, sequences * of // in_use):
            sequences, of = before, in_use
        config.micro_batch = max(1, sequences * of // length)
        try:
            tuning.resize("micro_batch")
        except Exception:
            config.micro_batch = before
            raise
        in_use = length

    tuning.declare(
        RULES,
        lambda: Circumstances(config=config, on_gpu=state.device.type == "cuda"),
        apply={"batch_tokens": tuning.batch("batch_tokens"), "seq_len": lengthen},
        read={"batch_tokens": lambda: config.step_tokens},
    )
    run.metric("tokens_per_s", unit="tokens/s", headline=True)
    run.metric("tokens", unit="tokens")
    run.metric("tokens_total", unit="tokens")
    run.metric("loss", unit="nat/token")
    run.metric("val_loss", unit="nat/token")
    run.metric("val_bpb", unit="bit/byte")
    declare_cost(run, state)


def declare_cost(run: hoptui.Run, state: LMState) -> None:
    """Declare what a token costs: nothing on a CPU, whose peak is unknown."""
    if state.device.type == "cuda":
        cost = state.cost
        run.flops(cost.flops, metric="tokens_per_s", precision=cost.precision)
