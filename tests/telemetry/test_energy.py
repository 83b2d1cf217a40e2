"""Joules between two readings of the driver's counter."""

from __future__ import annotations

import pytest

from hoptui.telemetry.gpu import EnergyCounter

SECOND = 1_000_000_000


def test_power_is_added_to_the_counter() -> None:
    energy = EnergyCounter()
    assert energy.add(0, 500, False) is None  # the counter has not been read
    energy.count(SECOND, 1000)
    assert energy.add(2 * SECOND, 500, False) == 1500
    assert energy.add(2 * SECOND + SECOND // 2, 700, False) == 1850


def test_the_counter_corrects_it_and_it_never_goes_back() -> None:
    energy = EnergyCounter()
    energy.count(0, 1000)
    assert energy.add(SECOND, 500, False) == 1500
    energy.count(SECOND, 1450)  # 50 J too much were added
    assert energy.add(SECOND + SECOND // 20, 500, False) == 1500
    assert energy.add(2 * SECOND, 500, False) == pytest.approx(1950)


@pytest.mark.parametrize(("watts", "late"), [(None, False), (500.0, True)])
def test_a_gap_is_unknown_until_the_counter_is_read_again(watts: float | None, late: bool) -> None:
    energy = EnergyCounter()
    energy.count(0, 1000)
    assert energy.add(SECOND, watts, late) is None
    assert energy.add(2 * SECOND, 500, False) is None
    energy.count(2 * SECOND, None)
    assert energy.add(3 * SECOND, 500, False) is None
    energy.count(3 * SECOND, 2400)
    assert energy.add(4 * SECOND, 500, False) == 2900


def test_a_counter_that_begins_anew_is_believed() -> None:
    energy = EnergyCounter()
    energy.count(0, 1_000_000)
    energy.add(SECOND, 500, False)
    energy.count(SECOND, 3)
    assert energy.add(2 * SECOND, 500, False) == 503
