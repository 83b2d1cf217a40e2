"""Sessions of messages: every direction of both sockets and of the samplers' pipes, as far as their meaning.

An input is a sequence of messages: a byte for the channel, two for the length, then the frame. Each session
has a node of its own, so it does the same each time. What the daemon answers is decoded as its peer would, a
real client takes it in, and the dashboard's sentences are made of it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from random import Random
from typing import Any, TypeVar
from unittest import mock

import msgspec
import zmq
from msgspec import structs

from hoptui.client.conversation import Conversation, Outbox
from hoptui.daemon import prometheus
from hoptui.daemon.diagnosis import Diagnosing
from hoptui.daemon.handlers.runs import RunDesk
from hoptui.daemon.handlers.samplers import SamplerDesk
from hoptui.daemon.handlers.targets import TargetDesk
from hoptui.daemon.handlers.tuners import TunerDesk
from hoptui.daemon.handlers.viewers import ViewerDesk
from hoptui.daemon.phases import PhaseJoin
from hoptui.daemon.recordings import rows_as_buckets
from hoptui.daemon.state.gpu_ownership import Ancestry
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.stack_windows import StackBatch
from hoptui.domain.columns import Columns, pack
from hoptui.domain.devices import Devices, GpuProcess, Sample
from hoptui.domain.jobs import JobState
from hoptui.domain.phases import PhaseSpan
from hoptui.domain.targets import SetTargets, Target
from hoptui.domain.tuning import Tune
from hoptui.model.store import Store
from hoptui.node.processes import Peer
from hoptui.presentation import diagnosis, numbers, sentences, targets, tuner, vocabulary
from hoptui.protocol import codec, messages
from hoptui.protocol.codec import WireError
from hoptui.protocol.messages import CommandRecord, Event, NodeState, Query, RunState
from hoptui.protocol.recorded_jobs import decode_recorded, encode_recorded
from hoptui.protocol.recorded_processes import decode_processes, encode_processes
from hoptui.recording import stack_minutes, stored_json
from hoptui.recording.library import KnownRun, decode_node, encode_node
from hoptui.sdk.daemon_link import DaemonLink
from hoptui.sdk.run import Run
from hoptui.sdk.shared_state import SharedState
from hoptui.tuner.prior_results import TunerResult, with_newer
from tests import factories
from tests.fuzz.harness import Broken, Harness
from tests.fuzz.mutation import mutated_bytes, mutated_list, mutated_tree
from tests.protocol.conftest import EXAMPLES
from tests.protocol.test_codec import GOLDEN
from tests.run_state import run_state

SECOND = 1_000_000_000
RATE = "env_steps_per_s"
KNOBS = (factories.knob("grad_accum", 4, min=1, max=64), factories.knob("lr", 3e-4, min=1e-6, max=0.1))
TARGET = Target(reading="busy", value=95.0)
MOST_FRAMES = 40
MOST_ANSWERS = 64
"""Frames that the daemon and a run send each other because of one frame."""
T = TypeVar("T")


class Channel(IntEnum):
    """Who sends a frame to whom."""

    RUN = 0
    RANK = 1
    VIEWER = 2
    OTHER_VIEWER = 3
    SAMPLER = 4
    TO_VIEWER = 5
    TO_RUN = 6
    TO_SAMPLER = 7
    TIME = 8
    """No message: so many seconds pass as the first byte says, and the daemon does its periodic work."""


Frame = tuple[int, bytes]


def joined(frames: Iterable[Frame]) -> bytes:
    """Return the input that holds these frames."""
    return b"".join(bytes([channel]) + len(body).to_bytes(2, "big") + body for channel, body in frames)


def split(data: bytes) -> list[Frame]:
    """Return the frames of an input. Any bytes are an input."""
    found: list[Frame] = []
    while data and len(found) < MOST_FRAMES:
        size = int.from_bytes(data[1:3], "big")
        found.append((data[0] % len(Channel), data[3 : 3 + size]))
        data = data[3 + size :]
    return found


class Kept:
    """An archive in memory. What it keeps must be readable from a recording."""

    problem = ""

    def __init__(self, answer: Callable[[bytes, messages.Buckets], object]) -> None:
        self.settled: tuple[TunerResult, ...] = ()
        self._answer = answer

    def rows(self, runs: Iterable[str], parts: Sequence[Columns]) -> None: ...
    def finish(self, run: str) -> None: ...
    def confirm(self, run: str) -> None: ...

    def keep(self, run: str) -> Callable[[], bool]:
        return lambda: True

    def job(self, run: str, t: int, state: JobState) -> None:
        decode_recorded(encode_recorded(state))

    def processes(self, runs: Iterable[str], t: int, processes: Sequence[GpuProcess]) -> None:
        decode_processes(encode_processes(processes))

    def stacks(self, run: str, batch: StackBatch) -> None:
        stack_minutes.decode(stack_minutes.encode(batch.parts, batch.t, batch.most_bytes), batch.t)

    def run(self, known: KnownRun, node: NodeState) -> None:
        _readable(known, KnownRun)

    def node(self, state: NodeState, runs: Iterable[str]) -> None:
        decode_node(encode_node(state))

    def event(self, event: Event, runs: Iterable[str]) -> None:
        _readable(event, Event)

    def command(self, record: CommandRecord, *, urgent: bool) -> None:
        _readable(record, CommandRecord)

    def query(self, identity: bytes, query: Query, live: Sequence[Columns]) -> None:
        self._answer(identity, rows_as_buckets(query, live))

    def settle(self, result: TunerResult) -> None:
        self.settled = with_newer(self.settled, result)

    def stored(self, run: str) -> int | None:
        return None

    def flushed(self, source: str) -> int:
        return 0

    def problem_of(self, run: str) -> str:
        return ""


def _readable(value: T, kind: type[T]) -> None:
    stored = stored_json.encode(value)
    if stored_json.encode(stored_json.decode(stored, kind)) != stored:
        raise Broken(f"a {kind.__name__} reads back otherwise than it was stored")


class NoPause(threading.Event):
    """Wakes a boundary that pauses, and lets its lease end: a session takes no time."""

    def __init__(self, state: SharedState) -> None:
        super().__init__()
        self._state = state

    def wait(self, timeout: float | None = None) -> bool:
        self._state.paused_until = 1e-9
        return True


class Socket:
    """A run's socket: the daemon reads what is sent."""

    def __init__(self, take: Callable[[bytes], object]) -> None:
        self._take = take

    def send(self, frame: bytes, flags: int) -> None:
        self._take(frame)


