"""How fast iterations are together: those that wait for data count, a spike now and then does not."""

from __future__ import annotations

from statistics import median

import pytest

from hoptui.domain.throughput import level, uneven

FAST, WAIT = 100.0, 2.5  # iterations a second: 10 and 400 ms


def turns(workers: int, count: int) -> list[float]:
    """One wait in as many iterations as there are workers."""
    return [WAIT if i % workers == workers - 1 else FAST for i in range(count)]


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 14, 24])
def test_waits_in_turn_are_counted(workers: int) -> None:
    true = workers / ((workers - 1) / FAST + 1 / WAIT)
    rates = turns(workers, 6 * workers)
    assert uneven(rates)
    assert level(rates) == pytest.approx(true)
    if workers > 2:
        assert median(rates) == FAST


@pytest.mark.parametrize("values", [[FAST], [FAST, FAST, WAIT], [FAST] * 90, [FAST] * 60 + [FAST / 2] * 30])
def test_what_does_not_come_again_and_again_is_left_to_the_median(values: list[float]) -> None:
    assert not uneven(values)
    assert level(values) == median(values)


def test_one_stop_is_none_however_long() -> None:
    values = [FAST] * 40 + [0.1] + [FAST] * 20 + [FAST / 3] + [FAST] * 20 + [FAST / 3] + [FAST] * 7
    assert not uneven(values)


def test_the_unit_does_not_matter() -> None:
    assert level([1e9 * value for value in turns(8, 60)]) == pytest.approx(1e9 * level(turns(8, 60)))
