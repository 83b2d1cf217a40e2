"""Acts with a lot of data: a run of 20,000 iterations/s, a day of rows, 200 recordings of 10 GB."""

from __future__ import annotations

import os
import shutil
import signal
import time

import psutil

from benchmarks.measure import until
from hoptui.recording.library import at_rest
from tests.chaos import checks, kernel
from tests.chaos.acts import LIMIT_S, Result, chaos_node, judge
from tests.chaos.node import ChaosNode, send

DAY_ROWS = 2 * 86_400
"""A day at 2 Hz."""
FAST_HZ = 20_000
RECORDINGS, STATE_BYTES = 200, 10 * 10**9
START_S, ANSWER_S = 15.0, 5.0
"""A daemon serves within the first and answers about a day within the second, on a busy machine."""


def fast(seconds: float, seed: int, denied: dict[str, str]) -> Result:
    """Let a run iterate as fast as it can for a day's rows, and kill the daemon once in the middle of it."""
    result = Result()
    with chaos_node() as node:
        control = node.start_control(FAST_HZ)
        node.start_viewer()
        time.sleep(min(5.0, seconds / 8))
        control.child.terminate()
        control.child.wait(30)
        run = node.start_run(FAST_HZ)
        until(lambda: node.state_of(run) == "live", LIMIT_S, "the run")
        process = psutil.Process(run.child.pid)
        before, wanted = run.ledger.rows, DAY_ROWS if seconds > 30 else DAY_ROWS // 20
        began, cpu_s = time.monotonic(), _cpu_s(process)
        until(lambda: run.ledger.rows > before + wanted, 10 * LIMIT_S, "rows")
        with node.disturbance("kill_daemon"):
            send(node.daemon, signal.SIGKILL)
        until(lambda: run.ledger.rows > before + 2 * wanted, 10 * LIMIT_S, "rows")
        took, cpu_s, rows = time.monotonic() - began, _cpu_s(process) - cpu_s, run.ledger.rows - before
        judge(node, result)
        _answers(node, run.run, result)
        result.figures |= {
            "iterations_per_s": round(rows / took),
            "iterations_per_cpu_s": round(rows / cpu_s),
            "rows_dropped": checks.dropped(node, run),
        }
    return result


def _cpu_s(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def _answers(node: ChaosNode, run: str, result: Result) -> None:
    """Ask a new daemon about all rows of a run that is over."""
    with node.session() as session:
        began = time.monotonic()
        answer = session.query(f"run/{run}", ("n",), run=run, points=512)
        took = time.monotonic() - began
    result.figures["answer_about_all_rows_s"] = round(took, 3)
    if not answer.t or took > ANSWER_S:
        result.violations.append(f"the answer about all rows took {took:.1f} s")


def large(seconds: float, seed: int, denied: dict[str, str]) -> Result:
    """Start a daemon on 200 recordings of 10 GB, and let a run go on there."""
    result = Result()
    with chaos_node() as node:
        first = node.start_run(FAST_HZ)
        until(lambda: first.ledger.rows > DAY_ROWS // 4, LIMIT_S, "rows")
        until(lambda: node.state_of(first) == "live", LIMIT_S, "the run")
        until(lambda: node.where.recording(first.run).exists(), LIMIT_S, "its recording")
        first.child.terminate()
        first.child.wait(30)
        until(lambda: node.state_of(first) == "exited", LIMIT_S, "the end of the run")
        with node.session() as session:
            session.shutdown()
        until(lambda: at_rest(node.where.recording(first.run)), LIMIT_S, "the end of its recording")
        names = _copies(node, first.run)
        began = time.monotonic()
        run = node.start_run()
        until(lambda: node.state_of(run) == "live", LIMIT_S, "the run")
        took = time.monotonic() - began
        node.start_viewer()
        time.sleep(max(5.0, min(40.0, seconds)))  # old recordings are removed half a minute after the start
        left = [name for name in names if node.where.recording(name).exists()]
        size = sum(p.stat().st_size for p in node.where.state.glob("*.hoptui"))
        judge(node, result)
        result.figures |= {
            "until_the_run_is_shown_s": round(took, 1),
            "left": len(left),
            "gb": round(size / 1e9, 2),
        }
        if took > START_S:
            result.violations.append(f"with {RECORDINGS} recordings a daemon serves after {took:.0f} s")
        if seconds >= 40 and size > STATE_BYTES * 1.01:
            result.violations.append(f"{size / 1e9:.1f} GB of recordings are kept")
        if left != sorted(names)[len(names) - len(left) :]:
            result.violations.append("a newer recording was removed before an older one")
    return result


def _copies(node: ChaosNode, run: str) -> list[str]:
    """Make 199 older copies of a recording, together with more than 10 GB, most of it sparse."""
    source = node.where.recording(run)
    names = [f"copy{number:04}" for number in range(RECORDINGS - 1)]
    for age, name in enumerate(reversed(names)):
        copy = node.where.recording(name)
        shutil.copy(source, copy)
        os.truncate(copy, STATE_BYTES // len(names) + kernel.MiB)
        then = time.time() - 60 * (age + 1)
        os.utime(copy, (then, then))
    return names
