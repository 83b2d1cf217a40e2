"""Commands that only a new process can carry out, and how they get there: through the environment of `os.execv`.

`exec` keeps the pid, so a process that inherits the variable by other ways finds one that is not its own, and a
checkpoint that is read again a week later carries no commands.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import msgspec

from hoptui.domain.knobs import KnobValue, shown
from hoptui.protocol.messages import Outcome
from hoptui.sdk.knobs import KnobHandle

VARIABLE = "_HOPTUI_RESTART"
"""From a process to the one that takes its place; nobody else is to set it."""


class Waiting(msgspec.Struct, frozen=True):
    """A command that was checked, and takes effect once the run has restarted."""

    command: str
    knob: str
    value: KnobValue
    by: str


class Handover(msgspec.Struct, frozen=True):
    """What a process leaves to the one it becomes; `began` is the monotonic nanosecond at which training stood still."""

    pid: int
    run: str
    began: int
    waiting: tuple[Waiting, ...]


def leave(environ: MutableMapping[str, str], handover: Handover) -> None:
    """Put it where the next program of this process finds it."""
    environ[VARIABLE] = msgspec.json.encode(handover).decode()


def take(environ: MutableMapping[str, str], pid: int, run: str) -> Handover | None:
    """What the program before left to this process for this run, once; None if it left nothing."""
    try:
        found = msgspec.json.decode(environ.get(VARIABLE, ""), type=Handover)
    except msgspec.DecodeError:
        return None
    if (found.pid, found.run) != (pid, run):
        return None
    del environ[VARIABLE]
    return found


def arrived(handover: Handover, knobs: Mapping[str, KnobHandle[Any]], step: int, now: int) -> list[Outcome]:
    """What became of the commands that waited: a knob that reads back what was asked for has it, any other has `failed`.

    `step` is the iteration about to begin, `now` in monotonic nanoseconds.
    """
    took_s = round((now - handover.began) / 1e9, 6)  # further digits are noise
    outcomes = []
    for waiting in handover.waiting:
        done = Outcome(id=waiting.command, stage="failed", step=step, t=now, took_s=took_s)
        handle = knobs.get(waiting.knob)
        if handle is None:
            reason = f"after the restart there is no knob {waiting.knob!r}"
            outcomes.append(msgspec.structs.replace(done, reason=reason))
            continue
        has_it = handle.arrive(waiting.value, waiting.by, waiting.command, took_s)
        outcomes.append(
            msgspec.structs.replace(
                done,
                stage="applied" if has_it else "failed",
                code="restarted" if has_it else "",
                effective=handle.value,
                version=handle.version,
                reason="" if has_it else f"after the restart {handle.name} is {shown(handle.value)}",
            )
        )
    return outcomes
