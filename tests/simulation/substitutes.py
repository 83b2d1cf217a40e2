"""What the code under test takes from the system, replaced by the simulated node's.

The modules `time`, `os`, `socket`, `threading`, `secrets`, `fcntl`, `sqlite3`, `signal`, `gc` and `zmq` are
replaced as attributes of the modules of hoptui that import them. The code itself is unchanged, and nothing is
paid for this outside of the simulation.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import importlib
import os
import platform
import secrets
import signal
import socket
import sqlite3
import struct
import sys
import threading
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import zmq

from hoptui.daemon.state.alert_book import FiredAlerts
from hoptui.daemon.state.gpu_ownership import Ancestry
from hoptui.domain.alert_settings import AlertSettings
from hoptui.domain.alerts import Alert
from hoptui.domain.outputs import OutputPart
from hoptui.model.store import Store
from hoptui.protocol.messages import FetchOutput, RunOutput
from tests.simulation.fabric import READ, Fabric, FakeContext, FakePoller
from tests.simulation.kernel import Kernel, Killed, Process, Signal, Task

USED = (
    "hoptui.client.client",
    "hoptui.client.session",
    "hoptui.daemon.server",
    "hoptui.recording.recording",
    "hoptui.sdk.daemon_link",
    "hoptui.sdk.run",
)
"""What is simulated. Their imports are loaded before anything is replaced."""
FIRST_FD = 1_000_000
"""File descriptors of the simulation are above all real ones."""

HOST = "SIMULATED_HOST"
"""The environment variable that names the node of a simulated process."""
FREE_DESCRIPTORS = 1000
"""Of each process. The sockets of the simulation take none."""


class Substitute:
    """Stands for a module: what is not replaced is the module's own."""

    def __init__(self, module: types.ModuleType, replaced: Mapping[str, Any]) -> None:
        self._module = module
        self.__dict__.update({**vars(module), **replaced})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class FakeEvent:
    """Stands for `threading.Event`."""

    kernel: Kernel

    def __init__(self) -> None:
        self._is_set = False
        self._signal = Signal(self.kernel)

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self.kernel.process.operate()
        self._is_set = True
        self._signal.set()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self.kernel.wait(self.is_set, [self._signal], 1e9 if timeout is None else timeout)


class FakeThread:
    """Stands for `threading.Thread`."""

    kernel: Kernel

    def __init__(self, target: Callable[[], object], name: str = "", daemon: bool = True) -> None:
        self._target, self._name = target, name
        self._task: Task | None = None

    @property
    def ident(self) -> int | None:
        return None if self._task is None else id(self._task)

    def start(self) -> None:
        self._task = self.kernel.start(self.kernel.process, self._name, self._target)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        assert task is not None, "cannot join a thread before it is started"
        self.kernel.wait(lambda: task.done, [task.joined], 1e9 if timeout is None else timeout)


class WakeEnd:
    """One end of a `socket.socketpair`, or a pidfd: `inbox` has what can be read."""

    def __init__(self, kernel: Kernel, number: int) -> None:
        self.number = number
        self.inbox: list[bytes] = []
        self.signal = Signal(kernel)
        self.other: WakeEnd | None = None
        self._kernel = kernel

    def fileno(self) -> int:
        return self.number

    def ready(self, flags: int) -> int:
        """Return which of `flags` are possible now: to read, if there is something."""
        return flags & READ if self.inbox else 0

    def setblocking(self, flag: bool) -> None:
        pass

    def send(self, data: bytes) -> int:
        self._kernel.process.operate()
        if self.other is None or len(self.other.inbox) > 200:
            raise BlockingIOError
        self.other.inbox.append(data)
        self.other.signal.set()
        return len(data)

    def recv(self, size: int) -> bytes:
        data, self.inbox[:] = b"".join(self.inbox), []
        return data

    def close(self) -> None:
        if self._kernel.current is not None and not self._kernel.process.alive:
            raise Killed


class SilentAlertWorker:
    """Stands for the thread of alerts, which reads files and starts programs. No alert is delivered."""

    def __init__(self, *_: object, **__: object) -> None:
        self.settings = AlertSettings()
        self.problem = None

    def start(self, timeout: float) -> None: ...

    def put(self, alert: Alert) -> None: ...

    def keep(self, state: FiredAlerts) -> None: ...

    def close(self, timeout: float) -> None: ...


