"""Keep or take back; and what a search may cost."""

from __future__ import annotations

import math
import random

import pytest

from hoptui.domain.facts import fact
from hoptui.domain.tuning import YOUNG_S, Limits, Measured, Trial
from hoptui.tuner.effect import BLOCK, LOOKS, WARM_UP, measure, plan_for
from hoptui.tuner.search.space import Candidate, levers
from hoptui.tuner.trial import (
    ALLOWANCE,
    ALLOWANCE_AGAIN,
    CAUTIOUS,
    FIRST_GUESSES,
    Budget,
    ChangeSet,
    RunningTrial,
    decide,
    doubt,
    figure,
    harmful,
    length,
)
from tests.tuner.simulated_run import Course, knob

SECOND = 1_000_000_000
TRIAL = plan_for(["micro_batch"], trial=True)


def values(gain: float, n: int, seed: int = 1, noise: float = 0.03) -> list[float]:
    chance = random.Random(seed)
    return [1000 * (1 + gain) * math.exp(noise * chance.gauss(0, 1)) for _ in range(n)]


def found(gain: float, interval: float, *, settled: bool = True) -> Measured:
    return Measured(gain=gain, interval=interval, settled=settled)


@pytest.mark.parametrize(
    ("measured", "larger", "smaller"),
    [
        (found(0.10, 0.03), "keep", "keep"),
        (found(-0.10, 0.03), "drop", "drop"),
        (found(0.03, 0.03), "drop", "keep"),
        (found(-0.01, 0.04), "drop", "drop"),
        (found(0.03, 0.09), "drop", "drop"),
        (found(0.03, 0.03, settled=False), "more", "more"),
        (Measured(note="measuring"), "more", "more"),
    ],
)
def test_what_surely_gains_two_percent_is_kept_and_in_doubt_the_smaller(
    measured: Measured, larger: str, smaller: str
) -> None:
    assert decide(measured, smaller=False) == larger
    assert decide(measured, smaller=True) == smaller


def test_what_is_kept_without_being_sure_says_so() -> None:
    assert doubt(found(0.10, 0.03)) is None
    unsure = fact("trial.effect", gain=0.50, interval=0.80)
    assert doubt(found(0.50, 0.80)) == fact("trial.likely", effect=unsure)
    unsure = fact("trial.effect", gain=0.01, interval=0.03)
    assert doubt(found(0.01, 0.03)) == fact("trial.smaller", effect=unsure)


def test_out_of_time_decides_at_once() -> None:
    assert decide(found(0.03, 0.03, settled=False), smaller=False, out_of_time=True) == "drop"
    assert decide(found(0.3, 0.03, settled=False), smaller=False, out_of_time=True) == "keep"


@pytest.mark.parametrize("gain", [0.03, -0.05, -0.3])
def test_one_block_of_iterations_keeps_nothing_that_is_not_clear_and_drops_nothing(gain: float) -> None:
    for seed in range(40):
        found = measure("throughput", values(0, 60, seed), values(gain, WARM_UP + 5, seed + 100), TRIAL)
        assert decide(found, smaller=False) == "more"


@pytest.mark.parametrize(("gain", "kept"), [(0.10, 40), (0.0, 0), (0.01, 3), (-0.05, 0)])
def test_trials_of_known_gain_end_as_they_should(gain: float, kept: int) -> None:
    ends = []
    for seed in range(40):
        before, after = values(0, 60, seed), values(gain, 90 + WARM_UP, seed + 100)
        ends.append(decide(measure("throughput", before, after, TRIAL), smaller=False))
    assert ends.count("more") == 0
    assert abs(ends.count("keep") - kept) <= 3


def test_a_clear_gain_needs_few_iterations_and_a_doubtful_one_more() -> None:
    clear = measure("throughput", values(0, 60), values(0.5, WARM_UP + 5, 2), TRIAL)
    fair = measure("throughput", values(0, 60), values(0.08, 100, 2), TRIAL)
    doubtful = measure("throughput", values(0, 60), values(0.02, 100, 3), TRIAL)
    assert (clear.iterations, clear.settled, decide(clear, smaller=False)) == (5, True, "keep")
    assert (fair.iterations, fair.settled) == (15, True)
    assert doubtful.settled
    assert doubtful.iterations >= 60


def test_what_reads_data_is_measured_longer_where_that_is_not_sure_yet() -> None:
    def measured(gain: float, iterations: int) -> Measured:
        after = values(gain, WARM_UP + iterations, 2)
        return measure("throughput", values(0, 90), after, plan_for(["num_workers"], trial=True))

    assert [measured(0.5, n).settled for n in (30, 90)] == [False, True]
    assert [measured(0.02, n).settled for n in (90, 179, 180)] == [False, False, True]


def test_half_the_speed_is_seen_at_once_and_nan_tells_nothing() -> None:
    before = values(0, 60)
    assert harmful(before, [1000.0] * WARM_UP + [300.0] * 5)
    assert not harmful(before, [1000.0] * WARM_UP + [300.0] * 4)
    assert not harmful(before, [1000.0] * WARM_UP + [math.nan] * 9)
    assert not harmful(before, [1000.0] * WARM_UP + [900.0] * 9)


