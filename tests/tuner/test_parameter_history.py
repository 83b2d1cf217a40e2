"""What is known of a lever: what its sizes gain, which of them are too much and for how long, what is tried
once more."""

from __future__ import annotations

import math

import pytest

from hoptui.domain.tuning import Limits, Measured
from hoptui.tuner.observation import MemoryReading
from hoptui.tuner.search.parameter_history import (
    BELIEVED,
    CEILING_S,
    GAVE_WAY_S,
    LEFT_S,
    SWAYS_S,
    ParameterHistories,
    ParameterHistory,
)
from hoptui.tuner.search.space import levers
from tests.tuner.simulated_run import knob

SECOND = 1_000_000_000


def measured(gain: float, interval: float, before: float | None = None) -> Measured:
    return Measured(metric="samples_per_s", before=before, gain=gain, interval=interval, settled=True)


def rated(**sizes: float) -> ParameterHistory:
    return ParameterHistory(rates={float(name[1:]): rate for name, rate in sizes.items()})


def test_a_gain_is_expected_from_what_a_piece_and_a_sample_cost() -> None:
    def rate(size: float) -> float:
        return 1 / (0.001 + 0.08 / size)

    assert rated(_8=rate(8)).gain(8, 16, falling=False) is None
    track = rated(_8=rate(8), _16=rate(16), _32=rate(32))
    assert track.gain(32, 64, falling=False) == pytest.approx(rate(64) / rate(32) - 1)


def test_only_where_it_may_fall_a_larger_size_is_expected_to_be_slower() -> None:
    track = rated(_8=100.0, _16=90.0)
    assert track.gain(16, 32, falling=False) == pytest.approx(0.0)
    assert (track.gain(16, 8, falling=True) or 0.0) > 0.05


def test_a_ceiling_holds_for_a_time_that_doubles_for_its_own_size() -> None:
    track = ParameterHistory()
    track.bound(128, 0)
    assert track.ceiling == 128
    track.expire(round(CEILING_S * SECOND) - 1)
    assert track.ceiling == 128
    track.expire(round(CEILING_S * SECOND))
    assert track.ceiling == math.inf
    track.bound(128, 0)
    track.expire(round(1.9 * CEILING_S * SECOND))
    assert track.ceiling == 128


def test_one_size_that_is_left_for_others_makes_no_other_one_too_much_for_longer() -> None:
    track = ParameterHistory()
    for size in (128, 96, 64, 48):
        track.bound(size, 0, LEFT_S)
    assert track.ceiling == 48
    track.expire(round(LEFT_S * SECOND))
    assert track.ceiling == math.inf

    track.bound(256, 0)
    track.bound(64, round(CEILING_S * SECOND) - 1, LEFT_S)
    track.expire(round(CEILING_S * SECOND))
    assert track.ceiling == 64
    assert list(track.bounds) == [64]


def test_a_ceiling_that_was_lifted_in_vain_is_not_lifted_again_before_its_time() -> None:
    track = ParameterHistory()
    track.bound(128, 0, LEFT_S)
    track.lift()
    assert track.ceiling == math.inf
    track.bound(128, SECOND, LEFT_S)
    track.bound(120, SECOND, LEFT_S)
    track.lift()
    assert track.ceiling == 128
    track.expire(round(CEILING_S * SECOND) + SECOND)
    assert track.ceiling == math.inf
    track.bound(128, round(2 * CEILING_S * SECOND), LEFT_S)
    track.lift()
    assert track.ceiling == math.inf


def test_a_rare_failure_is_no_vain_trial_of_a_lifted_ceiling() -> None:
    track = ParameterHistory()
    track.bound(128, 0, LEFT_S)
    track.lift()
    track.bound(128, SECOND, GAVE_WAY_S, rare=True)
    assert track.ceiling == 128
    track.expire(SECOND + round(GAVE_WAY_S * SECOND))
    assert track.ceiling == math.inf
    track.bound(128, 0, GAVE_WAY_S, rare=True)
    track.expire(round(GAVE_WAY_S * SECOND))
    assert track.ceiling == 128, "its own second failure doubles the time"
    track.expire(2 * round(GAVE_WAY_S * SECOND))
    assert track.ceiling == math.inf


def test_a_size_left_for_memory_is_known_once_its_need_is_read() -> None:
    tracks = ParameterHistories(Limits())
    (lever,) = levers((knob("micro_batch", 128),), Limits(), ())
    tracks.ceiling(lever, 128, 0, held=True)
    tracks.ceiling(lever, 192, 0)
    track = tracks.of(lever)
    assert not track.known(128)
    track.memory.saw(192, 500)
    assert track.known(128)
    assert not track.known(192), "it was not held"
    track.reopen()
    assert not track.known(128), "its speed is not known any more"


def test_what_is_tried_again_when_a_ceiling_is_lifted_was_refused_under_it() -> None:
    track = ParameterHistory(refused={64}, closed={1, -1})
    track.expire(0)
    assert track.refused == {64}
    track.bound(128, 0, LEFT_S)
    track.lift()
    assert (track.refused, track.closed, track.ceiling) == (set(), {-1}, math.inf)