class NoOutputFiles:
    """Stands for the thread that reads the files of stdout and stderr. Simulated processes have none."""

    def __init__(self, reply: Callable[[bytes, RunOutput], None]) -> None:
        self._reply = reply

    def follow(self, live: object, known: object) -> None: ...

    def ask(self, identity: bytes, asked: FetchOutput, copied: Collection[OutputPart]) -> None:
        parts = tuple(copied)
        self._reply(identity, RunOutput(id=asked.id, run=asked.run, rank=asked.rank, parts=parts))

    def close(self) -> None: ...


class SilentSampler:
    """Stands for a sampler whose machine has nothing to sample."""

    fds: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    problem = None

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def watch(self, watch: object) -> None:
        pass

    def tend(self, now: float) -> None:
        pass

    def close(self) -> None:
        pass


class Disk:
    """The disk of the node: `full` refuses to write, `slow_s` is how long a commit takes, `broken` reads and
    writes fail."""

    def __init__(self) -> None:
        self.full = False
        self.broken = False
        self.slow_s = 0.0
        self.commits = 0


class OnDisk(sqlite3.Connection):
    """A connection to a recording on the simulated disk. It is rolled back when its process is killed."""

    node: System
    process: Process
    path: str

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        disk, process = self.node.disk, self.process
        if not process.alive:
            raise Killed
        if statement == "COMMIT":
            process.operate()
            disk.commits += 1
            if disk.slow_s and self.node.kernel.current is not None:
                self.node.kernel.sleep(disk.slow_s)
            process.operate()
        if disk.broken and statement != "ROLLBACK":
            raise _sqlite_error(sqlite3.SQLITE_IOERR)
        if disk.full and statement.startswith(("COMMIT", "INSERT", "CREATE", "REPLACE")):
            raise _sqlite_error(sqlite3.SQLITE_FULL)
        done = super().execute(statement, *arguments)
        if statement == "COMMIT":
            self.node.date(self.path)
        return done

    def close(self) -> None:
        super().close()
        self.node.date(self.path)


def _sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("simulated")
    error.sqlite_errorcode = code
    return error


