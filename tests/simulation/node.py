"""A simulated node: it starts and ends the daemon, training runs and viewers, all of them real code."""

from __future__ import annotations

import itertools
import logging
import math
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec
from msgspec import structs

from hoptui.client.client import Client
from hoptui.client.conversation import Conversation
from hoptui.daemon.server import Server
from hoptui.daemon.sockets import AlreadyRunningError
from hoptui.domain.facts import nested
from hoptui.domain.pacing import DEFAULT, Timings
from hoptui.node.addresses import Addresses, addresses
from hoptui.protocol.messages import FATE_UNKNOWN, FINAL, CommandRecord, Fetch, FromViewer
from hoptui.sdk.run import Run
from tests.simulation.fabric import Fabric
from tests.simulation.kernel import Kernel, Killed, Process
from tests.simulation.ranks import Job, Member
from tests.simulation.samplers import GPUS, SimulatedSampler
from tests.simulation.substitutes import System
from tests.simulation.truth import Call, Given, Incarnation, Setting, Truth, Value
from tests.simulation.tuned import ServicesTruth, TunedKnobs

IDLE_S = 30.0
LOW, HIGH = 0.0, 1e9


class Refused(ValueError):  # noqa: N818 - what a training script raises
    """The setter of the script does not want a value."""


