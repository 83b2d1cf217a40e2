"""A node with many runs and viewers: what its daemon costs, and whether it loses rows.

`python -m benchmarks.many_runs [--minutes N]`. 64 training processes log 100 rows of 40 metrics a second
each, and 8 viewers watch one of them each. Every process is real. The training processes do nothing else.
CPU is that of the daemon's process without its samplers, from the kernel, in seconds of CPU a second.
`behind_s` is how far the newest row that a viewer has lags behind the newest one of the run, by their number.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure import Bench, bench, machine, quantile, report, spread, tell, until
from hoptui.client.session import Session
from hoptui.node.addresses import addresses
from hoptui.protocol.messages import NodeState
from hoptui.recording import Recording

MINUTES, RUNS, HZ, METRICS, VIEWERS = 60.0, 64, 100, 40, 8
WARM_UP_S = 300.0
"""Until the buffers of rows in memory are full (8192 rows of each run) and the first rows are summarised."""
SAMPLE_S = 10.0
LONGER_S = 20.0
"""The runs go on for so long after the last sample, less what their start took."""
MOST_CPU, MOST_BEHIND_S, MOST_GROWTH = 0.35, 1.0, 0.05

RUN = """
import mmap, random, sys, time
from array import array
import hoptui
name, hz, metrics, rows = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
random.seed(name)
noise = list(array("f", [random.random() for _ in range(65536 + metrics)]))  # float32, as loss.item()
names = [f"metric_{i}" for i in range(metrics)]
with open(sys.argv[5], "r+b") as file:
    finished = mmap.mmap(file.fileno(), 8)
run = hoptui.connect(name, total=rows)
due = time.monotonic()
for step in run.iterations(rows):
    finished[:] = step.to_bytes(8, "little")
    at = step * metrics % 65536
    run.log(dict(zip(names, noise[at:at + metrics])))
    due += 1 / hz
    time.sleep(max(0.0, due - time.monotonic()))
"""

VIEWER = """
import json, select, sys
from hoptui.client.client import Client
run, hz, path = sys.argv[1], float(sys.argv[2]), sys.argv[3]
client = Client(client="bench", start_daemon=False)
client.start()
client.watch(run)
behind = []
with open(path, "rb") as file:
    while not select.select([sys.stdin], [], [], 0.25)[0]:
        file.seek(0)
        finished, steps = int.from_bytes(file.read(8), "little"), client.store.steps("run/" + run)
        if steps is not None and steps.last == steps.last:
            behind.append(round(max(0.0, finished - 1 - steps.last) / hz, 4))
