"""What the nodes of one run write to its store: a record of each node, and one of the head for all.

The processes that carry a record do not decode it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

import msgspec
from msgspec import structs

from hoptui.domain.jobs import HeadReports, JobNode, JobState, NodeSummary, RankSummary
from hoptui.domain.run_notes import MOST_NOTES, RunNote, is_note
from hoptui.domain.tuning import TunerState
from hoptui.protocol.messages import Command, CommandRecord, Event
from hoptui.protocol.record_bytes import RecordError, checked, compressed, decompressed

NODE_BYTES, STATE_BYTES, RUN_BYTES, JOB_BYTES = 48 << 10, 160 << 10, 24 << 10, 256 << 10
"""The largest record of a node, state of a job, what the head says of the run, and record of a head:
compressed.
"""
RUN_PLAIN_BYTES = 256 << 10
"""The most that the head says of the run, not compressed: the other nodes keep it in memory."""
MOST_NODES, MOST_RANKS, MOST_ALARMS = 4096, 128, 32
MOST_RELAYED = 32
"""Commands in a record of a node."""
MOST_PASSED_NOTES = 8
"""Notes of users in a record of a node."""
MOST_METRICS, MOST_EVENTS, MOST_RECORDS = 256, 24, 16
"""Metrics, and the newest events and commands, in the record of a head."""
LONGEST_TEXT = 200
DIGITS = 4
"""Significant digits of a reading: further ones are noise, and take room."""

T = TypeVar("T")


class PauseRenewal(msgspec.Struct, frozen=True):
    """A pause that a viewer of the node renews. `number` rises with each renewal."""

    number: int
    seconds: float


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a node writes. `node` is its identity (see `hoptui.node.identity`).

    `commands` were given on this node and are not answered yet. `notes` were written on this node, and the
    head does not list them yet.
    """

    node: str
    summary: NodeSummary
    commands: tuple[Command, ...] = ()
    renewal: PauseRenewal | None = None
    notes: tuple[RunNote, ...] = ()


class HeadRow(msgspec.Struct, frozen=True, array_like=True):
    """The metrics whose newest values are of this row of rank 0: its stamp, its iteration, and the values."""

    t: int
    step: int
    values: dict[str, float]


class HeadFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the head says of its run to the nodes without rank 0. Stamps are of the head, and it was made at
    `t`.

    `rows` have the current value of each metric, oldest first. `events` and `commands` are the newest of the
    run, oldest first, the commands with their end. `counts` is how many metrics, events, commands, notes and
    trials the head has. `held` are the knobs that are left alone, see `RunState`.
    """

    t: int
    reports: HeadReports = HeadReports()
    tuner: TunerState | None = None
    held: dict[str, str] | None = None
    rows: tuple[HeadRow, ...] = ()
    events: tuple[Event, ...] = ()
    commands: tuple[CommandRecord, ...] = ()
    notes: tuple[RunNote, ...] = ()
    counts: dict[str, int] = {}


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the head writes for all nodes. `state` is a JobState, encoded by `encode_state`.

    `identities` are those of the nodes in the state, in the same order. `answers` are the records of commands
    other nodes have passed on, as long as they pass them on. `run` is a HeadFacts, encoded by `encode_facts`,
    empty from an older head.
    """

    state: bytes
    identities: tuple[str, ...] = ()
    answers: tuple[CommandRecord, ...] = ()
    run: bytes = b""


def encode_node(record: NodeRecord) -> bytes:
    """Encode the record of a node in at most `NODE_BYTES`. What is too much is left out, commands last."""
    for summary in _reduced(record.summary):
        body = compressed(structs.replace(record, summary=summary))
        if len(body) <= NODE_BYTES:
            return body
    bare = structs.replace(summary, ranks=())
    return compressed(structs.replace(record, summary=bare, commands=(), notes=()))


def decode_node(body: bytes) -> NodeRecord:
    """Decode the record of a node.

    Raises:
        RecordError: it is no valid record, or has too much.
    """
    record = _decoded(body, NODE_BYTES, NodeRecord)
    _check_summary(record.summary)
    if len(record.commands) > MOST_RELAYED:
        raise RecordError("a node passes on too many commands")
    if len(record.notes) > MOST_PASSED_NOTES or not all(map(_bounded_note, record.notes)):
        raise RecordError("a node passes on too many notes, or too long ones")
    return record


def encode_state(state: JobState) -> bytes:
    """Encode the state of a job in at most `STATE_BYTES`. What is too much is left out, nodes last."""
    for reduced in (lambda node: node, _without_gpus, _without_lines):
        body = compressed(structs.replace(state, nodes=tuple(map(reduced, state.nodes))))
        if len(body) <= STATE_BYTES:
            return body
    bare = tuple(
        structs.replace(node, summary=structs.replace(node.summary, ranks=())) if node.summary else node
        for node in state.nodes
    )
    return compressed(structs.replace(state, nodes=bare))


def decode_state(body: bytes) -> JobState:
    """Decode the state of a job.

    Raises:
        RecordError: it is none, or has too much.
    """
    state = _decoded(body, STATE_BYTES, JobState)
    check_state(state)
    return state