class Trainer:
    """A training process: iterations of `iteration_s` with one knob, `lr`."""

    def __init__(
        self, node: Node, name: str, iteration_s: float, before: Trainer | None, member: Member | None = None
    ) -> None:
        self.node, self.name, self.iteration_s, self.member = node, name, iteration_s, member
        self.run: Run | None = None
        self.knobs: TunedKnobs | None = None
        self.at_next_change: Callable[[], object] | None = None
        """Called once, when a value has been set that stays."""
        self.others: list[Trainer] = []
        """The other ranks of this run, if it is rank 0."""
        self.ends = False
        self.leaves = False  # goes on without hoptui
        self.refuses = 0.0  # chance that the setter raises
        self.odd: float | None = before.odd if before else None
        """What another knob of the script reads back, None without that knob."""
        self.checkpoint: dict[str, Any] = dict(before.checkpoint) if before else {}
        self.was = Incarnation(len(node.truth.processes), node.kernel.seconds)
        self.was.rank = member.rank if member is not None else 0
        self.was.iteration_s = iteration_s
        node.truth.processes.append(self.was)
        if self.checkpoint:
            self.was.value = self.checkpoint["knobs"]["lr"]
        self._first = self.was.value
        environ = node.environ() | ({"CUDA_VISIBLE_DEVICES": GPUS[0]} if node.serves else {})
        self.process = node.kernel.spawn(f"run {name}", self._main, environ)
        self.was.pid = self.process.pid
        self.process.at_end.append(self._over)
        if member is not None:
            member.job.watch(self.process)

    @property
    def world(self) -> int:
        return 1 + len(self.others)

    @property
    def job(self) -> Job | None:
        """What its ranks share, None for one process."""
        return self.member.job if self.member is not None else None

    @property
    def id(self) -> str:
        return self.was.run

    @property
    def _epoch(self) -> int:
        """The restart that the run has at this moment. A welcome may raise it between two boundaries."""
        return self.run._core.state.epoch if self.run is not None else 0

    def _main(self) -> None:
        while self._program():
            self._replace()

    def _program(self) -> bool:
        """Train until the end. True if another program shall take over this process."""
        kernel, was = self.node.kernel, self.was
        self.run = run = Run(self.name, resume=self.checkpoint or None, ranks=self.member, stacks=False)
        self._name(run)
        self._note_pauses(run)
        run.on_checkpoint(lambda: self._call("checkpoint"))
        run.on_profile(lambda _: self._call("profile"))
        run.knob("lr", float(was.value), min=LOW, max=HIGH, apply=self._apply, read=lambda: was.value)
        kept = self.checkpoint.get("knobs", {})
        knobs = (
            TunedKnobs(self.node.services, run, kept, lambda: kernel.seconds) if self.node.serves else None
        )
        self.knobs, has_odd = knobs, False
        while self._goes_on(run) and not self.ends:
            self._name(run)
            if wanted := run.restart_wanted:
                if self.member is None:
                    self.checkpoint = run.state_dict()
                    self.checkpoint["knobs"].update(wanted)
                    run.hand_over("checkpoint")
                    return True
                run.refuse_restart("the ranks stay")
            if self.odd is not None and not has_odd:
                run.knob("odd", 1.0, apply=lambda _: None, read=lambda: self.odd)
                has_odd = True
            pace = knobs.pace if knobs is not None else 1.0
            kernel.sleep(self.iteration_s * pace * kernel.random.uniform(0.8, 1.2))
            run.log(loss=row_value(was.number, was.steps))
            if knobs is not None:
                run.log(samples=knobs.batch)
            was.steps += 1
            if self.member is not None:
                self.member.add_gradients()
            self.checkpoint = run.state_dict()
        run.close()
        was.closed = True
        return False

    def _replace(self) -> None:
        """As `os.execv` does: the same process begins another program."""
        kernel, before = self.node.kernel, self.was
        others = [task for task in self.process.tasks if task is not kernel.current]
        for task in others:
            kernel.wait(lambda task=task: task.done, [task.joined])  # type: ignore[misc]
        self._over(killed=False)
        self.was = Incarnation(len(self.node.truth.processes), kernel.seconds, value=before.value)
        self.was.iteration_s, self.was.pid = before.iteration_s, before.pid
        self.node.truth.processes.append(self.was)
        self._first = before.value
        kernel.sleep(kernel.random.uniform(0.5, 4.0))  # imports, and loads the checkpoint

    def _name(self, run: Run) -> None:
        """Note the id of the run, which is rank 0's."""
        job = self.member.job if self.member is not None else None
        if job is not None and self.was.rank == 0:
            job.run = run.id
        self.was.run = run.id if job is None else job.run

    def _goes_on(self, run: Run) -> bool:
        """Come to a boundary, unless this rank has left the run."""
        job = self.job
        if job is None or self.was.rank not in job.left:
            if job is None or not self.leaves:
                return self._boundary(run)
            job.left.add(self.was.rank)
            run.close()
        if job.broken:
            self.process.kill()
        return True

    def _boundary(self, run: Run) -> bool:
        began = self.node.kernel.seconds
        going_on = run.boundary(self.was.steps)
        ended = self.node.kernel.seconds
        was = self.was
        if self.member is not None and self.member.job.broken:
            self.process.kill()  # its collectives fail. A stop of this boundary was decided alone
        if not going_on and was.stopped_at is None:
            was.stopped_at, was.stopped_step = was.boundaries + 1, was.steps
            was.stopped_epoch = self._epoch
        was.boundaries += 1
        if self.knobs is not None and self.was.rank == 0:
            self.knobs.note()
        if not was.trail or was.trail[-1][1] != was.value:
            was.trail.append((was.boundaries, was.value))
        if ended - began > 0.5:
            self.was.waits.append((began, ended))
        return going_on

    def _apply(self, value: Value) -> None:
        kernel = self.node.kernel
        undo = value == self._first or any(
            s.value == value or in_effect(s.value) == value for s in self.was.settings
        )
        raises = not undo and kernel.random.random() < self.refuses
        self.was.settings.append(Setting(value, kernel.seconds, self._epoch, undo, raises))
        self.process.operate()
        self.was.value = in_effect(value)
        if raises:  # half done, so hoptui must undo it
            raise Refused("the script refuses it")
        if (call := self.at_next_change) is not None:
            self.at_next_change = None
            call()

    def _call(self, verb: str) -> str:
        """Write a checkpoint, or start a trace."""
        was, kernel = self.was, self.node.kernel
        raises = kernel.random.random() < self.refuses
        was.calls.append(Call(verb, was.boundaries + 1, kernel.seconds, self._epoch, raises))
        self.process.operate()
        if raises:
            raise Refused("the script refuses it")
        return call_path(was.number, len(was.calls) - 1)

    def _note_pauses(self, run: Run) -> None:
        """Look at which boundaries this rank waits because the run is paused."""
        meeting, was = run._core.meeting, self.was
        wait = meeting._wait_while_paused

        def noted() -> None:
            was.pauses.append(was.boundaries + 1)
            wait()

        meeting._wait_while_paused = noted  # type: ignore[method-assign]

    def _over(self, killed: bool) -> None:
        was = self.was
        was.ended_s, was.killed = self.node.kernel.seconds, killed
        state = self.run._core.state if self.run is not None else None
        link: Any = state.link if state is not None else None
        if state is not None and link is not None:
            was.dropped, was.doubted = link._buffer.dropped, link._buffer.doubted
            was.unfinished = max(0, state.rows_added - was.steps)


