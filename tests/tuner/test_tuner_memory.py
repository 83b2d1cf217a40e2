"""What the tuner does where memory gets scarce: others take it, or rare peaks of the run's own come near the limit."""

from __future__ import annotations

import math
import random

from tests.tuner.course import GIB, Course, Values, knob


def test_room_is_made_when_others_take_the_memory_and_used_again_when_they_leave() -> None:
    course = Course()
    course.rest()
    assert course.values["micro_batch"] == 256
    course.others = 17
    course.look(20)
    assert course.values["micro_batch"] == 192 or course.values["micro_batch"] == 128
    assert "other processes have taken 17.0 GiB" in course.tuner.state.tried[-1].text
    assert course.values["micro_batch"] * course.values["grad_accum"] == 512  # type: ignore[operator]
    course.others = 0
    course.until(lambda: course.values["micro_batch"] == 256)


def test_a_size_that_rare_peaks_come_near_the_limit_with_is_left_before_memory_runs_out() -> None:
    chance = random.Random(1)

    def peaks(values: Values) -> int:
        tail = abs(chance.gauss(0, 1)) / math.sqrt(chance.gammavariate(2, 0.5))
        scale = 0.01 if course.seconds < 120 else 0.05
        return round((20 + 0.3 * float(values["micro_batch"])) * (1 + scale * tail) * GIB)

    course = Course(knob("micro_batch", 8), used=peaks)
    course.until(lambda: any("its rare peaks of memory" in p.why for p in course.proposals))
    (change,) = course.proposals[-1].changes
    assert isinstance(change.before, int)
    assert isinstance(change.value, int)
    assert 0.6 * change.before < change.value < change.before
    course.look(100)
    assert course.values["micro_batch"] == change.value
    assert course.tuner.state.tried[-1].result == "kept"
