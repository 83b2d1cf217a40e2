"""The tuner on runs whose every answer is scripted: what it tries, keeps, takes back and leaves alone."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest

from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.facts import fact
from hoptui.domain.knobs import KnobValue
from hoptui.domain.tuning import Change, Limits, Trial, TunerState
from hoptui.protocol.messages import CommandRecord, Stage
from hoptui.tuner.search.parameter_history import CEILING_S, SHAPES
from hoptui.tuner.search.space import OFF_S, STANDSTILL_S
from hoptui.tuner.trial import FIRST_GUESSES
from tests.tuner.simulated_run import (
    GIB,
    SECOND,
    Course,
    Values,
    codes,
    diagnosed,
    knob,
    launch_bound,
    level,
    pair,
    results,
    within,
)


def test_it_climbs_as_far_as_memory_lets_it_and_keeps_the_product() -> None:
    course = Course()
    course.until(lambda: course.tuner.found() is not None)
    assert course.values == {"micro_batch": 256, "grad_accum": 2}
    assert set(results(course)) == {"kept"}
    assert all(math.prod(int(c.value) for c in p.changes) == 512 for p in course.proposals)
    first = course.tuner.state.tried[0]
    assert first.measured is not None
    assert first.measured.gain == pytest.approx(444.4 / 285.7 - 1, abs=0.01)
    found = course.tuner.found()
    assert found is not None
    assert found.values == course.values
    reason = within(course.tuner.state.facts[0])
    assert (reason.code, reason.fields["knob"], reason.fields["value"]) == (
        "memory.limit",
        "micro_batch",
        512,
    )


def test_a_run_with_nothing_to_gain_is_tried_once_and_left_alone() -> None:
    course = Course(rate=level)
    course.look(3600, every=3)
    assert results(course) == ["reverted"]
    assert len(course.proposals) == 2
    assert course.values == {"micro_batch": 8, "grad_accum": 64}
    assert 0 < course.tuner.state.spent <= 0.02


def test_nan_is_no_iteration() -> None:
    course = Course(rate=lambda values: launch_bound(values) if course.step % 4 == 0 else math.nan)
    course.look(50)  # 100 iterations, of which 25 say something
    assert course.proposals == []
    course.rest()
    assert course.values["micro_batch"] == 256


def test_a_pause_decides_nothing_and_costs_nothing() -> None:
    course = Course(rate=level)
    course.facts = {"alloc_retries": 0.0}
    course.into_trial()
    before = course.tuner.state.trial
    course.facts = {"state": "paused", "alloc_retries": 9.0}  # which would end it at once
    course.look(500)
    assert course.tuner.state.trial == before
    course.facts = {"alloc_retries": 0.0}
    course.rest()
    assert results(course) == ["reverted"]
    assert course.tuner.state.tried[0].seconds < 120


def test_a_restart_leaves_a_trial_unfinished_and_its_values_behind() -> None:
    course = Course()
    course.into_trial()
    course.epoch, course.points = 2, []
    course.look(5)
    assert results(course) == ["unfinished"]
    assert course.values == {"micro_batch": 8, "grad_accum": 64}
    course.rest()
    assert course.values["micro_batch"] == 256


def test_what_the_run_refuses_is_a_ceiling_for_a_time_that_doubles() -> None:
    def refuse(record: CommandRecord) -> tuple[Stage, str] | None:
        large = record.knob == "micro_batch" and isinstance(record.wanted, int) and record.wanted >= 16
        return ("failed", "setter_raised") if large else None

    course = Course(fate=refuse, limits=Limits(budget=0.5))
    course.look(int(3.3 * CEILING_S), every=3)
    tried = [trial.t / SECOND for trial in course.tuner.state.tried if trial.changes[0].value == 16]
    assert course.values == {"micro_batch": 8, "grad_accum": 64}
    assert results(course).count("failed") == len(tried) == 3
    first, second = tried[1] - tried[0], tried[2] - tried[1]
    assert first == pytest.approx(CEILING_S, rel=0.1)
    assert second == pytest.approx(2 * CEILING_S, rel=0.1)


def test_running_out_of_memory_in_a_trial_fails_it_until_others_give_memory_back() -> None:
    course = Course(used=lambda values: 20 * GIB)
    course.others = 20
    course.into_trial()
    course.run_out("micro_batch", 4)
    course.set("grad_accum", 128)
    course.look(400)
    assert results(course)[0] == "failed"
    assert course.tuner.state.tried[0].why[-1] == fact("reverted", reason="out of memory")
    assert course.values["micro_batch"] == 8
    assert all(trial.changes[0].value == 4 for trial in course.tuner.state.tried[1:])
    course.others = 0
    course.rest()
    assert course.values["micro_batch"] == 512


def test_an_allocator_that_has_to_try_again_ends_a_trial() -> None:
    course = Course()
    course.facts = {"alloc_retries": 3.0}
    course.into_trial()
    course.facts = {"alloc_retries": 4.0}
    course.look(10)
    assert results(course) == ["reverted"]
    assert course.values["micro_batch"] == 8


def test_nothing_is_made_larger_while_memory_is_unknown() -> None:
    course = Course(used=None)
    course.look(300)
    assert course.proposals == []
    assert course.tuner.state.facts == (fact("tuner.nothing_tried", why=fact("memory.unknown")),)


def test_what_would_not_fit_is_not_tried() -> None:
    course = Course(used=lambda values: round((10 + 0.5 * float(values["micro_batch"])) * GIB))
    course.others = 40
    course.rest()
    used = course.observation().memory
    assert used is not None
    assert used.used + used.others <= 0.92 * used.total
    assert course.values["micro_batch"] == 32


def test_a_value_that_reads_back_otherwise_is_taken_as_read() -> None:
    course = Course(knob("micro_batch", 8))
    course.reads = lambda value: value if value != 16 else 14
    course.until(lambda: results(course) == ["kept"])
    assert course.tuner.incumbent.values == {"micro_batch": 14}


def test_a_value_that_does_not_take_is_not_measured() -> None:
    course = Course(knob("micro_batch", 8), rate=level)
    course.reads = lambda value: 8
    course.rest()
    assert set(results(course)) == {"failed"}
    assert course.tuner.state.tried[0].why[-1] == fact("trial.ignored")


def test_a_word_that_means_the_value_in_effect_is_no_change() -> None:
    course = Course(
        knob("compile", "default", choices=("default", "auto"), cost="free"), rate=level, used=lambda _: GIB
    )
    course.reads = lambda value: "default" if value == "auto" else value
    course.rest()
    (trial,) = course.tuner.state.tried
    assert (trial.result, trial.why[-1]) == ("reverted", fact("trial.no_change"))


def test_learning_and_restart_are_left_alone_unless_allowed() -> None:
    knobs = (
        knob("minibatch_size", 512, effect="learning"),
        knob("hidden", 64, cost="restart"),
        knob("lr_steps", 8, effect="learning", cost="free"),
    )
    course = Course(*knobs, rate=level, used=lambda _: GIB)
    course.look(300)
    assert course.proposals == []
    allowed = Course(*knobs, rate=level, used=lambda _: GIB, limits=Limits(learning=("*",)))
    allowed.look(600)
    assert {c.knob for p in allowed.proposals for c in p.changes} == {"minibatch_size"}


def test_the_diagnosis_gives_the_order_and_never_a_larger_batch_to_a_run_that_waits_for_data() -> None:
    def rate(values: Values) -> float:
        return min(100.0 * float(values["num_workers"]), 700.0)

    course = Course(*pair(), knob("num_workers", 2, cost="rebuild"), rate=rate)
    course.facts = {"diagnosis": diagnosed("data-bound", Advice(knob="num_workers", direction="up"))}
    course.rest()
    assert {c.knob for p in course.proposals for c in p.changes} == {"num_workers"}
    assert course.values["num_workers"] == 8
    found = diagnosed("data-bound").facts
    reason = fact("trial.limit", verdict="data-bound", stale=False, evidence=found)
    assert course.tuner.state.tried[0].why[0] == reason


def test_a_choice_is_tried_where_it_is_advised_and_its_standstill_can_be_paid() -> None:
    def rate(values: Values) -> float:
        return 600.0 if values["compile"] == "default" else 400.0

    choices: tuple[KnobValue, ...] = ("auto", "off", "default")
    course = Course(knob("compile", "off", cost="rebuild", choices=choices), rate=rate, used=lambda _: GIB)
    guess = Trial(changes=(Change(knob="fused", before="off", value="on"),), result="reverted")
    course.tuner.charge(TunerState(stand="off", tried=(guess,) * FIRST_GUESSES))
    course.look(200)
    assert course.proposals == []
    slow = Course(*course.knobs.values(), rate=rate, used=lambda _: GIB, limits=Limits(budget=0.01))
    for tried in (course, slow):
        tried.facts = {
            "diagnosis": diagnosed("launch-bound", Advice(knob="compile", direction="to", value="default"))
        }
    course.look(600, every=3)
    assert (results(course)[0], course.values["compile"]) == ("kept", "default"), (
        "45 s, where an hour allows 144"
    )
    slow.look(3600, every=3)
    assert slow.proposals == [], "an hour allows 36 s"
    slow.look(1200, every=3)
    assert results(slow)[0] == "kept"
    assert slow.tuner.state.tried[0].t / SECOND >= (STANDSTILL_S["rebuild"] + OFF_S) / 0.01


def test_what_was_best_beside_another_value_is_tried_once_more_beside_the_new_one() -> None:
    def rate(values: Values) -> float:
        micro = float(values["micro_batch"])
        return micro / (0.1 + (0.02 if values["compile"] == "off" else 0.002) * micro)

    choices: tuple[KnobValue, ...] = ("off", "default")
    course = Course(
        *pair(8, 128),
        knob("compile", "off", cost="rebuild", choices=choices),
        rate=rate,
        used=lambda _: GIB,
        limits=Limits(budget=1.0),
    )
    changed = 0

    def diagnosis() -> Diagnosis:
        """What is told of a change three looks later, as it is in a daemon."""
        nonlocal changed
        if course.proposals and course.tuner.state.stand == "trial":
            changed = course.seconds
        eager = course.values["compile"] == "off" and float(course.values["micro_batch"]) >= 128
        advice = (Advice(knob="compile", direction="to", value="default"),) if eager else ()
        if course.seconds < changed + 3:
            return Diagnosis(verdict="healthy", confidence=0.9, stale=True)
        return diagnosed("healthy", *advice)

    held = []
    for _ in range(600):
        course.facts = {"diagnosis": diagnosis()}
        course.look()
        held.append(course.tuner.state.stand == "holding")
    assert course.values["compile"] == "default"
    assert course.values["micro_batch"] == 1024, "128 while it computed eagerly"
    assert held == sorted(held), "it holds only once nothing is left to try"


def test_a_size_that_another_knob_stands_in_the_way_of_is_tried_again_once_that_is_gone() -> None:
    def rate(values: Values) -> float:
        return float(values["minibatch_size"]) + float(values["num_envs"])

    learned: dict[str, Any] = {"effect": "learning", "most": 4096}
    course = Course(
        knob("minibatch_size", 256, **learned),
        knob("num_envs", 16, **learned),
        rate=rate,
        used=lambda _: GIB,
        limits=Limits(learning=("*",), budget=1.0),
    )
    set_ = course.set

    def cut(name: str, value: KnobValue) -> int:
        """A minibatch is no larger than a rollout of sixteen steps."""
        most = 16 * int(course.values["num_envs"])
        return set_(name, min(int(value), most) if name == "minibatch_size" else value)

    course.set = cut  # type: ignore[method-assign]
    course.look(1200)
    assert course.values["minibatch_size"] == 4096


def test_dry_says_what_it_would_try_and_tries_nothing() -> None:
    course = Course(limits=Limits(dry=True))
    course.look(200)
    assert course.proposals == []
    assert [(c.knob, c.value) for c in course.tuner.state.next] == [("micro_batch", 16), ("grad_accum", 32)]
    (would,) = course.tuner.state.facts
    assert would.code == "tuner.would_set"
    assert would.fields["changes"] == [msgspec.to_builtins(one) for one in course.tuner.state.next]


def test_it_does_not_say_what_a_size_takes_before_it_has_seen_one() -> None:
    for limits in (Limits(), Limits(dry=True)):
        course = Course(limits=limits)
        course.tuner.look(course.observation())  # before the first iteration
        assert (course.tuner.state.stand, course.tuner.state.next) == ("baseline", ())
        assert course.tuner.state.facts == (fact("tuner.measures_baseline", iterations=30),)
        course.look(3)
        assert [c.value for c in course.tuner.state.next] == [16, 32]


def test_a_run_that_stands_still_is_waited_for() -> None:
    course = Course()
    course.facts = {"state": "paused"}
    course.look(5)
    assert course.tuner.state.stand == "waiting"
    assert course.tuner.state.facts == (fact("wait.run_state", state="paused"),)


def test_dry_says_what_is_in_the_way() -> None:
    course = Course(limits=Limits(dry=True, objective="energy"))
    course.facts = {"power_w": None}
    course.look(20)
    assert course.tuner.state.facts[-1] == fact("tuner.not_now", why=fact("wait.total_power_unknown"))
    course.facts = {}
    course.look()
    assert codes(course.tuner.state.facts) == ["tuner.would_set"]


def test_a_proposal_that_was_not_sent_was_never_made() -> None:
    course = Course()
    for _ in range(60):
        course.look(0)
        course.seconds += 1
        course.points.append((course.seconds, launch_bound(course.values)))
        proposal = course.tuner.look(course.observation())
    assert proposal is not None or course.tuner.state.stand != "trial"
    assert course.tuner.state.tried == ()


def test_a_trial_at_half_the_speed_ends_before_its_first_look() -> None:
    course = Course(rate=lambda values: 400.0 if int(values["micro_batch"]) <= 8 else 100.0)
    course.until(lambda: results(course) == ["reverted"])
    assert course.tuner.state.tried[0].iterations < 15
    assert course.tuner.state.tried[0].why[-1] == fact("trial.harmful")


def test_what_told_too_little_is_tried_once_more_and_then_left() -> None:
    chance = random.Random(2)
    rich = Limits(budget=0.2)
    course = Course(
        knob("micro_batch", 8, most=16), rate=lambda _: 500 * math.exp(0.4 * chance.gauss(0, 1)), limits=rich
    )
    course.until(lambda: course.tuner.state.stand == "holding", 900)
    tried = [c.value for t in course.tuner.state.tried for c in t.changes]
    assert max(map(tried.count, tried)) == 2


def test_what_told_too_little_is_tried_again_only_after_all_else() -> None:
    chance = random.Random(2)
    course = Course(
        knob("micro_batch", 8), knob("chunk", 8, cost="free"), limits=Limits(budget=0.5),
        rate=lambda _: 500 * math.exp(0.4 * chance.gauss(0, 1)),
    )  # fmt: skip
    course.until(lambda: len(course.tuner.state.tried) >= 3, 900)
    names = [trial.changes[0].knob for trial in course.tuner.state.tried]
    assert set(names[:2]) == {"micro_batch", "chunk"}


def test_a_process_is_shown_few_sizes() -> None:
    course = Course(
        knob("micro_batch", 1, most=1 << 16), rate=lambda v: float(v["micro_batch"]), used=lambda _: GIB
    )
    course.rest()
    assert course.values["micro_batch"] == 1 << (SHAPES - 1)
    course.epoch = 2
    course.until(lambda: course.tuner.state.trial is not None)
    assert course.proposals[-1].changes[0].value == 1 << SHAPES


def test_what_is_too_large_is_made_smaller_as_long_as_that_helps() -> None:
    rates = {8: 300.0, 16: 400.0, 32: 550.0, 64: 500.0, 128: 400.0}
    course = Course(
        *pair(128, 4), rate=lambda values: rates[int(values["micro_batch"])], used=lambda _: 60 * GIB
    )
    course.rest()
    assert course.values == {"micro_batch": 32, "grad_accum": 16}
    assert results(course) == ["kept", "kept", "reverted"]


@pytest.mark.parametrize("verdict", ["launch-bound", "memory-unused", "power-limited"])
def test_nothing_is_made_smaller_where_more_at_once_is_what_helps(verdict: str) -> None:
    course = Course(*pair(128, 1), rate=level, used=lambda _: GIB)
    course.facts["diagnosis"] = diagnosed(verdict)
    course.rest()
    assert results(course) == []
    course.facts["diagnosis"] = diagnosed("compute-bound")
    course.look(60)
    assert results(course) == []  # no batch is turned against that
    course.facts["diagnosis"] = diagnosed("memory-bandwidth-bound")
    course.look(60)
    assert [change.value for trial in course.tuner.state.tried for change in trial.changes][:2] == [64, 2]
