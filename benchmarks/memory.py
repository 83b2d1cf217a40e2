"""Memory of the trainer over 10^5 rows of 40 metrics while a viewer that follows it is stopped."""

from __future__ import annotations

import json
import signal

from benchmarks.log_cost import VIEWER
from benchmarks.measure import bench, report

ROWS = 100_000

TRAINER = """
import json, sys, time, hoptui, psutil
run = hoptui.connect("memory")
values = {f"metric_{i}": float(i) for i in range(40)}
me = psutil.Process()
print("ready", flush=True); sys.stdin.readline()
rss = []
for i in range(int(sys.argv[1])):
    run.boundary(i)
    run.log(values)
    if i % 20 == 0: time.sleep(0.002)
    if i % 5000 == 0: rss.append(round(me.memory_info().rss / 2**20, 2))
print(json.dumps(rss), flush=True)
"""


def main() -> None:
    """Measure and report."""
    with bench() as node:
        trainer = node.python(TRAINER, str(ROWS))
        assert trainer.stdout is not None
        assert trainer.stdin is not None
        trainer.stdout.readline()
        viewer = node.python(VIEWER, node.run("memory").run)
        assert viewer.stdout is not None
        viewer.stdout.readline()
        viewer.send_signal(signal.SIGSTOP)
        trainer.stdin.write("go\n")
        trainer.stdin.flush()
        rss = json.loads(trainer.stdout.readline())
    settled = rss[len(rss) // 4 :]
    report(
        "memory",
        {"rows": ROWS, "rss_mib": rss, "growth_mib_after_a_quarter": round(settled[-1] - settled[0], 2)},
    )


if __name__ == "__main__":
    main()