def in_effect(value: Value) -> Value:
    """Return what the script makes of a value: it cannot have every one."""
    return value + 0.25 if int(value) % 4 == 3 and value == int(value) else value


def call_path(process: int, call: int) -> str:
    """Return what the handler for checkpoints says that it wrote. No other call says the same."""
    return f"/checkpoint {process}/{call}"


def row_value(process: int, step: int) -> float:
    """Return what a process logs at an iteration. No other row of the simulation has it."""
    return process * 1e6 + step


class Viewer:
    """A person's dashboard: the real client, and what it has shown."""

    def __init__(self, node: Node, name: str, kind: Literal["person", "tuner"]) -> None:
        self.node, self.name, self.kind = node, name, kind
        self.client: Client | None = None
        self.shown: dict[str, list[CommandRecord]] = {}
        self.away: list[tuple[float, float]] = []
        """When it was suspended or gone, in seconds."""
        self.fell: list[str] = []
        """Which cursors fell."""
        self._final_s: dict[str, float] = {}
        self.process = node.kernel.spawn(f"viewer {name}", self._main, node.environ())

        self.process.at_end.append(lambda killed: self.away.append((node.kernel.seconds, 1e9)))

    def _main(self) -> None:
        self.client = client = Client(addresses(), client=self.name, on_change=self._changed)
        hello = client._conversation._hello
        client._conversation._hello = structs.replace(hello, kind=self.kind)
        self._note_cursors(client._conversation)
        client.start()
        self.node.kernel.wait(lambda: False, [])

    def act(self, what: str, run: str, value: Value | None = None, **details: Any) -> None:
        """Let the person give a command."""

        def give() -> None:
            client = self.client
            if client is None or (shown := client.store.run(run)) is None:
                return
            if what == "set":
                details.update(knob="lr")
            if value is not None:
                details.update(value=value)
            given = client.send(what, run, **details)  # type: ignore[arg-type]
            self.node.truth.given[given] = Given(
                id=given,
                run=run,
                epoch=shown.epoch,
                pid=shown.pid,
                verb=what,
                by=self.kind,
                value=value,
                viewer=self.name,
                at_s=self.node.kernel.seconds,
                hold_s=details.get("hold_s", 0.0),
                ttl_s=details.get("ttl_s", 600.0),
            )

        if self.process.alive:
            self.node.kernel.start(self.process, "person", give)

    def watch(self, run: str) -> None:
        """Let the person open the page of a run."""
        self.use(lambda client: client.watch(run))

    def use(self, do: Callable[[Client], object]) -> None:
        """Let the person do something with the dashboard."""
        if self.process.alive:
            self.node.kernel.start(self.process, "person", lambda: do(self.client) if self.client else None)

    def leave(self) -> None:
        """Let the person close the dashboard."""

        def close() -> None:
            if self.client is not None:
                self.client.close()
            self.process.exit()

        if self.process.alive:
            self.node.kernel.start(self.process, "person", close)

    def _note_cursors(self, talk: Conversation) -> None:
        """Look at what it asks for."""
        due, before = talk.due, dict[str, int]()

        def noted(now: float) -> list[FromViewer]:
            sent = due(now)
            for message in sent:
                if isinstance(message, Fetch) and not message.latest:
                    fallen = [s for s, cursor in message.cursors.items() if cursor < before.get(s, 0)]
                    self.fell += [f"{self.name} asks for rows of {source} again" for source in fallen]
                    before.clear()
                    before.update(message.cursors)
            return sent

        talk.due = noted  # type: ignore[method-assign]

    def was_away(self, start_s: float, end_s: float) -> bool:
        """Return whether it was suspended or gone in this time."""
        return any(start <= end_s and end >= start_s for start, end in self.away)

    def knew_end_s(self, command: str) -> float:
        """Return when this viewer knew the end of a command, infinity if never."""
        return self._final_s.get(command, math.inf)

    def took_s(self, command: str) -> float | None:
        """Return how long a command took until this viewer knew its end, None if it does not."""
        final, given = self._final_s.get(command), self.node.truth.given.get(command)
        return None if final is None or given is None else final - given.at_s

    def _changed(self, change: str) -> None:
        if change != "commands" or self.client is None:
            return
        for key, record in list(self.client.store.commands.items()):
            if record.stage in FINAL and not (record.unsaved or gave_up(record)):
                self.node.look_on_disk(record)
            seen = self.shown.setdefault(key, [])
            if not seen or _stage_shown(seen[-1]) != _stage_shown(record):
                seen.append(record)
                if record.stage in FINAL:
                    self._final_s.setdefault(key, self.node.kernel.seconds)


