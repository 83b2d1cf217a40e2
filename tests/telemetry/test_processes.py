"""The runs' process trees: a real forked child, rates, processes that vanish, and the price of looking."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from hoptui.telemetry.processes import Processes
from hoptui.wire.columns import Columns

if TYPE_CHECKING:
    from tests.telemetry.conftest import FakeClock

FORKS = """
import os, sys
child = os.fork()
sys.stdout.write("x")
sys.stdout.flush()
sys.stdin.read()
if child:
    os.wait()
"""


@contextmanager
def forked() -> Iterator[subprocess.Popen[bytes]]:
    """A process and the child that it forked, both waiting for the end of their stdin."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        both = b""
        while len(both) < 2:
            got = process.stdout.read(1)
            assert got, "the child ended early"
            both += got
        yield process  # Popen's exit closes stdin, which ends both, and waits


def only(parts: list[Columns]) -> dict[str, float]:
    [part] = parts
    return part.last()


def test_a_tree_is_the_process_and_what_it_forked(clock: FakeClock) -> None:
    with forked() as process:
        processes = Processes(clock)
        processes.watch({"ppo": process.pid})
        [part] = processes.read()
        row = part.last()
        alone = psutil.Process(process.pid).memory_info().rss
    assert part.source == "process/ppo"
    assert list(part.times()) == [clock.now]
    assert (row["processes"], row["threads"]) == (2, 2)
    assert row["memory_rss_bytes"] > alone > 0
    assert "cpu_percent" not in row  # a rate needs two readings


def test_a_child_forked_later_is_found_within_five_seconds(clock: FakeClock) -> None:
    processes = Processes(clock)
    processes.watch({"me": os.getpid()})
    before = only(processes.read())["processes"]
    with forked():
        clock.advance(4)
        assert only(processes.read())["processes"] == before
        clock.advance(1)
        assert only(processes.read())["processes"] == before + 2
    clock.advance(1)
    assert only(processes.read())["processes"] == before  # gone ones do not wait for the next walk


def clocks() -> tuple[float, float]:
    """Wall and processor time of this process, seconds."""
    return time.monotonic(), time.process_time()


def test_cpu_percent_is_of_one_core() -> None:
    processes = Processes(time.monotonic_ns)
    processes.watch({"me": os.getpid()})
    before_first = clocks()
    processes.read()
    after_first = clocks()
    while time.process_time() - after_first[1] < 0.2:
        sum(range(1000))
    parts: list[Columns] = []
    while not parts:  # a first reading that was slow is rested from
        before_second = clocks()
        parts = processes.read()
    after_second = clocks()
    ticks = 0.03  # the kernel counts in hundredths of a second, user and system apart
    low = (before_second[1] - after_first[1] - ticks) / (after_second[0] - before_first[0])
    high = (after_second[1] - before_first[1] + ticks) / (before_second[0] - after_first[0])
    assert 100 * low < only(parts)["cpu_percent"] < 100 * high


def test_disk_rates_are_of_the_processes_that_let_us_read_them(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = SimpleNamespace(read_bytes=1000, write_bytes=5000)
    child = 0

    def io_counters(process: psutil.Process) -> Any:
        if process.pid != child:
            raise psutil.AccessDenied(process.pid)
        return counters

    monkeypatch.setattr(psutil.Process, "io_counters", io_counters)
    with forked() as process:
        [forked_child] = psutil.Process(process.pid).children()
        child = forked_child.pid
        processes = Processes(clock)
        processes.watch({"r": process.pid})
        assert "disk_read_bytes_per_s" not in only(processes.read())
        counters.read_bytes, counters.write_bytes = 1500, 9000
        clock.advance(2)
        row = only(processes.read())
        child = 0
        clock.advance(2)
        blind = only(processes.read())
    assert (row["disk_read_bytes_per_s"], row["disk_written_bytes_per_s"]) == (250, 2000)
    assert not {"disk_read_bytes_per_s", "disk_written_bytes_per_s"} & blind.keys()
    assert blind["processes"] == 2


def test_a_vanished_process_sends_nothing_and_the_others_go_on(clock: FakeClock) -> None:
    processes = Processes(clock)
    with forked() as process:
        processes.watch({"gone": process.pid, "here": os.getpid()})
        assert [part.source for part in processes.read()] == ["process/gone", "process/here"]
    for seconds in (0.5, 5):  # before the next walk and after it
        clock.advance(seconds)
        assert [part.source for part in processes.read()] == ["process/here"]


def test_a_zombie_is_gone_even_while_its_child_lives_on(clock: FakeClock) -> None:
    processes = Processes(clock)
    with forked() as process:
        processes.watch({"r": process.pid})
        assert processes.read()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert processes.read() == []


@pytest.mark.parametrize("pid", [-1, 2**22 + 1, 2**40])
def test_a_pid_that_is_none_sends_nothing(clock: FakeClock, pid: int) -> None:
    processes = Processes(clock)
    processes.watch({"r": pid})
    assert processes.read() == []


def test_a_run_that_is_watched_on_keeps_its_counters(clock: FakeClock) -> None:
    processes = Processes(clock)
    processes.watch({"me": os.getpid()})
    processes.read()
    clock.advance(1)
    processes.watch({"me": os.getpid(), "other": os.getppid()})
    rows = {part.source: part.last() for part in processes.read()}
    assert "cpu_percent" in rows["process/me"]
    assert "cpu_percent" not in rows["process/other"]
    processes.watch({})
    clock.advance(1)
    assert processes.read() == []


def test_a_run_restarted_with_another_pid_is_another_tree(clock: FakeClock) -> None:
    processes = Processes(clock)
    processes.watch({"r": os.getppid()})
    processes.read()
    clock.advance(1)
    processes.watch({"r": os.getpid()})
    assert "cpu_percent" not in only(processes.read())


def test_a_slow_node_is_looked_at_less_often() -> None:
    now = 0

    def slow_clock() -> (
        int
    ):  # each look at the clock takes 10 ms, so a reading seems to take that long or more
        nonlocal now
        now += 10_000_000
        return now

    processes = Processes(slow_clock)
    processes.watch({"me": os.getpid()})
    assert processes.read()
    begun = now
    while not processes.read():
        pass
    assert 5e9 < now - begun < 10e9  # 20 ms of reading, times 300


def test_a_walk_that_takes_long_is_repeated_rarely(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    walks = 0
    children = psutil.Process.children

    def slow(process: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        nonlocal walks
        walks += 1
        clock.advance(0.1)
        return children(process, recursive)

    monkeypatch.setattr(psutil.Process, "children", slow)
    processes = Processes(clock)
    processes.watch({"me": os.getpid()})
    begun = clock.now
    while walks < 2:
        assert processes.read()
        clock.advance(1)
    assert clock.now - begun == pytest.approx(31e9, abs=1e9)  # 0.1 s, times 300
