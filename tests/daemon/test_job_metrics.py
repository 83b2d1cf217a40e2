"""The nodes and ranks of a run for Prometheus, the pages of Grafana and the alert rules."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hoptui.daemon.job_metrics import GPUS, MOST_RANKS, NODES, RANKS, SPREAD
from hoptui.daemon.prometheus import snapshot
from hoptui.domain.columns import pack as rows
from hoptui.domain.details import RunDetails
from hoptui.domain.devices import GpuInfo
from hoptui.domain.facts import fact
from hoptui.domain.jobs import JobNode, JobState, NodeSummary, RankGpu, RankSummary
from hoptui.protocol.messages import HUNG
from tests.daemon.quiet_node import RUN as QUIET_RUN
from tests.daemon.quiet_node import SECOND, QuietNode
from tests.daemon.test_prometheus import NODE, RUN, WHOLE, scrape
from tests.daemon.test_stragglers import EVEN, LATE, Case

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"grafana.json": {"node", "gpu", "run"}, "grafana_job.json": {"slurm_job", "run", "node"}}
GPU = RankGpu(
    uuid="GPU-a",
    index=0,
    utilization=0.9,
    power_w=600.0,
    memory_used=7e10,
    memory_total=8e10,
    clock_mhz=1980.0,
    throttled="",
    nvlink_bytes_s=1e9,
)


def rank(number: int, **fields: Any) -> RankSummary:
    known: dict[str, Any] = {
        "condition": "live",
        "step": 7,
        "iteration_s": 0.5,
        "waiting": 0.2,
        "progress_age_s": 0.1,
        "mfu": 0.4,
        "gpu": GPU,
    }
    return RankSummary(rank=number, **known | fields)


def summary(host: str, *ranks: RankSummary) -> NodeSummary:
    return NodeSummary(
        host=host,
        run="abcd2345",
        epoch=1,
        number=1,
        wall=0.0,
        ranks=ranks,
        cpu=0.5,
        memory=0.25,
        sent_bytes_s=1e6,
        received_bytes_s=2e6,
    )


JOB = JobState(
    run="abcd2345",
    epoch=1,
    world=6,
    here=0,
    nodes=(
        JobNode(
            index=0,
            condition="live",
            age_s=0.5,
            summary=summary("gpu07", rank(0), rank(1, condition="hung", waiting=None, gpu=None)),
        ),
        JobNode(index=1, condition="live", age_s=0.7, summary=summary("gpu08", rank(2, condition="unknown"))),
        JobNode(index=2, condition="silent", age_s=9.0, summary=summary("gpu09", rank(3))),
        JobNode(index=3, condition="left", age_s=60.0, summary=summary("gpu10", rank(4))),
        JobNode(index=4, condition="missing", age_s=60.0),
    ),
)
BIG = JobState(
    run="abcd2345",
    epoch=1,
    world=2048,
    nodes=tuple(
        JobNode(
            index=node,
            condition="live",
            age_s=0.1,
            summary=summary(f"n{node}", *(rank(8 * node + i) for i in range(8))),
        )
        for node in range(256)
    ),
)
OF_JOB = replace(
    WHOLE,
    node=structs.replace(NODE, runs=(structs.replace(RUN, world=6),)),
    jobs={"abcd2345": JOB},
    slurm_jobs={"abcd2345": "4711"},
    stragglers={"abcd2345": 2},
)


def by(
    found: dict[str, list[tuple[dict[str, str], float]]], name: str, *labels: str
) -> dict[tuple[str, ...], float]:
    return {tuple(each[label] for label in labels): value for each, value in found[name]}


def test_ranks_have_their_run_job_and_node() -> None:
    found = scrape(OF_JOB)
    run = {"run": "abcd2345", "run_name": "ppo", "slurm_job": "4711"}
    assert found["hoptui_run_info"] == [(run | {"node": "gpu07", "world": "6"}, 1.0)]
    first = run | {"node": "gpu07", "rank": "0"}
    assert found["hoptui_rank_own_seconds"][0] == (first, 0.4)
    assert by(found, "hoptui_rank_iteration_seconds", "rank") == {("0",): 0.5, ("1",): 0.5, ("2",): 0.5}
    assert by(found, "hoptui_rank_hung", "rank") == {("0",): 0.0, ("1",): 1.0}
    assert by(found, "hoptui_rank_waiting_ratio", "rank") == {("0",): 0.2, ("2",): 0.2}
    assert by(found, "hoptui_rank_gpu_sm_clock_hertz", "rank") == {("0",): 1.98e9, ("2",): 1.98e9}
    assert by(found, "hoptui_rank_gpu_throttled", "rank") == {("0",): 0.0, ("2",): 0.0}
    assert found["hoptui_rank_gpu_info"][0] == (first | {"gpu": "0", "uuid": "GPU-a"}, 1.0)


def test_nodes_that_do_not_report() -> None:
    found = scrape(OF_JOB)
    up = {("gpu07",): 1.0, ("gpu08",): 1.0, ("gpu09",): 0.0, ("4",): 0.0}
    assert by(found, "hoptui_job_node_up", "node") == up
    ages = {("gpu07",): 0.5, ("gpu08",): 0.7, ("gpu09",): 9.0}
    assert by(found, "hoptui_job_node_age_seconds", "node") == ages
    assert by(found, "hoptui_job_node_memory_ratio", "node") == {("gpu07",): 0.25, ("gpu08",): 0.25}
    assert (found["hoptui_job_ranks"][0][1], found["hoptui_job_known_ranks"][0][1]) == (6.0, 5.0)
    assert found["hoptui_job_store_up"][0][1] == 1.0


def test_nodes_with_the_same_host_name_are_told_apart() -> None:
    twice = tuple(
        JobNode(index=i, condition="live", age_s=0.5, summary=summary("box", rank(i))) for i in range(2)
    )
    found = scrape(replace(OF_JOB, jobs={"abcd2345": structs.replace(JOB, nodes=twice)}))
    assert by(found, "hoptui_job_node_up", "node") == {("box",): 1.0, ("box#1",): 1.0}
    assert set(by(found, "hoptui_rank_hung", "node", "rank")) == {("box", "0"), ("box#1", "1")}


def test_no_series_is_there_twice() -> None:
    for name, points in scrape(OF_JOB).items():
        keys = [tuple(sorted(labels.items())) for labels, _ in points]
        assert len(keys) == len(set(keys)), name


def test_the_spread_of_all_ranks() -> None:
    slow = summary("gpu08", rank(2, iteration_s=0.9, waiting=0.0))
    nodes = (JOB.nodes[0], structs.replace(JOB.nodes[1], summary=slow))
    found = scrape(replace(OF_JOB, jobs={"abcd2345": structs.replace(JOB, nodes=nodes)}))
    values = by(found, "hoptui_job_spread", "reading", "side")
    ranks = by(found, "hoptui_job_spread_rank", "reading", "side")
    assert values["own_seconds", "highest"] == 0.9
    assert ranks["own_seconds", "highest"] == ranks["waiting_ratio", "lowest"] == 2
    assert values["iteration_seconds", "median"] == 0.5


def test_a_run_is_hung_or_waits_for_a_rank() -> None:
    found = scrape(OF_JOB)
    assert found["hoptui_run_hung"][0][1] == 0.0
    assert (found["hoptui_run_straggler"][0][1], found["hoptui_run_straggler_rank"][0][1]) == (1.0, 2.0)
    vital = structs.replace(WHOLE.vitals["abcd2345"], because=fact(HUNG, age_s=60.0))
    found = scrape(replace(OF_JOB, vitals={"abcd2345": vital}, stragglers={}))
    assert found["hoptui_run_hung"][0][1] == 1.0
    assert found["hoptui_run_straggler"][0][1] == 0.0
    assert "hoptui_run_straggler_rank" not in found


def test_a_slow_rank_of_another_node_is_the_straggler_of_the_run() -> None:
    quiet = QuietNode()
    quiet.hello()
    quiet.run.state = structs.replace(quiet.run.state, world=6)
    report = fact("job.slow_rank", rank=3, world=6, host="gpu09")
    quiet.run.job = structs.replace(JOB, run=QUIET_RUN, slow=report)
    assert snapshot(quiet.node).stragglers == {QUIET_RUN: 3}
    found = scrape(snapshot(quiet.node))
    assert (found["hoptui_run_straggler"][0][1], found["hoptui_run_straggler_rank"][0][1]) == (1.0, 3.0)
    quiet.run.job = structs.replace(quiet.run.job, store_problem="it is gone")
    assert snapshot(quiet.node).stragglers == {}


def test_only_the_node_of_rank_0_exports_a_job() -> None:
    found = scrape(replace(OF_JOB, jobs={"abcd2345": structs.replace(JOB, here=1)}))
    assert not [name for name in found if name.startswith(("hoptui_job_", "hoptui_rank_"))]


def test_the_number_of_series_has_a_bound() -> None:
    def series(job: JobState) -> Counter[str]:
        found = scrape(replace(OF_JOB, jobs={"abcd2345": job}))
        return Counter({name: len(points) for name, points in found.items()})

    small, big = series(JOB), series(BIG)
    assert max(big.values()) == MOST_RANKS
    assert big["hoptui_job_spread"] == small["hoptui_job_spread"] == 3 * len(SPREAD)
    ranks = [name for name in big if name.startswith("hoptui_rank_")]
    assert len(ranks) == len(RANKS) + len(GPUS) + 1
    assert big.total() <= small.total() + len(ranks) * MOST_RANKS + (len(NODES) + 2) * 256
    again = replace(OF_JOB, jobs={"abcd2345": structs.replace(BIG, epoch=2)})
    assert series(again.jobs["abcd2345"]) == big


def test_this_node_summarizes_its_own_ranks() -> None:
    case = Case()
    quiet = case.quiet
    quiet.node.gpus = tuple(
        GpuInfo(uuid=f"GPU-{i}", index=i, name="H100", memory_total_bytes=8 * 10**10) for i in range(3)
    )
    quiet.run.state = structs.replace(quiet.run.state, gpus=("GPU-0", "GPU-1", "GPU-2"))
    case.pass_time(60, EVEN, LATE, EVEN)
    times = [(quiet.now - (5 - i) * SECOND // 10, i, {"iteration_s": 0.1}) for i in range(5)]
    quiet.node.rings.append(rows(f"rank/{QUIET_RUN}/1", times))
    held = {"busy": 50.0, "throttle": float(0x04 | 0x20)}
    quiet.node.rings.append(rows("gpu/GPU-1", [(quiet.now - SECOND, 0, held)]))
    quiet.node.rings.append(rows("gpu/GPU-2", [(quiet.now - 60 * SECOND, 0, held)]))
    quiet.run.describe(RunDetails(environment={"SLURM_JOB_ID": "4711"}))
    taken = snapshot(quiet.node)
    ranks = {each.rank: each for _, each in taken.jobs[QUIET_RUN].ranks()}
    assert [ranks[i].waiting for i in range(3)] == pytest.approx([0.4, 0.05, 0.4])
    assert ranks[1].step == 5
    assert ranks[1].iteration_s == pytest.approx(0.1)
    assert ranks[1].progress_age_s == pytest.approx(0.1)
    assert (ranks[2].iteration_s, ranks[2].progress_age_s) == (None, None)
    assert ranks[0].condition == "live"
    gpus = [ranks[i].gpu for i in range(3)]
    assert [(gpu.uuid, gpu.memory_total, gpu.utilization, gpu.throttled) for gpu in gpus if gpu] == [
        ("GPU-0", 8e10, None, None),
        ("GPU-1", 8e10, 0.5, "thermal_software"),
        ("GPU-2", 8e10, None, None),
    ], "old readings are unknown"
    assert (taken.slurm_jobs, taken.stragglers) == ({QUIET_RUN: "4711"}, {QUIET_RUN: 1})
    found = scrape(taken)
    assert found["hoptui_job_node_alarms"][0][1] == 1.0, "the straggler"
    assert "hoptui_job_store_up" not in found, "nothing is read from a store"
    assert by(found, "hoptui_rank_own_seconds", "rank")["1",] == pytest.approx(0.095)


# pages and rules


def labels_of(found: dict[str, list[tuple[dict[str, str], float]]]) -> dict[str, set[str]]:
    """The labels of each metric, with the one that Prometheus adds."""
    return {name: {"instance"}.union(*(each for each, _ in points)) for name, points in found.items()}


def check_query(query: str, shown: str, known: dict[str, set[str]]) -> set[str]:
    """A query and the text beside it name existing metrics and labels only. Returns the metrics."""
    names = set(re.findall(r"hoptui_\w+", query))
    assert names, query
    assert names <= known.keys(), query
    for name, selector in re.findall(r"(hoptui_\w+)\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", selector)) <= known[name], query
    groups = [set(re.findall(r"\w+", group)) for group in re.findall(r"by \(([^)]*)\)", query)]
    every = set.union(*(known[name] for name in names))
    assert all(group <= every for group in groups), query
    kept = set.union(*groups) if groups else every
    assert set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", shown)) <= kept, (query, shown)
    return names


@pytest.mark.parametrize("page", PAGES)
def test_a_page_asks_only_for_what_there_is(page: str) -> None:
    dashboard = json.loads((DOCS / page).read_text())
    known = labels_of(scrape(OF_JOB))
    asked: set[str] = set()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            asked |= check_query(target["expr"], target["legendFormat"], known)
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            query, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            asked |= check_query(query, f"{{{{{label}}}}}", known)
    assert len(asked) > 20
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    assert variables >= PAGES[page]
    assert set(re.findall(r"\$(\w+)", json.dumps(dashboard["panels"]))) <= variables | {"datasource"}
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in dashboard["panels"]]
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_page_of_a_job_has_every_reading_of_its_ranks() -> None:
    text = (DOCS / "grafana_job.json").read_text()
    wanted = {f"hoptui_rank_gpu_{each.name}" for each in GPUS}
    wanted |= {f"hoptui_job_node_{each.name}" for each in NODES}
    assert {name for name in wanted if name not in text} == set()
    assert all(f'reading=\\"{each.name}\\"' in text for each in SPREAD)


def test_alert_rules_ask_only_for_what_there_is() -> None:
    known = labels_of(scrape(OF_JOB))
    text = (DOCS / "prometheus_alerts.yml").read_text()
    rules = re.split(r"^      - alert: ", text, flags=re.MULTILINE)[1:]
    names = [rule.partition("\n")[0] for rule in rules]
    assert len(set(names)) == len(names) == 6
    for rule in rules:
        expression = re.search(r"^        expr: (.+)$", rule, flags=re.MULTILINE)
        assert expression is not None
        check_query(expression[1], rule, known)
        assert re.search(r"^          severity: (critical|warning)$", rule, flags=re.MULTILINE)
        for reasons in re.findall(r'reason=~"([^"]+)"', expression[1]):
            held = {labels["reason"] for labels, _ in scrape(OF_JOB)["hoptui_gpu_throttle_reason"]}
            assert set(reasons.split("|")) <= held
        for kind, level in re.findall(r'kind="(\w+)", level="(\w+)"', expression[1]):
            assert (kind, level) in by(scrape(OF_JOB), "hoptui_events_total", "kind", "level")


def test_a_query_that_names_what_is_not_there_is_found() -> None:
    known = labels_of(scrape(OF_JOB))
    for query, shown in (
        ("hoptui_rank_own_second", ""),
        ('hoptui_rank_own_seconds{ranks="1"}', ""),
        ("sum by (rnak) (hoptui_rank_hung)", ""),
        ("sum by (node) (hoptui_rank_hung)", "{{rank}}"),
        ("hoptui_run_hung", "{{ $labels.node }}"),
    ):
        with pytest.raises(AssertionError):
            check_query(query, shown, known)
