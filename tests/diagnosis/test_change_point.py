"""When a run is found to do something else than before: a lasting step in its samples or GPU readings."""

import random
from collections.abc import Iterable

import pytest

from hoptui.diagnosis.change_point import AFTER, BEFORE, BETWEEN, SLOTS, ActivitySlot, step_end
from hoptui.domain.kind_rules import Kind


def slots(shares: Iterable[float], kind: Kind = "input", samples: int = 20) -> list[ActivitySlot]:
    """Slots 0, 1, … with these shares of a kind. The rest computes."""
    counts = (round(samples * share) for share in shares)
    return [ActivitySlot(i, {kind: count, "compute": samples - count}) for i, count in enumerate(counts)]


@pytest.mark.parametrize("after", range(AFTER, SLOTS - BEFORE - BETWEEN + 1))
@pytest.mark.parametrize("mixed", [0.0, 0.4, 0.8])
@pytest.mark.parametrize("samples", [6, 20])
def test_a_step_is_found_while_the_slots_before_it_are_known(after: int, mixed: float, samples: int) -> None:
    place = SLOTS - after - 1
    for old, new in ((0.05, 0.8), (0.8, 0.05)):
        found = step_end(slots([old] * place + [mixed] + [new] * after, samples=samples))
        assert found in (place - 1, place, place + 1)


def test_from_one_kind_to_another() -> None:
    found = step_end(
        slots([0.8] * (BEFORE + BETWEEN)) + slots([0.8] * (BEFORE + BETWEEN + AFTER), "save")[-AFTER:]
    )
    assert found == BEFORE


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
    assert step_end(slots(shares)) is None


@pytest.mark.parametrize("samples", [4, 8, 20])
def test_chance_is_no_step(samples: int) -> None:
    source = random.Random(3)
    found = 0
    for _ in range(1000):
        counts = [sum(source.random() < 0.5 for _ in range(samples)) for _ in range(SLOTS)]
        found += step_end(slots((count / samples for count in counts), samples=samples)) is not None
    assert found <= 1


def test_a_step_in_the_readings_of_a_gpu() -> None:
    busy = [ActivitySlot(i, readings={"busy": 0.95, "sm_active": 0.9}) for i in range(BEFORE + BETWEEN)]
    idle = [
        ActivitySlot(BEFORE + BETWEEN + i, readings={"busy": 0.4, "sm_active": 0.3}) for i in range(AFTER)
    ]
    assert step_end([*busy, *idle]) == BEFORE
    assert step_end([*busy, ActivitySlot(0), *idle[1:]]) is None


def test_slots_without_samples_are_left_out() -> None:
    """Messages that come late leave some without any."""
    some = slots([0.05] * BEFORE + [0.4] + [0.8] * AFTER)
    spread = [ActivitySlot(10 * slot.end, slot.kinds) for slot in some]
    without = [ActivitySlot(10 * slot.end + 5) for slot in some]
    both = [each for pair in zip(spread, without, strict=True) for each in pair]
    assert step_end(both) == 10 * BEFORE


def test_few_samples_and_pauses_say_nothing() -> None:
    assert step_end(slots([0.0] * 12 + [1.0] * AFTER, samples=3)) is None
    assert step_end(slots([0.0] * 12 + [1.0] * AFTER, "paused")) is None


def test_slots_without_anything() -> None:
    assert step_end([]) is None
    assert step_end([ActivitySlot(0)] * SLOTS) is None
