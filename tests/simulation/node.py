"""A simulated node: it starts and ends the daemon, training runs and viewers, all of them real code."""

from __future__ import annotations

import itertools
import logging
import math
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
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
from tests.simulation.fabric import Fabric
from tests.simulation.kernel import Kernel, Killed, Process
from tests.simulation.ranks import Job
from tests.simulation.samplers import SimulatedSampler
from tests.simulation.substitutes import HOST, System
from tests.simulation.trainer import Trainer
from tests.simulation.truth import Given, Truth, Value
from tests.simulation.tuned import ServicesTruth

IDLE_S = 30.0


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
    """One machine with its processes. The first one is a context manager, also for those beside it."""

    def __init__(
        self,
        seed: int | str,
        *,
        timings: Timings = DEFAULT,
        serves: bool = False,
        first: Node | None = None,
        host: str = "simulated",
    ) -> None:
        self.kernel: Kernel = first.kernel if first else Kernel(seed)
        self.fabric: Fabric = first.fabric if first else Fabric(self.kernel)
        self.system: System = first.system if first else System(self.kernel, self.fabric)
        self.truth: Truth = first.truth.of_another_node() if first else Truth()
        self.host = host
        self.nodes: list[Node] = first.nodes if first else []
        """All nodes that are simulated together: `first` and those that were given it."""
        self.nodes.append(self)
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
        self.server_process: Process | None = None
        """The process of `server`."""
        self.at_next_daemon: Callable[[Process], None] | None = None
        """Called once, when a daemon has bound its sockets."""
        self.settling = False
        self.auditor: Viewer | None = None
        self.tuner: Viewer | None = None
        self._values: itertools.count[int] = first._values if first else itertools.count(1)
        self._installed: AbstractContextManager[None] = nullcontext()
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
        for node in self.nodes[1:]:
            node._files.cleanup()
        self._installed.__exit__(None, None, None)
        logger = logging.getLogger("hoptui")
        logger.removeHandler(self.complaints)
        logger.propagate = self._logging[0]
        self._files.cleanup()

    def environ(self) -> dict[str, str]:
        return {
            "HOPTUI_DIR": str(self.where.directory),
            "HOPTUI_STATE_DIR": str(self.where.state),
            HOST: self.host,
        }

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
        auditor, kernel = self.end_faults(), self.kernel
        kernel.run(10.0)
        if self.serves:  # a tuner that goes on may turn the knobs while they are compared
            for trainer in self.trainers:
                auditor.use(lambda client, run=trainer.id: client.tune(run, "stop"))  # type: ignore[misc]
        kernel.run(seconds)

    def end_faults(self) -> Viewer:
        """End all faults, and let a new viewer look, which is returned."""
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
        self.auditor = auditor = self.view("auditor")
        return auditor

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
        """Start a daemon, as a run or a viewer does, on the node of this directory. It takes a moment."""
        wait = self.kernel.random.uniform(0.05, 0.4)
        node = next((node for node in self.nodes if node.where == where), self)
        self.kernel.after(wait, lambda: node.daemons.append(node._daemon()))

    def _daemon(self) -> Process:
        def main() -> None:
            try:
                server = Server(addresses(), IDLE_S, timings=self.timings)
            except AlreadyRunningError:
                return
            aside = server._archive._history._aside
            self.truth.left_aside += [(self.kernel.seconds, path.stem) for path in aside]
            self.server, self.server_process = server, process
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