class System:
    """The system calls of a simulated node."""

    def __init__(self, kernel: Kernel, fabric: Fabric) -> None:
        self.kernel, self.fabric = kernel, fabric
        self.disk = Disk()
        self.numbers: dict[int, WakeEnd] = {}
        self.locks: dict[int, tuple[Process, int]] = {}  # inode -> holder, its file descriptor
        self._flocks: dict[int, Process] = {}  # by file descriptor
        self._connections: dict[type, Any] = {}
        self._dates: dict[str, int] = {}
        self._next = FIRST_FD

    # os, socket, fcntl, sqlite3 -----------------------------------------------------------------------------

    def pidfd_open(self, pid: int) -> int:
        self.kernel.process.operate()
        process = self.kernel.processes.get(pid)
        if process is None or not process.alive:
            raise ProcessLookupError
        end = self.pipe()

        def over(killed: bool) -> None:
            end.inbox.append(b"")
            end.signal.set()

        process.at_end.append(over)
        return end.number

    def close_fd(self, number: int) -> None:
        if number < FIRST_FD:
            for inode, (_, held) in list(self.locks.items()):
                if held == number:
                    del self.locks[inode]
            self._flocks.pop(number, None)
            os.close(number)

    def socketpair(self) -> tuple[WakeEnd, WakeEnd]:
        one, two = self.pipe(), self.pipe()
        one.other, two.other = two, one
        return one, two

    def lockf(self, number: int, how: int) -> None:
        inode = os.fstat(number).st_ino
        holder = self.locks.get(inode)
        if holder is not None and holder[0].alive:
            raise BlockingIOError(errno.EAGAIN, "locked")
        process = self.kernel.process
        self.locks[inode] = process, number
        process.at_end.append(lambda killed: self._unlock(inode, process, number, killed))

    def flock(self, number: int, how: int) -> None:
        """Lock an open file, really: each descriptor has a lock of its own, also in one process."""
        fcntl.flock(number, how)
        process = self.kernel.process
        if number not in self._flocks:
            process.at_end.append(lambda killed: self._release(number, process) if killed else None)
        self._flocks[number] = process

    def _release(self, number: int, process: Process) -> None:
        """Close the descriptor of a process that was killed, unless its threads have closed it."""

        def close() -> None:
            if self._flocks.get(number) is process:
                self.close_fd(number)

        self.kernel.after(1e-3, close)

    def lock_state(self, file: int, what: int, wanted: bytes) -> bytes:
        assert what == fcntl.F_GETLK, what
        holder = self.locks.get(os.fstat(file).st_ino)
        held = holder is not None and holder[0].alive
        pid = holder[0].pid if holder is not None else 0
        return struct.pack("@hhqqi", fcntl.F_WRLCK if held else fcntl.F_UNLCK, 0, 0, 0, pid)

    def connect(self, *arguments: Any, **options: Any) -> Any:
        if self.kernel.current is None or arguments[0] == ":memory:":  # an invariant, or no file
            return sqlite3.connect(*arguments, **options)
        if self.disk.full and self.kernel.random.random() < 0.5:
            raise _sqlite_error(sqlite3.SQLITE_FULL)
        own = options.pop("factory", sqlite3.Connection)
        options["check_same_thread"] = False  # each process may end in any thread
        kind = self._connections.setdefault(own, type("Connection", (OnDisk, own), {}))
        db: Any = sqlite3.connect(*arguments, factory=kind, **options)
        process = self.kernel.process
        db.node, db.process, db.path = self, process, str(arguments[0])
        self.date(db.path)

        def over(killed: bool) -> None:
            with contextlib.suppress(sqlite3.Error):
                sqlite3.Connection.rollback(db)
            self.kernel.after(1e-3, closed)

        def closed() -> None:
            sqlite3.Connection.close(db)
            self.date(db.path)

        process.at_end.append(over)
        return db

    def date(self, path: str) -> None:
        """Let a recording be as old as the simulated wall clock says, if it has been written since."""
        for file in (path, f"{path}-wal"):
            with contextlib.suppress(OSError):  # a reader names it by a URI, and it need not be there
                if os.stat(file).st_mtime_ns != self._dates.get(file):  # noqa: PTH116 - a string, many times
                    self._dates[file] = self.kernel.now_ns + self.kernel.wall_offset_ns
                    os.utime(file, ns=(self._dates[file], self._dates[file]))

    def process_started(self, pid: int) -> int | None:
        process = self.kernel.processes.get(pid)
        return pid if process is not None and process.alive else None

    def pipe(self) -> WakeEnd:
        """Return what the daemon polls of a pipe."""
        self._next += 1
        end = self.numbers[self._next] = WakeEnd(self.kernel, self._next)
        return end

    def _unlock(self, inode: int, process: Process, number: int, killed: bool) -> None:
        if self.locks.get(inode, (None, 0))[0] is process:
            del self.locks[inode]
            if killed:
                with contextlib.suppress(OSError):
                    os.close(number)

    # installation -------------------------------------------------------------------------------------------

    def substitutes(self) -> dict[types.ModuleType, Any]:
        """Return what stands for each module."""
        kernel = self.kernel
        context = type("Context", (FakeContext,), {"fabric": self.fabric})
        poller = type("Poller", (FakePoller,), {"fabric": self.fabric, "by_number": self.numbers})
        os_like = _Os(self)
        clock = {
            "monotonic": lambda: kernel.tick() / 1e9,
            "monotonic_ns": kernel.tick,
            "perf_counter": lambda: kernel.tick() / 1e9,
            "time": lambda: (kernel.tick() + kernel.wall_offset_ns) / 1e9,
            "time_ns": lambda: kernel.tick() + kernel.wall_offset_ns,
            "clock_gettime": lambda _: kernel.tick() / 1e9,
            "sleep": kernel.sleep,
        }
        no_signals = {"signal": lambda *_: None, "set_wakeup_fd": lambda *_, **__: -1}
        return {
            time: Substitute(time, clock),
            os: os_like,
            socket: Substitute(socket, {"socketpair": self.socketpair}),
            threading: Substitute(
                threading,
                {
                    "Event": type("Event", (FakeEvent,), {"kernel": kernel}),
                    "Thread": type("Thread", (FakeThread,), {"kernel": kernel}),
                },
            ),
            secrets: Substitute(
                secrets,
                {
                    "token_hex": lambda size: kernel.random.randbytes(size).hex(),
                    "choice": kernel.random.choice,
                },
            ),
            fcntl: Substitute(fcntl, {"lockf": self.lockf, "flock": self.flock, "fcntl": self.lock_state}),
            sqlite3: Substitute(sqlite3, {"connect": self.connect}),
            platform: Substitute(platform, {"node": lambda: kernel.process.environ[HOST]}),
            signal: Substitute(signal, no_signals),
            gc: Substitute(gc, {"freeze": lambda: None, "collect": lambda: 0}),
            zmq: Substitute(zmq, {"Context": context, "Poller": poller}),
        }

    @contextlib.contextmanager
    def installed(self, start_daemon: Callable[[Any], None], sampler: type | None = None) -> Iterator[None]:
        """Let the modules of hoptui use this node. `sampler` stands for the processes that read its GPUs."""
        for name in USED:
            importlib.import_module(name)
        from hoptui.daemon import descriptors, process_watch, sampler_supervisor, server
        from hoptui.daemon.handlers import runs
        from hoptui.node import identity, processes
        from hoptui.sdk import daemon_link, details, ranks, run_core

        instead = self.substitutes()
        changed: list[tuple[Any, str, Any]] = []

        def replace(owner: Any, name: str, value: Any) -> None:
            changed.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

        by_id = {id(module): value for module, value in instead.items()}
        for module_name, module in list(sys.modules.items()):
            if module_name.partition(".")[0] == "hoptui":
                for name, value in list(vars(module).items()):
                    if isinstance(value, types.ModuleType) and id(value) in by_id:
                        replace(module, name, by_id[id(value)])
        replace(server, "AlertWorker", SilentAlertWorker)
        replace(server, "OutputFiles", NoOutputFiles)
        if sampler is None:
            replace(server, "Sampler", SilentSampler)
        else:
            replace(sampler_supervisor, "SamplerProcess", sampler)
        replace(server, "Ancestry", lambda: Ancestry(Path("/nowhere")))
        script = {"argv": ["train.py"], "orig_argv": ["python", "train.py"], "modules": {}}
        for module in (daemon_link, details):  # what this process has imported must not show
            replace(module, "sys", Substitute(sys, script))
        replace(descriptors, "free", lambda: FREE_DESCRIPTORS)
        for module in (runs, process_watch):
            replace(module, "process_started", self.process_started)
        replace(processes, "start_daemon", start_daemon)
        replace(identity, "_identity", lambda _: f"{self.kernel.process.environ[HOST]:0>16}")
        replace(ranks, "next_prefix", lambda: "0/")  # each process has one run
        replace(run_core, "_runs", _RunsOfProcesses(self.kernel))
        replace(Store.__init__, "__defaults__", (self.kernel.tick,))
        sys.modules["zmq"] = instead[zmq]  # the link imports it when it starts
        try:
            yield
        finally:
            sys.modules["zmq"] = zmq
            for owner, name, value in reversed(changed):
                setattr(owner, name, value)
            run_core._open.clear()


class _RunsOfProcesses:
    """The last run of each name: of the simulated process that looks, as all of them are in this process."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._found: dict[tuple[int, str], Any] = {}

    def get(self, name: str) -> Any:
        return self._found.get((self._kernel.process.pid, name))

    def __setitem__(self, name: str, record: Any) -> None:
        self._found[self._kernel.process.pid, name] = record


class _Os:
    """Stands for `os`: each simulated process has its own number, environment and random bytes."""

    def __init__(self, system: System) -> None:
        kernel = system.kernel
        self.__dict__.update(vars(os))
        self._kernel = kernel
        self.getpid = lambda: kernel.process.pid
        self.urandom = lambda size: kernel.random.randbytes(size)
        self.pidfd_open = system.pidfd_open
        self.close = system.close_fd

    @property
    def environ(self) -> dict[str, str]:
        return self._kernel.process.environ

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)
