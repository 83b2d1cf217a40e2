"""Readings of the node: sane against the system's own, each byte counted once; rates of counters."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from hoptui.telemetry.host import HostReader, ProcFile, Rate, Traffic
from tests.golden import Golden

if TYPE_CHECKING:
    from tests.telemetry.conftest import FakeClock

SECOND = 1_000_000_000
RATES = {"cpu_percent", "disk_read_bytes_per_s", "disk_written_bytes_per_s"} | {
    "net_received_bytes_per_s",
    "net_sent_bytes_per_s",
}


def test_the_first_reading_has_levels_and_no_rates(clock: FakeClock, reports: list[str]) -> None:
    host = HostReader(reports.append)
    row = host.read(clock())
    memory = psutil.virtual_memory()
    assert not RATES & row.keys()
    assert row["memory_total_bytes"] == memory.total == host.memory_total_bytes
    assert row["memory_used_bytes"] == pytest.approx(memory.total - memory.available, rel=0.2)
    assert row["swap_used_bytes"] == pytest.approx(psutil.swap_memory().used, rel=0.2)
    assert row["load_1m"] >= 0
    assert row["load_5m"] >= 0
    assert host.cpus == psutil.cpu_count()
    assert reports == []


def test_the_second_reading_has_rates_over_the_time_between(clock: FakeClock) -> None:
    host = HostReader(print)
    row = host.read(clock())
    end = time.monotonic() + 10
    while "cpu_percent" not in row:  # the kernel counts in hundredths of a second
        assert time.monotonic() < end
        clock.advance(2)
        row = host.read(clock())
    assert 0 <= row["cpu_percent"] <= 100
    assert all(row[name] >= 0 for name in RATES & row.keys())


STAT = "cpu  {user} 0 10 {idle} 100 0 0 5 3 0\ncpu0 1 0 0 1 0 0 0 0 0 0\nintr 5 0\n"
MEMINFO = """MemTotal:        1000 kB
MemFree:          100 kB
MemAvailable:     {available} kB
Buffers:           10 kB
SwapTotal:         50 kB
SwapFree:          40 kB
"""
DISKS = """ 259       0 nvme0n1 11 0 {read} 5 12 0 {written} 6 0 7 8 0 0 0 0 0 0
 259       1 nvme0n1p1 11 0 {read} 5 12 0 {written} 6 0 7 8
"""
CARDS = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|\
bytes    packets errs drop fifo colls carrier compressed
    lo: {lo} 1 0 0 0 0 0 0 {lo} 1 0 0 0 0 0 0
  eth0:{eth} 1 0 0 0 0 0 0 {eth} 1 0 0 0 0 0 0
"""


