"""The state of a job as a recording keeps it: the readings of all ranks in columns, compressed.

Columns take a quarter of the room of rows. Readings keep the digits that count. UUIDs of GPUs do not
compress, so a recording has those of its own node, and of other nodes only which ranks share a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import structs

from hoptui.domain.jobs import JobNode, JobState
from hoptui.protocol.job_records import MOST_NODES, MOST_RANKS, STATE_BYTES, check_state
from hoptui.protocol.record_bytes import RecordError, checked, compressed, decompressed

BITS = 11
"""Binary digits of a reading: it is right to 0.03 %."""
LEVEL = 6
COLUMNS, COUNTS, GPU = "columns", "counts", "gpu."
"""The fields of a state with the values of all ranks, and with how many ranks each node has. The values of a
GPU are columns, too."""


def encode_recorded(state: JobState) -> bytes:
    """Encode a state. One that is larger than `STATE_BYTES` has no ranks."""
    raw = msgspec.to_builtins(structs.replace(state, nodes=tuple(_bare(node) for node in state.nodes)))
    rows = [list(_rows(node, own=node.index == state.here)) for node in state.nodes]
    names = dict.fromkeys(name for ranks in rows for row in ranks for name in row)
    columns = {name: [_shortened(row.get(name)) for ranks in rows for row in ranks] for name in names}
    body = compressed(raw | {COLUMNS: columns, COUNTS: [len(ranks) for ranks in rows]}, LEVEL)
    return body if len(body) <= STATE_BYTES else compressed(raw | {COLUMNS: {}, COUNTS: []}, LEVEL)


def decode_recorded(body: bytes) -> JobState:
    """Decode a state.

    Raises:
        RecordError: it is none, or has too much.
    """
    plain = decompressed(body, STATE_BYTES)
    try:
        raw: Any = msgspec.msgpack.decode(plain)
        columns, counts = raw.pop(COLUMNS), raw.pop(COUNTS)
        if len(counts) > MOST_NODES or any(not 0 <= count <= MOST_RANKS for count in counts):
            raise RecordError("a state has too many nodes or ranks")
        at = 0
        for node, count in zip(raw["nodes"], counts, strict=bool(counts)):
            if count:
                node["summary"]["ranks"] = [_rank(columns, index) for index in range(at, at + count)]
            at += count
        whole = msgspec.msgpack.encode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"a state is damaged: {error}") from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"a state has another form: {error}") from None
    state = checked(whole, JobState)
    check_state(state)
    return state


def _bare(node: JobNode) -> JobNode:
    if node.summary is None:
        return node
    return structs.replace(node, summary=structs.replace(node.summary, ranks=()))


def _rows(node: JobNode, *, own: bool) -> Iterator[dict[str, Any]]:
    """The values of each rank by name, those of its GPU among them."""
    numbers: dict[str, int] = {}
    for rank in node.summary.ranks if node.summary is not None else ():
        row = msgspec.to_builtins(rank)
        gpu = row.pop("gpu")
        if gpu is not None:
            number = numbers.setdefault(gpu["uuid"], len(numbers))
            gpu["uuid"] = gpu["uuid"] if own else str(number)
            row |= {f"{GPU}{name}": value for name, value in gpu.items()}
        yield row


def _rank(columns: dict[str, Sequence[Any]], at: int) -> dict[str, Any]:
    """A rank from the columns. One without a GPU has no UUID."""
    row = {name: values[at] for name, values in columns.items() if not name.startswith(GPU)}
    gpu = {name.removeprefix(GPU): values[at] for name, values in columns.items() if name.startswith(GPU)}
    return row | {"gpu": gpu if gpu.get("uuid") is not None else None}


def _shortened(value: Any) -> Any:
    """A reading with the digits that count."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(mantissa, BITS)), exponent - BITS)
