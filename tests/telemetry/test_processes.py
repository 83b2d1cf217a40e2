"""The runs' process trees: a real forked child, rates, processes that vanish, and the price of looking."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from hoptui.domain.columns import Columns
from hoptui.telemetry.host import PAGE_BYTES, TICKS_PER_S, Family, Processes, Stat, io_of, stat_of

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


def test_a_child_forked_later_is_found_within_a_second(clock: FakeClock) -> None:
    processes = Processes(clock)
    processes.watch({"me": os.getpid()})
    before = only(processes.read())["processes"]
    with forked():
        clock.advance(0.5)
        assert only(processes.read())["processes"] == before
        clock.advance(0.5)
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
    counters = (1000, 5000)
    child = 0
    monkeypatch.setattr("hoptui.telemetry.host.io_of", lambda proc, pid: counters if pid == child else None)
    with forked() as process:
        [forked_child] = psutil.Process(process.pid).children()
        child = forked_child.pid
        processes = Processes(clock)
        processes.watch({"r": process.pid})
        assert "disk_read_bytes_per_s" not in only(processes.read())
        counters = (1500, 9000)
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
    look = Family.look

    def slow(family: Family, t: int) -> None:
        nonlocal walks
        walks += 1
        clock.advance(0.1)
        look(family, t)

    monkeypatch.setattr(Family, "look", slow)
    processes = Processes(clock)
    processes.watch({"me": os.getpid()})
    begun = clock.now
    while walks < 2:
        assert processes.read()
        clock.advance(1)
    assert clock.now - begun == pytest.approx(31e9, abs=1e9)  # 0.1 s, times 300


class Proc:
    """Processes as the kernel tells of them, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(
        self, pid: int, parent: int, started: int = 1, state: str = "S", rss: int = 1, cpu_s: float = 1.5,
        waited_s: float = 0.0,
    ) -> None:  # fmt: skip
        (self.folder / str(pid)).mkdir(exist_ok=True)
        system, waited = TICKS_PER_S // 2, round(waited_s * TICKS_PER_S)
        user = round(cpu_s * TICKS_PER_S) - system
        fields = [state, parent, *[0] * 9, user, system, waited, 0, 0, 0, 3, 0, started, 0, rss, *[0] * 28]
        (self.folder / str(pid) / "stat").write_text(f"{pid} (a) b) {' '.join(map(str, fields))}\n")

    def remove(self, pid: int) -> None:
        shutil.rmtree(self.folder / str(pid))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    (tmp_path / "self").mkdir()
    (tmp_path / "loadavg").touch()
    return Proc(tmp_path)


