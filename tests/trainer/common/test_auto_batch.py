from __future__ import annotations

import pytest

from hoptui_trainer.common.auto_batch import choose_batch


@pytest.mark.parametrize(
    ("available", "held", "size", "bound"),
    [
        (1437, 1 << 30, 1437, "data"),
        (65_536, 1 << 30, 65_536, "data"),
        (1_000_000, 1 << 30, 65_536, "most"),
        (1437, 1436, 1024, "memory"),
        (1_000_000, 5000, 4096, "memory"),
        (1_000_000, 4096, 4096, "memory"),
        (3, 1, 1, "memory"),
    ],
)
def test_a_batch_is_bounded_by_data_memory_and_a_most(
    available: int, held: int, size: int, bound: str
) -> None:
    asked: list[int] = []

    def fitting(whole: int) -> int:
        asked.append(whole)
        return min(whole, held)

    assert choose_batch(available, 65_536, fitting) == (size, bound)
    assert asked == [min(available, 65_536)]  # no more is tried than may be used


def test_memory_that_does_not_hold_a_sample_is_too_short() -> None:
    with pytest.raises(MemoryError):
        choose_batch(10, 100, lambda _: 0)