class World:
    """A daemon's handlers, a viewer and a run, without sockets, disk or clock."""

    def __init__(self, ancestry: Ancestry) -> None:
        self.now = 100 * SECOND
        kept = Kept(self._to_viewer)
        self.node = node = Node(self, kept, lambda: None, lambda _: None)
        self.tuners = TunerDesk(node, kept, lambda command, run: self.runs.forward(command, run))
        self.runs = RunDesk(node, self._to_run, self._tell, self.tuners.end)
        self.targets = TargetDesk(node, kept.keep)
        self.viewers = ViewerDesk(node, self._to_viewer, self.runs, self.tuners, self.targets, lambda: None)
        self.samplers = SamplerDesk(node, ancestry)
        self.diagnosing, self.phases = Diagnosing(node), PhaseJoin(node)
        self.client: Conversation | None = None
        self.link: DaemonLink | None = None
        self._under_way: deque[Frame] = deque()
        self.run: Run | None = None

    def t(self) -> int:
        return self.now

    def wall(self) -> float:
        return 1.7e9 + self.now / SECOND

    def receive(self, channel: int, frame: bytes) -> None:
        """Let a frame arrive, and then what the daemon and the run say because of it."""
        try:
            self._arrive(channel, frame)
        finally:
            for _ in range(MOST_ANSWERS):
                if not self._under_way:
                    break
                self._arrive(*self._under_way.popleft())
            self._under_way.clear()

    def _arrive(self, channel: int, frame: bytes) -> None:
        match channel:
            case Channel.RUN | Channel.RANK:
                self._from_run(b"rank" if channel == Channel.RANK else b"run", frame)
            case Channel.VIEWER | Channel.OTHER_VIEWER:
                self._from_viewer(bytes([channel]), frame)
            case Channel.SAMPLER:
                framed = codec.Framer().feed(len(frame).to_bytes(4, "big") + frame)
                message = codec.from_sampler(framed)
                self.samplers.receive(message)
            case Channel.TO_VIEWER:
                self._at_viewer(frame)
            case Channel.TO_RUN:
                self._at_run(frame)
            case Channel.TO_SAMPLER:
                codec.to_sampler([frame])
            case Channel.TIME:
                self._pass(frame[0] if frame else 1)

    def close(self) -> None:
        """Let the run end in good order."""
        link = self.link
        if link is not None:
            link._state.alive = False
            link._wake_in.close()
            link._wake_out.close()

    def _from_run(self, identity: bytes, frame: bytes) -> None:
        try:
            message = codec.from_run([frame])
        except WireError as error:
            self._to_run(identity, messages.Error(code=error.code, text=str(error)))
            raise
        peer = Peer(os.getuid(), 0, os.getpid()) if identity == b"run" else None
        self.runs.receive(identity, peer, message)
        self.runs.pump()

    def _from_viewer(self, identity: bytes, frame: bytes) -> None:
        try:
            message = codec.from_viewer([frame])
        except WireError as error:
            self._to_viewer(identity, messages.Error(code=error.code, text=str(error)))
            raise
        self.viewers.receive(identity, Peer(os.getuid(), 0, 7), message)

    def _tell(self, record: CommandRecord) -> None:
        self.viewers.tell(record)

    def _to_run(self, identity: bytes, message: messages.ToRun) -> bool:
        frame = codec.encode(message)
        try:
            codec.to_run([frame])
        except WireError as error:
            raise Broken(f"a run cannot read what the daemon sends: {error}") from error
        if identity == b"run" and not isinstance(message, messages.Error):
            self._under_way.append((Channel.TO_RUN, frame))
        return True

    def _to_viewer(self, identity: bytes, message: messages.ToViewer) -> bool:
        frame = codec.encode(message)
        try:
            self._at_viewer(frame)
        except WireError as error:
            raise Broken(f"a viewer cannot read what the daemon sends: {error}") from error
        return True

    def _at_viewer(self, frame: bytes) -> None:
        message = codec.to_viewer([frame])
        if self.client is None:
            self.client = Conversation(Store(self.t), Outbox(), client="fuzz", viewer="fuzz", remote=True)
            self.client.connected(self.now / SECOND)
            self.client.watch("r1", self.now / SECOND)
        client = self.client
        client.receive(message, self.now / SECOND, len(frame))
        if client.due(self.now / SECOND):
            client.wake_at()
        shown(client.store)

    def _at_run(self, frame: bytes) -> None:
        if self.link is None:
            with mock.patch.dict(os.environ, {"HOPTUI": "off"}):
                run = Run("fuzz")
            run.knob("grad_accum", 4, min=1, max=64)
            run.knob("lr", 3e-4, min=1e-6, max=0.1)
            run.on_checkpoint(lambda: None)
            state = run_state(run)
            state.id, state.boundary_wake = "r1", NoPause(state)
            state.epoch = state.inbox.epoch = 2
            self.run, self.link = run, DaemonLink(state, owner=run)
        link, wire = self.link, Socket(lambda sent: self._under_way.append((Channel.RUN, sent)))
        link._receive([frame], wire, zmq)
        state = link._state
        if self.run is not None:
            self.run.boundary()
        link._send_outcomes(wire, zmq)

    def _pass(self, seconds: int) -> None:
        """Let time pass, and do what the daemon does each second."""
        self.now += seconds * SECOND
        self.samplers.tend()
        self.diagnosing.tend()
        self.targets.tend()
        self.phases.tend()
        self.tuners.tend()
        self.runs.pump()
        self.viewers.serve()
        prometheus.snapshot(self.node)
        self.node.tidy()


