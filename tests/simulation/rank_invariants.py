"""What must hold of the ranks of a run: pauses, stops, checkpoints and traces, at the same boundary on all.

`invariants.ranks_agree` has the values of knobs.
"""

from __future__ import annotations

from collections.abc import Iterator

from hoptui.protocol.messages import CommandRecord
from tests.simulation.invariants import Invariant, audited
from tests.simulation.node import Node
from tests.simulation.trainer import Trainer, call_path
from tests.simulation.truth import Incarnation, Value


def of_settled(node: Node) -> list[str]:
    """Check what holds once all faults are over."""
    return _all(node, changes_true, calls_true, stops_true)


def always(node: Node) -> list[str]:
    """Check what holds at any time."""
    return _all(node, calls_agree, pauses_agree, stops_agree)


def _all(node: Node, *each: Invariant) -> list[str]:
    return [f"{check.__name__}: {found}" for check in each for found in check(node)]


def _pairs(node: Node) -> Iterator[tuple[Trainer, Incarnation, Incarnation]]:
    """Yield rank 0 and each other rank of each run whose ranks could always communicate."""
    for trainer in node.trainers:
        if trainer.job is not None and not trainer.job.failed:
            for other in trainer.others:
                yield trainer, trainer.was, other.was


def calls_agree(node: Node) -> Iterator[str]:
    """The handlers for checkpoints and traces are called on all ranks at the same boundary."""
    for trainer, first, other in _pairs(node):
        both = min(first.boundaries, other.boundaries)
        mine = [(call.verb, call.boundary) for call in first.calls if call.boundary <= both]
        theirs = [(call.verb, call.boundary) for call in other.calls if call.boundary <= both]
        if mine != theirs:
            yield f"rank 0 of {trainer.name} was called {mine[-3:]}, rank {other.rank} {theirs[-3:]}"


def pauses_agree(node: Node) -> Iterator[str]:
    """All ranks are paused at the same boundary."""
    for trainer, first, other in _pairs(node):
        both = min(first.boundaries, other.boundaries)
        mine = [boundary for boundary in first.pauses if boundary <= both]
        theirs = [boundary for boundary in other.pauses if boundary <= both]
        if mine != theirs:
            yield f"rank 0 of {trainer.name} was paused at {mine[-3:]}, rank {other.rank} at {theirs[-3:]}"


def stops_agree(node: Node) -> Iterator[str]:
    """All ranks stop at the same boundary: none passes the one at which another has stopped."""
    for trainer, first, other in _pairs(node):
        if trainer.job is not None and trainer.job.left:
            continue  # a stop of the script does not wait for a rank that has left
        for one, two in ((first, other), (other, first)):
            at = one.stopped_at
            if at is not None and two.stopped_at != at and (two.boundaries >= at or two.stopped_at):
                yield f"rank {one.rank} of {trainer.name} stopped at boundary {at}, rank {two.rank} passed it"


def _of(node: Node, verb: str) -> Iterator[CommandRecord]:
    """Yield the records of commands of a kind that are reported as applied."""
    yield from (r for r in audited(node).values() if r.verb == verb and r.stage == "applied")


def changes_true(node: Node) -> Iterator[str]:
    """A change that is told as applied has been made on every rank, even if the store raised."""
    told = {record.wanted for record in _of(node, "set") if record.knob == "lr"}
    for trainer in node.trainers:
        for other in (rank.was for rank in trainer.others):
            for value in told & _set_by(trainer.was) - _set_by(other):
                yield f"{value} is told as applied, and rank {other.rank} of {trainer.name} has not set it"


def _set_by(was: Incarnation) -> set[Value]:
    return {setting.value for setting in was.settings if not (setting.undo or setting.raised)}


def calls_true(node: Node) -> Iterator[str]:
    """What is told of checkpoints and traces is what the handlers did."""
    calls = {
        call_path(was.number, i): call for was in node.truth.processes for i, call in enumerate(was.calls)
    }
    for record in _of(node, "checkpoint"):
        path = record.fields.get("path")
        if path not in calls or calls[path].raised:
            yield f"a checkpoint is told as applied, and {path!r} was not written"
    traced = {
        (was.run, call.epoch)
        for was in node.truth.processes
        for call in was.calls
        if was.rank == 0 and call.verb == "profile"
    }
    for record in _of(node, "profile"):
        if (record.run, record.epoch) not in traced:
            yield "a trace is told as started, and the handler was not called"


def stops_true(node: Node) -> Iterator[str]:
    """A stop that is told as applied has stopped a process of that restart, at the step that is told.

    A process that was killed before its boundary returned may have told of a stop.
    """
    for record in _of(node, "stop"):
        processes = [was for was in node.truth.processes if was.run == record.run and was.rank == 0]
        stopped = [(was.stopped_epoch, was.stopped_step) for was in processes if was.stopped_at is not None]
        killed = any(was.killed and was.stopped_at is None for was in processes)
        if (record.epoch, record.step) not in stopped and not killed:
            told = f"at {record.step} of restart {record.epoch}"
            yield f"a stop is told as applied {told}, and the run stopped at {stopped}"
