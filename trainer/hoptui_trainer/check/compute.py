"""Checks of the processor that trains: torch sees it, compiles for it, and multiplies at its speed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from hoptui.telemetry.gpu_specs import peak_flops, peaks_of
from hoptui_trainer.check.outcome import Outcome, failed, rated, skipped
from hoptui_trainer.common.attention import listed, measured_kernels
from hoptui_trainer.common.device import wait_for
from hoptui_trainer.common.precision import ADA

SIDE = 8192
"""Rows and columns of the matrices: large enough for the peak of a Hopper GPU."""
SMALL_SIDE = 1024
SHARE_OF_PEAK = {"bf16": 0.65, "fp8": 0.5}
"""The least share of the dense peak: an H100 reaches 0.78 with cuBLAS in bf16, in short bursts."""
SHARE_OF_BANDWIDTH = 0.8
COPY_BYTES = 1 << 30
REPEATS = 20
COMPILE_S = 30.0
TOLERANCE = {"bf16": 1e-2, "fp8": 0.1}
"""The greatest relative error of a product, by the norm, against one of float32 inputs."""
ATTENTION = (8, 12, 1024, 64)
"""Batch, heads, length and width of a head: GPT-2's."""

Timed = Callable[[], object]


def torch_device(wanted: str) -> tuple[torch.device | None, Outcome]:
    """The device to check, and whether torch can use the GPU of this machine; None where it cannot go on."""
    version = f"torch {torch.__version__}"
    if wanted == "cpu":
        return torch.device("cpu"), Outcome(
            name="torch", status="ok", detail=f"{version}, on the CPU as asked"
        )
    driver = Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()
    if torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
        try:
            torch.ones(1, device=device).add_(1).item()
        except RuntimeError as error:
            advice = "the GPU answers no kernel: `nvidia-smi` and `hoptui doctor` show its state"
            return None, failed("torch", error, advice)
        gpus = f"{torch.cuda.device_count()} × {torch.cuda.get_device_name(device)}"
        detail = f"{version} with CUDA {torch.version.cuda}, {gpus}"
        return device, Outcome(name="torch", status="ok", detail=detail)
    if torch.version.cuda is None:
        detail, advice = f"{version} is built without CUDA", "install a torch for CUDA: https://pytorch.org"
    else:
        detail = f"{version} with CUDA {torch.version.cuda} sees no GPU"
        advice = "the driver is older than this CUDA, or CUDA_VISIBLE_DEVICES hides the GPU: see `nvidia-smi`"
    if driver or wanted == "cuda":
        return None, Outcome(name="torch", status="failed", detail=detail, advice=advice)
    return torch.device("cpu"), Outcome(
        name="torch", status="ok", detail=f"{version}, no GPU on this machine"
    )


def compilation(device: torch.device) -> Outcome:
    """torch.compile makes a kernel of this machine, and the kernel is right."""
    factor = random.uniform(1.0, 2.0)  # a constant of the kernel, so that no cache has it
    inputs = torch.randn(64, 256, device=device)

    def sample(x: Tensor) -> Tensor:
        return functional.gelu(x * factor).softmax(-1)

    began = time.perf_counter()
    try:
        found = torch.compile(sample, fullgraph=True)(inputs)
        wait_for(device)
    except Exception as error:
        needs = "Triton and a C compiler with Python's headers" if device.type == "cuda" else "a C++ compiler"
        return failed("compile", error, f"torch.compile needs {needs}; `--compile off` trains without it")
    took = time.perf_counter() - began
    error_size = _error(found, sample(inputs))
    if not error_size < 1e-3:
        what = ValueError(f"a compiled kernel is wrong: relative error {error_size:.2g}")
        return failed("compile", what, "train with `--compile off`, and report this to PyTorch")
    slow = took > COMPILE_S
    return Outcome(
        name="compile",
        status="slow" if slow else "ok",
        measured=took,
        expected=COMPILE_S,
        unit="s",
        detail="for one small kernel",
        advice="the compiler's cache is on a slow disk (TORCHINDUCTOR_CACHE_DIR), or the CPU is busy"
        if slow
        else "",
    )


