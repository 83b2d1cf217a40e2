"""The dashboard on another node: attached through a real sshd on loopback, and over a line that carries 30 KB a second."""

from __future__ import annotations

import os
import sys
import time

from benchmarks.dashboard import RUN
from benchmarks.measure import Bench, Terminal, bench, quantile, report, spread, until
from benchmarks.sshd import HOST, Sshd
from hoptui.viewer.client import Client
from hoptui.viewer.places import Place
from hoptui.viewer.way import There
from hoptui.wire.addresses import Addresses

TIMES = 7
THIN = 30_000.0  # bytes a second
SETTLE_S, MEASURED_S = 10.0, 20.0


def main() -> None:
    """Measure and report."""
    with bench() as there, bench() as here:
        there.python(RUN)  # its daemon is found by this, not by what this process sees as its own
        sshd = Sshd(here.base / "ssh", Addresses(there.base / "run", there.base / "state"))
        os.environ["PATH"] = f"{sshd.bin}:{os.environ['PATH']}"
        try:
            frames = [_first_frame(here, sshd) for _ in range(TIMES)]
            sshd.line.rate = THIN
            ages, slow, rate = _over_the_line(sshd)
        finally:
            sshd.close()
    report(
        "far",
        {
            "unit": "seconds",
            "attach_first_full_frame": spread(frames),
            "line_kb_per_s": THIN / 1000,
            "age_of_rows": spread(ages) | {"p95": round(quantile(ages, 0.95), 4)},
            "share_in_slow_link_mode": round(slow, 2),
            "kb_per_s_over_the_line": round(rate / 1000, 2),
        },
    )


def _first_frame(here: Bench, sshd: Sshd) -> float:
    command = [sys.executable, "-m", "hoptui", "attach", "--hoptui", str(sshd.hoptui), f"ssh://{HOST}/busy"]
    terminal = Terminal(command, here.environment | {"PATH": os.environ["PATH"]})
    terminal.read(5.0)
    terminal.close()
    return terminal.first_full_frame_s()


def _over_the_line(sshd: Sshd) -> tuple[list[float], float, float]:
    """How old the newest row of a busy run is, looked at four times a second; in which share of the looks less was asked for;
    bytes a second over the line."""
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


if __name__ == "__main__":
    main()
