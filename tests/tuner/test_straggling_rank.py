"""A rank that the others wait for: tuning waits, and says for which."""

from __future__ import annotations

import pytest

from hoptui.domain.facts import fact
from hoptui.domain.tuning import Limits
from hoptui.presentation import sentences
from hoptui.tuner.effect import WARM_UP
from tests.tuner.simulated_run import Course, codes, level, results

STRAGGLER = fact(
    "run.straggler", rank=3, world=8, waits=0.02, others_wait=0.31, where=None, share=0.0, others_share=0.0,
    unsampled=[], elsewhere=0,
)  # fmt: skip


def test_tuning_waits_while_a_rank_is_slow() -> None:
    course = Course()
    course.facts["straggler"] = STRAGGLER
    course.look(120)
    assert course.proposals == []
    state = course.tuner.state
    assert (state.stand, codes(state.facts)) == ("waiting", ["wait.straggler"])
    assert state.facts[0].fields["slower"] == pytest.approx(0.98 / 0.69 - 1)
    assert sentences.standing(state) == (
        "rank 3 is about 42 % slower: the others wait for rank 3 of 8: it waits 2.0 %, they 31 %; "
        "tuning waits"
    )


def test_tuning_goes_on_with_a_new_baseline_once_the_ranks_are_even() -> None:
    course = Course(rate=lambda _: 300.0 if course.facts.get("straggler") else 500.0)
    course.facts["straggler"] = STRAGGLER
    course.look(60)
    course.facts["straggler"] = None
    course.look(WARM_UP + 1)
    assert course.tuner.state.stand == "baseline"
    course.until(lambda: results(course))
    measured = course.tuner.state.tried[0].measured
    assert measured is not None
    assert measured.before == 500.0, "not that of the slow rank"


def test_a_trial_in_which_a_rank_becomes_slow_is_tried_again() -> None:
    course = Course(rate=level)
    tried = course.into_trial()
    course.facts["straggler"] = STRAGGLER
    course.until(lambda: results(course))
    assert results(course) == ["interrupted"]
    assert codes(course.tuner.state.tried[0].why)[-1] == "trial.straggler"
    course.look(60)
    assert results(course) == ["interrupted"]
    course.facts["straggler"] = None
    assert course.into_trial() == tried


def test_a_dry_run_says_what_it_would_try_beside_a_slow_rank() -> None:
    course = Course(limits=Limits(dry=True))
    course.facts["straggler"] = STRAGGLER
    course.look(60)
    assert course.tuner.state.next
