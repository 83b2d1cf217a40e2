"""The rank of another node that the ranks of this one wait for, from the report of the job. Pure.

A node has the stack samples of its own ranks alone. If all of these wait for a rank elsewhere, the samples
look like slow communication. The head compares all ranks, and its report is in the state of the job.
"""

from __future__ import annotations

import re
from typing import cast, get_args

from hoptui.domain.activities import Activity
from hoptui.domain.code_lines import CodeLine
from hoptui.domain.jobs import JobNode, JobState, RankSummary
from hoptui.domain.kind_rules import Kind
from hoptui.domain.stragglers import RankDevice, Straggler

BY_SHARE = ("waits", "backward")
"""What a rank must be compared by, so that the report has its share of waiting and that of the others."""
_LINE = re.compile(r"(.+):(\d{1,9}) (.+)", re.DOTALL)
_KINDS = frozenset(get_args(Kind))


def straggler_elsewhere(state: JobState) -> tuple[Straggler | None, RankDevice | None]:
    """Return the rank that the job reports as slow, and where it runs.

    Both are None if no rank is slow, if it is on this node, or if the store of the job does not answer. On
    its own node, its lines say what it does.
    """
    report = state.slow
    if report is None or state.store_problem or report.fields.get("basis") not in BY_SHARE:
        return None, None
    rank, waits, others = (report.fields.get(name) for name in ("rank", "waits", "others_wait"))
    found = next(((node, one) for node, one in state.live_ranks() if one.rank == rank), None)
    if waits is None or others is None or found is None or found[0].index == state.here:
        return None, None
    node, summary = found
    where, share = _line(summary)
    return Straggler(summary.rank, waits, others, where, share, 0.0), _device(node, summary)


def _line(rank: RankSummary) -> tuple[Activity | None, float]:
    """Return the line with most samples of a rank and its share, None if that is not known."""
    parts = _LINE.fullmatch(rank.line)
    if parts is None or rank.line_share is None or rank.kind not in _KINDS:
        return None, 0.0
    place = CodeLine(parts[1], int(parts[2]), parts[3])
    return Activity(cast(Kind, rank.kind), place, ""), rank.line_share


def _device(node: JobNode, rank: RankSummary) -> RankDevice:
    return RankDevice(node.host, rank.gpu.index if rank.gpu is not None else None)