def shown(store: Store) -> None:
    """Make the sentences that a dashboard shows of what it knows."""
    for event in list(store.events)[-3:]:
        vocabulary.happened(event)
    for record in list(store.commands.values())[-3:]:
        vocabulary.sentence(record)
        vocabulary.speeds(record.measured, {})
    node = store.node
    for run in node.runs if node is not None else ():
        sentences_of_run(run, store.vitals.get(run.run))
    for gpu in node.gpus if node is not None else ():
        sentences.text_of(gpu.problem)


def sentences_of_run(run: RunState, vital: messages.Vital | None) -> None:
    """Make the sentences that a dashboard shows of a run."""
    vocabulary.state_text(vital, run)
    for knob in run.knobs:
        numbers.value(knob.value, knob.spec)
        vocabulary.cost(knob)
    if run.diagnosis is not None:
        diagnosis.line(run.diagnosis)
        diagnosis.evidence(run.diagnosis)
    if run.tuner is not None:
        tuner.standing(run.tuner)
        tuner.cost(run.tuner)
        tuner.in_words(run.tuner)
    for target in run.targets:
        targets.standing(target)
        targets.bound(target.target)


def _golden() -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted(GOLDEN.glob("*.bin"))}


def _of(kind: type[T], **fields: Any) -> bytes:
    found = next(example for example in EXAMPLES if type(example) is kind)
    return msgspec.msgpack.encode(msgspec.structs.replace(found, **fields))


