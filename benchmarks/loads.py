"""Known loads: `python -m benchmarks.loads NAME [SECONDS]` keeps one running and prints its rate five times a
second.

What each should look like to Hopper's counters is in `gpm_loads.py`. `launches` is the batch-1 MLP in a
Python loop whose speed depends on the CPU alone, the load that a clumsy monitor slows first.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.measure import SPELL_S

GIB = 1 << 30


def idle() -> Iterator[float]:
    """A CUDA context and nothing else."""
    torch.zeros(1, device="cuda")
    while True:
        time.sleep(0.1)
        yield 0.0


def launches() -> Iterator[float]:
    """A batch-1 MLP in a Python loop: kernels launched."""
    for layers in _small_mlp("cuda"):
        torch.cuda.synchronize()
        yield layers


def cpu() -> Iterator[float]:
    """The same without a GPU, in one thread: layers computed."""
    torch.set_num_threads(1)
    return _small_mlp("cpu")


def _small_mlp(device: str) -> Iterator[float]:
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).to(device)
    x = torch.zeros(1, 64, device=device)
    while True:
        with torch.no_grad():
            for _ in range(50):
                model(x)
        yield 50 * len(layers)


def copy() -> Iterator[float]:
    """4 GiB from one place in device memory to another: bytes read and written."""
    source = torch.empty(4 * GIB, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    while True:
        for _ in range(8):
            target.copy_(source)
        torch.cuda.synchronize()
        yield 8 * 2 * 4 * GIB


def upload() -> Iterator[float]:
    """1 GiB of pinned host memory to the GPU: bytes over PCIe."""
    source = torch.empty(GIB, dtype=torch.uint8).pin_memory()
    target = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    while True:
        for _ in range(4):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        yield 4 * GIB


def matmul() -> Iterator[float]:
    """8192³ in bfloat16, random data: FLOPs."""
    return _matmul(torch.bfloat16)


def matmul_fp32() -> Iterator[float]:
    """8192³ in float32 without TF32: FLOPs."""
    torch.set_float32_matmul_precision("highest")
    return _matmul(torch.float32)


def _matmul(kind: torch.dtype) -> Iterator[float]:
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=kind) for _ in range(2))
    out = torch.empty_like(a)
    while True:
        for _ in range(20):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize()
        yield 20 * 2 * 8192**3


LOADS: dict[str, Callable[[], Iterator[float]]] = {
    load.__name__: load for load in (idle, launches, cpu, copy, upload, matmul, matmul_fp32)
}


def main() -> int:
    """Run one load; one line `<seconds> <units per second>` for each spell that has gone by."""
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in LOADS:
        print(f"usage: python -m benchmarks.loads {'|'.join(LOADS)} [SECONDS]", file=sys.stderr)
        return 2
    work = LOADS[sys.argv[1]]()
    for _ in range(5):
        next(work)
    started = since = time.monotonic()
    end = started + (float(sys.argv[2]) if len(sys.argv) > 2 else float("inf"))
    done = 0.0
    while since < end:
        done += next(work)
        now = time.monotonic()
        if now - since >= SPELL_S:
            print(f"{now:.6f} {done / (now - since):.6g}", flush=True)
            since, done = now, 0.0
    return 0


if __name__ == "__main__":
    sys.exit(main())
