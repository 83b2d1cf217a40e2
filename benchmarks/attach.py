"""`hoptui attach` to its first full frame at 120×40, and `hoptui ls`, each as a person starts it, in seconds
and CPU seconds.

In turn with the least that Textual draws, an app of one line: what of an attach is Textual's own start, on
this machine at this hour.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import Terminal, bench, report, spread, tell

TIMES = 9
WATCHED_S, STEP_S = 3.0, 0.01
RUN = """
import time, hoptui
run = hoptui.connect("attached")
run.knob("grad_accum", 4, min=1, max=64, effect="speed")
for i in run.iterations():
    with run.phase("update"):
        time.sleep(0.02)
    run.log(samples=1000, loss=1 / (i + 1))
"""
LEAST = (
    "from textual.app import App; from textual.widgets import Static; App.compose = lambda self: [Static('x' "
    "* 100)]; App().run()"
)


def first_frame(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds until a program's first full frame, and the CPU seconds that its threads had taken by then."""
    terminal = Terminal(command, environment)
    spent: list[tuple[float, float]] = []
    while terminal.clock() < WATCHED_S:
        terminal.read(STEP_S)
        spent.append((terminal.clock(), threads_cpu_s(terminal.pid)))
    at = terminal.first_full_frame_s()
    terminal.close()
    return at, next(cpu for clock, cpu in spent if clock >= at)


def threads_cpu_s(pid: int) -> float:
    """CPU seconds of the threads that a process has now: the kernel's own count, finer than the ticks of
    /proc/PID/stat."""
    stats = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(stat.split()[0]) for stat in stats) / 1e9


def main() -> None:
    """Measure and report."""
    hoptui = str(Path(sys.executable).with_name("hoptui"))
    commands = {"attach": [hoptui, "attach", "attached"], "least": [sys.executable, "-c", LEAST]}
    frames: dict[str, list[float]] = {name: [] for name in commands}
    cpu: dict[str, list[float]] = {name: [] for name in commands}
    lists = []
    with bench() as node:
        node.python(RUN)
        node.run("attached")
        environment = {n: v for n, v in node.environment.items() if n != "PYTHONDONTWRITEBYTECODE"}
        for command in commands.values():  # as after an installation: what changed since is compiled and kept
            first_frame(command, environment)
        for _ in range(TIMES):
            for name, command in commands.items():
                at, spent = tell(f"{name}: first frame and CPU", first_frame(command, environment))
                frames[name].append(at)
                cpu[name].append(spent)
            began = time.monotonic()
            subprocess.run([hoptui, "ls"], env=environment, check=True, capture_output=True, timeout=30)
            lists.append(time.monotonic() - began)
    ratios = [whole / least for whole, least in zip(cpu["attach"], cpu["least"], strict=True)]
    figures = {
        "unit": "seconds",
        "attach_first_full_frame": spread(frames["attach"]),
        "attach_cpu": spread(cpu["attach"]),
        "least_textual_app": spread(frames["least"]),
        "least_textual_app_cpu": spread(cpu["least"]),
        "cpu_over_least": round(statistics.median(ratios), 2),
        "ls": spread(lists),
    }
    report("attach", figures)


if __name__ == "__main__":
    main()
