"""What the tuner never does, whatever the run does."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hoptui.domain.knobs import check_value
from hoptui.domain.tuning import Limits
from hoptui.protocol.messages import CommandRecord, Stage
from hoptui.tuner.search.space import NEAR, levers
from tests.tuner.simulated_run import GIB, Course, Values, knob, pair

SHARE = 0.85
FATES: tuple[tuple[Stage, str] | None, ...] = (
    None, None, None, None, ("failed", "setter_raised"), ("rejected", "out_of_range"), ("expired", ""),
    ("rejected", "stale_epoch"), ("rejected", "held_by_person"), ("superseded", ""), ("voided", ""),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    micro=st.sampled_from([1, 4, 8, 24, 32]),
    accum=st.integers(1, 96),
    base=st.floats(5, 50),
    each=st.floats(0, 2),
    allowed=st.sampled_from([(), ("*",), ("num_envs",)]),
)
def test_the_rules_hold(
    seed: int, micro: int, accum: int, base: float, each: float, allowed: tuple[str, ...]
) -> None:
    chance = random.Random(seed)
    best = chance.choice([4, 16, 64, 1000])

    def rate(values: Values) -> float:
        if chance.random() < 0.05:
            return math.nan
        size = float(values["micro_batch"])
        return min(size, best * best / size) * (1 + 0.05 * chance.gauss(0, 1))

    def used(values: Values) -> int:
        return round((base + each * float(values["micro_batch"])) * GIB)

    def fate(record: CommandRecord) -> tuple[Stage, str] | None:
        return chance.choice(FATES) if record.origin.kind == "tuner" else None

    knobs = (*pair(micro, accum), knob("num_envs", 64, effect="learning"), knob("layers", 4, cost="restart"))
    course = Course(*knobs, rate=rate, used=used, fate=fate, limits=Limits(memory=SHARE, learning=allowed))
    free = {"micro_batch", "grad_accum", *(["num_envs"] if allowed else [])}
    for _ in range(300):
        match chance.random():
            case x if x < 0.01:
                name = chance.choice(sorted(course.knobs))
                course.person(name, chance.randint(1, 64))
            case x if x < 0.02:
                course.others = chance.randint(0, 30)
            case x if x < 0.03:
                course.facts = chance.choice(
                    [{}, {"state": "paused"}, {"state": "unresponsive"}, {"power_w": None}]
                )
            case x if x < 0.035:
                course.epoch, course.points = course.epoch + 1, []
            case x if x < 0.04:
                course.tuner.overrides.freeze([chance.choice(sorted(course.knobs))])
        frozen = set(course.tuner.state.frozen)
        theirs = {r.knob for r in course.records if r.origin.kind == "person" and r.stage == "applied"}
        before, running = course.values, course.tuner.state.trial is not None
        proposal = course.look()
        if proposal is None:
            continue
        told = course.tuner.state
        for change in proposal.changes:
            assert change.knob in free
            assert change.knob not in theirs
            check_value(course.knobs[change.knob].spec, change.value)
        if told.trial is None or running:
            continue  # on the way back
        assert not frozen & {c.knob for c in proposal.changes}
        after = before | {c.knob: c.value for c in proposal.changes}
        assert math.prod(int(after[n]) for n in ("micro_batch", "grad_accum")) == math.prod(
            int(before[n]) for n in ("micro_batch", "grad_accum")
        )
        lead = proposal.changes[0]
        if float(lead.value) > float(lead.before):
            assert used(after) + course.others * GIB <= SHARE * 80 * GIB * 1.001
            tried = [float(c.value) for each in told.tried for c in each.changes if c.knob == lead.knob]
            held = [size for size in tried if float(lead.before) < size <= 2.001 * float(lead.before)]
            assert float(lead.value) <= 2.001 * max((float(lead.before), *held)), "its memory is not known"


@given(value=st.integers(1, 1 << 16), scale=st.sampled_from(["log", "linear", "pow2"]))
def test_rungs_are_few_valid_and_have_the_value_in_effect_among_them(value: int, scale: Any) -> None:
    value = 1 << (value.bit_length() - 1) if scale == "pow2" else value
    (lever,) = levers([knob("minibatch", value, most=1 << 16, scale=scale)], Limits(), ())
    rungs = lever.rungs()
    assert value in rungs
    assert len(rungs) <= 34
    for low, high in pairwise(rungs):
        assert NEAR * float(low) < float(high) <= 3 * float(low)
    for rung in rungs:
        check_value(lever.knob.spec, rung)


@given(micro=st.integers(1, 512), accum=st.integers(1, 512))
def test_rungs_of_a_pair_divide_the_product(micro: int, accum: int) -> None:
    (lever,) = levers(pair(micro, accum), Limits(), ())
    assert lever.names == ("micro_batch", "grad_accum")
    for rung in lever.rungs():
        assert math.prod(int(c.value) for c in lever.changes(rung)) == micro * accum


def test_nothing_is_kept_without_a_detectable_gain_that_does_not_say_so() -> None:
    kept = []
    for seed in range(8):
        chance = random.Random(seed)

        def rate(values: Values, chance: random.Random = chance) -> float:
            return (1150.0 if float(values["micro_batch"]) > 8 else 1000.0) * math.exp(chance.gauss(0, 0.25))

        course = Course(knob("micro_batch", 8), rate=rate)
        course.until(lambda course=course: course.tuner.state.tried)  # type: ignore[misc]
        (trial,) = course.tuner.state.tried
        if trial.result == "kept" and trial.measured is not None and not trial.measured.detectable:
            kept.append(trial.why[-1])
    assert kept
    assert {one.code for one in kept} == {"trial.likely"}
    assert all(one.fields["effect"]["fields"]["gain"] > 0 for one in kept)
