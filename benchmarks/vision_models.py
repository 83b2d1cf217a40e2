"""V2: large models, larger images and clips on one GPU: rates, MFU, memory, and what settings bring.

`python -m benchmarks.vision_models [CASE …] [--limit-s 220] [--quick]`, in one process without the daemon:

- `cudnn`: `cudnn.benchmark` off and on, for the steps of a ViT-B, for its patch embedding, and for the
  convolution that others use in its place.
- `attention`: milliseconds of each kernel at the shapes of the models here.
- `vit-l`, `vit-l-checkpointing`: the same steps without and with gradient checkpointing.
- `vit-g-checkpointing`, `vit-g`: 1.0 billion parameters.
- `clips`: ViT-B on 32 frames of 224², in tubelets of 2 × 16².
- `512`: ViT-L on images of 512².
- `vit-b-eager`, `vit-b`, `vit-b-max-autotune`: without torch.compile, and in its modes.

Cases that the limit leaves no time for are listed as `left_out`. Micro-batches are given, so that no time
goes into choosing them. Rates are in turns, after compilation. Images are synthetic and in the GPU's memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.lm_steps import rate
from benchmarks.measure import BEGAN, report, spread, tell
from hoptui_trainer.common.attention import fastest, measured_kernels
from hoptui_trainer.common.flops import Cost, mfu
from hoptui_trainer.common.memory import is_out_of_memory, release
from hoptui_trainer.common.phases import NO_CLOCK
from hoptui_trainer.common.precision import autocast
from hoptui_trainer.common.ranks import ALONE
from hoptui_trainer.vision import images
from hoptui_trainer.vision.config import VisionConfig, preset_config
from hoptui_trainer.vision.images import synthetic
from hoptui_trainer.vision.model import patches
from hoptui_trainer.vision.state import VisionState
from hoptui_trainer.vision.update import update

Figures = dict[str, Any]

RATE = 1e-4
WINDOWS, WINDOW_S = 4, 0.8
POOL_BYTES = 1 << 28
LEAST_SAVED = 0.6
"""The peak of ViT-L with checkpointing, as a part of that without it: at most so much."""
CARD_BYTES = 80e9
"""What a model of a billion parameters is to fit into."""


class ModelCase(NamedTuple):
    """A preset, what is different from it, and the seconds that the case takes on an H100 at most."""

    preset: str
    fields: Mapping[str, Any]
    seconds: float = 45.0


LARGE: Mapping[str, Any] = {"batch_size": 256, "micro_batch": 128}
GIANT: Mapping[str, Any] = {"batch_size": 64, "micro_batch": 32}
WHOLE: Mapping[str, Any] = {"batch_size": 256, "micro_batch": 256}
MODELS: Mapping[str, ModelCase] = {
    "vit-l": ModelCase("vit-l", LARGE),
    "vit-l-checkpointing": ModelCase("vit-l", {**LARGE, "checkpointing": True}),
    "vit-g-checkpointing": ModelCase("vit-g", {**GIANT, "checkpointing": True}, 75.0),
    "clips": ModelCase("vit-b", {"batch_size": 32, "micro_batch": 16, "frames": 32, "tubelet": 2}),
    "512": ModelCase("vit-l", {"batch_size": 64, "micro_batch": 32, "image_size": 512}),
    "vit-g": ModelCase("vit-g", GIANT, 75.0),
    "vit-b-eager": ModelCase("vit-b", {**WHOLE, "compile": "off"}, 20.0),
    "vit-b": ModelCase("vit-b", WHOLE, 35.0),
    "vit-b-max-autotune": ModelCase("vit-b", {**WHOLE, "compile": "max-autotune"}, 150.0),
}
CASES = ("cudnn", "attention", *MODELS)
SETTINGS_S = 15.0
"""Seconds that `cudnn` and `attention` take each at most."""
TINY = {"d_model": 32, "layers": 2, "heads": 2, "patch_size": 8, "compile": "off", "precision": "fp32"}


class Machine:
    """Where it is measured; with `quick` the mechanics alone are tried, on a CPU and with tiny models."""

    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self.device = torch.device("cpu") if quick else torch.device("cuda", torch.cuda.current_device())
        self.windows, self.window_s = (2, 0.0) if quick else (WINDOWS, WINDOW_S)

    def config(self, case: ModelCase) -> VisionConfig:
        """The config of a case."""
        config = replace(preset_config(case.preset), **case.fields)
        if not self.quick:
            return config
        fewer = {"batch_size": 4, "micro_batch": 2, "image_size": config.image_size // 224 * 16}
        tiny: Mapping[str, Any] = {**TINY, **fewer}
        return replace(config, **tiny)

    def state(self, config: VisionConfig) -> VisionState:
        """A new model on synthetic images or clips."""
        return VisionState(
            config, 0, self.device, ALONE, synthetic(config.image_size, self.device, config.frames)
        )

    def rates(self, once: Callable[[], object], work: float) -> list[float]:
        """Work a second in each window; `once` has been called before."""
        return [rate(once, work, self.window_s, self.device) for _ in range(self.windows)]


def step(state: VisionState) -> Tensor:
    """One step; its mean loss (0-d)."""
    return update(state, RATE, NO_CLOCK)["loss"]


def measured(machine: Machine, case: ModelCase) -> Figures:
    """Samples a second, MFU and memory of the steps of a model."""
    config, device = machine.config(case), machine.device
    began = time.monotonic()
    state = machine.state(config)
    built_s = time.monotonic() - began
    if device.type == "cuda":
        # Before the first steps: what a CUDA graph allocates is counted when it is captured.
        torch.cuda.reset_peak_memory_stats(device)
    losses = [float(step(state)) for _ in range(2)]
    compiled_s = time.monotonic() - began - built_s
    found = spread(machine.rates(lambda: step(state), config.batch_size), 1)
    cost = state.model.flops_per_sample()
    used = mfu(Cost(cost, state.precision), found["median"], device)
    on_gpu = device.type == "cuda"
    return {
        "model": case.preset,
        "parameters": state.parameters,
        "tokens": state.model.shape.tokens,
        "batch": [config.batch_size, config.micro_batch],
        "checkpointing": config.checkpointing,
        "compile": state.compile_mode,
        "cuda_graphs": state.graphs.captured,
        f"{config.unit}_per_s": found,
        "mfu": used,
        "flops_per_sample": cost,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(device) if on_gpu else None,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(device) if on_gpu else None,
        "attention": next((note for note in state.notes if note.startswith("attention")), None),
        "build_s": round(built_s, 1),
        "first_steps_s": round(compiled_s, 1),
        "losses": [round(loss, 4) for loss in (*losses, float(step(state)))],
    }


def attention(machine: Machine) -> Figures:
    """Milliseconds of each kernel, forward and backward, at the shapes of the models."""
    found: Figures = {}
    for name, case in MODELS.items():
        config = machine.config(case)
        shape = (config.micro_batch, config.heads, config.patches, config.d_model // config.heads)
        text = " × ".join(map(str, shape))
        if machine.quick or text in found:
            found.setdefault(text, {"models": []})["models"].append(name)
            continue
        kernels = measured_kernels(shape, torch.bfloat16, machine.device, causal=False)
        found[text] = {"models": [name], "ms": kernels, "fastest": fastest(kernels)}
    return found


def cudnn(machine: Machine) -> Figures:
    """What `cudnn.benchmark` changes: the ratio of rates with it and without it, in turns."""
    config = replace(
        machine.config(ModelCase("vit-b", {"batch_size": 128, "micro_batch": 128})), compile="off"
    )
    state = machine.state(config)
    side, patch, width = config.image_size, config.patch_size, config.d_model
    pixels = torch.randint(
        0, 256, (config.micro_batch, 3, side, side), dtype=torch.uint8, device=machine.device
    )
    matmul = nn.Linear(3 * patch**2, width, device=machine.device)
    convolution = nn.Conv2d(3, width, patch, patch, device=machine.device)

    def embedded(module: nn.Module, cut: Callable[[Tensor], Tensor]) -> None:
        with autocast(state.precision, machine.device):
            found = module(cut(pixels))
        torch.autograd.backward(found.float().square().mean())

    work: Mapping[str, Callable[[], object]] = {
        "step of vit-b, eager": partial(step, state),
        "patch embedding, a matmul": partial(embedded, matmul, partial(patches, size=patch)),
        "patch embedding, a convolution": partial(embedded, convolution, lambda x: x.float() / 127.5 - 1),
    }
    return {name: _switched(machine, once, config.micro_batch) for name, once in work.items()}


def _switched(machine: Machine, once: Callable[[], object], samples: int) -> Figures:
    """Rates with `cudnn.benchmark` off and on, in turns."""
    before = torch.backends.cudnn.benchmark
    rates: dict[bool, list[float]] = {False: [], True: []}
    try:
        for _ in range(machine.windows):
            for on in rates:
                torch.backends.cudnn.benchmark = on
                once()
                rates[on].append(rate(once, samples, machine.window_s / 4, machine.device))
    finally:
        torch.backends.cudnn.benchmark = before
    ratios = [on / off for off, on in zip(rates[False], rates[True], strict=True)]
    return {
        "off_per_s": spread(rates[False], 1),
        "on_per_s": spread(rates[True], 1),
        "ratio": spread(ratios, 3),
    }


def run(machine: Machine, name: str) -> Figures:
    """One case; its memory is given back."""
    try:
        if name == "cudnn":
            return cudnn(machine)
        return attention(machine) if name == "attention" else measured(machine, MODELS[name])
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return {"error": str(error).partition("\n")[0]}
    finally:
        torch.compiler.reset()
        release(machine.device)


def met(found: Mapping[str, Figures]) -> dict[str, bool]:
    """The targets of the cases that were measured."""
    words: dict[str, bool] = {}
    plain, saved = (found.get(name, {}) for name in ("vit-l", "vit-l-checkpointing"))
    if plain.get("peak_allocated_bytes") and saved.get("peak_allocated_bytes"):
        part = saved["peak_allocated_bytes"] / plain["peak_allocated_bytes"]
        words[f"vit-l: checkpointing takes at most {LEAST_SAVED:.0%} of the memory ({part:.0%})"] = (
            part <= LEAST_SAVED
        )
    giant = found.get("vit-g-checkpointing", {})
    if giant.get("peak_reserved_bytes"):
        words[f"vit-g: at most {CARD_BYTES / 1e9:g} GB"] = giant["peak_reserved_bytes"] <= CARD_BYTES
    return words


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vision_models")
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)}; all of them if none is named")
    parser.add_argument("--limit-s", type=float, default=220.0, help="seconds after which no case begins")
    parser.add_argument(
        "--quick", action="store_true", help="try the mechanics on a CPU in seconds; keeps no result"
    )
    given = parser.parse_args(list(arguments))
    if unknown := sorted(set(given.cases) - set(CASES)):
        parser.error(f"there is no case {unknown[0]}; there are {', '.join(CASES)}")
    if given.quick:
        torch.set_num_threads(1)  # on cores that others use, more of them wait for each other
    machine = Machine(quick=given.quick)
    images.POOL_BYTES = 1 << 16 if given.quick else POOL_BYTES
    found: dict[str, Figures] = {}
    left_out: list[str] = []
    for name in given.cases or CASES:
        needed = MODELS[name].seconds if name in MODELS else SETTINGS_S
        if time.monotonic() - BEGAN + needed > given.limit_s:
            left_out.append(name)
            continue
        found[name] = tell(name, run(machine, name))
    figures = {"cases": found, "left_out": left_out, "met": met(found)}
    if given.quick:
        print(json.dumps({"benchmark": "vision_models", "quick": True, **figures}), flush=True)
        return figures
    return report("vision_models", {"device": torch.cuda.get_device_name(machine.device), **figures})


if __name__ == "__main__":
    main(sys.argv[1:])
