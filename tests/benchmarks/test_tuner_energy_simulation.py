"""A run whose fastest value is not its most efficient: each objective finds its own."""

from __future__ import annotations

import pytest

from benchmarks.tuner_energy_simulation import SIZES, PowerCurve, PowerLimitedRun, drive
from hoptui.presentation import tuner_report

CURVE = PowerCurve()
SEEDS = (1000, 1001)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_tuner_for_energy_chooses_the_most_efficient_value(seed: int) -> None:
    assert CURVE.most_efficient() == 32
    run, state = drive(CURVE, seed, "energy")
    assert run.value("micro_batch") == 32
    saving, pace = tuner_report.saving(state), tuner_report.throughput(state)
    assert saving is not None
    assert pace is not None
    assert abs(saving.share - (1 - CURVE.per_joule(4) / CURVE.per_joule(32))) <= saving.interval
    assert abs(pace.gain - (CURVE.rate(32) / CURVE.rate(4) - 1)) <= pace.interval
    assert saving.joules is not None
    assert saving.joules > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_tuner_for_throughput_chooses_the_fastest_value(seed: int) -> None:
    run, state = drive(CURVE, seed, "throughput")
    assert run.value("micro_batch") == SIZES[-1]
    assert tuner_report.saving(state) is None


def test_the_power_that_is_read_follows_a_change_late() -> None:
    run = PowerLimitedRun(PowerCurve(noise=0.0), 1)
    while run.t < 10.0:
        run.iterate()
    assert run.observation().drawn_w == pytest.approx(CURVE.watts(4))
    run.turn("micro_batch", 256)
    run.iterate()
    drawn_w = run.observation().drawn_w
    assert drawn_w is not None
    assert drawn_w < (CURVE.watts(4) + CURVE.watts(256)) / 2
    since = run.t
    while run.t < since + 4.0:
        run.iterate()
    assert run.observation().drawn_w == pytest.approx(CURVE.watts(256))
