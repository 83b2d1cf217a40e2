"""What watching a GPU costs: CPU of the daemon and its samplers beside nvitop and `wandb leet symon`, one
after another under the same load.

hoptui does more meanwhile: a live run logs 40 metrics twice a second, a viewer follows, everything is
recorded. The tools draw to a terminal of 120×40; hoptui's dashboard, which draws too, has its own figure.
A slice is as long as the slowest of what is done again and again (the energy counter, every 10 s), so that
each has all of it.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import psutil

from benchmarks.gpu_node import RUN, cpu_s, hoptui_processes, load, wake_ups, watched
from benchmarks.measure import Bench, Terminal, bench, report, spread, tell

SETTLE_S, SLICE_S, SLICES, TOOL_SLICES = 6.0, 10.0, 6, 3
TARGETS = {2.0: 0.4, 10.0: 1.2}
"""Per cent of a core at so many samples a second."""
PARTS = {
    "daemon": "hoptui.daemon",
    "GPU sampler": "hoptui.telemetry gpus",
    "host sampler": "hoptui.telemetry host",
}
"""What is in the command line of each process."""
TOOLS: dict[str, list[str]] = {
    "nvitop, 2 s": ["nvitop", "--interval", "2"],
    "nvitop, 0.25 s": ["nvitop", "--interval", "0.25"],
    "wandb leet symon, 2 s": ["wandb", "leet", "symon"],
    "wandb leet symon, 0.1 s": ["wandb", "leet", "symon", "--interval", "100ms"],
    "hoptui's dashboard, 2 Hz": [sys.executable, "-m", "hoptui"],
}


def hoptui(node: Bench, hz: float) -> dict[str, Any]:
    """The daemon and its children while a viewer wants `hz` samples a second, together and each apart."""
    with watched(node, hz):
        time.sleep(SETTLE_S)
        processes = hoptui_processes(node)
        parts = by_part(processes)
        shares: dict[str, list[float]] = {part: [] for part in parts}
        woken: dict[str, int] = {part: -wake_ups(own) for part, own in parts.items()}
        for _ in range(SLICES):
            before, since = {part: cpu_s(own) for part, own in parts.items()}, time.monotonic()
            time.sleep(SLICE_S)
            took = time.monotonic() - since
            for part, own in parts.items():
                shares[part].append(100 * (cpu_s(own) - before[part]) / took)
        together = [sum(slices) for slices in zip(*shares.values(), strict=True)]
        found: dict[str, Any] = _percent(together)
        found["memory_mib"] = round(sum(p.memory_info().rss for p in processes) / 2**20, 1)
        found["each"] = {
            part: _percent(shares[part])
            | {
                "wake_ups_per_s": round((woken[part] + wake_ups(own)) / (SLICES * SLICE_S), 1),
                "processes": len(own),
            }
            for part, own in parts.items()
        }
    return found


def by_part(processes: Sequence[psutil.Process]) -> dict[str, list[psutil.Process]]:
    """Which of these processes is what.

    Raises:
        RuntimeError: there is none of one kind: nothing would be measured of it.
    """
    parts = {part: [p for p in processes if sign in " ".join(p.cmdline())] for part, sign in PARTS.items()}
    for part, own in parts.items():
        if not own:
            raise RuntimeError(f"no process of hoptui's {part} was found")
    return parts


def tool(node: Bench, command: Sequence[str]) -> dict[str, float]:
    """A terminal program and its children."""
    terminal = Terminal(command, node.environment)
    try:
        terminal.read(SETTLE_S)
        shares = []
        for _ in range(TOOL_SLICES):
            before, since = terminal.cpu_s(), time.monotonic()
            terminal.read(SLICE_S)
            shares.append(100 * (terminal.cpu_s() - before) / (time.monotonic() - since))
    finally:
        terminal.close()
    return _percent(shares)


def main() -> dict[str, Any]:
    """Measure and report."""
    figures: dict[str, Any] = {}
    with bench() as node, load(node, "matmul"):
        node.python(RUN)
        node.run("beside")
        for hz in TARGETS:
            name = f"hoptui's daemon and samplers, {hz:g} Hz"
            figures[name] = tell(name, hoptui(node, hz))
        for name, command in TOOLS.items():
            if shutil.which(command[0]):
                figures[name] = tell(name, tool(node, command))
    met = {
        f"{hz:g} Hz: at most {most} % of a core": figures[f"hoptui's daemon and samplers, {hz:g} Hz"]["mean"]
        <= most
        for hz, most in TARGETS.items()
    }
    return report("sampler_cost", {"percent_of_a_core": figures, "slices_s": SLICE_S, "met": met})


def _percent(shares: Sequence[float]) -> dict[str, float]:
    return spread(shares, 3) | {"mean": round(sum(shares) / len(shares), 3)}


if __name__ == "__main__":
    main()
