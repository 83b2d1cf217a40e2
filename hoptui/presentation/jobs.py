"""A run on several nodes in words: nodes, the spread of ranks, totals, shades of a heat map. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hoptui.domain.enumerations import ByValue
from hoptui.domain.facts import Fact
from hoptui.domain.job_history import RANK_READINGS
from hoptui.domain.jobs import JobNode, JobState, NodeCondition, RankSummary, Spread, spread
from hoptui.presentation import numbers, sentences
from hoptui.presentation.readings import value_text
from hoptui.presentation.vocabulary import Word

CONDITIONS: dict[NodeCondition, Word] = ByValue(
    {
        "live": Word("●", "live"),
        "silent": Word("◌", "silent"),
        "left": Word("✕", "left"),
        "missing": Word("–", "missing"),
    },
    lambda value: Word("?", value),
)
ENDED = Word("✕", "ended")
LONGEST_HOST = 60
GLYPHS = ("░", "▒", "▓", "█", "█")
"""The shades of a heat map, the most remarkable last."""


class Shades(NamedTuple):
    """A reading of ranks on a heat map.

    `label` is its name. `bounds` are where the shades from 1 on begin: of the value itself, or `relative` to
    the `median` or the `highest` of the ranks. They fall if the low values are the ones to look for. `show`
    writes a value, and `base` says in the legend what the bounds are relative to.
    """

    label: str
    bounds: tuple[float, float, float, float]
    show: Callable[[float | None], str]
    relative: str = ""

    @property
    def falling(self) -> bool:
        return self.bounds[0] > self.bounds[-1]


RATIOS = (1.05, 1.15, 1.3, 2.0)
SHARES = (0.2, 0.4, 0.6, 0.8)
READINGS: Mapping[str, Shades] = {
    "own_s": Shades("own time", RATIOS, numbers.seconds, "median"),
    "iteration_s": Shades("iteration", RATIOS, numbers.seconds, "median"),
    "waiting": Shades("waiting", (0.1, 0.2, 0.4, 0.6), numbers.percent),
    "utilization": Shades("GPU busy", SHARES, numbers.percent),
    "power_w": Shades("power", SHARES, lambda value: value_text("W", value), "highest"),
    "memory": Shades("memory", SHARES, numbers.percent),
    "clock_mhz": Shades("clock", (0.98, 0.93, 0.85, 0.7), lambda value: value_text("MHz", value), "median"),
    "progress_age_s": Shades(
        "progress", (2.0, 5.0, 10.0, 30.0), lambda value: f"{numbers.duration(value)} ago"
    ),
    "nvlink_bytes_s": Shades(
        "NVLink", (0.9, 0.75, 0.5, 0.25), lambda value: value_text("B/s", value), "median"
    ),
}
"""The readings of a heat map, in the order in which a key switches between them. Own time is first: where
ranks wait for each other, all iterations take as long as those of the slowest."""


def base(reading: str, values: Iterable[float]) -> float | None:
    """Return what the shades of a reading are relative to, 1 if to nothing, None if that is not known."""
    known = [value for value in values if math.isfinite(value)]
    match READINGS[reading].relative:
        case "median":
            return (statistics.median_low(known) or None) if known else None
        case "highest":
            return (max(known) or None) if known else None
    return 1.0


def shade(reading: str, value: float | None, relative_to: float | None) -> int | None:
    """Return the shade of a value from 0 to 4, the most remarkable, or None if it is unknown."""
    if value is None or not math.isfinite(value) or relative_to is None:
        return None
    shades, ratio = READINGS[reading], value / relative_to
    return sum(ratio <= bound if shades.falling else ratio >= bound for bound in shades.bounds)


def most_remarkable(shades: Iterable[int | None]) -> int | None:
    """Return the most remarkable of some shades, None if all are unknown."""
    return max((one for one in shades if one is not None), default=None)


def group_size(state: JobState, lines: int) -> int:
    """Return how many ranks share one of so many lines, so that nodes are not cut where that is possible."""
    needed = -(-state.world // max(1, lines))
    ranks = max((len(node.summary.ranks) for node in state.nodes if node.summary), default=1)
    if needed > ranks:
        return -(-needed // ranks) * ranks
    return next(size for size in range(needed, ranks + 1) if ranks % size == 0) if needed else 1


def groups_of(state: JobState, lines: int) -> list[tuple[int, int]]:
    """Return the ranks of each of at most so many lines: the first one, and the one after the last."""
    size = group_size(state, lines)
    return [(start, min(start + size, state.world)) for start in range(0, state.world, size)]


def group_shades(
    reading: str, values: Sequence[float], groups: Sequence[tuple[int, int]]
) -> list[int | None]:
    """Return the most remarkable shade of each group of ranks, of the values by rank. NaN is unknown."""
    falling = READINGS[reading].falling
    relative_to = base(reading, values)
    if relative_to is None:
        return [None] * len(groups)
    missing = math.inf if falling else -math.inf
    known = [value if value == value else missing for value in values]
    extreme = min if falling else max
    worst = (extreme(known[start:end], default=missing) for start, end in groups)
    return [shade(reading, value, relative_to) if value != missing else None for value in worst]


def legend(reading: str) -> list[str]:
    """Return what each shade means, the least remarkable first: `< 1.05×`, `1.05×`, …, `2×`."""
    shades = READINGS[reading]

    def write(bound: float) -> str:
        if shades.relative == "median":
            return f"{bound:g}×"
        return f"{bound:g} s" if bound > 1 else f"{bound * 100:.0f} %"

    first = write(shades.bounds[0])
    sign = "≤" if shades.falling else "≥"
    return [
        f"{'>' if shades.falling else '<'} {first}",
        *(f"{sign} {write(bound)}" for bound in shades.bounds),
    ]


def title(reading: str) -> str:
    """`iteration, against the median`."""
    shades = READINGS[reading]
    of = {"median": ", against the median", "highest": ", of the highest"}.get(shades.relative, "")
    return f"{shades.label}{of}"


def node_name(node: JobNode) -> str:
    """Return the name of a node, or its number if it has never said its name."""
    return numbers.clean(node.host, LONGEST_HOST) or f"node {node.index}"


def node_of(state: JobState, rank: int) -> JobNode | None:
    """Return the node of a rank, None if that is not known."""
    return next((node for node, each in state.ranks() if each.rank == rank), None)


def ranks_of(node: JobNode) -> list[int]:
    """Return the ranks of a node as they were last, none if it has never written."""
    return [rank.rank for rank in node.summary.ranks] if node.summary is not None else []


def place(node: JobNode, rank: RankSummary) -> str:
    """`gpu38, GPU 5`."""
    gpu = rank.gpu.index if rank.gpu is not None else None
    return f"{node_name(node)}, GPU {gpu}" if gpu is not None else node_name(node)


def size(state: JobState) -> str:
    """`512 ranks on 64 nodes`."""
    return f"{numbers.counted(state.world, 'rank')} on {numbers.counted(len(state.nodes), 'node')}"


def conditions(state: JobState) -> list[tuple[NodeCondition, int]]:
    """Return how many nodes are live, silent, missing or have left, without those of which there are none."""
    order: tuple[NodeCondition, ...] = ("live", "silent", "missing", "left")
    counts = {one: sum(node.condition == one for node in state.nodes) for one in order}
    return [(one, count) for one, count in counts.items() if count]


def condition(node: NodeCondition, *, ended: bool) -> Word:
    """Return the word for a node. `ended`: the run has ended, and the state is the last one."""
    return ENDED if ended and node == "live" else CONDITIONS[node]


def store_problem(state: JobState) -> str:
    """Return why other nodes are not read, in one sentence, "" if they are."""
    if not state.store_problem:
        return ""
    reason = numbers.clean(state.store_problem, 160)
    return f"other nodes are not read for {numbers.duration(state.age_s)}: {reason}"


def head_problem(state: JobState) -> str:
    """Return why what the head says cannot be read, in one sentence, "" if it can."""
    if not state.head_problem:
        return ""
    head = numbers.clean(state.head_host, 60) or "the node of rank 0"
    return f"what {head} says cannot be read: {numbers.clean(state.head_problem, 160)}"


def spread_of(state: JobState, reading: str) -> Spread | None:
    """Return the spread of a reading over the ranks of live nodes."""
    return spread((rank.rank, RANK_READINGS[reading](rank)) for _, rank in state.live_ranks())


def spread_parts(state: JobState, reading: str) -> list[tuple[str, str, str]]:
    """Return the best, the median and the worst rank: the word, the value, and which rank on which node.

    The lowest is called the best only where a low value is good. Empty if nothing is known.
    """
    found = spread_of(state, reading)
    if found is None:
        return []
    ranked = reading in ("iteration_s", "own_s", "progress_age_s")
    words = ("best", "median", "worst") if ranked else ("lowest", "median", "highest")
    places = {rank.rank: place(node, rank) for node, rank in state.live_ranks()}
    return [
        (word, READINGS[reading].show(value), f"rank {rank} ({places[rank]})")
        for word, (rank, value) in zip(words, found, strict=True)
    ]


def spread_text(state: JobState, reading: str) -> str:
    """`iteration: best 0.41 s, rank 7 (gpu00, GPU 7); median …; worst …`, "" if nothing is known."""
    parts = [f"{word} {value}, {where}" for word, value, where in spread_parts(state, reading)]
    return f"{READINGS[reading].label}: {'; '.join(parts)}" if parts else ""


class Totals(NamedTuple):
    """Sums and means over live nodes, with how many GPUs or ranks they are of. None is unknown.

    `throughput` is what rank 0 reports.
    """

    power_w: float | None
    powered: int
    gpus: int
    mfu: float | None
    with_mfu: int
    throughput: float | None


def totals(state: JobState) -> Totals:
    """Return the totals of a job. A GPU that several ranks use counts once."""
    live = state.live_ranks()
    gpus = {(node.index, rank.gpu.uuid): rank.gpu for node, rank in live if rank.gpu is not None}
    watts = [gpu.power_w for gpu in gpus.values() if gpu.power_w is not None]
    mfus = [rank.mfu for _, rank in live if rank.mfu is not None]
    first = next((rank for _, rank in live if rank.rank == 0), None)
    return Totals(
        power_w=sum(watts) if watts else None,
        powered=len(watts),
        gpus=len(gpus),
        mfu=statistics.fmean(mfus) if mfus else None,
        with_mfu=len(mfus),
        throughput=first.throughput if first is not None else None,
    )


def totals_parts(state: JobState, unit: str = "") -> list[tuple[str, str]]:
    """Return labels and texts: `power`, `312 kW of 512 GPUs`. `unit` is that of the throughput."""
    found = totals(state)
    gpus = f"{found.powered} of {numbers.counted(found.gpus, 'GPU')}"
    of = numbers.counted(found.gpus, "GPU") if found.powered == found.gpus else gpus
    ranks = len(state.live_ranks())
    part = "" if found.with_mfu == ranks else f" of {found.with_mfu} of {numbers.counted(ranks, 'rank')}"
    parts = []
    if found.power_w is not None:
        parts.append(("power", f"{numbers.si(found.power_w)}W of {of}" if found.power_w >= 1000
                      else f"{numbers.si(found.power_w)} W of {of}"))  # fmt: skip
    if found.mfu is not None:
        parts.append(("mean MFU", f"{numbers.percent(found.mfu)}{part}"))
    if found.throughput is not None:
        parts.append(("rank 0 reports", f"{numbers.logged(found.throughput)} {unit}".rstrip()))
    return parts


def brief_json(state: JobState, found: Sequence[Fact]) -> dict[str, Any]:
    """Return the size of a job and what is wrong in it, as `ls --json` shows it."""
    return {
        "world": state.world,
        "conditions": dict(conditions(state)),
        "findings": [
            {"code": one.code, "fields": one.fields, "text": sentences.sentence(one)} for one in found
        ],
    }


def as_json(state: JobState, found: Sequence[Fact]) -> dict[str, Any]:
    """Return a job as `status --json` shows it."""
    return {
        **brief_json(state, found),
        "nodes": [
            {
                "node": node.index,
                "host": node.host or None,
                "condition": node.condition,
                "age_s": node.age_s,
                "head": node.index == state.head,
                "here": node.index == state.here,
                "ranks": [rank.rank for rank in node.summary.ranks] if node.summary is not None else [],
            }
            for node in state.nodes
        ],
        "spread": {
            name: {
                word: {"rank": rank, "value": value}
                for word, (rank, value) in zip(Spread._fields, bounds, strict=True)
            }
            if (bounds := spread_of(state, name)) is not None
            else None
            for name in READINGS
        },
        "totals": totals(state)._asdict(),
        "store_problem": state.store_problem,
        "head_problem": state.head_problem,
        "age_s": state.age_s,
    }
