"""The labelled loads: two lots of the same size and a held-out one, their lines, and that they train."""

from __future__ import annotations

import linecache
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.labelled.catalogue import AdapterRun, all_loads, lot_of  # noqa: E402
from benchmarks.labelled_diagnosis import HOST_SIDE, calibration, visible_gpus  # noqa: E402
from hoptui.domain.diagnosis import VERDICTS  # noqa: E402

LOADS = all_loads()
HELD_OUT = [name for name in LOADS if lot_of(name) == "held-out"]
HELD_OUT_CPU = [name for name in LOADS if lot_of(name) == "held-out-cpu"]
SEEN = [name for name, load in LOADS.items() if load.seen]


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
    lots = [lot_of(name) for name in LOADS if name not in {*HELD_OUT, *HELD_OUT_CPU, *SEEN}]
    assert len(lots) >= 60
    assert abs(lots.count("test") - lots.count("development")) <= 1


def test_the_held_out_lot_is_the_loads_of_its_modules() -> None:
    ranks = Counter(LOADS[name].ranks for name in HELD_OUT)  # those of two ranks are measured elsewhere
    assert all(ranks[of] >= least for of, least in ((1, 24), (2, 12)) if ranks[of]), "a lot is whole"
    assert set(ranks) <= {1, 2}
    for name, load in LOADS.items():
        assert (name in {*HELD_OUT, *HELD_OUT_CPU}) == (".held_out_" in load.loop.__module__), name


def test_the_held_out_lot_without_a_gpu_is_the_loads_of_its_modules() -> None:
    for name, load in LOADS.items():
        assert (name in HELD_OUT_CPU) == (".held_out_cpu_" in load.loop.__module__), name
    ranks = Counter(LOADS[name].ranks for name in HELD_OUT_CPU)
    assert ranks in ({}, {1: 24, 2: 8}), "a lot is whole"
    for load in (LOADS[name] for name in HELD_OUT_CPU):
        assert load.cpu, load.name
        assert not load.gpu, load.name
        assert (load.late is not None) == ("straggler" in load.cpu), load.name


def test_loads_that_were_held_out_are_development_loads() -> None:
    assert len(SEEN) >= 33
    for name, load in LOADS.items():
        assert (name in SEEN) == (".seen_" in load.loop.__module__), name
    assert {lot_of(name) for name in SEEN} == {"development"}


def test_loads_that_are_or_were_held_out_do_not_change_the_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [name for name in LOADS if name not in {*HELD_OUT, *HELD_OUT_CPU, *SEEN}]
    drawn = [lot_of(name) for name in others]
    for name in (*HELD_OUT, *HELD_OUT_CPU, *SEEN):
        monkeypatch.delitem(LOADS, name)
    assert [lot_of(name) for name in others] == drawn


def test_marks_are_on_lines_with_code() -> None:
    """The formatter moves a mark behind a statement of several lines, where no frame ever is."""
    for name in LOADS:
        for file, line in LOADS[name].lines:
            code = linecache.getline(file, line).partition("#")[0]
            assert code.strip(" )]}\n"), (name, line)


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


HELD_OUT_ON_CPU = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in (*HELD_OUT, *HELD_OUT_CPU)
    if LOADS[name].cpu and LOADS[name].ranks == 1
]


@pytest.mark.filterwarnings("default")  # packages warn of what is theirs
@pytest.mark.parametrize("name", [*QUICK, *HELD_OUT_ON_CPU])
def test_a_load_trains_until_it_is_stopped(name: str) -> None:
    if LOADS[name].adapter:
        pytest.skip("an adapter makes its run")
    if missing := LOADS[name].missing():
        pytest.skip(f"needs {', '.join(missing)}")
    run, began = ShortRun(), time.monotonic()
    LOADS[name].loop(run, "cpu")
    assert run.rows >= 1
    assert time.monotonic() - began < 30


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [name for name in (*HELD_OUT, *HELD_OUT_CPU) if LOADS[name].adapter])
def test_a_load_of_a_framework_trains(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing := LOADS[name].missing():
        pytest.skip(f"needs {', '.join(missing)}")
    monkeypatch.setenv("HOPTUI", "off")
    began = time.monotonic()
    LOADS[name].loop(AdapterRun(f"test-{name}", iterations=2), "cpu")
    assert time.monotonic() - began < 30


def test_calibration_counts_by_confidence() -> None:
    cases = [
        {"confidence": 0.95, "verdict": "data-bound", "right": True},
        {"confidence": 0.95, "verdict": "data-bound", "right": False},
        {"confidence": 0.6, "verdict": "unknown", "right": False},
    ]
    assert calibration(cases)[-1] == {"from": 0.9, "to": 1.0, "told": 2, "right": 1}
    assert sum(row["told"] for row in calibration(cases)) == 2


def test_a_load_of_two_ranks_has_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, pair = LOADS["rows_in_python"], LOADS["even_ranks"]
    monkeypatch.setenv("HOPTUI_LABELLED_DEVICE", "cuda")
    assert [visible_gpus(alone, lane) for lane in range(3)] == ["0", "1", "2"]
    assert [visible_gpus(pair, lane) for lane in range(2)] == ["0,1", "2,3"]
    monkeypatch.setenv("HOPTUI_LABELLED_DEVICE", "cpu")
    assert visible_gpus(pair, 1) == ""
