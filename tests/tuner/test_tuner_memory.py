"""What the tuner does where memory gets scarce: others take it, or rare peaks of the run's own come near the
limit."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from hoptui.domain.facts import fact
from hoptui.domain.tuning import Limits
from hoptui.presentation import sentences
from hoptui.tuner.observation import MemoryReading, Observation
from hoptui.tuner.search.memory_guard import MemoryGuard
from hoptui.tuner.search.parameter_history import GAVE_WAY_S, ParameterHistories
from tests.tuner.simulated_run import GIB, SECOND, Course, Values, grown, knob, within

PEAKS = fact("memory.peaks_near_limit")


def course_with_rare_peaks() -> Course:
    """A run whose memory has peaks with heavy tails, larger ones after two minutes."""
    chance = random.Random(1)

    def peaks(values: Values) -> int:
        tail = abs(chance.gauss(0, 1)) / math.sqrt(chance.gammavariate(2, 0.5))
        scale = 0.01 if course.seconds < 120 else 0.05
        return round((20 + 0.3 * float(values["micro_batch"])) * (1 + scale * tail) * GIB)

    course = Course(knob("micro_batch", 8), used=peaks)
    return course


def test_room_is_made_when_others_take_the_memory_and_used_again_when_they_leave() -> None:
    course = Course()
    course.rest()
    assert course.values["micro_batch"] == 256
    course.others = 17
    course.look(20)
    assert course.values["micro_batch"] == 192 or course.values["micro_batch"] == 128
    assert course.tuner.state.tried[-1].why == (fact("memory.taken_by_others", size_bytes=17 * GIB),)
    assert course.values["micro_batch"] * course.values["grad_accum"] == 512  # type: ignore[operator]
    course.others = 0
    course.until(lambda: course.values["micro_batch"] == 256)


def test_a_size_that_rare_peaks_come_near_the_limit_with_is_left_before_memory_runs_out() -> None:
    course = course_with_rare_peaks()
    course.until(lambda: any(PEAKS in p.why for p in course.proposals))
    (change,) = course.proposals[-1].changes
    assert isinstance(change.before, int)
    assert isinstance(change.value, int)
    assert 0.6 * change.before < change.value < change.before
    course.look(100)
    assert course.values["micro_batch"] == change.value
    assert course.tuner.state.tried[-1].result == "kept"


def late(course: Course, used: float, others: int, looks: int) -> None:
    """For so many looks memory is read that is nobody's: all of it before, what others hold now (GiB)."""
    course.facts = {"memories": (MemoryReading(round(used * GIB), others * GIB, 80 * GIB),)}
    course.look(looks)
    course.facts, course.others = {}, others


def test_what_others_have_given_back_is_not_taken_for_a_peak_of_the_run() -> None:
    course = Course(knob("micro_batch", 8))
    course.others = 30
    course.rest()
    before = course.values["micro_batch"]
    late(course, grown(course.values) / GIB + 30, 0, looks=3)
    course.until(lambda: course.values["micro_batch"] == 256)
    assert before != 256
    assert not any(PEAKS in p.why for p in course.proposals)


def test_what_others_take_is_not_taken_for_a_peak_of_the_run_before_it_is_told() -> None:
    course = Course(knob("micro_batch", 8, most=64))
    course.rest()
    late(course, grown(course.values) / GIB + 40, 0, looks=1)
    course.others = 40
    course.look(60)
    assert course.values["micro_batch"] == 64


