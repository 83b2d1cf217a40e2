from __future__ import annotations

import json
import math

import torch

from trainer.ppo.report import CONVENTIONS, Console, Result

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


def test_lines_come_at_most_once_a_second_and_the_conventions_once() -> None:
    lines: list[str] = []
    now = [100.0]
    console = Console(lines.append, clock=lambda: now[0])
    console.begin(["hello"], env_steps=1000)
    assert lines == ["hello", *CONVENTIONS]
    for step in range(1, 31):
        now[0] += 0.1
        console.iteration(step, 40, 1000 + step * 100, METRICS)
    assert len(lines) == len(CONVENTIONS) + 1 + 2
    assert lines[-1] == (
        "iteration 22/40 · env steps 3,200 · return 123.5 (2 episodes) · policy loss -0.0123 · value loss 4.57 · "
        "entropy 0.693 · 1,000 steps/s"
    )


def test_an_evaluation_waits_for_the_next_line_and_is_told_once() -> None:
    lines: list[str] = []
    now = [0.0]
    console = Console(lines.append, clock=lambda: now[0])
    console.begin([], env_steps=0)
    console.evaluation(481.26)
    console.iteration(1, 9, 10, METRICS)
    assert len(lines) == len(CONVENTIONS)
    for _ in range(2):
        now[0] += 2.0
        console.iteration(2, 9, 20, METRICS)
    assert "evaluation 481.3" in lines[-2]
    assert "evaluation" not in lines[-1]


def test_an_unknown_return_is_drawn_as_a_gap() -> None:
    lines: list[str] = []
    now = [0.0]
    console = Console(lines.append, clock=lambda: now[0])
    console.begin([], env_steps=0)
    now[0] = 2.0
    none = {**METRICS, "episode_return": torch.tensor(math.nan), "episodes": torch.tensor(0.0)}
    console.iteration(1, 9, 10, none)
    assert "· return – ·" in lines[-1]


def test_the_result_is_one_line_of_json_with_the_agreed_names() -> None:
    result = Result(
        evaluation_return=None, env_steps=10, seconds=2.0, iterations=1, env_steps_per_s=5.0, ending="stopped"
    )
    assert json.loads(result.json()) == {
        "evaluation_return": None,
        "env_steps": 10,
        "seconds": 2.0,
        "iterations": 1,
        "env_steps_per_s": 5.0,
    }
    assert "\n" not in result.json()
    assert result.sentence() == "stopped after 1 iterations and 10 env steps; 2.0 s, 5 steps/s"