def _stage_shown(record: CommandRecord) -> tuple[str, bool]:
    """Return what a viewer shows as the stage: an unknown end is `voided` on the wire."""
    return record.stage, record.code == FATE_UNKNOWN


def gave_up(record: CommandRecord) -> bool:
    """Return whether a viewer alone has ended a command, because no daemon answered."""
    return (record.stage == "expired" and not record.code) or cause(record) == "no_answer"


def cause(record: CommandRecord) -> str:
    """Return the code of what is behind an unknown end, "" for none."""
    why = nested(record.fields.get("why"))
    return why.code if why is not None else ""


def _record_on_disk(path: Path, command: str) -> CommandRecord | None:
    """Return the record of a command that a kill of every process would leave in a recording."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            found = db.execute("SELECT record FROM commands WHERE id = ?", (command,)).fetchone()
    except sqlite3.OperationalError:  # there is no file, or nothing in it yet
        return None
    return msgspec.json.decode(found[0], type=CommandRecord) if found is not None else None


class Complaints(logging.Handler):
    """Keeps what the code under test logs about faults that it did not expect."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, Killed):
            return
        self.found.append(f"{record.getMessage()}: {type(error).__name__}: {error}")


class Node:
    """A context manager: one machine with its processes."""

    def __init__(self, seed: int | str, *, timings: Timings = DEFAULT, serves: bool = False) -> None:
        self.kernel = Kernel(seed)
        self.fabric = Fabric(self.kernel)
        self.system = System(self.kernel, self.fabric)
        self.truth = Truth()
        self.timings = timings
        self.serves = serves
        """Whether it has samplers, and knobs for the tuner."""
        self.services = ServicesTruth()
        self.samplers: list[SimulatedSampler] = []
        self.samplers_late_until_ns = 0
        self.complaints = Complaints()
        self.trainers: list[Trainer] = []
        self.viewers: list[Viewer] = []
        self.daemons: list[Process] = []
        self.server: Server | None = None
        self.at_next_daemon: Callable[[Process], None] | None = None
        """Called once, when a daemon has bound its sockets."""
        self.settling = False
        self.auditor: Viewer | None = None
        self.tuner: Viewer | None = None
        self._values = itertools.count(1)
        self._files = tempfile.TemporaryDirectory(
            prefix="sim", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
        )
        base = Path(self._files.name)
        base.chmod(0o700)
        self.where = Addresses(base / "d", base / "s")

    def __enter__(self) -> Node:
        logger = logging.getLogger("hoptui")
        self._logging = logger.propagate, logger.level
        logger.addHandler(self.complaints)
        logger.propagate = False
        sampler = type("Sampler", (SimulatedSampler,), {"node": self}) if self.serves else None
        self._installed = self.system.installed(self.start_daemon, sampler)
        self._installed.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kernel.close()
        self._installed.__exit__(None, None, None)
        logger = logging.getLogger("hoptui")
        logger.removeHandler(self.complaints)
        logger.propagate = self._logging[0]
        self._files.cleanup()

    def environ(self) -> dict[str, str]:
        return {"HOPTUI_DIR": str(self.where.directory), "HOPTUI_STATE_DIR": str(self.where.state)}

    def look_on_disk(self, record: CommandRecord) -> None:
        """Note whether the recording has an outcome that a viewer shows without a mark, or a later one."""
        if (record.id, record.stage) not in self.truth.kept:
            found = _record_on_disk(self.where.recording(record.run), record.id)
            kept = found is not None and (found.stage == record.stage or found.seq >= record.seq)
            self.truth.kept[record.id, record.stage] = kept

    def next_value(self) -> int:
        """Return a value that no other command has."""
        return next(self._values)

    def is_paused(self, given: Given, seconds: float) -> bool:
        """Return whether the run of a command was or may have been paused just after it was given."""
        pauses = [g for g in self.truth.given.values() if g.verb == "pause" and g.run == given.run]
        return any(-60.0 < p.at_s - given.at_s < seconds for p in pauses)

    def disturb(self, seconds: float) -> None:
        """Note a fault that may be felt for so long."""
        now = self.kernel.seconds
        self.truth.disturb(now, now + seconds)

    def fail_disk(self, seconds: float) -> None:
        """Note that the disk has a fault for so long."""
        now = self.kernel.seconds
        self.truth.disk.append((now, now + seconds))

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self.kernel.wall_offset_ns += int(seconds * 1e9)
        self.truth.jumps.append((self.kernel.seconds, seconds))

    def widen(self) -> None:
        """Let pipes hold what the sockets ask for again."""
        self.fabric.most = 1 << 30
        for pipe in self.fabric.pipes.values():
            pipe.up.most = pipe.down.most = 128

    def settle(self, seconds: float) -> None:
        """End all faults, let a new viewer look, and let time pass."""
        self.settling = True
        kernel, disk = self.kernel, self.system.disk
        kernel.preempts = 0.0
        self.widen()
        self.fabric.stalled_until_ns = self.fabric.slow_until_ns = self.samplers_late_until_ns = 0
        disk.full, disk.broken, disk.slow_s = False, False, 0.0
        for trainer in self.trainers:
            if trainer.job is not None:
                trainer.job.slow_until_ns = trainer.job.failing_until_ns = 0
        for process in kernel.processes.values():
            process.dies_at = 0
            if process.stopped:
                process.resume()
        self.auditor = self.view("auditor")
        kernel.run(10.0)
        if self.serves:  # a tuner that goes on may turn the knobs while they are compared
            for trainer in self.trainers:
                self.auditor.use(lambda client, run=trainer.id: client.tune(run, "stop"))  # type: ignore[misc]
        kernel.run(seconds)

    def finish(self) -> None:
        """Let the runs and the daemon end in good order."""
        for trainer in self.trainers:
            trainer.ends = True
        self.kernel.run(5.0 + 2 * max((t.iteration_s for t in self.trainers), default=0.0))
        for viewer in self.viewers:
            if viewer.process.alive:
                viewer.process.kill()
        self.kernel.run(IDLE_S + 20.0)

    # processes ----------------------------------------------------------------------------------------------

    def start_daemon(self, where: Addresses | None = None) -> None:
        """Start a daemon, as a run or a viewer does. It takes a moment."""
        wait = self.kernel.random.uniform(0.05, 0.4)
        self.kernel.after(wait, lambda: self.daemons.append(self._daemon()))

    def _daemon(self) -> Process:
        def main() -> None:
            try:
                server = Server(addresses(), IDLE_S, timings=self.timings)
            except AlreadyRunningError:
                return
            aside = server._archive._history._aside
            self.truth.left_aside += [(self.kernel.seconds, path.stem) for path in aside]
            self.server = server
            if (call := self.at_next_daemon) is not None and not self.settling:
                self.at_next_daemon = None
                call(process)
            server.run()

        def over(killed: bool) -> None:
            if killed:
                self.truth.daemon_died_s.append(self.kernel.seconds)

        process = self.kernel.spawn("daemon", main, self.environ())
        process.at_end.append(over)
        return process

    @property
    def living(self) -> list[Trainer]:
        """The runs whose rank 0 lives."""
        return [trainer for trainer in self.trainers if trainer.process.alive]

    @property
    def daemon(self) -> Process | None:
        """The daemon that lives, if any."""
        return next((d for d in reversed(self.daemons) if d.alive and self._holds(d)), None)

    def _holds(self, daemon: Process) -> bool:
        return any(holder is daemon for holder, _ in self.system.locks.values())

    def kill_daemon(self) -> None:
        """Kill the daemon that lives, if any."""
        if (daemon := self.daemon) is not None:
            self.disturb(20.0)
            daemon.kill()

    def train(self, name: str, iteration_s: float, before: Trainer | None = None, world: int = 1) -> Trainer:
        """Start a run of `world` processes, or the next processes of one that has ended."""
        world = before.world if before is not None else world
        job = Job(self.kernel, world) if world > 1 else None
        trainer = Trainer(self, name, iteration_s, before, job.member(0) if job else None)
        if job is not None:
            trainer.others = [
                Trainer(self, name, iteration_s, before, job.member(rank)) for rank in range(1, world)
            ]
        self.trainers.append(trainer)
        return trainer

    def view(self, name: str, kind: Literal["person", "tuner"] = "person") -> Viewer:
        viewer = Viewer(self, name, kind)
        self.viewers.append(viewer)
        return viewer


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of the code under test."""
    logger = logging.getLogger("hoptui")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
