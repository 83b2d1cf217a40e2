"""stdout and stderr of a run that go to files: the daemon reads them from outside, also after a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hoptui.daemon import output_files
from hoptui.daemon.output_files import OutputFiles
from hoptui.domain.outputs import PAGE_BYTES, TAIL_BYTES
from hoptui.protocol.messages import FetchOutput, RunOutput
from tests.conftest import RawViewer, TestNode, until

SCRIPT = """
import os, sys, time, hoptui
run = hoptui.connect("toy")
print("begins", flush=True)
for step in run.iterations():
    time.sleep(0.01)
    if os.path.exists(sys.argv[1]):
        raise RuntimeError("out of luck")
"""


def ask(viewer: RawViewer, run: str, rank: int = 0) -> RunOutput:
    return viewer.ask(FetchOutput(id=1, run=run, rank=rank), RunOutput)


def started(node: TestNode, out: Path, err: Path | None, tmp_path: Path) -> subprocess.Popen[str]:
    """A run whose output goes to files. Without `err`, both go to one."""
    where = f"> {out} 2> {err}" if err else f"> {out} 2>&1"
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    return node.spawn(["sh", "-c", f"exec {sys.executable} {script} {tmp_path / 'end'} {where}"])


def test_a_traceback_is_there_after_the_crash_even_if_the_file_is_deleted(
    node: TestNode, tmp_path: Path
) -> None:
    log = tmp_path / "log.txt"
    viewer = node.viewer()
    process = started(node, log, None, tmp_path)
    run = viewer.run().run
    (part,) = until(lambda: [p for p in ask(viewer, run).parts if p.data], what="the first line")
    assert (part.stream, part.origin, part.path) == ("output", "file", str(log))
    assert part.data == b"begins\n"
    log.unlink()
    (tmp_path / "end").touch()
    assert process.wait(30) == 1
    until(lambda: viewer.state().runs[0].exit_reason, what="the end")
    found = ask(viewer, run)
    assert found.parts[0].data.endswith(b"RuntimeError: out of luck\n")
    assert found.ranks == (0,)
    done = node.hoptui("output", run, "--lines", "1")
    assert (done.returncode, done.stdout) == (0, "RuntimeError: out of luck\n")
    assert done.stderr.startswith(f"stdout and stderr: in {log}")
    until(
        lambda: not any(str(log) in link for link in open_files(node.daemon_pid())),
        what="the daemon to let go of the deleted file",
    )


def open_files(pid: int) -> list[str]:
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(each.readlink()))
        except FileNotFoundError:  # it was closed meanwhile
            continue
    return found


def test_two_files_are_two_streams(node: TestNode, tmp_path: Path) -> None:
    viewer = node.viewer()
    started(node, tmp_path / "out", tmp_path / "err", tmp_path)
    run = viewer.run().run
    parts = until(lambda: ask(viewer, run).parts, what="the streams")
    assert [(part.stream, part.path) for part in parts] == [
        ("stdout", str(tmp_path / "out")),
        ("stderr", str(tmp_path / "err")),
    ]


def test_a_pipe_is_named_and_not_opened(node: TestNode) -> None:
    viewer = node.viewer()
    node.start(SCRIPT, "/nowhere")
    run = viewer.run().run
    parts = until(lambda: ask(viewer, run).parts, what="the streams")
    assert [(part.stream, part.origin, part.data) for part in parts] == [
        ("stdout", "pipe", b""),
        ("stderr", "pipe", b""),
    ]
    done = node.hoptui("output", run)
    assert done.returncode == 3
    assert "goes to a pipe, which is not read; hoptui run --output" in done.stderr


def test_a_new_daemon_reads_a_run_that_goes_on(node: TestNode, tmp_path: Path) -> None:
    viewer = node.viewer()
    started(node, tmp_path / "log", None, tmp_path)
    run = viewer.run().run
    os.kill(node.daemon_pid(), signal.SIGKILL)
    another = until(lambda: node.viewer("another"), what="another daemon")
    assert another.run().run == run
    until(lambda: any(part.data for part in ask(another, run).parts), what="the output")


# the reader alone -------------------------------------------------------------------------------------------


class Reader:
    """`OutputFiles` on one child, and the answers."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child
        self.answers: list[RunOutput] = []
        self.files = OutputFiles(lambda _, answer: self.answers.append(answer))
        self.files.follow({("r", 0): child.pid}, ["r"])

    def ask(self, since: dict[str, int] | None = None) -> RunOutput:
        before = len(self.answers)
        self.files.ask(b"", FetchOutput(id=1, run="r", since=since or {}), ())
        until(lambda: len(self.answers) > before, what="an answer")
        return self.answers[-1]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Callable[[str], Reader]]:
    """Starts a shell with its output in `log`, and a reader of it. The shell waits for input at its end.

    It forks for the last echo: otherwise its own stdout would be elsewhere for a moment.
    """
    made: list[Reader] = []

    def start(script: str) -> Reader:
        with (tmp_path / "log").open("wb") as log:
            child = subprocess.Popen(
                ["sh", "-c", f"{script}\n(echo ready >&2); read x"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.PIPE,
            )
        assert child.stderr is not None
        child.stderr.readline()
        made.append(Reader(child))
        return made[-1]

    yield start
    for one in made:
        one.child.kill()
        one.child.communicate(timeout=10)
        one.files.close()


def test_a_large_file_comes_in_pages_of_its_end(reader: Callable[[str], Reader]) -> None:
    there = reader(f"head -c {TAIL_BYTES + 1000} /dev/zero | tr '\\0' x")
    first = there.ask().parts[0]
    assert (first.start, first.end, len(first.data)) == (1000, TAIL_BYTES + 1000, PAGE_BYTES)
    after = there.ask({first.source: first.start + PAGE_BYTES}).parts[0]
    assert after.start == 1000 + PAGE_BYTES
    last = there.ask({first.source: first.end}).parts[0]
    assert (last.start, last.data) == (first.end, b"")


def test_a_file_that_was_cut_or_replaced_begins_anew(reader: Callable[[str], Reader], tmp_path: Path) -> None:
    there = reader("echo one two three")
    first = there.ask().parts[0]
    with (tmp_path / "log").open("r+b") as log:
        log.truncate(4)
    cut = there.ask({first.source: first.end}).parts[0]
    assert (cut.start, cut.data) == (0, b"one ")


def test_a_process_that_opens_another_file_is_followed(
    tmp_path: Path, reader: Callable[[str], Reader]
) -> None:
    there = reader(f"echo one; exec > {tmp_path / 'other'}; echo two")
    part = there.ask().parts[0]
    assert (part.path, part.data) == (str(tmp_path / "other"), b"two\n")


def test_a_pid_that_is_used_again_is_another_process(reader: Callable[[str], Reader]) -> None:
    there = reader("echo mine")
    assert there.ask().parts[0].data == b"mine\n"
    followed = there.files._known["r", 0]
    followed.started = 1
    assert there.ask().parts[0].data == b"mine\n", "what was read of the process that has gone"
    assert followed.tails is not None


def test_a_file_system_that_hangs_costs_only_the_output(
    reader: Callable[[str], Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = reader("echo one")
    there.ask()
    released = threading.Event()
    monkeypatch.setattr(output_files, "STUCK_S", 0.0)
    monkeypatch.setattr(there.files, "_look", lambda followed: released.wait(20))
    before = len(there.answers)
    there.files.ask(b"", FetchOutput(id=2, run="r"), ())
    until(lambda: there.files.stuck, what="the thread to hang")
    began = time.monotonic()
    for number in range(200):
        there.files.ask(b"", FetchOutput(id=number, run="r"), ())
    assert time.monotonic() - began < 5
    assert [answer.problem for answer in there.answers[before:]] == ["no_answer"] * 200
    released.set()
    monkeypatch.setattr(output_files, "STUCK_S", 3.0)
    until(lambda: len(there.answers) == before + 201, what="the answer that was late")


def test_a_fault_is_an_answer_and_a_thread_that_ended_begins_again(
    reader: Callable[[str], Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("planted")

    there = reader("echo one")
    with monkeypatch.context() as planted:
        planted.setattr(output_files, "_parts", fails)
        assert there.ask().problem == "failed"
    there.files.close()
    thread = there.files._thread
    assert thread is not None
    thread.join(10)
    there.files.follow({("r", 0): os.getpid()}, ["r"])
    there.files.follow({("r", 0): there.child.pid}, ["r"])
    assert there.ask().parts[0].data == b"one\n"


def test_it_opens_no_more_files_than_it_may(
    reader: Callable[[str], Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_files, "MOST_FILES", 0)
    parts = reader("echo one").ask().parts
    assert [part.origin for part in parts] == ["unknown", "pipe"]
