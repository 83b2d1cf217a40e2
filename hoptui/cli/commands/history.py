"""`hoptui history`: list every command sent to a run, from the daemon and the recording."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.support.options import Json, RunOrFile
from hoptui.cli.support.records import command_json, note_json
from hoptui.cli.support.records import since as newer
from hoptui.cli.support.snapshot import look
from hoptui.cli.support.terminal import MISSING, OK, REJECTED, Fail, dump, say, table, usage, warn
from hoptui.client.target import is_path
from hoptui.domain.run_notes import LONGEST_NOTE, RunNote
from hoptui.model.command_history import Filter, again, left, named, reason
from hoptui.model.runs import Ambiguous, NoSuchRun, find_run
from hoptui.presentation import numbers, vocabulary
from hoptui.protocol.authors import author
from hoptui.protocol.messages import CommandRecord, NodeState, RunState


def history(
    run: RunOrFile,
    /,
    *,
    filter: Annotated[  # noqa: A002 - the option's name
        str,
        Parameter(
            show_default=False,
            help="Show only commands matching all of these words. Supports stage:NAME and by:USER.",
        ),
    ] = "",
    as_commands: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Print the shell command that repeats each of them."),
    ] = False,
    since: Annotated[
        str,
        Parameter(
            show_default=False,
            help="Only commands since a time, or after the command with this id. A time is an age (10m), "
            "seconds since 1970, or ISO 8601.",
        ),
    ] = "",
    json: Json = False,
) -> int:
    """List every command sent to a run and every note on it, newest last: who, when, from, to, effect."""
    if as_commands and json:
        raise usage("--as-commands and --json cannot be combined")
    wanted = Filter.parse(filter)
    stages = (*vocabulary.STAGES, vocabulary.FATE.text)
    if wanted.stage and not any(stage.startswith(wanted.stage) for stage in stages):
        raise usage(f"there is no stage {wanted.stage!r}; the stages are {', '.join(stages)}")
    found, node, records = commands_of(run)
    kept = [record for record in newer(records, since) if wanted.wants(record)]
    notes = [one for one in found.notes if not since and _wants_note(wanted, one)]
    if json:
        rows = [(record.wall, command_json(record)) for record in kept]
        rows += [(one.wall, note_json(found.run, one)) for one in notes]
        dump([row for _, row in sorted(rows, key=lambda row: row[0])])
    elif as_commands:
        for record in kept:
            say(again(record, named(found, node)))
    elif kept or notes:
        known = {record.id: record for record in records}
        lines = [(record.wall, _line(record, known, found.units)) for record in kept]
        lines += [(one.wall, _note_line(one)) for one in notes]
        table([line for _, line in sorted(lines, key=lambda line: line[0])])
    elif records:
        unmatched = f"{wanted} since {since}".lstrip() if since else str(wanted)
        say(f"none of the {len(records)} commands sent to {found.name} ({found.run}) matches {unmatched!r}")
    else:
        say(f"no commands have been sent to {found.name} ({found.run})")
    return OK


def _line(
    record: CommandRecord, known: Mapping[str, CommandRecord], units: Mapping[str, str]
) -> tuple[str, ...]:
    speeds, effect = vocabulary.speeds(record.measured, units), vocabulary.effect_text(record.measured)
    why = f"“{numbers.clean(reason(record, known), 160)}”" if record.why or record.purpose else ""
    last = "  ".join(filter(None, (vocabulary.stage_text(record), speeds, effect, why)))
    return (numbers.day_clock(record.wall), author(record.origin), vocabulary.change(record), last)


def _note_line(note: RunNote) -> tuple[str, ...]:
    return (numbers.day_clock(note.wall), note.by, "note", numbers.clean(note.text, LONGEST_NOTE))


def _wants_note(wanted: Filter, note: RunNote) -> bool:
    """Whether a note has all words of a filter; no note has a stage."""
    said = f"{note.by} note {note.text}".lower()
    by = note.by.lower().startswith(wanted.by)
    return not wanted.stage and by and all(word in said for word in wanted.words)


def commands_of(name: str) -> tuple[RunState, NodeState | None, list[CommandRecord]]:
    """The run, its node if known, and its commands.

    The daemon has the newest commands; the recording also has older ones.
    """
    if is_path(name):
        return _recorded(name)
    try:
        with look() as seen:
            try:
                found = find_run(seen.node, seen.store.vitals, name)
            except Ambiguous as error:
                raise Fail(str(error), MISSING) from None
            newest = [record for record in seen.store.commands.values() if record.run == found.run]
            every = _with_older(newest, seen.session.where.recording(found.run))
            return found, seen.node, every if seen.lives(found) else [left(record) for record in every]
    except NoSuchRun:
        return _recorded(name)


def _with_older(newest: list[CommandRecord], path: Path) -> list[CommandRecord]:
    """The newest commands, preceded by those that only the recording has."""
    from hoptui.model.recorded import store
    from hoptui.recording import RecordingError

    if not path.exists():
        return newest
    try:
        recorded = store.recorded_commands(path)
    except RecordingError as error:
        warn(f"hoptui: {error}: older commands are not listed")
        return newest
    known = {record.id: record for record in (*recorded, *newest)}
    return sorted(known.values(), key=lambda record: (record.wall, record.seq))


def _recorded(name: str) -> tuple[RunState, None, list[CommandRecord]]:
    from hoptui.cli.support.recordings import of_run
    from hoptui.model.recorded import store
    from hoptui.recording import RecordingError

    state, path = of_run(name)
    try:
        return state, None, [left(record) for record in store.recorded_commands(path)]
    except RecordingError as error:
        raise Fail(str(error), REJECTED) from None
