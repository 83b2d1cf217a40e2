"""P1–P4: what each optimisation of the language model is worth, one part at a time on one GPU.

`python -m benchmarks.lm_precision PART [--size 124m|350m|760m]`, in one process without the daemon:

- `steps`: from fp32, eager, to all optimisations; each case changes one thing of the case before.
- `fp8`: bf16 and FP8 with their MFU, and the losses of both on the same data.
- `optimizer`: AdamW's moments in float32 and in 8 bits: memory, speed, losses on the same data.
- `graphs`: forward and backward of a compiled piece, launched kernel by kernel and as a CUDA graph.
- `reduce-overhead`: the same by torch.compile's own mode.
- `graphs-vision`: `graphs` for a ViT-B.

Two parts are for several GPUs: `torchrun --standalone --nproc-per-node 2 -m benchmarks.lm_precision PART`.

- `shard`: whole weights and both kinds of shards: memory, speed, losses on the same data.
- `overlap`: one all-reduce of the gradients after the backward pass, and buckets during it.

Rates are in turns of a few seconds, after compilation. The text is the sources of Python's library in bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch.backends import cuda

from benchmarks.lm_graphs import graphs, graphs_vision, reduced
from benchmarks.lm_steps import (
    PIECES,
    Figures,
    Machine,
    ended,
    first_step,
    learned,
    measured,
    rates,
    step,
    versus,
)
from benchmarks.measure import report, spread, tell
from benchmarks.overlapped_gradient import OverlappedGradient
from hoptui_trainer.common.attention import SWITCHES
from hoptui_trainer.common.compilation import compiled
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.memory import prove_first_step
from hoptui_trainer.common.optimizer import BETAS, make_optimizer
from hoptui_trainer.common.piece_graphs import PieceGraphs
from hoptui_trainer.lm.state import LMState

EXCHANGE_SIZES = (8, 64)

# steps ------------------------------------------------------------------------------------------------------

LADDER: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("fp32, eager, plain attention, foreach AdamW, pieces of 8", {}),
    ("tf32", {"precision": "tf32"}),
    ("bf16", {"precision": "bf16"}),
    ("attention kernel by measurement", {"attention": True}),
    ("torch.compile", {"compile": "default"}),
    ("CUDA graphs", {"graphs": True}),
    ("fused AdamW", {"fused": True}),
    ("pieces as measured", {"piece": 0}),
    ("fp8", {"precision": "fp8"}),
)
"""Each case has the changes of all before it; `piece` 0 is that of `PIECES`. Attention comes before the
compiler, which replaces the plain formula by a kernel."""
FIRST = {
    "precision": "fp32", "compile": "off", "attention": False, "graphs": False, "fused": False, "piece": 8,
}  # fmt: skip


def steps(machine: Machine) -> Figures:
    """What each optimisation adds to those before it."""
    cases: dict[str, Figures] = {}
    now: dict[str, Any] = dict(FIRST)
    before, state = "", None
    for name, change in LADDER:
        now |= change
        if state is None or not change.keys() <= {"graphs", "fused"}:  # the others need another model
            state = None
            ended(machine)
            try:
                state = machine.state(
                    now["piece"] or None, precision=now["precision"], compile=now["compile"]
                )
            except UsageError as error:
                cases[name] = tell(name, {"left_out": str(error)})
                continue
            state.config.batch_tokens = PIECES[machine.size] * state.config.seq_len  # as much work in each
        state.optimizer = fused_adamw(state) if now["fused"] else foreach_adamw(state)
        with (
            nullcontext() if now["attention"] else plain_attention(),
            nullcontext() if now["graphs"] else mock.patch.object(PieceGraphs, "active", False),
        ):
            cases[name] = measured(machine, state)
        if before:
            cases[name]["times_the_case_before"] = versus(cases, name, before)
        tell(name, cases[name])
        before = name
    return {"cases": cases, "last over first": versus(cases, before, LADDER[0][0])}


def fused_adamw(state: LMState) -> torch.optim.Optimizer:
    """AdamW as a run has it."""
    state.gradient.clear()
    groups = [{"params": state.model.parameters(), "weight_decay": state.config.weight_decay}]
    return make_optimizer("adamw", groups, state.device)


def foreach_adamw(state: LMState) -> torch.optim.AdamW:
    """AdamW as torch takes it by default on a GPU: not fused."""
    lr = torch.zeros((), device=state.device)
    gpu = state.device.type == "cuda"
    optimizer = torch.optim.AdamW(
        state.model.parameters(), lr=lr, betas=BETAS, weight_decay=0.1, foreach=gpu, capturable=gpu
    )
    state.gradient.clear()
    optimizer.step()
    return optimizer


@contextmanager
def plain_attention() -> Iterator[None]:
    """In here attention is the formula as it is written."""
    kernels = (
        cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
        cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
    )
    for switch in SWITCHES.values():
        switch(False)
    try:
        yield
    finally:
        for switch, on in zip(SWITCHES.values(), kernels, strict=True):
            switch(on)


# precision and optimizer ------------------------------------------------------------------------------------


def compared(machine: Machine, field: str, values: Sequence[str]) -> Figures:
    """Runs that differ in one field of their config: from new weights, on the same data."""
    cases: dict[str, Figures] = {}
    for value in values:
        try:
            fields: dict[str, Any] = {"compile": "default", "precision": "bf16", field: value}
            state = machine.state(None, **fields)
        except UsageError as error:
            cases[value] = tell(value, {"left_out": str(error)})
            continue
        start_s = first_step(machine, state)
        cases[value] = {
            **learned(machine, state),
            **measured(machine, state),
            "first_step_s": start_s,
            "optimizer_gb": round(moment_bytes(state.optimizer) / 1e9, 3),
            "optimizer_step_ms": spread(optimizer_ms(machine, state), 3),
        }
        tell(value, cases[value])
        del state
        ended(machine)
    return {"cases": cases, f"{values[1]} over {values[0]}": versus(cases, values[1], values[0])}


def moment_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all moments."""
    parts = [
        part
        for moments in optimizer.state.values()
        for value in moments.values()
        for part in ((value.codes, value.scale) if hasattr(value, "codes") else (value,))
    ]
    return sum(part.numel() * part.element_size() for part in parts)


