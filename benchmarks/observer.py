"""Does being watched slow a job whose speed depends on the CPU alone? A launch-bound loop, sampling on and off in turns.

Off means that the samplers are stopped (SIGSTOP): no NVML call is made; the daemon wakes up a few times a second and finds
nothing. Blocks are shorter than the silence after which it would replace a sampler, and alternate in the order on-off-off-on, so that a steady drift cancels; spells that lie in two blocks are left out. The figure is the mean of the
pairs' relative differences with a 95 % interval from their scatter (Student's t).
"""

from __future__ import annotations

import math
import signal
import statistics
import time
from typing import Any

import psutil

from benchmarks.gpu_node import RUN, hoptui_processes, load, watched
from benchmarks.measure import bench, report

HZ = 10.0
BLOCK_S, PAIRS = 1.2, 40
MOST = 0.01
T_975 = 2.02
"""Student's t of a two-sided 95 % interval with 39 degrees of freedom."""


def switch(processes: list[psutil.Process], on: bool) -> None:
    """Let the samplers go on, or stop them."""
    for process in processes:
        process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)


def main() -> dict[str, Any]:
    """Measure and report."""
    blocks: list[tuple[bool, float, float]] = []
    with bench() as node, watched(node, HZ), load(node, "launches") as running:
        node.python(RUN)
        node.run("beside")
        time.sleep(4.0)
        processes = [p for p in hoptui_processes(node) if "hoptui.telemetry" in " ".join(p.cmdline())]
        try:
            for i in range(PAIRS):
                for on in (True, False) if i % 2 == 0 else (False, True):
                    switch(processes, on)
                    start = time.monotonic()
                    time.sleep(BLOCK_S)
                    blocks.append((on, start, time.monotonic()))
        finally:
            switch(processes, True)
        time.sleep(1.0)
        rates = [(on, running.between(start, end)) for on, start, end in blocks]
    means = [(on, statistics.mean(found)) for on, found in rates if found]
    pairs = [dict(means[i : i + 2]) for i in range(0, len(means) - 1, 2)]
    differences = [pair[True] / pair[False] - 1 for pair in pairs if len(pair) == 2]
    effect = statistics.mean(differences)
    interval = T_975 * statistics.stdev(differences) / math.sqrt(len(differences))
    figures = {
        "hz": HZ,
        "pairs": len(differences),
        "kernels_per_s_off": round(statistics.median(rate for on, rate in means if not on)),
        "effect_percent": round(100 * effect, 3),
        "interval_percent": round(100 * interval, 3),
        "met": {"slower by less than 1 %": effect - interval > -MOST},
    }
    return report("observer", figures)


if __name__ == "__main__":
    main()
