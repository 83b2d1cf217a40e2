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
from benchmarks.loops.catalogue import CPU, CUDA, LoopCase, loop
from benchmarks.tuner_loops import Lane, on_devices, possible

CASES = [case for lots in (CUDA, CPU) for lot in lots.values() for case in lot]
ADAPTERS = ("hf_trainer", "sb3_ppo")
"""Loops whose knobs are declared by an adapter."""


def test_both_machines_have_the_same_loops_in_the_same_lots() -> None:
    for lot, cases in CUDA.items():
        assert [case.name for case in cases] == [case.name for case in CPU[lot]]
    assert [case.name for case in CUDA["development"]] == [
        "gpt", "cnn", "unet", "hf_trainer", "ddp_gpt", "sb3_ppo",
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
    at_once: int
    most: int

    def __init__(
        self,
        case: LoopCase,
        arguments: Sequence[str],
        seeds: Sequence[int],
        devices: list[str],
        most_s: float,
    ) -> None:
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
    FakeLane.begun, FakeLane.at_once, FakeLane.most = [], 0, 0
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
) -> None:
    """Measure one seed, begin the next, and never finish it."""
    told.send({"seed": 0, "ratio": 1.0, "end": "stopped"})
    told.send({"seed": 1, "slow": tune_s})
    threading.Event().wait()


def test_a_loop_that_takes_too_long_reports_what_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuner_loops, "measure", hang)
    lane = Lane(loop("slow"), [], [0, 1, 2], ["0"], 100.0)
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