def test_the_figure_of_a_trial() -> None:
    assert figure(found(0.061, 0.012)) == fact("trial.effect", gain=0.061, interval=0.012)
    assert figure(Measured()) == fact("trial.too_few")


def test_a_young_run_may_spend_what_an_hour_allows_and_an_old_one_its_share() -> None:
    budget = Budget(0.02, 0)
    assert budget.left == pytest.approx(0.02 * YOUNG_S)
    budget.tick(7200 * SECOND, training=True, trying=False)
    assert budget.left == pytest.approx(144)
    budget.tick(7300 * SECOND, training=True, trying=True)
    assert budget.left == pytest.approx(0.02 * 7300 - 100)
    assert budget.share_spent == pytest.approx(100 / 7300)


def test_time_in_which_the_run_does_not_train_is_none() -> None:
    budget = Budget(0.02, 0)
    budget.tick(1000 * SECOND, training=False, trying=True)
    assert (budget.lived, budget.spent) == (0.0, 0.0)


def test_slow_iterations_may_be_tried_once_and_a_long_standstill_has_to_be_paid() -> None:
    budget = Budget(0.02, 0)
    assert budget.affords(standstill=10, iterations=1000)
    assert not budget.affords(standstill=100, iterations=0)
    budget.fruitless = True
    assert not budget.affords(standstill=10, iterations=1000, advised=True)
    assert budget.affords(standstill=10, iterations=50, advised=True)


def test_guesses_have_a_part_of_the_budget_until_one_was_kept() -> None:
    budget = Budget(0.04, 0)
    guesses = CAUTIOUS * 0.04 * YOUNG_S
    assert budget.left_for(advised=False) == budget.left  # the first guesses
    assert budget.left_for(advised=False, again=True) == pytest.approx(guesses)
    budget.take_over(0, 0, fruitless=False, fruitful=False, guesses=FIRST_GUESSES)
    assert budget.left_for(advised=False) == pytest.approx(guesses)
    assert budget.left_for(advised=True) == budget.left == pytest.approx(144)
    assert budget.affords(standstill=guesses + 1, iterations=0, advised=True)
    assert not budget.affords(standstill=guesses + 1, iterations=0)
    budget.fruitful = True
    assert budget.affords(standstill=guesses + 1, iterations=0)


def test_a_trial_of_slow_iterations_has_a_part_of_the_budget_that_is_left() -> None:
    budget = Budget(0.04, 0)
    for advised, left in ((True, 144), (False, 144)):
        budget.fruitful = not advised
        assert budget.allowance_s(again=False, advised=advised) == pytest.approx(ALLOWANCE * left)
        assert budget.allowance_s(again=True, advised=advised) == pytest.approx(ALLOWANCE_AGAIN * left)
    usual, fewest = length([]), length([], most=20)
    assert (usual, fewest) == (WARM_UP + LOOKS[1], WARM_UP + LOOKS[0])


def test_a_guess_before_one_was_kept_has_half_of_what_is_left_for_guesses() -> None:
    budget = Budget(0.04, 0)
    assert budget.allowance_s(again=False, advised=False) == pytest.approx(0.5 * CAUTIOUS * 144)
    assert budget.allowance_s(again=True, advised=False) == pytest.approx(CAUTIOUS * 144)
    assert not budget.brief(advised=False), "the first guess may be the only one: it is measured well"
    budget.fruitless = True
    assert budget.brief(advised=False)
    assert not budget.brief(advised=True)
    assert length([], most=2, brief=True) == BLOCK
    budget.fruitful = True
    assert not budget.brief(advised=False)


@pytest.mark.parametrize(("seconds", "ends"), [(29, False), (31, True)])
def test_a_trial_that_has_used_its_part_is_decided_by_what_is_known(seconds: float, ends: bool) -> None:
    course = Course(knob("micro_batch", 8))
    course.look(5)
    lever = levers(tuple(course.knobs.values()), Limits(), ())[0]
    tried = Candidate(((lever, 16),), 1)
    move = ChangeSet(tried.changes, ())
    trial = RunningTrial(
        move, tried, values(0, 60), Trial(changes=tried.changes, t=0), 30.0, None, 30.0, seconds
    )
    measured = found(0.0, 0.08, settled=False)
    ending = trial.ending(course.observation(), Limits(), values(0, 30), measured, overdrawn=False)
    assert (ending is not None) == ends
    assert ending is None or not ending.kept


def test_what_was_kept_is_refunded() -> None:
    budget = Budget(0.02, 0)
    budget.tick(60 * SECOND, training=True, trying=True)
    budget.refund(55)
    assert budget.spent == pytest.approx(5)


def test_what_another_tuner_has_spent_is_spent() -> None:
    budget = Budget(0.02, 0)
    budget.take_over(7200, 0.015, fruitless=True, fruitful=False)
    assert budget.left == pytest.approx(144 - 108)
    assert budget.share_spent == pytest.approx(0.015)
    assert not budget.affords(standstill=0, iterations=40)
