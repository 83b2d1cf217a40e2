"""Choices that a user made in the dashboard: the theme, hidden panels, a single shown panel, the chart's
metric.

They have their own file in the state directory. It is written whole and moved into place in one step.
`config.toml` is the user's and is never written, because a rewrite would lose its comments and order. So
`config.toml` overrides remembered choices.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

LONGEST_FILE = 1 << 16


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """Remembered choices. Empty means no choice.

    `theme` is a value for `config.toml`, `hidden` the ids of panels, `alone` the single panel of a run that
    is shown, `metric` that of the learning chart.
    """

    theme: str = ""
    hidden: tuple[str, ...] = ()
    alone: str = ""
    metric: str = ""


def load(path: Path | None) -> tuple[Remembered, str]:
    """Return what is remembered, and one line if the file cannot be used ("" if it can)."""
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
    """Remember these fields and keep the others, which another dashboard may have written.

    Returns the reason if it failed, else "". The old file stays until the new one is complete: a full disk or
    a crash loses only the change.
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
