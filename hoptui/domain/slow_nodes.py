"""The node whose ranks the others wait for, all of them. Pure.

By single ranks it shows late or never: the others of the node are as slow, and each has few samples. So the
samples of a node count together. They wait less than those of the other nodes beyond chance, also without the
rank that waits least, and no rank of the node is much nearer to the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from typing import NamedTuple

from hoptui.domain.jobs import RankSummary
from hoptui.domain.slow_ranks import LEAST, LEAST_BACKWARD, SURE, Basis, Counts, SlowRank, alike, evidence
from hoptui.domain.stragglers import deviation

FAR = 0.4
"""The part of the difference of the rank that waits least, by which each rank of its node waits less."""
REST_SURE = 3.0
"""Standard deviations from chance by which the rest of the node waits less."""


class SlowNode(NamedTuple):
    """A slow node: its lowest rank, as `slow_rank` returns one, and all its ranks."""

    rank: SlowRank
    ranks: frozenset[int]


def slow_node(ranks: Mapping[int, RankSummary], nodes: Mapping[int, int]) -> SlowNode | None:
    """Return the slow node, None if there is none, or if it has a single rank.

    Args:
        ranks: The newest summaries of the live ranks, by rank.
        nodes: The index of the node of each.
    """
    newest = evidence(ranks)
    found = _by_share("waits", newest.waits, newest.dispersion, nodes)
    if found is None and alike(ranks):
        found = _by_share("backward", newest.backward, newest.dispersion, nodes)
    if found is None or any(nodes[rank] == nodes[found.rank.rank] for rank in ranks.keys() - found.ranks):
        return None  # of some of its ranks too little is known
    return found


def _by_share(basis: Basis, counts: Counts, dispersion: float, nodes: Mapping[int, int]) -> SlowNode | None:
    """Compare the node that waits least with the ranks of all other nodes."""
    of_nodes: dict[int, set[int]] = {}
    for rank in counts:
        of_nodes.setdefault(nodes[rank], set()).add(rank)
    several = [found for found in of_nodes.values() if len(found) > 1]
    if len(of_nodes) < 2 or not several:
        return None
    shares = {rank: count / of for rank, (count, of) in counts.items()}
    node = min(several, key=lambda found: _pooled(counts, found).share)
    others, least = counts.keys() - node, min(node, key=shares.__getitem__)
    usual = statistics.median(shares[rank] for rank in others)
    differs = usual - shares[least]
    if differs < (LEAST_BACKWARD if basis == "backward" else LEAST):
        return None
    if any(usual - shares[rank] < FAR * differs for rank in node):
        return None
    elsewhere = _pooled(counts, others)
    sure, rest = (
        -deviation(*_pooled(counts, part), *elsewhere) / math.sqrt(dispersion)
        for part in (node, node - {least})
    )
    if sure < SURE or rest < REST_SURE:
        return None
    first = min(node)  # the same at each look
    return SlowNode(SlowRank(first, basis, shares[first], usual, sure, SURE, True), frozenset(node))


class _Pooled(NamedTuple):
    """Samples in which some ranks wait, and all of them."""

    waits: int
    of: int

    @property
    def share(self) -> float:
        return self.waits / self.of


def _pooled(counts: Counts, ranks: Collection[int]) -> _Pooled:
    return _Pooled(sum(counts[rank][0] for rank in ranks), sum(counts[rank][1] for rank in ranks))
