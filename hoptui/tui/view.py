"""What every panel is drawn from: the store and the run at one moment."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from hoptui.viewer.client import Link
from hoptui.viewer.protocol import Leased, LeaseOp
from hoptui.viewer.store import Store
from hoptui.wire.devices import GpuInfo
from hoptui.wire.knobs import KnobState, KnobValue
from hoptui.wire.messages import FINAL, CommandRecord, NodeState, RunState, Verb, Vital

SECOND = 1_000_000_000
UNDO = "undo of "  # how the reason of an undoing command begins; the undone one's id follows
LATE = 5.0  # iterations without a row
OLD_S = 5.0  # readings of a GPU or the host older than this are not current


class Connection(Protocol):
    """What the dashboard needs of `hoptui.viewer.client.Client`."""

    store: Store
    link: Link

    def start(self) -> None: ...
    def close(self) -> None: ...
    def watch(self, run: str | None) -> None: ...
    def send(
        self,
        verb: Verb,
        run_id: str,
        *,
        knob: str = "",
        value: KnobValue | None = None,
        expect_version: int | None = None,
        why: str = "",
        hold_s: float = 60.0,
    ) -> str: ...
    def lease(self, run_id: str, op: LeaseOp, what: Leased = "wheel") -> None: ...


class View(NamedTuple):
    """One moment. `now` is the node's monotonic ns, `wall` its wall clock in seconds, `clock` the local monotonic one."""

    store: Store
    link: Link
    run: RunState | None
    vital: Vital | None
    now: int
    wall: float
    clock: float

    @property
    def node(self) -> NodeState | None:
        return self.store.node

    @property
    def source(self) -> str:
        """Where the run's metrics come from."""
        return f"run/{self.run.run}" if self.run else ""

    @property
    def exited(self) -> bool:
        run, vital = self.run, self.vital
        return run is not None and bool(run.exit_reason or (vital is not None and vital.state == "exited"))

    @property
    def stale(self) -> bool:
        """Whether what is known of the run is old: the link is down, it does not answer, or it has ended."""
        silent = self.vital is not None and self.vital.state == "unresponsive"
        return self.link.state != "live" or silent or self.exited

    @property
    def metrics_stale(self) -> bool:
        """Whether the run's metrics are old: the above, or no iteration has ended for much longer than they take."""
        age, pace = self.age_s(self.source), (self.vital.iteration_s if self.vital else None) or 0.0
        return self.stale or (age is not None and age > max(OLD_S, LATE * pace))

    @property
    def node_stale(self) -> bool:
        """Whether what is known of the node is old."""
        return self.link.state != "live"

    def age_s(self, source: str) -> float | None:
        """Seconds since the newest row of a source, None where there is none."""
        newest = max(
            (s.last_t for n in self.store.names(source) if (s := self.store.series(source, n))), default=0
        )
        return (self.now - newest) / SECOND if newest else None

    def commands(self) -> list[CommandRecord]:
        """The run's commands (all runs' without one), oldest first."""
        found = self.store.commands.values()
        return [c for c in found if self.run is None or c.run == self.run.run]

    def pending(self, knob: str) -> CommandRecord | None:
        """The newest change of a knob that is on its way."""
        waiting = (c for c in self.commands() if c.verb == "set" and c.knob == knob and c.stage not in FINAL)
        return max(waiting, key=lambda c: c.t, default=None)

    def last_change(self) -> CommandRecord | None:
        """The newest applied change of a knob."""
        done = (c for c in self.commands() if c.verb == "set" and c.stage == "applied")
        return max(done, key=lambda c: c.settled or c.t, default=None)

    def knob(self, name: str) -> KnobState | None:
        """A knob of the run by its name."""
        return next((k for k in self.run.knobs if k.spec.name == name), None) if self.run else None

    def gpus(self) -> tuple[GpuInfo, ...]:
        """The run's GPUs; those of the node where it names none."""
        if self.node is None:
            return ()
        named = self.run.gpus if self.run else ()
        own = tuple(gpu for gpu in self.node.gpus if gpu.uuid in named)
        return own or self.node.gpus


def undoable(commands: list[CommandRecord]) -> CommandRecord | None:
    """The newest applied change that is neither an undo nor undone (or being undone) by one, of `commands` of one run."""
    undone = {c.why.removeprefix(UNDO) for c in commands if c.why.startswith(UNDO) and _holds(c)}
    for record in sorted(commands, key=lambda c: c.settled or c.t, reverse=True):
        change = record.verb == "set" and record.stage == "applied" and record.before is not None
        if change and not record.why.startswith(UNDO) and record.id not in undone:
            return record
    return None


def _holds(record: CommandRecord) -> bool:
    return record.stage == "applied" or record.stage not in FINAL
