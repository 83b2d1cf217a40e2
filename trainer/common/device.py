"""Which processor trains, with how many threads, and how much memory it has left."""

from __future__ import annotations

import os
from typing import Literal

import psutil
import torch

from trainer.common.errors import UsageError

SAMPLES_PER_THREAD = 1024
"""A CPU thread more pays off from about so many samples of a 64-64 MLP (two cores: 0.95 × at 256, 1.4 × at 1024)."""

DeviceName = Literal["auto", "cpu", "cuda"]


def choose_device(name: DeviceName) -> torch.device:
    """The device to train on; `auto` is the first GPU if there is one. On a GPU, float32 matmuls may use TF32.

    Raises:
        UsageError: `cuda` was asked for and there is none.
    """
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        built = (
            "torch sees no GPU on this machine" if torch.version.cuda else "this torch is built without CUDA"
        )
        raise UsageError(f"--device cuda: {built}")
    if name == "cpu" or not has_gpu:
        return torch.device("cpu")
    torch.set_float32_matmul_precision("high")
    return torch.device("cuda", torch.cuda.current_device())


def describe_device(device: torch.device) -> str:
    """The device in a few words."""
    if device.type == "cuda":
        return f"on {torch.cuda.get_device_name(device)}"
    threads = torch.get_num_threads()
    return f"on the CPU with {threads} thread{'s'[: threads != 1]}"


def choose_threads(samples: int) -> int:
    """As many CPU threads as pay off for gradients of `samples` samples at once.

    The choice never depends on a timing, because the number of threads changes the order of floating-point sums: one
    seed must give one result.
    """
    return min(len(os.sched_getaffinity(0)), max(1, samples // SAMPLES_PER_THREAD))


def set_threads(device: torch.device, threads: int) -> None:
    """Let torch compute with so many CPU threads, one at least. Beside a GPU they have nothing to do, and are left alone."""
    if device.type == "cpu":
        torch.set_num_threads(max(1, threads))


def gpu_uuid(device: torch.device) -> str | None:
    """The GPU's UUID as NVML writes it, None on a CPU."""
    if device.type != "cuda":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def free_bytes(device: torch.device) -> int:
    """Memory this process could still get on the device, in bytes: what torch's allocator keeps unused, and what it may take.

    It may take what is free, within the part of the GPU that `torch.cuda.set_per_process_memory_fraction` left it.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
        return min(free, max(0, allowed - reserved)) + reserved - torch.cuda.memory_allocated(device)
    return psutil.virtual_memory().available


def wait_for(device: torch.device) -> None:
    """Wait until everything queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
