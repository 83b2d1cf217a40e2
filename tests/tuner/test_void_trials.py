"""A trial that something else disturbed tells nothing: it is reverted, and tried again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from hoptui.protocol.messages import CommandRecord, Origin
from hoptui.tuner.observation import GpuNeighbours, MemoryReading
from hoptui.tuner.outside_load import BEFORE, ENOUGH, OLD, OutsideLoad
from hoptui.tuner.trial import FIRST_GUESSES, Budget
from hoptui.tuner.tuner import MOST_VOIDS
from tests.tuner.simulated_run import GIB, SECOND, Course, codes, level, results


def user(course: Course, verb: Any) -> None:
    """A user gives a command that is carried out at once."""
    course.records.append(
        CommandRecord(
            id=f"u{len(course.records)}",
            run="r",
            epoch=1,
            verb=verb,
            stage="applied",
            origin=Origin(kind="person", user="ana"),
            step=course.step,
            t=course.seconds * SECOND,
        )
    )


@pytest.mark.parametrize("verb", ["pause", "checkpoint", "profile"])
def test_a_trial_that_a_user_disturbs_is_tried_again(verb: str) -> None:
    course = Course()
    tried = course.into_trial()
    user(course, verb)
    course.look(3)
    assert results(course) == ["interrupted"]
    assert codes(course.tuner.state.tried[0].why)[-1] == "trial.disturbed"
    assert course.into_trial() == tried
    course.rest()
    assert course.values["micro_batch"] == 256


def test_what_came_before_a_trial_or_was_refused_disturbs_nothing() -> None:
    course = Course()
    course.look(5)
    user(course, "checkpoint")
    course.into_trial()
    user(course, "pause")
    course.records[-1] = structs.replace(course.records[-1], stage="rejected", step=None)
    course.until(lambda: results(course))
    assert results(course) == ["kept"]


def test_a_trial_beside_another_load_is_tried_again() -> None:
    course = Course(rate=level)
    course.facts |= {"others_busy": 0.1, "host_busy": 0.4}
    tried = course.into_trial()
    course.facts |= {"others_busy": 0.5, "host_busy": 0.8}
    course.until(lambda: results(course))
    assert results(course) == ["interrupted"]
    assert codes(course.tuner.state.tried[0].why)[-1] == "trial.load_changed"
    assert course.into_trial() == tried


def memory(others_gib: int) -> tuple[MemoryReading, ...]:
    return (MemoryReading(10 * GIB, others_gib * GIB, 80 * GIB, gpu="A"),)


def neighbours(*pids: int, busy: float | None) -> tuple[GpuNeighbours, ...]:
    return (GpuNeighbours("A", frozenset(pids), busy),)


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ({"neighbours": neighbours(busy=0.0)}, {"neighbours": neighbours(7, busy=0.4)}, "gpu_load_changed"),
        ({"neighbours": neighbours(7, busy=0.4)}, {"neighbours": neighbours(busy=0.0)}, "gpu_load_changed"),
        (
            {"neighbours": neighbours(7, busy=0.2)},
            {"neighbours": neighbours(7, busy=0.5)},
            "gpu_load_changed",
        ),
        ({"neighbours": neighbours(busy=None)}, {"neighbours": neighbours(7, busy=None)}, "gpu_process_came"),
        ({"neighbours": neighbours(7, busy=None)}, {"neighbours": neighbours(busy=None)}, "gpu_process_went"),
        ({"memories": memory(0)}, {"memories": memory(20)}, "gpu_memory_taken"),
        ({"memories": memory(20)}, {"memories": memory(0)}, "gpu_memory_freed"),
    ],
)
def test_a_trial_beside_another_process_on_the_gpu_is_tried_again(
    before: dict[str, Any], after: dict[str, Any], code: str
) -> None:
    course = Course(rate=level)
    course.facts |= before
    tried = course.into_trial()
    course.facts |= after
    course.until(lambda: results(course))
    assert results(course) == ["interrupted"]
    assert codes(course.tuner.state.tried[0].why)[-1] == f"trial.{code}"
    assert course.into_trial() == tried


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"neighbours": neighbours(7, busy=0.4)}, {"neighbours": neighbours(7, busy=0.1)}),
        ({"neighbours": neighbours(busy=0.0)}, {"neighbours": neighbours(7, busy=0.01)}),
        ({"neighbours": neighbours(7, busy=None)}, {"neighbours": neighbours(7, busy=None)}),
        ({"memories": memory(20)}, {"memories": memory(21)}),
        ({"neighbours": ()}, {"neighbours": neighbours(7, busy=0.4)}),
    ],
    ids=["the run does more", "idle beside it", "the same", "little memory", "unknown before"],
)
def test_a_trial_beside_a_process_that_changes_little_is_not_void(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    course = Course(rate=level)
    course.facts |= before
    course.into_trial()
    course.facts |= after
    course.until(lambda: results(course))
    assert results(course) == ["reverted"]


def test_a_change_that_is_always_disturbed_is_measured_in_the_end() -> None:
    course = Course()
    for _ in range(MOST_VOIDS):
        course.into_trial()
        user(course, "checkpoint")
        course.look(3)
    course.into_trial()
    user(course, "checkpoint")
    course.until(lambda: len(results(course)) > MOST_VOIDS)
    assert results(course) == ["interrupted"] * MOST_VOIDS + ["kept"]


def of(before: float, now: float, host: float, looks: int = OLD + ENOUGH) -> Any:
    """What is found after steady loads before a trial and in it."""
    load, course = OutsideLoad(), Course()
    course.facts |= {"others_busy": before, "host_busy": host}
    for _ in range(BEFORE):
        load.before(course.observation())
    course.facts["others_busy"] = now
    for _ in range(looks):
        load.within(course.observation())
    return load.changed()


def test_what_counts_as_another_load() -> None:
    assert of(0.1, 0.2, 0.5) is None
    assert of(0.1, 0.4, 0.5).fields == {"before": pytest.approx(0.1), "after": pytest.approx(0.4)}
    assert of(0.1, 0.4, 0.5, looks=ENOUGH) is None, "the first readings are of before"
    assert of(0.4, 0.1, 0.5) is not None
    assert of(0.4, 0.1, 1.0) is None, "the run itself takes what others had"


def test_a_run_that_stands_still_for_a_change_is_beside_no_other_load() -> None:
    """Its compilers live too short to be counted as its own."""
    course = Course(rate=level)
    course.facts |= {"others_busy": 0.1, "host_busy": 0.4}
    course.obeys = False
    course.until(lambda: course.tuner.state.trial is not None)
    course.facts |= {"others_busy": 0.9, "host_busy": 0.95}
    course.look(40)
    course.facts |= {"others_busy": 0.1, "host_busy": 0.4}
    course.obeys = True
    course.until(lambda: results(course))
    assert results(course) == ["reverted"]


def test_a_void_trial_costs_no_guess() -> None:
    budget = Budget(0.04, 0)
    budget.guesses = FIRST_GUESSES
    guesses = budget.left_for(advised=False)
    budget.tick(50 * SECOND, training=True, trying=True)
    assert budget.left_for(advised=False) == pytest.approx(guesses - 50)
    budget.voided += 50
    assert budget.left_for(advised=False) == pytest.approx(guesses)
    assert budget.left == pytest.approx(144 - 50), "of the whole budget it does"
