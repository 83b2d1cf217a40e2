"""Acrobot is learned, and not by luck: the gate is set after a number of iterations, and not at the first good evaluation.

The most probable actions of a policy that has learned nothing sometimes swing the end up within 100 steps.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from trainer.ppo import rollout
from trainer.ppo.advantages import gae
from trainer.ppo.job import Job
from trainer.ppo.train import train

ITERATIONS = 10
"""Five of five seeds have −82 to −88 by then, four of them after half as many."""
SOLVED = -100.0


def trained() -> float:
    job = Job(env="Acrobot-v1", seed=0, iterations=ITERATIONS, evaluate_every=ITERATIONS, threads=1)
    result = train(job, lambda _: None)
    assert result.iterations == ITERATIONS
    assert result.evaluation_return is not None
    return result.evaluation_return


def test_a_few_iterations_learn_to_swing_up() -> None:
    assert trained() >= SOLVED


def test_broken_advantages_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def reversed_in_time(*fields: Tensor, **factors: Any) -> Tensor:
        return gae(*(field.flip(0) for field in fields), **factors).flip(0)

    monkeypatch.setattr(rollout, "gae", reversed_in_time)
    assert trained() < SOLVED
