"""The recordings of a directory: what there is, what of it may go.

A recording says of itself whose run it is; where it cannot, its file's name does, and `problem` says why.
Nothing here opens a recording for writing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hoptui.protocol.messages import NodeState, RunState
from hoptui.recording.database import RecordingError, errors_named
from hoptui.recording.recording import Recording

RUN, NODE = "run", "node"
"""Keys of the table `meta`; the values are JSON of the structs below (`RUN`) and of a NodeState without runs
(`NODE`)."""


class KnownRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run, and how its process is known again: `nonce`, and its start in clock ticks since boot."""

    state: RunState
    nonce: str
    process_started: int


def encode_node(node: NodeState) -> bytes:
    """The node as a recording keeps it: its GPUs and its host, without its runs."""
    return msgspec.json.encode(msgspec.structs.replace(node, runs=()))


def decode_node(raw: bytes | str) -> NodeState:
    """The inverse of `encode_node`. Raises msgspec.DecodeError where it is damaged."""
    return msgspec.json.decode(raw, type=NodeState)


SUFFIX = ".hoptui"


@dataclass(frozen=True)
class RecordingEntry:
    """A recording as the shelf shows it.

    `run` is the run's id, `state` what was last known of it (None: nothing is, and `problem` says why).
    `size_bytes` counts the write-ahead log too; `modified`, `first_wall` and `last_wall` are seconds since
    1970, the latter two of the first and the last row or event (0: there are none, or it cannot be read).
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
    """A recording that `tidy` has deleted; `why` is one phrase for a log."""

    path: Path
    size_bytes: int
    why: str


def entries(directory: Path) -> list[RecordingEntry]:
    """All recordings in a directory, the last written first. Reads a few pages of each: 2 ms a file.

    Raises:
        RecordingError: the directory cannot be read.
    """
    with errors_named(directory):
        paths = [path for path in directory.iterdir() if path.suffix == SUFFIX]
    found = [entry for path in paths if (entry := _entry(path)) is not None]
    return sorted(found, key=lambda entry: (-entry.modified, entry.path))


def at_rest(path: Path) -> bool:
    """Whether a recording was closed properly and nobody has it open: one look at it need leave nothing
    beside it."""
    return not _log_of(path).exists()


def remove(path: Path) -> None:
    """Delete a recording with what SQLite keeps beside it.

    Raises:
        RecordingError: it cannot be deleted.
    """
    with errors_named(path):
        for file in _files(path):
            file.unlink(missing_ok=True)


def tidy(
    directory: Path, keep: frozenset[str], most_bytes: float, oldest_s: float, now: float
) -> list[Removed]:
    """Delete recordings last written more than `oldest_s` before `now` (seconds since 1970), then the oldest
    ones until all together take no more than `most_bytes`. A run in `keep` is never touched, but counts.

    One that cannot be deleted stays, and is not counted as freed.

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
    """The recording's own files, the log before what it belongs to: a log alone would be taken for a new
    file's."""
    for ending in ("-shm", "-wal", ""):
        yield path.with_name(path.name + ending)


def _sizes(directory: Path) -> list[tuple[float, int, Path]]:
    with errors_named(directory):
        paths = [path for path in directory.iterdir() if path.suffix == SUFFIX]
    measured = [(_measured(path), path) for path in paths]
    return [(*found, path) for found, path in measured if found is not None]


def _measured(path: Path) -> tuple[float, int] | None:
    """When a recording was last written, and what its files take; None if it is gone.

    An empty log tells nothing: whoever opens the recording for reading makes one.
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


def _entry(path: Path) -> RecordingEntry | None:
    measured = _measured(path)
    if measured is None:
        return None
    modified, size = measured
    state, problem, first, last = None, "", 0.0, 0.0
    try:
        with Recording.open(path, still=at_rest(path)) as recording:
            span, offset = recording.span(), recording.wall_offset_ns
            if span != (0, 0):
                first, last = ((t + offset) / 1e9 for t in span)
            raw = recording.recall(RUN)
        if raw is None:
            problem = f"{path} does not say which run it is of"
        else:
            state = msgspec.json.decode(raw, type=KnownRun).state
    except RecordingError as error:
        problem = error.reason
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = f"{path} is damaged: {error}"
    return RecordingEntry(
        path, state.run if state else path.stem, state, problem, size, modified, first, last
    )
