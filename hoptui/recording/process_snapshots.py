"""When the processes on the GPUs of a node are recorded: at a change, and every 15 s without one."""

from __future__ import annotations

from collections.abc import Sequence

from hoptui.domain.devices import GpuProcess
from hoptui.recording.timed_states import SECOND_NS

EVERY_NS = 15 * SECOND_NS
LEAST_NS = SECOND_NS
"""Processes that come and go all the time are recorded once in this time."""


class ProcessSnapshots:
    """Remembers what was recorded last, and for which runs."""

    def __init__(self) -> None:
        self._recorded: tuple[tuple[str, ...], frozenset[tuple[str, int, str]]] | None = None
        self._t = 0

    def due(self, t: int, runs: tuple[str, ...], processes: Sequence[GpuProcess]) -> bool:
        """Whether to record these processes now, at the stamp `t`, for these live runs. If so, they count as
        recorded.
        """
        found = (runs, frozenset((one.gpu, one.pid, one.run) for one in processes))
        least = EVERY_NS if found == self._recorded else LEAST_NS
        if self._recorded is not None and t - self._t < least:
            return False
        self._recorded, self._t = found, t
        return True
