"""The dashboard at 120×40 on a busy run: CPU of its process and bytes written to the terminal."""

from __future__ import annotations

import sys

from benchmarks.measure import Terminal, bench, report, spread

SETTLE_S, SLICE_S, SLICES = 5.0, 4.0, 5
RUN = """
import math, random, time, hoptui
run = hoptui.connect("busy")
for name in ("num_envs", "rollout_len", "minibatch_size", "epochs", "grad_accum"):
    run.knob(name, 8, min=1, max=64)
for i in run.iterations():
    with run.phase("rollout"):
        with run.phase("env"): time.sleep(0.01 + 0.005 * random.random())
        with run.phase("policy"): time.sleep(0.005)
    with run.phase("update"): time.sleep(0.01)
    run.log({f"metric_{k}": random.random() for k in range(34)}, env_steps=2048, samples=8192, loss=random.random(),
            episode_return=200 + 100 * math.sin(i / 50), entropy=random.random(), approx_kl=random.random() / 50)
"""


def main() -> None:
    """Measure and report."""
    with bench() as node:
        node.python(RUN)
        node.run("busy")
        terminal = Terminal([sys.executable, "-m", "hoptui", "attach", "busy"], node.environment)
        terminal.read(SETTLE_S)
        cpu, sent = [], []
        for _ in range(SLICES):
            before, at = terminal.cpu_s(), terminal.written[-1][0]
            terminal.read(SLICE_S)
            cpu.append(100 * (terminal.cpu_s() - before) / SLICE_S)
            sent.append(terminal.bytes_between(at, at + SLICE_S) / SLICE_S / 1000)
        terminal.close()
    report(
        "dashboard", {"size": "120x40", "cpu_percent_of_a_core": spread(cpu, 1), "kb_per_s": spread(sent, 1)}
    )


if __name__ == "__main__":
    main()
