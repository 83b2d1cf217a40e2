"""Choices that a person made in the dashboard, kept for the next time: the theme, hidden panels, one shown
alone, the metric in the chart.

They have a file of their own in the state directory, written whole and put in place in one step.
`config.toml` is the person's and is never written: a program that does so loses its comments and order sooner
or later. What `config.toml` sets is therefore stronger than what is remembered.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

LONGEST_FILE = 1 << 16


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """`theme` as `config.toml` would name it, `hidden` the ids of panels, `alone` the one panel of a run that
    is shown, `metric` of the learning chart; empty: no choice."""

    theme: str = ""
    hidden: tuple[str, ...] = ()
    alone: str = ""
    metric: str = ""


def load(path: Path | None) -> tuple[Remembered, str]:
    """What is remembered, and one line if there is a file that cannot be used."""
    if path is None:
        return Remembered(), ""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(LONGEST_FILE), type=Remembered), ""
    except (FileNotFoundError, NotADirectoryError):
        return Remembered(), ""
    except OSError as error:
        return Remembered(), f"{path} cannot be read: {error.strerror}"
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Remembered(), f"{path} is damaged: what it remembered is forgotten"


def change(path: Path | None, **fields: str | tuple[str, ...]) -> str:
    """Remember these fields and leave the others as another dashboard may have written them; why not, if it
    failed.

    The old file stays whole until the new one is: a full disk or a crash loses the change alone.
    """
    if path is None:
        return "there is no home directory"
    present, _ = load(path)
    kept = msgspec.structs.replace(present, **fields)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(fresh, "wb", opener=_private) as file:
            file.write(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        return f"{path} cannot be written: {error.strerror}"
    return ""


def _private(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW, 0o600)
