"""Planted defects in what reads and keeps files. Those of `planted` are in the life of a command or a row."""

from __future__ import annotations

import math
from typing import Any

from hoptui.daemon import recordings, retention_clock, sockets
from hoptui.daemon.state import row_buffers
from hoptui.recording import stored_json
from tests.simulation.defects import Patch, defect


@defect("a malformed recording ends history", "foreign recording")
def _unforeseen() -> list[Patch]:
    def let_through(*_: Any, **__: Any) -> None:
        raise  # the error that is handled just now

    return [(recordings.History, "_leave_aside", let_through)]


@defect("a value that is no number is stored as null", "odd knob")
def _stored_as_null() -> list[Patch]:
    marked = vars(stored_json)["_marked"]

    def null(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else marked(value)

    return [(stored_json, "_marked", null), (stored_json, "_repaired", lambda value, inside="": value)]


@defect("nobody looks whether the lock is still there", "delete lock")
def _lock_for_ever() -> list[Patch]:
    return [(sockets.Lock, "held", lambda self: True)]


@defect("rows that are gone are joined to others")
def _gone_are_joined() -> list[Patch]:
    append = row_buffers.Ring.append

    def uncounted(self: Any, columns: Any) -> Any:
        single = self._single
        new = append(self, columns)
        if len(new) and 0 < len(new) < row_buffers.JOINED and single < row_buffers.JOINED - 1:
            self._single = single + 1
        return new

    return [(row_buffers, "MAX_BYTES", 2048), (row_buffers.Ring, "append", uncounted)]


@defect("the age of a recording is by the wall clock", "clock ahead")
def _wall_ages() -> list[Patch]:
    return [(retention_clock.RetentionClock, "now", lambda self, wall, written: wall)]
