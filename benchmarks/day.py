"""Both ends of the wire with a simulated clock: a node on which a day goes by, and a client that looks at it.
No sockets, no waiting."""

from __future__ import annotations

import itertools
import os
import random
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Unpack

import msgspec

from benchmarks.eight_gpus import ALL, GPUS, row
from benchmarks.measure import until
from hoptui.client.client import Change, Link
from hoptui.client.conversation import NO_LIMITS, Conversation, Details, Outbox, TuneOp
from hoptui.daemon.archive import Archive
from hoptui.daemon.diagnosis import Diagnosing
from hoptui.daemon.handlers.runs import RunDesk
from hoptui.daemon.handlers.samplers import SamplerDesk
from hoptui.daemon.handlers.targets import TargetDesk
from hoptui.daemon.handlers.tuners import TunerDesk
from hoptui.daemon.handlers.viewers import ViewerDesk
from hoptui.daemon.recordings import RetentionLimits
from hoptui.daemon.state.gpu_ownership import Ancestry
from hoptui.daemon.state.node import Node
from hoptui.domain.columns import Columns, pack
from hoptui.domain.devices import Devices, HostInfo, Sample
from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.domain.tuning import Limits as TunerLimits
from hoptui.model.store import Store
from hoptui.node.addresses import Addresses
from hoptui.protocol import codec, messages

SECOND = 1_000_000_000
START = 1_000 * SECOND
TICK = SECOND // 2
POOL = 1024  # different rows of each source, met again and again
RUN, NAME = "longday1", "a-long-day"
KNOBS = ("num_envs", "grad_accum", "epochs")
KEPT_UP_S = 60
VIEWER, RUNNER = b"viewer", b"run"


class SimulatedClock:
    """Monotonic ns that somebody moves."""

    def __init__(self) -> None:
        self.now = START
        self._wall = time.time() - START / SECOND

    def t(self) -> int:
        return self.now

    def wall(self) -> float:
        return self._wall + self.now / SECOND


