"""`hoptui rm`: delete recordings of exited runs after listing them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.support import recordings
from hoptui.cli.support.options import Yes
from hoptui.cli.support.recordings import age, age_s, size, title
from hoptui.cli.support.snapshot import look, refuse_read_only
from hoptui.cli.support.terminal import OK, REJECTED, Fail, agreed, interactive, say, table, usage
from hoptui.client.session import NoDaemon
from hoptui.presentation import numbers
from hoptui.recording import RecordingError, library
from hoptui.recording.library import RecordingEntry

FEWEST_LETTERS, WHOLE_ID = 4, 100
"""The shortest part of an id that selects a recording to delete."""
UNITS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


def rm(
    *runs: Annotated[
        str,
        Parameter(help="Names or ids of recorded runs. With --yes, ids must be complete."),
    ],
    older_than: Annotated[
        str | None,
        Parameter(show_default=False, help="Delete only recordings whose last row is older: 7d, 12h."),
    ] = None,
    dry_run: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Show what would be deleted, and delete nothing."),
    ] = False,
    yes: Yes = False,
) -> int:
    """Delete recordings of exited runs: the named ones, or all that are old enough."""
    if not runs and older_than is None:
        raise usage("nothing to delete: name runs (hoptui ls --all lists them), or give --older-than 7d")
    if not dry_run:
        refuse_read_only("nothing is deleted")
    least_age = _stretch(older_than)
    where = recordings.places()
    found = recordings.entries(where)
    # Without a question, the beginning of an id is not safe enough.
    shortest = WHOLE_ID if yes else FEWEST_LETTERS
    matched = [recordings.one(found, name, where, shortest=shortest) for name in runs]
    named = list({entry.run: entry for entry in matched}.values())
    living = _living(found)
    alive = [entry for entry in named if entry.run in living]
    if alive:
        names = ", ".join(f"{title(entry)} ({entry.run})" for entry in alive)
        does = "is live" if len(alive) == 1 else "are live"
        raise Fail(f"{names} {does}: nothing was deleted. To stop a run: hoptui stop", REJECTED)
    chosen = [entry for entry in named or found if entry.run not in living and age_s(entry) >= least_age]
    if not chosen:
        say("no recording is that old" if older_than else "nothing to delete")
        return OK
    return _delete(chosen, dry_run=dry_run, yes=yes)


def _stretch(typed: str | None) -> float:
    """Parse `7d` or `1h30m` to seconds; 0 for None."""
    if typed is None:
        return 0.0
    if not re.fullmatch(r"(?:\d+(?:\.\d+)?[wdhms])+", typed):
        raise usage(f"--older-than takes a length of time such as 7d or 12h, not {typed!r}")
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+)([wdhms])", typed))


def _living(found: Sequence[RecordingEntry]) -> set[str]:
    """The runs that have not exited. For a run unknown to the daemon, check whether its pid exists."""
    known: dict[str, bool] = {}
    try:
        with look(start_daemon=False) as seen:
            known = {run.run: seen.lives(run) for run in seen.node.runs}
    except (NoDaemon, Fail):
        pass  # no daemon: rely on the recordings
    return {entry.run for entry in found if known.get(entry.run, _seems_alive(entry))}


def _seems_alive(entry: RecordingEntry) -> bool:
    return entry.state is not None and not entry.state.exit_reason and _exists(entry.state.pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # a process of another user
    return True


def _delete(chosen: Sequence[RecordingEntry], *, dry_run: bool, yes: bool) -> int:
    total = size(sum(entry.size_bytes for entry in chosen))
    count = f"{len(chosen)} {'recording' if len(chosen) == 1 else 'recordings'}"
    if dry_run or not yes:
        table([_line(entry) for entry in chosen], right=(2, 3))
    if dry_run:
        say(f"{count}, {total}, would be deleted")
        return OK
    if not yes:
        if not interactive():
            raise usage(f"no terminal to confirm deleting {count}: add --yes")
        if not agreed(f"delete {count}, {total}?"):
            raise Fail("nothing was deleted", REJECTED)
    for number, entry in enumerate(chosen):
        try:
            library.remove(entry.path)
        except (RecordingError, OSError) as error:
            raise Fail(f"{error}; {number} of {count} deleted", REJECTED) from None
    say(f"{count} deleted, {total} freed")
    return OK


def _line(entry: RecordingEntry) -> tuple[str, ...]:
    why = entry.problem or (entry.state.exit_reason if entry.state else "")
    return (title(entry), entry.run, size(entry.size_bytes), f"{age(entry)} ago", numbers.clean(why))