def _channels(tag: str) -> list[int]:
    """Return the channels on which messages with this tag are understood."""
    unions = (
        (Channel.RUN, codec.from_run),
        (Channel.VIEWER, codec.from_viewer),
        (Channel.SAMPLER, codec.from_sampler),
        (Channel.TO_VIEWER, codec.to_viewer),
        (Channel.TO_RUN, codec.to_run),
        (Channel.TO_SAMPLER, codec.to_sampler),
    )
    return [channel for channel, decoder in unions if tag in decoder._known]


class Messages(Harness):
    """Sessions of messages."""

    name, unit = "messages", "messages"

    def __init__(self) -> None:
        self._frames = [(channel, body) for tag, body in _golden().items() for channel in _channels(tag)]
        self._rank_0 = (Channel.RUN, _of(messages.RunHello, rank=0, world=2, epoch=2))
        self._viewer = (Channel.VIEWER, _of(messages.ViewerHello))
        self._time = (Channel.TIME, b"\x03")
        self._sessions = self._made()
        self._ancestry = Ancestry()

    def seeds(self) -> list[bytes]:
        return self._sessions

    def _made(self) -> list[bytes]:
        by_channel: dict[int, list[Frame]] = {}
        for channel, body in self._frames:
            by_channel.setdefault(channel, []).append((channel, body))
        of_run = [frame for frame in by_channel[Channel.RUN] if b"run.hello" not in frame[1]]
        of_viewer = [frame for frame in by_channel[Channel.VIEWER] if b"viewer.hello" not in frame[1]]
        rows = [(Channel.RUN, codec.encode(messages.Rows(parts=(self._rows(t),)))) for t in (96, 98)]
        rank = (Channel.RANK, _of(messages.RunHello))
        sessions = [
            [self._rank_0, rank, *rows, *of_run, self._time],
            [self._rank_0, self._viewer, self._time, *of_viewer],
            [self._rank_0, *rows, *by_channel[Channel.SAMPLER], self._viewer, self._time, *of_viewer[:4]],
            [*by_channel[Channel.TO_VIEWER], self._time],
            [*by_channel[Channel.TO_RUN], *by_channel[Channel.TO_SAMPLER]],
            *([self._rank_0, self._viewer, frame, self._time] for frame in (*of_run, *of_viewer)),
            *([frame] for frame in self._frames),
            self._day(),
        ]
        return [joined(session) for session in sessions]

    def _day(self) -> list[Frame]:
        """Return a session in which a run is tuned, steered, watched and judged."""
        knobs = (factories.knob("micro_batch", 32, min=1, max=512, effect="speed"), *KNOBS)
        hello = _of(
            messages.RunHello, rank=0, world=1, epoch=2, knobs=knobs, phase="", paused=False, headline=RATE,
            flops=messages.Flops(per_unit=6e9, metric=RATE, precision="bf16"), visible=None, slurm_gpus="",
        )  # fmt: skip
        gpu = structs.replace(factories.gpu(1), peak_flops={"bf16": 1e15}, peak_clock_mhz=1980.0)
        tune = Tune(id=1, run="r1", op="start")
        asked = messages.Command(id="c7", run="r1", epoch=2, verb="set", knob="lr", value=0.01, ttl_s=0.0)
        commands = [
            asked,
            structs.replace(asked, id="c8", knob="grad_accum", value=8, expect_version=0),
            structs.replace(asked, id="c9", verb="pause", hold_s=30.0),
            structs.replace(asked, id="c10", verb="checkpoint"),
            structs.replace(asked, id="c11", verb="stop"),
        ]
        fetch = messages.Fetch(id=2, run="r1", cursors={"run/r1": 0, "gpu/GPU-1": 0})
        latest = messages.Fetch(id=3, latest=True, processes=0, page=1)
        query = messages.Query(id=4, source="run/r1", names=(RATE,), t0=0, t1=200 * SECOND, points=16)
        frames: list[Frame] = [(Channel.RUN, hello), self._viewer]
        frames += [(Channel.SAMPLER, codec.encode(Devices(gpus=(gpu,))))]
        said: list[messages.Message] = [SetTargets(id=5, run="r1", targets=(TARGET,)), tune, *commands]
        for i in range(5):
            at = 101 + 10 * i
            frames += [(Channel.TIME, b"\x0a")]
            frames += [(Channel.RUN, codec.encode(messages.Rows(parts=(self._rows(at),))))]
            frames += [(Channel.SAMPLER, codec.encode(Sample(parts=(_readings(at),))))]
            span = PhaseSpan(path="update", start=at * SECOND, end=(at + 5) * SECOND)
            pulse = messages.Pulse(step=i, t=at * SECOND, phase="update", spans=(span,))
            frames += [(Channel.RUN, codec.encode(pulse))]
            frames += [(Channel.VIEWER, codec.encode(one)) for one in (*said[2 * i : 2 * i + 2], fetch)]
        return [*frames, *((Channel.VIEWER, codec.encode(one)) for one in (latest, query)), self._time]

    def mutated(self, data: bytes, random: Random) -> bytes:
        frames = split(data) or [self._rank_0]
        if random.random() < 0.15:
            frames += split(random.choice(self._sessions))
        for _ in range(random.randint(1, 3)):
            if random.random() < 0.2:
                frames = mutated_list(frames, random, [*self._frames, self._rank_0, self._viewer, self._time])
                continue
            if not frames:
                break
            at = random.randrange(len(frames))
            channel, body = frames[at]
            frames[at] = channel, _mutated_frame(body, random)
        return joined(frames)

    def run(self, data: bytes) -> int:
        world, count = World(self._ancestry), 0
        try:
            for channel, frame in split(data):
                count += channel != Channel.TIME
                with contextlib.suppress(WireError):
                    world.receive(channel, frame)
        finally:
            world.close()
        return count

    @staticmethod
    def _rows(seconds: int) -> Columns:
        values = {"loss": 0.5, RATE: 1e5, "iteration_s": 0.5, "phase/update": 0.3}
        stamps = range(seconds * SECOND, (seconds + 8) * SECOND, SECOND // 2)
        return pack("run/r1", [(t, i, values) for i, t in enumerate(stamps)])


def _readings(seconds: int) -> Columns:
    """Return eight seconds of readings of a GPU."""
    values = {
        "busy": 90.0, "power_w": 500.0, "sm_active": 80.0, "tensor_active": 30.0, "dram_active": 40.0,
        "memory_used_bytes": 4e10, "sm_clock_mhz": 1700.0, "energy_j": 1e4 + seconds,
    }  # fmt: skip
    return pack("gpu/GPU-1", [((seconds + i) * SECOND, -1, values) for i in range(8)])


def _mutated_frame(body: bytes, random: Random) -> bytes:
    if random.random() < 0.2:
        return mutated_bytes(body, random)
    try:
        tree = mutated_tree(msgspec.msgpack.decode(body), random)
        return msgspec.msgpack.encode(tree)[:0xFFFF]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, TypeError):
        return mutated_bytes(body, random)


def tags(data: bytes) -> Iterator[str]:
    """Yield what an input holds, for people."""
    for channel, body in split(data):
        yield f"{Channel(channel).name.lower()}: {body!r}"
