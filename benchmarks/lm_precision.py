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
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.backends import cuda

from benchmarks.measure import report, spread, tell
from benchmarks.overlapped_gradient import OverlappedGradient
from hoptui_trainer.common.attention import SWITCHES
from hoptui_trainer.common.compilation import compiled
from hoptui_trainer.common.cuda_graphs import CudaRecorder
from hoptui_trainer.common.device import wait_for
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.flops import mfu
from hoptui_trainer.common.memory import greatest_bytes, prove_first_step, release, reset_peak
from hoptui_trainer.common.modes import ShardMode
from hoptui_trainer.common.optimizer import BETAS, make_optimizer
from hoptui_trainer.common.phases import NO_CLOCK
from hoptui_trainer.common.piece_graphs import PieceGraphs
from hoptui_trainer.common.precision import autocast
from hoptui_trainer.common.ranks import ALONE, join
from hoptui_trainer.common.supervised_state import SupervisedState
from hoptui_trainer.lm.config import preset_config
from hoptui_trainer.lm.loss import graded, head_loss
from hoptui_trainer.lm.state import LMState
from hoptui_trainer.lm.token_files import TokenStreams
from hoptui_trainer.lm.update import update
from hoptui_trainer.vision.config import preset_config as vision_preset
from hoptui_trainer.vision.images import Images, synthetic
from hoptui_trainer.vision.state import VisionState

WINDOWS, WINDOW_S = 5, 0.8
PIECES = {"124m": 64, "350m": 32, "760m": 8, "tiny": 4}
"""Sequences of a piece: those that a run on an H100 chooses by measurement, or less; a step has two."""
LEARNING_STEPS = 40
RATE = 3e-4
GRAPH_SIZES, REDUCED_SIZES, VISION_SIZES = (1, 4, 16, 32), (1, 16), (1, 8, 32)
EXCHANGE_SIZES = (8, 64)
HELD_OUT = 65_536
QUEUED = 8
"""Pieces of a step follow each other without waiting."""
QUICK = {"d_model": 32, "layers": 1, "heads": 2, "seq_len": 32, "vocab_size": 256}

Figures = dict[str, Any]
Piece = Callable[[], None]


class Machine:
    """Where it is measured; with `quick` the mechanics alone are tried, on a CPU."""

    def __init__(self, size: str, *, quick: bool) -> None:
        self.quick = quick
        self.size = "tiny" if quick else size
        self.device = torch.device("cpu") if quick else torch.device("cuda", 0)
        self.ranks = join("cpu" if quick else "cuda")
        self.windows, self.window_s = (2, 0.0) if quick else (WINDOWS, WINDOW_S)
        self.text = python_text(200_000 if quick else 8_000_000)

    def tell(self, case: str, figures: Figures) -> Figures:
        """`measure.tell`, on the first rank."""
        return figures if self.ranks.rank else tell(case, figures)

    def state(self, piece: int | None, pieces: int = 2, shard: ShardMode = "none", **fields: Any) -> LMState:
        """A state whose step is so many pieces for each rank, `fields` of its config as they are given."""
        config = preset_config(self.size)
        for name, value in ({**QUICK, "compile": "off", "precision": "fp32"} if self.quick else {}).items():
            setattr(config, name, value)
        config.micro_batch = piece or PIECES[self.size]
        config.eval_tokens, config.tokenizer = HELD_OUT, "bytes"
        for name, value in fields.items():
            if not (self.quick and name in ("compile", "precision")):
                setattr(config, name, value)
        config.batch_tokens = pieces * config.micro_batch * config.seq_len * self.ranks.world
        return LMState(config, 0, self.device, self.ranks, self.text, shard)


