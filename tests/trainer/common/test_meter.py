from __future__ import annotations

import torch

from hoptui_trainer.common.meter import Meter


def test_only_what_is_done_while_it_runs_counts() -> None:
    now = 0.0
    meter = Meter(torch.device("cpu"), lambda: now)
    meter.add(1000, 9.0)  # the first iteration, in which everything is compiled
    assert (meter.running, meter.rate(), meter.mfu()) == (False, None, None)
    meter.begin()
    now = 1.0
    meter.begin()
    now = 2.0
    meter.add(10, 1.0)
    with meter.apart():
        now = 50.0  # an evaluation
        assert not meter.running
    now = 53.0
    meter.add(15, 0.5)  # cheaper, or measured against a higher peak
    meter.pause()
    meter.pause()
    assert (meter.rate(), meter.mfu()) == (5.0, 0.3)


def test_what_is_apart_before_it_runs_does_not_let_it_run() -> None:
    now = 0.0
    meter = Meter(torch.device("cpu"), lambda: now)
    with meter.apart():
        now = 5.0
    assert not meter.running
    meter.begin()
    with meter.apart(), meter.apart():
        now = 10.0
    assert meter.running
    now = 12.0
    meter.add(4, None)
    meter.pause()
    assert (meter.rate(), meter.mfu()) == (2.0, None)
