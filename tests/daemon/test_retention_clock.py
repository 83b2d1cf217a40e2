"""A clock that is wrong deletes no recording: ages count from a time that runs on with the uptime."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hoptui.daemon import retention_clock
from hoptui.daemon.recordings import History, RetentionLimits
from hoptui.daemon.retention_clock import DRIFT, NAME, ClockState, advanced, time_of
from hoptui.node.addresses import Addresses
from hoptui.node.processes import process_started
from hoptui.recording.library import KnownRun
from tests import factories
from tests.daemon.test_recordings import NODE

DAY = 86400.0
WALL = 1_780_000_000.0
BOOT = "a"


class Node:
    """A node whose clocks a test sets, with a daemon that looks at them."""

    def __init__(self) -> None:
        self.state: ClockState | None = None
        self.wall, self.uptime, self.boot = WALL, 1000.0, BOOT

    def look(self, seconds: float = 0.0, newest: float = 0.0) -> float:
        """The trusted time so many seconds later, in days after WALL."""
        self.wall += seconds
        self.uptime += seconds
        self.state = advanced(self.state, self.boot, self.wall, self.uptime, newest)
        return (time_of(self.state) - WALL) / DAY

    def reboot(self, off_s: float) -> None:
        self.wall += off_s
        self.uptime, self.boot = 30.0, self.boot + "b"


def test_a_clock_that_goes_on_is_trusted() -> None:
    node = Node()
    assert [node.look(DAY) for _ in range(4)] == [1, 2, 3, 4]


@pytest.mark.guarantee("clock-ahead")
def test_a_first_look_believes_a_day_beyond_the_newest_recording() -> None:
    node = Node()
    assert node.look(newest=WALL - 60 * DAY) == pytest.approx(-59)
    assert node.look(newest=WALL) == pytest.approx(-59)
    assert node.look(DAY) == pytest.approx(1)


@pytest.mark.guarantee("clock-jumps")
def test_a_jump_ahead_is_followed_after_a_day() -> None:
    node = Node()
    node.look()
    node.wall += 60 * DAY
    assert node.look(30) == pytest.approx(30 / DAY)
    assert node.look(DAY / 2) < 1
    assert node.look(DAY / 2) == pytest.approx(61, abs=0.01)


@pytest.mark.guarantee("clock-jumps")
def test_a_jump_ahead_and_back_leaves_nothing() -> None:
    node = Node()
    node.look(DAY)
    node.wall += 60 * DAY
    node.look(3600)
    node.wall -= 60 * DAY
    assert node.look(3600) == pytest.approx(1 + 7200 / DAY)


def test_a_jump_during_a_confirmed_time_does_not_shorten_the_wait() -> None:
    node = Node()
    node.look()
    for _ in range(5):
        node.wall += 10 * DAY
        node.look(DAY / 3)
    assert node.look() == pytest.approx(5 / 3, abs=0.01)


def test_a_clock_that_is_behind_is_followed() -> None:
    node = Node()
    node.look()
    node.wall -= 5 * DAY
    assert node.look(60) == pytest.approx(-5, abs=0.01)


@pytest.mark.guarantee("node-off")
def test_a_node_that_was_off_believes_a_day_at_once() -> None:
    node = Node()
    node.look(2 * DAY)
    node.reboot(8 * 3600)
    assert node.look() == pytest.approx(2 + 1 / 3, abs=0.01)
    node.reboot(60 * DAY)
    assert node.look() == pytest.approx(3 + 1 / 3, abs=0.01)
    assert node.look(DAY) == pytest.approx(63 + 1 / 3, abs=0.01)


def test_a_clock_that_ntp_adjusts_slowly_has_not_jumped() -> None:
    node = Node()
    node.look()
    for _ in range(48):
        node.wall += 1800 * DRIFT / 2
        node.look(1800)
    assert node.look() == pytest.approx(1, abs=0.01)


@pytest.fixture
def month(tmp_path: Path) -> Path:
    """Recordings of yesterday and of a week and forty days ago."""
    for days in (1, 7, 40):
        path = tmp_path / f"r{days}.hoptui"
        path.write_bytes(bytes(100))
        at = time.time() - days * DAY
        os.utime(path, (at, at))
    return tmp_path


def left(directory: Path) -> list[str]:
    return sorted(path.stem for path in directory.glob("*.hoptui"))


@pytest.mark.guarantee("clock-ahead")
def test_a_daemon_started_with_a_clock_ahead_deletes_nothing(
    month: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a short run that has ended since then does not make the clock plausible."""
    limits = RetentionLimits(keep_s=45 * DAY)
    ahead, passed = time.time() + 60 * DAY, 0.0
    monkeypatch.setattr(retention_clock, "_uptime", lambda: 1000.0 + passed)
    for _ in range(2):  # two daemons
        history = History(Addresses(month, month), limits)
        short = month / "short.hoptui"
        short.write_bytes(bytes(100))
        os.utime(short, (ahead + passed + 5, ahead + passed + 5))
        for _ in range(3):
            passed += 600
            history.tidy(ahead + passed)
    assert left(month) == ["r1", "r40", "r7", "short"]
    passed += 2 * DAY
    history.tidy(ahead + passed)
    assert left(month) == ["short"]


@pytest.mark.guarantee("old-live-run")
def test_a_live_run_is_restored_whatever_the_clock_says(tmp_path: Path) -> None:
    history = History(Addresses(tmp_path, tmp_path), RetentionLimits())
    for run, pid, exit_reason in (
        ("live", os.getpid(), ""),
        ("over", os.getpid(), "finished"),
        ("gone", 1, ""),
    ):
        state = factories.run(run, pid=pid, exit_reason=exit_reason)
        started = process_started(os.getpid()) or 0
        history.remember(KnownRun(state=state, nonce="n", process_started=started), NODE)
        history.close(run)
        os.utime(tmp_path / f"{run}.hoptui", (1e9, 1e9))
    assert [found.state.run for found in history.restore()] == ["live"]


def test_with_a_sound_clock_the_old_ones_go(month: Path) -> None:
    History(Addresses(month, month), RetentionLimits(keep_s=30 * DAY)).tidy(time.time())
    assert left(month) == ["r1", "r7"]


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 5000, b'{"boot": 1}'])
@pytest.mark.guarantee("bad-clock-file")
def test_a_damaged_file_counts_as_none(month: Path, raw: bytes) -> None:
    (month / NAME).write_bytes(raw)
    History(Addresses(month, month), RetentionLimits(keep_s=45 * DAY)).tidy(time.time() + 60 * DAY)
    assert left(month) == ["r1", "r40", "r7"]
