"""The dashboard on another node: attached through a real sshd on loopback, and over a line that carries 30 KB
a second.

There a run of 30 iterations a second is on four of eight invented GPUs, as many as are charted together.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from benchmarks.dashboard import RUN, ages
from benchmarks.eight_gpus import eight_gpus
from benchmarks.measure import Bench, Terminal, bench, quantile, report, spread, tell, until
from benchmarks.sshd import HOST, Sshd
from hoptui.client.client import Client
from hoptui.client.routes import There
from hoptui.client.session import Session
from hoptui.client.target import Place
from hoptui.node.addresses import Addresses
from hoptui.protocol.messages import RunState

TIMES = 7
THIN = 30_000.0  # bytes a second
SETTLE_S, MEASURED_S = 10.0, 20.0
CHARTED = "0,1,2,3"


def main() -> None:
    """Measure and report."""
    with eight_gpus() as there, bench() as here:
        there.python(RUN, CUDA_VISIBLE_DEVICES=CHARTED)
        where = Addresses(there.base / "run", there.base / "state")  # not what this process sees as its own
        run = until(lambda: _run(where), what="the run")
        sshd = Sshd(here.base / "ssh", where)
        os.environ["PATH"] = f"{sshd.bin}:{os.environ['PATH']}"
        try:
            frames = tell("first full frames", [_first_frame(here, sshd) for _ in range(TIMES)])
            sshd.line.rate = THIN
            rows, slow, rate = _over_the_line(sshd)
            tell("age of rows over the thin line", spread(rows))
            on_screen = tell("on screen over the thin line", _screen_over_the_line(here, sshd, where, run))
        finally:
            sshd.close()
    report(
        "far",
        {
            "unit": "seconds",
            "attach_first_full_frame": spread(frames),
            "line_kb_per_s": THIN / 1000,
            "age_of_rows": spread(rows) | {"p95": round(quantile(rows, 0.95), 4)},
            "share_in_slow_link_mode": round(slow, 2),
            "kb_per_s_over_the_line": round(rate / 1000, 2),
            "dashboard_over_the_line": on_screen,
        },
    )


def _attached(here: Bench, sshd: Sshd) -> Terminal:
    command = [sys.executable, "-m", "hoptui", "attach", "--hoptui", str(sshd.hoptui), f"ssh://{HOST}/busy"]
    return Terminal(command, here.environment | {"PATH": os.environ["PATH"]})


def _first_frame(here: Bench, sshd: Sshd) -> float:
    terminal = _attached(here, sshd)
    terminal.read(5.0)
    terminal.close()
    return terminal.first_full_frame_s()


def _over_the_line(sshd: Sshd) -> tuple[list[float], float, float]:
    """How old the newest row of a busy run is, looked at four times a second; in which share of the looks
    less was asked for; bytes a second over the line."""
    client = Client(way=There(Place(HOST), hoptui=str(sshd.hoptui)))
    try:
        client.start()
        node = until(lambda: client.store.node, what="the node")
        run = node.runs[0].run
        client.watch(run)
        series = until(lambda: client.store.series(f"run/{run}", "loss"), what="rows")
        time.sleep(SETTLE_S)
        ages, slow, carried, began = [], 0, sshd.line.carried, time.monotonic()
        while time.monotonic() - began < MEASURED_S:
            time.sleep(0.25)
            ages.append((client.store.now() - series.last_t) / 1e9)
            slow += client.link.slow
        return ages, slow / len(ages), (sshd.line.carried - carried) / (time.monotonic() - began)
    finally:
        client.close()


def _run(where: Addresses) -> RunState | None:
    with Session(where) as session:
        node = session.fetch(state=0).node
    return next(iter(node.runs), None) if node else None


def _screen_over_the_line(here: Bench, sshd: Sshd, where: Addresses, run: RunState) -> dict[str, Any]:
    """The dashboard itself: bytes a second over the line, and how old the iteration on its screen is."""
    terminal = _attached(here, sshd)
    try:
        terminal.read(SETTLE_S)
        before, at = sshd.line.carried, terminal.clock()
        terminal.read(MEASURED_S)
        rate = (sshd.line.carried - before) / (terminal.clock() - at)
        with Session(where) as session:
            age = ages(terminal, session, run, at)
    finally:
        terminal.close()
    return {"kb_per_s": round(rate / 1000, 2), "age_s": age}


if __name__ == "__main__":
    main()
