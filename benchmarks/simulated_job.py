"""A job of many ranks, as the daemons of its nodes summarise it. Random numbers; no I/O.

The ranks wait for each other in each iteration. Each takes its own time, which differs a little from that of
the others, and waits for the rest at the end of it. The share of waiting is counted in ten samples a second
over the last twenty seconds. They are taken as `hoptui.sdk.stack_sampler` takes them, at nearly equal
distances, as it did before, or at independent times.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Literal
from uuid import UUID

from hoptui.domain.jobs import SILENT_S, JobNode, JobState, NodeCondition, NodeSummary, RankGpu, RankSummary
from hoptui.domain.slow_ranks import dispersion
from hoptui.sdk.stack_sampler import EVERY_S, SampleTimes

Fault = Literal["none", "slow", "slow node", "hung", "silent"]
Sampling = Literal["sampler", "regular", "independent"]
SAMPLES_S, WINDOW_S = 10, 20
JITTER = 0.25
"""The part of a distance by which regular samples differ from it."""
OWN_S, DIFFER, SLOWER = 0.5, 0.005, 1.1
"""The seconds of an iteration without waiting, by how much ranks differ, and how much longer a slow one
takes."""
UNEVEN = 0.01
"""By how much an iteration differs from the one before, on all ranks."""
MEASURED = 0.002
"""By how much the median time of some phases of a rank differs from one summary to the next."""


class SimulatedJob:
    """A job with at most one bad rank, or one bad node. Call `tick` once for each second.

    Args:
        world: Its ranks.
        per_node: Ranks of a node.
        seed: Of the random numbers.
        fault: What is wrong from the second `fault_at` on.
        bad: The rank that is slow or hung, or whose node is slow or silent.
        collective: The share of an iteration that a collective takes on every rank.
        own_s: The seconds of an iteration without waiting.
        sampling: How samples are taken.
        measured: The part of its own time that a rank spends in phases which it times.
    """

    def __init__(
        self,
        world: int,
        per_node: int = 8,
        *,
        seed: int = 1,
        fault: Fault = "none",
        fault_at: int = 30,
        bad: int = 0,
        collective: float = 0.02,
        own_s: float = OWN_S,
        sampling: Sampling = "sampler",
        measured: float = 0.0,
    ) -> None:
        self.world, self.per_node = world, per_node
        self.fault, self.fault_at, self.bad = fault, fault_at, bad
        self._collective, self._own_s = collective, own_s
        self._sampling, self._measured = sampling, measured
        self.t = 0
        self._random = random.Random(seed)
        source = random.Random(seed)  # of its own: UUIDs change nothing else
        self._uuids = [f"GPU-{UUID(int=source.getrandbits(128))}" for _ in range(world)]
        self._own = [own_s * (1 + self._random.gauss(0, DIFFER)) for _ in range(world)]
        self._waited: list[deque[tuple[int, int]]] = [deque(maxlen=WINDOW_S) for _ in range(world)]
        self._times = [SampleTimes(self._random) for _ in range(world)]
        self._next = [times.pause_s(EVERY_S) for times in self._times]  # sample of a rank
        self._took_s = own_s  # an iteration in this second
        self._written_at = [0] * self.nodes
        self._written: list[NodeSummary | None] = [None] * self.nodes
        self._own_now = list(self._own)
        self._step = 0.0
        self._stands = 0

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return -(-self.world // self.per_node)

    def tick(self) -> None:
        """A second passes."""
        self.t += 1
        at_fault = self.t >= self.fault_at
        own = list(self._own)
        if self.fault == "slow" and at_fault:
            own[self.bad] = SLOWER * self._own_s
        if self.fault == "slow node" and at_fault:
            first = self.bad // self.per_node * self.per_node
            for rank in range(first, min(first + self.per_node, self.world)):
                own[rank] *= SLOWER
        self._iteration_s = max(own) / (1 - self._collective)
        hangs = self.fault == "hung" and at_fault
        self._stands = self._stands + 1 if hangs else 0
        self._took_s = self._iteration_s * (1 + self._random.gauss(0, UNEVEN))
        for rank in range(self.world):
            works = own[rank] / self._iteration_s
            if hangs:
                works = 1.0 if rank == self.bad else 0.0
            self._waited[rank].append(self._sample(rank, works))
        self._step += 0.0 if hangs else 1 / self._took_s
        self._own_now = own
        for node in range(self.nodes):
            if not (self.fault == "silent" and at_fault and node == self.bad // self.per_node):
                self._written[node], self._written_at[node] = self.summary(node), self.t

    def summary(self, node: int, wall: float = 0.0) -> NodeSummary:
        """Return what a node says now."""
        first = node * self.per_node
        ranks = tuple(self._rank(rank) for rank in range(first, min(first + self.per_node, self.world)))
        return NodeSummary(
            host=f"node-{node:04d}",
            run="simulated",
            epoch=1,
            number=self.t,
            wall=wall,
            ranks=ranks,
            cpu=round(self._random.uniform(0.3, 0.4), 3),
            memory=round(self._random.uniform(0.5, 0.51), 3),
            sent_bytes_s=round(self._random.uniform(1e9, 1.2e9)),
            received_bytes_s=round(self._random.uniform(1e9, 1.2e9)),
        )

    def state(self) -> JobState:
        """Return what the head sees now."""
        found = []
        for index, summary in enumerate(self._written):
            age_s = float(self.t - self._written_at[index])
            condition: NodeCondition = "silent" if age_s > SILENT_S else "live"
            found.append(JobNode(index=index, condition=condition, age_s=age_s, summary=summary))
        return JobState(run="simulated", epoch=1, world=self.world, nodes=tuple(found), here=0)

    def _sample(self, rank: int, works: float) -> tuple[int, int]:
        """Return in how many samples of this second a rank waits, and all. It works first in an iteration."""
        chance = self._random.random
        if self._sampling == "independent":
            return sum(chance() >= works for _ in range(SAMPLES_S)), SAMPLES_S
        waits = count = 0
        while self._next[rank] < self.t:
            place = self._step + (self._next[rank] - self.t + 1) / self._took_s
            waits += place % 1 >= works
            count += 1
            self._next[rank] += (
                EVERY_S * (1 - JITTER + 2 * JITTER * chance())
                if self._sampling == "regular"
                else self._times[rank].pause_s(EVERY_S)
            )
        return waits, count

    def _rank(self, rank: int) -> RankSummary:
        noise = self._random.uniform
        waited, samples = (sum(each) for each in zip(*self._waited[rank], strict=True))
        own = self._own_now[rank] * self._measured
        hung = self._stands > 10
        return RankSummary(
            rank=rank,
            condition="hung" if hung else "live",
            step=int(self._step),
            iteration_s=round(self._iteration_s * noise(0.998, 1.002), 4),
            waiting=round(waited / samples, 4),
            samples=samples,
            dispersion=dispersion(_pairs(list(self._waited[rank]))),
            work_s=round(own * (1 + self._random.gauss(0, MEASURED)), 6) if self._measured else None,
            phases="data,optimizer" if self._measured else "",
            progress_age_s=self._stands + round(noise(0.0, self._iteration_s), 3),
            line=("data.py:37 read" if rank == self.bad and self._stands else "train.py:120 step"),
            kind="compute",
            line_share=round(noise(0.3, 0.5), 3),
            gpu=RankGpu(
                uuid=self._uuids[rank],
                index=rank % self.per_node,
                utilization=round(noise(0.9, 0.95), 3),
                power_w=round(noise(600, 640), 1),
                memory_used=round(noise(6.0e10, 6.1e10), -6),
                memory_total=8.5e10,
                clock_mhz=round(noise(1700, 1755)),
                throttled="power_cap",
                nvlink_bytes_s=round(noise(1e11, 1.1e11), -7),
            ),
        )


def _pairs(seconds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the counts of two seconds each, as a process sends them."""
    return [
        (one[0] + other[0], one[1] + other[1])
        for one, other in zip(seconds[::2], seconds[1::2], strict=False)
    ]
