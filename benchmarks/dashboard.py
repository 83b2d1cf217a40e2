"""The dashboard at 120×40: CPU of its process, bytes to the terminal, how old what it shows is, and how soon
it shows what a key did.

In full swing: eight invented GPUs behind the real daemon, a run of 40 metrics and 30 iterations a second on
all of them, three knobs a minute; then before a terminal that accepts 30 KB/s, and one that accepts
nothing, like a detached one. And where nothing changes: a run that is over, and a node where
nothing runs.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.eight_gpus import ALL, eight_gpus
from benchmarks.measure import Bench, Terminal, bench, quantile, report, spread, tell, until
from hoptui.client.session import Session
from hoptui.protocol.messages import RunState

SETTLE_S, SLICE_S, SLICES, QUIET_SLICES = 8.0, 5.0, 12, 4
SET_S = 20.0
THIN = 30_000.0  # bytes a second
SHARE_MOST, QUIET_MOST, KB_MOST, AGE_MOST_S, KEY_MOST_MS = 8.0, 1.0, 20.0, 2.0, 50.0
PRESSES, APART_S = 100, (0.15, 0.3)
DOWN, UP = b"\x1b[B", b"\x1b[A"
CHOSEN = r"› (\w+)"
"""The knob under the cursor."""
ITERATION = "\\A[^\\n]*iteration ([\\d\u202f\u2009 ]*\\d)(?:  | /|$)"
"""In the first line of the screen."""
RUN = """
import math, random, sys, time, hoptui
run = hoptui.connect("busy")
for name in ("num_envs", "rollout_len", "minibatch_size", "epochs", "grad_accum"):
    run.knob(name, 8, min=1, max=64)
for i in run.iterations(int(sys.argv[1]) if len(sys.argv) > 1 else None):
    with run.phase("rollout"):
        with run.phase("env"): time.sleep(0.01 + 0.005 * random.random())
        with run.phase("policy"): time.sleep(0.005)
    with run.phase("update"): time.sleep(0.01)
    run.log({f"metric_{k}": random.random() for k in range(34)}, env_steps=2048, samples=8192,
            loss=random.random(), episode_return=200 + 100 * math.sin(i / 50), entropy=random.random(),
            approx_kl=random.random() / 50)
run.close()
"""
"""It ends after as many iterations as its argument says."""


def attached(node: Bench, *arguments: str) -> Terminal:
    """The dashboard in a terminal."""
    return Terminal([sys.executable, "-m", "hoptui", *arguments], node.environment)


def costs(terminal: Terminal, slices: int, rate: float | None = None) -> dict[str, Any]:
    """What it costs while its terminal takes so many bytes a second (None: all)."""
    terminal.read(SETTLE_S, rate)
    cpu, sent = [], []
    for _ in range(slices):
        before, at = terminal.cpu_s(), terminal.clock()
        terminal.read(SLICE_S, rate)
        took = terminal.clock() - at
        cpu.append(100 * (terminal.cpu_s() - before) / took)
        sent.append(terminal.bytes_between(at, at + took) / took / 1000)
    return {"cpu_percent_of_a_core": spread(cpu, 1), "kb_per_s": spread(sent, 1)}


def unread(terminal: Terminal) -> dict[str, Any]:
    """Return the cost while the terminal reads nothing."""
    cpu = []
    for skipped in (SETTLE_S, *[SLICE_S] * QUIET_SLICES):
        before, at = terminal.cpu_s(), terminal.clock()
        threading.Event().wait(skipped)
        cpu.append(100 * (terminal.cpu_s() - before) / (terminal.clock() - at))
    return {"cpu_percent_of_a_core": spread(cpu[1:], 1)}


def ages(terminal: Terminal, session: Session, run: RunState, start: float) -> dict[str, float]:
    """How old the iteration on the screen was, in seconds, by the run's own stamps, from `start` of the
    terminal's clock on."""
    source = f"run/{run.run}"
    rows = session.fetch(cursors={source: 1}, max_rows=4096).columns[0]
    steps, stamps = rows.steps(), rows.times()
    found = []
    for at, seen in terminal.shown(ITERATION, start):
        step = int("".join(filter(str.isdigit, seen[1])))
        row = bisect_right(steps, step) - 1
        if 0 <= row < len(steps) - 1:
            found.append(terminal.started + at - stamps[row] / 1e9)
    return spread(found, 2) | {"p95": round(quantile(found, 0.95), 2)}


