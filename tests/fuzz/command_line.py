"""Arguments of every command, in this process, without a daemon or against one that only answers.

An input is a command line: words with a zero byte between them. What a command would start or wait for is
replaced: no process, no terminal, no time.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NoReturn
from unittest import mock

from hoptui.cli import main as command_line
from hoptui.cli.support import terminal
from hoptui.protocol.messages import FromViewer, Shutdown, ToViewer
from tests import factories
from tests.client.fake_daemon import FakeDaemon
from tests.fuzz.harness import Broken, Harness
from tests.fuzz.mutation import mutated_bytes, mutated_list
from tests.model.recorded_run import write

CODES = frozenset({0, 1, 2, 3, 126, 127, 130, 141})
LONGEST_S = 0.3
"""A command that goes on is interrupted, as Ctrl-C does."""
MOST_WORDS = 12
WORDS = (
    *(name for name, _, _ in command_line.COMMANDS), "ppo", "abcd2345", "rec01", "nosuch",
    "rec01.hoptui", "./rec01.hoptui", "out.csv", "out.html", "out.parquet", "out.xyz", "~nosuch/x.csv",
    "ssh://gpu07", "ssh://-x", "local", "local/ppo", "start", "stop", "status", "forward", "ppo-h200",
    "--help", "--version", "--json", "--yes", "-y", "--all", "--timeout", "--every", "--hz", "--for",
    "--hold", "--example", "--format", "--output", "-o", "--source", "--metrics", "--since", "--until",
    "--force", "--watch", "--rounds", "--theme", "--ascii", "--no-mouse", "--read-only", "--objective",
    "--memory", "--power", "--budget", "--freeze", "--release", "--allow", "--dry-run", "--remove",
    "--clear", "--port", "--steer", "--knob", "--by", "--stage", "--limit", "--", "-", "-h", "csv",
    "jsonl", "parquet", "html", "md", "50%", "+1h", "-10m", "#12", "14:05", "2026-02-30T25:61", "1e400",
    "nan", "-1", "0", "1", "99999999999999999999", "inf", "lr=1e-4", "lr=nan", "grad_accum=8",
    "grad_accum=1e99", "precision=fp32", "lr=", "=", "=1", "a=b=c", "busy=90", "power_w<=85%",
    "busy>nan", "temperature_c", "busy=-", "loss,power_w", ",", "run", "gpu", "gpu/GPU-0", ":9400",
    "[::1]:99999", "é", "\x1b[2J", "\udcff", "",
)  # fmt: skip
ENDLESS = frozenset({"demo", "mcp", "serve", "record"})
"""Commands that start something of their own. Only their arguments are parsed."""


class Answers(FakeDaemon):
    """A daemon that has one run, and does not end when it is asked to."""

    def _answers(self, identity: bytes, message: FromViewer) -> list[ToViewer]:
        self.received.clear()
        return [] if isinstance(message, Shutdown) else super()._answers(identity, message)


class CommandLine(Harness):
    """Command lines. A first word `@` means that a daemon answers."""

    name, unit = "command_line", "calls"

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="hoptui-fuzz-"))
        self._before = Path.cwd()
        self._state = self._home / "state"
        self._state.mkdir(mode=0o700)
        self._recording = write(self._state / "rec01.hoptui").read_bytes()
        self._daemon = Answers(self._home / "run", self._state)
        self._daemon.add(
            factories.run(), metrics={"env_steps_per_s": 512_345.0, "loss": 0.183, "iteration_s": 1.82}
        )
        self._daemon.start()
        (self._home / "alone").mkdir(mode=0o700)
        self._work = self._home / "work"

    def close(self) -> None:
        os.chdir(self._before)
        self._daemon.stop()
        shutil.rmtree(self._home)

    def seeds(self) -> list[bytes]:
        lines = [
            [name, *rest]
            for name, _, _ in command_line.COMMANDS
            for rest in ([], ["--help"], ["ppo"], ["rec01"])
        ]
        lines += [
            ["@", name, "ppo", *rest] for name, _, _ in command_line.COMMANDS for rest in ([], ["--json"])
        ]
        lines += [
            ["@", "set", "ppo", "lr=1e-4", "grad_accum=8", "--timeout", "1"],
            ["@", "target", "ppo", "busy=90", "power_w<=85%"],
            ["@", "tune", "ppo", "--freeze", "lr", "--memory", "90%"],
            ["export", "rec01", "--since", "+1m", "--until", "50%", "--source", "gpu", "--metrics", "busy"],
            ["export", "rec01", "-o", "out.csv"],
            ["report", "rec01", "--format", "html"],
            ["replay", "--example", "ppo-h200"],
            ["rm", "rec01", "--yes"],
            ["ls", "--all", "--json"],
            ["history", "rec01", "--json"],
            ["run", "--name", "ppo", "--", "python", "train.py"],
        ]
        return [_joined(line) for line in lines]

    def mutated(self, data: bytes, random: Random) -> bytes:
        words = _split(data)
        kind = random.random()
        if kind < 0.6 or not words:
            words = mutated_list(words, random, WORDS)
        elif kind < 0.8:
            at = random.randrange(len(words))
            changed = mutated_bytes(words[at].encode(errors="surrogateescape"), random, 300)
            words[at] = changed.replace(b"\0", b"").decode(errors="surrogateescape")
        else:
            at = random.randrange(len(words))
            words[at] = f"{words[at]}={random.choice(WORDS)}"
        return _joined(words[:MOST_WORDS])

    def run(self, data: bytes) -> int:
        words = [_harmless(word) for word in _split(data)]
        answered = words[:1] == ["@"]
        words = words[1:] if answered else words
        if next((word for word in words if not word.startswith("-")), "") in ENDLESS:
            words = [*words, "--no-such-option"]
        self._fresh()
        directory = self._home / ("run" if answered else "alone")
        environment = {
            "HOME": str(self._work), "TERM": "xterm", "PATH": "", "HOPTUI_DIR": str(directory),
            "HOPTUI_STATE_DIR": str(self._state),
        }  # fmt: skip
        with mock.patch.dict(os.environ, environment, clear=True), _without_effects(), _output() as errors:
            code = _called(words)
            said = errors.getvalue().decode(errors="replace")
        if code not in CODES or "Traceback" in said:
            raise Broken(f"exit code {code}: {said[-500:]}")
        return 1

    def _fresh(self) -> None:
        """Put back what a command may have deleted or written."""
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir()
        os.chdir(self._work)
        for left in self._state.iterdir():
            if left.name != "rec01.hoptui":
                left.unlink()
        if not (self._state / "rec01.hoptui").exists():
            (self._state / "rec01.hoptui").write_bytes(self._recording)


def _called(words: Sequence[str]) -> int:
    """Call the command line and interrupt it if it goes on, again and again until it ends."""
    over, runs, main = threading.Event(), False, threading.get_ident()

    def interrupted(*_: object) -> None:
        if runs:
            raise KeyboardInterrupt

    def interrupt() -> None:
        while not over.wait(LONGEST_S):
            signal.pthread_kill(main, signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, interrupted)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        try:
            runs = True
            return command_line.main(words)
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 0
        finally:
            runs = False
    except KeyboardInterrupt:
        return terminal.INTERRUPTED
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR2, before)


@contextlib.contextmanager
def _without_effects() -> Iterator[None]:
    """Replace what starts a process, and what hides an unexpected error in a file."""

    def no_program(*_: object, **__: object) -> NoReturn:
        raise FileNotFoundError(2, "No such file or directory")

    def ended(*_: object) -> NoReturn:
        raise SystemExit(0)

    def unexpected(_: Sequence[str]) -> NoReturn:
        raise

    with contextlib.ExitStack() as stack:
        for owner, name, instead in (
            (subprocess, "Popen", no_program),
            (subprocess, "run", no_program),
            (os, "execv", ended),
            (os, "execvpe", ended),
            (os, "kill", no_program),
            (terminal, "_keep_traceback", unexpected),
            (time, "sleep", _briefly(time.sleep)),
        ):
            stack.enter_context(mock.patch.object(owner, name, instead))
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # a command that starts a program sets them
            stack.callback(signal.signal, number, signal.getsignal(number))
        yield


def _briefly(sleep: Any) -> Any:
    return lambda seconds: sleep(min(seconds, 0.01))


@contextlib.contextmanager
def _output() -> Iterator[io.BytesIO]:
    """Collect standard output and errors; neither is a terminal. Yields the errors."""
    output, errors = io.BytesIO(), io.BytesIO()
    streams: dict[str, Any] = {
        "stdin": io.StringIO(""),
        "stdout": io.TextIOWrapper(output, "utf-8", "surrogateescape"),
        "stderr": io.TextIOWrapper(errors, "utf-8", "backslashreplace", write_through=True),
    }
    with mock.patch.multiple("sys", **streams):
        yield errors


def _harmless(word: str) -> str:
    """Return a word that names no file outside of the working directory."""
    return word if word in WORDS or "/" not in word else word.replace("/", "_")


def _joined(words: Sequence[str]) -> bytes:
    return "\0".join(words).encode(errors="surrogateescape")


def _split(data: bytes) -> list[str]:
    return data.decode(errors="surrogateescape").split("\0")[:MOST_WORDS]
