"""Copies of what a run writes: the terminal, the exit code and the signals are as without hoptui."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from hoptui.domain.outputs import PAGE_BYTES, TAIL_BYTES, OutputPart
from hoptui.protocol.messages import FetchOutput, RunOutput
from hoptui.sdk import output_copy
from hoptui.sdk.output_copy import MOST_PIECES, OutputCopy
from tests.conftest import RawViewer, TestNode, until

SCRIPT = """
import os, sys, time, hoptui
run = hoptui.connect("toy")
print("tty", sys.stdout.isatty(), type(sys.stdout).__name__, flush=True)
os.write(1, b"from C\\n")
print("warning", file=sys.stderr)
for step in run.iterations(int(sys.argv[1])):
    time.sleep(0.01)
    if step % 20 == 0:
        print("step", step, flush=True)
raise ValueError("over")
"""
FOREVER = "1000000000"


def copied(viewer: RawViewer, run: str) -> str:
    parts = viewer.ask(FetchOutput(id=1, run=run), RunOutput).parts
    return b"".join(part.data for part in parts if part.origin == "copied").decode()


class Terminal:
    """A process on a terminal of its own, and all that it writes there.

    It `leads` its session, so that the terminal sends it signals. Then SIGTSTP does not stop it.
    """

    def __init__(self, node: TestNode, command: list[str], *, leads: bool = True) -> None:
        self._master, slave = pty.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=node.environment,
            start_new_session=leads,
            process_group=None if leads else 0,
            preexec_fn=_own_terminal if leads else None,
        )
        os.close(slave)
        os.set_blocking(self._master, False)
        self.written = b""

    def read(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            try:
                while data := os.read(self._master, 4096):
                    self.written += data
            except OSError as error:
                if error.errno not in (errno.EIO, errno.EAGAIN):
                    raise
        return self.written

    def types(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def ended(self) -> tuple[int, str]:
        """The exit status and the last line."""
        until(lambda: (self.read(), self.process.poll() is not None)[1], seconds=30, what="the end")
        return self.process.returncode, self.read().decode().strip().splitlines()[-1]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self._master)


def _has(there: Terminal, written: bytes) -> bool:
    return written in there.read()


def _own_terminal() -> None:
    import fcntl

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _command(tmp_path: Path, steps: str, *, copies: bool) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = [sys.executable, "-m", "hoptui", "run", "--output", "--"] if copies else []
    return [*run, sys.executable, str(script), steps]


def _status(process: psutil.Process) -> str:
    return str(process.status())


def interrupt(there: Terminal, node: TestNode) -> None:
    there.types(b"\x03")


def terminate(there: Terminal, node: TestNode) -> None:
    there.process.terminate()


def stop_and_continue(there: Terminal, node: TestNode) -> None:
    process = psutil.Process(there.process.pid)
    there.process.send_signal(signal.SIGTSTP)
    until(lambda: _status(process) == "stopped", what="the stop")
    there.process.send_signal(signal.SIGCONT)
    until(lambda: _status(process) != "stopped", what="the continuation")
    there.process.terminate()


@pytest.mark.parametrize("end", [interrupt, terminate, stop_and_continue])
def test_the_terminal_the_exit_code_and_the_signals_stay(
    node: TestNode, tmp_path: Path, end: Callable[[Terminal, TestNode], None]
) -> None:
    viewer = node.viewer()
    ends = []
    for copies in (False, True):
        command = _command(tmp_path, FOREVER, copies=copies)
        there = Terminal(node, command, leads=end is not stop_and_continue)
        try:
            until(partial(_has, there, b"step 0"), seconds=30, what="the first lines")
            if copies:
                found = copied_lines(viewer, there.process.pid, 3)
                assert found[:3] == ["tty True TextIOWrapper", "warning", "step 0"]
            end(there, node)
            ends.append(there.ended())
            assert b"tty True TextIOWrapper\r\nfrom C\r\nwarning\r\nstep 0\r\n" in there.written
        finally:
            there.close()
    assert ends[0] == ends[1]
    assert ends[0][0] == (-signal.SIGINT if end is interrupt else -signal.SIGTERM)


def test_the_run_goes_on_when_the_part_that_gets_the_copies_is_killed(node: TestNode, tmp_path: Path) -> None:
    """And no other daemon can begin: its directory cannot be written."""
    viewer = node.viewer()
    there = Terminal(node, _command(tmp_path, FOREVER, copies=True))
    try:
        until(lambda: b"step 0" in there.read(), seconds=30, what="the first lines")
        copied_lines(viewer, there.process.pid, 3)
        node.where.directory.rename(away := node.where.directory.with_name("away"))
        node.where.directory.touch()
        os.kill(node_pid(away), signal.SIGKILL)
        before = there.read().count(b"step")
        until(lambda: there.read().count(b"step") > before + 5, what="the run to go on")
        there.process.terminate()
        assert there.ended()[0] == -signal.SIGTERM
    finally:
        there.close()
        node.where.directory.unlink()
        away.rename(node.where.directory)


def node_pid(directory: Path) -> int:
    return int(json.loads((directory / "daemon.json").read_text())["pid"])


def copied_lines(viewer: RawViewer, pid: int, least: int) -> list[str]:
    """The lines that the run in a process has copied, once there are so many."""
    run = until(lambda: next((r.run for r in viewer.state().runs if r.pid == pid), None), what="the run")
    return until(
        lambda: found if len(found := copied(viewer, run).splitlines()) >= least else None, what="the copy"
    )


def test_a_traceback_is_copied_before_the_process_ends(node: TestNode, tmp_path: Path) -> None:
    viewer = node.viewer()
    child = node.spawn(_command(tmp_path, "30", copies=True))
    out, err = child.communicate(timeout=60)
    assert child.returncode == 1
    assert out == "tty False TextIOWrapper\nfrom C\nstep 0\nstep 20\n"
    assert err.endswith("ValueError: over\n")
    found = until(lambda: copied(viewer, viewer.run().run), what="the copy")
    assert "Traceback (most recent call last)" in found
    assert found.endswith("ValueError: over\n")
    assert "from C" not in found, "what C code writes is not copied"
    done = node.hoptui("output", "toy", "--lines", "2")
    assert done.stdout.splitlines()[-1] == "ValueError: over"
    assert done.stderr == "stdout and stderr: copied from the Python code of the process\n"


def test_a_full_disk_is_what_it_is_without_hoptui(node: TestNode, tmp_path: Path) -> None:
    ends = []
    for copies in (False, True):
        command = shlex.join(_command(tmp_path, "30", copies=copies))
        child = node.spawn(["sh", "-c", f"exec {command} > /dev/full"])
        _, err = child.communicate(timeout=60)
        assert "No space left on device" in err
        own = [line for line in err.splitlines() if not line.startswith("hoptui:")]
        ends.append((child.returncode, own[-1]))
    assert ends[0] == ends[1]


# the copy alone ---------------------------------------------------------------------------------------------


def taken(copy: OutputCopy) -> list[OutputPart]:
    found = []
    while (part := copy.take()) is not None:
        found.append(part)
    return found


def test_parts_continue_each_other_in_pages() -> None:
    copy = OutputCopy("output")
    assert copy.take() is None
    for _ in range(40):
        copy.copied("x" * 4096)
    parts = taken(copy)
    assert [part.start for part in parts] == [0, PAGE_BYTES, 2 * PAGE_BYTES]
    assert sum(len(part.data) for part in parts) == 40 * 4096
    copy.copied("é\n")
    assert [(part.start, part.data) for part in taken(copy)] == [(40 * 4096, "é\n".encode())]


def test_what_is_lost_leaves_a_gap() -> None:
    copy = OutputCopy("output")
    for _ in range(MOST_PIECES + 5):
        copy.copied("line\n")
    first = taken(copy)[0]
    assert first.start == 1, "no part has its beginning"
    copy.copied("y" * (1 << 20))
    assert len(taken(copy)[0].data) == 4096


def test_the_memory_of_a_run_that_is_not_read_is_bounded() -> None:
    copy = OutputCopy("output")
    for _ in range(10 * MOST_PIECES):
        copy.copied("z" * 10_000)
    parts = taken(copy)
    assert sum(len(part.data) for part in parts) <= TAIL_BYTES
    assert parts[-1].data.endswith(b"z")


def test_a_fault_of_the_copy_does_not_reach_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        def __init__(self) -> None:
            self.texts: list[str] = []

        def write(self, text: str) -> int:
            self.texts.append(text)
            return len(text)

    def fails(text: str) -> None:
        raise MemoryError

    stream = Stream()
    output_copy._copy_writes(stream, fails)
    assert stream.write("hello") == 5
    assert stream.texts == ["hello"]


def test_a_stream_without_attributes_of_its_own_stays_as_it_is() -> None:
    class Sealed:
        __slots__ = ()

        def write(self, text: str) -> int:
            return len(text)

    output_copy._copy_writes(Sealed(), lambda text: None)