class DayNode:
    """The daemon without its loop, with a run and samplers that speak to its desks."""

    def __init__(self, clock: SimulatedClock, where: Addresses) -> None:
        self._clock = clock
        self._answers: list[bytes] = []
        self._written: deque[tuple[str, dict[str, int]]] = deque()
        self._archive = Archive(
            where, RetentionLimits(), self._from_the_past, lambda *commands: self._written.append(commands)
        )
        self._archive.start()
        self.node = Node(clock, self._archive, lambda: None, lambda patience: None)
        tuners = TunerDesk(self.node, self._archive, lambda command, run: self._runs.forward(command, run))
        self._runs = RunDesk(self.node, self._to_run, self._tell, tuners.end)
        targets = TargetDesk(self.node, self._archive.keep)
        self._viewers = ViewerDesk(self.node, self._to_viewer, self._runs, tuners, targets, lambda: None)
        self._samplers = SamplerDesk(self.node, Ancestry())
        self._diagnosing, self._tuners = Diagnosing(self.node), tuners
        self._queries = 0
        self._commands: list[messages.Command] = []
        self._knobs = {
            name: KnobState(
                spec=KnobSpec(name=name, kind="int", default=8, min=1, max=64, effect="speed"), value=8
            )
            for name in KNOBS
        }
        self._step = 0
        self._pools = {gpu.uuid: _pool([row(gpu.index, i / 2) for i in range(POOL)]) for gpu in GPUS}
        self._metrics = _pool([_run_row() for _ in range(POOL)])
        self._kept_up = clock.now
        self._samplers.receive(HostInfo(cpus=64, memory_total_bytes=512 << 30))
        self._samplers.receive(Devices(gpus=GPUS))
        self._samplers.troubled(None)
        self.node.sampler_problems = ()
        self._runs.receive(RUNNER, None, self._hello())
        self._samplers.tend()

    def live_until(self, t: int) -> None:
        """Let the run and the samplers say what they have to say until then."""
        while self._clock.now + TICK <= t:
            self._clock.now += TICK
            self._step += 1
            at = self._step % POOL
            parts = [_stamped(f"gpu/{gpu.uuid}", self._pools[gpu.uuid][at], self._clock.now) for gpu in GPUS]
            if self._step % 2:
                host = {
                    "cpu_percent": random.random() * 100,
                    "memory_used_bytes": 58e9,
                    "load_1m": random.random(),
                }
                parts.append(pack("host", [(self._clock.now, -1, host)]))
            self._samplers.receive(Sample(parts=tuple(parts)))
            self._carry_out()
            rows = _stamped(f"run/{RUN}", self._metrics[at], self._clock.now, self._step)
            self._runs.receive(RUNNER, None, messages.Rows(parts=(rows,)))
            self._runs.receive(RUNNER, None, messages.Pulse(step=self._step))
            while self._written:
                self._runs.written(*self._written.popleft())
            self._runs.pump()
            self._tuners.tend()
            self._diagnosing.tend()
            if self._step % 1200 == 0:
                note = messages.Note(
                    t=self._clock.now, step=self._step, text=f"checkpoint {self._step} written"
                )
                self._runs.receive(RUNNER, None, note)
        if self._clock.now - self._kept_up >= KEPT_UP_S * SECOND:
            self._kept_up = self._clock.now
            self.node.tidy()

    def answer(self, frames: list[bytes]) -> list[bytes]:
        """What the desk for viewers answers, and its archive."""
        for frame in frames:
            message = codec.from_viewer([frame])
            self._queries += isinstance(message, messages.Query)
            self._viewers.receive(VIEWER, None, message)
        until(lambda: not self._queries, what="answers about the past")
        self._viewers.serve()
        answers, self._answers = self._answers, []
        return answers

    def keep_up(self) -> None:
        """Wait until the disk has what has been said, as it would have in a real day."""
        source, newest = f"run/{RUN}", self._clock.now
        until(lambda: self._archive.flushed(source) >= newest, 120, "the archive")

    def close(self) -> None:
        self._archive.close(30.0)

    def _carry_out(self) -> None:
        """The run's boundary: do what was asked for."""
        for command in self._commands:
            held = self._knobs[command.knob]
            assert command.value is not None
            self._knobs[command.knob] = msgspec.structs.replace(
                held, value=command.value, version=held.version + 1
            )
            done = messages.Outcome(
                id=command.id, stage="applied", step=self._step, before=held.value, effective=command.value,
                version=held.version + 1, t=self._clock.now, took_s=0.0,
            )  # fmt: skip
            self._runs.receive(RUNNER, None, done)
            self._runs.receive(
                RUNNER, None, messages.Declare(knobs=tuple(self._knobs.values()), can=("set",))
            )
        self._commands.clear()

    def _hello(self) -> messages.RunHello:
        return messages.RunHello(
            protocol=messages.PROTOCOL, run=RUN, name=NAME, epoch=1, nonce="day", pid=os.getpid(),
            started=self._clock.now, knobs=tuple(self._knobs.values()), headline="env_steps_per_s",
            can=("set",),
            visible=ALL,
        )  # fmt: skip

    def _to_run(self, identity: bytes, message: messages.ToRun) -> bool:
        if isinstance(message, messages.Command):
            self._commands.append(message)
            accepted = messages.Outcome(id=message.id, stage="scheduled", step=self._step + 1)
            self._runs.receive(RUNNER, None, accepted)
        return True

    def _to_viewer(self, identity: bytes, message: messages.ToViewer) -> bool:
        self._answers.append(codec.encode(message))
        return True

    def _tell(self, record: messages.CommandRecord) -> None:
        self._viewers.tell(record)

    def _from_the_past(self, identity: bytes, answer: messages.Buckets | messages.Error) -> None:
        """Called in the archive's thread."""
        self._answers.append(codec.encode(answer))
        self._queries -= 1


