"""The real loops: two lots, grids of their knobs, and measuring several at the same time."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Sequence
from multiprocessing import Pipe, connection
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tuner_loops
from benchmarks.coarse_grid import coarse, coarse_to_fine
from benchmarks.grid_file import GridFile
from benchmarks.live import Point
from benchmarks.loops.catalogue import CPU, CUDA, LoopCase, loop
from benchmarks.tuner_grid import fastest
from benchmarks.tuner_loops import Lane, on_devices, possible

CASES = [case for lots in (CUDA, CPU) for lot in lots.values() for case in lot]
ADAPTERS = ("hf_trainer", "sb3_ppo")
"""Loops whose knobs are declared by an adapter."""


def test_both_machines_have_the_same_loops_in_the_same_lots() -> None:
    for lot, cases in CUDA.items():
        assert [case.name for case in cases] == [case.name for case in CPU[lot]]
    assert [case.name for case in CUDA["development"]] == [
        "gpt", "cnn", "unet", "hf_trainer", "resnet50", "audio_clips", "ddp_gpt", "sb3_ppo",
    ]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_loop_declares_the_knobs_of_its_grid(case: LoopCase) -> None:
    found = importlib.util.find_spec(f"benchmarks.loops.{case.name}")
    assert found is not None
    assert found.origin is not None
    source = Path(found.origin).read_text()
    if case.name not in ADAPTERS:
        assert all(f'"{knob}", ' in source or f'"{knob}",\n' in source for knob in case.grid)
    assert len(case.points()) <= 20
    assert bool(case.learning) == (case.name == "sb3_ppo"), "only what is allowed may change what is learned"


class FakeLane:
    """A loop that is done at once, or once another has begun."""

    begun: list[tuple[str, tuple[str, ...]]]
    waits: dict[tuple[str, tuple[int, ...]], float]
    at_once: int
    most: int

    def __init__(
        self,
        case: LoopCase,
        arguments: Sequence[str],
        seeds: Sequence[int],
        devices: list[str],
        most_s: float,
        grids: GridFile,
    ) -> None:
        FakeLane.waits[case.name, tuple(seeds)] = grids.waits_s
        self.case, self.devices, self.until = case, devices, float("inf")
        self.runs = {seed: {"seed": seed, "end": "stopped"} for seed in seeds}
        self.told, telling = Pipe(duplex=False)
        telling.close()
        FakeLane.begun.append((case.name, tuple(devices)))
        FakeLane.at_once += len(devices)
        FakeLane.most = max(FakeLane.most, FakeLane.at_once)

    def read(self) -> bool:
        return False

    def end(self, why: str = "") -> None:
        FakeLane.at_once -= len(self.devices)
        self.told.close()


@pytest.mark.parametrize(("device", "taken"), [("cuda", 2), ("cpu", 1)])
def test_a_loop_takes_a_gpu_for_each_rank(monkeypatch: pytest.MonkeyPatch, device: str, taken: int) -> None:
    FakeLane.begun, FakeLane.waits, FakeLane.at_once, FakeLane.most = [], {}, 0, 0
    monkeypatch.setattr(tuner_loops, "Lane", FakeLane)
    cases = [loop("pair", ranks=2), loop("a"), loop("b"), loop("c")]
    runs = on_devices(
        cases, {case.name: ["--device", device] for case in cases}, [0, 1], ["5", "6", "7"], 9.0
    )
    assert {*runs} == {"pair", "a", "b", "c"}
    assert all([run["seed"] for run in each] == [0, 1] for each in runs.values())
    assert FakeLane.most == 3, "no device is idle, none is used twice"
    assert FakeLane.at_once == 0
    assert len(dict(FakeLane.begun)["pair"]) == taken


def test_seeds_apart_take_a_gpu_each_and_wait_for_the_grid_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeLane.begun, FakeLane.waits, FakeLane.at_once, FakeLane.most = [], {}, 0, 0
    monkeypatch.setattr(tuner_loops, "Lane", FakeLane)
    arguments = {name: ["--device", "cuda"] for name in ("a", "b")}
    runs = on_devices([loop("a"), loop("b")], arguments, [0, 1, 2], ["0", "1", "2"], 9.0, apart=True)
    assert [run["seed"] for run in runs["a"]] == [0, 1, 2]
    assert FakeLane.most == 3
    assert [name for name, _ in FakeLane.begun[:2]] == ["a", "b"], "their grids are measured first"
    assert FakeLane.waits == {
        (name, (seed,)): 9.0 if seed else 0.0 for name in ("a", "b") for seed in (0, 1, 2)
    }


def test_a_grid_is_known_by_loop_and_machine(tmp_path: Path) -> None:
    here = GridFile(tmp_path / "grids.json", "one machine")
    assert here.best("gpt") is None
    here.put("gpt", [{"rows": 8, "rate": 5.0}], {"rows": 8}, 1)
    here.put("unet", [{"chunk": 4, "rate": None}, {"chunk": 8, "rate": 2.0}], {"chunk": 8}, 2)
    assert (here.best("gpt"), here.best("unet")) == ({"rows": 8}, {"chunk": 8})
    assert GridFile(here.path, "another").best("gpt") is None


def test_a_process_waits_for_a_grid_that_another_one_measures(tmp_path: Path) -> None:
    path = tmp_path / "grids.json"
    telling = threading.Timer(0.2, GridFile(path, "m").put, ("gpt", [], {"rows": 8}, 1))
    telling.start()
    try:
        assert GridFile(path, "m", waits_s=60.0).best("gpt") == {"rows": 8}
    finally:
        telling.join()


@pytest.mark.parametrize("case", [c for c in CASES if c.slow_grid], ids=lambda case: case.name)
def test_a_coarse_grid_finds_the_best_with_fewer_points(case: LoopCase) -> None:
    assert len(coarse(case)) < len(case.points())
    for best in case.points():
        run = OneBest(case, best)
        found = coarse_to_fine(run, case)  # type: ignore[arg-type]
        assert fastest(found, case) == best
        assert len(found) == len({str(one) for one in found}) <= len(case.points())


class OneBest:
    """A run whose rate falls with each step away from `best`."""

    def __init__(self, case: LoopCase, best: Point) -> None:
        self._case, self._best, self._point = case, best, best

    def set(self, point: Point) -> bool:
        self._point = point
        return True

    def rate(self, best: float, *, after_s: float) -> float:
        steps = (
            abs(values.index(self._point[name]) - values.index(self._best[name]))
            for name, values in self._case.grid.items()
        )
        return 100.0 - sum(steps)


def test_a_loop_that_cannot_run_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert possible(loop("one", needs=("json",)), 1)
    assert not possible(loop("two", ranks=2), 1)
    assert not possible(loop("three", needs=("no_such_package",)), 1)
    error = capsys.readouterr().err.splitlines()
    assert error == [
        "two is left out: it needs 2 GPUs, and there are 1",
        "three is left out: not installed: no_such_package",
    ]


def hang(
    case: LoopCase,
    arguments: Sequence[str],
    seeds: Sequence[int],
    devices: Sequence[str],
    tune_s: float,
    told: connection.Connection,
    grids: GridFile,
) -> None:
    """Measure one seed, begin the next, and never finish it."""
    told.send({"seed": 0, "ratio": 1.0, "end": "stopped"})
    told.send({"seed": 1, "slow": tune_s})
    threading.Event().wait()


def test_a_loop_that_takes_too_long_reports_what_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuner_loops, "measure", hang)
    lane = Lane(loop("slow"), [], [0, 1, 2], ["0"], 100.0, GridFile(Path("grids.json"), "cpu"))
    try:
        while 1 not in lane.runs:
            assert connection.wait([lane.told], timeout=60), "the process says nothing"
            assert lane.read()
    finally:
        lane.end("not done after 100 s")
    runs: dict[int, dict[str, Any]] = lane.runs
    assert runs[0] == {"seed": 0, "ratio": 1.0, "end": "stopped"}
    assert runs[1] == {"seed": 1, "slow": 60.0, "end": "not done after 100 s"}
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["seed"] for line in printed] == [0, 1, 2]
    assert all(line["loop"] == "slow" for line in printed)