class Kernel:
    """What the kernel tells of a node, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.sysfs = folder / "proc", folder / "sys"
        (self.proc / "net").mkdir(parents=True)
        device(self.sysfs / "block", "nvme0n1", hardware=True)
        device(self.sysfs / "class/net", "eth0", hardware=False)  # as in a container
        self.put()
        (self.proc / "loadavg").write_text("1.50 0.25 0.10 2/300 4242\n")

    def put(
        self, user: int = 0, idle: int = 0, available: int = 700, disk: int = 0, lo: int = 0, eth: int = 0
    ) -> None:
        (self.proc / "stat").write_text(STAT.format(user=user, idle=idle))
        (self.proc / "meminfo").write_text(MEMINFO.format(available=available))
        (self.proc / "diskstats").write_text(DISKS.format(read=disk, written=2 * disk))
        (self.proc / "net/dev").write_text(CARDS.format(lo=lo, eth=eth))


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_every_reading_is_what_the_kernel_says(kernel: Kernel, clock: FakeClock, reports: list[str]) -> None:
    host = HostReader(reports.append, kernel.proc, kernel.sysfs)
    host.read(clock())
    clock.advance(2)
    kernel.put(user=25, idle=75, disk=8, lo=10**9, eth=50)
    assert host.read(clock()) == {
        "cpu_percent": 25.0,
        "memory_used_bytes": 300 * 1024,
        "memory_total_bytes": 1000 * 1024,
        "swap_used_bytes": 10 * 1024,
        "load_1m": 1.5,
        "load_5m": 0.25,
        "disk_read_bytes_per_s": 8 * 512 / 2,  # of the disk, not once more of its partition
        "disk_written_bytes_per_s": 16 * 512 / 2,
        "net_received_bytes_per_s": 25.0,
        "net_sent_bytes_per_s": 25.0,
    }
    assert (host.memory_total_bytes, reports) == (1000 * 1024, [])


def test_processors_are_unknown_where_no_time_has_passed(kernel: Kernel, clock: FakeClock) -> None:
    host = HostReader(print, kernel.proc, kernel.sysfs)
    host.read(clock())
    assert "cpu_percent" not in host.read(clock())


def test_more_that_is_available_than_there_is_does_not_count(kernel: Kernel, clock: FakeClock) -> None:
    kernel.put(available=5000)
    assert HostReader(print, kernel.proc, kernel.sysfs).read(clock())["memory_used_bytes"] == 900 * 1024


def test_a_reading_that_fails_is_absent_reported_once_and_back_when_it_can_be_had(
    kernel: Kernel, clock: FakeClock, reports: list[str], golden: Golden
) -> None:
    whole = (kernel.proc / "meminfo").read_text()
    (kernel.proc / "meminfo").write_text("MemTotal: 1000 kB\n")
    (kernel.proc / "loadavg").unlink()
    host = HostReader(reports.append, kernel.proc, kernel.sysfs)
    for _ in range(3):
        clock.advance(1)
        row = host.read(clock())
        assert not {"memory_used_bytes", "swap_used_bytes", "load_1m"} & row.keys()
    assert "net_sent_bytes_per_s" in row
    golden("".join(f"{line}\n" for line in reports), normalize={re.escape(str(kernel.proc)): "/proc"})
    (kernel.proc / "meminfo").write_text(whole)
    (kernel.proc / "loadavg").write_text("1 2 3 4/5 6\n")
    assert {"swap_used_bytes", "load_1m"} <= host.read(clock()).keys()


def test_a_node_without_disks_or_cards_has_no_traffic(
    kernel: Kernel, clock: FakeClock, reports: list[str]
) -> None:
    host = HostReader(reports.append, kernel.proc, kernel.sysfs)
    for idle in (0, 5):
        clock.advance(1)
        kernel.put(idle=idle)
        (kernel.proc / "diskstats").write_text("")
        (kernel.proc / "net/dev").write_text("")
        row = host.read(clock())
    assert RATES & row.keys() == {"cpu_percent"}
    assert reports == []


def test_a_list_longer_than_the_kernel_gives_at_once_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"0123456789" * 5000)
    assert len(ProcFile(tmp_path / "long").whole()) == 50_000


def device(folder: Path, name: str, *, hardware: bool) -> None:
    (folder / name).mkdir(parents=True)
    if hardware:
        (folder / name / "device").touch()


def counters(**devices: tuple[int, int]) -> list[tuple[bytes, bytes, bytes]]:
    """What has come in and gone out of each device, as the kernel writes it."""
    return [(name.encode(), b"%d" % into, b"%d" % out) for name, (into, out) in devices.items()]


def test_only_hardware_counts_so_that_a_byte_counts_once(tmp_path: Path) -> None:
    device(tmp_path / "block", "nvme0n1", hardware=True)
    device(tmp_path / "block", "dm_0", hardware=False)
    disks = Traffic(tmp_path / "block", "read", "written")
    assert disks.update(0, counters(nvme0n1=(0, 0), nvme0n1p1=(0, 0), dm_0=(0, 0))) == {}
    row = disks.update(2 * SECOND, counters(nvme0n1=(200, 600), nvme0n1p1=(200, 600), dm_0=(200, 600)))
    assert row == {"read": pytest.approx(100), "written": pytest.approx(300)}


def test_a_device_that_appears_is_no_burst(tmp_path: Path) -> None:
    for name in ("sda", "sdb"):
        device(tmp_path / "block", name, hardware=True)
    disks = Traffic(tmp_path / "block", "read", "written")
    disks.update(0, counters(sda=(10, 10)))
    assert disks.update(SECOND, counters(sda=(20, 20), sdb=(10**12, 10**12))) == {}
    row = disks.update(2 * SECOND, counters(sda=(30, 30), sdb=(10**12 + 5, 10**12)))
    assert row == {"read": pytest.approx(15), "written": pytest.approx(10)}


def test_interfaces_without_hardware_count_inside_a_container_and_disks_do_not(tmp_path: Path) -> None:
    device(tmp_path / "net", "eth0", hardware=False)
    network = Traffic(tmp_path / "net", "received", "sent")
    network.update(0, counters(eth0=(0, 0)))
    assert network.update(SECOND, counters(eth0=(7, 8))) == {"received": 7, "sent": 8}
    device(tmp_path / "block", "loop0", hardware=False)
    disks = Traffic(tmp_path / "block", "read", "written")
    disks.update(0, counters(loop0=(0, 0)))
    assert disks.update(SECOND, counters(loop0=(7, 8))) == {}


def test_a_rate_is_the_difference_over_the_time_between() -> None:
    rate = Rate()
    assert rate.update(10 * SECOND, 500) is None
    assert rate.update(12 * SECOND, 700) == pytest.approx(100)
    assert rate.update(12 * SECOND + SECOND // 2, 700) == 0


def test_a_counter_that_went_back_gives_no_rate_but_a_new_beginning() -> None:
    rate = Rate()
    rate.update(0, 1_000)
    assert rate.update(SECOND, 10) is None
    assert rate.update(2 * SECOND, 25) == pytest.approx(15)


def test_an_unreadable_tick_is_not_bridged() -> None:
    rate = Rate()
    rate.update(0, 100)
    assert rate.update(SECOND, None) is None
    assert rate.update(2 * SECOND, 300) is None
    assert rate.update(3 * SECOND, 301) == pytest.approx(1)


def test_two_readings_at_the_same_instant_give_no_rate() -> None:
    rate = Rate()
    rate.update(SECOND, 1)
    assert rate.update(SECOND, 2) is None


def stat(*cores: tuple[int, int]) -> str:
    """`/proc/stat` with cores of these user and idle times, in ticks."""
    lines = [f"cpu{i} {user} 0 0 {idle} 0 0 0 0 0 0" for i, (user, idle) in enumerate(cores)]
    whole = f"cpu  {sum(c[0] for c in cores)} 0 0 {sum(c[1] for c in cores)} 0 0 0 0 0 0"
    return "\n".join([whole, *lines, f"intr {'7 ' * 5000}", "ctxt 1"]) + "\n"


@pytest.mark.parametrize("count", [1, 2, 64, 256])
def test_one_core_is_busy_and_the_others_are_idle(kernel: Kernel, clock: FakeClock, count: int) -> None:
    host = HostReader(print, kernel.proc, kernel.sysfs)
    host.cpus = count
    (kernel.proc / "stat").write_text(stat(*[(10**15, 10**15)] * count))
    assert not {name for name in host.read(clock()) if name.startswith("cpu")}
    after = [(10**15, 10**15 + 50)] * (count - 1) + [(10**15 + 50, 10**15)]
    (kernel.proc / "stat").write_text(stat(*after))
    row = host.read(clock())
    assert (row["cpu_busiest_core_percent"], row["cpu_busy_cores"]) == (100.0, 1)
    assert host.cores == {str(i): 0.0 for i in range(count - 1)} | {str(count - 1): 100.0}


def test_a_core_that_was_switched_off_is_unknown(kernel: Kernel, clock: FakeClock) -> None:
    host = HostReader(lambda line: None, kernel.proc, kernel.sysfs)
    host.cpus = 2
    for text in (stat((0, 0), (0, 0)), stat((5, 5)), stat((10, 10), (500, 0))):
        (kernel.proc / "stat").write_text(text)
        host.read(clock())
    assert host.cores == {"0": 50.0}
    (kernel.proc / "stat").write_text("nothing of the kind")
    host.read(clock())
    assert host.cores == {}


def test_waits_for_a_disk_may_go_back(kernel: Kernel, clock: FakeClock) -> None:
    host = HostReader(print, kernel.proc, kernel.sysfs)
    host.cpus = 1
    for waited, idle in ((90, 0), (40, 60)):
        (kernel.proc / "stat").write_text(f"cpu 0 0 0 0 0 0 0 0\ncpu0 0 0 0 {idle} {waited} 0 0 0\nintr 1\n")
        host.read(clock())
    assert host.cores == {"0": 0.0}


def test_the_cores_are_those_of_this_machine(clock: FakeClock) -> None:
    host = HostReader(print)
    host.read(clock())
    until = time.monotonic() + 10
    while len(host.cores) < (psutil.cpu_count() or 0) and time.monotonic() < until:
        clock.advance(1)
        host.read(clock())
    assert len(host.cores) == psutil.cpu_count()
    assert all(0 <= percent <= 100 for percent in host.cores.values())
