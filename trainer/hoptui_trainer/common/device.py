"""Which processor trains, with how many threads, and how much memory it has left."""

from __future__ import annotations

import os
import resource

import psutil
import torch

from hoptui_trainer.common.cgroups import left_bytes
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.modes import DeviceName
from hoptui_trainer.common.report import plural

SAMPLES_PER_THREAD = 1024
"""A CPU thread more pays off from about so many samples of a 64-64 MLP (two cores: 0.95 × at 256, 1.4 × at
1024)."""

MEASURED_WIDTH = 64
"""The width of that MLP."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""In the environment: the GPUs that CUDA shows a process, by index or UUID, or MIG instances by name. CUDA
reads it once."""


def take_gpu(local_rank: int, local_world: int) -> bool:
    """Give this process the GPU of its local rank: the current one, and the only one that it sees, if CUDA
    was not used yet.

    So each rank knows its own as `cuda:0`, and torch.compile, which writes the index into sources and cache
    keys, makes the same of all of them. NCCL needs no sight of the others' (from CUDA 10.1 on:
    `p2pCanConnect` in its src/transport/p2p.cc). Returns whether there is a GPU.

    Raises:
        UsageError: there are several GPUs, and fewer than ranks.
    """
    visible = os.environ.get(VISIBLE)
    own = own_gpu(visible, _count(visible), local_rank, local_world)
    if own is not None:
        os.environ[VISIBLE] = own
    if not torch.cuda.is_available():
        return False
    shown = torch._C._cuda_getDeviceCount()  # by CUDA, which still shows all of them if it was used before
    torch.cuda.set_device(0 if shown == 1 else local_rank)
    return True


def own_gpu(visible: str | None, count: int, local_rank: int, local_world: int) -> str | None:
    """The value of `VISIBLE` with which a local rank sees its own GPU alone; None: leave it as it is.

    Args:
        visible: its value; None if it is not set.
        count: GPUs that a process sees with that. A launcher that shows each rank its own shows one.

    Raises:
        UsageError: there are several GPUs, and fewer than ranks.
    """
    if count < 2:
        return None
    if count < local_world:
        raise UsageError(f"{local_world} ranks on this machine and {count} GPUs: start one a GPU")
    return str(local_rank) if visible is None else visible.split(",")[local_rank].strip()


def _count(visible: str | None) -> int:
    """GPUs, or MIG instances, to choose from; without using CUDA, where NVML is there."""
    if visible is not None and visible.startswith("MIG-"):
        return len(visible.split(","))  # CUDA shows a process one of them, and torch asks CUDA
    return torch.cuda.device_count()


def choose_device(name: DeviceName) -> torch.device:
    """The device to train on; `auto` is the first GPU if there is one. On a GPU, float32 matmuls may use
    TF32.

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
    return f"on the CPU with {threads} {plural(threads, 'thread')}"


def choose_threads(samples: int, width: int = MEASURED_WIDTH) -> int:
    """As many CPU threads as pay off for gradients of `samples` samples at once: in a wide network, of fewer.

    The choice never depends on a timing, because the number of threads changes the order of floating-point
    sums: one seed must give one result.
    """
    return min(len(os.sched_getaffinity(0)), max(1, samples * width // MEASURED_WIDTH // SAMPLES_PER_THREAD))


def set_threads(device: torch.device, threads: int) -> None:
    """Let torch compute with so many CPU threads, one at least. Beside a GPU they have nothing to do, and are
    left alone."""
    if device.type == "cpu":
        torch.set_num_threads(max(1, threads))


def gpu_uuid(device: torch.device) -> str | None:
    """The GPU's UUID as NVML writes it, None on a CPU."""
    if device.type != "cuda":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def free_bytes(device: torch.device, local_world: int) -> int:
    """Memory this process could still get on the device, in bytes.

    On a GPU that is what torch's allocator keeps unused and what it may take: what is free, within the part
    of the GPU that `torch.cuda.set_per_process_memory_fraction` left it. On a CPU it is an equal part, for
    each of `local_world` ranks on the machine, of what the machine and the control groups of this process
    have left, and not more than `ulimit -v` leaves.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
        return min(free, max(0, allowed - reserved)) + reserved - torch.cuda.memory_allocated(device)
    left, available = left_bytes(), psutil.virtual_memory().available
    shared = (available if left is None else min(left, available)) // local_world
    space = address_space_bytes()
    return shared if space is None else max(0, min(shared, space - psutil.Process().memory_info().vms))


def address_space_bytes() -> int | None:
    """The limit of this process's address space (`ulimit -v`), in bytes; None without one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def wait_for(device: torch.device) -> None:
    """Wait until everything queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
