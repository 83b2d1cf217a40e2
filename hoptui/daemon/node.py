"""What the daemon knows: runs, GPUs, rows, commands and events, in one place that both desks share. No I/O."""

from __future__ import annotations

import math
import os
import platform
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal, Protocol

from msgspec import structs

from hoptui.daemon.commands import Book
from hoptui.daemon.registry import Registry, TrackedRun
from hoptui.daemon.rings import Rings, one_row
from hoptui.recording.known import KnownRun
from hoptui.tuner.effect import WARM_UP, measure
from hoptui.wire.columns import Columns
from hoptui.wire.devices import Devices
from hoptui.wire.messages import (
    CommandRecord,
    Event,
    NodeState,
    Query,
)
from hoptui.wire.version import VERSION

EVENTS_KEPT = 4000
MOST_EVENTS = 500
EXITED_KEPT = 50
EXITED_IN_MEMORY = 5
EXITED_KEPT_S = 24 * 3600
BEFORE = 60
"""Iterations before a change that its effect is measured against, at most."""
ASIDE = ("phase/evaluation", "phase/checkpoint", "phase/paused")
"""Iterations with one of these phases are not counted as throughput."""


class Clock(Protocol):
    """Monotonic nanoseconds and wall seconds."""

    def t(self) -> int: ...
    def wall(self) -> float: ...


class Keeper(Protocol):
    """What the node needs of the archive."""

    @property
    def problem(self) -> str: ...
    def rows(self, runs: Iterable[str], columns: Columns) -> None: ...
    def run(self, known: KnownRun) -> None: ...
    def event(self, event: Event, runs: Iterable[str]) -> None: ...
    def command(self, record: CommandRecord) -> None: ...
    def query(self, identity: bytes, query: Query, live: list[Columns]) -> None: ...
    def finish(self, run: str) -> None: ...
    def flushed(self, source: str) -> int: ...
    def problem_of(self, run: str) -> str: ...


