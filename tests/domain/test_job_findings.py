"""What is wrong in a job: each fault is found with its node, rank and GPU, and an even job has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from hoptui.domain.facts import Fact, fact
from hoptui.domain.job_findings import findings
from hoptui.domain.job_history import JobHistory
from hoptui.domain.jobs import JobState, RankSummary
from hoptui.presentation import sentences
from screenshots.made_up_job import state, states

REPORT = fact("job.slow_rank", rank=5, world=64, host="gpu00")
Change = Callable[[RankSummary], RankSummary]


def changed(job: JobState, change: Change) -> JobState:
    """The job with each rank changed."""
    nodes = []
    for node in job.nodes:
        assert node.summary is not None
        summary = structs.replace(node.summary, ranks=tuple(map(change, node.summary.ranks)))
        nodes.append(structs.replace(node, summary=summary))
    return structs.replace(job, nodes=tuple(nodes))


def even(nodes: int = 8, ranks: int = 8) -> JobState:
    return state(nodes, ranks, 100.0, faults=False)


def of_rank(rank: int, **fields: Any) -> Change:
    """Change a rank, and with `gpu` fields of its GPU."""
    of_gpu = fields.pop("gpu", {})

    def change(one: RankSummary) -> RankSummary:
        if one.rank != rank:
            return one
        assert one.gpu is not None
        return structs.replace(one, **fields, gpu=structs.replace(one.gpu, **of_gpu))

    return change


def codes(found: list[Fact]) -> list[str]:
    return [one.code for one in found]


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 1), (2, 2), (8, 8), (64, 8)])
def test_an_even_job_has_no_findings(nodes: int, ranks: int) -> None:
    history = JobHistory()
    for t, one in states(nodes, ranks, 60, first=45, faults=False):
        history.add(t, one)
    assert history.state is not None
    assert findings(history.state, history.moments) == []


def test_one_slow_rank_of_512_is_found_with_its_node_gpu_and_line() -> None:
    history = JobHistory()
    for t, one in states(64, 8, 85, first=72):
        history.add(t, one)
    assert history.state is not None
    found = [one for one in findings(history.state, history.moments) if one.code == "job.own_time"]
    assert [one.fields["rank"] for one in found] == [328]
    fields = found[0].fields
    assert (fields["host"], fields["gpu"], fields["line"]) == ("gpu41", 0, "data.py:37 augment")
    assert fields["value"] > 1.4 * fields["usual"]
    assert sentences.sentence(found[0]).startswith("rank 328 (gpu41, GPU 0) takes 5")


def test_the_rank_that_the_head_reports_is_named_once_and_others_with_the_reason() -> None:
    slow = structs.replace(changed(even(), of_rank(5, iteration_s=0.8, waiting=0.0)), slow=REPORT)
    (found,) = [one for one in findings(slow) if one.fields.get("rank") == 5]
    assert found == REPORT
    both = changed(slow, of_rank(9, iteration_s=0.8, waiting=0.05))
    assert [(one.code, one.fields["rank"], one.fields.get("doubt")) for one in findings(both)] == [
        ("job.slow_rank", 5, None),
        ("job.own_time", 9, "slower_rank"),
    ]
    assert sentences.sentence(findings(both)[1]).endswith("it is not reported as slow: rank 5 is")


def test_a_long_own_time_that_no_evidence_confirms_has_a_reason() -> None:
    job = changed(even(), waits)
    few = changed(job, of_rank(5, waiting=0.0, samples=20))
    unsure = changed(job, of_rank(5, waiting=0.41, samples=100))
    sure = changed(job, of_rank(5, waiting=0.1))
    for each, why in ((few, "few_samples"), (unsure, "chance"), (sure, None)):
        assert [(one.fields["rank"], one.fields["doubt"]) for one in findings(each)] == [(5, why)]


def test_the_only_rank_that_does_not_answer_holds_up_a_hung_run() -> None:
    def hangs(one: RankSummary) -> RankSummary:
        stopped = one.rank == 5
        return structs.replace(
            one, condition="unknown" if stopped else "hung", progress_age_s=20.0, waiting=1.0, line=""
        )

    (found,) = findings(changed(even(), hangs))
    assert (found.code, found.fields["rank"], found.fields["heard"]) == ("job.hung_rank", 5, False)


def test_a_single_slow_second_is_no_finding() -> None:
    history, job = JobHistory(), even()
    for second in range(30):
        slow = changed(job, of_rank(5, iteration_s=0.8, waiting=0.0)) if second == 29 else job
        history.add(float(second), slow)
    assert codes(findings(slow, history.moments)) == []
    assert codes(findings(slow)) == ["job.own_time"], "it is slow in that second"


@pytest.mark.parametrize(
    ("gpu", "code"),
    [
        ({"clock_mhz": 1200.0}, "job.low_clock"),
        ({"clock_mhz": 1200.0, "throttled": "power_cap"}, "job.low_clock"),
        ({"clock_mhz": 1960.0, "throttled": "thermal_hardware"}, "job.throttled"),
    ],
)
def test_a_gpu_with_lower_clocks_is_found(gpu: dict[str, Any], code: str) -> None:
    (found,) = findings(changed(even(), of_rank(13, gpu=gpu)))
    assert (found.code, found.fields["rank"], found.fields["host"], found.fields["gpu"]) == (
        code,
        13,
        "gpu01",
        5,
    )


def test_an_idle_gpu_may_have_low_clocks() -> None:
    assert findings(changed(even(), of_rank(13, gpu={"clock_mhz": 300.0, "utilization": 0.0}))) == []


def waits(one: RankSummary) -> RankSummary:
    """All ranks wait for half of the time, and compute as long as before."""
    assert one.iteration_s is not None
    assert one.own_s is not None
    return structs.replace(one, iteration_s=2 * one.own_s, waiting=0.5)


def test_a_gpu_whose_nvlink_carries_little_is_found_only_while_ranks_wait() -> None:
    change = of_rank(20, gpu={"nvlink_bytes_s": 1e9})
    assert findings(changed(even(), change)) == []
    (found,) = findings(changed(changed(even(), change), waits))
    assert (found.code, found.fields["link"], found.fields["rank"]) == ("job.slow_link", "nvlink", 20)


def test_a_node_with_little_network_traffic_is_found() -> None:
    job = changed(even(), waits)
    node = job.nodes[3]
    assert node.summary is not None
    slow = structs.replace(node.summary, sent_bytes_s=1e9, received_bytes_s=1e9)
    nodes = (*job.nodes[:3], structs.replace(node, summary=slow), *job.nodes[4:])
    (found,) = findings(structs.replace(job, nodes=nodes))
    assert (found.code, found.fields["link"], found.fields["host"]) == ("job.slow_link", "network", "gpu03")
    assert found.fields["value"] == 2e9


def test_a_network_that_becomes_slower_for_all_is_found_by_the_history() -> None:
    history, job = JobHistory(), even()
    slower = changed(job, waits)
    slower = structs.replace(
        slower,
        nodes=tuple(
            structs.replace(
                node, summary=structs.replace(node.summary, sent_bytes_s=4e9, received_bytes_s=4e9)
            )
            for node in slower.nodes
            if node.summary is not None
        ),
    )
    for second in range(100):
        now = job if second < 60 else slower
        history.add(float(second), now)
    assert codes(findings(now, history.moments)) == ["job.slower_network"]
    assert findings(now) == [], "without a past there is nothing to compare with"


def test_nodes_that_are_silent_or_missing_are_named() -> None:
    found = findings(state(10, 2, 50.0))
    assert [(one.code, one.fields["node"]) for one in found] == [
        ("job.missing_node", 9),
        ("job.silent_node", 8),
    ]
    assert sentences.sentence(found[1]) == "node gpu08 (ranks 16–17 of 20) has been silent for 38 s"


def test_the_hung_rank_that_works_is_the_cause_and_those_that_wait_are_not() -> None:
    def hang(one: RankSummary) -> RankSummary:
        stuck = one.rank == 17
        return structs.replace(
            one, condition="hung", progress_age_s=42.0, waiting=0.0 if stuck else 1.0,
            line="data.py:37 read" if stuck else "", kind="input" if stuck else "",
        )  # fmt: skip

    (found,) = findings(changed(even(), hang))
    assert (found.code, found.fields["rank"], found.fields["age_s"]) == ("job.hung_rank", 17, 42.0)
    assert sentences.sentence(found) == (
        "no iteration ended for 42 s: rank 17 of 64 on gpu02 does not wait for the others: "
        "it is in data.py:37 read"
    )


def test_a_node_without_progress_is_named_while_others_go_on() -> None:
    found = findings(
        changed(even(), lambda one: structs.replace(one, progress_age_s=30.0) if one.rank // 8 == 5 else one)
    )
    assert [(one.code, one.fields["host"]) for one in found] == [("job.no_progress", "gpu05")]


def test_a_job_that_stands_still_as_a_whole_blames_nobody() -> None:
    (found,) = findings(changed(even(), lambda one: structs.replace(one, progress_age_s=30.0)))
    assert (found.code, found.fields["nodes"]) == ("job.stalled", 8)


def test_a_paused_job_is_not_stalled() -> None:
    paused = changed(even(), lambda one: structs.replace(one, progress_age_s=300.0, condition="paused"))
    assert findings(paused) == []


def test_nothing_is_found_where_nothing_is_known() -> None:
    assert findings(changed(even(), lambda one: RankSummary(rank=one.rank))) == []