def key_ms(terminal: Terminal) -> dict[str, float]:
    """Milliseconds from a key that chooses another knob until that knob is chosen on the screen."""
    chance = random.Random(1)
    times = []
    for i in range(PRESSES):
        terminal.read(chance.uniform(*APART_S))
        times.append(terminal.clock())
        terminal.type(DOWN if i % 4 < 2 else UP)
    terminal.read(1.0)
    found = [1000 * s for s in terminal.answered(CHOSEN, times)]
    return spread(found, 1) | {"p95": round(quantile(found, 0.95), 1), "pressed": PRESSES}


@contextmanager
def somebody_at_the_knobs(session: Session, run: RunState) -> Iterator[None]:
    """Three changes a minute, by a person elsewhere."""
    over = threading.Event()

    def work() -> None:
        for i in itertools.count():
            if over.wait(SET_S):
                return
            knob = run.knobs[i % len(run.knobs)].spec.name
            session.outcome(session.submit(run, "set", knob=knob, value=1 + i % 16), timeout_s=5.0)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


def full_swing() -> dict[str, Any]:
    """Before a terminal that takes everything, a thin one, and one that takes nothing."""
    figures: dict[str, Any] = {}
    with eight_gpus() as node:
        node.python(RUN, CUDA_VISIBLE_DEVICES=ALL)
        run = node.run("busy")
        terminal = attached(node, "attach", "busy")
        with node.session() as steering, somebody_at_the_knobs(steering, run):
            figures["full swing"] = costs(terminal, SLICES)
            figures["full swing"]["key_ms"] = key_ms(terminal)
        with node.session() as looking:
            figures["full swing"]["age_s"] = ages(terminal, looking, run, terminal.clock() - 30)
            tell("full swing", figures["full swing"])
            figures["thin terminal"] = costs(terminal, SLICES, THIN)
            figures["thin terminal"]["age_s"] = ages(terminal, looking, run, terminal.clock() - 30)
            tell("thin terminal", figures["thin terminal"])
        name = "terminal that takes nothing"
        figures[name] = tell(name, unread(terminal))
        terminal.close()
    return figures


def quiet() -> dict[str, Any]:
    """Where nothing changes but the clock."""
    figures = {}
    with bench() as node:
        terminal = attached(node)
        name = "a node where nothing runs"
        figures[name] = tell(name, costs(terminal, QUIET_SLICES))
        terminal.close()
        run = node.python(RUN, "90")
        node.run("busy")
        until(lambda: run.poll() is not None, what="the end of the run")
        terminal = attached(node, "attach", "busy")
        name = "a run that is over"
        figures[name] = tell(name, costs(terminal, QUIET_SLICES))
        terminal.close()
    return figures


def main() -> None:
    """Measure and report."""
    figures = full_swing() | quiet()

    def share(name: str) -> float:
        return float(figures[name]["cpu_percent_of_a_core"]["median"])

    def kb(name: str) -> float:
        return float(figures[name]["kb_per_s"]["median"])

    still = ("terminal that takes nothing", "a node where nothing runs", "a run that is over")
    thin = figures["thin terminal"]["age_s"]["p95"]
    key = figures["full swing"]["key_ms"]["p95"]
    met = {
        f"full swing: at most {SHARE_MOST:g} % of a core": share("full swing") <= SHARE_MOST,
        f"full swing: at most {KB_MOST:g} KB/s": kb("full swing") <= KB_MOST,
        f"full swing: key to what it changes at most {KEY_MOST_MS:g} ms (p95)": key <= KEY_MOST_MS,
        f"thin terminal: what is shown at most {AGE_MOST_S:g} s old": thin <= AGE_MOST_S,
        **{f"{name}: at most {QUIET_MOST:g} % of a core": share(name) <= QUIET_MOST for name in still},
    }
    report("dashboard", {"size": "120x40", **figures, "met": met})


if __name__ == "__main__":
    main()
