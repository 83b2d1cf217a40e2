"""A made-up job: its states over some minutes, the same each time, for pictures and tests of its screen."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hoptui.domain.jobs import JobNode, JobState, NodeCondition, NodeSummary, RankGpu, RankSummary

STEP_S = 0.412
LINE, SLOW_LINE = "train.py:120 step", "data.py:37 augment"
SLOW, THROTTLED, SILENT, MISSING = 0.64, 0.3, 0.8, 0.93
"""Where the remarkable ranks and nodes are, as a share of all of them."""


def state(
    nodes: int, ranks: int, second: float, *, run: str = "job01", faults: bool = True, here: int = 0
) -> JobState:
    """The job of so many nodes with so many ranks each, so many seconds after the first state.

    With `faults`, one rank is slow and one GPU throttled from the first minute on. Of more than four nodes,
    one is silent and one has never reported.
    """
    slow = round(SLOW * nodes * ranks) if faults and second >= 60.0 else -1
    throttled = round(THROTTLED * nodes * ranks) if faults and second >= 90.0 else -1
    silent, missing = (round(SILENT * nodes), round(MISSING * nodes)) if faults and nodes > 4 else (-1, -1)
    longest = 1.0 if slow < 0 else 1.55
    return JobState(
        run=run,
        epoch=1,
        world=nodes * ranks,
        nodes=tuple(
            _node(index, ranks, second, longest, slow, throttled, silent=index == silent,
                  missing=index == missing, run=run)
            for index in range(nodes)
        ),
        here=here,
        read_s=0.004,
    )  # fmt: skip


def states(
    nodes: int, ranks: int, seconds: int, *, first: int = 0, run: str = "job01", faults: bool = True
) -> Iterator[tuple[float, JobState]]:
    """Each second from the `first` to before `seconds`, and the state then."""
    for second in range(first, seconds):
        yield float(second), state(nodes, ranks, float(second), run=run, faults=faults)


def _node(
    index: int,
    ranks: int,
    second: float,
    longest: float,
    slow: int,
    throttled: int,
    *,
    silent: bool,
    missing: bool,
    run: str,
) -> JobNode:
    condition: NodeCondition = "missing" if missing else "silent" if silent else "live"
    if missing:
        return JobNode(index=index, condition=condition, age_s=second)
    at = min(second, 12.0) if silent else second
    draw = random.Random(f"{index} {int(at)}")
    summary = NodeSummary(
        host=f"gpu{index:02}",
        run=run,
        epoch=1,
        number=int(at),
        wall=1_780_000_000.0 + at,
        ranks=tuple(
            _rank(index * ranks + local, local, at, longest, slow, throttled, draw) for local in range(ranks)
        ),
        cpu=0.31 + 0.05 * draw.random(),
        memory=0.42,
        sent_bytes_s=9.1e9 / longest * (0.97 + 0.06 * draw.random()),
        received_bytes_s=9.0e9 / longest * (0.97 + 0.06 * draw.random()),
    )
    return JobNode(index=index, condition=condition, age_s=second - at if silent else 0.4, summary=summary)


def _rank(
    rank: int, local: int, second: float, longest: float, slow: int, throttled: int, draw: random.Random
) -> RankSummary:
    late, hot = rank == slow, rank == throttled
    own = STEP_S * 0.88 * (0.985 + 0.03 * draw.random()) * (1.55 if late else 1.12 if hot else 1.0)
    whole = STEP_S * longest * (0.995 + 0.01 * draw.random())
    own = min(own, 0.98 * whole)
    busy = min(0.99, own / whole * 1.05)
    return RankSummary(
        rank=rank,
        condition="live",
        step=int(second / STEP_S),
        iteration_s=whole,
        waiting=1.0 - own / whole,
        samples=200,
        progress_age_s=round(0.4 * draw.random(), 3),
        line=SLOW_LINE if late else LINE,
        kind="input" if late else "compute",
        line_share=0.47 if late else 0.81,
        throughput=1.21e6 / longest,
        mfu=0.41 / longest,
        gpu=RankGpu(
            uuid=f"GPU-{rank}",
            index=local,
            utilization=busy,
            power_w=(640.0 if not hot else 410.0) * busy,
            memory_used=61.2e9 + 2e8 * draw.random(),
            memory_total=85.9e9,
            clock_mhz=(1980.0 if not hot else 1410.0) - 15.0 * draw.random(),
            throttled="thermal_software" if hot else "",
            nvlink_bytes_s=2.1e11 / longest,
        ),
    )
