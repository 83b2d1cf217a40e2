"""What the head says of a run to the nodes without rank 0, and what such a node makes of it. No I/O.

Metrics, notes of the script, commands and the tuner reach the daemon of the head alone. Its record has the
newest of them. Another node keeps what it has read in memory. It records the commands alone: the recording of
the head has the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import structs

from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.columns import head_of, pack
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.jobs import HeadReports
from hoptui.domain.progress import ITERATION
from hoptui.domain.targets import TargetState
from hoptui.domain.throughput import PHASE
from hoptui.domain.tuning import Trial, TunerState
from hoptui.protocol.job_records import (
    LONGEST_TEXT,
    MOST_EVENTS,
    MOST_METRICS,
    MOST_RECORDS,
    HeadFacts,
    HeadRow,
)
from hoptui.protocol.messages import FINAL, CommandRecord, Event

OF_EACH_NODE = frozenset(("started", "restarted", "reconnected", "exited", "hung", "reverted"))
"""Kinds of events that each node reports of its own processes, or that the record of a command has."""
CLOSER_NS = 250_000_000
"""A clock of the head is taken to be so much further on if a record shows it. Smaller steps would change all
stamps.
"""


def head_facts(node: Node, run: TrackedRun) -> HeadFacts:
    """Return what this node, the head, says of a run."""
    values = run.current_metrics()
    names = [name for name in values if name != ITERATION and not name.startswith(PHASE)]
    rows: dict[tuple[int, int], dict[str, float]] = {}
    for name in [name for name in names if len(name) <= LONGEST_TEXT][:MOST_METRICS]:
        rows.setdefault(run.newest_row(name), {})[name] = values[name]
    events = [event for event in node.events if event.run == run.id and event.kind not in OF_EACH_NODE]
    commands = [record for record in map(node.book.barrier.shown, node.book.of(run.id)) if _is_final(record)]
    tuner, state = run.state.tuner, run.state
    counts = {
        "metrics": len(names),
        "events": len(events),
        "commands": len(commands),
        "notes": len(state.notes),
        "trials": len(tuner.tried) if tuner is not None else 0,
    }
    return HeadFacts(
        t=node.clock.t(),
        reports=HeadReports(host=node.host[:LONGEST_TEXT], diagnosis=state.diagnosis, targets=state.targets),
        tuner=tuner,
        held=node.book.holders(run.id),
        rows=tuple(HeadRow(t, step, rows[t, step]) for t, step in sorted(rows)),
        events=tuple(events[-MOST_EVENTS:]),
        commands=tuple(record for record in commands[-MOST_RECORDS:] if record is not None),
        notes=state.notes,
        counts=counts,
    )


def _is_final(record: CommandRecord | None) -> bool:
    return record is not None and record.stage in FINAL


class HeadView:
    """What a node without rank 0 knows of the head of one process of a run.

    Args:
        correct: Called with the record of a command that this node knows with another stage.
    """

    def __init__(self, node: Node, run: TrackedRun, correct: Callable[[CommandRecord], None]) -> None:
        self._node, self._run, self._correct = node, run, correct
        self._ahead: int | None = None  # of the stamps of the head; its least value is the most precise
        self._began = node.clock.t()
        self._newest = 0  # row, by the stamp of the head
        self._seq = 0  # of its newest event

    def take(self, facts: HeadFacts, epoch: int, written: float) -> None:
        """Process what the head says. It is no older than the record before, nor than `written`, in seconds.

        `epoch` is that of the head.
        """
        node, run = self._node, self._run
        ahead = node.clock.t() - facts.t
        if self._ahead is None or ahead < self._ahead - CLOSER_NS:
            self._ahead = ahead
        self._rows(facts.rows)
        for event in facts.events:
            if event.seq > self._seq:
                self._event(event, facts.reports.host)
        self._seq = max([self._seq, *(event.seq for event in facts.events)])
        for record in facts.commands:
            epoch_here = max(0, record.epoch + run.state.epoch - epoch)
            self._command(structs.replace(record, epoch=epoch_here, host=facts.reports.host))
        self._keep(facts)
        run.head_at = written

    def _keep(self, facts: HeadFacts) -> None:
        node, run = self._node, self._run
        ring = node.rings.get(head_of(f"run/{run.id}"))
        reports = HeadReports(
            host=facts.reports.host,
            diagnosis=self._diagnosis(facts.reports.diagnosis),
            targets=tuple(map(self._target, facts.reports.targets)),
            since=max(self._began, ring.first_t) if ring is not None else 0,
            left_out=self._left_out(facts),
        )
        before = run.head
        run.head = structs.replace(
            facts, t=0, reports=reports, tuner=self._tuner(facts.tuner), events=(), commands=()
        )
        if before is None or structs.replace(before, rows=()) != structs.replace(run.head, rows=()):
            node.touch()

    def _left_out(self, facts: HeadFacts) -> dict[str, int]:
        """Return how much of what the head has is not known here."""
        node, run = self._node, self._run
        known = {
            "metrics": sum(len(row.values) for row in facts.rows),
            "events": sum(event.run == run.id and bool(event.host) for event in node.events),
            "commands": sum(bool(record.host) for record in node.book.of(run.id)),
            "notes": len(facts.notes),
            "trials": len(facts.tuner.tried) if facts.tuner is not None else 0,
        }
        more = {kind: facts.counts.get(kind, 0) - count for kind, count in known.items()}
        return {kind: count for kind, count in more.items() if count > 0}

    def _rows(self, rows: Iterable[HeadRow]) -> None:
        source = head_of(f"run/{self._run.id}")
        ring = self._node.rings.get(source)
        last_t = ring.last_t if ring is not None else 0
        for row in rows:
            if row.t > self._newest:
                self._newest = row.t
                last_t = max(self._here(row.t), last_t + 1)
                self._node.rows((pack(source, [(last_t, row.step, row.values)]),))

    def _event(self, event: Event, host: str) -> None:
        """Add an event, unless it is known from an earlier process of the run."""
        known, t = self._node.events, self._here(event.t)
        event = structs.replace(
            event, run=self._run.id, t=t, wall=self._wall(t), host=host, host_wall=event.wall
        )
        if not any(one.host == event.host and _content(one) == _content(event) for one in known):
            self._node.adopt_event(event)

    def _command(self, record: CommandRecord) -> None:
        """Take the end of a command, and its effect, from the head."""
        run, book = self._run, self._node.book
        t, settled = self._here(record.t), self._here(record.settled)
        record = structs.replace(
            record, run=run.id, t=t, settled=settled, wall=self._wall(t) if t else record.wall
        )
        known = book.known(run.id, record.id)
        if known is None:
            book.adopt(record)
        elif known.stage != record.stage:
            self._correct(record)
        elif record.host and not known.host:
            book.adopt(structs.replace(known, host=record.host))
        elif record.stage == "applied" and record.measured not in (None, known.measured):
            book.measured(known, record.measured)

    def _here(self, t: int) -> int:
        """Return a stamp of the head as one of this node."""
        return t + (self._ahead or 0) if t else 0

    def _wall(self, t: int) -> float:
        """Return the time of a stamp of this node by its own clock."""
        clock = self._node.clock
        return clock.wall() + (t - clock.t()) / 1e9

    def _diagnosis(self, found: Diagnosis | None) -> Diagnosis | None:
        return structs.replace(found, t=self._here(found.t)) if found is not None else None

    def _target(self, found: TargetState) -> TargetState:
        return structs.replace(found, t=self._here(found.t), since=self._here(found.since))

    def _trial(self, found: Trial) -> Trial:
        return structs.replace(found, t=self._here(found.t))

    def _tuner(self, found: TunerState | None) -> TunerState | None:
        if found is None:
            return None
        return structs.replace(
            found,
            trial=self._trial(found.trial) if found.trial is not None else None,
            tried=tuple(map(self._trial, found.tried)),
            started=self._here(found.started),
        )


def _content(event: Event) -> tuple[object, ...]:
    return event.run, event.host_wall, event.kind, event.code, event.text