class Node:
    """The shared state. `changed` is called whenever a waiting viewer may want to know."""

    def __init__(self, clock: Clock, archive: Keeper, changed: Callable[[], None]) -> None:
        self.clock = clock
        self.archive = archive
        self.changed = changed
        self.registry = Registry()
        self.rings = Rings()
        self.book = Book(self._record)
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.devices = Devices(reason="the sampler has not answered yet")
        self.sampler_problem = "starting"
        self.viewers = 0
        self.host = platform.node()
        self._started = clock.wall()
        self._event_seq = 0

    # rows --------------------------------------------------------------------------------------------------------------

    def rows(self, columns: Columns) -> None:
        """New rows of any source: into memory, and into the recordings they belong to."""
        new = self.rings.append(columns)
        if not len(new):
            return
        kind, _, run_id = columns.source.partition("/")
        if kind == "run" or kind == "process":
            tracked = self.registry.get(run_id)
            if tracked is None:
                return
            if kind == "run":
                tracked.rows(new)
                self._measure(tracked)
            self.archive.rows((run_id,), new)
        else:
            self.archive.rows(tuple(run.id for run in self.registry.live()), new)
        self.changed()

    def latest(self) -> tuple[Columns, ...]:
        """One row a source: a run's newest known values, the last reading of everything else."""
        runs = [one_row(f"run/{r.id}", r.last_t, r.last_step, r.metrics) for r in self.registry if r.metrics]
        readings = [ring.last() for ring in self.rings if not ring.source.startswith("run/")]
        return (*runs, *(r for r in readings if r is not None))

    def tidy(self) -> None:
        """Let go of runs that ended long ago; their recordings stay."""
        wall = self.clock.wall()
        exited = sorted((r for r in self.registry if r.exited), key=lambda r: -r.state.exited_wall)
        for i, run in enumerate(exited):
            if i >= EXITED_IN_MEMORY:
                self.rings.forget(f"run/{run.id}")
            self.rings.forget(f"process/{run.id}")
            if i >= EXITED_KEPT or wall - run.state.exited_wall > EXITED_KEPT_S:
                self.registry.forget([run.id])
                self.book.forget(run.id)

    # events ------------------------------------------------------------------------------------------------------------

    def event(
        self,
        kind: str,
        text: str,
        *,
        run: str = "",
        step: int | None = None,
        level: Literal["info", "warning", "alarm"] = "info",
        t: int = 0,
    ) -> None:
        """A line on the time axis, for every viewer and for the recordings."""
        wall = self.clock.wall()
        self._event_seq = max(self._event_seq + 1, int(wall * 1e6))
        event = Event(
            seq=self._event_seq,
            t=t or self.clock.t(),
            wall=wall,
            kind=kind,
            text=text,
            run=run,
            step=step,
            level=level,
        )
        self.events.append(event)
        self.archive.event(event, tuple(r.id for r in self.registry.live()))
        self.changed()

    def events_since(self, seq: int, run: str = "") -> tuple[Event, ...]:
        """The newest events numbered above `seq`, of one run and the node or of all, oldest first, at most 500."""
        found: list[Event] = []
        for event in reversed(self.events):
            if event.seq <= seq or len(found) == MOST_EVENTS:
                break
            if not run or event.run in ("", run):
                found.append(event)
        return tuple(reversed(found))

    def restore_events(self, events: list[Event]) -> None:
        """Events known from a recording, in their place."""
        merged = {e.seq: e for e in (*self.events, *events)}
        self.events = deque((merged[seq] for seq in sorted(merged)), maxlen=EVENTS_KEPT)
        self._event_seq = max([self._event_seq, *merged])

    # the node's state --------------------------------------------------------------------------------------------------

    def state(self) -> NodeState:
        """The slow part of everything, as of `version`."""
        t = self.clock.t()
        runs = tuple(
            structs.replace(
                run.state, lease=self.book.wheel(run.id, t), recording=self.archive.problem_of(run.id)
            )
            for run in self.registry
        )
        return NodeState(
            host=self.host,
            pid=os.getpid(),
            version=VERSION,
            started_wall=self._started,
            wall_offset_ns=int(self.clock.wall() * 1e9) - t,
            cpus=self.devices.cpus,
            memory_total_bytes=self.devices.memory_total_bytes,
            runs=runs,
            gpus=self.devices.gpus,
            gpu_reason=self.devices.reason,
            sampler=self.sampler_problem,
            history=self.archive.problem,
            viewers=self.viewers,
        )

    @property
    def version(self) -> int:
        return self.registry.version

    def touch(self) -> None:
        """The slow state changed."""
        self.registry.changed()
        self.changed()

    def query(self, identity: bytes, query: Query) -> None:
        """Have a question about the past answered by the archive."""
        ring = self.rings.get(query.source)
        live = ring.parts() if ring is not None else []
        if query.t0 or query.t1:
            live = [
                p for p in live if p.times()[-1] >= query.t0 and (not query.t1 or p.times()[0] <= query.t1)
            ]
        self.archive.query(identity, query, live)

    def remember(self, run: TrackedRun) -> None:
        """Keep what is known of a run in its recording."""
        self.archive.run(KnownRun(state=run.state, nonce=run.nonce, process_started=run.process_started))

    # what changes did --------------------------------------------------------------------------------------------------

    def _record(self, record: CommandRecord) -> None:
        self.archive.command(record)
        self.changed()

    def _measure(self, run: TrackedRun) -> None:
        """Bring the measured effect of the newest applied changes up to date."""
        metric = run.state.headline or next((n for n in _THROUGHPUT if n in run.metrics), "")
        ring = self.rings.get(f"run/{run.id}")
        applied = [
            r
            for r in self.book.of(run.id)[-8:]
            if r.verb == "set" and r.stage == "applied" and r.step is not None and r.epoch == run.state.epoch
        ]
        open_ones = [i for i, r in enumerate(applied) if r.measured is None or not r.measured.settled]
        if not metric or ring is None or not open_ones:
            return
        points = _throughput(ring.newest(512), metric)
        for i in open_ones:
            record = applied[i]
            at = record.step or 0
            start = (applied[i - 1].step or 0) + WARM_UP if i else 0
            end = applied[i + 1].step if i + 1 < len(applied) else None
            before = [v for step, v in points if start <= step < at][-BEFORE:]
            after = [v for step, v in points if at <= step and (end is None or step < end)]
            measured = measure(metric, before, after)
            if end is not None and not measured.settled:
                note = (
                    "another change came before it could be measured"
                    if measured.gain is None
                    else measured.note
                )
                measured = structs.replace(measured, settled=True, note=note)
            if measured != record.measured:
                self.book.measured(record, measured)


_THROUGHPUT = ("env_steps_per_s", "tokens_per_s", "samples_per_s")


def _throughput(rows: Columns, metric: str) -> list[tuple[int, float]]:
    """(iteration, throughput) of the iterations that did nothing but train."""
    try:
        values = rows.column(metric)
    except KeyError:
        return []
    aside = [rows.column(name) for name in ASIDE if name in rows.names]
    return [
        (step, value)
        for i, (step, value) in enumerate(zip(rows.steps(), values, strict=True))
        if not math.isnan(value) and all(math.isnan(a[i]) for a in aside)
    ]
