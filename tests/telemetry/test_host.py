"""Readings of the node: sane against the system's own, each byte counted once, one failure at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import psutil
import pytest

from hoptui.telemetry.host import Host, Traffic

if TYPE_CHECKING:
    from tests.telemetry.conftest import FakeClock

SECOND = 1_000_000_000
RATES = {"cpu_percent", "disk_read_bytes_per_s", "disk_written_bytes_per_s"} | {
    "net_received_bytes_per_s",
    "net_sent_bytes_per_s",
}


def test_the_first_reading_has_levels_and_no_rates(clock: FakeClock, reports: list[str]) -> None:
    host = Host(reports.append)
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
    host = Host(print)
    host.read(clock())
    clock.advance(2)
    row = host.read(clock())
    assert 0 <= row["cpu_percent"] <= 100
    assert all(row[name] >= 0 for name in RATES & row.keys())


def test_a_reading_that_fails_is_absent_reported_once_and_back_when_it_can_be_had(
    clock: FakeClock, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_swap() -> NoReturn:
        raise FileNotFoundError(2, "No such file or directory", "/proc/vmstat")

    host = Host(reports.append)
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "swap_memory", no_swap)
        for _ in range(3):
            clock.advance(1)
            row = host.read(clock())
            assert "swap_used_bytes" not in row
            assert row["memory_total_bytes"] > 0
    assert reports == [
        "host swap cannot be read: FileNotFoundError: [Errno 2] No such file or directory: '/proc/vmstat'"
    ]
    assert "swap_used_bytes" in host.read(clock())


def test_a_node_without_disks_or_cards_has_no_traffic(
    clock: FakeClock, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(**_: bool) -> None:
        return None

    monkeypatch.setattr(psutil, "disk_io_counters", nothing)
    monkeypatch.setattr(psutil, "net_io_counters", nothing)
    host = Host(reports.append)
    host.read(clock())
    clock.advance(1)
    assert RATES & host.read(clock()).keys() == {"cpu_percent"}
    assert reports == []


def device(folder: Path, name: str, *, hardware: bool) -> None:
    (folder / name).mkdir(parents=True)
    if hardware:
        (folder / name / "device").touch()


def test_only_hardware_counts_so_that_a_byte_counts_once(tmp_path: Path) -> None:
    device(tmp_path / "block", "nvme0n1", hardware=True)
    device(tmp_path / "block", "dm-0", hardware=False)
    disks = Traffic(tmp_path / "block", "read", "written")
    assert disks.update(0, {"nvme0n1": (0, 0), "nvme0n1p1": (0, 0), "dm-0": (0, 0)}) == {}
    row = disks.update(2 * SECOND, {"nvme0n1": (200, 600), "nvme0n1p1": (200, 600), "dm-0": (200, 600)})
    assert row == {"read": pytest.approx(100), "written": pytest.approx(300)}


def test_a_device_that_appears_is_no_burst(tmp_path: Path) -> None:
    for name in ("sda", "sdb"):
        device(tmp_path / "block", name, hardware=True)
    disks = Traffic(tmp_path / "block", "read", "written")
    disks.update(0, {"sda": (10, 10)})
    assert disks.update(SECOND, {"sda": (20, 20), "sdb": (10**12, 10**12)}) == {}
    row = disks.update(2 * SECOND, {"sda": (30, 30), "sdb": (10**12 + 5, 10**12)})
    assert row == {"read": pytest.approx(15), "written": pytest.approx(10)}


def test_interfaces_without_hardware_count_inside_a_container_and_disks_do_not(tmp_path: Path) -> None:
    device(tmp_path / "net", "eth0", hardware=False)
    network = Traffic(tmp_path / "net", "received", "sent")
    network.update(0, {"eth0": (0, 0)})
    assert network.update(SECOND, {"eth0": (7, 8)}) == {"received": 7, "sent": 8}
    device(tmp_path / "block", "loop0", hardware=False)
    disks = Traffic(tmp_path / "block", "read", "written")
    disks.update(0, {"loop0": (0, 0)})
    assert disks.update(SECOND, {"loop0": (7, 8)}) == {}


def test_the_loopback_is_no_traffic(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device(tmp_path / "class/net", "eth0", hardware=False)  # as in a container
    counters = {"lo": 0, "eth0": 0}

    def cards(**_: bool) -> dict[str, psutil._ntuples.snetio]:
        return {
            name: psutil._ntuples.snetio(count, count, 0, 0, 0, 0, 0, 0) for name, count in counters.items()
        }

    monkeypatch.setattr(psutil, "net_io_counters", cards)
    host = Host(print, tmp_path)
    host.read(clock())
    clock.advance(1)
    counters.update(lo=10**9, eth0=50)
    row = host.read(clock())
    assert (row["net_received_bytes_per_s"], row["net_sent_bytes_per_s"]) == (50, 50)
