"""A recording of a node without a run, as `hoptui record` writes it: two minutes of two GPUs and the host."""

from __future__ import annotations

import math
from pathlib import Path

from hoptui.domain.columns import Columns, pack
from hoptui.domain.devices import GpuProcess
from hoptui.protocol.recorded_processes import encode_processes
from hoptui.recording import Recording
from hoptui.recording.library import NODE, encode_node
from hoptui.recording.timed_states import PROCESSES
from tests import factories
from tests.model.recorded_run import BOOT, WALL, at

LENGTH_S = 120
GIB = 1 << 30
GPUS = tuple(factories.gpu(index, uuid=f"GPU-{index}", architecture="Hopper") for index in range(2))
STATE = factories.node(wall_offset_ns=1, cpus=16, memory_total_bytes=128 * GIB, gpus=GPUS)
HOT = factories.event(
    7,
    "throttle",
    "",
    t=at(60),
    wall=WALL + 60,
    code="gpu.throttle",
    fields={"reason": "power_brake", "active": True},
    level="alarm",
    source="gpu/GPU-1",
)


NEIGHBOURS = (
    GpuProcess(
        gpu="GPU-0",
        pid=4711,
        memory_used_bytes=39 * GIB,
        sm_percent=62.0,
        user="ana",
        command="python train.py --token s3cret",
    ),
    GpuProcess(gpu="GPU-1", pid=815),
)


def gpu_rows(index: int) -> Columns:
    """A row a second."""
    rows = []
    for i in range(LENGTH_S):
        wave = math.sin(i / 9 + index)
        row = {
            "busy": 70 + 20 * wave, "sm_active": 60 + 20 * wave, "tensor_active": 30 + 9 * wave,
            "dram_active": 22.0, "power_w": 500 + 120 * wave, "memory_used_bytes": 40.0 * GIB,
            "memory_total_bytes": 80.0 * GIB, "temperature_c": 60.0, "sm_clock_mhz": 1980.0,
            "power_violation_s": 0.5 * i, "encoder_busy": 0.0, "throttle": 0.0,
        }  # fmt: skip
        rows.append((at(i + 0.5), -1, row))
    return pack(f"gpu/GPU-{index}", rows)


def write(path: Path) -> Path:
    """Write the recording."""
    host = [(at(i), -1, {"cpu_percent": float(i), "memory_used_bytes": 9.0 * GIB}) for i in range(LENGTH_S)]
    with Recording.create(path, boot=BOOT) as recording:
        recording.remember(NODE, encode_node(STATE))
        for part in (gpu_rows(0), gpu_rows(1), pack("host", host)):
            recording.append(part)
        recording.event(HOT)
        for seconds in range(0, LENGTH_S, 15):
            recording.state(PROCESSES, at(seconds), encode_processes(NEIGHBOURS))
    return path
