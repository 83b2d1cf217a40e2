"""Planted defects in what is written to files and read from them."""

from __future__ import annotations

import math
from typing import Any

from hoptui.daemon import archive, recordings, retention_clock, sockets
from hoptui.daemon.state import commit_barrier, row_buffers
from hoptui.recording import recording, stored_json
from tests.simulation.defects import Patch, clock, defect, nothing


@defect("rows count as written before they are")
def _early_flushed() -> list[Patch]:
    return [(archive.Archive, "flushed", lambda self, source: clock().monotonic_ns())]


@defect("an outcome is shown before it is on disk")
def _shown_early() -> list[Patch]:
    return [(commit_barrier.CommitBarrier, "add", nothing)]


@defect("a failed write is forgotten")
def _forgotten_write() -> list[Patch]:
    flush = recording.Recording.flush

    def careless(self: Any, *, summarise: bool = True) -> bool:
        try:
            return flush(self, summarise=summarise)
        finally:
            self._pending.clear()

    return [(recording.Recording, "flush", careless)]


@defect("repeated rows are written twice")
def _twice() -> list[Patch]:
    def append(self: Any, columns: Any) -> Any:
        self.last_t = 0
        return ring(self, columns)

    ring = row_buffers.Ring.append
    return [
        (row_buffers.Ring, "append", append),
        (recording.Recording, "_newest_stored", lambda self, source: 0),
    ]


@defect("the last rows of a run are not written")
def _no_close() -> list[Patch]:
    def close(self: Any, run: str) -> None:
        writer = self._open.pop(run, None)
        if writer is not None and writer.recording is not None:
            writer.recording._pending.clear()
            writer.recording.close()

    return [(recordings.History, "close", close), (recordings.History, "finish", close)]


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