@pytest.mark.parametrize(
    ("expected", "found", "once_more"),
    [
        (None, measured(0.01, 0.20), True),  # tells nothing
        (None, measured(0.01, 0.08), False),
        (0.06, measured(0.01, 0.08), True),  # as much as is expected may be there
        (0.10, measured(0.01, 0.08), False),
        (0.01, measured(-0.01, 0.08), False),  # so little is not worth another trial
        (0.06, measured(-0.10, 0.08), False),  # surely slower
        (0.06, Measured(), False),
    ],
)
def test_what_told_too_little_is_tried_once_more(
    expected: float | None, found: Measured, once_more: bool
) -> None:
    track = ParameterHistory()
    track.dropped(64, 1, expected, found)
    assert (64 in track.doubted) is once_more
    assert (64 in track.again) is once_more
    assert (64 in track.refused) is not once_more
    track.dropped(64, 1, expected, found)
    assert 64 in track.refused


@pytest.mark.parametrize(
    ("size", "used", "fits"), [(16, 470, True), (16, 476, False), (32, 237, True), (32, 238, False)]
)
def test_a_worst_case_may_be_as_much_as_a_trial_may_use(size: float, used: int, fits: bool) -> None:
    track = ParameterHistory()
    track.memory.saw(8, used)
    assert track.fits(8, size, MemoryReading(used, 0, 1000), 0.92) is fits
    assert not track.fits(8, size, MemoryReading(used, 31, 1000), 0.92), "what others hold counts"


@pytest.mark.parametrize(("used", "fits"), [(349, True), (351, False)])
def test_a_farther_size_fits_by_what_is_reported_not_to_grow(used: int, fits: bool) -> None:
    track = ParameterHistory()
    track.memory.saw(4, used, 150)
    assert track.fits(4, 16, MemoryReading(used, 0, 1000), 0.92) is fits
    track.memory.clear()
    track.memory.saw(4, used)
    assert not track.fits(4, 16, MemoryReading(used, 0, 1000), 0.92), "all of it may grow"


def test_a_prediction_from_two_sizes_stays_within_the_limit() -> None:
    track = ParameterHistory()
    for size, used in ((8.0, 300), (16.0, 510)):
        track.memory.saw(size, used)
    assert not track.fits(16, 32, MemoryReading(510, 0, 1000), 0.92)
    assert track.fits(16, 32, MemoryReading(510, 0, 1020), 0.92)


def test_a_farther_value_in_place_of_an_unclear_one_is_the_last() -> None:
    track = ParameterHistory()
    track.dropped(64, 1, None, measured(0.01, 0.20))
    assert track.closed == set()
    track.dropped(128, 1, 0.0, measured(0.03, 0.20))
    assert (track.doubted, track.closed) == ({64}, {1})
    assert 128 in track.refused


def test_after_a_larger_size_was_slower_the_best_may_lie_between() -> None:
    track = ParameterHistory()
    track.dropped(64, 1, None, measured(-0.1, 0.05))
    assert (track.stride, track.slower, track.closed) == (1, True, set())
    track.dropped(48, 1, None, measured(-0.1, 0.05))
    assert track.closed == {1}


def test_after_a_larger_size_was_far_slower_none_between_is_tried() -> None:
    track = ParameterHistory()
    track.dropped(64, 1, None, measured(-0.4, 0.05))
    assert (track.slower, track.closed) == (True, {1})


LONG = round(SWAYS_S * SECOND)


def refused_at(rate: float) -> ParameterHistory:
    track = ParameterHistory()
    track.dropped(2, 1, None, measured(0.0, 0.01, rate))
    return track


@pytest.mark.parametrize("level", [840.0, 1160.0])
def test_what_was_refused_at_another_speed_is_outdated_once_that_has_lasted(level: float) -> None:
    track = refused_at(1000.0)
    assert not track.sways(level, SECOND)
    assert not track.sways(level, LONG)
    assert not track.outdated
    assert track.sways(level, LONG + SECOND)
    assert track.outdated


def test_a_speed_that_comes_back_outdates_nothing() -> None:
    track = refused_at(1000.0)
    assert not track.sways(800.0, 0)
    assert not track.sways(900.0, LONG // 2)
    assert not track.sways(800.0, LONG)
    assert not track.outdated


def test_a_speed_that_sways_for_ever_is_not_followed_for_ever() -> None:
    track = refused_at(1000.0)
    for _ in range(BELIEVED):
        track.sways(500.0, 0)
        assert track.sways(500.0, LONG)
        track.once_more()
        track.dropped(2, 1, None, measured(0.0, 0.01, 1000.0))
    track.sways(500.0, 0)
    assert not track.sways(500.0, LONG)
    track.reopen()
    track.dropped(2, 1, None, measured(0.0, 0.01, 1000.0))
    track.sways(500.0, 0)
    assert track.sways(500.0, LONG), "the run is another one"


def test_before_anything_was_refused_no_speed_outdates_anything() -> None:
    track = ParameterHistory()
    assert not track.sways(500.0, 0)
    assert not track.sways(5.0, LONG)
