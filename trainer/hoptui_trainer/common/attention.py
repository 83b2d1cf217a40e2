"""Which attention kernel a GPU is fastest with: measured for the shape and the number format that are
trained.

On an H100, cuDNN took 0.75 ms forward and backward where FlashAttention 2 took 1.10 ms (32 × 12 heads × 1,024
× 64, bf16), and on an A100 it is the other way round: nothing to decide by name.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.backends import cuda
from torch.nn import attention, functional

from hoptui_trainer.common.ranks import RankGroup

REPEATS = 10

SWITCHES: Mapping[str, Callable[[bool], None]] = {
    "cudnn": cuda.enable_cudnn_sdp,
    "flash": cuda.enable_flash_sdp,
    "efficient": cuda.enable_mem_efficient_sdp,
}
FLASH3 = "flash3"
"""FlashAttention-3, a package of its own. Where it is installed, torch can use it in place of its flash
kernel."""
INTERFACE = "flash_attn_interface"
"""The module of that package that torch looks for."""


def choose_attention(
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    device: torch.device,
    ranks: RankGroup,
    *,
    causal: bool,
) -> str:
    """Let attention of `shape` (B, H, T, D) use the fastest kernel from now on, on all ranks the same, and
    return what was measured. With `causal`, each position sees only itself and those before it.

    For the whole process and before anything of that shape is compiled. Empty on a CPU, where torch has one
    kernel.
    """
    if device.type != "cuda":
        return ""
    milliseconds = slowest(ranks.gather(measured_kernels(shape, dtype, device, causal=causal)))
    chosen = fastest(milliseconds)
    _allow(*((chosen,) if chosen else SWITCHES))
    return f"attention: {chosen or 'as torch chooses'} ({listed(milliseconds)})"


def listed(milliseconds: Mapping[str, float | None]) -> str:
    """The times of kernels for users."""
    return ", ".join(f"{name} {'–' if ms is None else f'{ms:.2f} ms'}" for name, ms in milliseconds.items())


def measured_kernels(
    shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device, *, causal: bool
) -> dict[str, float | None]:
    """Milliseconds of one forward and backward pass with each kernel; None for one that does not take the
    shape. All are allowed afterwards."""
    try:
        return {name: _measured(name, shape, dtype, device, causal=causal) for name in candidates()}
    finally:
        _allow(*SWITCHES)


def candidates() -> list[str]:
    """The kernels that are measured: torch's, and FlashAttention-3 if it is installed."""
    return [*SWITCHES, *([FLASH3] if importlib.util.find_spec(INTERFACE) else [])]


def slowest(found: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """For each name the most of the ranks' times, which all wait for; None where it does not work on all."""
    most: dict[str, float | None] = {}
    for name in found[0]:
        known = [ms for each in found if (ms := each.get(name)) is not None]
        most[name] = max(known) if len(known) == len(found) else None
    return most


def fastest(milliseconds: Mapping[str, float | None]) -> str | None:
    """The name with the least time; None if none works."""
    known = {name: ms for name, ms in milliseconds.items() if ms is not None}
    return min(known, key=known.__getitem__) if known else None


def _allow(*names: str) -> None:
    """Only these kernels, and the plain formula for what they cannot do."""
    for name, switch in SWITCHES.items():
        switch(name in names or (name == "flash" and FLASH3 in names))
    if FLASH3 in names:
        attention.activate_flash_attention_impl("FA3")
    elif attention.current_flash_attention_impl() == "FA3":
        attention.restore_flash_attention_impl()


def _measured(
    name: str, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device, *, causal: bool
) -> float | None:
    """Milliseconds of one forward and backward pass; None if the kernel does not take the shape, or cannot be
    loaded."""
    cuda.enable_math_sdp(False)
    try:
        _allow(name)
        with warnings.catch_warnings(action="ignore"):  # torch explains at length why a kernel is no choice
            return _timed(_inputs(shape, dtype, device), causal=causal)
    except (RuntimeError, ImportError, OSError):  # "No available kernel", memory, a library for another torch
        return None
    finally:
        cuda.enable_math_sdp(True)


def _inputs(shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Query, key and value with the strides that models give them."""
    batch, heads, length, width = shape
    return [
        torch.randn(batch, length, heads, width, dtype=dtype, device=device).transpose(1, 2).requires_grad_()
        for _ in range(3)
    ]


def _timed(inputs: list[Tensor], *, causal: bool) -> float:
    query, key, value = inputs
    slope = torch.randn_like(query)
    start, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
    for turn in range(-3, REPEATS):
        if turn == 0:
            start.record()
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        torch.autograd.grad(out, inputs, slope)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / REPEATS
