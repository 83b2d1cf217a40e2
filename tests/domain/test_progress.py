"""How many iterations have finished, by the rows of a run."""

from __future__ import annotations

import pytest

from hoptui.domain.columns import NAN, pack
from hoptui.domain.progress import finished, finished_by_rows


@pytest.mark.parametrize(
    ("step", "total", "expected"),
    [
        (0, 1, 1),
        (19, 20, 20),
        (18, 20, 19),
        (19, None, 20),
        (20, 20, 20),  # a loop that counts from 1
        (24, 20, 25),
    ],
)
def test_iterations_count_from_0(step: int, total: int | None, expected: int) -> None:
    assert finished(step, total) == expected


def test_only_rows_of_whole_iterations_count() -> None:
    rows = [(1, 0, {"iteration_s": 0.5}), (2, 1, {"iteration_s": 0.5}), (3, 2, {"loss": 1.0})]
    assert finished_by_rows(pack("run/r", rows), 20) == 2
    assert finished_by_rows(pack("run/r", rows[2:]), 20) == 0
    assert finished_by_rows(pack("run/r", [(1, 0, {"iteration_s": NAN})]), 20) == 0
    # What a GPU computed in an iteration comes after the row of the next one.
    assert finished_by_rows(pack("run/r", [*rows[:2], (3, 0, {"loss": 1.0})]), 20) == 2
