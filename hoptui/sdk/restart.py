"""Commands that only a new process can carry out. An environment variable carries them across `os.execv`.

`exec` keeps the pid. A process that inherits the variable in another way finds a foreign pid and ignores it.
A checkpoint holds no such commands, so one that is loaded a week later carries none.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import msgspec

from hoptui.domain.knobs import KnobValue
from hoptui.protocol.messages import Outcome
from hoptui.sdk.knobs import LiveKnob

VARIABLE = "_HOPTUI_RESTART"
"""Set by a process for the process that replaces it. Nobody else sets it."""


class RestartCommand(msgspec.Struct, frozen=True):
    """A checked command that takes effect after a restart of the run."""

    command: str
    knob: str
    value: KnobValue
    by: str


class Handover(msgspec.Struct, frozen=True):
    """What a process leaves to its successor. `began` is when training paused, in monotonic nanoseconds."""

    pid: int
    run: str
    began: int
    waiting: tuple[RestartCommand, ...]


def leave(environ: MutableMapping[str, str], handover: Handover) -> None:
    """Store the handover for the next program of this process."""
    environ[VARIABLE] = msgspec.json.encode(handover).decode()


def take(environ: MutableMapping[str, str], pid: int, run: str) -> Handover | None:
    """Return the handover for this process and run, and remove it. None if there is none."""
    try:
        found = msgspec.json.decode(environ.get(VARIABLE, ""), type=Handover)
    except msgspec.DecodeError:
        return None
    if (found.pid, found.run) != (pid, run):
        return None
    del environ[VARIABLE]
    return found


def outcomes_after(
    handover: Handover, knobs: Mapping[str, LiveKnob[Any]], step: int, now: int
) -> list[Outcome]:
    """Return what became of the commands: `applied` if the knob reads back the value, else `failed`.

    `step` is the iteration about to begin, `now` is in monotonic nanoseconds.
    """
    took_s = round((now - handover.began) / 1e9, 6)  # further digits are noise
    outcomes = []
    for waiting in handover.waiting:
        done = Outcome(id=waiting.command, stage="failed", step=step, t=now, took_s=took_s)
        knob = knobs.get(waiting.knob)
        if knob is None:
            gone = {"knob": waiting.knob}
            outcomes.append(msgspec.structs.replace(done, code="no_knob_after_restart", fields=gone))
            continue
        has_it = knob.confirm_restart(waiting.value, waiting.by, waiting.command, took_s)
        outcomes.append(
            msgspec.structs.replace(
                done,
                stage="applied" if has_it else "failed",
                code="restarted" if has_it else "other_value_after_restart",
                fields={} if has_it else {"knob": knob.name, "value": knob.value},
                effective=knob.value,
                version=knob.version,
            )
        )
    return outcomes
