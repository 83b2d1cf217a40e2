from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import pytest
import torch

from hoptui_trainer.common.applicability import Circumstances, check_applies
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.lr_schedule import (
    SCHEDULE_RULES,
    SCHEDULES,
    learning_rate,
    scale,
    settle_warm_up,
)
from hoptui_trainer.lm.config import LMConfig
from hoptui_trainer.vision.config import VisionConfig


def course(
    schedule: str,
    total: int,
    warmup: float = 0.1,
    warmup_steps: int = 0,
    cooldown: float = 0.3,
    final: float = 0.1,
) -> list[float]:
    fixed: dict[str, Any] = {"warmup": warmup, "warmup_steps": warmup_steps}
    return [scale(schedule, s, total, **fixed, cooldown=cooldown, final=final) for s in range(total)]


def one_cycle_of_torch(total: int, part: float, final_div_factor: float) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=total, pct_start=part, final_div_factor=final_div_factor
    )
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no step of the optimizer in between
        for _ in range(total):
            found.append(optimizer.param_groups[0]["lr"])
            scheduler.step() if len(found) < total else None
    return found


@pytest.mark.parametrize(("total", "part"), [(1000, 0.1), (41, 0.3), (37, 0.1), (100, 0.9), (20, 0.02)])
@pytest.mark.parametrize("final_div_factor", [1e4, 1.0])
def test_one_cycle_is_the_one_of_torch(total: int, part: float, final_div_factor: float) -> None:
    theirs = one_cycle_of_torch(total, part, final_div_factor)
    ours = course("onecycle", total, warmup=part, final=1 / (25 * final_div_factor))
    if part * total >= 1:
        assert ours == pytest.approx(theirs, rel=1e-12)
    else:  # theirs begins as if the peak were before the first step
        assert ours[0] == 1.0
        assert ours[-1] == pytest.approx(theirs[-1])


def test_one_cycle_takes_a_number_of_steps() -> None:
    ours = course("onecycle", 1000, warmup=0.5, warmup_steps=100, final=4e-6)
    assert ours == pytest.approx(one_cycle_of_torch(1000, 0.1, 1e4), rel=1e-12)
    assert ours.index(1.0) == 99


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_warm_up_is_a_part_or_a_number_of_steps(schedule: str) -> None:
    by_steps = course(schedule, 5000, warmup=0.5, warmup_steps=1000)
    assert by_steps[999] == pytest.approx(1000 / 1001)
    assert by_steps.index(1.0) == 1000
    assert by_steps == course(schedule, 5000, warmup=0.2)
    # The number does not depend on how long the run is.
    assert course(schedule, 9000, warmup_steps=1000)[:1001] == by_steps[:1001]
    assert course(schedule, 10, warmup_steps=1000) == [(step + 1) / 1001 for step in range(10)]


@pytest.mark.parametrize("kind", [LMConfig, VisionConfig])
def test_options_of_a_schedule_that_have_no_effect_are_refused(kind: type[LMConfig | VisionConfig]) -> None:
    def check(config: LMConfig | VisionConfig, **given: float) -> None:
        check_applies(SCHEDULE_RULES, Circumstances(config=config, on_gpu=False), given)

    for schedule in set(SCHEDULES) - {"wsd"}:
        with pytest.raises(UsageError, match=f"^--cooldown: schedule {schedule} has no cooldown"):
            check(kind(schedule=schedule), cooldown=0.9)
    with pytest.raises(UsageError, match=r"^--final-lr: schedule constant does not fall"):
        check(kind(schedule="constant"), final_lr=0.9)
    check(kind(schedule="wsd"), cooldown=0.9, final_lr=0.0, warmup_steps=7)


@pytest.mark.parametrize("kind", [LMConfig, VisionConfig])
def test_a_part_wins_over_the_steps_of_a_checkpoint(kind: type[LMConfig | VisionConfig]) -> None:
    with pytest.raises(UsageError, match=r"^--warmup and --warmup-steps"):
        settle_warm_up(kind(), {"warmup": 0.1, "warmup_steps": 5})
    resumed = kind(warmup=0.1, warmup_steps=7)
    settle_warm_up(resumed, {})
    assert resumed.warmup_steps == 7
    settle_warm_up(resumed, {"warmup": 0.1})
    assert resumed.warmup_steps == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_course_rises_to_its_peak_and_ends_where_it_should(schedule: str) -> None:
    values = course(schedule, 100)
    assert max(values) == pytest.approx(1.0)
    assert 0 < values[0] < 0.15
    peak = 9 if schedule == "onecycle" else 10  # as torch has it
    assert values[peak] == 1.0
    assert all(later > sooner for sooner, later in pairwise(values[: peak + 1]))
    assert all(later <= sooner for sooner, later in pairwise(values[peak:]))
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
