"""Commands of a run as every `--json` shows them, and which of them are newer than a time."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from hoptui.cli.support.terminal import usage
from hoptui.domain.run_notes import RunNote
from hoptui.presentation import numbers, sentences, vocabulary
from hoptui.protocol.authors import author
from hoptui.protocol.messages import CommandRecord

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def command_json(record: CommandRecord) -> dict[str, Any]:
    """A command with its outcome and its measured effect."""
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
        "followed": record.followed,
        "stage": vocabulary.stage_name(record),
        "iteration": record.step,
        "code": record.code,
        "fields": record.fields,
        "reason": sentences.reason(record),
        "released": author(record.released) if record.released is not None else None,
        "why": sentences.purpose(record),
        "purpose": record.purpose,
        "took_s": record.took_s,
        "unsaved": record.unsaved,
        "measured": record.measured,
        "contended": vocabulary.contended(record.measured),
    }


def note_json(run: str, note: RunNote) -> dict[str, Any]:
    """A note of a user on a run, among its commands: its verb is `note`."""
    by = {"kind": None, "user": note.by, "pid": None}
    return {"id": "", "run": run, "time": note.wall, "by": by, "verb": "note", "text": note.text}


def since(records: Sequence[CommandRecord], typed: str) -> list[CommandRecord]:
    """Return the commands given since a time, or after the command with this id; all of them for "".

    A time is seconds since 1970, ISO 8601, or an age such as `90s`, `10m`, `2h` or `1d`.

    Raises:
        Fail: it is neither a time nor the id of one of the commands; exit code 2.
    """
    if not typed:
        return list(records)
    ids = [record.id for record in records]
    if typed in ids:
        return list(records[ids.index(typed) + 1 :])
    wall = _wall(typed)
    return [record for record in records if record.wall >= wall]


def _wall(typed: str) -> float:
    if (age := AGO.fullmatch(typed)) is not None:
        return time.time() - float(age[1]) * UNITS_S[age[2]]
    forms: tuple[Callable[[str], float], ...] = (float, lambda text: datetime.fromisoformat(text).timestamp())
    for read in forms:
        with suppress(ValueError, OverflowError):
            if math.isfinite(wall := read(typed)):
                return wall
    shape = "seconds since 1970, ISO 8601, an age such as 10m, nor the id of a command"
    raise usage(f"--since {numbers.clean(typed)!r} is neither {shape}")
