"""`hoptui attach` to its first full frame at 120×40, and `hoptui ls`, each as a person starts it. Seconds."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import Terminal, bench, report, spread

TIMES = 7
RUN = """
import time, hoptui
run = hoptui.connect("attached")
run.knob("grad_accum", 4, min=1, max=64, effect="speed")
for i in run.iterations():
    with run.phase("update"):
        time.sleep(0.02)
    run.log(samples=1000, loss=1 / (i + 1))
"""


def main() -> None:
    """Measure and report."""
    hoptui = str(Path(sys.executable).with_name("hoptui"))
    frames, lists = [], []
    with bench() as node:
        node.python(RUN)
        node.run("attached")
        time.sleep(3.0)
        for _ in range(TIMES):
            terminal = Terminal([hoptui, "attach", "attached"], node.environment)
            terminal.read(3.0)
            frames.append(terminal.first_full_frame_s())
            terminal.close()
        for _ in range(TIMES):
            began = time.monotonic()
            subprocess.run([hoptui, "ls"], env=node.environment, check=True, capture_output=True, timeout=30)
            lists.append(time.monotonic() - began)
    report("attach", {"unit": "seconds", "attach_first_full_frame": spread(frames), "ls": spread(lists)})


if __name__ == "__main__":
    main()
