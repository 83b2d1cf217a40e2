"""Commands that only recordings on this node still hold. Reads files: do not call it in the drawing
thread."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from hoptui.node.addresses import AddressError, addresses
from hoptui.protocol.messages import CommandRecord
from hoptui.recording import Recording, RecordingError, library


def recorded(path: Path) -> list[CommandRecord]:
    """Return the commands of a recording, oldest first.

    Raises:
        RecordingError: it cannot be read.
    """
    with Recording.open(path, still=library.at_rest(path)) as recording:
        return sorted(recording.commands(), key=lambda record: (record.wall, record.seq))


def older(runs: Iterable[str], known: Collection[str], most: int) -> tuple[list[CommandRecord], str]:
    """Return the newest commands of some runs, oldest first, and one sentence if a recording cannot be read.

    Commands whose ids are in `known` are excluded. There are at most `most`.
    """
    found: list[CommandRecord] = []
    problem = ""
    try:
        paths = [addresses(create=False).recording(run) for run in runs]
    except AddressError as error:
        return [], str(error)
    for path in paths:
        try:
            found += [record for record in recorded(path) if record.id not in known] if path.exists() else []
        except RecordingError as error:
            problem = f"older commands are not listed: {error}"
    found.sort(key=lambda record: (record.wall, record.seq))
    return found[-most:], problem
