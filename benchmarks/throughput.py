"""Training throughput with hoptui on and a dashboard attached against `HOPTUI=off`, in pairs.

The trainer is pinned to one core and everything else to another. Both runs of a pair train the same number of
iterations of PPO; which goes first alternates. The figure is the median of the pairs' ratios, on over off.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from typing import Any

from benchmarks.measure import Bench, Terminal, bench, report, spread, tell

PAIRS = 7
ITERATIONS = 40

TRAIN = [
    sys.executable, "-m", "hoptui_trainer", "ppo", "--env", "CartPole-v1", "--name", "paired", "--seed", "1",
    "--threads", "1", "--device", "cpu", "--evaluate-every", "0", "--json", "--iterations", str(ITERATIONS),
]  # fmt: skip


def train(node: Bench, on: bool) -> float:
    """Env steps a second of one run, with a dashboard on it or without hoptui."""
    environment = {} if on else {"HOPTUI": "off"}
    trainer = node.start(TRAIN, cpus={0}, **environment)
    terminal = None
    try:
        if on:
            node.run("paired")
            command = ["taskset", "-c", "1", sys.executable, "-m", "hoptui", "attach", "paired"]
            terminal = Terminal(command, node.environment)
            while trainer.poll() is None:
                terminal.read(0.2)
        out, _ = trainer.communicate(timeout=300)
    finally:
        if terminal is not None:
            terminal.close()
    last: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return float(last["env_steps_per_s"])


def main() -> None:
    """Measure and report."""
    os.sched_setaffinity(0, {1})  # the daemon and every viewer inherit this
    pairs = []
    with bench() as node:
        for i in range(PAIRS):
            order = (True, False) if i % 2 else (False, True)
            speed = {on: train(node, on) for on in order}
            pairs.append(tell(f"pair {i + 1} of {PAIRS}, on and off", (speed[True], speed[False])))
    ratios = [on / off for on, off in pairs]
    figures = {
        "ratio": spread(ratios),
        "ratio_median": round(statistics.median(ratios), 4),
        "env_steps_per_s_on": spread([on for on, _ in pairs], 0),
        "env_steps_per_s_off": spread([off for _, off in pairs], 0),
    }
    report("throughput", {"pairs": PAIRS, "iterations": ITERATIONS, **figures})


if __name__ == "__main__":
    main()
