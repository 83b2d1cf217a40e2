"""Which processes a process descends from, as /proc tells (proc(5)); each is looked up once, as long as it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hoptui.wire.namespace import whose_pids

MOST_ANCESTORS = 64


class Ancestry:
    """Chains of ancestors by pid. A worker whose parent has died since still counts as its descendant.

    `contained`: pids are a container's own, so that the driver's, which are the machine's, cannot be looked up. On the whole
    machine a pid that cannot be looked up is somebody else's, or gone.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self.contained = whose_pids(proc) == "container"
        self._chains: dict[int, tuple[int, ...] | None] = {}

    def of(self, pids: Iterable[int]) -> Mapping[int, tuple[int, ...] | None]:
        """Each of these processes and its ancestors, nearest first; None for a pid that is not one of this namespace."""
        known = self._chains
        self._chains = {pid: known[pid] if pid in known else self._climb(pid) for pid in pids}
        return self._chains

    def _climb(self, pid: int) -> tuple[int, ...] | None:
        chain: list[int] = []
        parent = self._parent(pid)
        if parent is None:
            return None
        while pid > 0 and len(chain) < MOST_ANCESTORS:
            chain.append(pid)
            if not parent:
                break
            pid, parent = parent, self._parent(parent)
        return tuple(chain)

    def _parent(self, pid: int) -> int | None:
        try:
            stat = (self._proc / str(pid) / "stat").read_text(errors="replace")
            return int(stat.rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
