"""One command for an alert, without a shell: the alert is on its standard input and in its environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence

from hoptui.alerts import messages
from hoptui.alerts.secret_values import DeliveryError
from hoptui.domain.alerts import Alert, AlertTarget
from hoptui.domain.facts import fact


def environment(alert: Alert) -> dict[str, str]:
    """Return the variables that describe the alert."""
    values = {
        "KIND": alert.kind,
        "TITLE": messages.title(alert),
        "TEXT": messages.text(alert),
        "RUN": alert.run,
        "NAME": alert.name,
        "HOST": alert.host,
        "LEVEL": alert.level,
    }
    return {f"HOPTUI_ALERT_{name}": value.replace("\0", " ") for name, value in values.items()}


class Running:
    """The commands that run, so that none outlives an interrupted delivery."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._programs: list[subprocess.Popen[bytes]] = []
        self._ended = False

    def start(self, command: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a command. `end` waits for this, so that none starts unseen.

        Raises:
            OSError, ValueError: it could not be started, or the delivery has ended.
        """
        with self._lock:
            if self._ended:
                raise ValueError("the delivery has ended")
            program = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environ,
                start_new_session=True,
            )
            self._programs.append(program)
        return program

    def end(self) -> None:
        """Kill those that still run, and let none start later. Their threads reap them."""
        with self._lock:
            self._ended = True
            programs = list(self._programs)
        for program in programs:
            if program.poll() is None:
                _kill_group(program)


def send(alert: Alert, target: AlertTarget, limit_s: float, running: Running) -> None:
    """Run a command. At the limit it is killed, with all processes of its group.

    Raises:
        DeliveryError: it could not be started, it failed, or it did not end in time.
    """
    try:
        program = running.start(target.command, {**os.environ, **environment(alert)})
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or type(error).__name__
        raise DeliveryError(fact("alert.not_started", error=text)) from None
    try:
        program.communicate(messages.as_json(alert), timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise DeliveryError(fact("alert.killed", limit_s=limit_s)) from None
    finally:
        if program.poll() is None:
            _kill(program)
    if program.returncode:
        raise DeliveryError(fact("alert.exit_code", exit_code=program.returncode))


def _kill_group(program: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)


def _kill(program: subprocess.Popen[bytes]) -> None:
    _kill_group(program)
    if program.stdin is not None:
        with contextlib.suppress(OSError):
            program.stdin.close()
    program.wait()
