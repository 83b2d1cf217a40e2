"""A replay of a recorded hour at 120×40: time to the first frame, from a key to the new moment on screen, CPU
and bytes at 60×.

The recording is written first: one GPU sampled ten times a second beside a run of five iterations a second,
host and process once a second, changes of a knob and events. Medians over the slices; seconds, per cent of a
core, kB/s.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.measure import Terminal, bench, report, spread, tell
from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo
from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.domain.tuning import Measured
from hoptui.protocol.messages import CommandRecord, Event, NodeState, Origin, RunState
from hoptui.recording import Recording
from hoptui.recording.ingest import Boot
from hoptui.recording.library import NODE, RUN, KnownRun, encode_node

SECOND = 1_000_000_000
LENGTH_S = 3600
FIRST = 1_000 * SECOND
WALL_S = 1_780_000_000
PART_S = 60
OPENINGS, SEEKS = 5, 20
SETTLE_S, SLICE_S, SLICES = 4.0, 4.0, 5
ID, GPU = "bench001", "GPU-bench"
REPLAY = "import sys; from hoptui.tui import replay_app; sys.exit(replay_app.replay(sys.argv[1]))"
SHARES = (
    "busy", "memory_busy", "sm_active", "sm_occupancy", "tensor_active", "tensor_half_active",
    "tensor_int_active", "tensor_double_active", "dram_active", "fp64_active", "fp32_active", "fp16_active",
    "int_active",
    "mfu_estimated",
)  # fmt: skip
RATES = (
    "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s",
)  # fmt: skip


def gpu_row(at_s: float) -> dict[str, float]:
    """All readings of a GPU."""
    wave = 50 + 40 * math.sin(at_s / 20)
    row = {name: round(wave * random.uniform(0.9, 1.1), 2) for name in SHARES}
    row |= {name: round(random.random() * 1e9, -3) for name in RATES}
    watts = round(300 + 3 * wave + random.random(), 2)
    return row | {
        "power_w": watts, "power_average_w": watts, "memory_used_bytes": 58e9, "memory_total_bytes": 85e9,
        "temperature_c": 60.0 + wave // 20, "memory_temperature_c": 70.0, "sm_clock_mhz": 1980.0,
        "memory_clock_mhz": 2619.0, "throttle": 0.0, "energy_j": round(at_s * watts, 1), "window_s": 0.1,
    }  # fmt: skip


def run_row(i: int) -> dict[str, float]:
    """What an iteration logs."""
    pace = 0.2 * random.uniform(0.95, 1.05)
    row = {f"metric_{k}": random.random() for k in range(16)}
    row |= {"phase/rollout": 0.6 * pace, "phase/rollout/env": 0.4 * pace, "phase/update": 0.35 * pace}
    row |= {"evaluation_return": 200.0 + i % 300} if i % 50 == 0 else {}
    return row | {
        "env_steps_per_s": 65536 / pace, "iteration_s": pace, "policy_loss": random.random(),
        "episode_return": 500 * (1 - math.exp(-i / 4000)), "entropy": random.random(),
    }  # fmt: skip


def write(path: Path, length_s: int = LENGTH_S) -> None:
    """Write the recording."""
    boot = Boot("bench", WALL_S * SECOND - FIRST, FIRST)
    knob = KnobSpec(name="grad_accum", kind="int", default=4, min=1, max=64, effect="speed")
    state = RunState(
        run=ID, name="ppo-recorded", epoch=1, pid=4242, started_wall=float(WALL_S), total=length_s * 5,
        knobs=(KnobState(spec=knob, value=8, version=1),), headline="env_steps_per_s", gpus=(GPU,),
        exit_reason="finished", exited_wall=float(WALL_S + length_s), can=("set", "pause", "stop"),
    )  # fmt: skip
    gpu = GpuInfo(
        uuid=GPU, index=0, name="NVIDIA H100 80GB HBM3", memory_total_bytes=85 * 10**9, power_limit_w=700.0,
        sm_clock_max_mhz=1980.0, driver="580", architecture="Hopper",
    )  # fmt: skip
    node = NodeState(
        host="gpu07", pid=1, version="0.1.0", started_wall=0.0, wall_offset_ns=0, cpus=16,
        memory_total_bytes=128 << 30, gpus=(gpu,),
    )  # fmt: skip
    with Recording.create(path, boot=boot) as recording:
        recording.remember(RUN, msgspec.json.encode(KnownRun(state=state, nonce="n", process_started=1)))
        recording.remember(NODE, encode_node(node))
        for start in range(0, length_s, PART_S):
            stop = min(length_s, start + PART_S)
            tenths, fifths, seconds = (
                range(start * 10, stop * 10),
                range(start * 5, stop * 5),
                range(start, stop),
            )
            sources: dict[str, list[tuple[int, int, dict[str, float]]]] = {
                f"gpu/{GPU}": [(FIRST + i * SECOND // 10, -1, gpu_row(i / 10)) for i in tenths],
                f"run/{ID}": [(FIRST + i * SECOND // 5, i, run_row(i)) for i in fifths],
                "host": [
                    (FIRST + i * SECOND, -1, {"cpu_percent": 40 + 10 * random.random()}) for i in seconds
                ],
                f"process/{ID}": [
                    (FIRST + i * SECOND, -1, {"cpu_percent": 100 * random.random()}) for i in seconds
                ],
            }
            for source, rows in sources.items():
                recording.append(pack(source, rows))
            recording.flush()
        for i in range(0, length_s, 300):
            t, wall = FIRST + i * SECOND, float(WALL_S + i)
            text = f"checkpoint {i // 300} written"
            recording.event(Event(seq=i + 1, t=t, wall=wall, kind="note", text=text, run=ID, step=5 * i))
        t, wall = FIRST + length_s * SECOND, float(WALL_S + length_s)
        recording.event(Event(seq=length_s + 2, t=t, wall=wall, kind="exited", text="finished", run=ID))
        asked = FIRST + length_s * SECOND // 3
        recording.command(
            CommandRecord(
                id="c", run=ID, epoch=1, verb="set", knob="grad_accum", wanted=8, before=4, effective=8,
                version=1, stage="applied", step=length_s * 5 // 3, origin=Origin(user="ana", pid=1), t=asked,
                seq=1, wall=float(WALL_S + length_s // 3), settled=asked + SECOND // 2,
                measured=Measured(metric="env_steps_per_s", gain=0.06, interval=0.01, detectable=True,
                                  iterations=15),
            )
        )  # fmt: skip


def opening(command: list[str], environment: dict[str, str]) -> float:
    """Seconds from the start of the program to its first full frame."""
    terminal = Terminal(command, environment)
    terminal.read(2.5)
    terminal.type(b" ")  # pause, so that its last frame is the one to compare with
    terminal.read(0.7)
    first = terminal.first_full_frame_s(share=0.7)
    terminal.close()
    return first


def seeks(terminal: Terminal) -> list[float]:
    """Seconds from a key that moves by a minute to the last byte of the frame of the new moment."""
    costs = []
    for i in range(SEEKS):
        terminal.read(0.4)
        sent, count = time.monotonic() - terminal.started, len(terminal.written)
        terminal.type(b"\x1b[1;2C" if i % 4 else b"\x1b[F" if i % 8 else b"\x1b[H")
        terminal.read(0.5)
        frame = [at for at, _ in terminal.written[count:] if at < sent + 0.2]
        if frame:
            costs.append(frame[-1] - sent)
    return costs


def playing(terminal: Terminal) -> tuple[list[float], list[float]]:
    """CPU in per cent of a core and kB/s while it plays at 60×."""
    terminal.type(b"\x1b[H ")
    terminal.type(b"]")  # it begins at 20×
    terminal.read(SETTLE_S)
    cpu, sent = [], []
    for _ in range(SLICES):
        before, at = terminal.cpu_s(), terminal.written[-1][0]
        terminal.read(SLICE_S)
        cpu.append(100 * (terminal.cpu_s() - before) / SLICE_S)
        sent.append(terminal.bytes_between(at, at + SLICE_S) / SLICE_S / 1000)
    return cpu, sent


def main() -> None:
    """Measure and report."""
    figures: dict[str, Any] = {"size": "120x40", "recording_s": LENGTH_S}
    with tempfile.TemporaryDirectory(prefix="hoptui-replay-") as place, bench() as node:
        path = Path(place) / f"{ID}.hoptui"
        write(path)
        figures["recording_mb"] = round(path.stat().st_size / 1e6, 1)
        command = [sys.executable, "-c", REPLAY, str(path)]
        figures["first_frame_s"] = spread([opening(command, node.environment) for _ in range(OPENINGS)], 2)
        tell("first frame", figures["first_frame_s"])
        terminal = Terminal(command, node.environment)
        terminal.read(2.0)
        terminal.type(b" ")
        costs = seeks(terminal)
        figures["seek_ms"] = {
            **spread([1e3 * s for s in costs], 1),
            "mean": round(1e3 * statistics.fmean(costs), 1),
        }
        tell("seeks", figures["seek_ms"])
        cpu, sent = playing(terminal)
        terminal.close()
    figures |= {"speed": 60, "cpu_percent_of_a_core": spread(cpu, 1), "kb_per_s": spread(sent, 1)}
    report("replay", figures)


if __name__ == "__main__":
    main()