def check_state(state: JobState) -> None:
    """Check that a decoded state is bounded.

    Raises:
        RecordError: it has too much.
    """
    if len(state.nodes) > MOST_NODES:
        raise RecordError("a job has too many nodes")
    for node in state.nodes:
        if node.summary is not None:
            _check_summary(node.summary)


def encode_facts(facts: HeadFacts) -> bytes:
    """Encode what the head says of its run in at most `RUN_BYTES`. More is left out, notes last."""
    for reduced in _reduced_facts(facts):
        plain = msgspec.msgpack.encode(reduced)
        if len(plain) <= RUN_PLAIN_BYTES and len(body := zlib.compress(plain, 1)) <= RUN_BYTES:
            return body
    return b""


def decode_facts(body: bytes) -> HeadFacts | None:
    """Decode what the head says of its run, None from an older head.

    Raises:
        RecordError: it is not valid, or has too much.
    """
    if not body:
        return None
    facts = checked(decompressed(body, RUN_BYTES, RUN_PLAIN_BYTES), HeadFacts)
    metrics = sum(len(row.values) for row in facts.rows)
    counts = (metrics, len(facts.events), len(facts.commands), len(facts.notes))
    limits = (MOST_METRICS, MOST_EVENTS, MOST_RECORDS, MOST_NOTES)
    if any(count > most for count, most in zip(counts, limits, strict=True)):
        raise RecordError("a head says too much of its run")
    names = [facts.reports.host, *(name for row in facts.rows for name in row.values)]
    if any(len(name) > LONGEST_TEXT for name in names) or not all(map(_bounded_note, facts.notes)):
        raise RecordError("a text is too long")
    return facts


def _reduced_facts(facts: HeadFacts) -> Iterator[HeadFacts]:
    yield facts
    tuner = structs.replace(facts.tuner, tried=(), next=()) if facts.tuner is not None else None
    facts = structs.replace(facts, tuner=tuner, events=facts.events[-8:], commands=facts.commands[-4:])
    yield facts
    bare = TunerState(stand=tuner.stand) if tuner is not None else None
    facts = structs.replace(facts, tuner=bare, held=None, events=(), commands=(), rows=facts.rows[-1:])
    while facts.rows:
        yield facts
        facts = structs.replace(facts, rows=_half(facts.rows[-1]))
    facts = structs.replace(facts, reports=HeadReports(host=facts.reports.host))
    yield facts
    while facts.notes:
        facts = structs.replace(facts, notes=facts.notes[len(facts.notes) // 2 + 1 :])
        yield facts


def _half(row: HeadRow) -> tuple[HeadRow, ...]:
    """Return a row with half of its metrics, none of one with a single metric."""
    values = dict(islice(row.values.items(), len(row.values) // 2))
    return (HeadRow(row.t, row.step, values),) if values else ()


def _bounded_note(note: RunNote) -> bool:
    return is_note(note.text) and len(note.by) <= LONGEST_TEXT


def encode_job(record: JobRecord) -> bytes:
    """Encode the record of a head. Its state is compressed already.

    If it is too large, what it says of the run is left out, and then answers.
    """
    body = msgspec.msgpack.encode(record)
    answers = record.answers
    if len(body) > JOB_BYTES:
        record = structs.replace(record, run=b"")
        body = msgspec.msgpack.encode(record)
    while len(body) > JOB_BYTES and answers:
        answers = answers[: len(answers) // 2]
        body = msgspec.msgpack.encode(structs.replace(record, answers=answers))
    return body


def decode_job(body: bytes) -> JobRecord:
    """Decode the record of a head.

    Raises:
        RecordError: it is none, or is too large.
    """
    if len(body) > JOB_BYTES:
        raise RecordError(f"a record has {len(body)} bytes; the limit is {JOB_BYTES}")
    return checked(body, JobRecord)


def rounded(value: float | None) -> float | None:
    """Return a reading with the digits that count."""
    return None if value is None else float(f"{value:.{DIGITS}g}")


def _decoded(body: bytes, most: int, kind: type[T]) -> T:
    return checked(decompressed(body, most), kind)


def _check_summary(summary: NodeSummary) -> None:
    if len(summary.ranks) > MOST_RANKS or len(summary.alarms) > MOST_ALARMS:
        raise RecordError("a node has too many ranks or alarms")
    texts = [
        summary.host,
        summary.run,
        *(text for rank in summary.ranks for text in (rank.line, rank.kind, rank.phases)),
    ]
    if any(len(text) > LONGEST_TEXT for text in texts):
        raise RecordError("a text is too long")


def _reduced(summary: NodeSummary) -> tuple[NodeSummary, ...]:
    return (
        summary,
        structs.replace(summary, ranks=tuple(structs.replace(rank, gpu=None) for rank in summary.ranks)),
        structs.replace(summary, ranks=tuple(map(_bare, summary.ranks)), alarms=()),
    )


def _bare(rank: RankSummary) -> RankSummary:
    return structs.replace(rank, gpu=None, line="", kind="", line_share=None)


def _without_gpus(node: JobNode) -> JobNode:
    return node if node.summary is None else structs.replace(node, summary=_reduced(node.summary)[1])


def _without_lines(node: JobNode) -> JobNode:
    return node if node.summary is None else structs.replace(node, summary=_reduced(node.summary)[2])
