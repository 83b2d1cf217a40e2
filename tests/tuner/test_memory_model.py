"""What a size is expected to take, and what neighbours do."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from hoptui.tuner.observation import MemoryReading, Observation
from hoptui.tuner.search.memory_model import LOOKS_STILL, NEWS, MemoryModel, Neighbours


def seen(*points: tuple[float, int]) -> MemoryModel:
    model = MemoryModel()
    for size, used in points:
        model.saw(size, used)
    return model


def spread(size: float, base: int, count: int = 600, scale: float = 0.02) -> list[tuple[float, int]]:
    """Readings of a size whose peaks lie above `base` as far as those of Student's t with four degrees of
    freedom."""
    chance = random.Random(1)
    tails = (abs(chance.gauss(0, 1)) / math.sqrt(chance.gammavariate(2, 0.5)) for _ in range(count))
    return [(size, round(base * (1 + scale * tail))) for tail in tails]


def test_nothing_is_expected_before_anything_was_seen() -> None:
    assert seen().predicted(8) is None
    assert not seen().expects(8, MemoryReading(10, 0, 100), 0.92)
    assert seen().largest == 0.0


def test_one_size_grows_as_a_whole_and_shrinks_not_at_all() -> None:
    model = seen((8, 40))
    assert model.predicted(16) == 80
    assert model.predicted(4) == 40
    assert not model.fitted


def test_two_sizes_make_a_line() -> None:
    model = seen((8, 40), (16, 50))
    assert model.predicted(32) == pytest.approx(70)
    assert model.predicted(12) == pytest.approx(45)
    assert model.predicted(2) == 40
    assert model.expects(32, MemoryReading(50, 20, 100), 0.92)
    assert not model.expects(32, MemoryReading(50, 25, 100), 0.92)


def test_a_setting_that_leaves_the_need_as_it_was_leaves_the_line() -> None:
    model = seen((8, 4000), (16, 5000))
    model.clear()
    model.saw(16, 5050)
    assert model.predicted(32) == pytest.approx(7050)
    model.clear()
    model.saw(16, 6000)  # it takes more now, so larger sizes may take much more
    assert model.predicted(32) == pytest.approx(10_500)


def test_larger_sizes_are_known_by_two_sizes_or_by_a_need_that_stayed() -> None:
    model = seen((8, 4000), (16, 5000))
    assert model.known
    model.clear()
    assert not model.known
    model.saw(16, 5000)
    assert model.known
    assert not model.fitted
    model.clear()
    model.saw(16, 6000)
    assert not model.known


def test_one_size_gives_a_worst_case_until_some_memory_is_known_to_stay() -> None:
    assert not seen().worst_case
    model = seen((8, 4000))
    assert model.worst_case
    model.clear()
    model.saw(8, 4000)
    assert model.worst_case, "no other size was seen"
    model.saw(16, 5000)
    assert not model.worst_case
    model.clear()
    model.saw(16, 6000)  # of 3000 that did not grow, half are assumed to stay
    assert not model.worst_case


def test_what_is_reported_not_to_grow_does_not_grow() -> None:
    model = seen((8, 4000))
    assert model.predicted(16) == 8000
    model.saw(8, 4000, 1500)
    assert model.predicted(16) == 1500 + 2 * 2500
    assert model.predicted(32) == 1500 + 4 * 2500
    assert model.worst_case, "what else does not grow is not known"
    model.clear()
    model.saw(8, 4000)
    assert model.predicted(16) == 8000, "it is not reported any more"


def test_readings_before_the_optimizer_had_its_state_are_forgotten() -> None:
    """They lack what is reported later, so less would seem to grow than does."""
    model = seen(*[(8.0, 4000)] * 20)
    model.saw(8, 6000, 2000)
    assert model.predicted(16) == 2000 + 2 * 4000


def test_a_need_of_two_sizes_is_that_of_their_line_whatever_is_reported() -> None:
    model = MemoryModel()
    model.saw(8, 4000, 1500)
    model.saw(16, 5000, 1500)
    assert model.predicted(32) == pytest.approx(7000)


def test_the_larger_part_that_stays_counts_after_another_setting_has_changed() -> None:
    """Of 3000 bytes that did not grow, half are assumed to stay."""
    for reported, found in ((1000, 10_500), (2000, 10_000)):
        model = seen((8, 4000), (16, 5000))
        model.clear()
        model.saw(16, 6000, reported)
        assert model.predicted(32) == pytest.approx(found)
        assert model.worst_case is (reported >= 1500)


def test_a_smaller_size_after_a_larger_one_tells_nothing() -> None:
    model = seen((8, 40), (16, 50), (8, 50), (4, 50))
    assert model.predicted(8) == 40
    assert model.largest == 16


def test_peaks_that_are_always_the_same_are_all_there_is() -> None:
    model = seen(*[(8.0, 4000)] * 50, *[(16.0, 5000)] * 50)
    assert model.predicted(32) == 7000
    assert model.holds(32, MemoryReading(5000, 0, 7000))
    assert not model.holds(32, MemoryReading(5000, 1, 7000))


def test_more_never_takes_less() -> None:
    assert seen((8, 40), (16, 39)).predicted(32) == 39


def test_one_rare_peak_does_not_tilt_the_line_and_is_not_forgotten() -> None:
    model = seen(*[(8.0, 4000)] * 300, (8, 6000), *[(16.0, 5000)] * 300)
    assert model.predicted(32) == pytest.approx(7000, rel=0.03)
    assert not model.holds(32, MemoryReading(0, 0, 10_000))
    assert model.holds(32, MemoryReading(0, 0, 10_501))


def test_how_rare_larger_peaks_are_is_told_by_the_largest_so_far() -> None:
    model = seen(*spread(8, 40_000), *spread(16, 50_000))
    # 13 in 20 hours of readings lie so far above: (6 / (0.65 / 3600))^¼ × 0.02 = 0.27 of the base.
    limits = [total for total in range(50_000, 80_000, 250) if model.holds(16, MemoryReading(0, 0, total))]
    assert limits[0] == pytest.approx(50_000 * 1.27, rel=0.07)
    often = [
        total for total in range(50_000, 80_000, 250) if model.holds(16, MemoryReading(0, 0, total), often=3)
    ]
    assert 55_000 < often[0] < limits[0]


def test_a_peak_that_many_looks_see_is_one() -> None:
    usual = [(8.0, 4000), (8.0, 4001)]
    once = seen(*usual * 50, (8.0, 4400), *usual)
    again = seen(*usual * 50, *[(8.0, 4400)] * 10, *usual)
    assert 4010 < (again.predicted(8) or 0) <= (once.predicted(8) or 0)


def test_no_memory_at_all_is_no_reading() -> None:
    model = seen((8, 0), (8, 0))
    assert model.predicted(8) is None
    model = seen((8, 40), (8, 0), (16, 50), (16, 0))
    assert model.predicted(8) == 40
    assert model.predicted(32) == pytest.approx(70)


def test_a_peak_that_may_be_of_others_is_none() -> None:
    model = seen(*[(8.0, 4000)] * 100, (8.0, 7000))
    model.doubt()
    for _ in range(10):
        model.saw(8.0, 4000)
    assert model.predicted(8) == 4000
    assert model.holds(8, MemoryReading(4000, 0, 4000))


def test_neighbours_are_noticed_when_they_take_and_when_they_give_back() -> None:
    watch = Neighbours()
    assert not watch.freed(MemoryReading(10, 5, 100))
    assert watch.taken(MemoryReading(10, 6, 100)) == 0
    assert not watch.freed(MemoryReading(10, 30, 100))
    assert watch.taken(MemoryReading(10, 30, 100)) == 25
    watch.settle(MemoryReading(10, 30, 100))
    assert watch.taken(MemoryReading(10, 31, 100)) == 0
    told = [watch.freed(MemoryReading(10, 5, 100)) for _ in range(NEWS + 1)]
    assert told == [True] * NEWS + [False]


def test_what_neighbours_have_held_for_some_looks_is_reckoned_with() -> None:
    watch = Neighbours()
    watch.freed(MemoryReading(10, 0, 1000))
    watch.freed(MemoryReading(10, 100, 1000))
    assert watch.growing
    assert watch.taken(MemoryReading(10, 100, 1000)) == 100
    for _ in range(LOOKS_STILL):
        watch.freed(MemoryReading(10, 101, 1000))
    assert not watch.growing
    assert watch.taken(MemoryReading(10, 101, 1000)) == 0


def test_how_full_the_fullest_is() -> None:
    observation = Observation(t=0, epoch=1, state="live", knobs=(), memories=(MemoryReading(30, 20, 100),))
    assert observation.taken == 0.5
    assert replace(observation, memories=(MemoryReading(30, 20, 100), MemoryReading(1, 89, 100))).taken == 0.9
    assert replace(observation, memories=()).taken == 0.0


def test_what_neighbours_go_on_taking_is_expected_but_not_a_single_rise() -> None:
    watch, coming = Neighbours(), []
    for others in (5, 5, 25, 25, 30, 33, 37, 37):
        watch.read(MemoryReading(10, others, 100))
        coming.append(watch.coming)
    assert coming == [0, 0, 0, 0, 0, 3, 3, 0]


def test_it_is_known_whether_neighbours_had_taken_memory_at_the_last_reading() -> None:
    watch, took = Neighbours(), []
    for others in (5, 30, 5):
        watch.freed(MemoryReading(10, others, 100))
        took.append(watch.took)
    assert took == [False, True, False]
