"""Charts of 24 hours at 2 Hz: the redraw of one chart at several zooms, from memory and from a recording; and
the chart screen in a terminal of 120×40: from a key to the last byte of its frame, the CPU time that this
takes, and bytes while it plays.

A redraw is all that a chart does: its window of the series, the lines, and their layout; it only computes
(but for the first look into a recording), so its CPU time is given, which other work on the machine does not
change. What has been imported and made before is kept out of the search for garbage, as the dashboard does
it. Milliseconds, kB/s.
"""

from __future__ import annotations

import gc
import math
import random
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.measure import Terminal, bench, quantile, report, spread, tell
from benchmarks.replay import REPLAY
from hoptui.domain.columns import Columns
from hoptui.model.recorded.store import RecordedStore
from hoptui.model.series import Series
from hoptui.presentation.time_ticks import clock_ticks
from hoptui.protocol.messages import NodeState, RunState
from hoptui.recording import Recording
from hoptui.recording.ingest import Boot
from hoptui.recording.library import NODE, RUN, KnownRun, encode_node
from hoptui.tui.charts.line_chart import Drawn, Pen, whole_dots
from hoptui.tui.charts.plot import Mark, Paper, plot
from hoptui.tui.styled_text import lay

SECOND = 1_000_000_000
HOURS, HZ = 24, 2
FIRST = 1_000 * SECOND
WALL_S = 1_780_000_000
WIDTH, HEIGHT, DOTS = 116, 34, 218
SPANS_S = (15, 60, 600, 3600, 6 * 3600, 24 * 3600)
ROUNDS = 40
ID = "bench002"
METRICS = ("loss", "env_steps_per_s", "episode_return", "iteration_s")
KEYS = (b"+", b"+", b"H", b"-", b"L", b"h", b"h", b"l", b"y", b"-", b"+", b"j", b"H", b"k")
PLAY_S = 10.0


def stamps() -> array[int]:
    """When there is a row."""
    return array("q", range(FIRST, FIRST + HOURS * 3600 * SECOND, SECOND // HZ))


def values(count: int) -> array[float]:
    """A slow wave with noise, and a spike now and then."""
    noise = random.Random(7)
    return array(
        "d",
        [
            50 + 40 * math.sin(i / 9000) + noise.random() + (100 if noise.random() < 1e-4 else 0)
            for i in range(count)
        ],
    )


def redraws(series: Drawn, end: int) -> dict[str, Any]:
    """How long a redraw takes by span: at the end, and in the middle as if somebody panned."""
    costs: dict[str, Any] = {}
    for span_s in SPANS_S:
        for where, at in (("end", end), ("middle", end - 12 * 3600 * SECOND)):
            if at - span_s * SECOND < FIRST - SECOND and where == "middle":
                continue
            times = []
            for i in range(ROUNDS):
                began = time.thread_time()
                _redraw(series, at - i * span_s * SECOND // 50, span_s)
                times.append(time.thread_time() - began)
            costs[f"{span_s} s, {where}"] = {
                "median": round(1e3 * quantile(times, 0.5), 2),
                "p95": round(1e3 * quantile(times, 0.95), 2),
            }
    return costs


def write(path: Path) -> None:
    """A recording of the same: rows of a run, all metrics of one shape."""
    boot = Boot("bench", WALL_S * SECOND - FIRST, FIRST)
    state = RunState(
        run=ID, name="a long day", epoch=1, pid=4242, started_wall=float(WALL_S), headline="env_steps_per_s",
        exit_reason="finished", exited_wall=float(WALL_S + HOURS * 3600),
    )  # fmt: skip
    node = NodeState(host="gpu07", pid=1, version="0.1.0", started_wall=0.0, wall_offset_ns=0, cpus=16)
    times = stamps()
    wave = values(len(times))
    with Recording.create(path, boot=boot) as recording:
        recording.remember(RUN, msgspec.json.encode(KnownRun(state=state, nonce="n", process_started=1)))
        recording.remember(NODE, encode_node(node))
        for a in range(0, len(times), 1200):
            b = min(a + 1200, len(times))
            column = wave[a:b].tobytes()
            recording.append(
                Columns(
                    source=f"run/{ID}",
                    names=METRICS,
                    t=times[a:b].tobytes(),
                    step=array("q", range(a, b)).tobytes(),
                    values=(column,) * len(METRICS),
                )
            )
            recording.flush()


def keys(terminal: Terminal) -> list[float]:
    """Seconds from a key of the chart screen to the last byte of its frame."""
    costs = []
    for i in range(6 * len(KEYS)):
        terminal.read(0.35)
        sent, count = time.monotonic() - terminal.started, len(terminal.written)
        terminal.type(KEYS[i % len(KEYS)])
        terminal.read(0.25)
        frame = [at for at, _ in terminal.written[count:] if at < sent + 0.2]
        if frame:
            costs.append(frame[-1] - sent)
    return costs


def _redraw(series: Drawn, end: int, span_s: int) -> None:
    x0, x1 = whole_dots(span_s * SECOND, end, DOTS)
    ticks = tuple(clock_ticks(x0, x1, WALL_S * SECOND, 9))
    marks = tuple(Mark(x0 + i * (x1 - x0) // 20) for i in range(20))
    paper = Paper(x0, x1, ticks=ticks, marks=marks, cross=(x0 + x1) // 2)
    for line in plot([Pen(series, "loss", "1").curve(x0, x1, DOTS)], paper, WIDTH, HEIGHT):
        lay(line, WIDTH)


def main() -> None:
    """Measure and report."""
    times = stamps()
    live = Series()
    wave = values(len(times))
    for a in range(0, len(times), 20):
        live.extend(times[a : a + 20], range(a, a + 20), wave[a : a + 20])
    gc.freeze()
    figures: dict[str, Any] = {"hours": HOURS, "hz": HZ, "cells": [WIDTH, HEIGHT]}
    figures["redraw_ms"] = redraws(live, times[-1])
    with tempfile.TemporaryDirectory(prefix="hoptui-chart-") as place, bench() as node:
        path = Path(place) / f"{ID}.hoptui"
        write(path)
        recording = Recording.open(path)
        store = RecordedStore(recording)
        store.seek(store.span[1])
        recorded = store.series(f"run/{ID}", "loss")
        assert recorded is not None
        figures["redraw_recorded_ms"] = redraws(recorded, store.span[1])
        tell("redraws", figures)
        recording.close()
        terminal = Terminal([sys.executable, "-c", REPLAY, str(path)], node.environment)
        terminal.read(2.0)
        for key in (b" ", b"\x1b[F", b"/", b"\x1b"):  # stand still at the end; the charts; not the finder
            terminal.type(key)
            terminal.read(0.8)
        before = terminal.cpu_s()
        costs = [1e3 * s for s in keys(terminal)]
        figures["key_ms"] = {**spread(costs, 1), "p99": round(quantile(costs, 0.99), 1)}
        figures["key_cpu_ms"] = round(1e3 * (terminal.cpu_s() - before) / len(costs), 1)
        for key in (b"G", b"\x1b[H", b" "):
            terminal.type(key)
            terminal.read(0.5)
        at = terminal.written[-1][0]
        terminal.read(PLAY_S)
        figures["playing_kb_per_s"] = round(terminal.bytes_between(at, at + PLAY_S) / PLAY_S / 1000, 1)
        terminal.close()
    report("chart", figures)


if __name__ == "__main__":
    main()
