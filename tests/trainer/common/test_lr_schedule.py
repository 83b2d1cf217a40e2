from __future__ import annotations

import warnings
from itertools import pairwise

import pytest
import torch

from hoptui_trainer.common.lr_schedule import scale
from hoptui_trainer.lm.config import SCHEDULES, LMConfig
from hoptui_trainer.lm.update import learning_rate


def course(
    schedule: str, total: int, warmup: float = 0.1, cooldown: float = 0.3, final: float = 0.1
) -> list[float]:
    return [scale(schedule, s, total, warmup=warmup, cooldown=cooldown, final=final) for s in range(total)]


def test_one_cycle_is_the_one_of_torch() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=41, pct_start=11 / 41, div_factor=25.0, final_div_factor=1.0
    )
    theirs = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no step of the optimizer in between
        for _ in range(41):
            theirs.append(optimizer.param_groups[0]["lr"])
            scheduler.step() if len(theirs) < 41 else None
    ours = course("onecycle", 41, warmup=10 / 41, final=1 / 25)
    assert ours == pytest.approx(theirs)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_course_rises_to_its_peak_and_ends_where_it_should(schedule: str) -> None:
    values = course(schedule, 100)
    assert max(values) == pytest.approx(1.0)
    assert 0 < values[0] < 0.15
    assert all(later > sooner for sooner, later in pairwise(values[:11]))
    assert all(later <= sooner for sooner, later in pairwise(values[10:]))
    assert values[-1] == pytest.approx(1.0 if schedule == "constant" else 0.1)
    assert scale(schedule, 1000, 100, warmup=0.1, cooldown=0.3, final=0.1) == values[-1]


def test_warm_up_stable_decay_has_its_three_parts() -> None:
    values = course("wsd", 101, final=0.0)
    assert values[10:71] == [1.0] * 61
    assert values[85] == pytest.approx(0.5)
    assert values[100] == 0.0


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("total", [1, 2, 3])
@pytest.mark.parametrize("warmup", [0.0, 0.9])
def test_the_shortest_runs_have_a_learning_rate(schedule: str, total: int, warmup: float) -> None:
    assert all(0 < value <= 1 for value in course(schedule, total, warmup=warmup, cooldown=1.0))


def test_a_changed_peak_changes_the_next_step() -> None:
    config = LMConfig(lr=1e-3, schedule="constant", warmup=0.0)
    assert learning_rate(config, 5, 10) == 1e-3
    config.lr = 2e-3
    assert learning_rate(config, 6, 10) == 2e-3
