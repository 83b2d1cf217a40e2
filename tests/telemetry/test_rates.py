"""Rising counters to rates: known only between two readings of one counter."""

from __future__ import annotations

import pytest

from hoptui.telemetry.host import Rate

SECOND = 1_000_000_000


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
