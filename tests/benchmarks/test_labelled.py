"""The labelled loads: two lots of the same size, lines that exist, and loops that train."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.labelled.catalogue import all_loads, lot_of  # noqa: E402
from benchmarks.labelled_diagnosis import HOST_SIDE, calibration  # noqa: E402
from hoptui.domain.diagnosis import VERDICTS  # noqa: E402

LOADS = all_loads()


class ShortRun:
    """A run that is asked to stop after its first row."""

    def __init__(self) -> None:
        self.rows = 0

    @property
    def stopping(self) -> bool:
        return self.rows > 0

    def log(self, **_: Any) -> None:
        self.rows += 1

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()


def test_there_are_sixty_loads_in_two_lots() -> None:
    lots = [lot_of(name) for name in LOADS]
    assert len(lots) >= 60
    assert abs(lots.count("test") - lots.count("development")) <= 1


def test_labels_are_verdicts_and_host_side_causes_have_a_line() -> None:
    for load in LOADS.values():
        assert {*load.gpu, *load.cpu} <= VERDICTS, load.name
        assert load.gpu or load.cpu
        if {*load.gpu, *load.cpu} <= HOST_SIDE:
            assert load.lines, load.name


QUICK = (
    "rows_in_python", "json_between_steps", "loop_in_a_thread", "saves_each_step", "environments_in_python",
    "stream_of_archives", "policy_acts_step_by_step", "steps_of_asyncio",
)  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_a_load_trains_until_it_is_stopped(name: str) -> None:
    run, began = ShortRun(), time.monotonic()
    LOADS[name].loop(run, "cpu")  # type: ignore[arg-type]
    assert run.rows >= 1
    assert time.monotonic() - began < 30


def test_calibration_counts_by_confidence() -> None:
    cases = [
        {"confidence": 0.95, "verdict": "data-bound", "right": True},
        {"confidence": 0.95, "verdict": "data-bound", "right": False},
        {"confidence": 0.6, "verdict": "unknown", "right": False},
    ]
    assert calibration(cases)[-1] == {"from": 0.9, "to": 1.0, "told": 2, "right": 1}
    assert sum(row["told"] for row in calibration(cases)) == 2