def product(device: torch.device, precision: str) -> Outcome:
    """A matrix product in `bf16` or `fp8`: is it right, and how fast is it."""
    name = f"{precision} product"
    if precision == "fp8":
        if device.type != "cuda":
            return skipped(name, "FP8 needs a GPU")
        if torch.cuda.get_device_capability(device) < ADA:
            return skipped(name, "this GPU has no FP8 (from Ada and Hopper on)")
    side = SIDE if device.type == "cuda" else SMALL_SIDE
    left, right = (torch.randn(side, side, device=device) / side**0.5 for _ in range(2))
    multiply = _multiply_fp8(left, right) if precision == "fp8" else _multiply_bf16(left, right)
    try:
        error_size = _error(multiply().float(), left @ right)
        seconds = _seconds(multiply, device)
    except RuntimeError as error:
        return failed(name, error, "this torch or driver lacks the kernel: train in another `--precision`")
    if not error_size < TOLERANCE[precision]:
        what = ValueError(f"the product is wrong: relative error {error_size:.2g}")
        return failed(
            name, what, "do not train on this GPU: its memory or its arithmetic units may be faulty"
        )
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    peak = peak_flops(gpu, precision)
    achieved = 2 * side**3 / seconds / 1e12
    share = f", {achieved * 1e12 / peak:.0%} of the dense peak" if peak else ""
    return rated(
        name,
        achieved,
        peak and peak * SHARE_OF_PEAK[precision] / 1e12,
        "TFLOP/s",
        f"{side}³{share}, relative error {error_size:.1e}",
        "another process uses the GPU, or its clocks are held down: `hoptui gpus` shows both",
    )


def attention(device: torch.device) -> Outcome:
    """Which kernels of attention work, and how fast they are."""
    if device.type != "cuda":
        return skipped("attention", "torch has one kernel on a CPU")
    milliseconds = measured_kernels(ATTENTION, torch.bfloat16, device, causal=True)
    figures = listed(milliseconds)
    if all(ms is None for ms in milliseconds.values()):
        advice = "only the plain formula is left, which is slow: is this torch built for this GPU?"
        return Outcome(name="attention", status="failed", detail=figures, advice=advice)
    shape = " × ".join(map(str, ATTENTION))
    return Outcome(name="attention", status="ok", detail=f"{shape} in bf16, forward and backward: {figures}")


def device_memory(device: torch.device) -> Outcome:
    """The bandwidth of a copy in the GPU's own memory, each byte read once and written once."""
    if device.type != "cuda":
        return skipped("device memory", "this machine trains on the CPU")
    try:
        source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device).random_()
        target = torch.empty_like(source)
    except torch.OutOfMemoryError as error:
        return failed("device memory", error, "another process holds the memory: `hoptui gpus` names it")
    seconds = _seconds(partial(target.copy_, source), device)
    peaks = peaks_of(torch.cuda.get_device_name(device))
    expected = None if peaks is None else peaks.bandwidth_bytes_per_s * SHARE_OF_BANDWIDTH / 1e9
    return rated(
        "device memory",
        2 * COPY_BYTES / seconds / 1e9,
        expected,
        "GB/s",
        "a copy of 1 GiB, bytes read and written",
        "another process uses the memory: `hoptui gpus` names it",
    )


def _multiply_bf16(left: Tensor, right: Tensor) -> Callable[[], Tensor]:
    a, b = left.bfloat16(), right.bfloat16()
    return lambda: a @ b


def _multiply_fp8(left: Tensor, right: Tensor) -> Callable[[], Tensor]:
    limit = torch.finfo(torch.float8_e4m3fn).max
    factors = [limit / matrix.abs().max() for matrix in (left, right)]
    a, b = (
        (matrix * factor).to(torch.float8_e4m3fn)
        for matrix, factor in zip((left, right), factors, strict=True)
    )
    scales = [factor.reciprocal() for factor in factors]
    columns = b.t().contiguous().t()  # the second one by columns, as the kernel wants it

    def multiply() -> Tensor:
        return torch._scaled_mm(
            a, columns, scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return multiply


def _error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def _seconds(work: Timed, device: torch.device) -> float:
    """Seconds of one call: the median of some, after a warm-up."""
    for _ in range(3):
        work()
    wait_for(device)
    if device.type == "cuda":
        marks = [torch.Event("cuda", enable_timing=True) for _ in range(REPEATS + 1)]
        for mark in marks[:-1]:
            mark.record()
            work()
        marks[-1].record()
        marks[-1].synchronize()
        times = [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]
    else:
        times = []
        for _ in range(REPEATS // 4):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]
