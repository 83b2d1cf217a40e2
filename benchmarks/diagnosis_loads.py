"""Runs with known limits: `python -m benchmarks.diagnosis_loads DEVICE SECONDS NAME…`, one after the other in
one process.

Each is a loop under `hoptui.connect`, whose phases have the usual names. Its limit is known by
construction.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import torch

import hoptui
from benchmarks import loads

Iteration = Callable[[hoptui.Run], None]
SMALL = 1024
"""Side of the products on a CPU, where only the mechanics are tried."""


def _plain(work: Iterator[float]) -> Iteration:
    """A loop without phases."""

    def iteration(run: hoptui.Run) -> None:
        run.log(samples=next(work))

    return iteration


def _product(device: str, kind: torch.dtype = torch.bfloat16) -> Iterator[float]:
    """Products of square matrices, done when the next value is asked for."""
    side, times = (8192, 20) if device == "cuda" else (SMALL, 1)
    a, b = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
    out = torch.empty_like(a)
    while True:
        for _ in range(times):
            torch.mm(a, b, out=out)
        if device == "cuda":
            torch.cuda.synchronize()
        yield times


def matmul_tf32(device: str) -> Iteration:
    torch.set_float32_matmul_precision("high")
    return _plain(_product(device, torch.float32))


def elementwise(device: str) -> Iteration:
    """A few operations on numbers that lie in 2 GiB: the memory bus."""

    def work() -> Iterator[float]:
        x = torch.randn(1 << 29, device=device)
        while True:
            for _ in range(20):
                x.mul_(1.0001)
            torch.cuda.synchronize()
            yield 20

    return _plain(work())


def gammainc(device: str) -> Iteration:
    """Hundreds of operations for each number, none of them on tensor cores and little of it from memory."""

    def work() -> Iterator[float]:
        shape, x = (torch.rand(1 << 24, device=device) * 10 + 1 for _ in range(2))
        out = torch.empty_like(x)
        while True:
            for _ in range(10):
                torch.special.gammainc(shape, x, out=out)
            torch.cuda.synchronize()
            yield 10

    return _plain(work())


def small_training(device: str) -> Iteration:
    """Forward, backward and AdamW of a small network with a batch of 32, eagerly: launches."""
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(128, 128), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(32, 128, device=device)

    def iteration(run: hoptui.Run) -> None:
        with run.phase("step"):
            for _ in range(20):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        run.log(samples=20 * 32)

    return iteration


def _waiting(device: str, phase: str, wait: Callable[[], None]) -> Iteration:
    """A phase without the GPU, then products on it."""
    work = _product(device)

    def iteration(run: hoptui.Run) -> None:
        with run.phase(phase):
            wait()
        with run.phase("step"):
            run.log(samples=next(work))

    return iteration


def _compute(seconds: float) -> None:
    """Python's own arithmetic."""
    end, x = time.monotonic() + seconds, 1.0
    while time.monotonic() < end:
        for _ in range(1000):
            x = x * 1.0000001 + 1e-9


def data_sleeps(device: str) -> Iteration:
    return _waiting(device, "data", lambda: time.sleep(0.08))


def data_computes(device: str) -> Iteration:
    return _waiting(device, "data", lambda: _compute(0.08))


def data_a_third(device: str) -> Iteration:
    return _waiting(device, "load_batch", lambda: time.sleep(0.025))


def waits(device: str) -> Iteration:
    """It waits for something, and does not say for what."""
    return _waiting(device, "wait", lambda: time.sleep(0.08))


def cpu_envs(device: str) -> Iteration:
    """Environments in Python, a small policy and a large update on the device."""
    policy = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)).to(device)
    seen = torch.zeros(16, 8, device=device)
    work = _product(device)

    @torch.no_grad()
    def iteration(run: hoptui.Run) -> None:
        with run.phase("rollout"):
            for _ in range(32):
                with run.phase("policy"):
                    policy(seen).sum().item()
                with run.phase("env"):
                    _compute(0.003)
        with run.phase("update"):
            run.log(samples=next(work))

    return iteration


def _of(name: str) -> Callable[[str], Iteration]:
    return lambda device: _plain(loads.LOADS[name]())


RUNS: dict[str, Callable[[str], Iteration]] = {
    **{name: _of(name) for name in ("launches", "copy", "upload", "matmul", "matmul_fp32")},
    **{
        made.__name__: made
        for made in (matmul_tf32, elementwise, gammainc, small_training, data_sleeps, data_computes,
                     data_a_third, waits, cpu_envs)
    },
}  # fmt: skip


def main() -> int:
    """Each of the runs for so many seconds."""
    device, seconds, *names = sys.argv[1:]
    if device == "cpu":
        torch.set_num_threads(1)
    for name in names:
        iteration = RUNS[name](device)
        end = time.monotonic() + float(seconds)
        with hoptui.connect(name) as run:
            for _ in run.iterations():
                iteration(run)
                if time.monotonic() > end:
                    break
        del iteration
        if device == "cuda":
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
