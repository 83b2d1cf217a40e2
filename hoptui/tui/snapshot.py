"""What every panel is drawn from: the store and the run at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Unpack

from hoptui.client.client import Link
from hoptui.client.conversation import NO_LIMITS, Details, TuneOp
from hoptui.domain.columns import head_of
from hoptui.domain.details import RunDetails
from hoptui.domain.devices import CoreLoads, GpuInfo, GpuProcess, RunProcess
from hoptui.domain.job_history import JobHistory
from hoptui.domain.knobs import KnobState
from hoptui.domain.line_counts import FoundLines
from hoptui.domain.run_notes import NoteAdded
from hoptui.domain.tuning import Limits, Tuned
from hoptui.model import runs
from hoptui.model.command_history import UNDO, left
from hoptui.model.outputs import FoundOutput
from hoptui.model.series import SeriesColumns, SeriesWindow
from hoptui.presentation import job_head
from hoptui.protocol.messages import FINAL, CommandRecord, Event, NodeState, RunState, Verb, Vital
from hoptui.tui.actions import DEFAULT_KEYS, key_text

if TYPE_CHECKING:
    from hoptui.client.replay import Reel

SECOND = 1_000_000_000
LATE = 5.0  # iterations without a row
OLD_S = 5.0  # readings of a GPU or the host older than this are not current


class AnySeries(Protocol):
    """One metric, of a live store or of a recording as of its position; see `hoptui.model.series.Series`."""

    @property
    def last(self) -> float: ...
    @property
    def first_t(self) -> int: ...
    @property
    def last_t(self) -> int: ...
    @property
    def last_step(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def refined(self) -> int: ...
    def window(self, t0: int, t1: int, points: int) -> SeriesWindow: ...
    def columns(self, t0: int, t1: int, points: int) -> SeriesColumns: ...
    def fine_from(self, width: int) -> int: ...


class AnyStore(Protocol):
    """What the dashboard needs of a store: `hoptui.model.store.Store` or a recorded one."""

    @property
    def node(self) -> NodeState | None: ...
    @property
    def vitals(self) -> Mapping[str, Vital]: ...
    @property
    def events(self) -> Sequence[Event]: ...
    @property
    def commands(self) -> Mapping[str, CommandRecord]: ...
    @property
    def processes(self) -> Sequence[GpuProcess]: ...
    @property
    def processes_age_s(self) -> float | None: ...
    @property
    def processes_left_out(self) -> int: ...
    @property
    def tree(self) -> Sequence[RunProcess]: ...
    @property
    def cores(self) -> CoreLoads: ...
    @property
    def tuned(self) -> Mapping[str, Tuned]: ...
    @property
    def noted(self) -> Mapping[str, NoteAdded]: ...
    @property
    def details(self) -> Mapping[str, RunDetails | None]: ...
    @property
    def lines(self) -> Mapping[tuple[str, bool], FoundLines]: ...
    @property
    def outputs(self) -> Mapping[str, FoundOutput]: ...
    @property
    def changes(self) -> int: ...
    def now(self) -> int: ...
    def series(self, source: str, name: str) -> AnySeries | None: ...
    def steps(self, source: str) -> AnySeries | None: ...
    def look_closer(self, source: str, name: str, t0: int, t1: int, points: int) -> None: ...
    def names(self, source: str) -> list[str]: ...
    def latest(self, source: str) -> dict[str, float]: ...
    def left_out(self, source: str) -> int: ...
    def run(self, run_id: str) -> RunState | None: ...
    def vital(self, run_id: str) -> Vital | None: ...
    def job(self, run_id: str) -> JobHistory | None: ...


class ViewerClient(Protocol):
    """What the dashboard needs of a client: `hoptui.client.client.Client` or a `Replay`."""

    @property
    def store(self) -> AnyStore: ...
    @property
    def link(self) -> Link: ...
    @property
    def read_only(self) -> bool: ...
    def start(self) -> None: ...
    def close(self) -> None: ...
    def watch(self, run: str | None) -> None: ...
    def send(self, verb: Verb, run_id: str, **details: Unpack[Details]) -> str: ...
    def renew_pause(self, run_id: str) -> None: ...
    def tune(self, run_id: str, op: TuneOp, *, knob: str = "", limits: Limits = NO_LIMITS) -> None: ...
    def add_note(self, run_id: str, text: str) -> None: ...
    def describe(self, run_id: str) -> None: ...
    def fetch_lines(self, run_id: str, *, every_rank: bool = False, whole: bool = False) -> None: ...
    def fetch_output(self, run_id: str, rank: int) -> None: ...
    def sample(self, hz: float) -> None: ...
    def pace(self, seconds: float) -> None: ...


class View(NamedTuple):
    """One moment. `now` is the node's monotonic ns, `wall` its wall clock in s, `clock` the local monotonic
    clock in s.

    In a replay the moment is in the past and `replay` names it; None means live. `keymap` maps the id of an
    action to its keys. `read_only`: nothing can be sent.
    """

    store: AnyStore
    link: Link
    run: RunState | None
    vital: Vital | None
    now: int
    wall: float
    clock: float
    replay: Reel | None = None
    keymap: Mapping[str, str] = DEFAULT_KEYS
    read_only: bool = False

    def hint(self, action: str, does: str) -> str:
        """`p goes on`: the key that an action has now, and what it does; empty where it has no key."""
        key = key_text(self.keymap.get(action, ""))
        return f"{key} {does}" if key else ""

    @property
    def node(self) -> NodeState | None:
        return self.store.node

    @property
    def source(self) -> str:
        """Where the run's metrics come from."""
        return f"run/{self.run.run}" if self.run else ""

    @property
    def job(self) -> JobHistory | None:
        """The run on all of its nodes, None if it has one or nothing of others is known."""
        found = self.store.job(self.run.run) if self.run else None
        return found if found is not None and found.state is not None else None

    @property
    def exited(self) -> bool:
        return self.run is not None and _is_over(self.run, self.vital)

    @property
    def ran_s(self) -> float | None:
        """Seconds from the start of the run to its end, to the loss of the link, or to now; None without a
        run.
        """
        if self.run is None:
            return None
        unheard = (self.link.age_s(self.clock) or 0.0) if self.node_stale else 0.0
        return max(0.0, (self.run.exited_wall or self.wall - unheard) - self.run.started_wall)

    @property
    def left_s(self) -> float | None:
        """Seconds until the last iteration ends; None where unknown, and while the run is not heard of."""
        run, vital, steps = self.run, self.vital, self.store.steps(self.source)
        if run is None or vital is None or self.stale:
            return None

        def read(start: int) -> runs.Ends | None:
            found = steps.window(start, steps.last_t, runs.POINTS) if steps is not None else None
            return (found.t, found.high) if found is not None else None

        begun = self.now - int((self.wall - run.started_wall) * SECOND)
        last_t = steps.last_t if steps is not None else 0
        return runs.left_s(run, vital, self.commands(), read, begun=begun, last_t=last_t)

    @property
    def stale(self) -> bool:
        """Whether what is known of the run is old: the link is down, it does not answer, or it has ended."""
        silent = self.vital is not None and self.vital.state == "unresponsive"
        return self.link.state != "live" or silent or self.exited

    @property
    def metrics_stale(self) -> bool:
        """Whether the metrics are old: `stale`, or no iteration has ended for much longer than iterations
        take.
        """
        age, pace = self.age_s(self.source), (self.vital.iteration_s if self.vital else None) or 0.0
        return self.stale or (age is not None and age > max(OLD_S, LATE * pace))

    @property
    def node_stale(self) -> bool:
        """Whether what is known of the node is old."""
        return self.link.state != "live"

    def of_silent_head(self, metric: str) -> bool:
        """Whether a metric of the run is one of the head, and that has said nothing for so long that it is
        old.
        """
        return job_head.old_s(self.vital) is not None and metric in self.store.names(head_of(self.source))

    def age_s(self, source: str) -> float | None:
        """Seconds since the newest row of a source, None where there is none."""
        newest = max(
            (s.last_t for n in self.store.names(source) if (s := self.store.series(source, n))), default=0
        )
        return (self.now - newest) / SECOND if newest else None

    def commands(self) -> list[CommandRecord]:
        """The run's commands (all runs' without one), oldest first."""
        found = self.store.commands.values()
        return [self.as_left(c) for c in found if self.run is None or c.run == self.run.run]

    def command(self, command_id: str) -> CommandRecord | None:
        """A command by its id, None where it is not known (yet)."""
        found = self.store.commands.get(command_id)
        return self.as_left(found) if found is not None else None

    def as_left(self, record: CommandRecord) -> CommandRecord:
        """A command, as the end of its run has left it if that is over."""
        run = self.store.run(record.run)
        over = run is not None and _is_over(run, self.store.vital(record.run))
        return left(record) if over else record

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
        """The run's GPUs, none where it is not known which; all of the node's where the view is of no run.

        MIG instances follow the GPU that they are a part of.
        """
        node, run = self.node, self.run
        if node is None:
            return ()
        if run is not None:
            return tuple(gpu for gpu in node.gpus if gpu.uuid in run.gpus)
        place = {gpu.uuid: i for i, gpu in enumerate(node.gpus)}
        return tuple(sorted(node.gpus, key=lambda gpu: place.get(gpu.parent, place[gpu.uuid])))


def _is_over(run: RunState, vital: Vital | None) -> bool:
    return bool(run.exit_reason or (vital is not None and vital.state == "exited"))


def undoable(commands: list[CommandRecord]) -> CommandRecord | None:
    """The newest applied change of one run's `commands` that is no undo and is not undone (or being undone)
    itself.
    """
    undone = {c.why.removeprefix(UNDO) for c in commands if c.why.startswith(UNDO) and _holds(c)}
    for record in sorted(commands, key=lambda c: c.settled or c.t, reverse=True):
        change = record.verb == "set" and record.stage == "applied" and record.before is not None
        if change and not record.why.startswith(UNDO) and record.id not in undone:
            return record
    return None


def _holds(record: CommandRecord) -> bool:
    return record.stage == "applied" or record.stage not in FINAL
