"""A node of eight invented GPUs behind the daemon's real pipe, ring, wire and recording: nothing but the
driver is left out.

`python -m benchmarks.eight_gpus` is their sampler, as the daemon starts it; `eight_gpus` is the node.
"""

from __future__ import annotations

import os
import random
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Bench, bench, until
from benchmarks.replay import gpu_row
from hoptui.domain.columns import pack
from hoptui.domain.devices import Devices, FromSampler, GpuInfo, Sample
from hoptui.node import processes
from hoptui.node.addresses import addresses
from hoptui.protocol import codec

COUNT = 8
ALL = ",".join(map(str, range(COUNT)))
"""All of them, as CUDA_VISIBLE_DEVICES says it."""
ROOT = Path(__file__).parents[1]
GPUS = tuple(
    GpuInfo(
        uuid=f"GPU-{index}",
        index=index,
        name="NVIDIA H100 80GB HBM3",
        memory_total_bytes=85 * 10**9,
        power_limit_w=700.0,
        sm_clock_max_mhz=1980.0,
        driver="580",
        architecture="Hopper",
    )
    for index in range(COUNT)
)
SERVE = """
import sys
from hoptui.daemon.server import Server
from hoptui.node.addresses import addresses
Server(addresses(), 60.0, samplers={"gpus": [sys.executable, "-m", "benchmarks.eight_gpus"]}).run()
"""


def row(index: int, at_s: float) -> dict[str, float]:
    """Thirty readings of a GPU: none of the eight does the same at the same time."""
    return gpu_row(at_s + 11 * index) | {
        "sm_occupancy": round(35 + 5 * random.random(), 1),
        "ecc_corrected": 0.0,
    }


def tick(t: int) -> Sample:
    """What all of them read at a stamp."""
    return Sample(parts=tuple(pack(f"gpu/{gpu.uuid}", [(t, -1, row(gpu.index, t / 1e9))]) for gpu in GPUS))


@contextmanager
def eight_gpus() -> Iterator[Bench]:
    """Yield a separate node with eight GPUs, whose daemon is running."""
    with bench() as node:
        node.python(SERVE, PYTHONPATH=str(ROOT))
        until(lambda: processes.daemon_lives(addresses()) and addresses().viewers.exists(), what="the daemon")
        yield node


def main() -> None:
    """Sample as often as the daemon asks, until it hangs up."""
    framer = codec.Framer()
    hz, due = 1.0, time.monotonic()
    _send(Devices(gpus=GPUS))
    while True:
        if select.select([0], [], [], max(0.0, due - time.monotonic()))[0]:
            data = os.read(0, 1 << 16)
            if not data:
                return
            for frame in framer.feed(data):
                hz = codec.to_sampler([frame]).hz
        now = time.monotonic()
        if now >= due:
            _send(tick(time.monotonic_ns()))
            due = max(now, due + 1 / hz)


def _send(message: FromSampler) -> None:
    frame = memoryview(codec.framed(message))
    while frame:
        frame = frame[os.write(1, frame) :]


if __name__ == "__main__":
    main()
