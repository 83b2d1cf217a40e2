from __future__ import annotations

import json
import math

import torch

from hoptui_trainer.common.metrics import DelayedMetrics, Finished
from hoptui_trainer.ppo.report import PPOProgress, PPOResult, SteadyRate
from tests.golden import Golden

METRICS = {
    name: torch.tensor(value)
    for name, value in {
        "episode_return": 123.456,
        "episodes": 2.0,
        "policy_loss": -0.01234,
        "value_loss": 4.5678,
        "entropy": 0.6931,
    }.items()
}


def unknown(_: float) -> None:
    return None


def test_a_line_counts_the_steps_since_the_line_before(golden: Golden) -> None:
    lines = PPOProgress(1000)
    first = list(lines.parts(Finished(22, 3200, METRICS), 40, 2.2, unknown, None))
    assert first[-1] == "1,000 steps/s"
    golden(" · ".join(first) + "\n")
    assert list(lines.parts(Finished(23, 3300, METRICS), 40, 2.0, unknown, None))[-1] == "50 steps/s"


def test_an_evaluation_waits_for_the_next_line_and_is_told_once() -> None:
    lines = PPOProgress(0)
    lines.evaluation(481.26)
    assert "evaluation 481.3" in list(lines.parts(Finished(1, 10, METRICS), 9, 1.0, unknown, None))
    assert not any(
        "evaluation" in part for part in lines.parts(Finished(2, 20, METRICS), 9, 1.0, unknown, None)
    )


def test_an_unknown_return_is_drawn_as_a_gap() -> None:
    none = {**METRICS, "episode_return": torch.tensor(math.nan), "episodes": torch.tensor(0.0)}
    assert "return –" in PPOProgress(0).parts(Finished(1, 10, none), 9, 1.0, unknown, None)


def test_the_pace_is_of_the_iterations_that_were_added() -> None:
    pace = SteadyRate()
    assert (pace.per_s, pace.mfu) == (None, None)
    pace.add(100, 0.5, 0.25)
    pace.add(300, 1.5, 0.25)  # a step is cheaper now: what it costs at the end says nothing of the beginning
    assert (pace.per_s, pace.mfu) == (200.0, 0.25)
    pace.add(100, 0.5, None)
    assert (pace.per_s, pace.mfu) == (200.0, None)


def test_the_result_is_one_line_of_json_with_the_agreed_names(golden: Golden) -> None:
    result = PPOResult(
        best_iteration=None,
        best_file=None,
        env_steps=10,
        seconds=2.0,
        iterations=1,
        env_steps_per_s=5.0,
        steady_env_steps_per_s=None,
        mfu=None,
        peak_memory_bytes=1 << 20,
        minibatch_size=64,
        grad_accum=2,
        ending="stopped",
        restarts=0,
    )
    assert json.loads(result.json()) == {
        "workload": "ppo",
        "evaluation_return": None,
        "best_evaluation_return": None,
        "best_iteration": None,
        "best_file": None,
        "env_steps": 10,
        "seconds": 2.0,
        "iterations": 1,
        "env_steps_per_s": 5.0,
        "steady_env_steps_per_s": None,
        "mfu": None,
        "peak_memory_bytes": 1 << 20,
        "minibatch_size": 64,
        "grad_accum": 2,
        "ending": "stopped",
        "restarts": 0,
    }
    assert "\n" not in result.json()
    golden(f"{result.sentence()}\n")


def test_a_line_tells_utilization_and_memory_where_they_are_known() -> None:
    parts = list(
        PPOProgress(0).parts(Finished(1, 1000, METRICS), 9, 2.0, lambda rate: rate / 1000, 12_300_000_000)
    )
    assert parts[-3:] == ["500 steps/s", "50.0% MFU", "12.3 GB"]


def test_on_a_cpu_the_iteration_that_is_told_of_has_just_ended() -> None:
    delayed = DelayedMetrics(torch.device("cpu"))
    ended = [Finished(number, 10 * number, METRICS) for number in (1, 2, 3)]
    told = [delayed.ready(one, due=due) for one, due in zip(ended, (True, False, True), strict=True)]
    assert told == [ended[0], None, ended[2]]
