"""Export of a recording as CSV, JSON lines or Parquet. A few blocks of each source are in memory at a time.

Rows of all sources are merged by time. A column has the recorded name of its metric. An unknown value is
empty, absent or null, never 0 or NaN.
"""

from __future__ import annotations

import csv
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

import msgspec

from hoptui.domain.stacks import StackSamples, unpack
from hoptui.recording.database import RecordingError
from hoptui.recording.library import known_run
from hoptui.recording.recording import Recording

FIXED = ("t_s", "utc", "source", "step")
"""The columns before the metrics: seconds since the recording's start, wall time, source, step (empty: none).
"""

GROUP_ROWS = 8192
"""Rows in a row group of a Parquet file."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ExportRequest(NamedTuple):
    """What to export: rows from `t0` to `t1` (0: the first, the last) of some sources (none: all).

    A source is selected by its name or by the first part of it: `gpu` selects all GPUs. With `names`, rows
    that have none of them are skipped.
    """

    sources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    t0: int = 0
    t1: int = 0


ALL = ExportRequest()


class ExportRow(NamedTuple):
    """One row: stamp on the recording's clock (ns), source, iteration (-1: none), known values."""

    t: int
    source: str
    step: int
    values: dict[str, float]


def rows(recording: Recording, wanted: ExportRequest = ALL) -> Iterator[ExportRow]:
    """Yield the requested rows, oldest first.

    Raises:
        RecordingError: the file cannot be read, or is damaged.
    """
    streams = (_of(recording, source, wanted) for source in sources_meant(recording, wanted.sources))
    return heapq.merge(*streams, key=lambda row: row.t)


def columns(recording: Recording, wanted: ExportRequest = ALL) -> tuple[str, ...]:
    """Return the metrics that `rows` yields, ordered by source, then by first appearance."""
    chosen = sources_meant(recording, wanted.sources)
    known = dict.fromkeys(name for source in chosen for name in recording.names(source, wanted.t0, wanted.t1))
    return tuple(name for name in wanted.names if name in known) if wanted.names else tuple(known)


def write_csv(recording: Recording, file: TextIO, wanted: ExportRequest = ALL) -> None:
    """Write a header and one line per row, ended by LF. Unknown is empty. Open `file` with newline="".

    Raises:
        RecordingError: as `rows`.
    """
    metrics = columns(recording, wanted)
    clock = _Clock(recording)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow((*FIXED, *_headings(metrics)))
    for row in rows(recording, wanted):
        get = row.values.get
        writer.writerow((*clock(row.t), row.source, row.step if row.step >= 0 else "", *map(get, metrics)))


def write_jsonl(recording: Recording, file: TextIO, wanted: ExportRequest = ALL) -> None:
    """Write one object per line: what the run is, then rows, events, commands and stack samples, merged by
    time.

    `type` distinguishes them. A recording of an older version has no line for what the run is. Infinite
    values are null. Stack samples are left out where sources or metrics are chosen, and where they are
    damaged.

    Raises:
        RecordingError: as `rows`.
    """
    clock = _Clock(recording)
    if (about := _about(recording, clock)) is not None:
        file.write(msgspec.json.encode(about).decode())
        file.write("\n")
    row_records = (
        (row.t, {"type": "row", **clock.named(row.t), **_row_fields(row)}) for row in rows(recording, wanted)
    )
    records = _records(recording, clock, wanted)
    samples = _stacks(recording, clock, wanted)
    for _, record in heapq.merge(row_records, records, samples, key=lambda pair: pair[0]):
        file.write(msgspec.json.encode(record).decode())
        file.write("\n")


