"""The cost of a sample is found in the times of iterations, also where these drift."""

from __future__ import annotations

import random
from itertools import accumulate
from statistics import fmean

import pytest

from benchmarks.stack_cost import of_a_sample
from hoptui.sdk.stack_sampler import EVERY_S, SampleTimes

STEP_NS, COST_NS = 1_000_000, 250_000


def a_loop(seconds: int, cost_ns: int, seed: int = 1) -> tuple[list[int], list[int]]:
    """The ends of iterations that drift and are noisy, and the times of samples that each make one longer."""
    dice = random.Random(seed)
    times = SampleTimes(dice)
    stamps = [int(t * 1e9) for t in accumulate(times.pause_s(EVERY_S) for _ in range(10 * seconds))]
    ends, due = [0], iter(stamps)
    stamp = next(due, None)
    while ends[-1] < seconds * 1_000_000_000:
        drift = 1 + 0.1 * ends[-1] / (seconds * 1e9)
        took = int(STEP_NS * drift * dice.uniform(0.97, 1.03))
        while stamp is not None and stamp < ends[-1] + took:
            took += cost_ns
            stamp = next(due, None)
        ends.append(ends[-1] + took)
    return ends, stamps


@pytest.mark.parametrize("cost_ns", [0, COST_NS])
def test_the_cost_of_a_sample_is_found_without_a_bias(cost_ns: int) -> None:
    found = [of_a_sample(*a_loop(20, cost_ns, seed)) for seed in range(6)]
    assert fmean(each["microseconds"] for each in found) == pytest.approx(cost_ns / 1e3, abs=6)
    within = [each for each in found if each["interval"][0] <= cost_ns / 1e3 <= each["interval"][1]]
    assert len(within) >= 4
    for each in found:
        assert each["interval"][1] - each["interval"][0] < 30
        assert each["percent"] == pytest.approx(each["microseconds"] / 1e3, rel=0.1, abs=1e-3)  # of 100 ms


def test_nothing_is_said_of_long_iterations_and_few_samples() -> None:
    ends = list(accumulate([20_000_000] * 2_000))
    assert of_a_sample(ends, [n * 100_000_000 for n in range(1, 390)]) == {"samples": 0}
    ends, stamps = a_loop(4, 0)
    assert "microseconds" not in of_a_sample(ends, stamps[:10])
