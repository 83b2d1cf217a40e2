"""This process: its environment, the protection of the run in forked children, and its replacement.

The environment has hoptui's switch, the rank, the GPUs and the command line.

A child must not speak for its parent or keep its parent's connection open. A DataLoader worker that outlives
a killed trainer would otherwise hold the inherited socket, and the daemon would never see that the trainer is
gone.

Some commands need a restart, which replaces the process. An environment variable carries them across
`os.execv`. `exec` keeps the pid: a process that inherits the variable in another way finds a foreign pid and
ignores it. A checkpoint holds no such commands, so one that is loaded a week later carries none.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from hoptui.domain import enumerations
from hoptui.domain.facts import clean_text
from hoptui.domain.knobs import KnobValue
from hoptui.protocol.messages import Command, Outcome
from hoptui.sdk.connections import open_sockets, peer_path
from hoptui.sdk.knobs import LiveKnob
from hoptui.sdk.secrets import masked_arguments

OFF = ("off", "0", "no", "false")
LIBRARIES = ("torch",)
SLURM_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
LONGEST_COMMAND = 1000
LONGEST_LIST = 1 << 16
"""Characters of a variable that lists GPUs."""
MOST_RANKS = 1 << 31


def stacks_off(environ: Mapping[str, str]) -> bool:
    """Return whether `HOPTUI_STACKS` keeps the stacks of this process from being sampled."""
    return environ.get("HOPTUI_STACKS", "").lower() in OFF


def switched_off(environ: Mapping[str, str]) -> bool:
    """Return whether `HOPTUI` switches hoptui off in this process."""
    return environ.get("HOPTUI", "").lower() in OFF


def ranks(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return (rank, world size) as torchrun sets them, or (0, 1). Slurm's srun alone sets neither."""
    try:
        rank, world = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
    return (rank, world) if abs(rank) <= MOST_RANKS and abs(world) <= MOST_RANKS else (0, 1)


LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
"""What torchrun, Open MPI, MPICH and srun set."""


def local_rank(environ: Mapping[str, str]) -> int:
    """Return the index of this process on its node, 0 if it is not known."""
    found = next((environ[name] for name in LOCAL_RANKS if environ.get(name)), "0")
    return int(found) if found.isascii() and found.isdigit() else 0


def visible_devices(environ: Mapping[str, str]) -> str | None:
    """Return `CUDA_VISIBLE_DEVICES`: indices or UUIDs. None: it is not set, so all are visible."""
    given = environ.get("CUDA_VISIBLE_DEVICES")
    return None if given is None else clean_text(given, LONGEST_LIST)


def slurm_gpus(environ: Mapping[str, str]) -> str:
    """Return the node's indices of the GPUs that Slurm gave to this step or job, or "".

    A device cgroup may number the GPUs differently inside the job. These indices are those of the node.
    """
    return clean_text(next((environ[name] for name in SLURM_GPUS if environ.get(name)), ""), LONGEST_LIST)


def command_line(argv: Sequence[str]) -> str:
    """Return the command that started the process. It is shown, and it identifies runs of the same kind.

    `python -m trainer` becomes `trainer`, the same as the console script. A long command is cut and ends with
    `…`. Secrets are masked.
    """
    if not argv:
        return ""
    file = Path(argv[0])
    name = file.parent.name if file.name == "__main__.py" and file.parent.name else file.name
    command = clean_text(" ".join([name, *masked_arguments(argv[1:])]), LONGEST_COMMAND + 1)
    return command if len(command) <= LONGEST_COMMAND else f"{command[: LONGEST_COMMAND - 1]}…"


def versions(imported: Mapping[str, object]) -> dict[str, str]:
    """Return the versions of the libraries that decide the speed, if they are imported. Imports nothing."""
    found = {name: getattr(imported.get(name), "__version__", None) for name in LIBRARIES}
    return {name: str(version) for name, version in found.items() if version}


class Abandonable(Protocol):
    """An object that is switched off in a forked child."""

    def abandon(self) -> None: ...


_guarded: weakref.WeakSet[Abandonable] = weakref.WeakSet()
_directories: set[bytes] = set()


def guard(run: Abandonable) -> None:
    """Switch `run` off in every child that is forked from now on."""
    _guarded.add(run)


def close_in_children(directory: Path) -> None:
    """In every child forked from now on, close the sockets that are connected to paths under `directory`."""
    _directories.add(os.fsencode(directory) + b"/")


def _after_fork_in_child() -> None:
    # No locks here: another thread of the parent may have held them when the process was forked.
    for run in list(_guarded):
        run.abandon()
    if _directories:
        for number in open_sockets():
            if any(map(peer_path(number).startswith, _directories)):
                with contextlib.suppress(OSError):
                    os.close(number)


os.register_at_fork(after_in_child=_after_fork_in_child)


VARIABLE = "_HOPTUI_RESTART"
"""Set by a process for the process that replaces it. No other code sets it."""
LONGEST_HANDOVER = 64 << 10
"""Bytes of the variable. Linux replaces no process with a variable of 128 KiB."""


class RestartCommand(msgspec.Struct, frozen=True):
    """A checked command that takes effect after a restart of the run.

    `given` is the whole command, for a daemon that does not know it. None: it was too long.
    """

    command: str
    knob: str
    value: KnobValue
    by: str
    given: Command | None = None


class Handover(msgspec.Struct, frozen=True):
    """What a process leaves to its successor. `began` is when training paused, in monotonic nanoseconds."""

    pid: int
    run: str
    began: int
    waiting: tuple[RestartCommand, ...]


def leave_handover(environ: MutableMapping[str, str], handover: Handover) -> None:
    """Store the handover for the next program of this process."""
    text = msgspec.json.encode(handover)
    if len(text) > LONGEST_HANDOVER:
        waiting = tuple(msgspec.structs.replace(each, given=None) for each in handover.waiting)
        text = msgspec.json.encode(msgspec.structs.replace(handover, waiting=waiting))
    environ[VARIABLE] = os.fsdecode(text)  # the locale may not be UTF-8


def take_handover(environ: MutableMapping[str, str], pid: int, run: str) -> Handover | None:
    """Return the handover for this process and run, and remove it. None if there is none."""
    try:
        raw = msgspec.json.decode(os.fsencode(environ.get(VARIABLE, "")))
        found = enumerations.convert(raw, Handover)  # a command may have values of a newer hoptui
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if (found.pid, found.run) != (pid, run):
        return None
    del environ[VARIABLE]
    return found


def outcomes_after(
    handover: Handover, knobs: Mapping[str, LiveKnob[Any]], step: int, now: int
) -> list[Outcome]:
    """Return what became of the commands: `applied` if the knob reads back the value, else `failed`.

    `step` is the iteration about to begin, `now` is in monotonic nanoseconds. Each outcome has its command,
    which a new daemon may lack.
    """
    took_s = round((now - handover.began) / 1e9, 6)  # further digits are noise
    outcomes = []
    for waiting in handover.waiting:
        done = Outcome(
            id=waiting.command, stage="failed", step=step, t=now, took_s=took_s, command=waiting.given
        )
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
