"""The page of an hour's run: how long `hoptui report` takes, as a process, and how large the page is.

The rows are those of `benchmarks.recording`: GPUs with 30 readings at 2 Hz, and a run with 40 metrics besides
its throughput and the time of an iteration. One recording has eight GPUs and 2 iterations a second, one has
one GPU and 20 iterations a second; each has a change of a knob a minute, and a verdict each five. The page of
eight runs compares eight copies of the second under other names. CPU seconds are those of the process, which
other work on the machine does not change as much as the seconds it took.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import report, spread, tell
from benchmarks.recording import HZ, POOL, RUN, SECOND, gpu_rows, part, run_rows, typical
from hoptui.domain.details import Repository, RunDetails
from hoptui.domain.devices import GpuInfo
from hoptui.domain.diagnosis import Verdict
from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.protocol.messages import CommandRecord, Event, NodeState, Origin, RunState
from hoptui.recording import Recording, stored_json
from hoptui.recording.library import NODE, KnownRun, encode_node
from hoptui.recording.library import RUN as RUN_KEY

HOUR_S = 3600
FLUSH_S = 60
TIMES = 7
VERDICTS: tuple[Verdict, ...] = ("data-bound", "healthy", "launch-bound", "healthy")
Pool = Mapping[str, "array[float]"]


def hour(path: Path, gpus: int, hz: int, name: str) -> None:
    """Write an hour of a run with `hz` iterations a second on some GPUs."""
    rng = random.Random(5)
    run = run_rows(rng) | {
        "iteration_s": array("d", [1 / hz * abs(rng.gauss(1, 0.05)) for _ in range(POOL)]),
        "tokens_per_s": array("d", [4096 * hz * abs(rng.gauss(1, 0.05)) for _ in range(POOL)]),
    }
    sources: dict[str, tuple[Pool, int]] = {RUN: (run, hz)}
    sources |= {f"gpu/GPU-{i}": (gpu_rows(typical(rng), rng), HZ) for i in range(gpus)}
    with Recording.create(path) as recording:
        recording.remember(RUN_KEY, stored_json.encode(known_run(name, gpus)))
        recording.remember(NODE, encode_node(node(gpus)))
        for first_s in range(0, HOUR_S, FLUSH_S):
            for source, (pool, rate) in sources.items():
                recording.append(part(source, pool, first_s * rate, FLUSH_S * rate, rate, rng))
            recording.command(change(first_s))
            if first_s % 300 == 0:
                recording.event(verdict(first_s))
            recording.flush()


def known_run(name: str, gpus: int) -> KnownRun:
    """The last known state of the run, and what it is."""
    state = RunState(
        run=RUN.removeprefix("run/"),
        name=name,
        epoch=1,
        pid=1,
        started_wall=1.0,
        headline="tokens_per_s",
        knobs=(KnobState(spec=KnobSpec(name="lr", kind="float", default=1e-3), value=3e-4),),
        gpus=tuple(f"GPU-{i}" for i in range(gpus)),
        exit_reason="finished",
        exited_wall=1.0 + HOUR_S,
    )
    details = RunDetails(
        config={f"model.setting_{i}": i * 0.1 for i in range(40)} | {"name": name},
        packages={f"package-{i}": "1.2.3" for i in range(40)},
        repository=Repository(commit="0" * 40, branch="main", dirty=False),
    )
    return KnownRun(state=state, nonce="n", process_started=1, details=details)


def node(gpus: int) -> NodeState:
    """The node with its GPUs."""
    found = tuple(GpuInfo(uuid=f"GPU-{i}", index=i, name="NVIDIA H100 80GB HBM3") for i in range(gpus))
    return NodeState(host="node", pid=1, version="", started_wall=1.0, wall_offset_ns=0, gpus=found)


def change(at_s: int) -> CommandRecord:
    """A change of the learning rate that took effect."""
    t = (at_s + 2) * SECOND
    return CommandRecord(
        id=f"c{at_s}", run=RUN.removeprefix("run/"), verb="set", knob="lr", before=1e-3, wanted=3e-4,
        effective=3e-4, stage="applied", origin=Origin(kind="person", user="ana"), t=t, settled=t, wall=1.0,
        seq=at_s, epoch=1,
    )  # fmt: skip


def verdict(at_s: int) -> Event:
    """A verdict of the diagnosis."""
    said = VERDICTS[at_s // 300 % len(VERDICTS)]
    return Event(
        seq=at_s + 1, t=(at_s + 3) * SECOND, wall=1.0, source=RUN, run=RUN.removeprefix("run/"),
        kind="diagnosis", level="info", text=f"{said}: most of the time",
    )  # fmt: skip


def measured(recordings: Sequence[Path], target: Path) -> dict[str, Any]:
    """Seconds and CPU seconds of `hoptui report`, and the size of its page."""
    command = [sys.executable, "-m", "hoptui", "report", *map(str, recordings), "-o", str(target), "--force"]
    took, cpu = [], []
    for _ in range(TIMES):
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        took.append(time.perf_counter() - began)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"hoptui report ended with {process.returncode}")
        cpu.append(used.ru_utime + used.ru_stime)
    return {
        "seconds": spread(took, 2),
        "cpu_seconds": spread(cpu, 2),
        "page_bytes": target.stat().st_size,
    }


def main() -> None:
    """Measure and report."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hoptui-bench-") as made:
        folder = Path(made)
        page = folder / "page.html"
        hour(folder / "node.hoptui", gpus=8, hz=2, name="node")
        figures["8_gpus_2_iterations_per_s"] = tell("8 GPUs", measured([folder / "node.hoptui"], page))
        fast = [folder / f"fast-{i}.hoptui" for i in range(8)]
        for i, path in enumerate(fast):
            hour(path, gpus=1, hz=20, name=f"fast-{i}")
        figures["1_gpu_20_iterations_per_s"] = tell("20 Hz", measured(fast[:1], page))
        figures["8_runs_compared"] = tell("8 runs", measured(fast, page))
        figures["recording_bytes"] = {path.stem: path.stat().st_size for path in folder.glob("*.hoptui")}
    report("report", figures)


if __name__ == "__main__":
    main()
