"""Several simulated nodes and one run on all of them: its rendezvous, and what nodes show of each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType

from hoptui.daemon.handlers.jobs import NO_ANSWER_S
from hoptui.domain.jobs import SILENT_S, JobState, NodeSummary
from tests.simulation.job_store import NodesJob, StoreFault
from tests.simulation.node import Node
from tests.simulation.trainer import Trainer
from tests.simulation.truth import Given

NAME = "lm"
HEAD_AGE_S = NO_ANSWER_S + 1.0
AGE_S = HEAD_AGE_S + SILENT_S + 0.5
"""How much older than a silent node what the head shows as live may be, and what the others show. The head
takes for new what it reads within `NO_ANSWER_S`, and a record is up to a second old when it is written. The
head may write no more before it knows that a node is silent: then the others wait as long once more."""
SLOW_S, OPERATIONS = 15.0, 4
"""For so long a slow store is felt, and so many of its operations add to an age."""
WATCHED_S = 5.0
"""A node that a viewer has watched for so long reads each second."""
GONE_S = 15.0
"""A rank that has ended is shown as that after this time."""
Layout = tuple[tuple[int, int], ...]
"""The indices of the nodes of a rendezvous, and how many ranks each has. The first one has rank 0."""


@dataclass
class Attempt:
    """The processes of one rendezvous. `trainers` are by rank. `leads` represent their nodes, by index."""

    job: NodesJob
    layout: Layout
    began_s: float
    trainers: list[Trainer] = field(default_factory=list)
    leads: dict[int, Trainer] = field(default_factory=dict)
    left: bool = False
    """Whether a rank went on without hoptui."""

    @property
    def head(self) -> Trainer:
        return self.trainers[0]

    @property
    def living(self) -> list[Trainer]:
        return [trainer for trainer in self.trainers if trainer.process.alive]

    @property
    def cut(self) -> set[str]:
        """The nodes for which the store does not work."""
        hosts, now = set(self.job.hosts), self.job.kernel.now_ns
        if self.job.over:
            return hosts
        faults = [fault for fault in self.job.faults if fault.until_ns > now and fault.kind != "slow"]
        return {host for host in hosts for fault in faults if fault.hosts is None or host in fault.hosts}


class JobNodes:
    """A context manager: nodes with one run.

    Attributes:
        shown_wrong: What a node has shown of another one that was not so.
    """

    def __init__(self, seed: int | str, hosts: int, iteration_s: float, *, torch: bool, agents: bool) -> None:
        self.first = Node(seed, host="node0")
        more = [Node(seed, first=self.first, host=f"node{i}") for i in range(1, hosts)]
        self.nodes = [self.first, *more]
        self.kernel = self.first.kernel
        self.iteration_s, self.torch, self.agents = iteration_s, torch, agents
        self.attempts: list[Attempt] = []
        self.restarts_at: float | None = None
        self.shown_wrong: dict[str, str] = {}
        self.settling = False
        self.killed_s: dict[str, list[float]] = {node.host: [] for node in self.nodes}
        """When all processes of a node were killed."""
        self.suspended: list[tuple[float, float]] = []
        """When a process of a rank or a daemon was suspended."""
        self._watched_s: dict[str, float] = {}
        self._resumed_s: dict[str, float] = {}

    def __enter__(self) -> JobNodes:
        self.first.__enter__()
        self.kernel.after(1.0, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.first.__exit__(kind, error, trace)

    # the run ------------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> Attempt:
        """The newest rendezvous."""
        return self.attempts[-1]

    @property
    def run(self) -> str:
        """The id of the run, "" before it is known."""
        return self.attempt.job.run

    def rendezvous(self, layout: Layout) -> None:
        """Start the processes of a rendezvous, from the checkpoint of the one before."""
        before = self.attempts[-1].head if self.attempts else None
        hosts = [self.nodes[index].host for index, count in layout for _ in range(count)]
        job = NodesJob(self.kernel, hosts, torch=self.torch, agents=self.agents)
        job.run = before.id if before is not None else ""
        if self.agents and self.attempts:  # as torchrun does: the store has all keys of the ranks before
            job.values = self.attempt.job.values
        attempt = Attempt(job, layout, self.kernel.seconds)
        self.attempts.append(attempt)
        for index, count in layout:
            for _ in range(count):
                node, rank = self.nodes[index], len(attempt.trainers)
                attempt.trainers.append(Trainer(node, NAME, self.iteration_s, before, job.member(rank)))
                if index not in attempt.leads:
                    lead = attempt.leads[index] = attempt.trainers[-1]
                    node.trainers.append(lead)
                elif index != layout[0][0]:
                    attempt.leads[index].others.append(attempt.trainers[-1])
        attempt.head.others = attempt.trainers[1:]

    def restart(self, layout: Layout, seconds: float, *, lingers: bool = False) -> None:
        """End all processes of the run, and begin a rendezvous later. One process may linger, suspended."""
        if self.restarts_at is not None:
            return
        old = self.attempt.living
        if lingers and old:
            held = old[-1]
            held.process.stop()
            self.kernel.after(seconds + 20.0, held.process.kill)
            self.first.disturb(seconds + 30.0)
            old.remove(held)
        for trainer in old:
            trainer.process.kill()
        self.begin(layout, seconds)

    def begin(self, layout: Layout, seconds: float) -> None:
        """Begin a rendezvous later, once all processes of the one before have ended or hang."""
        if self.restarts_at is not None:
            return
        self.restarts_at = self.kernel.seconds + seconds
        self.first.disturb(seconds + 20.0)

        def again() -> None:
            if any(not t.process.stopped for t in self.attempt.living):
                self.first.disturb(20.0)
                self.kernel.after(1.0, again)
                return
            self.restarts_at = None
            self.first.disturb(20.0)
            self.rendezvous(layout)

        self.kernel.after(seconds, again)

    def attempt_of(self, pid: int) -> Attempt | None:
        """Return the rendezvous of a process."""
        return next((a for a in self.attempts if any(t.process.pid == pid for t in a.trainers)), None)

    def given(self) -> Iterator[tuple[Node, Given]]:
        """Yield every command, with the node on which it was given."""
        for node in self.nodes:
            for given in node.truth.given.values():
                yield node, given

    # the end ------------------------------------------------------------------------------------------------

    def settle(self, seconds: float) -> None:
        """End all faults but those for ever, and let new viewers look at a run that trains."""
        self.settling = True
        for attempt in self.attempts:
            attempt.job.faults = [f for f in attempt.job.faults if f.until_ns == float("inf")]
        for node in self.nodes:
            auditor = node.end_faults()
            self.kernel.after(3.0, lambda auditor=auditor: auditor.watch(self.run))  # type: ignore[misc]
        if self.restarts_at is None and len(self.attempt.living) < len(self.attempt.trainers):
            self.restart(self.attempt.layout, 2.0)
        for _ in range(60):
            self.kernel.run(1.0)
            if self.restarts_at is None:
                break
        self.kernel.run(seconds)

    def finish(self) -> None:
        """Let the run and the daemons end in good order."""
        for trainer in self.attempt.trainers:
            trainer.ends = True
        for node in self.nodes[1:]:
            for viewer in node.viewers:
                viewer.process.kill()
        self.first.finish()

    # what is shown ------------------------------------------------------------------------------------------

    def fault(self, fault: StoreFault) -> None:
        self.attempt.job.faults.append(fault)

    def _look(self) -> None:
        """Look once a second at what each daemon says of the other nodes."""
        self.kernel.after(1.0, self._look)
        if not self.attempts or not self.run:
            return
        now = self.kernel.seconds
        for node in self.nodes:
            daemon, server = node.daemon, node.server
            if daemon is None or daemon.stopped or server is None or node.server_process is not daemon:
                self._resumed_s[node.host] = now
                continue
            watches = any(
                viewer.process.alive and not viewer.process.stopped and viewer.client is not None
                for viewer in node.viewers
            )
            if not watches:
                self._watched_s[node.host] = now
            if now - self._resumed_s.get(node.host, 0.0) < WATCHED_S:
                continue
            tracked = server._node.registry.get(self.run)
            state = server._run_desk.jobs.state(self.run)
            if tracked is None or tracked.exited or state is None or state.store_problem:
                continue
            if not tracked.away or now - self._watched_s.get(node.host, 0.0) > WATCHED_S:
                self._judge(node, state)
                self._judge_head(node, state, tracked.vital(server._node.clock.t() / 1e9).head_age_s)

    def _judge_head(self, node: Node, state: JobState, age_s: float | None) -> None:
        """What the head says of the run has come with its summary, or before."""
        head = next((shown.summary for shown in state.nodes if shown.index == state.head), None)
        if age_s is None or age_s > SILENT_S or head is None:
            return
        older_s = self._age_s(head) - age_s
        if older_s > AGE_S + self._slow_s():
            what = f"shows what the head says as {age_s:.1f} s old, which is {older_s:.1f} s older"
            self._wrong(node, "head", f"{what} at {self.kernel.seconds:.1f} s")

    def _age_s(self, summary: NodeSummary) -> float:
        kernel = self.kernel
        return kernel.seconds - (summary.wall * 1e9 - kernel.wall_offset_ns - kernel.began_ns) / 1e9

    def _judge(self, node: Node, state: JobState) -> None:
        now = self.kernel.seconds
        most_s = SILENT_S + (HEAD_AGE_S if state.here == state.head else AGE_S) + self._slow_s()
        for shown in state.nodes:
            if shown.condition != "live" or shown.summary is None:
                continue
            age_s = self._age_s(shown.summary)
            made_s = now - age_s
            if age_s > most_s:
                age = f"{age_s:.1f} s old at {now:.1f} s"
                self._wrong(node, shown.host, f"shows {shown.host} as live, which is {age}")
            attempt = self.attempt
            if now - attempt.began_s > GONE_S and made_s < attempt.began_s:
                self._wrong(node, shown.host, f"shows {shown.host} of an earlier rendezvous at {now:.1f} s")
            for rank in shown.summary.ranks:
                if rank.condition != "live" or rank.rank >= len(attempt.trainers):
                    continue
                was = attempt.trainers[rank.rank].was
                if was.ended_s is not None and now - was.ended_s > GONE_S:
                    self._wrong(node, f"{rank.rank}", f"shows rank {rank.rank} as live, which has ended")

    def _slow_s(self) -> float:
        """Return how much older what is shown may be because the store is slow."""
        since_ns = self.kernel.now_ns - SLOW_S * 1e9
        slow = [f.seconds for f in self.attempt.job.faults if f.kind == "slow" and f.until_ns > since_ns]
        return OPERATIONS * max(slow, default=0.0)

    def _wrong(self, node: Node, what: str, sentence: str) -> None:
        self.shown_wrong.setdefault(f"{node.host} {what}", f"{node.host} {sentence}")
