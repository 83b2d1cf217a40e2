"""The position of a replay, where a person can go, and that nothing is steered from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hoptui.client.replay import SPEEDS, Replay, Tick
from hoptui.recording import Recording, RecordingError
from hoptui.tui.snapshot import ViewerClient
from tests.golden import Golden, sheet
from tests.model.recorded_run import EVENTS, FIRST, ID, LENGTH_S, SECOND, WALL, at, event, run_rows, write


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.s = 50.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("replay") / f"{ID}.hoptui")


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def replay(path: Path, clock: Hand) -> Iterator[Replay]:
    opened = Replay(path, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def pass_time(replay: Replay, clock: Hand, seconds: float) -> float:
    """Let time pass, and say where the replay stands then, in seconds after its start."""
    clock.s += seconds
    replay.advance()
    return (replay.position - FIRST) / SECOND


def test_it_is_a_connection_of_the_dashboard(replay: Replay) -> None:
    """mypy is the test."""
    connection: ViewerClient = replay
    assert connection.link.state == "live"


def test_it_stands_at_the_start_until_it_is_started(replay: Replay, clock: Hand) -> None:
    assert pass_time(replay, clock, 5) == 0
    replay.start()
    assert replay.playing
    assert pass_time(replay, clock, 2) == 2 * replay.speed
    assert replay.speed == 5.0, "ten minutes in no more than three"


def test_pause_and_play(replay: Replay, clock: Hand) -> None:
    replay.set_speed(10)
    replay.play()
    clock.s += 3
    replay.pause()
    assert pass_time(replay, clock, 100) == 30, "what had passed before the pause counts"
    replay.play()
    assert pass_time(replay, clock, 1) == 40


def test_small_steps_do_not_add_up_to_less(replay: Replay, clock: Hand) -> None:
    replay.set_speed(0.25)
    replay.play()
    for _ in range(1000):
        pass_time(replay, clock, 0.0033)
    assert (replay.position - FIRST) / SECOND == pytest.approx(1000 * 0.0033 / 4, abs=1e-6)


def test_playing_ends_at_the_end_and_begins_anew(replay: Replay, clock: Hand) -> None:
    replay.set_speed(1000)
    replay.play()
    assert pass_time(replay, clock, 10) == LENGTH_S
    assert not replay.playing
    replay.play()
    assert replay.position == FIRST
    assert pass_time(replay, clock, 0.1) == pytest.approx(100)


def test_seek_and_jump_keep_within_the_recording(replay: Replay, clock: Hand) -> None:
    replay.play()
    replay.seek(at(100))
    assert pass_time(replay, clock, 1) == 105
    replay.jump(-10)
    assert replay.position == at(95)
    replay.jump(-1000)
    assert replay.position == FIRST
    replay.jump(1e6)
    assert replay.position == at(LENGTH_S)


def test_speeds_go_in_steps(replay: Replay) -> None:
    replay.set_speed(1)
    seen = []
    for _ in range(len(SPEEDS)):
        replay.change_speed(1)
        seen.append(replay.speed)
    assert seen[:3] == [2, 5, 10]
    assert seen[-1] == SPEEDS[-1]
    replay.set_speed(30)
    replay.change_speed(-1)
    assert replay.speed == 20
    replay.set_speed(0)
    assert replay.speed == SPEEDS[0]


def test_events_and_commands_are_stops(replay: Replay) -> None:
    stops = []
    while replay.step_event(1):
        stops.append((replay.position - FIRST) / SECOND)
    assert stops == [100, 200.3, 202, 300, 310, 400, 449, 450.6, 480, 600], (
        "what happens within a second is one stop"
    )
    back = []
    while replay.step_event(-1):
        back.append((replay.position - FIRST) / SECOND)
    assert back == [480, 450.6, 449, 400, 310, 300, 202, 200.3, 100, 0]


def test_while_playing_the_stop_just_passed_is_not_gone_back_to(replay: Replay, clock: Hand) -> None:
    replay.set_speed(10)
    replay.seek(at(300))
    replay.play()
    pass_time(replay, clock, 0.5)
    replay.step_event(-1)
    assert replay.position == at(202)


def test_ticks_are_all_that_happened(replay: Replay) -> None:
    ticks = replay.reel.ticks
    assert len(ticks) == 9
    assert ticks[0] == Tick(FIRST, "info")
    assert {t.kind for t in ticks} == {"info", "warning", "command"}
    assert [t.t for t in ticks] == sorted(t.t for t in ticks)


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("+1m30s", 90), ("+90", 90), ("+ 1 m 30 s", 90), ("+0:01:30", 90), ("+1:30", 90), ("+0.1h", 360),
        ("-1m", 540),
        ("-30s", 570), ("0%", 0), ("50%", 300), ("12.5 %", 75), ("100%", 600), ("#123", 123.5),
        ("# 460", 480.5), ("20:30:00", 200), ("20:30", 200), ("20:26:40", 0), ("20:36:40", 600),
        ("2026-05-28 20:30:00", 200), ("2026-05-28T20:27", 20), ("1:00", 60), ("0:09:59", 599),
        ("10:00", 600),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("in_utc")
def test_a_person_says_where_to_go(replay: Replay, asked: str, seconds: float) -> None:
    assert replay.find(asked) == at(seconds)


@pytest.mark.usefixtures("in_utc")
def test_what_cannot_be_found_is_said(replay: Replay, golden: Golden) -> None:
    times = (
        "soon",
        "",
        "+",
        "+1.2.3h",
        "+1h",
        "120%",
        "#700",
        "25:00",
        "14:05:30",
        "2026-05-27 20:30",
        "\x1b[31m",
    )
    problems = {}
    for asked in times:
        with pytest.raises(ValueError) as raised:
            replay.find(asked)
        problems[repr(asked)] = str(raised.value)
        assert "\x1b" not in str(raised.value)
    golden(sheet(problems))


@pytest.mark.usefixtures("in_utc")
def test_in_a_recording_of_days_a_time_of_day_is_the_nearest(tmp_path: Path) -> None:
    days = 2 * 86400
    path = write(tmp_path / "r.hoptui", commands=(), events=(EVENTS[0], event(days, "note", "x")))
    opened = Replay(path)
    assert opened.find("21:00") == at(2000)
    opened.seek(at(days - 3600))
    assert opened.find("20:00") == at(days - 1600)
    opened.close()


def test_commands_are_refused_with_a_sentence(replay: Replay) -> None:
    replay.seek(at(305))
    sent = replay.send("set", ID, knob="lr", value=1.0)
    record = replay.store.commands[sent]
    assert (record.stage, record.code, record.reason) == ("rejected", "recording", "")
    assert record.t == at(305)
    assert record.wall == WALL + 305
    assert set(replay.store.commands) == {"lr", "ga", sent}, "and those of the recording are there as before"
    replay.tune(ID, "start")
    assert (replay.store.tuned[ID].granted, replay.store.tuned[ID].code) == (False, "recording")


def test_a_recording_that_is_being_written_opens(tmp_path: Path) -> None:
    path = write(tmp_path / "r.hoptui", rows=(run_rows(60),), events=EVENTS[:1], commands=())
    with Recording.create(path):
        opened = Replay(path)
        opened.seek(opened.reel.end)
        vital = opened.store.vital(ID)
        opened.close()
    assert vital is not None
    assert vital.step == 60


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no recording")
    with pytest.raises(RecordingError, match=r"notes\.txt"):
        Replay(path)
    with pytest.raises(RecordingError, match=r"gone\.hoptui"):
        Replay(tmp_path / "gone.hoptui")


def test_a_read_that_fails_is_told_by_the_link(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "the disk is gone"

    def broken(*arguments: object) -> None:
        raise RecordingError(problem)

    monkeypatch.setattr(Recording, "rows", broken)
    replay.store.latest(f"run/{ID}")
    assert (replay.link.state, replay.link.reason) == ("failed", problem)
