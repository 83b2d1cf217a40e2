"""The rank of another node that all ranks of this one wait for."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from hoptui.domain.activities import Activity
from hoptui.domain.code_lines import CodeLine
from hoptui.domain.facts import fact
from hoptui.domain.job_stragglers import straggler_elsewhere
from hoptui.domain.jobs import JobNode, JobState, NodeSummary, RankGpu, RankSummary
from hoptui.domain.stragglers import RankDevice, Straggler

LINE: dict[str, Any] = {"line": "data.py:37 read", "kind": "input", "line_share": 0.6}


def node(index: int, host: str, *ranks: RankSummary) -> JobNode:
    summary = NodeSummary(host=host, run="r", epoch=1, number=1, wall=0.0, ranks=ranks)
    return JobNode(index=index, condition="live", age_s=0.0, summary=summary)


def job(**fields: Any) -> JobState:
    """Two nodes of two ranks. Rank 3 is on the other node, and slow."""
    gpu = RankGpu(uuid="GPU-b", index=1)
    return JobState(
        run="r",
        epoch=1,
        world=4,
        here=0,
        nodes=(
            node(0, "gpu00", RankSummary(rank=0), RankSummary(rank=1)),
            node(1, "gpu01", RankSummary(rank=2), RankSummary(rank=3, gpu=gpu, **LINE | fields)),
        ),
        slow=fact("job.slow_rank", rank=3, world=4, host="gpu01", basis="waits", waits=0.1, others_wait=0.7),
    )


def test_a_slow_rank_of_another_node_is_the_straggler() -> None:
    where = Activity("input", CodeLine("data.py", 37, "read"), "")
    straggler, device = straggler_elsewhere(job())
    assert straggler == Straggler(3, 0.1, 0.7, where, 0.6, 0.0)
    assert device == RankDevice("gpu01", 1)


@pytest.mark.parametrize(
    "unknown",
    [{"line": ""}, {"line": "no number"}, {"line_share": None}, {"kind": ""}, {"kind": "of a newer hoptui"}],
)
def test_a_line_that_is_not_known_is_left_out(unknown: dict[str, Any]) -> None:
    straggler, _ = straggler_elsewhere(job(**unknown))
    assert straggler is not None
    assert (straggler.rank, straggler.where) == (3, None)


def test_nobody_is_named_without_a_report_that_says_so() -> None:
    found = job()
    assert found.slow is not None
    by_time = fact("job.slow_rank", **found.slow.fields | {"basis": "time", "waits": None})
    gone = (found.nodes[0], structs.replace(found.nodes[1], condition="silent"))
    for state in (
        structs.replace(found, slow=None),
        structs.replace(found, here=1),  # it is on this node
        structs.replace(found, store_problem="it is gone"),
        structs.replace(found, slow=by_time),
        structs.replace(found, nodes=gone),
    ):
        assert straggler_elsewhere(state) == (None, None)
