"""What is told of a GPU and what is not: throttling, ECC, clocks, Xids, in plain words and not too often."""

from __future__ import annotations

import random

import pytest

from hoptui.domain.devices import Happened
from hoptui.domain.facts import Fact, fact
from hoptui.presentation.sentences import hardware
from hoptui.telemetry.events import XIDS, Alarms, level_of

SECOND = 1_000_000_000
TICK = SECOND // 10
SLOW = fact("gpu.slow_clocks", clock_hz=1200e6, share=1200 / 1980)


@pytest.fixture
def alarms() -> Alarms:
    return Alarms("gpu/GPU-0")


def play(
    alarms: Alarms, seconds: float, start: float = 0.0, clock_max: float | None = 1980.0, **row: float
) -> list[Happened]:
    """The same row ten times a second."""
    found: list[Happened] = []
    for tick in range(round(seconds * 10)):
        found += alarms.read(round(start * SECOND) + tick * TICK, row, TICK, clock_max)
    return found


@pytest.mark.parametrize("bit", [0x8, 0x20, 0x40, 0x80])
def test_a_slowdown_is_an_alarm_at_once_and_its_end_is_told_after_ten_seconds(
    alarms: Alarms, bit: int
) -> None:
    [event] = play(alarms, 1, throttle=bit)
    assert (event.source, event.kind, event.level, event.t) == ("gpu/GPU-0", "throttle", "alarm", 0)
    assert play(alarms, 9, start=1, throttle=0) == []
    [over] = play(alarms, 3, start=10, throttle=0)
    assert (over.kind, over.level) == ("throttle", "info")
    assert over.t == pytest.approx(10.9 * SECOND, abs=TICK)


def test_the_general_slowdown_is_silent_where_a_cause_is_known(alarms: Alarms) -> None:
    [event] = play(alarms, 1, throttle=0x8 | 0x40)
    assert event.what == fact("gpu.throttle", reason="thermal_hardware", active=True)


def test_the_power_cap_is_normal_and_told_once_it_holds(alarms: Alarms) -> None:
    assert play(alarms, 5, throttle=0x4) == []
    [event] = play(alarms, 60, start=5, throttle=0x4)
    assert (event.kind, event.level, event.t) == ("throttle", "info", 5 * SECOND)


def test_a_power_cap_that_flickers_is_told_once(alarms: Alarms) -> None:
    events: list[Happened] = []
    for tick in range(600):
        events += alarms.read(tick * TICK, {"throttle": 0x4 if tick % 3 else 0}, TICK)
    assert len(events) == 1


RATES = pytest.mark.parametrize("hz", [0.1, 1, 2, 10])


def play_late(alarms: Alarms, hz: float, seconds: float, **row: float) -> list[Happened]:
    """The same row at the sampler's rate, each up to 15 ms behind its place on the grid, as ticks really
    are."""
    late, period = random.Random(1), round(SECOND / hz)
    found: list[Happened] = []
    for tick in range(round(seconds * hz)):
        found += alarms.read(tick * period + late.randrange(15_000_000), row, period, 1980.0)
    return found


@RATES
@pytest.mark.parametrize(
    ("row", "what", "after"),
    [
        ({"throttle": 0x4}, fact("gpu.throttle", reason="power_cap", active=True), 5),
        ({"throttle": 0x10}, fact("gpu.throttle", reason="sync_boost", active=True), 5),
        ({"throttle": 0, "busy": 99, "sm_clock_mhz": 1200}, SLOW, 10),
    ],
)
def test_what_lasts_is_told_once_at_every_rate(
    alarms: Alarms, hz: float, row: dict[str, float], what: Fact, after: float
) -> None:
    [event] = play_late(alarms, hz, 60, **row)
    assert event.what == what
    assert event.t / SECOND == pytest.approx(after, abs=1 / hz + 0.1)


@RATES
def test_a_power_cap_that_one_row_misses_is_told_at_every_rate(alarms: Alarms, hz: float) -> None:
    found: list[Happened] = []
    period = round(SECOND / hz)
    for tick in range(600):
        found += alarms.read(tick * period, {"throttle": 0x4 if tick % 2 else 0}, period)
    assert [event.level for event in found] == ["info"]


def test_a_power_cap_of_before_a_silence_does_not_count(alarms: Alarms) -> None:
    assert alarms.read(0, {"throttle": 0x4}, SECOND) == ()
    assert alarms.read(60 * SECOND, {"throttle": 0x4}, SECOND) == ()


def test_a_short_touch_of_the_power_cap_is_not_told(alarms: Alarms) -> None:
    for start in range(0, 60, 10):
        assert play(alarms, 4, start=start, throttle=0x4) == []
        assert play(alarms, 6, start=start + 4, throttle=0) == []