def test_a_process_is_asked_once_who_its_parent_is(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def spied(folder: Path, pid: int) -> Stat | None:
        asked.append(pid)
        return stat_of(folder, pid)

    monkeypatch.setattr("hoptui.telemetry.host.stat_of", spied)
    proc.put(1, 0)
    proc.put(10, 1, started=5)
    family = Family(proc.folder)
    family.look(0)
    proc.put(11, 10, started=6)
    family.look(0)
    assert sorted(asked) == [1, 10, 11]
    assert sorted(family.of(10)) == [(10, 5), (11, 6)]
    assert list(family.of(99)) == []


def test_what_a_dead_worker_leaves_behind_is_not_of_the_run(proc: Proc) -> None:
    for pid, parent in ((1, 0), (10, 1), (11, 10), (12, 11)):
        proc.put(pid, parent, started=pid)
    family = Family(proc.folder)
    family.look(0)
    assert sorted(family.of(10)) == [(10, 10), (11, 11), (12, 12)]
    proc.remove(11)  # 12 is init's now
    family.look(0)
    assert list(family.of(10)) == [(10, 10)]
    proc.put(11, 1, started=20)  # and somebody else gets the number
    family.look(0)
    assert list(family.of(11)) == [(11, 20)]


def test_a_number_that_is_another_process_s_now_is_not_read(proc: Proc, clock: FakeClock) -> None:
    proc.put(10, 1, started=5, rss=7)
    proc.put(11, 10, started=6, rss=8)
    processes = Processes(clock, proc.folder)
    processes.watch({"r": 10})
    row = only(processes.read())
    assert (row["processes"], row["threads"], row["memory_rss_bytes"]) == (2, 6, 15 * PAGE_BYTES)
    proc.put(11, 1, started=9, rss=100)
    clock.advance(1)
    assert only(processes.read())["memory_rss_bytes"] == 7 * PAGE_BYTES
    proc.put(10, 1, started=9)
    clock.advance(1)
    assert processes.read() == []
    clock.advance(10)
    assert processes.read() == []


def test_a_process_that_has_begun_since_the_look_before_counts_from_its_beginning(
    proc: Proc, clock: FakeClock
) -> None:
    proc.put(10, 1)
    processes = Processes(clock, proc.folder)
    processes.watch({"r": 10})
    processes.read()
    clock.advance(1)
    proc.put(11, 10, started=3)
    assert only(processes.read())["cpu_percent"] == pytest.approx(150)
    later = Processes(clock, proc.folder)
    later.watch({"r": 10})
    assert "cpu_percent" not in only(later.read()), "they may be older than the first look"


def test_what_a_worker_used_last_counts_once_it_is_waited_for(proc: Proc, clock: FakeClock) -> None:
    proc.put(10, 1, cpu_s=1)
    proc.put(11, 10, started=2, cpu_s=60)
    processes = Processes(clock, proc.folder)
    processes.watch({"r": 10})
    processes.read()
    clock.advance(0.5)
    proc.put(11, 1, started=2, state="Z")
    assert only(processes.read())["cpu_percent"] == 0
    clock.advance(0.5)
    proc.remove(11)
    proc.put(10, 1, cpu_s=1, waited_s=60.25)
    assert only(processes.read())["cpu_percent"] == pytest.approx(50)
    clock.advance(1)
    assert only(processes.read())["cpu_percent"] == 0


def test_a_child_that_comes_and_goes_between_two_looks_counts(proc: Proc, clock: FakeClock) -> None:
    proc.put(10, 1, cpu_s=1, waited_s=500)
    processes = Processes(clock, proc.folder)
    processes.watch({"r": 10})
    processes.read()
    clock.advance(1)
    proc.put(10, 1, cpu_s=1, waited_s=500.75)
    assert only(processes.read())["cpu_percent"] == pytest.approx(75)


def test_all_that_a_tree_used_is_counted_once() -> None:
    script = (
        "import subprocess, sys, time\n"
        "busy = 'import time\\nwhile time.process_time() < 0.2: sum(range(1000))'\n"
        "for _ in range(3): subprocess.run([sys.executable, '-S', '-c', busy])\n"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        processes = Processes(time.monotonic_ns)
        processes.watch({"r": process.pid})
        used, before, ended = 0.0, 0, False
        parts: list[Columns] = []
        while not (ended and parts):
            ended = ended or bool(select.select([process.stdout], [], [], 0.02)[0])
            parts = processes.read()
            for part in parts:
                t = part.times()[-1]
                used += part.last().get("cpu_percent", 0.0) / 100 * (t - before) / 1e9
                before = t
        times = psutil.Process(process.pid).cpu_times()
    spent = times.user + times.system + times.children_user + times.children_system
    assert used == pytest.approx(spent, abs=0.15)
    assert spent > 0.6


def test_processor_time_is_of_users_and_the_system(proc: Proc) -> None:
    proc.put(10, 1)
    stat = stat_of(proc.folder, 10)
    assert stat is not None
    assert stat.cpu_s == pytest.approx(150 / TICKS_PER_S)
    proc.put(10, 1, state="Z")
    assert stat_of(proc.folder, 10) is None
    (proc.folder / "10" / "stat").write_text("10 (cut")
    assert stat_of(proc.folder, 10) is None


def test_bytes_of_disks_are_the_kernel_s(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    io = (
        "rchar: 9\nwchar: 9\nsyscr: 9\nsyscw: 9\nread_bytes: 4096\nwrite_bytes: 512\ncancelled_write_bytes: "
        "1\n"
    )
    (tmp_path / "7" / "io").write_text(io)
    assert io_of(tmp_path, 7) == (4096, 512)
    assert io_of(tmp_path, 8) is None


def test_the_processes_of_a_run_are_listed_with_their_parents(clock: FakeClock) -> None:
    processes = Processes(clock)
    assert processes.listed() is None
    with forked() as process:
        processes.watch({"ppo/1": process.pid})
        processes.read()
        found = processes.listed()
        assert found is not None
        assert processes.listed() is None, "not before the next look"
        clock.advance(6)
        processes.read()
        again = processes.listed()
    root, child = found
    assert (root.pid, root.parent, root.run) == (process.pid, 0, "ppo")
    assert (child.parent, child.run) == (process.pid, "ppo")
    assert "os.fork()" in child.command
    assert child.rss_bytes > 0
    assert child.cpu_percent is None
    assert again is not None
    assert {one.pid for one in again} == {root.pid, child.pid}
    assert all(one.cpu_percent is not None for one in again)
    clock.advance(6)
    processes.read()
    assert processes.listed() == (), "the run's process is gone"
    processes.watch({})
    assert processes.listed() == ()
    assert processes.listed() is None
