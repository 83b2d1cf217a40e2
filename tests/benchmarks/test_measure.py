"""What benchmarks share."""

from __future__ import annotations

import json
import re
import threading

import pytest

from benchmarks.measure import in_lanes, tell


def test_a_case_is_told_at_once_beside_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"cpu": {"median": 1.5}}
    assert tell("a case: quick", figures) is figures
    out, error = capsys.readouterr()
    assert not out, "the result alone goes there"
    told = re.fullmatch(r" *\d+ s  a case: quick: (.*)\n", error)
    assert told
    assert json.loads(told[1]) == figures


def test_as_many_cases_at_a_time_as_there_are_lanes() -> None:
    pair = threading.Barrier(2, timeout=10)
    lanes: list[int] = []

    def measure(case: str, lane: int) -> str:
        lanes.append(lane)
        pair.wait()
        return case.upper()

    assert in_lanes(measure, ["a", "b", "c", "d"], 2) == ["A", "B", "C", "D"]
    assert sorted(lanes) == [0, 0, 1, 1]


def test_what_a_case_raises_ends_the_benchmark() -> None:
    def measure(case: int, lane: int) -> float:
        return 1 / case

    with pytest.raises(ZeroDivisionError):
        in_lanes(measure, [1, 0, 2], 1)
