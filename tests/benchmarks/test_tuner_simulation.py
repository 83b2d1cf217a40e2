"""The simulation of the tuner: a few short runs come near to the best there is, and it is honest about
them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.tuner_simulated import HOUR, LOADS, STEADY, Load, SimulatedRun
from benchmarks.tuner_simulation import drive, oracle, scenario

pytestmark = pytest.mark.slow

SEED = 1000


@pytest.mark.parametrize(
    ("name", "least"),
    [("memory-limited", 0.90), ("interior peak", 0.92), ("workers", 0.85)],
)
def test_it_comes_near_to_the_oracle(name: str, least: float) -> None:
    found = scenario(LOADS[name], (SEED,))
    assert found["share_of_oracle"] >= least
    assert found["share_of_oracle"] > found["untuned"] + 0.1
    assert 0 < found["regret"] <= found["regret_worst"] <= 0.04


def test_it_comes_near_to_it_beside_a_neighbour_and_never_breaks_the_product() -> None:
    load = LOADS["neighbour"]
    run, _ = drive(load, SEED)
    assert run.samples >= 0.88 * oracle(load)
    pieces, _ = drive(replace(LOADS["micro-batch × pieces"], seconds=900.0), SEED)
    assert pieces.value("micro_batch") * pieces.value("grad_accum") == 512


@pytest.mark.parametrize("name", STEADY)
def test_a_run_with_nothing_to_gain_is_hardly_touched(name: str) -> None:
    run, tuner = drive(replace(STEADY[name], seconds=1200.0), SEED)
    assert run.changes <= 2
    assert tuner.state.spent * run.t <= 0.02 * HOUR


def test_a_simulated_run_gives_way_where_memory_runs_out_and_says_so() -> None:
    run = SimulatedRun(Load(start=256), 1)
    run.iterate()
    assert run.ooms == 1
    assert run.value("micro_batch") == 128