def optimizer_ms(machine: Machine, state: LMState) -> list[float]:
    """Milliseconds of a step of the optimizer alone."""
    return [1e3 / rate for rate in rates(machine, state.optimizer.step, 1.0)]


# several GPUs -----------------------------------------------------------------------------------------------


def shard(machine: Machine) -> Figures:
    """Whole weights and shards of them."""
    cases: dict[str, Figures] = {}
    for mode in ("none", "grad", "full"):
        state = machine.state(None, shard=mode, compile="default", precision="bf16")
        prove_first_step(machine.ranks, state.prove_sizes)
        cases[mode] = machine.tell(mode, {**learned(machine, state), **measured(machine, state)})
        del state
        ended(machine)
    return {
        "ranks": machine.ranks.world,
        "cases": cases,
        **{f"{mode} over none": versus(cases, mode, "none") for mode in ("grad", "full")},
    }


def overlap(machine: Machine) -> Figures:
    """A step of one piece, with the exchange after its backward pass and during it.

    Compiled as a whole the model has all gradients at the end, compiled by blocks one block after the other.
    """
    cases: dict[str, Figures] = {}
    for size in EXCHANGE_SIZES if not machine.quick else (2,):
        for blocks in (False, True):
            state = machine.state(size, pieces=1, compile="default", precision="bf16")
            if blocks:
                for block in state.model.blocks:
                    block.forward = compiled(block.forward, state.compile_mode)
                state.forward = state.model
            name = f"pieces of {size}, compiled {'by blocks' if blocks else 'as a whole'}"
            with mock.patch.object(PieceGraphs, "active", False):
                prove_first_step(machine.ranks, state.prove_sizes)
                cases[name] = machine.tell(name, _exchanged(machine, state))
            del state
            ended(machine)
    return {"ranks": machine.ranks.world, "cases": cases}


def _exchanged(machine: Machine, state: LMState) -> Figures:
    parameters = list(state.model.parameters())
    flat = FlatGradient(parameters, ranks=machine.ranks)
    overlapped = OverlappedGradient(parameters, machine.ranks)
    found: dict[str, list[float]] = {"after": [], "during": []}
    for turn in range(-1, machine.windows):
        for name, gradient in (("after", flat), ("during", overlapped)):
            gradient.attach()
            state.gradient = gradient
            rate = rates(machine, lambda: step(state), state.config.step_tokens, windows=1)
            found[name] += rate if turn >= 0 else []
    ratios = [b / a for a, b in zip(found["after"], found["during"], strict=True)]
    figures = {name: spread(values, 1) for name, values in found.items()}
    return {**figures, "ratio": spread(ratios, 4), "buckets_early": overlapped.early}


PARTS: Mapping[str, Callable[[Machine], Figures]] = {
    "steps": steps,
    "fp8": lambda machine: compared(machine, "precision", ("bf16", "fp8")),
    "optimizer": lambda machine: compared(machine, "optimizer", ("adamw", "adamw8bit")),
    "graphs": graphs,
    "reduce-overhead": reduced,
    "graphs-vision": graphs_vision,
    "shard": shard,
    "overlap": overlap,
}


def main(arguments: Sequence[str] = ()) -> Figures:
    """Measure one part and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--size", choices=[name for name in PIECES if name != "tiny"], default="124m")
    parser.add_argument(
        "--quick", action="store_true", help="try the mechanics on a CPU in seconds; keeps no result"
    )
    given = parser.parse_args(list(arguments))
    if given.quick:
        torch.set_num_threads(1)
    machine = Machine(given.size, quick=given.quick)
    figures = {"part": given.part, "size": machine.size, "unit": "work/s", **PARTS[given.part](machine)}
    machine.ranks.close()
    if given.quick:
        if not machine.ranks.rank:
            print(json.dumps(figures), flush=True)
        return figures
    if machine.ranks.rank:
        return figures
    return report(f"lm_precision_{given.part}_{given.size}", {**figures, "met": {}})


if __name__ == "__main__":
    main(sys.argv[1:])
