"""Runs that wait for data: workers deliver in turns, so that a wait for all of them comes once in as many
iterations."""

from __future__ import annotations

import random
from statistics import median

import pytest

from hoptui.domain.throughput import level, uneven
from hoptui.tuner.effect import BLOCK, LOOKS, WARM_UP, measure, plan_for
from hoptui.tuner.trial import harmful
from tests.tuner.test_effect import throughput

COMPUTE_S = 0.01
SEEDS = 30


def reading(workers: int, each_s: float, n: int, seed: int = 0) -> list[float]:
    """Iterations a second of a run whose every batch one of `workers` reads, which takes about `each_s`, one
    after another."""
    chance = random.Random(seed)
    ready = [0.0] * workers
    now, rates = 0.0, []
    for i in range(n + 2 * workers):  # the first are from an empty start
        ready[i % workers] += each_s * chance.uniform(0.95, 1.05)
        before, now = now, max(now, ready[i % workers]) + COMPUTE_S
        rates.append(1 / (now - before))
    return rates[2 * workers :]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8, 14, 24])
def test_the_level_of_a_run_that_waits_is_its_work_over_its_time(workers: int) -> None:
    rates = reading(workers, 0.4, 90)
    true = workers / 0.4
    assert level(rates) == pytest.approx(true, rel=0.1)
    if workers >= 8:
        assert median(rates) == pytest.approx(1 / COMPUTE_S), "most of its iterations wait for nothing"


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (4, 8), (8, 16), (16, 8), (8, 4), (24, 4)])
def test_what_more_workers_bring_is_seen(before: int, after: int) -> None:
    for seed in range(SEEDS):
        found = measure("m", reading(before, 0.4, 90, seed), reading(after, 0.4, 90 + WARM_UP, seed + 99))
        assert found.gain is not None
        assert found.interval is not None
        assert found.detectable
        assert abs(found.gain - (after / before - 1)) < max(found.interval, 0.15 * after / before)


@pytest.mark.parametrize(("before", "after"), [(4, 8), (8, 14), (8, 2), (14, 4), (4, 24)])
def test_workers_that_share_a_slow_disk_bring_nothing(before: int, after: int) -> None:
    """Each of twice as many takes twice as long: the same speed, in longer bursts and longer waits."""
    found = [
        measure(
            "m",
            reading(before, 0.05 * before, 90, seed),
            reading(after, 0.05 * after, 90 + WARM_UP, seed + 99),
        )
        for seed in range(SEEDS)
    ]
    told = [f.gain for f in found if f.detectable and f.gain is not None and abs(f.gain) > 0.1]
    assert len(told) <= 0.1 * SEEDS, told


@pytest.mark.parametrize("seed", range(20))
def test_spikes_are_no_waits(seed: int) -> None:
    rates = throughput(seed, 90)
    assert not uneven(rates)
    assert level(rates) == median(rates)
    cluster = [*rates[:30], *[300.0] * BLOCK, *rates[30:]]
    assert not uneven(cluster)


def test_one_spike_among_few_iterations_settles_nothing() -> None:
    old, new = [100.0] * 90, [200.0] * (WARM_UP + LOOKS[1])
    new[WARM_UP + 7] = 20.0
    assert not measure("m", old, new[: WARM_UP + LOOKS[0]]).settled
    found = measure("m", old, [*new, *[200.0] * LOOKS[-1]])
    assert found.settled
    assert found.gain == pytest.approx(1.0)


def test_a_wait_in_every_other_iteration_is_not_taken_for_harm() -> None:
    eight, sixteen = [1000.0, 1000.0, 1000.0, 91.0] * 12, [500.0, 91.0] * 12
    assert level(sixteen) == pytest.approx(0.56 * level(eight), rel=0.05)
    assert not harmful(eight, sixteen)
    assert harmful(eight, [91.0] * 12)


def test_a_burst_of_what_new_readers_have_read_is_not_taken_for_their_speed() -> None:
    """From one worker to sixteen that share its disk."""
    old = reading(1, 0.05, 90)
    new = [*[100.0] * 48, *reading(16, 0.8, 90)]
    assert measure("m", old, new[: WARM_UP + 45], plan_for(["micro_batch"], trial=True)).settled
    found = measure("m", old, new[: WARM_UP + 45], plan_for(["num_workers"], trial=True))
    assert (found.settled, found.gain) == (False, None)