@pytest.mark.parametrize("mask", [0x1, 0x2, 0x100, 0x0])
def test_idle_and_what_people_set_are_no_events(alarms: Alarms, mask: int) -> None:
    assert play(alarms, 30, throttle=mask, busy=0, sm_clock_mhz=345) == []


def test_a_row_without_the_reading_says_nothing(alarms: Alarms) -> None:
    assert len(play(alarms, 1, throttle=0x40)) == 1
    assert play(alarms, 60, start=1) == []


def test_slow_clocks_under_load_without_a_reason_are_told_after_ten_seconds(alarms: Alarms) -> None:
    slow = {"throttle": 0, "busy": 99, "sm_active": 90, "sm_clock_mhz": 1200}
    assert play(alarms, 10, **slow) == []
    [event] = play(alarms, 60, start=10, **slow)
    assert (event.kind, event.level) == ("clocks", "warning")
    assert event.what == SLOW


@pytest.mark.parametrize(
    "change",
    [
        {"throttle": 0x4},  # a reason
        {"busy": 20, "sm_active": 5},  # no load
        {"sm_clock_mhz": 1600},
    ],
)
def test_slow_clocks_that_are_explained_are_not_told(alarms: Alarms, change: dict[str, float]) -> None:
    row = {"throttle": 0, "busy": 99, "sm_active": 90, "sm_clock_mhz": 1200} | change
    assert not [event for event in play(alarms, 60, **row) if event.kind == "clocks"]
    assert not [event for event in play(alarms, 60, clock_max=None, **row) if event.kind == "clocks"]


def test_ecc_errors_of_before_are_not_news_and_new_ones_are(alarms: Alarms) -> None:
    assert play(alarms, 1, ecc_corrected=5, ecc_uncorrected=1, remapped_rows=2) == []
    found = play(alarms, 1, start=1, ecc_corrected=7, ecc_uncorrected=2, remapped_rows=2)
    assert [(e.kind, e.level, e.what) for e in found] == [
        ("ecc", "alarm", fact("gpu.ecc", counter="ecc_uncorrected", count=1)),
        ("ecc", "warning", fact("gpu.ecc", counter="ecc_corrected", count=2)),
    ]


def test_ecc_errors_that_keep_coming_are_summed_up_every_ten_seconds(alarms: Alarms) -> None:
    alarms.read(0, {"ecc_corrected": 0}, SECOND)
    found: list[Happened] = []
    for second in range(1, 32):
        found += alarms.read(second * SECOND, {"ecc_corrected": second}, SECOND)
    assert [event.what and event.what.fields["count"] for event in found] == [1, 10, 10, 10]


def test_counters_that_begin_anew_are_no_errors(alarms: Alarms) -> None:
    play(alarms, 1, ecc_corrected=5)
    assert play(alarms, 1, start=1, ecc_corrected=0) == []
    assert len(play(alarms, 1, start=2, ecc_corrected=1)) == 1


def test_one_xid_in_a_loop_is_told_once_and_counted(alarms: Alarms) -> None:
    [first] = alarms.xid(0, 13)
    assert (first.kind, first.level) == ("xid", "warning")
    assert first.what == fact("gpu.xid", number=13)
    assert [alarms.xid(n * TICK, 13) for n in range(1, 6)] == [()] * 5
    [other] = alarms.xid(6 * TICK, 79)  # another is not held back
    assert other.level == "alarm"
    assert play(alarms, 9, start=0.7) == []
    [more] = play(alarms, 2, start=9.9)
    assert more.what == fact("repeated", what=first.what, times=5)
    assert play(alarms, 30, start=12) == []


def test_every_well_known_xid_has_a_level_and_words_and_an_unknown_one_is_a_warning() -> None:
    known = {13, 31, 43, 45, 48, 61, 62, 63, 64, 69, 74, 79, 92, 94, 95, 119, 120, 121, 140}
    assert known <= XIDS.keys()
    assert XIDS.keys() == hardware.XIDS.keys()
    assert {level_of(number) for number in (48, 79, 95)} == {"alarm"}
    assert level_of(777) == "warning"


def test_a_double_bit_error_is_an_alarm(alarms: Alarms) -> None:
    [event] = alarms.double_bit(0)
    assert (event.kind, event.level, event.what) == ("ecc", "alarm", fact("gpu.double_bit"))
    assert alarms.double_bit(TICK) == ()


def test_lost_is_told_once_and_back_only_after_it(alarms: Alarms) -> None:
    assert alarms.back(0) == ()
    problem = fact("gpu.fell_off_bus", nvml=15, error="GPU is lost")
    [lost] = alarms.lost(1, problem)
    assert (lost.kind, lost.level, lost.what) == ("gpu", "alarm", problem)
    assert alarms.lost(2, problem) == ()
    [back] = alarms.back(3)
    assert (back.kind, back.level, back.what) == ("gpu", "info", fact("gpu.back"))
    assert alarms.back(4) == ()
