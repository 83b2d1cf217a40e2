from __future__ import annotations

import torch

from trainer.common.meter import Meter


def test_only_what_is_done_while_it_runs_counts() -> None:
    now = 0.0
    meter = Meter(torch.device("cpu"), lambda: now)
    meter.add(1000)  # the first iteration, in which everything is compiled
    assert (meter.running, meter.rate()) == (False, None)
    meter.begin()
    now = 1.0
    meter.begin()
    now = 2.0
    meter.add(10)
    with meter.apart():
        now = 50.0  # an evaluation
        assert not meter.running
    now = 53.0
    meter.add(15)
    meter.pause()
    meter.pause()
    assert meter.rate() == 5.0
