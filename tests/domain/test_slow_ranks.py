"""The rank that others wait for, by its samples, its phases and its iterations, and not by chance."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from benchmarks.simulated_job import Sampling, SimulatedJob
from hoptui.domain.jobs import JobState, RankSummary
from hoptui.domain.slow_ranks import SURE, comparable, doubt, evidence, pooled, slow_rank
from hoptui.domain.stragglers import deviation

SAMPLES = 200


def ranks(count: int, slow: dict[str, Any] | None = None, **fields: Any) -> dict[int, RankSummary]:
    """So many ranks with these fields. Rank 5 has those of `slow` too."""
    usual: dict[str, Any] = {"iteration_s": 0.5, "samples": SAMPLES, "progress_age_s": 0.1} | fields
    found = {rank: RankSummary(rank=rank, condition="live", **usual) for rank in range(count)}
    return found | {5: RankSummary(rank=5, condition="live", **usual | (slow or {}))}


def named(found: dict[int, RankSummary]) -> tuple[int, str] | None:
    slow = slow_rank(found)
    return (slow.rank, slow.basis) if slow is not None and slow.named else None


def uneven(count: int, value: float, by: float, **slow: Any) -> dict[int, RankSummary]:
    """Ranks whose time in phases differs by about so much."""
    found = ranks(count, slow, waiting=0.1, work_s=value, phases="data,optimizer")
    return {
        rank: one if rank == 5 else structs.replace(one, work_s=value + by * (rank % 3 - 1))
        for rank, one in found.items()
    }


def at(job: SimulatedJob, seconds: int) -> JobState:
    for _ in range(seconds):
        job.tick()
    return job.state()


def test_the_rank_that_waits_least_is_named_by_its_samples() -> None:
    assert named(ranks(8, {"waiting": 0.02}, waiting=0.2)) == (5, "waits")
    assert named(ranks(8, {"waiting": 0.18}, waiting=0.2)) is None


def test_ranks_that_wait_inside_the_backward_pass_are_compared_by_that() -> None:
    slow = {"waiting": 0.0, "backward": 0.2}
    assert named(ranks(8, slow, waiting=0.0, backward=0.5)) == (5, "backward")
    apart = ranks(8, slow | {"iteration_s": 0.4}, waiting=0.0, backward=0.5)
    assert named(apart) is None, "ranks whose iterations differ do not wait for each other"


@pytest.mark.parametrize("step", ["longer than the time between samples", "as long as it"])
def test_even_ranks_are_compared_by_how_much_they_usually_differ(step: str) -> None:
    if step == "as long as it":
        state = at(SimulatedJob(512, seed=3, collective=0.3, own_s=0.07, sampling="regular"), 20)
        assert worst_by_chance(state) < -SURE, "independent samples would accuse an even rank"
    else:
        state = at(SimulatedJob(512, seed=3, collective=0.1), 20)
    assert named(comparable(state)) is None


def worst_by_chance(state: JobState) -> float:
    """How much less than all others a rank waits, in standard deviations of independent samples."""
    counts = evidence(comparable(state)).waits
    waits, total = (sum(each) for each in zip(*counts.values(), strict=True))
    return min(deviation(count, of, waits - count, total - of) for count, of in counts.values())


def test_the_sampler_does_not_beat_with_iterations_as_long_as_its_period() -> None:
    state = at(SimulatedJob(512, seed=3, collective=0.3, own_s=0.07), 20)
    assert -SURE < worst_by_chance(state) < -2
    assert named(comparable(state)) is None


@pytest.mark.parametrize("seed", range(4))
def test_few_even_ranks_are_compared_by_how_much_theirs_changes(seed: int) -> None:
    """Iterations as long as the time between two samples: independent samples would accuse a rank here."""
    job = SimulatedJob(8, seed=50 + seed, collective=0.5, own_s=0.05, sampling="regular")
    at(job, 19)
    accused = 0
    for _ in range(60):
        state = at(job, 1)
        assert named(comparable(state)) is None
        bare = {rank: structs.replace(one, dispersion=None) for rank, one in comparable(state).items()}
        accused += named(bare) is not None
    assert accused or seed, "the case tests something"


def test_regular_samples_say_more_than_independent_ones() -> None:
    found: dict[Sampling, float] = {"sampler": 0.0, "regular": 0.0, "independent": 0.0}
    for sampling in found:
        for seed in range(3):
            job = SimulatedJob(512, seed=seed, fault="slow", fault_at=1, bad=5, sampling=sampling)
            slow = slow_rank(comparable(at(job, 20)))
            assert slow is not None
            assert slow.rank == 5
            found[sampling] += slow.deviation / 3
    assert found["regular"] > 1.2 * found["independent"]
    assert found["regular"] > found["sampler"] > found["independent"]


def test_a_small_measured_part_of_an_iteration_counts_where_samples_agree() -> None:
    """Rank 5 takes 10 % longer in phases that are a tenth of an iteration."""
    less = {"waiting": 0.04, "samples": 100}
    assert named(uneven(64, 0.05, 0.0005, work_s=0.055, **less)) == (5, "phases")
    assert named(uneven(64, 0.05, 0.0005, work_s=0.055)) is None, "nobody waits for it"
    assert named(uneven(64, 0.05, 0.0005, work_s=0.0506, **less)) is None, "as the others"


def test_a_large_measured_part_of_an_iteration_counts_alone() -> None:
    without = {"waiting": None, "samples": None}
    assert named(uneven(64, 0.4, 0.002, work_s=0.44, **without)) == (5, "phases")
    assert named(uneven(64, 0.4, 0.02, work_s=0.44, **without)) is None, "the ranks differ that much"


def test_ranks_with_other_phases_are_not_compared_by_them() -> None:
    assert named(uneven(64, 0.4, 0.002, work_s=0.9, phases="data,evaluation")) is None


def test_times_together_have_the_ranks_that_all_have() -> None:
    one, other = evidence(ranks(4, waiting=0.1)), evidence(ranks(6, waiting=0.2))
    assert pooled([one, other]).waits == dict.fromkeys((0, 1, 2, 3, 5), (60, 400))


@pytest.mark.parametrize(
    ("slow", "usual", "why"),
    [
        ({"waiting": 0.02}, 0.2, None),
        ({"waiting": 0.15}, 0.2, "chance"),
        ({"waiting": 0.01, "samples": 4000}, 0.055, "small"),
        ({"waiting": 0.02, "samples": 10}, 0.2, "few_samples"),
        ({"waiting": 0.02}, 0.2, "late"),
    ],
)
def test_what_keeps_a_rank_from_being_named_is_known(
    slow: dict[str, Any], usual: float, why: str | None
) -> None:
    late = {"progress_age_s": 30.0} if why == "late" else {}
    found = ranks(8, slow, waiting=usual, **late)
    assert doubt(5, found, slow_rank(found))[0] == why


def test_another_rank_that_is_named_is_the_reason() -> None:
    found = ranks(8, {"waiting": 0.0}, waiting=0.3)
    assert doubt(2, found, slow_rank(found))[0] == "slower_rank"


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert slow_rank({}) is None
    assert slow_rank(ranks(2, iteration_s=None, samples=None)) is None
