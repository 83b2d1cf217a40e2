"""What must hold of a run on several nodes: its commands, and what the nodes show of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from hoptui.daemon.handlers.jobs import RELAYED_S
from hoptui.domain.jobs import SILENT_S, JobState
from hoptui.protocol.messages import FATE_UNKNOWN, FINAL
from tests.simulation import invariants, memory_invariants, rank_invariants
from tests.simulation.invariants import Invariant, audited
from tests.simulation.job_nodes import Attempt, JobNodes
from tests.simulation.node import Node
from tests.simulation.trainer import in_effect, row_value
from tests.simulation.truth import Given, Incarnation, Setting

RELAY_S = 10.0
"""A command of another node ends within this time and three iterations, if nothing disturbs."""
LATE_S = 20.0
"""How much longer than it is waited for a command may be on its way to the head."""
HELD_UP_S = 0.5
"""A boundary without a command takes no longer."""
ASKED_S = 90.0
"""How long before a boundary a command may have been given that holds it up."""
JobInvariant = Callable[[JobNodes], Iterable[str]]

OF_EACH_NODE: tuple[Invariant, ...] = (
    invariants.resolved,
    invariants.viewers_agree,
    invariants.viewers_know,
    invariants.nodes_agree,
    invariants.values_shown,
    invariants.runs_go_on,
    invariants.ends_noticed,
    invariants.queues_empty,
    invariants.one_daemon,
    rank_invariants.changes_true,
    memory_invariants.runs_bounded,
    memory_invariants.daemon_bounded,
    memory_invariants.viewers_bounded,
    memory_invariants.cursors_grow,
)
"""Of settled nodes."""
OF_A_LEAD: tuple[Invariant, ...] = (
    invariants.values_shown,
    invariants.runs_go_on,
    invariants.queues_empty,
    memory_invariants.daemon_bounded,
)
"""Not where the rank that represents the run has left it: nobody may hear of the run there."""
ALWAYS_OF_EACH_NODE: tuple[Invariant, ...] = (
    invariants.at_most_once,
    invariants.in_order,
    invariants.stages_forward,
    invariants.shown_when_kept,
    invariants.ranks_agree,
    rank_invariants.calls_agree,
    rank_invariants.pauses_agree,
    rank_invariants.stops_agree,
)
FINISHED_OF_EACH_NODE: tuple[Invariant, ...] = (invariants.recordings_listed, invariants.commands_recorded)


def of_settled(nodes: JobNodes) -> list[str]:
    """Check what holds once all faults are over and everything has had time to arrive."""
    return [
        *_each(nodes, OF_EACH_NODE),
        *_all(nodes, outcomes_true, outcomes_arrive, picture_complete, head_read),
    ]


def of_finished(nodes: JobNodes) -> list[str]:
    """Check what holds after the run and the daemons have ended."""
    return _each(nodes, FINISHED_OF_EACH_NODE)


def always(nodes: JobNodes) -> list[str]:
    """Check what holds at any time."""
    first = [
        f"{check.__name__}: {found}"
        for check in (invariants.nothing_broke, invariants.within_limits)
        for found in check(nodes.first)
    ]
    checks = right_rendezvous, not_late, relays_quick, training_goes_on, shown_true, head_true
    return [*first, *_each(nodes, ALWAYS_OF_EACH_NODE), *_all(nodes, *checks)]


def _all(nodes: JobNodes, *each: JobInvariant) -> list[str]:
    return [f"{check.__name__}: {found}" for check in each for found in check(nodes)]


def _each(nodes: JobNodes, each: Iterable[Invariant]) -> list[str]:
    return [
        f"{check.__name__}: {node.host}: {found}"
        for check in each
        for node in nodes.nodes
        if check not in OF_A_LEAD or not any(lead.leaves for lead in node.trainers[-1:])
        for found in check(node)
    ]


# commands ---------------------------------------------------------------------------------------------------


def _calls(nodes: JobNodes, given: Given) -> list[tuple[Incarnation, Setting]]:
    if given.verb != "set":
        return []
    return [
        (was, setting)
        for was in nodes.first.truth.processes
        for setting in was.settings
        if was.rank == 0 and setting.value == given.value and not setting.undo
    ]


def _what(node: Node, given: Given) -> str:
    return f"{given.verb} {given.value} of {given.viewer} on {node.host} at {given.at_s:.3f} s"


def outcomes_true(nodes: JobNodes) -> Iterator[str]:
    """The end of a command on its node is what happened on the ranks, and none is lost."""
    for node, given in nodes.given():
        record, calls = audited(node).get(given.id), _calls(nodes, given)
        done = [setting for _, setting in calls if not setting.raised]
        what = _what(node, given)
        if record is None:
            if calls and not any(at_s > given.at_s for at_s in nodes.killed_s[node.host]):
                yield f"{what} was applied, and its node does not know it"
            continue
        stage, told = record.stage, f"{what} is told as {record.stage} ({record.code})"
        if stage in FINAL and record.code == FATE_UNKNOWN:
            calm = node.truth.calm(given.at_s - 1.0, given.at_s + RELAYED_S)
            if calm and not _headless(nodes, given):
                yield f"{told}, and nothing disturbed it"
        elif given.verb != "set":
            continue
        elif stage == "applied" and not done:
            yield f"{told}, and the setter was not called"
        elif stage == "applied" and record.effective != in_effect(given.value or 0.0):
            yield f"{what} is told as effective {record.effective!r}"
        elif stage in ("rejected", "superseded", "expired", "voided") and calls:
            yield f"{told}, and the setter was called"
        elif stage == "failed" and done and record.code not in ("several", "on_ranks"):
            yield f"{told}, and the setter accepted it"


def outcomes_arrive(nodes: JobNodes) -> Iterator[str]:
    """What the process of rank 0 says of a command is what the head shows, and the node of the command."""
    trainer = nodes.attempt.head
    if trainer.run is None or not trainer.process.alive:
        return
    head = trainer.node
    inbox = trainer.run._core.state.inbox
    for key, said in inbox._seen.items():
        if said.stage not in FINAL:
            continue
        for node in nodes.nodes:
            record = audited(node).get(key)
            if record is None and node is head:
                yield f"rank 0 said {said.stage} of {key}, which the head does not know"
            unknown = record is not None and record.code == FATE_UNKNOWN and node is not head
            if record is not None and record.stage != said.stage and not unknown:
                yield f"rank 0 said {said.stage} of {key}, which {node.host} shows as {record.stage}"


def _headless(nodes: JobNodes, given: Given) -> bool:
    """Return whether rank 0 had left the run for which a command was given. Nobody reads it then."""
    meant = nodes.attempt_of(given.pid)
    return meant is not None and 0 in meant.job.left


def right_rendezvous(nodes: JobNodes) -> Iterator[str]:
    """A command changes only the processes that it was meant for."""
    for node, given in nodes.given():
        meant = nodes.attempt_of(given.pid)
        for was, _ in _calls(nodes, given):
            if meant is None or was not in [trainer.was for trainer in meant.trainers]:
                yield f"{_what(node, given)} was meant for other processes than {was.pid}"


def not_late(nodes: JobNodes) -> Iterator[str]:
    """A command is not carried out long after it was given up, on its node or by its time to live."""
    for node, given in nodes.given():
        record = audited(node).get(given.id)
        unknown = record is not None and record.code == FATE_UNKNOWN
        limit_s = min(given.ttl_s + RELAYED_S, RELAYED_S if unknown else given.ttl_s + RELAYED_S) + LATE_S
        for _, setting in _calls(nodes, given):
            took_s = setting.at_s - given.at_s
            if took_s - _suspended_s(nodes, given.at_s, setting.at_s) > limit_s:
                yield f"{_what(node, given)} was applied after {took_s:.1f} s"


def _suspended_s(nodes: JobNodes, start_s: float, end_s: float) -> float:
    return sum(max(0.0, min(end, end_s) - max(start, start_s)) for start, end in nodes.suspended)


def relays_quick(nodes: JobNodes) -> Iterator[str]:
    """Without a fault a command ends soon on its node, wherever the head is."""
    for node, given in nodes.given():
        viewer = next((viewer for viewer in node.viewers if viewer.name == given.viewer), None)
        most = RELAY_S + 3 * nodes.iteration_s
        if viewer is None or given.verb != "set" or viewer.was_away(given.at_s, given.at_s + most):
            continue
        paused = any(
            other.verb == "pause" and -60.0 < other.at_s - given.at_s < most for _, other in nodes.given()
        )
        if paused or _headless(nodes, given) or not node.truth.calm(given.at_s - 1.0, given.at_s + most):
            continue
        took = viewer.took_s(given.id)
        if took is None or took > most:
            yield f"{_what(node, given)} took {took} s"


# training ---------------------------------------------------------------------------------------------------


def training_goes_on(nodes: JobNodes) -> Iterator[str]:
    """No boundary waits for what nodes tell each other, and none for long without a command."""
    for attempt in nodes.attempts:
        yield from attempt.job.held_up[:3]
        for was in (trainer.was for trainer in attempt.trainers):
            for began, ended in was.waits:
                asked = [given for _, given in nodes.given() if began - ASKED_S < given.at_s < ended]
                if ended - began > HELD_UP_S and not asked:
                    yield f"a boundary of rank {was.rank} took {ended - began:.1f} s at {began:.1f} s"


# what is shown ----------------------------------------------------------------------------------------------


def shown_true(nodes: JobNodes) -> Iterator[str]:
    """What is old is not shown as live."""
    yield from nodes.shown_wrong.values()


def _read_of_head(nodes: JobNodes, node: Node) -> list[float]:
    """What a node without rank 0 has read of what rank 0 logs, oldest first."""
    ring = node.server._node.rings.get(f"head/{nodes.run}") if node.server is not None else None
    parts = ring.parts() if ring is not None else []
    return [values["loss"] for part in parts for _, _, values in part.rows() if "loss" in values]


def head_true(nodes: JobNodes) -> Iterator[str]:
    """What a node shows of rank 0 is what rank 0 has logged, each row once."""
    heads = [was for was in nodes.first.truth.processes if was.rank == 0]
    for node in nodes.nodes:
        found = _read_of_head(nodes, node)
        if any(later <= earlier for earlier, later in pairwise(found)):
            yield f"{node.host} has rows of rank 0 twice, or not in order"
        produced = {row_value(was.number, step) for was in heads for step in range(was.steps + 1)}
        if unknown := set(found) - produced:
            yield f"{node.host} shows {sorted(unknown)[:3]}, which rank 0 never logged"


def head_read(nodes: JobNodes) -> Iterator[str]:
    """Each node without rank 0 shows what the rank 0 of this rendezvous logs."""
    attempt = nodes.attempt
    if attempt.cut or attempt.left or attempt.job.left or attempt.job.failed:
        return
    for index, lead in attempt.leads.items():
        node = nodes.nodes[index]
        found = _read_of_head(nodes, node)
        if lead is not attempt.head and found[-1:] < [row_value(attempt.head.was.number, 0)]:
            yield f"{node.host} has read {found[-1:]} of rank 0, which is process {attempt.head.was.number}"
        client = node.auditor.client if node.auditor is not None else None
        vital = client.store.vital(nodes.run) if client is not None else None
        if lead is attempt.head or vital is None or lead.leaves:
            continue
        if vital.head_age_s is None or vital.head_age_s > SILENT_S:
            yield f"{node.host} shows what the head says as {vital.head_age_s} s old"


def picture_complete(nodes: JobNodes) -> Iterator[str]:
    """Each node shows all ranks as they are, or says that the store does not work."""
    attempt = nodes.attempt
    cut = attempt.cut
    for index in attempt.leads if len(attempt.layout) > 1 else ():
        node = nodes.nodes[index]
        if attempt.leads[index].leaves:  # nobody may hear of the run there
            continue
        client = node.auditor.client if node.auditor is not None else None
        state = client.store.jobs.get(nodes.run) if client is not None else None
        if state is None:
            if not attempt.job.failed:  # else a rank may not know its run
                yield f"{node.host} shows no job"
        elif node.host in cut:
            if not state.store_problem:
                yield f"{node.host} does not say that the store does not work"
        elif cut:  # a node that cannot write is away
            for shown in state.nodes:
                if shown.host in cut and shown.condition == "live":
                    yield f"{node.host} shows {shown.host} as live, which does not reach the store"
        else:
            yield from (f"{node.host} {found}" for found in _incomplete(attempt, state))


def _incomplete(attempt: Attempt, state: JobState) -> Iterator[str]:
    if state.store_problem:
        yield f"says that the store does not work: {state.store_problem}"
    if state.world != len(attempt.trainers):
        yield f"shows {state.world} ranks of {len(attempt.trainers)}"
    shown = {rank.rank: (node.condition, rank.condition) for node, rank in state.ranks()}
    for trainer in attempt.trainers:
        rank, left = trainer.was.rank, trainer.was.rank in attempt.job.left
        if left or attempt.job.left:
            continue
        if shown.get(rank) != ("live", "live"):
            yield f"shows rank {rank} as {shown.get(rank)}"
    if not attempt.job.left and any(node.condition != "live" for node in state.nodes):
        yield f"shows nodes as {[node.condition for node in state.nodes]}"
