"""The sampler as the daemon has it: a child process at the two ends of a pipe."""

from __future__ import annotations

import itertools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pynvml
import pytest

from hoptui.domain.columns import Columns
from hoptui.domain.devices import Devices, FromSampler, HostInfo, Sample, Watch
from hoptui.node.driver_probe import DRIVER, IDLE
from hoptui.protocol import codec
from hoptui.telemetry.nvml import NOT_ASKED
from tests.golden import Golden

DEADLINE_S = 20.0  # generous: the machine may be busy with other tests


class Child:
    """The parent's side of one sampler."""

    def __init__(self, what: tuple[str, ...], fds: tuple[int, ...], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hoptui.telemetry", *what],
            pass_fds=fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | environment,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.commands = self.process.stdin
        self.rows = self.process.stdout
        self._messages = self._read()

    def _read(self) -> Iterator[FromSampler]:
        framer = codec.Framer()
        while True:
            ready, _, _ = select.select([self.rows], [], [], DEADLINE_S)
            assert ready, "the sampler sends nothing"
            data = os.read(self.rows.fileno(), 1 << 16)
            if not data:
                return
            for frame in framer.feed(data):
                yield codec.from_sampler([frame])

    def next(self) -> FromSampler:
        """The next message; StopIteration when the child has closed its end."""
        return next(self._messages)

    def rows_of(self, source: str, count: int) -> list[Columns]:
        """The next `count` rows of a source."""
        found: list[Columns] = []
        end = time.monotonic() + DEADLINE_S
        while len(found) < count:
            assert time.monotonic() < end, f"only {len(found)} rows of {source}"
            message = self.next()
            if isinstance(message, Sample):
                found += [part for part in message.parts if part.source == source]
        return found

    def send(self, data: bytes) -> None:
        self.commands.write(data)
        self.commands.flush()

    def wait(self, seconds: float = DEADLINE_S) -> tuple[int, str]:
        """The exit status, and what it said on stderr."""
        assert self.process.stderr is not None
        code = self.process.wait(seconds)
        return code, self.process.stderr.read().decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """Starts samplers, and leaves none behind."""
    with ExitStack() as stack:

        def begin(*what: str, fds: tuple[int, ...] = (), **environment: str) -> Child:
            child = Child(what, fds, environment)
            stack.callback(child.close)
            return child

        yield begin


def test_it_speaks_first_then_obeys_watch_ignores_ctrl_c_and_ends_with_its_stdin(
    start: Callable[..., Child],
) -> None:
    child = start("host")
    first, second = child.next(), child.next()
    assert isinstance(first, HostInfo)
    assert first.cpus == os.cpu_count()
    assert isinstance(second, Sample)
    assert [part.source for part in second.parts] == ["host"]
    child.send(codec.framed(Watch(hz=10, pids={"ppo": os.getpid()})))
    [row] = child.rows_of("process/ppo", 1)
    assert row.last()["memory_rss_bytes"] > 1 << 20
    child.process.send_signal(signal.SIGINT)
    stamps = [part.times()[0] for part in child.rows_of("host", 3)]
    gaps = sorted(b - a for a, b in itertools.pairwise(stamps))
    assert gaps[0] > 200_000_000  # never a short window
    assert gaps[0] < 900_000_000  # not the second that it began with
    assert abs(time.monotonic_ns() - stamps[-1]) < DEADLINE_S * 1e9  # our clock
    child.commands.close()
    assert child.wait(2) == (0, "")


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a driver")
def test_without_a_driver_the_gpu_sampler_says_why_at_once_and_goes_on(start: Callable[..., Child]) -> None:
    child = start("gpus")
    child.send(codec.framed(Watch(hz=10)))
    first, second = child.next(), child.next()
    assert isinstance(first, Devices)
    assert isinstance(second, Devices)
    assert (first.problem, second.problem and second.problem.code) == (NOT_ASKED, "driver.not_found")
    assert [child.next() for _ in range(3)] == [Sample(parts=())] * 3
    child.commands.close()
    assert child.wait(2) == (0, "")


def test_it_ends_when_nobody_reads_its_rows(start: Callable[..., Child]) -> None:
    child = start("host")
    child.next()
    child.send(codec.framed(Watch(hz=2)))
    child.rows.close()
    assert child.wait() == (0, "")


def test_sigterm_ends_it(start: Callable[..., Child]) -> None:
    child = start("host")
    child.next()
    child.process.terminate()
    assert child.wait() == (-signal.SIGTERM, "")


def test_a_bad_message_costs_one_line_and_a_bad_stream_the_process(
    start: Callable[..., Child], golden: Golden
) -> None:
    child = start("host")
    child.next()
    child.send((3).to_bytes(4, "big") + b"abc" + codec.framed(Watch(hz=10, pids={"ppo": os.getpid()})))
    child.rows_of("process/ppo", 1)  # the message behind the bad one was obeyed
    child.send(b"\xff\xff\xff\xff")
    code, said = child.wait()
    assert code == 1
    assert len(said.splitlines()) == 2
    golden(said)


HANGS = """
import importlib.util, os, sys, time
spec = importlib.util.spec_from_file_location("real", os.environ["REAL_PYNVML"])
real = sys.modules["real"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(real)

def not_supported(*_):
    raise real.NVMLError(real.NVML_ERROR_NOT_SUPPORTED)

globals().update({
    name: not_supported if name.startswith("nvml") and callable(value) else value
    for name, value in vars(real).items() if not name.startswith("__")
})
nvmlLib = object()
print("chatter of a library", flush=True)

def hang(what):
    if os.environ["HANGS"] == what:
        time.sleep(3600)

def nvmlShutdown():
    os.write(1, b"and of its C code")

def nvmlInit():
    hang("init")

def nvmlDeviceGetCount():
    return 2

def nvmlDeviceGetHandleByIndex(index):
    return index

def nvmlDeviceGetUUID(gpu):
    hang(f"uuid {gpu}")
    return f"GPU-{gpu}"

def nvmlDeviceGetPowerUsage(gpu):
    hang(f"power {gpu}")
    return 70000
"""


@pytest.fixture
def probe() -> Iterator[int]:
    """A file for the probe."""
    fd = os.memfd_create("probe")
    os.ftruncate(fd, 8)
    yield fd
    os.close(fd)


def probed(fd: int) -> int:
    return int.from_bytes(os.pread(fd, 8, 0), "little", signed=True)


def wait_for_probe(fd: int, who: int) -> None:
    """Until the probe has stayed for so long that the child must hang there."""
    end = time.monotonic() + DEADLINE_S
    seen = 0
    while seen < 50:
        assert time.monotonic() < end, f"the probe is {probed(fd)}"
        seen = seen + 1 if probed(fd) == who else 0
        select.select([], [], [], 0.005)


@pytest.fixture
def hanging(start: Callable[..., Child], probe: int, tmp_path: Path) -> Callable[..., Child]:
    """Starts GPU samplers over a driver that hangs in one call."""
    (tmp_path / "pynvml.py").write_text(HANGS)
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    real = {"PYTHONPATH": path, "REAL_PYNVML": str(pynvml.__file__)}
    return lambda call, *more: start("gpus", "--probe", str(probe), *more, fds=(probe,), HANGS=call, **real)


def test_a_driver_that_never_answers_and_a_library_that_chatters_spoil_nothing(
    hanging: Callable[..., Child], probe: int, golden: Golden
) -> None:
    child = hanging("init")
    first = child.next()
    assert isinstance(first, Devices)
    assert first.problem == NOT_ASKED
    wait_for_probe(probe, DRIVER)
    child.commands.close()  # the daemon is gone, the driver still hangs
    code, said = child.wait(2)
    assert code == 0
    golden(said)
    with pytest.raises(StopIteration):
        child.next()


@pytest.mark.parametrize("call", ["uuid 1", "power 1"])
def test_the_probe_of_a_child_that_hangs_names_the_gpu_and_the_next_child_leaves_it(
    hanging: Callable[..., Child], probe: int, call: str
) -> None:
    child = hanging(call)
    wait_for_probe(probe, 1)
    child.process.kill()
    assert child.wait()[0] == -signal.SIGKILL
    assert probed(probe) == 1  # it outlives the child
    child = hanging(call, "--leave", "1")
    [row] = child.rows_of("gpu/GPU-0", 1)
    assert row.last()["power_w"] == 70
    wait_for_probe(probe, IDLE)


def test_started_by_hand_it_says_what_it_is() -> None:
    screen, terminal = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hoptui.telemetry", "gpus"],
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.PIPE,
            timeout=DEADLINE_S,
            check=False,
        )
    finally:
        os.close(terminal)
        os.close(screen)
    assert done.returncode == 2
    assert b"try `hoptui` instead" in done.stderr


def test_it_imports_nothing_it_does_not_need() -> None:
    modules = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, pynvml, hoptui.telemetry.sampler; print(*sys.modules, sep='\\n')",
        ],
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
        text=True,
    ).stdout.split()
    assert not {"torch", "numpy", "textual", "zmq", "asyncio"} & set(modules)
