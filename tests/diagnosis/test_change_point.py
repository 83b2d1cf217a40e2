"""When a run is found to do something else than before: a lasting step in its samples or GPU readings."""

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from hoptui.diagnosis.change_point import AFTER, BEFORE, BETWEEN, SLOTS, ActivitySlot, slots_since_step
from hoptui.domain.stack_kinds import Kind


def slots(shares: Iterable[float], kind: Kind = "input", samples: int = 20) -> list[ActivitySlot]:
    """Slots with these shares of a kind. The rest computes."""
    counts = (round(samples * share) for share in shares)
    return [ActivitySlot({kind: count, "compute": samples - count}) for count in counts]


@pytest.mark.parametrize("after", range(AFTER, SLOTS - BEFORE - BETWEEN + 1))
@pytest.mark.parametrize("mixed", [0.0, 0.4, 0.8])
def test_a_step_is_found_while_the_slots_before_it_are_known(after: int, mixed: float) -> None:
    found = slots_since_step(slots([0.05] * (SLOTS - after - 1) + [mixed] + [0.8] * after))
    assert found is not None
    assert abs(found - after) <= 1
    back = slots_since_step(slots([0.8] * (SLOTS - after - 1) + [mixed] + [0.05] * after))
    assert back is not None
    assert abs(back - after) <= 1


def test_from_one_kind_to_another() -> None:
    assert slots_since_step([*slots([0.8] * (BEFORE + BETWEEN)), *slots([0.8] * AFTER, "save")]) == AFTER


@pytest.mark.parametrize(
    "shares",
    [
        [0.5] * SLOTS,
        [0.1] * (SLOTS - AFTER + 1) + [0.9] * (AFTER - 1),
        [0.1, 0.9] * (SLOTS // 2),
        [0.1] * 4 + [0.9] * 4 + [0.1] * 4,
        [0.9] * 4 + [0.1] * 6 + [0.9] * 4,
        [0.5] * 8 + [0.65] * 4,
        [0.1] * (BEFORE - 1) + [0.5] + [0.9] * AFTER,
    ],
    ids=["steady", "too new", "alternating", "too short", "over again", "small", "too little before"],
)
def test_what_is_no_step(shares: list[float]) -> None:
    assert slots_since_step(slots(shares)) is None


def test_chance_is_no_step() -> None:
    source = random.Random(3)
    found = 0
    for _ in range(2000):
        counts = [sum(source.random() < 0.5 for _ in range(20)) for _ in range(SLOTS)]
        found += slots_since_step(slots(count / 20 for count in counts)) is not None
    assert found <= 1


def test_a_step_in_the_readings_of_a_gpu() -> None:
    busy = [ActivitySlot(readings={"busy": 0.95, "sm_active": 0.9})] * (BEFORE + BETWEEN)
    idle = [ActivitySlot(readings={"busy": 0.4, "sm_active": 0.3})] * AFTER
    assert slots_since_step([*busy, *idle]) == AFTER
    assert slots_since_step([*busy, ActivitySlot(), *idle[1:]]) is None


def test_few_samples_and_pauses_say_nothing() -> None:
    assert slots_since_step(slots([0.0] * 8 + [1.0] * AFTER, samples=5)) is None
    assert slots_since_step(slots([0.0] * 8 + [1.0] * AFTER, "paused")) is None


def test_slots_without_anything() -> None:
    assert slots_since_step([]) is None
    assert slots_since_step([ActivitySlot(Counter())] * SLOTS) is None
