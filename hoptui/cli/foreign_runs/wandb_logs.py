"""Runs in the logs that wandb writes: `run-*.wandb`, as of an offline run.

The file has LevelDB's log format with a header of its own. wandb's protocol buffers decode the records.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hoptui.cli.foreign_runs.foreign_run import ForeignRun, ForeignRunError, merged

FILES = "*.wandb"
NEEDED = "wandb's messages are needed for .wandb files: pip install 'hoptui[wandb]'"
HEADER = struct.Struct("<4sHB")
IDENT = b":W&B"
CHUNK = struct.Struct("<IHB")
BLOCK = 32768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
LONGEST_RECORD = 256 << 20


class DamagedLogError(Exception):
    """The rest of the log cannot be read."""


def runs(root: Path) -> Iterator[ForeignRun]:
    """Read each log at `root` and below it. A link to the newest run, as wandb makes it, is not followed.

    Raises:
        ForeignRunError: wandb is not installed.
    """
    found = [root] if root.is_file() else sorted(p for p in root.rglob(FILES) if not p.parent.is_symlink())
    if not found:
        return
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError:
        raise ForeignRunError(NEEDED) from None
    for path in found:
        yield _run(path, wandb_internal_pb2.Record)


def records(path: Path) -> Iterator[bytes]:
    """The records of a log.

    Raises:
        DamagedLogError: it is no log of wandb, or it is damaged or ends within a record.
    """
    with path.open("rb") as stream:
        head = stream.read(HEADER.size)
        if len(head) < HEADER.size or HEADER.unpack(head)[0] != IDENT:
            raise DamagedLogError
        at, whole = HEADER.size, bytearray()
        while True:
            left = BLOCK - at % BLOCK
            if left < CHUNK.size:  # the rest of a block is padding
                at += len(stream.read(left))
                continue
            raw = stream.read(CHUNK.size)
            if not raw:
                break
            if len(raw) < CHUNK.size:
                raise DamagedLogError
            checksum, length, kind = CHUNK.unpack(raw)
            data = stream.read(length)
            at += CHUNK.size + len(data)
            if len(data) < length or zlib.crc32(data, zlib.crc32(bytes([kind]))) != checksum:
                raise DamagedLogError
            if kind in (FULL, FIRST):
                whole.clear()
            whole += data
            if len(whole) > LONGEST_RECORD:
                raise DamagedLogError
            if kind in (FULL, LAST):
                yield bytes(whole)
    if not at:
        raise DamagedLogError


def _run(path: Path, kind: Any) -> ForeignRun:
    run = ForeignRun(place=path, name=path.stem.removeprefix("run-"))
    values: list[tuple[float, int, str, float]] = []
    try:
        for raw in records(path):
            record = kind()
            record.ParseFromString(raw)
            match record.WhichOneof("record_type"):
                case "run":
                    _describe(run, record.run)
                case "config":
                    run.config.update(_items(record.config.update))
                case "history":
                    values += _history(record.history)
                case "summary":
                    run.summary.update(_items(record.summary.update))
                case "exit":
                    code = record.exit.exit_code
                    run.ending = "finished" if code == 0 else f"exit code {code}"
    except (DamagedLogError, OSError, ValueError):  # protobuf's error is a ValueError
        run.unreadable += 1
    run.config.pop("_wandb", None)
    run.summary = {name: value for name, value in run.summary.items() if not name.startswith("_")}
    run.rows = merged(values)
    return run


def _describe(run: ForeignRun, described: Any) -> None:
    run.name = described.display_name or described.run_id or run.name
    run.notes, run.host, run.tags = described.notes, described.host, tuple(described.tags)
    run.config.update(_items(described.config.update))


def _items(items: Iterable[Any]) -> dict[str, Any]:
    """Values by name; the parts of a nested name are joined by dots."""
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def _history(history: Any) -> Iterator[tuple[float, int, str, float]]:
    """The numbers of a row. Other values have no place in a chart."""
    row = _items(history.item)
    wall, step = row.get("_timestamp"), row.get("_step", history.step.num)
    if isinstance(wall, int | float):
        for name, value in row.items():
            if not name.startswith("_") and isinstance(value, int | float):
                yield float(wall), int(step), name, float(value)
