"""A node of its own for each test that needs one: directories, a daemon on demand, real runs, and nothing
left behind."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil
import pytest
import zmq

from hoptui.node import processes
from hoptui.node.addresses import Addresses, addresses
from hoptui.protocol import codec, messages

pytest_plugins = ["tests.golden", "tests.slurm_cluster"]

T = TypeVar("T")
DEADLINE_S = 15.0
HEARD_EVERY_S = 5.0
"""The daemon takes a viewer that is silent for `Timings.gone_s` for one that has left."""

SCRIPT = """
import sys, time, hoptui
run = hoptui.connect("toy")
grad_accum = run.knob("grad_accum", 4, min=1, max=64, effect="speed")
lr = run.knob("lr", 3e-4, min=1e-6, max=1e-1, scale="log")
for i in run.iterations():
    with run.phase("update"):
        time.sleep(0.01)
    run.log(samples=100 * grad_accum.value, loss=1.0 / (i + 1))
"""


def until(
    check: Callable[[], T | Literal[False, "", 0] | None], *, seconds: float = DEADLINE_S, what: str = ""
) -> T:
    """Wait for `check` to return something true, and return it; fail when the time is up."""
    end = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for {what or check}"
        time.sleep(0.01)


class RawViewer:
    """A viewer in twenty lines: sends one message, waits for an answer of a kind, keeps the rest."""

    def __init__(self, where: Addresses, name: str = "test", kind: Any = "person") -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(f"ipc://{where.viewers}")
        self.heard: list[messages.ToViewer] = []
        self.name = name
        self.kind = kind
        self.numbers = 0
        self.hello()

    def hello(self) -> messages.ViewerWelcome:
        hello = messages.ViewerHello(
            protocol=messages.PROTOCOL, viewer=self.name, client=self.name, kind=self.kind, records=True
        )
        return self.ask(hello, messages.ViewerWelcome)

    def send(self, message: messages.FromViewer) -> None:
        self.socket.send(codec.encode(message))

    def receive(self, seconds: float = DEADLINE_S) -> messages.ToViewer:
        assert self.socket.poll(int(seconds * 1000)), "no answer"
        message = codec.to_viewer([self.socket.recv()])
        self.heard.append(message)
        return message

    def ask(self, message: messages.FromViewer, kind: type[T]) -> T:
        self.send(message)
        return self.wait_for(kind)

    def wait_for(
        self, kind: type[T], good: Callable[[T], bool] = lambda _: True, seconds: float = DEADLINE_S
    ) -> T:
        end = time.monotonic() + seconds
        while True:
            message = self.receive(max(0.0, end - time.monotonic()))
            if isinstance(message, kind) and good(message):
                return message

    def fetch(self, **fields: Any) -> messages.Delta:
        self.numbers += 1
        fields = {"wait_s": 0.0} | fields
        number = self.numbers
        self.send(messages.Fetch(id=number, **fields))
        return self.wait_for(messages.Delta, lambda d: d.id == number)

    def state(self) -> messages.NodeState:
        node = self.fetch(state=0).node
        assert node is not None
        return node

    def run(self, name: str = "toy") -> messages.RunState:
        """The newest run of this name, once it is there."""
        return until(
            lambda: next((r for r in reversed(self.state().runs) if r.name == name), None), what=name
        )

    def vital(self, run: str) -> messages.Vital:
        return self.fetch().vitals[run]

    def command(self, run: messages.RunState, verb: Any = "set", **fields: Any) -> str:
        """Send a command; returns its id."""
        self.numbers += 1
        made: dict[str, Any] = {"id": f"{self.name}-{os.getpid()}-{self.numbers}", "epoch": run.epoch}
        fields = made | fields
        self.send(messages.Command(run=run.run, verb=verb, **fields))
        return str(fields["id"])

    def outcome(self, command: str, seconds: float = DEADLINE_S) -> messages.CommandRecord:
        """What became of a command in the end."""
        return self.record(command, lambda record: record.stage in messages.FINAL, seconds)

    def record(
        self, command: str, check: Callable[[messages.CommandRecord], bool], seconds: float = DEADLINE_S
    ) -> messages.CommandRecord:
        """The record of a command that the daemon sent by itself, once it is as wanted. Stays a viewer."""

        def found(message: object) -> list[messages.CommandRecord]:
            pushed = message.commands if isinstance(message, messages.Delta) and not message.id else ()
            return [record for record in pushed if record.id == command and check(record)]

        end = time.monotonic() + seconds
        while not (heard := [record for message in self.heard for record in found(message)]):
            left = end - time.monotonic()
            assert left > 0, f"no such record of {command}"
            if self.socket.poll(int(1000 * min(left, HEARD_EVERY_S))):
                self.receive()
            else:
                self.fetch()
        return heard[0]

    def close(self) -> None:
        """Vanish without a word."""
        self.context.destroy(linger=0)


class TestNode:
    """Directories of its own, processes that are always reaped, and the daemon that they start."""

    __test__ = False

    def __init__(self, where: Addresses) -> None:
        self.where = where
        self.environment = {
            **os.environ,
            "HOPTUI_DIR": str(where.directory),
            "HOPTUI_STATE_DIR": str(where.state),
            "HOPTUI_IDLE_S": "20",
        }
        self.environment.pop("HOPTUI", None)
        self._children: list[subprocess.Popen[str]] = []
        self._viewers: list[RawViewer] = []

    def start(self, script: str = SCRIPT, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """A Python process on this node."""
        return self.spawn([sys.executable, "-c", script, *arguments], **environment)

    def spawn(self, command: list[str], **environment: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            command,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._children.append(child)
        return child

    def viewer(self, name: str = "test", **fields: Any) -> RawViewer:
        """A viewer on this node; starts the daemon if there is none."""
        self.daemon()
        viewer = RawViewer(self.where, name, **fields)
        self._viewers.append(viewer)
        return viewer

    def daemon(self) -> int:
        """The daemon's pid; starts it if there is none."""
        if not processes.daemon_lives(self.where):
            processes.start_daemon(self.where)
        return until(self.daemon_pid, what="the daemon")

    def daemon_pid(self) -> int:
        """The pid of the daemon that serves now, 0 if there is none."""
        try:
            pid = int(json.loads(self.where.info.read_text())["pid"])
        except (OSError, ValueError):
            return 0
        return pid if processes.daemon_lives(self.where) and self.where.viewers.exists() else 0

    def hoptui(self, *arguments: str, seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
        """The command line, as a person would call it."""
        return subprocess.run(
            [sys.executable, "-m", "hoptui", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def status_at_end(self, run: str, *, seconds: float = DEADLINE_S) -> dict[str, Any]:
        """The status of a run once the daemon knows why it ended: a moment after its process, or later."""

        def ended() -> dict[str, Any] | None:
            done = self.hoptui("status", run, "--json")
            status: dict[str, Any] | None = json.loads(done.stdout) if done.returncode == 0 else None
            return status if status and status["exit"] else None

        return until(ended, seconds=seconds, what=f"the end of {run}")

    def close(self) -> None:
        for viewer in self._viewers:
            viewer.close()
        for child in self._children:
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)
                child.kill()
            child.communicate(timeout=10)
        left = [p for p in psutil.process_iter(["environ"]) if self._ours(p)]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself meanwhile
                process.kill()
        until(lambda: all(_over(p) for p in left), what="the end of every process")

    def _ours(self, process: psutil.Process) -> bool:
        if process.pid == os.getpid():
            return False
        found = (process.info.get("environ") or {}).get("HOPTUI_DIR")
        return found == str(self.where.directory)


def over(pid: int) -> bool:
    """Whether this process has ended, reaped or not."""
    try:
        return _over(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def _over(process: psutil.Process) -> bool:
    """Gone, or waiting for whoever adopted it to notice."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pytest_sessionstart() -> None:
    """Collecting tests imports and makes much that stays: to look for garbage in it takes as long as the
    rest. A shell that starts the tests in the background has SIGINT ignored, also in all their processes."""
    gc.disable()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(autouse=True)
def _hoptui_stays_on() -> Iterator[None]:
    """A test that switches hoptui off in this process does so for itself alone."""
    before = os.environ.get("HOPTUI")
    yield
    assert os.environ.get("HOPTUI") == before, "the test has changed HOPTUI for those behind it"


@pytest.fixture(autouse=True)
def _no_former_runs() -> Iterator[None]:
    """A run of a test does not continue one of a test before that has the same name."""
    yield
    if (core := sys.modules.get("hoptui.sdk.run_core")) is not None:
        core._runs.clear()


@pytest.fixture(scope="module", autouse=True)
def _garbage_is_of_one_file() -> None:
    """What stays from imports and earlier files is looked through no more: with torch's modules that takes a
    second each time."""
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def new_node() -> Iterator[TestNode]:
    """A node of its own: no daemon yet."""
    base = Path(tempfile.mkdtemp(prefix="hoptui-test-"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOPTUI_DIR", str(base / "run"))
        environment.setenv("HOPTUI_STATE_DIR", str(base / "state"))
        environment.setenv("HOPTUI_IDLE_S", "20")
        environment.delenv("HOPTUI", raising=False)
        found = TestNode(addresses())
        try:
            yield found
        finally:
            found.close()
            shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def node() -> Iterator[TestNode]:
    with new_node() as found:
        yield found