def test_memory_that_ran_out_as_others_gave_theirs_back_is_no_ceiling() -> None:
    course = Course(knob("micro_batch", 8))
    course.others = 30
    course.rest()
    held = course.values["micro_batch"]
    assert isinstance(held, int)
    course.others = 0
    course.set("micro_batch", held // 2)  # the run gave way
    course.look(200)
    assert course.values["micro_batch"] == 256


def test_below_what_was_too_much_it_goes_on_by_halves() -> None:
    course = Course(
        knob("micro_batch", 32),
        rate=lambda v: float(v["micro_batch"]),
        used=lambda v: round((14 + 0.45 * float(v["micro_batch"])) * GIB),
    )
    course.until(lambda: course.values["micro_batch"] == 128)
    course.look(2)
    course.facts = {"memories": (MemoryReading(78 * GIB, 0, 80 * GIB),)}
    course.look(1)
    course.facts = {}
    course.rest()
    end = course.tuner.state.tried[1].why[-1]
    assert (end.code, end.fields["share"]) == ("trial.memory", pytest.approx(78 / 80))
    assert [c.value for p in course.proposals for c in p.changes] == [64, 128, 64, 96, 112, 120]
    assert course.values["micro_batch"] == 120


@pytest.mark.parametrize("known", [True, False])
def test_nothing_is_made_larger_while_memory_is_unknown(known: bool) -> None:
    course = Course(knob("micro_batch", 8))
    course.facts = {"memories": (MemoryReading(0, 0, 80 * GIB),) if known else ()}
    course.look(100)
    assert course.proposals == []
    reason = within(course.tuner.state.facts[0])
    assert reason == fact("memory.unknown")


def test_what_takes_no_memory_of_the_gpu_is_tried_while_memory_is_unknown() -> None:
    workers = knob("num_workers", 2, cost="rebuild", most=16)
    course = Course(workers, knob("micro_batch", 8), used=None, rate=lambda v: 100.0 * int(v["num_workers"]))
    course.rest()
    assert course.values == {"num_workers": 16, "micro_batch": 8}
    assert course.tuner.state.facts == (fact("tuner.nothing_tried", why=fact("memory.unknown")),)
    assert "memory use of the run is unknown" in sentences.standing(course.tuner.state)


def two_gpus(course: Course, on_a: int, on_b: int) -> None:
    """One of 80 GiB and one of 40, as much of the run on both, with so many GiB of others on each."""
    used = course.used(course.values) if course.used is not None else 0
    both = (MemoryReading(used, on_a * GIB, 80 * GIB, "A"), MemoryReading(used, on_b * GIB, 40 * GIB, "B"))
    course.facts = {"memories": both}


def test_a_neighbour_on_one_of_two_gpus_is_seen_when_that_becomes_the_one_without_room() -> None:
    course = Course(knob("micro_batch", 16), used=lambda v: round((4 + 0.2 * float(v["micro_batch"])) * GIB))
    grow = iter([0] * 60 + [66] * 60)
    for on_a in grow:
        two_gpus(course, on_a, 0)
        course.look()
        if course.tuner.state.tried and course.tuner.state.tried[-1].why[0].code == "memory.taken_by_others":
            break
    assert course.tuner.state.tried[-1].why == (fact("memory.taken_by_others", size_bytes=66 * GIB),)


def test_another_gpu_that_becomes_the_one_without_room_is_no_memory_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracks, freed = ParameterHistories(Limits()), []
    monkeypatch.setattr(tracks, "freed", lambda: freed.append(True))
    room = MemoryGuard(tracks)
    a, b = MemoryReading(8 * GIB, 42 * GIB, 80 * GIB, "A"), MemoryReading(8 * GIB, 0, 40 * GIB, "B")
    for i in range(40):
        memories = (replace(a, used=(8 + i // 20) * GIB), b)
        room.watch(Observation(t=i * SECOND, epoch=1, state="live", knobs=(), memories=memories))
    assert not freed
    gone = (replace(a, others=0), b)
    room.watch(Observation(t=99 * SECOND, epoch=1, state="live", knobs=(), memories=gone))
    assert freed


def test_nothing_is_made_larger_while_another_gpu_is_over_the_limit() -> None:
    course = Course(knob("micro_batch", 8), limits=Limits(memory=0.9))
    for _ in range(100):
        both = (MemoryReading(10 * GIB, 0, 80 * GIB, "A"), MemoryReading(GIB, 72 * GIB, 80 * GIB, "B"))
        course.facts = {"memories": both}
        course.look()
    assert all(change.value <= 8 for proposal in course.proposals for change in proposal.changes)  # type: ignore[operator]
    reason = fact("memory.taken", share=73 / 80, limit=0.9)
    assert within(course.tuner.state.facts[0]) == reason


def test_who_gives_memory_back_and_takes_it_again_is_not_followed_for_long() -> None:
    course = Course(knob("micro_batch", 128), rate=lambda v: float(v["micro_batch"]))
    course.rest()
    before = len(course.proposals)
    for _ in range(15):
        course.others = 20
        course.look(60)
        course.others = 0
        course.look(60)
    assert 3 <= len(course.proposals) - before <= 25
    course.look(900)
    assert course.values["micro_batch"] == 256


def test_nothing_is_made_larger_while_more_than_the_limit_is_taken() -> None:
    course = Course(knob("micro_batch", 8), limits=Limits(memory=0.5))
    course.rest()
    held = course.values["micro_batch"]
    course.others = 35
    course.look(30)
    assert course.values["micro_batch"] == held
    reason = within(course.tuner.state.facts[0])
    assert (reason.code, reason.fields["limit"]) == ("memory.taken", 0.5)
    assert reason.fields["share"] > 0.5


@pytest.mark.parametrize("limit", [0.5, 0.92])
def test_a_trial_that_takes_clearly_more_than_the_limit_is_taken_back(limit: float) -> None:
    course = Course(knob("micro_batch", 8), limits=Limits(memory=limit))
    (change,) = course.into_trial()
    course.facts = {"memories": (MemoryReading(int((limit + 0.04) * 80 * GIB), 0, 80 * GIB),)}
    course.look(3)
    assert course.values["micro_batch"] == change.before
    end = course.tuner.state.tried[-1].why[-1]
    assert (end.code, end.fields["share"]) == ("trial.memory", pytest.approx(limit + 0.04))


def test_all_ways_of_computing_are_tried_before_a_size_fills_the_memory() -> None:
    """Also the second one: the first has left the need for memory as it was."""

    def rate(values: Values) -> float:
        faster = 1.2 ** sum(values[way] == "on" for way in ("fused", "overlap"))
        return faster * float(values["rows"]) / (0.02 + 0.001 * float(values["rows"]))

    def used(values: Values) -> int:
        return round((10 + 1.4 * float(values["rows"])) * GIB)

    ways = (knob(way, "off", cost="free", choices=("off", "on")) for way in ("fused", "overlap"))
    rows = knob("rows", 4, choices=(4, 8, 16, 32))
    course = Course(rows, *ways, rate=rate, used=used)
    course.look(600)
    kept = [(c.knob, c.value) for t in course.tuner.state.tried if t.result == "kept" for c in t.changes]
    assert kept == [("rows", 8), ("rows", 16), ("fused", "on"), ("overlap", "on"), ("rows", 32)]


def neighbour_grows(course: Course, gib_each_second: int, most: int) -> None:
    """Others take so much more memory each second, until the first proposal or `most`."""
    before = len(course.proposals)
    while course.others < most and len(course.proposals) == before:
        course.others += gib_each_second
        course.look()


def test_room_is_made_a_reading_before_a_neighbour_that_goes_on_growing_fills_the_memory() -> None:
    course = Course(knob("micro_batch", 8, most=128))  # 35.6 GiB of 80
    course.rest()
    neighbour_grows(course, 4, most=44)
    assert course.others == 40, "it holds 75.6, and will hold 79.6: 76 is too full"
    assert course.tuner.state.trial is None
    course.look(5)
    assert course.tuner.state.tried[-1].why == (fact("memory.taken_by_others", size_bytes=40 * GIB),)


def test_a_neighbour_that_takes_its_memory_at_once_is_not_expected_to_take_as_much_again() -> None:
    course = Course(knob("micro_batch", 8, most=128))
    course.rest()
    before = len(course.proposals)
    course.others = 30
    course.look(60)
    assert len(course.proposals) == before


def test_readings_that_are_partly_of_the_size_before_do_not_reduce_it_again() -> None:
    course = Course(knob("micro_batch", 8, most=128))
    course.rest()
    lately = [grown(course.values)] * 3

    def most_of_three_looks(values: Values) -> int:
        lately[:] = [*lately[1:], grown(values)]
        return max(lately)

    course.used = most_of_three_looks
    course.others = 46
    course.until(lambda: course.values["micro_batch"] == 64)
    course.others = 49
    course.look(30)
    reduced = [p for p in course.proposals if p.why[0].code == "memory.taken_by_others"]
    assert [c.value for p in reduced for c in p.changes] == [64]


def test_after_others_left_a_size_that_was_held_is_returned_to_in_one_step() -> None:
    course = Course(knob("micro_batch", 8, most=128))
    course.rest()
    course.others = 60
    course.until(lambda: course.values["micro_batch"] == 16)
    course.look(60)
    before = len(course.proposals)
    course.others = 0
    course.until(lambda: course.values["micro_batch"] == 128)
    assert [c.value for p in course.proposals[before:] for c in p.changes] == [128]


def test_a_size_is_not_returned_to_whose_rare_peaks_would_soon_end_it() -> None:
    course = course_with_rare_peaks()
    course.until(lambda: any(PEAKS in p.why for p in course.proposals))
    course.look(60)
    held = course.values["micro_batch"]
    course.others = 40
    course.until(lambda: float(course.values["micro_batch"]) <= 64)
    course.look(60)
    before = len(course.proposals)
    course.others = 0
    course.until(lambda: course.values["micro_batch"] == held)
    assert [c.value for p in course.proposals[before:] for c in p.changes] == [held]


def test_a_size_that_was_returned_to_and_gives_way_once_is_not_excluded_for_long() -> None:
    course = Course(knob("micro_batch", 8, most=128, scale="pow2"))
    course.rest()
    course.others = 50
    course.until(lambda: course.values["micro_batch"] != 128)
    course.look(60)
    course.others = 0
    course.until(lambda: course.values["micro_batch"] == 128)
    course.look(60)
    course.run_out("micro_batch", 64)
    course.look(int(GAVE_WAY_S) - 10)
    assert course.values["micro_batch"] != 128
    course.look(60)
    assert course.values["micro_batch"] == 128
