"""Forward and backward of a compiled piece, launched kernel by kernel and as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.lm_steps import Figures, Machine, window
from benchmarks.measure import spread, tell
from hoptui_trainer.common.cuda_graphs import CudaRecorder
from hoptui_trainer.common.precision import autocast
from hoptui_trainer.common.ranks import ALONE
from hoptui_trainer.common.supervised_state import SupervisedState
from hoptui_trainer.lm.loss import graded, head_loss
from hoptui_trainer.vision.config import preset_config
from hoptui_trainer.vision.images import Images, synthetic
from hoptui_trainer.vision.state import VisionState

GRAPH_SIZES, REDUCED_SIZES, VISION_SIZES = (1, 4, 16, 32), (1, 16), (1, 8, 32)
QUEUED = 8
"""Pieces of a step follow each other without waiting."""

Piece = Callable[[], None]


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
    config = preset_config("tiny" if machine.quick else "vit-b")
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
                into.append(window(machine, once, size * each, QUEUED))
        ratios = [b / a for a, b in zip(*found, strict=True)]
        cases[str(size)] = tell(
            f"pieces of {size}",
            {"compiled": spread(found[0], 1), name: spread(found[1], 1), "ratio": spread(ratios, 3)},
        )
    return {"cases": cases}
