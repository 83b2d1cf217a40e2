"""Find recordings by a file's path, or by the name or id of a recorded run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import hoptui
from hoptui.cli.support.terminal import MISSING, REJECTED, Fail, usage
from hoptui.client.target import RECORDED, is_path
from hoptui.node.addresses import AddressError, Addresses, addresses
from hoptui.node.files import expanded
from hoptui.presentation import numbers
from hoptui.protocol.messages import RunState
from hoptui.recording import Recording, RecordingError, library
from hoptui.recording.library import RecordingEntry

MOST_LISTED = 5
SECOND = 1_000_000_000
EXAMPLES = Path(hoptui.__file__).parent / "examples"
"""The recordings that ship with hoptui."""
EXAMPLE = "lm-h200"


def places() -> Addresses:
    """This user's directories.

    Raises:
        Fail: others can write to them.
    """
    try:
        return addresses()
    except AddressError as error:
        raise Fail(str(error), MISSING) from None


def entries(where: Addresses) -> list[RecordingEntry]:
    """All recordings of this user on this node, newest first."""
    return library.entries(where.state) if where.state.is_dir() else []


def find(name: str) -> Path:
    """The file of a recording.

    Raises:
        Fail: no such file or recording, or several.
    """
    if is_path(name):
        path = expanded(name)
        if not _exists(path):
            raise Fail(f"no such file: {numbers.clean(name)}", MISSING)
        return path
    where = places()
    found = entries(where)
    if not matching(found, name) and _exists(Path(name)) and Path(name).is_file():
        return Path(name)  # in this directory, with another suffix
    return one(found, name, where).path


def _exists(path: Path) -> bool:
    """Whether there is such a file. There is none if its name is too long, or if it cannot be looked at."""
    try:
        return path.exists()
    except OSError:
        return False


def of_run(name: str) -> tuple[RunState, Path]:
    """The run of this name or id that the daemon does not know, or of this file: its recorded state, and the
    file.

    Raises:
        Fail: no recording of such a run, several, or one that cannot be read.
    """
    if is_path(name):
        return _state_of(path := find(name)), path
    where = places()
    found = entries(where)
    if not matching(found, name):
        raise Fail(
            f"no run {name!r} on this node, and no recording of it in {where.state}; "
            "hoptui ls --all lists all runs",
            MISSING,
        )
    entry = one(found, name, where)
    if entry.state is None:
        raise Fail(entry.problem, REJECTED)
    return entry.state, entry.path


def _state_of(path: Path) -> RunState:
    try:
        with Recording.open(path) as recording:
            known = library.known_run(recording)
    except RecordingError as error:
        raise Fail(str(error), REJECTED) from None
    if known is None:
        raise Fail(library.without_run(path), REJECTED)
    return known.state


def example(name: str = EXAMPLE) -> Path:
    """The file of an example recording.

    Raises:
        Fail: there is no such example.
    """
    path = EXAMPLES / f"{name}{RECORDED}"
    names = sorted(file.name.removesuffix(RECORDED) for file in EXAMPLES.glob(f"*{RECORDED}"))
    if name not in names:
        raise Fail(
            f"there is no example {numbers.clean(name, 60)!r}; the examples are {', '.join(names)}",
            MISSING,
        )
    return path


def one(found: Sequence[RecordingEntry], name: str, where: Addresses, *, shortest: int = 1) -> RecordingEntry:
    """The recording with this id, name, or beginning of an id that has at least `shortest` characters.

    Raises:
        Fail: none has it, or several have.
    """
    which = matching(found, name, shortest=shortest)
    if not which:
        raise Fail(
            f"no recording of a run {numbers.clean(name, 60)!r} in {where.state}{_there(found)}", MISSING
        )
    if len(which) > 1:
        listed = ", ".join(f"{e.run} ({age(e)} ago)" for e in which[:MOST_LISTED])
        left = len(which) - MOST_LISTED
        more = f" and {left} more, which hoptui ls --all lists" if left > 0 else ""
        raise Fail(
            f"{numbers.clean(name, 60)!r} matches {len(which)} recordings, the newest first: {listed}{more}; "
            f"give an id instead, such as {which[0].run}",
            MISSING,
        )
    return which[0]


def matching(found: Sequence[RecordingEntry], name: str, *, shortest: int = 1) -> list[RecordingEntry]:
    """The recordings with this id, otherwise with this name, otherwise with this beginning of an id.

    A beginning needs at least `shortest` characters.
    """
    return (
        [entry for entry in found if entry.run == name]
        or [entry for entry in found if entry.state is not None and entry.state.name == name]
        or [entry for entry in found if len(name) >= shortest and entry.run.startswith(name)]
    )


def taken(state: Path) -> tuple[int, int]:
    """The number of recordings and their total size. No recording is opened."""
    files = list(state.glob(f"*{RECORDED}*"))
    sizes = 0
    for path in files:
        with contextlib.suppress(OSError):  # deleted in the meantime
            sizes += path.stat().st_size
    return sum(path.name.endswith(RECORDED) for path in files), sizes


def title(entry: RecordingEntry) -> str:
    """The name of its run, as far as the recording can be read."""
    return numbers.clean(entry.state.name, 40) if entry.state is not None else numbers.UNKNOWN


def stamp(opened: Recording, option: str, typed: str | None) -> int:
    """Parse a time as ISO 8601 or as any form that a replay accepts. Return a stamp on the recording's
    clock, or 0 if none was given.

    Raises:
        Fail: it is no time, or not in this recording; exit code 2.
    """
    if typed is None:
        return 0
    with contextlib.suppress(ValueError):
        if "T" in typed:
            wall = datetime.fromisoformat(typed).timestamp()
            return max(1, round(wall * SECOND) - opened.wall_offset_ns)
    from hoptui.client.replay import Replay

    try:
        with contextlib.closing(Replay(opened.path)) as replay:
            return max(1, replay.find(typed))
    except ValueError as error:
        raise usage(f"{option}: {error}") from None


def size(count: float) -> str:
    """Bytes as `12.3 MiB`."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1023.5:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.95 else f"{amount:.1f} {unit}"


def age_s(entry: RecordingEntry) -> float:
    """Seconds since its last row or event; for an unreadable file, since it was last written."""
    return time.time() - (entry.last_wall or entry.modified)


def age(entry: RecordingEntry) -> str:
    """The age as text."""
    return numbers.duration(age_s(entry))


def _there(found: Sequence[RecordingEntry]) -> str:
    names = list(dict.fromkeys(title(entry) for entry in found if entry.state is not None))
    if not names:
        return "; there are none"
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return f"; there {'is' if len(names) == 1 else 'are'} {', '.join(names[:MOST_LISTED])}{more}"