client.close()
print(json.dumps(behind), flush=True)
"""


class Watch:
    """CPU and memory of the daemon over time, and the rows that runs count as dropped."""

    def __init__(self, daemon: psutil.Process, runs: Sequence[psutil.Process]) -> None:
        self._daemon, self._runs = daemon, runs
        self._began = self._at = time.monotonic()
        self._cpu = self._threads()
        self._cpu_of_runs = self._of_runs()
        self.minutes: list[float] = []
        self.rss_mib: list[float] = []
        self.cpu: dict[str, list[float]] = {name: [] for name in (*self._cpu, "all", "the runs")}
        self.load: list[float] = []

    def steady(self, values: Sequence[float]) -> Sequence[float]:
        """The samples after the warm-up, or of the second half."""
        begin = next((i for i, at in enumerate(self.minutes) if at * 60 > WARM_UP_S), len(values) // 2)
        return values[min(begin, len(values) // 2) :]

    def sample(self) -> None:
        """Take one sample, of the time since the one before."""
        now, cpu, of_runs = time.monotonic(), self._threads(), self._of_runs()
        spent = {name: cpu[name] - self._cpu[name] for name in cpu}
        spent |= {"all": sum(spent.values()), "the runs": of_runs - self._cpu_of_runs}
        for name, seconds in spent.items():
            self.cpu[name].append(seconds / (now - self._at))
        self._at, self._cpu, self._cpu_of_runs = now, cpu, of_runs
        self.minutes.append(round((now - self._began) / 60, 2))
        self.rss_mib.append(round(self._daemon.memory_info().rss / 2**20, 1))
        self.load.append(os.getloadavg()[0])

    def _threads(self) -> dict[str, float]:
        """CPU seconds of the loop, of the archive and of ZeroMQ."""
        found = {"loop": 0.0, "archive": 0.0, "zmq": 0.0}
        for thread in self._daemon.threads():
            called = Path(f"/proc/{self._daemon.pid}/task/{thread.id}/comm").read_text()
            name = (
                "zmq" if called.startswith("ZMQ") else "loop" if thread.id == self._daemon.pid else "archive"
            )
            found[name] += thread.user_time + thread.system_time
        return found

    def _of_runs(self) -> float:
        return sum(sum(run.cpu_times()[:2]) for run in self._runs)


def growth(values: Sequence[float]) -> float:
    """The median of the last fifth, less that of the first fifth."""
    fifth = max(1, len(values) // 5)
    return statistics.median(values[-fifth:]) - statistics.median(values[:fifth])


def dropped(session: Session, counts: dict[str, int]) -> NodeState:
    """Return the state of the node, and update how many rows each run counts as dropped."""
    found = session.fetch(state=0)
    assert found.node is not None
    counts |= {run: vital.dropped for run, vital in found.vitals.items()}
    return found.node


def on_disk(runs: Sequence[str]) -> int:
    """How many rows the recordings of these runs have."""
    rows = 0
    for run in runs:
        with Recording.open(addresses().recording(run)) as recording:
            rows += recording.sources().get(f"run/{run}", (0, 0, 0))[2]
    return rows


def measure(node: Bench, minutes: float, runs: int, viewers: int) -> dict[str, Any]:
    """Let so many runs and viewers live for so long."""
    rows = round((minutes * 60 + LONGER_S) * HZ)
    finished = {f"run-{i}": node.base / f"run-{i}.finished" for i in range(runs)}  # rows, by name
    for path in finished.values():
        path.write_bytes(bytes(8))
    training = [
        node.python(RUN, name, str(HZ), str(METRICS), str(rows), str(path)) for name, path in finished.items()
    ]
    lost: dict[str, int] = {}
    with Session(client="bench", start_daemon=True, timeout_s=30.0) as session:
        until(lambda: len(dropped(session, lost).runs) == runs, 120, "all runs")
        found = dropped(session, lost)
        ids = [run.run for run in found.runs]
        watched = [found.runs[i * runs // viewers] for i in range(viewers)]
        watching = [node.python(VIEWER, run.run, str(HZ), str(finished[run.name])) for run in watched]
        daemon = psutil.Process(found.pid)
        watch = Watch(daemon, [psutil.Process(child.pid) for child in training])
        history: set[str] = set()
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            time.sleep(min(SAMPLE_S, minutes * 3))
            watch.sample()
            history |= {dropped(session, lost).history} - {""}
            tell(f"after {watch.minutes[-1]} min", {"cpu": watch.cpu["all"][-1], "mib": watch.rss_mib[-1]})
        behind = [json.loads(_asked_to_end(viewer)) for viewer in watching]
        for child in training:
            child.wait(120)
        until(lambda: all(run.exit_reason for run in dropped(session, lost).runs), 60, "the end of all runs")
        session.shutdown()
    daemon.wait(60)
    steady = watch.steady
    lags = [lag for found in behind for lag in found]
    return {
        "minutes": minutes,
        "runs": runs,
        "viewers": viewers,
        "daemon_cpu": spread(steady(watch.cpu["all"])),
        "daemon_cpu_by_thread": {
            name: spread(steady(watch.cpu[name])) for name in ("loop", "archive", "zmq")
        },
        "run_cpu": spread([cpu / runs for cpu in steady(watch.cpu["the runs"])]),
        "rss_mib": spread(steady(watch.rss_mib), 1) | {"growth": round(growth(steady(watch.rss_mib)), 1)},
        "rss_mib_by_minute": list(zip(watch.minutes, watch.rss_mib, strict=True)),
        "behind_s": {name: quantile(lags, q) for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))},
        "rows": {"produced": rows * runs, "on_disk": on_disk(ids), "dropped": sum(lost.values())},
        "bytes_per_row": round(sum(addresses().recording(i).stat().st_size for i in ids) / rows / runs, 1),
        "history_problems": sorted(history),
        "load_average": spread(steady(watch.load), 1),
    }


def _asked_to_end(child: subprocess.Popen[str]) -> str:
    out, _ = child.communicate("end\n", timeout=30)
    return out


def judge(figures: dict[str, Any]) -> dict[str, bool]:
    """Which targets are met."""
    rows, memory = figures["rows"], figures["rss_mib"]
    return {
        f"the daemon at most {MOST_CPU:.0%} of a core": figures["daemon_cpu"]["median"] <= MOST_CPU,
        f"memory grows by at most {MOST_GROWTH:.0%}": memory["growth"] <= MOST_GROWTH * memory["median"],
        f"viewers at most {MOST_BEHIND_S:g} s behind": figures["behind_s"]["p99"] <= MOST_BEHIND_S,
        "every row is on disk or counted as dropped": rows["produced"] == rows["on_disk"] + rows["dropped"],
    }  # fmt: skip


def main() -> None:
    """Measure and report."""
    asked = _options()
    with bench() as node:
        figures = measure(node, asked.minutes, asked.runs, asked.viewers)
    figures["met"] = judge(figures)
    if asked == argparse.Namespace(minutes=MINUTES, runs=RUNS, viewers=VIEWERS):
        report("many_runs", figures)
    else:  # a part is no result to keep
        print(json.dumps({"benchmark": "many_runs", "machine": machine(), **figures}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_runs", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--viewers", type=int, default=VIEWERS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
