"""`hoptui history`: every command ever given to a run, from the daemon, or from the recording of a run it no longer knows."""

from __future__ import annotations

from typing import Any

from hoptui.cli.node import look
from hoptui.cli.options import Json, Run
from hoptui.cli.terminal import MISSING, OK, REJECTED, Fail, dump, say, table
from hoptui.viewer import format as text
from hoptui.viewer import words
from hoptui.viewer.names import Ambiguous, NoSuchRun, find_run
from hoptui.wire.messages import CommandRecord, RunState


def history(run: Run, /, *, json: Json = False) -> int:
    """Every command ever given to a run: who, when, from, to, and what it did."""
    found, records = _asked(run)
    if json:
        dump([shown(record) for record in records])
    elif records:
        table([_line(record) for record in records])
    else:
        say(f"nobody has given {found.name} ({found.run}) a command")
    return OK


def shown(record: CommandRecord) -> dict[str, Any]:
    """A command as `--json` shows it."""
    return {
        "id": record.id,
        "run": record.run,
        "epoch": record.epoch,
        "time": record.wall,
        "by": {"kind": record.origin.kind, "user": record.origin.user, "pid": record.origin.pid},
        "client": record.origin.client,
        "verb": record.verb,
        "knob": record.knob,
        "from": record.before,
        "to": record.wanted,
        "effective": record.effective,
        "stage": record.stage,
        "iteration": record.step,
        "code": record.code,
        "reason": record.reason,
        "why": record.why,
        "took_s": record.took_s,
        "measured": record.measured,
    }


def _line(record: CommandRecord) -> tuple[str, ...]:
    effect = words.effect_text(record.measured)
    why = f"“{text.clean(record.why, 80)}”" if record.why else ""
    last = "  ".join(filter(None, (words.stage_text(record), effect, why)))
    return (text.day_clock(record.wall), words.who(record.origin), words.change(record), last)


def _asked(name: str) -> tuple[RunState, list[CommandRecord]]:
    """The run and its commands: the daemon knows the newest of them, and recordings the older ones."""
    try:
        with look() as seen:
            try:
                found = find_run(seen.node, seen.store.vitals, name)
            except Ambiguous as error:
                raise Fail(str(error), MISSING) from None
            return found, [record for record in seen.store.commands.values() if record.run == found.run]
    except NoSuchRun:
        return _recorded(name)


def _recorded(name: str) -> tuple[RunState, list[CommandRecord]]:
    from hoptui.cli import recordings
    from hoptui.recording import Recording, RecordingError, shelf

    where = recordings.places()
    found = recordings.entries(where)
    if not recordings.matching(found, name):
        raise Fail(f"no run {name!r} on this node, and no recording of one in {where.state}", MISSING)
    entry = recordings.one(found, name, where)
    if entry.state is None:
        raise Fail(entry.problem, REJECTED)
    try:
        with Recording.open(entry.path, still=shelf.at_rest(entry.path)) as recording:
            return entry.state, sorted(recording.commands(), key=lambda record: record.wall)
    except RecordingError as error:
        raise Fail(str(error), REJECTED) from None
