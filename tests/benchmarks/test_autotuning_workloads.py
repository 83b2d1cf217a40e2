"""The published figures of DeepSpeed's autotuning, and the benchmark that puts hoptui's beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks import autotuning_workloads
from benchmarks.autotuning_catalogue import WORKLOADS, Workload
from benchmarks.autotuning_workloads import CALL_S, case_of, compared, main, share_of_call
from benchmarks.live import progress
from benchmarks.loops.catalogue import LoopCase
from benchmarks.tuner_loops import END_S

IMPROVEMENT = {
    "gpt2": 1.52, "gpt2-medium": 2.28, "gpt2-large": 2.48,
    "distilbert": 1.03, "bert-base": 1.09, "bert-large": 1.09,
}  # fmt: skip
"""Over the baseline, as the source rounds it."""
RUN = {
    "seed": 0, "slow": 10.0, "found": {"micro_batch_split": 4}, "took_s": 90.0, "trials": 5,
    "trained": {"iterations": 9}, "same_work": True, "out_of_memory": ["a step"], "later_short": ["another"],
    "rate": {"median": 30.0}, "grid": {"median": 12.0}, "ratio": 2.5, "speed_up": 3.0, "end": "stopped",
}  # fmt: skip


def named(name: str) -> Workload:
    return next(workload for workload in WORKLOADS if workload.name == name)


def test_speed_ups_are_those_of_the_source() -> None:
    with_baseline = {
        each.name: round(each.published.speed_up, 2) for each in WORKLOADS if each.published.baseline
    }
    assert with_baseline == IMPROVEMENT
    assert len({each.name for each in WORKLOADS}) == len(WORKLOADS) == 8


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_workload_starts_as_published(workload: Workload) -> None:
    case = case_of(workload)
    (start,) = case.points()
    samples = workload.steps * workload.micro_batch
    assert samples / int(start["micro_batch_split"]) == workload.published.start.micro_batch
    assert workload.published.tuned.micro_batch <= samples, "what DeepSpeed found is possible within a step"
    assert not case.learning
    assert case.ranks == 1


def test_a_tiny_workload_has_the_same_micro_batch() -> None:
    for workload in WORKLOADS:
        tiny = workload.tiny()
        assert (tiny.micro_batch, tiny.published) == (workload.micro_batch, workload.published)
        assert tiny.length < workload.length
        assert not tiny.fp16


@pytest.mark.parametrize(("workloads", "devices", "rounds"), [(4, 4, 1), (8, 4, 2), (3, 4, 1), (8, 1, 8)])
def test_all_workloads_fit_into_a_call(workloads: int, devices: int, rounds: int) -> None:
    assert rounds * (share_of_call(workloads, devices) + END_S) == CALL_S


def test_a_run_is_compared_with_its_start_in_turns() -> None:
    found = compared(named("gpt2-large"), [RUN])
    assert found["published"]["speed_up"] == 2.478
    assert found["published"]["start"] == {"samples_per_s": 27.874, "micro_batch": 1, "zero": None}
    assert found["samples_per_step"] == 16
    (run,) = found["runs"]
    assert (run["start"], run["after"], run["speed_up"]) == ({"median": 12.0}, {"median": 30.0}, 2.5)
    assert (run["micro_batch"], run["minutes"], run["trials"]) == (4.0, 1.5, 5)
    assert run["out_of_memory"] == ["a step", "another"]


def test_what_was_not_measured_is_unknown() -> None:
    lost = {"seed": 0, "ratio": 0.0, "end": "the run ended"}
    late = {name: RUN[name] for name in ("seed", "slow", "found", "took_s")} | {"end": "not done after 9 s"}
    first, second = compared(named("gpt2"), [lost, late])["runs"]
    assert {
        first[name] for name in ("start", "after", "speed_up", "micro_batch", "minutes", "same_work")
    } == {None}
    assert (second["speed_up"], second["micro_batch"], second["minutes"]) == (None, 32.0, 1.5)
    assert (first["end"], second["end"]) == ("the run ended", "not done after 9 s")


def test_progress_counts_iterations_and_notices_gaps() -> None:
    rows: list[tuple[int, dict[str, float]]] = [
        (4, {"samples": 16.0}), (5, {"samples": 16.0, "loss": 9.0}), (5, {"host": 1.0}),
        (6, {"samples": 16.0, "loss": 8.0}),
    ]  # fmt: skip
    assert progress(rows, "samples") == {
        "iterations": 3, "work": 48.0, "losses": [9.0, 8.0], "consecutive": True,
    }  # fmt: skip
    assert not progress([*rows, (8, {"samples": 16.0})], "samples")["consecutive"]
    assert not progress([*rows, (6, {"samples": 16.0})], "samples")["consecutive"]
    assert progress([], "samples")["losses"] == []


def test_it_measures_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: dict[str, Any] = {}

    def on_devices(
        cases: Sequence[LoopCase],
        arguments: dict[str, list[str]],
        seeds: Sequence[int],
        devices: Sequence[str],
        most_s: float,
    ) -> dict[str, list[dict[str, Any]]]:
        begun.update(arguments=arguments, seeds=seeds, devices=devices, most_s=most_s)
        assert [case.module for case in cases] == ["hf_published"] * 2
        assert all(case.arguments == ("--workload", case.name) for case in cases)
        return {case.name: [RUN] for case in cases}

    monkeypatch.setattr(autotuning_workloads, "on_devices", on_devices)
    monkeypatch.setattr(autotuning_workloads, "possible", lambda case, devices: True)
    monkeypatch.setattr(autotuning_workloads, "report", lambda name, figures: {"benchmark": name, **figures})
    found = main(["--cpu", "--only", "gpt2", "bert-base", "--lanes", "2", "--most-s", "33"])
    device = ["--device", "cpu", "--threads", "1"]
    assert begun == {
        "arguments": {"gpt2": device, "bert-base": device}, "seeds": [0], "devices": ["0", "1"],
        "most_s": 33.0,
    }  # fmt: skip
    assert found["benchmark"] == "autotuning_workloads_cpu_gpt2_bert-base"
    assert [*found["workloads"]] == ["gpt2", "bert-base"]
    assert found["workloads"]["bert-base"]["published"]["speed_up"] == 1.094
    assert found["workloads"]["bert-base"]["samples_per_step"] == 512


def test_an_unknown_workload_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--cpu", "--only", "gpt3"])
    assert "there is no workload gpt3; there are: gpt2, gpt2-medium" in capsys.readouterr().err
