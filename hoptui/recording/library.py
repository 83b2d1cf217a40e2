"""The recordings of a directory: listing and removal.

A recording stores the run it belongs to. If that cannot be read, the file's name is the run and `problem`
gives the reason. Nothing here opens a recording for writing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from hoptui.domain.details import RunDetails
from hoptui.domain.facts import fact
from hoptui.domain.run_notes import RunNote
from hoptui.protocol.messages import NodeState, RunState
from hoptui.protocol.ranges import check_ranges
from hoptui.recording import stored_json
from hoptui.recording.database import (
    RecordingError,
    damage_named,
    errors_named,
    open_for_writing,
    transaction,
)
from hoptui.recording.recording import Recording
from hoptui.recording.tables import Records

RUN, NODE = "run", "node"
"""Keys of the table `meta`. `RUN` holds JSON of a KnownRun, `NODE` of a NodeState without runs. `RUN` is
missing in a recording of a node without a run."""


class KnownEnding(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has said whose interpreter exits, and when: `wall` is in seconds since 1970.

    `told`: it has said what became of every command.
    """

    reason: str
    detail: str
    told: bool
    wall: float


class KnownRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run and how its process is recognised: `nonce`, and its start in clock ticks since boot.

    `details` are None in recordings of older versions. `leaving` is set from its goodbye to its end.
    """

    state: RunState
    nonce: str
    process_started: int
    details: RunDetails | None = None
    leaving: KnownEnding | None = None


def add_note(path: Path, note: RunNote) -> tuple[RunNote, ...]:
    """Add a note to the run of a recording that no process writes. Return all of its notes.

    What a newer version has stored of the run is kept.

    Raises:
        RecordingError: it cannot be written, another process writes it, or it has no run.
    """
    db, lock = open_for_writing(path)
    try:
        records = Records(path, db)
        with damage_named(path), transaction(db):
            raw = records.recall(RUN)
            if raw is None:
                raise RecordingError(without_run(path))
            known = stored_json.plain(raw)
            notes = (*stored_json.decode(raw, KnownRun).state.notes, note)
            known["state"]["notes"] = msgspec.to_builtins(notes)
            records.remember({RUN: stored_json.encode(known)})
        return notes
    finally:
        db.close()
        os.close(lock)


def missing(recording: Recording) -> str:
    """Return how much of a run a recording lacks as far as it has counted that, "" for nothing."""
    count = recording.missing
    return f"{count} rows, events, commands or stack samples are missing" if count else ""


def known_run(recording: Recording) -> KnownRun | None:
    """Return the run of a recording, None if it records a node without a run.

    Raises:
        RecordingError: it does not name its run, or that part is damaged.
    """
    raw = recording.recall(RUN)
    if raw is not None:
        with damage_named(recording.path):
            return stored_json.decode(raw, KnownRun)
    if recording.recall(NODE) is None:
        raise RecordingError(f"{recording.path} does not name its run")
    return None


def known_node(recording: Recording) -> NodeState | None:
    """Return the recorded node, None if there is none. Raises RecordingError if it is damaged."""
    raw = recording.recall(NODE)
    if raw is None:
        return None
    with damage_named(recording.path):
        return decode_node(raw)


def without_run(path: Path) -> str:
    """One sentence for a command that needs the run of a recording that has none."""
    return f"{path} records a node without a run: hoptui replay shows it, and hoptui export writes its rows"


def encode_node(node: NodeState) -> bytes:
    """Encode the node for a recording: its GPUs and its host, without its runs."""
    return stored_json.encode(msgspec.structs.replace(node, runs=()))


def decode_node(raw: bytes | str) -> NodeState:
    """Decode what `encode_node` returned, also in older recordings, which have sentences instead of facts.

    Raises:
        ValueError: it is damaged.
    """
    node = stored_json.plain(raw)
    if isinstance(node, dict):
        _recorded(node, "gpu_reason", "gpu_problem")
        gpus = node.get("gpus")
        for gpu in gpus if isinstance(gpus, list) else ():
            if isinstance(gpu, dict):
                _recorded(gpu, "reason", "problem")
                missing = gpu.get("missing")
                if isinstance(missing, dict):
                    gpu["missing_because"] = {name: _sentence(text) for name, text in missing.items()}
    found = msgspec.convert(node, NodeState)
    check_ranges(found)
    return found


def _recorded(fields: dict[str, Any], old: str, new: str) -> None:
    """Give `fields` a fact under the key `new` if it has a sentence under the key `old`."""
    if fields.get(old):
        fields[new] = _sentence(fields[old])


def _sentence(text: object) -> object:
    return msgspec.to_builtins(fact("recorded", text=text))


SUFFIX = ".hoptui"


@dataclass(frozen=True)
class RecordingEntry:
    """A recording in a list.

    `run` is the run's id, `state` its last known state (None: unknown, and `problem` gives the reason).
    `size_bytes` includes the write-ahead log. `modified`, `first_wall` and `last_wall` are seconds since
    1970. The latter two are of the first and the last row or event (0: there are none, or they cannot be
    read).
    """

    path: Path
    run: str
    state: RunState | None
    problem: str
    size_bytes: int
    modified: float
    first_wall: float
    last_wall: float


@dataclass(frozen=True)
class Removed:
    """A recording that `tidy` has deleted. `why` is one phrase for a log."""

    path: Path
    size_bytes: int
    why: str


def entries(directory: Path) -> list[RecordingEntry]:
    """Return all recordings in a directory, the last written first. Each takes 2 ms.

    Raises:
        RecordingError: the directory cannot be read.
    """
    found = [one for path in paths(directory) if (one := entry(path)) is not None]
    return sorted(found, key=lambda one: (-one.modified, one.path))


def paths(directory: Path) -> list[Path]:
    """Return the files of all recordings in a directory.

    Raises:
        RecordingError: the directory cannot be read.
    """
    with errors_named(directory):
        return [path for path in directory.iterdir() if path.suffix == SUFFIX]


def at_rest(path: Path) -> bool:
    """Return whether a recording was closed properly and no process has it open.

    Then it can be opened without leaving files beside it.
    """
    return not _log_of(path).exists()


def remove(path: Path) -> None:
    """Delete a recording and SQLite's files beside it.

    Raises:
        RecordingError: it cannot be deleted.
    """
    with errors_named(path):
        for file in _files(path):
            file.unlink(missing_ok=True)


def tidy(
    directory: Path, keep: frozenset[str], most_bytes: float, oldest_s: float, now: float
) -> list[Removed]:
    """Delete old recordings, then the oldest ones until the rest fit into `most_bytes`.

    A recording is old if it was last written more than `oldest_s` before `now` (seconds since 1970). A run in
    `keep` is never deleted, but its size counts. A recording that cannot be deleted stays, and is not counted
    as freed.

    Raises:
        RecordingError: the directory cannot be read.
    """
    found = _sizes(directory)
    left = sum(size for _, size, _ in found)
    removed: list[Removed] = []
    for modified, size, path in sorted(found):
        if now - modified > oldest_s:
            why = f"it was last written more than {oldest_s / 86400:g} days ago"
        elif left > most_bytes:
            why = f"recordings took more than {most_bytes / 1e9:.3g} GB"
        else:
            continue
        if path.stem in keep:
            continue
        with contextlib.suppress(RecordingError):
            remove(path)
            left -= size
            removed.append(Removed(path, size, why))
    return removed


def _files(path: Path) -> Iterator[Path]:
    """Yield the recording's own files, its log before the file itself.

    SQLite would take a log that is left alone for the log of a new file.
    """
    for ending in ("-shm", "-wal", ""):
        yield path.with_name(path.name + ending)


def _sizes(directory: Path) -> list[tuple[float, int, Path]]:
    sizes = [(measured(path), path) for path in paths(directory)]
    return [(*found, path) for found, path in sizes if found is not None]


def measured(path: Path) -> tuple[float, int] | None:
    """Return when a recording was last written and the size of its files; None if it is gone.

    An empty log is ignored: a process that opens the recording for reading creates one.
    """
    modified, size = 0.0, 0
    for file in (path, _log_of(path)):
        with contextlib.suppress(OSError):
            seen = file.stat()
            if file == path or seen.st_size:
                size += seen.st_size
                modified = max(modified, seen.st_mtime)
    return (modified, size) if modified else None


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def entry(path: Path) -> RecordingEntry | None:
    """Return what a recording is of; None if it is gone."""
    seen = measured(path)
    if seen is None:
        return None
    modified, size = seen
    state, problem, first, last = None, "", 0.0, 0.0
    try:
        with Recording.open(path, still=at_rest(path)) as recording:
            span, offset = recording.span(), recording.wall_offset_ns
            if span != (0, 0):
                first, last = ((t + offset) / 1e9 for t in span)
            known, lacks = known_run(recording), missing(recording)
        if known is not None:
            state = structs.replace(known.state, recording=lacks)
        else:
            problem = without_run(path)
    except RecordingError as error:
        problem = error.reason
    return RecordingEntry(
        path, state.run if state else path.stem, state, problem, size, modified, first, last
    )
