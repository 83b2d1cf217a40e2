"""The parts of the benchmark of hybrid PPO, tried on a CPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks import ppo_hybrid
from benchmarks.ppo_hybrid import LADDER, WORKLOADS, Machine


@pytest.fixture(scope="module")
def machine() -> Machine:
    torch.set_num_threads(1)
    return Machine(quick=True)


def test_each_place_is_held_against_the_cpu_and_transfers_are_measured(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = dict(list(WORKLOADS.items())[:2])
    monkeypatch.setattr(ppo_hybrid, "WORKLOADS", kept)
    found = ppo_hybrid.places(machine)
    assert [list(cases) for cases in found.values()] == [["CPU", "hybrid"], ["CPU", "hybrid", "GPU"]]
    for cases in found.values():
        base = cases["CPU"]["steps_per_s"]["median"]
        for place, case in cases.items():
            ratio = case["steps_per_s"]["median"] / base
            assert case["times_the_cpu"] == pytest.approx(ratio, abs=1e-3)
            moved = [case["phases_s"][f"transfer/{name}"] > 0 for name in ("weights", "batch")]
            assert moved == [place == "hybrid"] * 2
            assert case["phases_s"]["rollout"] > 0


def test_each_optimisation_is_held_against_the_case_before_and_the_first(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, fields = next(iter(ppo_hybrid.LADDERS.items()))
    monkeypatch.setattr(ppo_hybrid, "LADDERS", {name: fields})
    cases = ppo_hybrid.ladder(machine)[name]
    assert list(cases) == [case for case, _ in LADDER]
    rates = [case["steps_per_s"]["median"] for case in cases.values()]
    for i, case in enumerate(list(cases.values())[1:], 1):
        assert case["times_the_first"] == pytest.approx(rates[i] / rates[0], abs=1e-3)
        assert case["times_the_case_before"] == pytest.approx(rates[i] / rates[i - 1], abs=1e-3)


def test_the_peaks_with_and_without_checkpointing_are_compared(machine: Machine) -> None:
    found = ppo_hybrid.memory(machine)
    plain, other = (found["cases"][name]["peak_memory_gb"] for name in ("plain", "checkpointing"))
    assert found["peak_ratio"] == pytest.approx(other / plain, abs=1e-3)


def test_what_there_is_no_time_for_is_left_out(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo_hybrid, "TIME_S", 0.0)
    found = ppo_hybrid.memory(machine)
    assert all("left_out" in case for case in found["cases"].values())
    assert (found["peak_ratio"], found["speed_ratio"]) == (None, None)
