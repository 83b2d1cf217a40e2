"""The pace: what is due when, and how a slow terminal slows it."""

from __future__ import annotations

import pytest

from hoptui.domain.pacing import REST_S, TICK_S
from hoptui.tui.app_protocol import EVERYTHING, NOTHING, Frame, News, Pace


def drawn(pace: Pace, seconds: float, waiting: int = 0, start: float = 100.0) -> list[Frame]:
    """What is drawn where there is always something new."""
    frames = []
    for i in range(round(seconds / TICK_S)):
        frames.append(pace.due(start + i * TICK_S, waiting))
        pace.drew(frames[-1], start + i * TICK_S)
    return frames


def count(frames: list[Frame]) -> tuple[int, int, int]:
    return sum(f.numbers for f in frames), sum(f.charts for f in frames), sum(f.lists for f in frames)


def test_numbers_and_charts_four_times_a_second_lists_once() -> None:
    assert count(drawn(Pace(), 10.0)) == (40, 40, 10)


def test_nothing_is_drawn_while_frames_wait() -> None:
    pace = Pace()
    assert count(drawn(pace, 4.0, waiting=3)) == (0, 0, 0)
    assert pace.slow


def test_a_slow_terminal_halves_the_pace_again_and_again() -> None:
    pace = Pace()
    divisors = [(pace.due(t, 3), pace.divisor)[1] for t in (0.0, 0.5, 1.0, 2.0, 3.0, 9.0)]
    assert divisors == [2, 2, 4, 8, 8, 8]
    assert count(drawn(pace, 2.9, start=9.2)) == (2, 2, 1)


def test_the_pace_comes_back_step_by_step() -> None:
    pace = Pace()
    for second in range(3):
        pace.due(float(second), 20)
    divisors = [(pace.due(t, 0), pace.divisor)[1] for t in (3.0, 4.9, 5.1, 7.9, 8.2, 11.3, 20.0)]
    assert divisors == [8, 8, 4, 4, 2, 1, 1]


def test_a_late_tick_is_not_caught_up() -> None:
    pace = Pace()
    pace.drew(pace.due(0.0, 0), 0.0)
    assert pace.due(5.0, 0) == Frame(True, True, True)
    pace.drew(EVERYTHING, 5.0)
    assert not any(pace.due(5.0 + TICK_S, 0))


def test_what_had_nothing_new_stays_due() -> None:
    pace = Pace()
    pace.drew(EVERYTHING, 0.0)
    assert [pace.due(t, 0).lists for t in (0.5, 1.0, 1.125, 1.25)] == [False, True, True, True]
    pace.drew(Frame(lists=False), 1.25)
    assert pace.due(1.375, 0) == Frame(numbers=False, charts=False)


def test_the_clock_beats_eight_times_a_second_on_a_grid() -> None:
    assert Pace().rest_s(100.05, 7.3, calm=False) == pytest.approx(0.075)


@pytest.mark.parametrize(("wall", "rests"), [(7.3, 0.7), (7.0, 1.0), (7.99, TICK_S)])
def test_where_nothing_trains_it_rests_until_the_next_second(wall: float, rests: float) -> None:
    assert Pace().rest_s(100.05, wall, calm=True) == pytest.approx(rests)


def test_it_rests_too_while_the_terminal_takes_next_to_nothing() -> None:
    pace = Pace()
    drawn(pace, 3.0, waiting=3)
    assert pace.crawls
    assert pace.rest_s(103.25, 7.3, calm=False) == pytest.approx(0.75 * REST_S)
    drawn(pace, 4.0, start=103.0)
    assert not pace.crawls


def test_what_looks_as_it_did_is_not_drawn_again() -> None:
    news = News()
    assert news.of(Frame(lists=False), "first") == Frame(lists=False)
    assert news.of(EVERYTHING, "first") == Frame(numbers=False, charts=False), "lists were not due"
    assert news.of(EVERYTHING, "first") == NOTHING
    assert news.of(Frame(lists=False), "second") == Frame(lists=False)
    assert news.of(EVERYTHING, "second") == Frame(numbers=False, charts=False)
    news.forget()
    assert news.of(EVERYTHING, "second") == EVERYTHING
