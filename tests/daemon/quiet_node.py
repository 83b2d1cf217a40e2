"""A node without sockets, disk or clock: what its desks do is looked at from outside, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import structs

from hoptui.daemon.handlers.runs import RunDesk
from hoptui.daemon.handlers.tuners import TunerDesk
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.daemon.state.stack_windows import StackBatch
from hoptui.domain.columns import Columns, pack
from hoptui.domain.devices import GpuProcess
from hoptui.domain.facts import Fact, fact
from hoptui.domain.jobs import JobState
from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.domain.tuning import Change, Limits, Trial, Tune, Tuned, TunerState
from hoptui.protocol import messages
from hoptui.protocol.messages import (
    Command,
    CommandRecord,
    Event,
    NodeState,
    Origin,
    Outcome,
    Query,
    RunState,
)
from hoptui.recording.library import KnownRun
from hoptui.tuner.observation import Observation, PriorResult, Proposal
from hoptui.tuner.overrides import KnobOverrides
from hoptui.tuner.prior_results import TunerResult, with_newer
from hoptui.tuner.rollback import Rollback
from hoptui.tuner.trial import ended
from hoptui.tuner.tuner import Tuner

SECOND = 1_000_000_000
ANA = Origin(user="ana", pid=7, client="cli")
RUN = "abcd2345"
MICRO = KnobState(
    spec=KnobSpec(name="micro_batch", kind="int", default=32, min=1, max=512, effect="speed"), value=32
)
LR = KnobState(spec=KnobSpec(name="lr", kind="float", default=3e-4, min=0.0, max=1.0), value=3e-4)
UP = Change(knob="micro_batch", before=32, value=64)
PURPOSE = fact("trial.no_clear_limit")


class Keeper:
    """An archive in memory: `log` has what reached it, in order. `written` gets each urgent command."""

    problem = ""
    written: Callable[[CommandRecord], None]

    def __init__(self) -> None:
        self.log: list[str] = []
        self.found: int | None = None
        self.newest = 0
        """The stamp of the newest row on disk."""
        self.on_disk = True
        self.states: list[RunState] = []
        self.jobs: list[JobState] = []
        self.events: list[Event] = []
        self.settled: tuple[TunerResult, ...] = ()

    def rows(self, runs: Iterable[str], parts: Sequence[Columns]) -> None: ...
    def node(self, state: NodeState, runs: Iterable[str]) -> None: ...
    def query(self, identity: bytes, query: Query, live: Sequence[Columns]) -> None: ...
    def stacks(self, run: str, batch: StackBatch) -> None: ...

    def job(self, run: str, t: int, state: JobState) -> None:
        self.jobs.append(state)

    def processes(self, runs: Iterable[str], t: int, processes: Sequence[GpuProcess]) -> None: ...

    def run(self, known: KnownRun, node: NodeState) -> None:
        self.states.append(known.state)
        self.log.append(f"run {known.state.tuner.stand if known.state.tuner else '-'}")

    def event(self, event: Event, runs: Iterable[str]) -> None:
        self.events.append(event)

    def command(self, record: CommandRecord, *, urgent: bool) -> None:
        self.log.append(f"command {record.knob} {record.stage}")
        if urgent:
            self.written(record)

    def finish(self, run: str) -> None:
        self.log.append("finish")

    def keep(self, run: str) -> Callable[[], bool]:
        self.log.append("keep")
        return lambda: self.on_disk

    def confirm(self, run: str) -> None:
        self.log.append("confirm")

    def settle(self, result: TunerResult) -> None:
        self.settled = with_newer(self.settled, result)

    def stored(self, run: str) -> int | None:
        return self.found

    def flushed(self, source: str) -> int:
        return self.newest

    def problem_of(self, run: str) -> str:
        return ""


class Script:
    """A tuner that proposes what a test tells it to."""

    def __init__(
        self, limits: Limits, now: int, user: str, known: PriorResult | None, overrides: KnobOverrides
    ) -> None:
        self.known = known
        self.overrides = overrides
        self._state = TunerState(
            stand="baseline", facts=(fact("tuner.begins"),), limits=limits, started=now, user=user
        )
        self.plan: list[Proposal | Exception] = []
        self.scenes: list[Observation] = []
        self.ids: dict[str, str] = {}
        self.rolls_back = False  # what it proposes undoes a trial
        self.rests: PriorResult | None = None
        self.took_over: TunerState | None = None

    @property
    def state(self) -> TunerState:
        return structs.replace(self._state, frozen=self.overrides.names)

    def put(self, **fields: object) -> None:
        self._state = structs.replace(self._state, **fields)

    def propose(self, *changes: Change) -> None:
        self.plan.append(Proposal(changes, (PURPOSE,)))

    def look(self, observation: Observation) -> Proposal | None:
        self.scenes.append(observation)
        found = self.plan.pop(0) if self.plan else None
        if isinstance(found, Exception):
            raise found
        if found is not None and not self.rolls_back:
            self.put(stand="trial", trial=Trial(changes=found.changes, t=observation.t, why=found.why))
        return found

    def sent(self, ids: dict[str, str]) -> None:
        self.ids = dict(ids)

    def end(self, result: str, *why: Fact) -> None:
        assert self.state.trial is not None
        trial = ended(self.state.trial, result, why)  # type: ignore[arg-type]
        self.put(stand="holding", trial=None, tried=(*self.state.tried, trial))

    def take_over(self, left: TunerState) -> None:
        self.took_over = left
        self.overrides.freeze(left.frozen)

    def charge(self, left: TunerState) -> None:
        self.put(spent=left.spent, lived_s=left.lived_s)

    def stop(self, now: int) -> Rollback | None:
        trial = self.state.trial
        if trial is not None:
            self.end("interrupted", fact("trial.tuner_stopped"))
        self.put(stand="off", facts=(fact("tuner.stopped"),))
        return Rollback.undo(trial) if trial is not None else None

    def found(self) -> PriorResult | None:
        return self.rests


class QuietNode:
    """One run on a node, its desks, and what came of them; with a `real` tuner in place of a script."""

    def __init__(self, *, state: RunState | None = None, real: bool = False) -> None:
        self.now = 100 * SECOND
        self.keeper = Keeper()
        self.node = Node(self, self.keeper, lambda: None, lambda _: None)
        self.scripts: list[Script] = []
        self.commands: list[Command] = []
        make = Tuner if real else self._make
        self.tuners = TunerDesk(self.node, self.keeper, self._forward, make)  # type: ignore[arg-type]
        self.runs = RunDesk(self.node, lambda _, __: True, lambda _: None, self.tuners.end)
        self.keeper.written = lambda record: self.runs.written(record.run, {record.id: record.seq})
        if state is not None:
            self.node.registry.restore(TrackedRun(state, nonce="n1"))

    def t(self) -> int:
        return self.now

    def wall(self) -> float:
        return 1.7e9 + self.now / SECOND

    def _make(
        self, limits: Limits, now: int, user: str, known: PriorResult | None, overrides: KnobOverrides
    ) -> Script:
        self.scripts.append(Script(limits, now, user, known, overrides))
        return self.scripts[-1]

    def _forward(self, command: Command, run: TrackedRun) -> bool:
        self.keeper.log.append(f"send {command.knob}={command.value}")
        self.commands.append(command)
        return True

    @property
    def run(self) -> TrackedRun:
        found = self.node.registry.get(RUN)
        assert found is not None
        return found

    @property
    def tuner(self) -> TunerState:
        assert self.run.state.tuner is not None
        return self.run.state.tuner

    @property
    def script(self) -> Script:
        return self.scripts[-1]

    def hello(
        self,
        *,
        nonce: str = "n1",
        knobs: tuple[KnobState, ...] = (MICRO, LR),
        step: int = 50,
        past_rows: int = 0,
        number: int = 1,
    ) -> None:
        """The run's process connects."""
        hello = messages.RunHello(
            protocol=messages.PROTOCOL,
            run=RUN,
            name="lm",
            epoch=1,
            nonce=nonce,
            pid=1,
            started=0,
            step=step,
            knobs=knobs,
            headline="tokens_per_s",
            past_rows=past_rows,
            number=number,
        )
        self.runs.receive(nonce.encode(), None, hello)

    def rows(self, *values: float) -> None:
        """Iterations of the run, one a second."""
        for value in values:
            self.now += SECOND
            step = self.run.last_step + 1
            self.node.rows((pack(f"run/{RUN}", [(self.now, step, {"tokens_per_s": value})]),))

    def tune(self, op: str = "start", *, viewer: str = "v1", who: Origin = ANA, **fields: object) -> Tuned:
        request = {"id": 1, "run": RUN, "op": op} | fields
        return self.tuners.receive(Tune(**request), viewer, who)  # type: ignore[arg-type]

    def look(self, seconds: float = 1.0) -> None:
        """So much later a look of the tuners, if the run is connected with a pulse just before."""
        self.now += int(seconds * SECOND)
        run = self.node.registry.get(RUN)
        if run is not None and run.identity is not None:
            run.pulse(messages.Pulse(step=run.last_step), self.now / SECOND)
        self.tuners.tend()

    def outcome(
        self, command: Command, stage: str = "applied", identity: bytes = b"n1", **fields: object
    ) -> None:
        """What the run says of a command; an applied value is the one asked for."""
        said: dict[str, object] = {
            "id": command.id,
            "stage": stage,
            "step": self.run.last_step,
            "t": self.now,
        }
        if stage == "applied":
            said |= {"effective": command.value, "version": 9}
        self.runs.receive(identity, None, Outcome(**(said | fields)))  # type: ignore[arg-type]

    def person(self, knob: str, value: float, *, stage: str = "applied", **fields: Any) -> Command:
        """A person sets a knob, and it takes effect, or comes as far as that stage."""
        command = Command(
            id=f"{knob}-{self.now}",
            run=RUN,
            epoch=self.run.state.epoch,
            verb="set",
            knob=knob,
            value=value,
            origin=ANA,
        )
        _, onward = self.node.book.submit(command, self.run, "v1", self.wall(), self.now)
        assert onward is not None
        if stage != "sent":
            self.outcome(command, "accepted")
        if stage not in ("sent", "accepted"):
            self.outcome(command, stage, **fields)
        return command

    def value(self, knob: str = "micro_batch") -> object:
        return next(k.value for k in self.run.state.knobs if k.spec.name == knob)

    def said(self, kind: str = "tuner") -> list[Fact]:
        """What the events of a kind report."""
        return [Fact(event.code, event.fields) for event in self.node.events if event.kind == kind]