class DayClient:
    """The dashboard's client without its thread: `ask` carries frames to the node, at a time, and brings its
    answers."""

    def __init__(self, clock: SimulatedClock, ask: Callable[[int, list[bytes]], list[bytes]]) -> None:
        self._clock = clock
        self._ask = ask
        self._outbox = Outbox()
        self._ids = itertools.count(1)
        self._on_change: Callable[[Change], None] = lambda change: None
        self.store = Store(clock.t)
        self.link = Link("connecting", 0.0)
        self.read_only = False
        self._conversation = Conversation(self.store, self._outbox, client="day", viewer="day")
        self._versions: tuple[int, ...] = ()

    def connect(self, on_change: Callable[[Change], None]) -> DayClient:
        """For the app that this is the client of."""
        self._on_change = on_change
        return self

    def start(self) -> None:
        self._conversation.connected(self._clock.now / SECOND)
        for _ in range(4):  # hello, what there is, its past, its rows
            self.turn()

    def close(self) -> None:
        """There is nothing open."""

    def turn(self) -> None:
        """Say what is due, and take in what comes back."""
        talk, now = self._conversation, self._clock.now
        frames = [codec.encode(message) for message in talk.due(now / SECOND)]
        for frame in self._ask(now, frames):
            talk.receive(codec.to_viewer([frame]), now / SECOND, len(frame))
        if talk.greeted and self.link.state != "live":
            self.link = Link("live", now / SECOND)
        versions = (self.store.node_version, self.store.events_version, self.store.commands_version)
        if versions != self._versions:
            self._versions = versions
            self._on_change("node")

    def set_next(self) -> None:
        """Turn one knob after the other, as a person does."""
        number = next(self._ids)
        self.send("set", RUN, knob=KNOBS[number % len(KNOBS)], value=1 << number % 6)

    def watch(self, run: str | None) -> None:
        self._conversation.watch(run, self._clock.now / SECOND)

    def send(self, verb: messages.Verb, run_id: str, **details: Unpack[Details]) -> str:
        command = messages.Command(id=f"day-{time.monotonic_ns()}", run=run_id, epoch=1, verb=verb, **details)
        self.store.sent(command)
        self._outbox.add(command, self._clock.now / SECOND)
        return command.id

    def renew_pause(self, run_id: str) -> None:
        self._conversation.renew_pause(run_id)

    def tune(self, run_id: str, op: TuneOp, *, knob: str = "", limits: TunerLimits = NO_LIMITS) -> None:
        self._conversation.tune(run_id, op, knob, limits)

    def add_note(self, run_id: str, text: str) -> None:
        self._conversation.add_note(run_id, text)

    def describe(self, run_id: str) -> None:
        self._conversation.describe(run_id)

    def fetch_lines(self, run_id: str, *, every_rank: bool = False, whole: bool = False) -> None:
        self._conversation.fetch_lines(run_id, every_rank, self._clock.now / SECOND)

    def fetch_output(self, run_id: str, rank: int) -> None:
        """Do nothing: the day has no output."""

    def sample(self, hz: float) -> None:
        self._conversation.hz = hz

    def pace(self, seconds: float) -> None:
        self._conversation.least_s = seconds


def _run_row() -> dict[str, float]:
    return {f"metric_{k}": random.random() for k in range(38)} | {
        "env_steps_per_s": 5e5 + 1e4 * random.random(),
        "iteration_s": 0.5,
    }


def _pool(rows: list[dict[str, float]]) -> list[Columns]:
    """Rows, packed one by one as they travel."""
    return [pack("", [(0, -1, one)]) for one in rows]


def _stamped(source: str, columns: Columns, t: int, step: int = -1) -> Columns:
    stamps = {"t": array("q", (t,)).tobytes(), "step": array("q", (step,)).tobytes()}
    return msgspec.structs.replace(columns, source=source, **stamps)
