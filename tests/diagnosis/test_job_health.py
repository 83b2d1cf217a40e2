"""One bad rank or node among 512 is named soon and once, and even ranks are not accused."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from benchmarks.simulated_job import Fault, SimulatedJob
from hoptui.diagnosis.job_health import JobHealth
from hoptui.domain.facts import Fact

WITHIN_S = 20
CODES = {"slow": "job.slow_rank", "hung": "job.hung_rank", "silent": "job.silent_node"}


def reports(job: SimulatedJob, seconds: int) -> list[tuple[int, Fact]]:
    """What is reported in so many seconds, each with its second."""
    health, found = JobHealth(), []
    for _ in range(seconds):
        job.tick()
        found += [(job.t, what) for what in health.look(job.state(), float(job.t))]
    return found


@pytest.mark.parametrize("fault", CODES)
def test_a_bad_rank_among_512_is_named_once(fault: Fault) -> None:
    bad = random.Random(fault).randrange(512)
    job = SimulatedJob(512, fault=fault, fault_at=25, bad=bad, seed=7)
    ((t, what),) = reports(job, 25 + WITHIN_S + 5)
    assert what.code == CODES[fault]
    assert t - 25 <= WITHIN_S
    assert what.fields["host"] == f"node-{bad // 8:04d}"
    if fault == "silent":
        assert what.fields["ranks"] == list(range(bad // 8 * 8, bad // 8 * 8 + 8))
    else:
        assert what.fields["rank"] == bad


def test_a_slow_rank_is_named_soon_by_the_phases_that_it_times() -> None:
    """A fifth of the work is measured. The samples are those of independent times, which tell least."""
    job = SimulatedJob(512, fault="slow", fault_at=25, bad=37, seed=7, sampling="independent", measured=0.2)
    ((t, what),) = reports(job, 25 + WITHIN_S)
    assert (what.fields["rank"], what.fields["basis"], what.fields["phases"]) == (
        37,
        "phases",
        "data,optimizer",
    )
    assert t - 25 <= 15


def test_the_report_holds_until_its_end() -> None:
    job, health = SimulatedJob(16, fault="slow", fault_at=3, bad=9, seed=2), JobHealth()
    held = []
    for second in range(170):
        if second == 40:
            job.fault = "none"
        job.tick()
        health.look(job.state(), float(second))
        held.append(health.slow.fields["rank"] if health.slow is not None else None)
    assert held[2] is None
    assert held[40] == 9
    assert held[-1] is None


@pytest.mark.parametrize(("collective", "own_s"), [(0.02, 0.5), (0.3, 0.07)])
def test_even_ranks_are_not_accused(collective: float, own_s: float) -> None:
    assert reports(SimulatedJob(64, seed=3, collective=collective, own_s=own_s), 120) == []


def test_a_hung_rank_goes_on_only_if_it_passes_a_boundary() -> None:
    """A process that is suspended sends no samples. After a while none is left, and nothing says what it
    does."""
    job, health = SimulatedJob(16, fault="hung", fault_at=3, bad=9, seed=2), JobHealth()
    found: list[Fact] = []
    for second in range(60):
        if second == 45:
            job.fault = "none"
        job.tick()
        state = job.state()
        if second > 25:
            node = state.nodes[1]
            assert node.summary is not None
            ranks = tuple(
                structs.replace(rank, waiting=None, line="") if rank.rank == 9 else rank
                for rank in node.summary.ranks
            )
            node = structs.replace(node, summary=structs.replace(node.summary, ranks=ranks))
            state = structs.replace(state, nodes=(state.nodes[0], node))
        found += health.look(state, float(second))
        if second == 44:
            assert [what.code for what in found] == ["job.hung_rank"]
    assert [what.code for what in found] == ["job.hung_rank", "job.progress"]


@pytest.mark.parametrize(("world", "seed"), [(16, 0), (16, 1), (16, 2), (64, 3), (512, 4)])
def test_a_slow_node_is_named_as_one(world: int, seed: int) -> None:
    bad = random.Random(seed).randrange(world)
    job = SimulatedJob(world, fault="slow node", fault_at=25, bad=bad, seed=seed)
    found = reports(job, 25 + 60)
    first = bad // 8 * 8
    named = [(t, what) for t, what in found if what.fields["ranks"]]
    ((t, what),) = named
    assert t - 25 <= 2 * WITHIN_S
    assert what.fields["ranks"] == list(range(first, first + 8))
    assert what.fields["host"] == f"node-{bad // 8:04d}"
    assert {each.code for _, each in found} == {"job.slow_rank"}, "none of its ranks goes on by itself"
    assert all(before.fields["rank"] // 8 == bad // 8 for before_t, before in found if before_t < t)
    assert found[-1][1] is what, "and none is slow by itself"


def test_the_end_of_a_slow_node_is_one() -> None:
    job, health = SimulatedJob(16, fault="slow node", fault_at=3, bad=9, seed=2), JobHealth()
    found: list[Fact] = []
    for second in range(200):
        if second == 60:
            job.fault = "none"
        job.tick()
        found += health.look(job.state(), float(second))
    assert [(what.code, what.fields["ranks"]) for what in found[-2:]] == [
        ("job.slow_rank", list(range(8, 16))),
        ("job.even", list(range(8, 16))),
    ]
    assert health.slow is None


@pytest.mark.parametrize("per_node", [2, 4, 8])
def test_a_slow_rank_is_not_taken_for_its_node(per_node: int) -> None:
    bad = random.Random(per_node).randrange(2 * per_node)
    job = SimulatedJob(2 * per_node, per_node=per_node, fault="slow", fault_at=25, bad=bad, seed=per_node)
    found = reports(job, 120)
    assert found
    for _, what in found:
        assert (what.fields["rank"], what.fields["ranks"]) == (bad, [])


def test_the_end_of_a_fault_is_reported_once() -> None:
    job, health = SimulatedJob(16, fault="silent", fault_at=3, bad=9, seed=2), JobHealth()
    found: list[Fact] = []
    for second in range(30):
        if second == 20:
            job.fault = "none"
        job.tick()
        found += health.look(job.state(), float(second))
    assert [what.code for what in found] == ["job.silent_node", "job.node_back"]


def test_a_store_that_fails_and_a_restart_accuse_nobody() -> None:
    job, health = SimulatedJob(16, fault="silent", fault_at=3, bad=9, seed=2), JobHealth()
    found: list[Fact] = []
    for second in range(20):
        job.tick()
        found += health.look(structs.replace(job.state(), store_problem="it is gone"), float(second))
    assert found == []
    health.look(structs.replace(job.state(), epoch=1), 20.0)
    assert health.look(structs.replace(job.state(), epoch=2), 21.0) == []
