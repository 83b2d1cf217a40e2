"""What the nodes of one run write to its store: a record of each node, and one of the head for all.

The processes that carry a record do not decode it. Its size is bounded before and after it is decompressed,
it is decoded by msgspec, and every number must be in the range of its field. Never pickle.
"""

from __future__ import annotations

import zlib
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from hoptui.domain import enumerations
from hoptui.domain.jobs import JobNode, JobState, NodeSummary, RankSummary
from hoptui.protocol.messages import Command, CommandRecord
from hoptui.protocol.ranges import check_ranges

NODE_BYTES, STATE_BYTES, JOB_BYTES = 48 << 10, 160 << 10, 256 << 10
"""The largest record of a node, state of a job, and record of a head: compressed."""
MOST_BYTES = 8 << 20
"""The largest record when it is decompressed."""
MOST_NODES, MOST_RANKS, MOST_ALARMS = 4096, 128, 32
MOST_RELAYED = 32
"""Commands in a record of a node."""
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

    `commands` were given on this node and are not answered yet.
    """

    node: str
    summary: NodeSummary
    commands: tuple[Command, ...] = ()
    renewal: PauseRenewal | None = None


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the head writes for all nodes. `state` is a JobState, encoded by `encode_state`.

    `identities` are those of the nodes in the state, in the same order. `answers` are the records of commands
    that other nodes have passed on, as long as they pass them on.
    """

    state: bytes
    identities: tuple[str, ...] = ()
    answers: tuple[CommandRecord, ...] = ()


class RecordError(ValueError):
    """Bytes that are no valid record. The text is one sentence."""


def encode_node(record: NodeRecord) -> bytes:
    """Encode the record of a node in at most `NODE_BYTES`. What is too much is left out, commands last."""
    for summary in _reduced(record.summary):
        body = compressed(structs.replace(record, summary=summary))
        if len(body) <= NODE_BYTES:
            return body
    return compressed(structs.replace(record, summary=structs.replace(summary, ranks=()), commands=()))


def decode_node(body: bytes) -> NodeRecord:
    """Decode the record of a node.

    Raises:
        RecordError: it is no valid record, or has too much.
    """
    record = _decoded(body, NODE_BYTES, NodeRecord)
    _check_summary(record.summary)
    if len(record.commands) > MOST_RELAYED:
        raise RecordError("a node passes on too many commands")
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


def encode_job(record: JobRecord) -> bytes:
    """Encode the record of a head. Its state is compressed already. Answers that do not fit are left out."""
    answers = record.answers
    while True:
        body = msgspec.msgpack.encode(structs.replace(record, answers=answers))
        if len(body) <= JOB_BYTES or not answers:
            return body
        answers = answers[: len(answers) // 2]


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


def compressed(record: object, level: int = 1) -> bytes:
    """Encode and compress a record."""
    return zlib.compress(msgspec.msgpack.encode(record), level)


def _decoded(body: bytes, most: int, kind: type[T]) -> T:
    return checked(decompressed(body, most), kind)


def decompressed(body: bytes, most: int) -> bytes:
    """Decompress a record of at most so many bytes.

    Raises:
        RecordError: it is too large, or damaged.
    """
    if len(body) > most:
        raise RecordError(f"a record has {len(body)} bytes; the limit is {most}")
    try:
        plain = (opened := zlib.decompressobj()).decompress(body, MOST_BYTES)
    except zlib.error as error:
        raise RecordError(f"a record is damaged: {error}") from None
    if opened.unconsumed_tail or not opened.eof:
        raise RecordError("a record is too large, or cut")
    return plain


def checked(plain: bytes, kind: type[T]) -> T:
    """Decode a record that is not compressed, and check its numbers.

    Raises:
        RecordError: it is no valid record.
    """
    try:
        try:
            found = msgspec.msgpack.decode(plain, type=kind)
        except msgspec.ValidationError:  # perhaps with words of a newer hoptui
            raw: Any = msgspec.msgpack.decode(plain)
            found = enumerations.convert(raw, kind)
        check_ranges(found)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise RecordError(f"a record is no {kind.__name__}: {error}"[:LONGEST_TEXT]) from None
    return found


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
