"""The processes on the GPUs of a node at a moment of a recording."""

from __future__ import annotations

from typing import NamedTuple

from hoptui.domain.devices import GpuProcess
from hoptui.protocol.record_bytes import RecordError
from hoptui.protocol.recorded_processes import decode_processes
from hoptui.recording import Recording, RecordingError
from hoptui.recording.timed_states import PROCESSES


class ProcessesThen(NamedTuple):
    """The processes on the GPUs that were recorded at the stamp `t`, and how many more there were."""

    t: int
    processes: tuple[GpuProcess, ...]
    left_out: int


class ProcessReader:
    """Reads a record when it is asked for, and decodes each one once."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._asked = -1
        self._found: ProcessesThen | None = None

    def at(self, t: int) -> ProcessesThen | None:
        """Return what was recorded last at or before `t`; None if it is unknown."""
        if t != self._asked:
            self._asked, self._found = t, self._read(t)
        return self._found

    def _read(self, t: int) -> ProcessesThen | None:
        try:
            stored = self._recording.state_at(PROCESSES, t)
            if stored is None or (self._found is not None and stored.t == self._found.t):
                return self._found if stored is not None else None
            found = decode_processes(stored.body)
            return ProcessesThen(stored.t, found.processes, found.left_out)
        except (RecordingError, RecordError):  # only this part cannot be read
            return None
