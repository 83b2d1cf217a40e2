"""What watching a GPU costs: CPU of the daemon and its samplers beside nvitop and `wandb leet symon`, one after another
under the same load.

hoptui does more meanwhile: a live run logs 40 metrics twice a second, a viewer follows, everything is recorded. The tools
draw to a terminal of 120×40; hoptui's dashboard, which draws too, is a figure of its own.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu_node import RUN, cpu_s, hoptui_processes, load, watched
from benchmarks.measure import Bench, Terminal, bench, report, spread

SETTLE_S, SLICE_S, SLICES = 6.0, 4.0, 5
TARGETS = {2.0: 0.4, 10.0: 1.2}
"""Per cent of a core at so many samples a second."""
TOOLS: dict[str, list[str]] = {
    "nvitop, 2 s": ["nvitop", "--interval", "2"],
    "nvitop, 0.25 s": ["nvitop", "--interval", "0.25"],
    "wandb leet symon, 2 s": ["wandb", "leet", "symon"],
    "wandb leet symon, 0.1 s": ["wandb", "leet", "symon", "--interval", "100ms"],
    "hoptui's dashboard, 2 Hz": [sys.executable, "-m", "hoptui"],
}


def hoptui(node: Bench, hz: float) -> dict[str, float]:
    """The daemon and its children while a viewer wants `hz` samples a second."""
    with watched(node, hz):
        time.sleep(SETTLE_S)
        processes = hoptui_processes(node)
        shares = []
        for _ in range(SLICES):
            before, since = cpu_s(processes), time.monotonic()
            time.sleep(SLICE_S)
            shares.append(100 * (cpu_s(processes) - before) / (time.monotonic() - since))
        found = spread(shares, 3) | {"mean": round(sum(shares) / len(shares), 3)}
        found["memory_mib"] = round(sum(p.memory_info().rss for p in processes) / 2**20, 1)
        found["processes"] = len(processes)
    return found


def tool(node: Bench, command: Sequence[str]) -> dict[str, float]:
    """A terminal program and its children."""
    terminal = Terminal(command, node.environment)
    try:
        terminal.read(SETTLE_S)
        shares = []
        for _ in range(SLICES):
            before, since = terminal.cpu_s(), time.monotonic()
            terminal.read(SLICE_S)
            shares.append(100 * (terminal.cpu_s() - before) / (time.monotonic() - since))
    finally:
        terminal.close()
    return spread(shares, 3) | {"mean": round(sum(shares) / len(shares), 3)}


def main() -> dict[str, Any]:
    """Measure and report."""
    figures: dict[str, Any] = {}
    with bench() as node, load(node, "matmul"):
        node.python(RUN)
        node.run("beside")
        for hz in TARGETS:
            figures[f"hoptui's daemon and samplers, {hz:g} Hz"] = hoptui(node, hz)
        for name, command in TOOLS.items():
            if shutil.which(command[0]):
                figures[name] = tool(node, command)
    met = {
        f"{hz:g} Hz: at most {most} % of a core": figures[f"hoptui's daemon and samplers, {hz:g} Hz"]["mean"]
        <= most
        for hz, most in TARGETS.items()
    }
    return report("sampler_cost", {"percent_of_a_core": figures, "slices_s": SLICE_S, "met": met})


if __name__ == "__main__":
    main()
