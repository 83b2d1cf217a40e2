"""A GPU sampler for tests: two GPUs, real frames, a real probe, and a file that says how to misbehave.

    fake_gpus.py PLAN [--probe FD] [--leave INDEX]...

PLAN is a JSON file that is read before each tick: `hang` (indices: asks this GPU and never returns), `die`
(exit code), `nonsense`, `events` (each sent once), `processes` (GPU, pid, MiB), `row`
(readings besides the usual ones).
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from hoptui.domain.columns import pack
from hoptui.domain.devices import Devices, GpuInfo, GpuProcess, Happened, Sample, Tenants
from hoptui.domain.facts import fact
from hoptui.protocol import codec
from hoptui.protocol.messages import Message

GPUS = tuple(
    GpuInfo(
        uuid=f"GPU-{letter}",
        index=index,
        name="NVIDIA H100 80GB HBM3",
        memory_total_bytes=80 << 30,
        power_limit_w=700.0,
        driver="580.0",
        architecture="Hopper",
        peak_flops={"bf16": 989.5e12},
    )
    for index, letter in enumerate("ab")
)
WATTS = 350.0


def main() -> None:
    """Tick until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path)
    parser.add_argument("--probe", type=int)
    parser.add_argument("--leave", type=int, action="append", default=[])
    options = parser.parse_args()
    here = [gpu for gpu in GPUS if gpu.index not in options.leave]
    framer = codec.Framer()
    hz, due, told = 1.0, time.monotonic(), 0
    send(Devices(problem=fact("driver.not_asked")))
    send(Devices(gpus=tuple(here)))
    while True:
        readable, _, _ = select.select([0], [], [], max(0.0, due - time.monotonic()))
        if readable:
            data = os.read(0, 1 << 16)
            if not data:
                return
            for frame in framer.feed(data):
                hz = codec.to_sampler([frame]).hz
                due = min(due, time.monotonic() + 1 / hz)
        if time.monotonic() < due:
            continue
        due = max(due + 1 / hz, time.monotonic())
        plan = read(options.plan)
        for gpu in here:
            if gpu.index in plan.get("hang", ()):
                os.pwrite(options.probe, gpu.index.to_bytes(8, "little", signed=True), 0)
                time.sleep(600)
        if "die" in plan:
            sys.exit(plan["die"])
        if "nonsense" in plan:
            os.write(1, b"\xff" * 64)
        t = time.monotonic_ns()
        send(
            Sample(
                parts=tuple(pack(f"gpu/{gpu.uuid}", [(t, -1, row(t) | plan.get("row", {}))]) for gpu in here)
            )
        )
        events = plan.get("events", [])
        for event in events[told:]:
            send(msgspec.convert({"t": t, **event}, Happened))
        told = max(told, len(events))
        processes = [
            GpuProcess(gpu=g, pid=p, memory_used_bytes=m << 20, user="kim")
            for g, p, m in plan.get("processes", ())
        ]
        send(Tenants(processes=tuple(processes)))


def row(t: int) -> dict[str, float]:
    """350 W all the time, half of the SMs' time with work."""
    return {
        "busy": 100.0,
        "power_w": WATTS,
        "energy_j": round(t / 1e9 * WATTS, 1),
        "sm_active": 50.0,
        "memory_used_bytes": 10 << 30,
        "memory_total_bytes": 80 << 30,
        "throttle": 4.0,
    }


def read(plan: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(plan.read_text())
    except (OSError, ValueError):  # not there yet, or being written
        return {}
    return found


def send(message: Message) -> None:
    os.write(1, codec.framed(message))


if __name__ == "__main__":
    main()
