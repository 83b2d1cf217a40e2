"""The energy benchmark: what it computes from the counter and the rows, and that it says why it cannot."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import tuner_energy
from benchmarks.live import Live, Point
from benchmarks.tuner_energy import Reading, Window, agreement, in_turns, window
from hoptui.domain.columns import pack

SECOND = 1_000_000_000
WATTS, RATE = {2: 300.0, 16: 400.0}, {2: 100.0, 16: 200.0}


class Metered:
    """A run, a clock and a counter: at each micro-batch it draws `WATTS` and does `RATE` units a second."""

    def __init__(self) -> None:
        self.now, self.joules, self.units = 0, 0.0, 0.0
        self.size = 2
        self.sets: list[int] = []
        self.at: dict[int, float] = {}

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)
        self.joules += WATTS[self.size] * seconds
        self.units += RATE[self.size] * seconds

    def read(self) -> Reading:
        self.at[self.now] = self.units
        return Reading(self.now, self.joules)

    def set(self, point: Point) -> bool:
        self.size = int(point["micro_batch"])
        self.sets.append(self.size)
        self.sleep(1.0)
        return True

    def iterations(self, since: int) -> int:
        return tuner_energy.SETTLE_ITERATIONS

    def worked(self, since: int, until_t: int) -> float:
        return self.at[until_t] - self.at[since]


@pytest.fixture
def metered(monkeypatch: pytest.MonkeyPatch) -> Metered:
    found = Metered()
    clock = SimpleNamespace(
        sleep=found.sleep, monotonic_ns=lambda: found.now, monotonic=lambda: found.now / SECOND
    )
    monkeypatch.setattr(tuner_energy, "time", clock)
    return found


def test_a_window_has_the_joules_of_the_counter_for_the_work_of_the_rows(metered: Metered) -> None:
    assert window(metered, metered.read) == Window(3.0, 100.0)  # type: ignore[arg-type]
    assert metered.now >= (tuner_energy.SETTLE_S + tuner_energy.WINDOW_S) * SECOND


def test_both_values_are_measured_in_turns_within_the_time(metered: Metered) -> None:
    before, after = {"micro_batch": 2}, {"micro_batch": 16}
    found = in_turns(metered, metered.read, before, after, deadline=100.0)  # type: ignore[arg-type]
    assert metered.sets == [2, 16] * 3
    assert metered.now <= 100 * SECOND
    assert found["joules_per_unit"]["before"]["median"] == 3.0
    assert found["joules_per_unit"]["after"]["median"] == 2.0
    assert found["energy_saved"] == {"median": 0.3333, "min": 0.3333, "max": 0.3333, "n": 3}
    assert found["throughput_change"]["median"] == 1.0
    late = in_turns(metered, metered.read, before, after, deadline=0.0)  # type: ignore[arg-type]
    assert late["energy_saved"]["n"] == tuner_energy.FEWEST_TURNS


def test_the_report_of_the_tuner_is_held_against_the_counter() -> None:
    turns = {
        "energy_saved": {"median": 0.30, "min": 0.29, "max": 0.31, "n": 3},
        "throughput_change": {"median": -0.10, "min": -0.11, "max": -0.09, "n": 3},
    }
    told = {"energy": {"share": 0.315, "interval": 0.01}, "throughput": {"gain": -0.2, "interval": 0.01}}
    assert agreement(turns | {"reported": told}) == {
        "energy_saved": {"difference": 0.015, "in_interval": True},
        "throughput_change": {"difference": -0.1, "in_interval": False},
    }
    assert agreement(turns | {"reported": {"energy": None, "throughput": None}}) == {}


class Rows:
    """A session with rows of a run: iterations of two seconds and 10 units that end at even seconds."""

    def fetch(self, *, cursors: dict[str, int]) -> Any:
        ((source, since),) = cursors.items()
        row = {"iteration_s": 2.0, "samples": 10.0}
        ends = [t for t in range(2, 21, 2) if t * SECOND > since][:3]  # a page
        packed = [pack(source, [(t * SECOND, t // 2, row) for t in ends])] if ends else []
        return SimpleNamespace(columns=packed)


@pytest.fixture
def run() -> Live:
    found = Live.__new__(Live)
    found._session, found._source, found._work = Rows(), "run/r", "samples"  # type: ignore[assignment]
    return found


def test_the_work_of_a_window_has_parts_of_the_iterations_at_its_ends(run: Live) -> None:
    assert run.worked(3 * SECOND, 9 * SECOND) == pytest.approx(5 + 10 + 10 + 5)
    assert run.worked(4 * SECOND, 8 * SECOND) == pytest.approx(20)
    assert run.iterations(11 * SECOND) == 5


def test_without_a_gpu_it_says_why_it_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuner_energy, "visible", list)
    assert "not_measured" in tuner_energy.main([])
    assert "no GPU" in json.loads(capsys.readouterr().out)["not_measured"]


def test_a_loop_that_needs_more_gpus_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner_energy, "visible", lambda: ["0"])
    parts: list[float] = []

    def measured(case: Any, most_s: float) -> dict[str, Any]:
        parts.append(most_s)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
        return {"name": case.name}

    monkeypatch.setattr(tuner_energy, "measured", measured)
    found = tuner_energy.on_gpus(("gpt", "ddp_gpt"), 100.0)
    assert found == {
        "ddp_gpt": {"not_measured": "it needs 2 GPUs, and there are 1"},
        "gpt": {"name": "gpt"},
    }
    assert len(parts) == 1
    assert 90.0 < parts[0] <= 100.0
