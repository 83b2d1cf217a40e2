"""A daemon that says what it is told to say: a ROUTER in a thread, with a lock that a process of its own
holds."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import zmq
from msgspec import structs

from hoptui.domain.columns import Columns, pack
from hoptui.domain.details import RunDetails
from hoptui.domain.devices import GpuProcess
from hoptui.domain.jobs import JobState
from hoptui.domain.outputs import OutputPart
from hoptui.domain.tuning import Tune, Tuned
from hoptui.model.store import Store
from hoptui.node.addresses import Addresses
from hoptui.protocol import codec
from hoptui.protocol.job_records import encode_state
from hoptui.protocol.messages import (
    FINAL,
    PROTOCOL,
    Buckets,
    Command,
    CommandRecord,
    Delta,
    Describe,
    Description,
    Error,
    Event,
    Fetch,
    FetchOutput,
    FetchStacks,
    FromViewer,
    Lease,
    LeaseState,
    Outcome,
    Query,
    RankStacks,
    RunOutput,
    RunStacks,
    RunState,
    Shutdown,
    ToViewer,
    ViewerHello,
    ViewerWelcome,
    Vital,
)
from tests import factories
from tests.factories import SECOND

HOLD_LOCK = (
    "import fcntl, sys; f = open(sys.argv[1], 'wb'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', "
    "flush=True); sys.stdin.read()"
)
Answer = Callable[[FromViewer], "list[ToViewer] | None"]


def tuned(message: FromViewer) -> list[ToViewer] | None:
    """An `answer` that refuses every request to a tuner."""
    if not isinstance(message, Tune):
        return None
    return [Tuned(id=message.id, run=message.run, granted=False, reason="ben tunes it")]


class FakeDaemon:
    """Answers Fetch, Query, Command and Lease from its public fields; `answer` may answer anything else
    before.

    Commands go through `stages` in order, and each sends their record. Everything received is in `received`.
    """

    def __init__(self, directory: Path, state: Path) -> None:
        directory.mkdir(mode=0o700)
        self.where = Addresses(directory, state)
        self.node = factories.node()
        self.vitals: dict[str, Vital] = {}
        self.columns: list[Columns] = []
        self.events: list[Event] = []
        self.commands: list[CommandRecord] = []
        self.stages: tuple[Outcome, ...] = (
            Outcome(id="", stage="accepted", step=1205),
            Outcome(id="", stage="scheduled", step=1205),
            Outcome(id="", stage="applied", step=1205, version=1),
        )
        self.details: dict[str, RunDetails] = {}
        self.stacks: dict[str, tuple[RankStacks, ...]] = {}
        self.outputs: dict[str, tuple[OutputPart, ...]] = {}
        self.jobs: dict[str, JobState] = {}
        self.processes: tuple[GpuProcess, ...] = ()
        self.protocol = PROTOCOL
        self.pid = 77
        self.answer: Answer = lambda message: None
        self.received: list[FromViewer] = []
        self.now = 2000 * SECOND
        self._known: set[bytes] = set()
        self._waiting: dict[bytes, tuple[Fetch, float]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    def add(self, run: RunState, vital: Vital | None = None, metrics: dict[str, float] | None = None) -> None:
        """One more run, with a newest row of these metrics."""
        self.node = structs.replace(self.node, runs=(*self.node.runs, run))
        self.vitals[run.run] = vital or Vital(state="live", step=1204, iteration_s=1.82, last_t=self.now)
        if metrics:
            self.columns.append(pack(f"run/{run.run}", [(self.now, 1204, metrics)]))

    def start(self, *, hold_lock: bool = True) -> None:
        if hold_lock:
            self._keeper = subprocess.Popen(
                [sys.executable, "-S", "-c", HOLD_LOCK, str(self.where.lock)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert self._keeper.stdout is not None
            assert self._keeper.stdout.readline() == b"held\n"
        self._stop.clear()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(5)

    def release_lock(self) -> None:
        """As if the process had died."""
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.communicate()
            self._keeper = None

    def hang(self) -> None:
        """Stop answering, and forget every connection; the lock stays held."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)
        self._known.clear()
        self._waiting.clear()

    def forget(self) -> None:
        """Every connection has to say hello again."""
        self._known.clear()

    def stop(self) -> None:
        self.hang()
        self.release_lock()

    def of(self, kind: type[FromViewer]) -> list[FromViewer]:
        """What was received of one kind."""
        return [message for message in list(self.received) if isinstance(message, kind)]

    # in the thread ------------------------------------------------------------------------------------------

    def _serve(self, ready: threading.Event) -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
            router.linger = 0
            self.where.viewers.unlink(missing_ok=True)
            router.bind(f"ipc://{self.where.viewers}")
            ready.set()
            while not self._stop.is_set():
                if router.poll(10):
                    identity, *frames = router.recv_multipart()
                    message = codec.from_viewer(frames)
                    self.received.append(message)
                    for answer in self._answers(identity, message):
                        router.send_multipart((identity, codec.encode(answer)))
                for identity, (fetch, deadline) in list(self._waiting.items()):
                    if (delta := self._delta(fetch, late=time.monotonic() >= deadline)) is not None:
                        del self._waiting[identity]
                        router.send_multipart((identity, codec.encode(delta)))

    def _answers(self, identity: bytes, message: FromViewer) -> list[ToViewer]:
        scripted = self.answer(message)
        if scripted is not None:
            return scripted
        if isinstance(message, ViewerHello):
            self._known.add(identity)
            return [
                ViewerWelcome(
                    protocol=self.protocol, pid=self.pid, version="0.1.0", host="gpu07", records=True
                )
            ]
        if identity not in self._known:
            number = 0 if isinstance(message, Command) else message.id
            return [Error(code="hello_first", text="say hello first", id=number)]
        match message:
            case Fetch():
                delta = self._delta(message, late=message.wait_s <= 0)
                if delta is None:
                    self._waiting[identity] = (message, time.monotonic() + message.wait_s)
                return [] if delta is None else [delta]
            case Query():
                return [self._past(message)]
            case Describe():
                return [Description(id=message.id, run=message.run, details=self.details.get(message.run))]
            case FetchStacks():
                return [RunStacks(id=message.id, run=message.run, ranks=self.stacks.get(message.run, ()))]
            case FetchOutput():
                parts = self.outputs.get(message.run, ())
                return [RunOutput(id=message.id, run=message.run, rank=message.rank, parts=parts)]
            case Command():
                return [self._pushed(message, stage) for stage in self.stages]
            case Lease():
                return [LeaseState(id=message.id, run=message.run, granted=True)]
            case Shutdown():
                self.release_lock()
        return []

    def _delta(self, fetch: Fetch, *, late: bool) -> Delta | None:
        """What is new; None where that is nothing and there is time left."""
        state = 1 + sum(run.epoch for run in self.node.runs)
        fresh = tuple(e for e in self.events if e.seq > fetch.events)
        commands = tuple(c for c in self.commands if c.seq > fetch.commands)
        parts = [c.slice(-1) for c in self.columns]
        if not fetch.latest:
            asked = [(c, fetch.cursors[c.source]) for c in self.columns if c.source in fetch.cursors]
            parts = [new for c, cursor in asked if len(new := c.after(cursor))]
        if not (late or fetch.latest or parts or fresh or commands or state != fetch.state):
            return None
        return Delta(
            id=fetch.id,
            now=self.now,
            state=state,
            node=self.node if state != fetch.state else None,
            vitals=dict(self.vitals),
            columns=tuple(parts),
            events=fresh,
            commands=commands,
            job=encode_state(self.jobs[fetch.job]) if fetch.job in self.jobs else None,
            processes=self.processes if fetch.processes == 0 else None,
            processes_version=1,
        )

    def _past(self, query: Query) -> ToViewer:
        found = [c for c in self.columns if c.source == query.source]
        if not found:
            return Buckets(
                id=query.id, source=query.source, names=(), t=b"", step=b"", low=(), high=(), mean=()
            )
        rows = found[0]
        return Buckets(
            id=query.id,
            source=query.source,
            names=rows.names,
            t=rows.t,
            step=rows.step,
            low=rows.values,
            high=rows.values,
            mean=rows.values,
        )

    def _pushed(self, command: Command, stage: Outcome) -> Delta:
        if stage.stage == "applied" and stage.effective is None and command.verb == "set":
            run = next((r for r in self.node.runs if r.run == command.run), None)
            held = next((k.value for k in run.knobs if k.spec.name == command.knob), None) if run else None
            stage = structs.replace(stage, before=held, effective=command.value)
        record = CommandRecord(
            id=command.id, run=command.run, epoch=command.epoch, verb=command.verb, knob=command.knob,
            wanted=command.value, why=command.why, origin=command.origin, t=self.now,
        )  # fmt: skip
        return Delta(id=0, now=self.now, state=0, commands=(became(record, stage),))


def became(record: CommandRecord, outcome: Outcome) -> CommandRecord:
    """The record once its run has said this."""
    known = {
        n: v for n in ("step", "before", "effective", "version") if (v := getattr(outcome, n)) is not None
    }
    settled = (outcome.t or record.t) if outcome.stage in FINAL else 0
    return structs.replace(
        record, stage=outcome.stage, code=outcome.code, reason=outcome.reason, took_s=outcome.took_s,
        settled=settled, **known,
    )  # fmt: skip


def settle(store: Store, command: str, t: int, **fields: object) -> None:
    """The daemon has sent what became of a command: it was applied, unless the fields say otherwise."""
    outcome = structs.replace(Outcome(id=command, stage="applied", t=t), **fields)
    store.apply_records((became(store.commands[command], outcome),))
