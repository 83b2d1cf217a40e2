"""Finds GPUs of live runs that do nothing for minutes. No I/O."""

from __future__ import annotations

from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.columns import Columns, is_known
from hoptui.domain.devices import Level
from hoptui.domain.facts import Fact, fact

IDLE_PERCENT = 5.0
READINGS = ("busy", "sm_active")
LONGEST_GAP_NS = 10_000_000_000
"""After a longer time without a reading, what the GPU did meanwhile is unknown."""
MOST_ROWS = 2048
SECOND = 1_000_000_000


class _IdleTime:
    """How long one GPU has been idle, by its rows up to `seen`. `since` is None if it is not idle.

    `works`: its newest row shows work.
    """

    def __init__(self, seen: int) -> None:
        self.seen = seen
        self.since: int | None = None
        self.works = False

    def add(self, rows: Columns) -> None:
        columns = [rows.column(name) for name in READINGS if name in rows.names]
        for i, t in enumerate(rows.times()):
            known = [column[i] for column in columns if is_known(column[i])]
            self.works = bool(known) and max(known) >= IDLE_PERCENT
            if not known or self.works:
                self.since = None
            elif self.since is None or t - self.seen > LONGEST_GAP_NS:
                self.since = t
            self.seen = t

    def restart(self, t: int) -> None:
        """Begin the time anew."""
        self.since, self.seen, self.works = None, t, False


class IdleGpus:
    """Watches the GPUs of live runs. Call `tend` about once per second.

    A GPU is idle if its known readings stay below 5 % for the whole time. An unknown reading and a pause of
    the run begin the time anew.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._times: dict[tuple[str, str], _IdleTime] = {}
        self._reported: set[str] = set()  # runs
        self._due = 0

    def tend(self) -> None:
        """Look at new rows of the GPUs if it is time."""
        t = self._node.clock.t()
        if t < self._due:
            return
        self._due = t + int(self._node.timings.diagnose_s * SECOND)
        live = self._node.registry.live()
        kept = {(run.id, gpu) for run in live for gpu in run.state.gpus}
        self._times = {key: time for key, time in self._times.items() if key in kept}
        self._reported &= {run.id for run in live}
        for run in live:
            self._node.faults.attempt(f"looking for idle GPUs of {run.id}", self._look, run, t)

    def _look(self, run: TrackedRun, t: int) -> None:
        times = {gpu: self._times.setdefault((run.id, gpu), _IdleTime(t)) for gpu in run.state.gpus}
        paused = run.judge(t / SECOND)[0] == "paused"
        for gpu, time in times.items():
            ring = self._node.rings.get(f"gpu/{gpu}")
            rows = ring.since(time.seen, MOST_ROWS)[0] if ring is not None else None
            if paused:
                time.restart(t)
            elif rows is not None:
                time.add(rows)
        least = self._node.alerts.settings.gpu_idle_minutes * 60 * SECOND
        idle = {
            gpu: time.seen - time.since
            for gpu, time in times.items()
            if time.since is not None and time.seen - time.since >= least
        }
        reported = run.id in self._reported or self._node.alerts.is_open("gpu_idle", run.id)
        if idle and not reported:
            indices = sorted(gpu.index for gpu in self._node.gpus if gpu.uuid in idle)
            what = fact("gpu.idle", gpus=indices, idle_s=min(idle.values()) / SECOND)
            self._event(run, what, "warning")
            self._reported.add(run.id)
        elif reported and times and all(time.works for time in times.values()):
            self._event(run, fact("gpu.not_idle"), "info")
            self._reported.discard(run.id)

    def _event(self, run: TrackedRun, what: Fact, level: Level) -> None:
        self._node.event("gpu-idle", what, run=run.id, step=run.step, level=level)
