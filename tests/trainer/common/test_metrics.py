"""The metrics of an iteration as they are logged."""

from __future__ import annotations

import math

import torch

from hoptui_trainer.common.metrics import measured

CPU = torch.device("cpu")


def test_a_rare_metric_is_left_out_where_there_is_none() -> None:
    metrics = {"loss": torch.tensor(0.5), "episode_return": torch.tensor(math.nan)}
    assert measured(metrics, CPU, rare=("episode_return",)) == {"loss": 0.5}
    metrics["episode_return"] = torch.tensor(21.0)
    assert measured(metrics, CPU, rare=("episode_return",)) == {"loss": 0.5, "episode_return": 21.0}


def test_a_loss_that_is_no_number_is_logged() -> None:
    found = measured({"loss": torch.tensor(math.nan)}, CPU, rare=("episode_return",))
    assert math.isnan(float(found["loss"]))