def python_text(limit: int) -> TokenStreams:
    """The sources of Python's library, as bytes: one token each."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    content = b"".join(source.read_bytes() for source in sources)[:limit]
    tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(torch.int16)
    return TokenStreams(tokens[HELD_OUT:], tokens[:HELD_OUT], torch.ones(256, dtype=torch.int64))


def step(state: LMState) -> Tensor:
    """One step; its mean loss (0-d)."""
    return update(state, RATE, NO_CLOCK)["loss"]


def rates(
    machine: Machine, once: Callable[[], object], work: float, windows: int | None = None
) -> list[float]:
    """Work a second in each window, after two calls that compile."""
    once(), once()
    return [_window(machine, once, work) for _ in range(windows or machine.windows)]


def _window(machine: Machine, once: Callable[[], object], work: float, queued: int = 1) -> float:
    """`queued` calls follow each other before anything waits for the device."""
    wait_for(machine.device)
    began, done = time.monotonic(), 0
    while not done or machine.ranks.all(time.monotonic() - began < machine.window_s):
        for _ in range(queued):
            once()
        done += queued
        wait_for(machine.device)
    return done * work / (time.monotonic() - began)


def measured(machine: Machine, state: LMState) -> Figures:
    """Tokens a second, MFU and the greatest memory of steps of `state`."""
    reset_peak(machine.device)
    first_s = first_step(machine, state)
    found = spread(rates(machine, lambda: step(state), state.config.step_tokens), 1)
    return {
        "tokens_per_s": found,
        "mfu": mfu(state.cost, found["median"], machine.device, machine.ranks.world),
        "peak_memory_gb": round((greatest_bytes(machine.device) or 0) / 1e9, 2),
        "first_step_s": first_s,
    }


def first_step(machine: Machine, state: LMState) -> float:
    """Seconds of a step, which compiles if it is the first one."""
    began = time.monotonic()
    step(state)
    wait_for(machine.device)
    return round(time.monotonic() - began, 1)


def learned(machine: Machine, state: LMState) -> Figures:
    """The mean loss of the last eight of some steps from new weights."""
    found = [step(state) for _ in range(2 if machine.quick else LEARNING_STEPS)]
    return {"steps": len(found), "loss": round(float(torch.stack(found[-8:]).mean()), 4)}


def ended(machine: Machine) -> None:
    """Give back what the last case has used: its state must be unknown by now."""
    torch.compiler.reset()
    release(machine.device)


def versus(cases: Mapping[str, Figures], one: str, other: str) -> float | None:
    """The rate of one case over that of another; None if one of them was left out."""
    if not all("tokens_per_s" in cases[name] for name in (one, other)):
        return None
    rate, base = (float(cases[name]["tokens_per_s"]["median"]) for name in (one, other))
    return round(rate / base, 3)


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


# CUDA graphs ------------------------------------------------------------------------------------------------


def graphs(machine: Machine) -> Figures:
    """A compiled piece of the language model, and its CUDA graph."""
    state = machine.state(max(GRAPH_SIZES[: 2 if machine.quick else None]), compile="default")
    length = state.config.seq_len

    def pieces(size: int) -> tuple[Piece, Piece]:
        inputs, targets = state.sampler.take(0, size, length)

        def plain() -> None:
            torch.autograd.backward(state.nats(*state.sampler.take(0, size, length)))

        replay = captured(state, lambda: state.nats(inputs, targets))

        def graphed() -> None:
            found = state.sampler.take(0, size, length)
            inputs.copy_(found[0])
            targets.copy_(found[1])
            replay()

        return plain, graphed

    return in_turns(machine, GRAPH_SIZES, pieces, length, "graph")


def graphs_vision(machine: Machine) -> Figures:
    """A compiled piece of a ViT-B, and its CUDA graph."""
    config = vision_preset("tiny" if machine.quick else "vit-b")
    config.micro_batch = config.batch_size = max(VISION_SIZES)
    if not machine.quick:
        config.compile, config.precision = "default", "bf16"
    state = VisionState(config, 0, machine.device, ALONE, synthetic(config.image_size, machine.device))

    def pieces(size: int) -> tuple[Piece, Piece]:
        side, places = config.image_size, torch.arange(size, device=machine.device)
        pixels = torch.randint(0, 256, (size, state.source.channels, side, side), dtype=torch.uint8)
        batch = Images(pixels.to(machine.device), torch.zeros_like(places))

        def loss() -> Tensor:
            return state.losses(batch, places)[0]

        return lambda: torch.autograd.backward(loss()), captured(state, loss)

    return in_turns(machine, VISION_SIZES, pieces, 1, "graph")


def reduced(machine: Machine) -> Figures:
    """A compiled piece of the language model, and the same with `mode="reduce-overhead"`."""
    state = machine.state(max(REDUCED_SIZES), compile="default")
    model, length = state.model, state.config.seq_len
    grade = graded if machine.quick else torch.compile(graded, fullgraph=True)

    def piece(forward: Callable[[Tensor], Tensor], size: int) -> Piece:
        def once() -> None:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            inputs, targets = state.sampler.take(0, size, length)
            with autocast(state.precision, machine.device):
                hidden = forward(inputs)
            torch.autograd.backward(head_loss(hidden, model.table, targets, grade))

        return once

    def pieces(size: int) -> tuple[Piece, Piece]:
        if machine.quick:
            return piece(model, size), piece(model, size)
        ways = (None, "reduce-overhead")
        ours, theirs = (piece(torch.compile(model, fullgraph=True, mode=way), size) for way in ways)
        return ours, theirs

    return in_turns(machine, REDUCED_SIZES, pieces, length, "reduce-overhead")


def captured(state: SupervisedState[Any, Any], loss: Callable[[], Tensor]) -> Piece:
    """Forward and backward of `loss` as a graph; on a CPU as they are."""

    def work() -> None:
        state.gradient.add(loss())

    if state.device.type != "cuda":
        return work
    recorder = CudaRecorder(state.device)
    for _ in range(2):
        recorder.warm_up(work)
    return recorder.capture(work)


def in_turns(
    machine: Machine, sizes: Sequence[int], pieces: Callable[[int], tuple[Piece, Piece]], each: int, name: str
) -> Figures:
    """For each size of a piece the rates of two ways to compute it, in turns, and their ratio."""
    cases: dict[str, Figures] = {}
    for size in sizes[: 2 if machine.quick else None]:
        plain, other = pieces(size)
        found: tuple[list[float], list[float]] = ([], [])
        for once in (plain, other):
            once(), once(), once()
        for _ in range(machine.windows):
            for once, into in zip((plain, other), found, strict=True):
                into.append(_window(machine, once, size * each, QUEUED))
        ratios = [b / a for a, b in zip(*found, strict=True)]
        cases[str(size)] = tell(
            f"pieces of {size}",
            {"compiled": spread(found[0], 1), name: spread(found[1], 1), "ratio": spread(ratios, 3)},
        )
    return {"cases": cases}


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
