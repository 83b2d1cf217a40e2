"""The reason why the size of DDP's buckets is no knob."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hoptui.integrations.gradient_buckets import NAME, decline_buckets


class Declining:
    """Takes the reasons of a run."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def decline(self, name: str, reason: str) -> None:
        self.reasons[name] = reason


class OwnDDP(torch.nn.parallel.DistributedDataParallel):
    """As a framework may derive it."""


@pytest.mark.parametrize(
    ("wrapped", "reason"),
    [
        (torch.nn.Linear(1, 1), "does not use DistributedDataParallel"),
        (OwnDDP.__new__(OwnDDP), "makes its buckets once: set bucket_cap_mb and start again"),
        (None, "does not use DistributedDataParallel"),
    ],
    ids=["alone", "ddp", "no model"],
)
def test_the_reason_names_the_setting_of_the_script(wrapped: Any, reason: str) -> None:
    run: Any = Declining()
    decline_buckets(run, wrapped, "bucket_cap_mb")
    assert reason in run.reasons[NAME]
