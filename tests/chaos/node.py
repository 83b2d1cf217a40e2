"""The processes of one node under test, what is done to them, and how much they use."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.audited_run import Ledger
from benchmarks.measure import Bench, until
from hoptui.client.session import Session, Unreachable
from hoptui.node.addresses import Addresses
from hoptui.node.processes import lock_holder
from hoptui.protocol.messages import Delta
from tests.chaos.viewer import Journal

RUN_HZ = 50.0
SAMPLE_S = 0.25
LIMIT_S = 60.0


@dataclass
class Actor:
    """A process under test. `stopped` are the spans in which a fault suspended it, in monotonic ns."""

    kind: str
    name: str
    number: int
    child: subprocess.Popen[str]
    path: Path
    rank: int = 0
    killed: int = 0
    stopped: list[list[int]] = field(default_factory=list)
    began: int = field(default_factory=time.monotonic_ns)
    errors: Path = Path(os.devnull)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.path)

    @property
    def journal(self) -> Journal:
        return Journal(self.path)

    @property
    def alive(self) -> bool:
        return self.child.poll() is None

    @property
    def run(self) -> str:
        """The id of its run, "" before it has connected."""
        identity = self.ledger.identity
        return str(identity["run"]) if identity else ""

    def was_stopped(self, start: int, end: int) -> bool:
        """Return whether it was suspended at some time between two stamps."""
        return any(begin <= end and (over or end) >= start for begin, over in self.stopped)


@dataclass
class Usage:
    """What a process used at most, and at the first and the last look."""

    kind: str
    first_mib: float
    most_mib: float = 0.0
    last_mib: float = 0.0
    most_files: int = 0
    last_files: int = 0


class ChaosNode:
    """A node of its own. `disturbed` holds every fault: name, start and end in monotonic ns."""

    def __init__(self, bench: Bench, where: Addresses, environment: Mapping[str, str]) -> None:
        self.bench, self.where = bench, where
        self.environment = dict(environment)
        self.actors: list[Actor] = []
        self.disturbed: list[tuple[str, int, int]] = []
        self.usage: dict[int, Usage] = {}
        self.dropped: dict[tuple[str, int], int] = {}  # by run and pid, the most that a daemon has counted
        self.without_daemon_s = self.longest_without_daemon_s = 0.0
        self._numbers = 0
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    # processes ----------------------------------------------------------------------------------------------

    def start(
        self,
        kind: str,
        *command: str,
        environment: Mapping[str, str] | None = None,
    ) -> Actor:
        """Start a process. `PATH` and `NUMBER` in its arguments become its file and its number."""
        self._numbers += 1
        name = f"{kind}-{self._numbers}"
        path, errors = self.bench.base / name, self.bench.base / f"{name}.stderr"
        places = {"PATH": str(path), "NUMBER": str(self._numbers)}
        arguments = [places.get(word, word) for word in command]
        with errors.open("w") as file, path.with_suffix(".stdout").open("w") as output:
            child = subprocess.Popen(
                [sys.executable, *arguments],
                env={**self.bench.environment, **self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=file,
                text=True,
            )
        self.bench.children.append(child)
        found = Actor(kind, name, self._numbers, child, path, errors=errors)
        self.actors.append(found)
        return found

    def start_run(self, hz: float = RUN_HZ, *, after: Actor | None = None, **more: str) -> Actor:
        """Start an audited run, or the next process of the run `after`."""
        module = ("-m", "benchmarks.audited_run", "PATH", "audited", str(hz), "NUMBER")
        found = self.start("run", *module, environment=more | _continued(after))
        until(lambda: found.ledger.identity or not found.alive, LIMIT_S, "a run")
        found.began = time.monotonic_ns()  # imports take seconds
        return found

    def start_control(self, hz: float = RUN_HZ) -> Actor:
        """Start the same training without hoptui."""
        module = ("-m", "benchmarks.audited_run", "PATH", "control", str(hz), "NUMBER")
        found = self.start("control", *module, environment={"HOPTUI": "off"})
        until(lambda: found.ledger.identity, LIMIT_S, "the control run")
        found.began = time.monotonic_ns()
        return found

    def start_ranks(self, *, after: Actor | None = None) -> list[Actor]:
        """Start a run of two processes, or the next ones of the run `after`."""
        folder = self.bench.base / f"ranks-{self._numbers}"
        folder.mkdir()
        found = []
        for rank in range(2):
            module = ("-m", "tests.chaos.ranks", str(rank), str(folder), "PATH", str(RUN_HZ), "NUMBER")
            found.append(self.start("rank", *module, environment=_continued(after)))
            found[-1].rank = rank
        until(lambda: all(a.ledger.identity or not a.alive for a in found), LIMIT_S, "two ranks")
        return found

    def start_viewer(self, per_s: float = 1.0, *, starts_daemon: bool = False) -> Actor:
        """Start a viewer that gives so many commands a second."""
        starts = ("START",) if starts_daemon else ()
        return self.start("viewer", "-m", "tests.chaos.viewer", "PATH", "NUMBER", str(per_s), *starts)

    def start_trainer(self, iterations: int, **more: str) -> Actor:
        """Start the PPO trainer with its tiny preset. Its result depends on the seed alone."""
        options = ("--preset", "tiny", "--device", "cpu", "--threads", "1", "--json", "--iterations")
        return self.start(
            "trainer", "-m", "hoptui", "train", "ppo", *options, str(iterations), environment=more
        )

    def of(self, kind: str) -> list[Actor]:
        """The living processes of a kind."""
        return [actor for actor in self.actors if actor.kind == kind and actor.alive]

    def of_all(self, kind: str) -> list[Actor]:
        """The processes of a kind, also those that have ended."""
        return [actor for actor in self.actors if actor.kind == kind]

    @property
    def daemon(self) -> int:
        """The pid of the daemon, 0 if there is none."""
        return max(0, lock_holder(self.where) or 0)

    def samplers(self) -> list[int]:
        """The pids of the daemon's samplers."""
        with contextlib.suppress(psutil.Error):
            return [child.pid for child in psutil.Process(self.daemon).children()] if self.daemon else []
        return []

    def session(self) -> Session:
        """A blocking viewer, which starts a daemon if there is none."""
        return Session(self.where, client="auditor", start_daemon=True, timeout_s=20.0)

    def fetch(self) -> Delta:
        """What the daemon knows now; of the next one if this one is killed meanwhile."""

        def found() -> Delta | None:
            with contextlib.suppress(Unreachable), self.session() as session:
                return session.fetch()
            return None

        delta: Delta = until(found, LIMIT_S, "an answer of a daemon")
        for run in delta.node.runs if delta.node else ():
            told = delta.vitals[run.run].dropped if run.run in delta.vitals else 0
            self.dropped[run.run, run.pid] = max(told, self.dropped.get((run.run, run.pid), 0))
        return delta

    def state_of(self, actor: Actor) -> str:
        """The state of a run as the daemon shows it, "" if it is unknown."""
        vital = self.fetch().vitals.get(actor.run)
        return vital.state if vital else ""

    # faults -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def disturbance(self, name: str) -> Iterator[None]:
        """Note that a fault is in effect, until the end of the block."""
        began = time.monotonic_ns()
        try:
            yield
        finally:
            self.disturbed.append((name, began, time.monotonic_ns()))

    def quiet(self, start: int, end: int, *names: str) -> bool:
        """Return whether no fault (of these names, else of any) was in effect between two stamps."""
        mine = (fault for fault in self.disturbed if not names or fault[0] in names)
        return not any(begin <= end and over >= start for _, begin, over in mine)

    def kill(self, actor: Actor) -> None:
        """SIGKILL."""
        actor.killed = time.monotonic_ns()
        actor.child.kill()
        actor.child.wait()

    @contextlib.contextmanager
    def stop(self, actor: Actor) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end of the block."""
        span = [time.monotonic_ns(), 0]
        actor.stopped.append(span)
        send(actor.child.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            send(actor.child.pid, signal.SIGCONT)
            span[1] = time.monotonic_ns()

    # usage --------------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        last = time.monotonic()
        while not self._over.wait(SAMPLE_S):
            daemon, now = self.daemon, time.monotonic()
            hosts = [a for a in self.of("run") if not a.was_stopped(time.monotonic_ns(), time.monotonic_ns())]
            absent = not daemon and any(a.run for a in hosts)
            self.without_daemon_s = self.without_daemon_s + now - last if absent else 0.0
            self.longest_without_daemon_s = max(self.longest_without_daemon_s, self.without_daemon_s)
            last = now
            for kind, pid in [("daemon", daemon), *((a.kind, a.child.pid) for a in self.actors if a.alive)]:
                if pid:
                    self._look(kind, pid)

    def _look(self, kind: str, pid: int) -> None:
        try:
            process = psutil.Process(pid)
            mib, files = process.memory_info().rss / 2**20, process.num_fds()
        except psutil.Error:
            return
        used = self.usage.setdefault(pid, Usage(kind, mib))
        used.most_mib, used.last_mib = max(used.most_mib, mib), mib
        used.most_files, used.last_files = max(used.most_files, files), files

    def close(self) -> None:
        """End the thread. The bench ends the processes."""
        self._over.set()
        self._sampler.join(10)


def _continued(after: Actor | None) -> dict[str, str]:
    """The environment of the next process of a run."""
    identity = after.ledger.identity if after is not None else None
    return {"AUDITED_RUN": json.dumps(identity["state"])} if identity else {}


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
