"""The demo's training process: start it detached, find its run, and stop it or leave it running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from hoptui.cli.support.snapshot import NodeSnapshot
from hoptui.cli.support.terminal import REJECTED, Fail
from hoptui.node.addresses import AddressError, addresses, secure
from hoptui.presentation import numbers
from hoptui.protocol.messages import RunState

LIVE_S = 120.0  # importing torch from a cold disk takes a while
END_S = 15.0
TRAINER = ("-P", "-m", "hoptui_trainer", "ppo")  # -P: nothing in the working directory hides a module


class Training:
    """`with Training(env) as training:` leaves no process behind, unless `leave` was called."""

    def __init__(self, env: str, iterations: int = 1_000_000) -> None:
        self._command = [
            *(sys.executable, *TRAINER),
            *("--env", env, "--name", "demo", "--iterations", str(iterations)),
        ]
        self._left = False
        self.log = Path(os.devnull)

    def __enter__(self) -> Training:
        try:
            where = addresses()
            secure(where.state)
        except AddressError as error:
            raise Fail(str(error), REJECTED) from None
        self.log = where.state / f"demo-{os.getpid()}.log"
        package = Path(__file__).resolve().parents[3]
        path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH", ""))))
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C in the dashboard is not meant for it
            )
        self._before = [(number, signal.signal(number, _end)) for number in (signal.SIGTERM, signal.SIGHUP)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)
        if self._left:
            return
        if kind is None:
            self.log.unlink(missing_ok=True)
        if self.ended is not None:
            return
        self._process.terminate()  # the trainer finishes its iteration, then ends
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    def leave(self) -> None:
        """Let the training continue after this process ends."""
        self._left = True
        self._process.returncode = 0  # we no longer wait for it

    def live(self, seen: NodeSnapshot) -> RunState:
        """Wait until the daemon reports that it trains.

        Raises:
            Fail: it ended, or did not start in time.
        """
        until = time.monotonic() + LIVE_S
        while time.monotonic() < until:
            self.check()
            seen.refresh()
            for run in seen.node.runs:
                vital = seen.store.vital(run.run)
                if run.pid == self.pid and seen.lives(run) and vital is not None and vital.step > 0:
                    return run
            time.sleep(0.1)
        raise Fail(
            f"the demo's training did not start within {LIVE_S:g} s; its output is in {self.log}", REJECTED
        )

    def check(self) -> None:
        """Check that it still runs.

        Raises:
            Fail: it has ended. The sentence has its last line of output.
        """
        code = self.ended
        if code is None:
            return
        lines = self.log.read_text(errors="replace").strip().splitlines()
        said = numbers.clean(lines[-1]) if lines else "it printed nothing"
        raise Fail(
            f"the demo's training ended (exit code {code}): {said}; its output is in {self.log}", REJECTED
        )

    def wait(self) -> int | None:
        """Wait for its end after a stop. Return its exit code, or None if it still runs."""
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return None


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Exit through the `with` blocks, so that the training stops too."""
    raise SystemExit(128 + number)