def write_parquet(recording: Recording, place: Path | BinaryIO, wanted: ExportRequest = ALL) -> None:
    """Write one table with the columns of the CSV: float64 with nulls, `utc` as a timestamp, in row groups.

    Raises:
        RecordingError: as `rows`, or pyarrow is not installed.
        OSError: the file cannot be written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise RecordingError("Parquet needs pyarrow: pip install 'hoptui[parquet]'") from None
    metrics = columns(recording, wanted)
    schema = pyarrow.schema(
        [
            ("t_s", pyarrow.float64()),
            ("utc", pyarrow.timestamp("ms", tz="UTC")),
            ("source", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
            ("step", pyarrow.int64()),
            *((heading, pyarrow.float64()) for heading in _headings(metrics)),
        ]
    )
    clock = _Clock(recording)
    with parquet.ParquetWriter(place, schema) as writer:
        for batch in _batches(rows(recording, wanted)):
            fixed: list[list[Any]] = [
                [clock.seconds(row.t) for row in batch],
                [clock.wall_ms(row.t) for row in batch],
                [row.source for row in batch],
                [row.step if row.step >= 0 else None for row in batch],
            ]
            values = [[row.values.get(name) for row in batch] for name in metrics]
            arrays = [
                pyarrow.array(column, type=field.type)
                for column, field in zip([*fixed, *values], schema, strict=True)
            ]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


class _Clock:
    """Formats stamps of a recording for readers and programs."""

    def __init__(self, recording: Recording) -> None:
        self._start = recording.span()[0]
        self._offset = recording.wall_offset_ns

    def __call__(self, t: int) -> tuple[str, str]:
        wall = _EPOCH + timedelta(milliseconds=self.wall_ms(t))
        return f"{self.seconds(t):.6f}", wall.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def seconds(self, t: int) -> float:
        return round((t - self._start) / 1e9, 6)

    def wall_ms(self, t: int) -> int:
        return (t + self._offset) // 1_000_000

    def named(self, t: int) -> dict[str, Any]:
        return {"t_s": self.seconds(t), "utc": self(t)[1]}


def _headings(metrics: Sequence[str]) -> list[str]:
    """Return the column names. A metric with the name of a fixed column gets a suffix."""
    return [f"{name} (metric)" if name in FIXED else name for name in metrics]


def sources_meant(recording: Recording, sources: Sequence[str]) -> list[str]:
    """Return the recording's sources that `sources` selects; all if it is empty.

    An entry is a source's name or the first part of one.
    """
    there = recording.sources()
    return [s for s in there if not sources or any(s == one or s.startswith(f"{one}/") for one in sources)]


def _of(recording: Recording, source: str, wanted: ExportRequest) -> Iterator[ExportRow]:
    for part in recording.rows(source, wanted.t0, wanted.t1, wanted.names):
        for t, step, values in part.rows():
            if values or not wanted.names:
                yield ExportRow(t, source, step, values)


def _row_fields(row: ExportRow) -> Mapping[str, Any]:
    finite = {name: v if math.isfinite(v) else None for name, v in row.values.items()}
    return {"source": row.source, "step": row.step if row.step >= 0 else None, "values": finite}


def _about(recording: Recording, clock: _Clock) -> Mapping[str, Any] | None:
    """Return what the run is, None if it is not recorded."""
    try:
        known = known_run(recording)
    except RecordingError:  # its rows can be read all the same
        return None
    if known is None or known.details is None:
        return None
    start = clock.named(recording.span()[0])
    run = {"run": known.state.run, "name": known.state.name, "epoch": known.state.epoch}
    return {"type": "run", **start, **run, **msgspec.to_builtins(known.details)}


def _records(
    recording: Recording, clock: _Clock, wanted: ExportRequest
) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """Return events and commands sorted by stamp. There are few of them."""
    found: list[tuple[int, Mapping[str, Any]]] = []
    for kind, group in (("event", recording.events()), ("command", recording.commands())):
        for record in group:
            if wanted.t0 <= record.t <= (wanted.t1 or record.t):
                plain = msgspec.to_builtins(record)
                found.append((record.t, {"type": kind, **clock.named(record.t), **plain}))
    return sorted(found, key=lambda pair: pair[0])


def _stacks(
    recording: Recording, clock: _Clock, wanted: ExportRequest
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the stack samples of each rank over about a minute, by the stamp of its end."""
    if wanted.sources or wanted.names:
        return
    for t in recording.minutes(wanted.t0)[0]:
        if wanted.t1 and t > wanted.t1:
            return
        try:
            minute = recording.minute(t)
        except RecordingError:
            continue
        for rank, samples in minute.ranks.items() if minute is not None else ():
            yield t, {"type": "stacks", **clock.named(t), "rank": rank, **_stack_fields(samples)}


def _stack_fields(samples: StackSamples) -> Mapping[str, Any]:
    stacks = [
        {
            "count": count,
            "frames": [{"file": f.file, "line": f.line, "function": f.function} for f in stack],
            "call": stack[-1].call if stack else "",
        }
        for stack, count in unpack(samples).items()
    ]
    seconds = (samples.ended - samples.began) / 1e9
    return {"seconds": seconds, "left_out": samples.left_out, "stacks": stacks}


def _batches(found: Iterator[ExportRow]) -> Iterator[list[ExportRow]]:
    batch: list[ExportRow] = []
    for row in found:
        batch.append(row)
        if len(batch) == GROUP_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch
