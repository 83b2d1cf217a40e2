"""How busy each core is, from the lines `cpu0`, `cpu1`, … of /proc/stat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hoptui.domain.devices import BUSY_PERCENT

MOST_CORES = 1024
LINE_BYTES = 160
"""More than the kernel writes for a core."""
_IDLE, _IOWAIT = 3, 4


class CoreTimes:
    """The times of each core at the reading before.

    A core that was switched off between two readings is unknown until the second reading after it is back.
    """

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int]] = {}

    def update(self, lines: Iterable[bytes]) -> dict[str, float]:
        """How busy each core was since the reading before, in % by its number.

        Time that a hypervisor takes counts as work, waits for a disk do not. A core whose clock has not gone
        on is left out.

        Args:
            lines: those of /proc/stat behind the first, as far as they are of cores.
        """
        before, self._before = self._before, {}
        found: dict[str, float] = {}
        for line in lines:
            name, *counts = line.split(None, 9)[:9]  # guests' time is in the users'
            if not name.startswith(b"cpu") or len(counts) < _IOWAIT + 1 or len(self._before) >= MOST_CORES:
                break
            times = list(map(int, counts))
            core, whole = name[3:].decode(), sum(times)
            idle = times[_IDLE] + times[_IOWAIT]
            self._before[core] = (whole, idle)
            if core in before and (spent := whole - before[core][0]) > 0:
                rested = min(max(0, idle - before[core][1]), spent)  # waits for a disk can go back
                found[core] = round(100 * (spent - rested) / spent, 1)
        return found


def summary(cores: Mapping[str, float]) -> dict[str, float]:
    """The readings of the source `host` on its cores; none if no core is known."""
    if not cores:
        return {}
    busy = sum(percent >= BUSY_PERCENT for percent in cores.values())
    return {"cpu_busiest_core_percent": max(cores.values()), "cpu_busy_cores": busy}
