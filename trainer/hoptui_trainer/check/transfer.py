"""Checks of the ways that data takes: from a disk, from the host to a GPU, and between GPUs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pynvml
import torch
from torch import distributed
from torch.multiprocessing.spawn import ProcessContext, start_processes

from hoptui_trainer.check.outcome import Outcome, failed, rated, skipped
from hoptui_trainer.common.device import gpu_uuid, wait_for

COPY_BYTES = 512 << 20
REPEATS = 8
PCIE_BYTES_PER_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes per second of one lane in one direction, by generation, after the line code."""
SHARE_OF_PCIE = 0.7
DISK_BYTES = 256 << 20
DISK_BYTES_PER_S = 200e6
"""What an input pipeline of 2,000 JPEGs of 100 KB a second reads."""
EXCHANGE_BYTES = 256 << 20
LINK_BYTES_PER_S = {True: 150e9, False: 5e9}
"""The least bus bandwidth of an all-reduce, with NVLink and without."""
START_S = 30.0
"""Seconds for all processes to start and to meet."""


class Link(NamedTuple):
    """The PCIe link of a GPU at its widest and fastest."""

    generation: int
    lanes: int


def host_to_device(device: torch.device) -> Outcome:
    """The bandwidth of copies from page-locked memory to the GPU."""
    if device.type != "cuda":
        return skipped("host to GPU", "this machine trains on the CPU")
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    try:
        pinned = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        return failed(
            "host to GPU", error, "page-locked memory is refused: see `ulimit -l`; use --no-pin-memory"
        )
    rates = {
        "pinned": _copy_rate(target, pinned),
        "pageable": _copy_rate(target, torch.ones(COPY_BYTES, dtype=torch.uint8)),
    }
    link = pcie_link(device)
    expected = link and PCIE_BYTES_PER_LANE.get(link.generation, 0.0) * link.lanes * SHARE_OF_PCIE
    over = f"PCIe {link.generation} × {link.lanes}; " if link else ""
    return rated(
        "host to GPU",
        rates["pinned"] / 1e9,
        expected / 1e9 if expected else None,
        "GB/s",
        f"{over}from pageable memory {rates['pageable'] / 1e9:.3g} GB/s",
        "the GPU's slot has fewer lanes, or the process runs on the other socket (numactl --cpunodebind)",
    )


def pcie_link(device: torch.device) -> Link | None:
    """The widest and fastest link that GPU and slot can have; None where the driver does not know it."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid(device))
        generation = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        return Link(generation, pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _copy_rate(target: torch.Tensor, source: torch.Tensor) -> float:
    """Bytes per second of a copy."""
    target.copy_(source, non_blocking=True)
    wait_for(target.device)
    began = time.perf_counter()
    for _ in range(REPEATS):
        target.copy_(source, non_blocking=True)
    wait_for(target.device)
    return REPEATS * source.numel() / (time.perf_counter() - began)


def disk(folder: Path) -> Outcome:
    """The bandwidth of `folder`: a file is written to the disk, dropped from the page cache and read."""
    content = os.urandom(1 << 20)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            for _ in range(DISK_BYTES >> 20):
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
            written = DISK_BYTES / (time.perf_counter() - began)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            buffer = bytearray(1 << 20)
            began = time.perf_counter()
            while file.readinto(buffer):
                pass
            read = DISK_BYTES / (time.perf_counter() - began)
    except OSError as error:
        return failed("disk", error, f"data and checkpoints cannot be in {folder}: choose another with --dir")
    return rated(
        "disk",
        read / 1e9,
        DISK_BYTES_PER_S / 1e9,
        "GB/s",
        f"read in {folder}; written {written / 1e9:.3g} GB/s",
        "images and tokens load slowly from there: copy them to a local disk first",
    )


def between_gpus(device: torch.device) -> Outcome:
    """An all-reduce over all GPUs that this process sees, by NCCL."""
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if count < 2:
        return skipped("between GPUs", "fewer than two GPUs")
    try:
        rate = all_reduce_rate("nccl", count, EXCHANGE_BYTES)
    except (RuntimeError, TimeoutError, OSError) as error:
        advice = "NCCL_DEBUG=INFO shows why; in a container /dev/shm must be large enough (--shm-size)"
        return failed("between GPUs", error, advice)
    linked = all(torch.cuda.can_device_access_peer(0, other) for other in range(1, count))
    return rated(
        "between GPUs",
        rate / 1e9,
        LINK_BYTES_PER_S[linked] / 1e9,
        "GB/s",
        f"bus bandwidth of an all-reduce over {count} GPUs by NCCL "
        f"({'with' if linked else 'without'} access to each other's memory)",
        "the GPUs may not be connected by NVLink: `nvidia-smi topo -m` shows how they are",
    )


def all_reduce_rate(backend: str, world: int, size: int) -> float:
    """The bus bandwidth of an all-reduce of `size` bytes over `world` processes, in bytes per second.

    It is 2 · (n − 1) / n · size / seconds, as NVIDIA's nccl-tests count it.

    Raises:
        RuntimeError: a process failed.
        TimeoutError: they did not meet or finish in time.
    """
    with tempfile.TemporaryDirectory(prefix="hoptui-check-") as folder:
        with _processes(backend, world, size, folder) as context:
            deadline = time.monotonic() + START_S + 10.0
            while not context.join(timeout=1.0):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{world} processes did not exchange data within {START_S + 10:.0f} s")
        seconds = float(Path(folder, "seconds").read_text())
    return 2 * (world - 1) / world * size / seconds


@contextmanager
def _processes(backend: str, world: int, size: int, folder: str) -> Iterator[ProcessContext]:
    """The processes of the exchange; none is left at the end."""
    context: Any = start_processes(  # type: ignore[no-untyped-call]
        _exchange, args=(backend, world, size, folder), nprocs=world, join=False, start_method="spawn"
    )
    try:
        yield context
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
            process.join()


def _exchange(rank: int, backend: str, world: int, size: int, folder: str) -> None:
    on_gpu = backend == "nccl"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        backend,
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=START_S),
    )
    values = torch.ones(size // 4, device=device)
    times = []
    for _ in range(REPEATS + 2):
        values.fill_(1.0)
        distributed.barrier()
        began = time.perf_counter()
        distributed.all_reduce(values)
        wait_for(device)
        times.append(time.perf_counter() - began)
    if not bool((values == world).all()):
        raise RuntimeError("the sum over the processes is wrong")
    if rank == 0:
        Path(folder, "seconds").write_text(repr(sorted(times[2:])[REPEATS // 2]))
    distributed.destroy_process_group()
