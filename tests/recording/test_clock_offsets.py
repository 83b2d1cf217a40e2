"""Stamps are monotonic and start again at a reboot; a recording's time does not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hoptui.domain.columns import Columns
from hoptui.recording import Recording, ingest
from hoptui.recording.ingest import Boot, this_boot
from tests import factories

SECOND = 1_000_000_000
MakeRows = Callable[..., Columns]


def told(recording: Recording, t: int, seq: int) -> None:
    recording.event(factories.event(seq, t=t))
    recording.command(factories.record(f"c{seq}", "r", verb="pause", t=t, settled=t, seq=seq + 1))
    recording.command(factories.record(f"d{seq}", "r", verb="pause", t=t, seq=seq + 2))


def test_a_reboot_goes_on_in_wall_time(path: Path, rows: MakeRows) -> None:
    """Boot 1 writes rows stamped 5000 s to 5009 s; boot 2 begins 6000 s after boot 1 did and writes 10 s to
    19 s."""
    first = Boot("boot-1", 1_000_000 * SECOND, 5_000 * SECOND)
    second = Boot("boot-2", 1_006_000 * SECOND, 10 * SECOND)
    with Recording.create(path, boot=first) as recording:
        recording.append(rows(10, first=5_000))
        told(recording, 5_005 * SECOND, seq=1)
        assert recording.wall_offset_ns == first.wall_offset_ns
    with Recording.create(path, boot=second) as recording:
        assert recording.last_t("host") == 0
        recording.append(rows(10, first=10))
        told(recording, 15 * SECOND, seq=4)
        assert recording.last_t("host") == 19 * SECOND
        assert recording.sources() == {"host": (-1_000 * SECOND, 19 * SECOND, 20)}
        assert recording.wall_offset_ns == second.wall_offset_ns
        for _ in range(2):  # before and after the flush
            assert [t // SECOND for part in recording.rows("host") for t in part.times()] == [
                *range(-1_000, -990),
                *range(10, 20),
            ]
            assert [len(part) for part in recording.rows("host", 1, 12 * SECOND)] == [3]
            assert [e.t // SECOND for e in recording.events()] == [-995, 15]
            assert [c.t // SECOND for c in recording.commands()] == [-995, -995, 15, 15]
            assert [c.settled // SECOND for c in recording.commands()] == [-995, 0, 15, 0]
            recording.flush()
    with Recording.open(path) as reader:
        assert reader.wall_offset_ns == first.wall_offset_ns
        assert reader.sources() == {"host": (5_000 * SECOND, 6_019 * SECOND, 20)}
        assert reader.last_t("host") == 6_019 * SECOND
        assert [e.t // SECOND for e in reader.events()] == [5_005, 6_015]
        assert [c.settled // SECOND for c in reader.commands()] == [5_005, 0, 6_015, 0]
    with Recording.open(path, boot=second) as reader:
        assert reader.wall_offset_ns == second.wall_offset_ns
        assert reader.sources() == {"host": (-1_000 * SECOND, 19 * SECOND, 20)}
        assert [e.t // SECOND for e in reader.events()] == [-995, 15]


def test_a_reader_of_a_boot_that_the_recording_does_not_know(path: Path, rows: MakeRows) -> None:
    """A daemon started after a reboot looks at yesterday's runs before it writes any of them."""
    with Recording.create(path, boot=Boot("boot-1", 1_000_000 * SECOND, 0)) as recording:
        recording.append(rows(10, first=5_000))
    with Recording.open(path, boot=Boot("boot-2", 1_006_000 * SECOND, 10 * SECOND)) as reader:
        assert reader.sources() == {"host": (-1_000 * SECOND, -991 * SECOND, 10)}
        assert reader.last_t("host") == 0
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT boot FROM boots").fetchall() == [("boot-1",)]


def test_the_same_boot_goes_on_with_its_own_stamps(path: Path, rows: MakeRows) -> None:
    first = Boot("boot-1", 1_000_000 * SECOND, 5_000 * SECOND)
    stepped = Boot("boot-1", 1_000_003 * SECOND, 5_100 * SECOND)  # the wall clock was set meanwhile
    with Recording.create(path, boot=first) as recording:
        recording.append(rows(10, first=5_000))
    with Recording.create(path, boot=stepped) as recording:
        recording.append(rows(10, first=5_010))
        assert recording.sources() == {"host": (5_000 * SECOND, 5_019 * SECOND, 20)}
        assert recording.wall_offset_ns == first.wall_offset_ns


@pytest.mark.parametrize("back", [10, 3_600, 10_000_000])
def test_stamps_rise_even_where_the_wall_clock_went_back(path: Path, rows: MakeRows, back: int) -> None:
    with Recording.create(path, boot=Boot("boot-1", 1_000_000 * SECOND, 0)) as recording:
        recording.append(rows(10, first=5_000))
        recording.event(factories.event(t=5_050 * SECOND))
    now = 60 * SECOND
    with Recording.create(path, boot=Boot("boot-2", (1_000_000 - back) * SECOND, now)) as recording:
        recording.append(rows(10, first=60))
    with Recording.open(path) as reader:
        stamps = [t for part in reader.rows("host") for t in part.times()]
    assert len(stamps) == 20
    assert stamps == sorted(set(stamps))
    assert stamps[10] == 5_050 * SECOND + 1


def test_each_boot_is_remembered_once(path: Path) -> None:
    for name in ("a", "b", "a", "b", "c"):
        Recording.create(path, boot=Boot(name, 7, 0)).close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT boot FROM boots ORDER BY id").fetchall() == [("a",), ("b",), ("c",)]


def test_this_boot_is_the_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = this_boot()
    assert found.id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert found.now > 0
    assert this_boot().wall_offset_ns == pytest.approx(found.wall_offset_ns, abs=SECOND)
    monkeypatch.setattr(ingest, "_BOOT_ID", tmp_path / "missing")
    assert this_boot().id == "unknown"
