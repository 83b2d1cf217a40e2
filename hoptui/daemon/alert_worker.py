"""The thread of alerts: reads their settings, and starts the program that delivers them.

Files of the user can lie on a disk that hangs, and a target can be slow. Both delay only this thread. The
program `hoptui.alerts` makes the sentences and talks to the targets. It is killed at a time limit.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from hoptui.daemon.state.alert_book import FiredAlerts
from hoptui.domain.alert_settings import TABLE, AlertSettings, alert_settings
from hoptui.domain.alerts import Alert, AlertTarget, Delivered, Delivery, target_label
from hoptui.domain.facts import Fact, exception_text, fact
from hoptui.domain.pacing import DEFAULT, Timings
from hoptui.node.files import place, replaced

log = logging.getLogger("hoptui.daemon")

LONGEST_FILE = 1 << 20
MOST_WAITING = 64
"""Alerts that wait. Further ones are dropped and counted."""
LIMIT_S = 20.0
"""The program that delivers ends by itself within its limit of 10 s; at this age it is killed."""
PAUSES = (1, 5)
"""Before the second and the third try, as multiples of `Timings.alert_pause_s`."""
COMMAND = (sys.executable, "-m", "hoptui.alerts")


class _Again(NamedTuple):
    """A delivery that is tried again at `due` (monotonic seconds). `number` orders equal times."""

    due: float
    number: int
    attempt: int
    alert: Alert
    targets: tuple[AlertTarget, ...]


class AlertWorker:
    """Used by the loop; the work happens in its thread. `settings` and `problem` are read by the loop.

    Args:
        store: the file of what has fired.
        environ: where `config.toml` is searched; default: this process's environment.
        command: the program that delivers.
    """

    def __init__(
        self,
        store: Path,
        *,
        environ: Mapping[str, str] | None = None,
        timings: Timings = DEFAULT,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.settings = AlertSettings()
        self._file = place(os.environ if environ is None else environ, "CONFIG", "config.toml")
        self._store = store
        self._timings = timings
        self._command = command
        self._seen: tuple[int, ...] | None = None  # what the file looked like when it was read
        self._unusable = ""  # the error of the last try
        self._queue: queue.Queue[Alert | FiredAlerts | None] = queue.Queue()
        self._again: list[_Again] = []
        self._count = 0
        self._dropped = 0
        self._failures: dict[AlertTarget, tuple[int, Fact, str]] = {}  # deliveries in a row, why, the label
        self._closing = threading.Event()
        self._ready = threading.Event()
        self._ended = ""
        self._thread = threading.Thread(target=self._main, name="alerts", daemon=True)

    # from the loop ------------------------------------------------------------------------------------------

    def start(self, timeout: float) -> None:
        """Start the thread, and wait at most `timeout` seconds until it has read the settings."""
        self._thread.start()
        self._ready.wait(timeout)

    def put(self, alert: Alert) -> None:
        """Deliver an alert. It is dropped if too many wait."""
        if self._queue.qsize() >= MOST_WAITING:
            self._dropped += 1
        else:
            self._queue.put(alert)

    def keep(self, state: FiredAlerts) -> None:
        """Store what has fired. Call it before `put`: an alert may be lost, and does not fire twice."""
        if self._queue.qsize() < 2 * MOST_WAITING:
            self._queue.put(state)

    @property
    def problem(self) -> Fact | None:
        """Why alerts do not arrive, None if they do."""
        if self._ended:
            return fact("alerts.thread_ended", error=self._ended)
        if self._dropped:
            return fact("alerts.dropped", count=self._dropped)
        for count, why, label in list(self._failures.values()):
            return fact("alerts.undelivered", target=label, count=count, why=why)
        return None

    def close(self, timeout: float) -> None:
        """Deliver what waits, without another try. Give up after `timeout` seconds."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("alerts were still being delivered when the daemon ended")

    # in the thread ------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while True:
                self._read_settings()
                self._ready.set()
                if not self._turn():
                    return
        except Exception as error:
            log.exception("the thread of alerts has ended")
            self._ended = exception_text(error)
        finally:
            self._ready.set()

    def _turn(self) -> bool:
        """Do the next thing that is due. False at the end."""
        now = time.monotonic()
        wait = self._timings.alerts_s
        if self._again:
            wait = min(wait, max(0.0, self._again[0].due - now))
        try:
            found = self._queue.get(timeout=wait)
        except queue.Empty:
            if self._again and self._again[0].due <= time.monotonic():
                _, _, attempt, alert, targets = heapq.heappop(self._again)
                self._deliver(alert, targets, attempt)
            return True
        if isinstance(found, FiredAlerts):
            self._save(found)
        elif found is not None and self.settings.targets:
            self._deliver(found, self.settings.targets, 0)
        return found is not None

    def _read_settings(self) -> None:
        """Read `config.toml` if it has changed. A file that cannot be used changes nothing."""
        if self._file is None:
            return
        try:
            seen = self._file.stat()
            looks = (seen.st_mtime_ns, seen.st_ino, seen.st_size)
            if looks == self._seen:
                return
            self._seen = looks
            with self._file.open("rb") as opened:
                content = opened.read(LONGEST_FILE + 1)
            if len(content) > LONGEST_FILE:
                raise ValueError("too large")
            table = tomllib.loads(content.decode("utf-8-sig")).get(TABLE)
        except FileNotFoundError:
            self._seen, table = None, None
        except (OSError, ValueError, RecursionError) as error:
            why = type(error).__name__  # its text may quote the file
            if why != self._unusable:
                log.warning("%s cannot be used for alerts: %s", self._file, why)
            self._unusable = why
            return
        self._unusable = ""
        self.settings, problems = alert_settings(table)
        self._failures = {
            target: failed for target, failed in self._failures.items() if target in self.settings.targets
        }
        if problems:
            log.warning("%s: %d settings of alerts are not used", self._file, len(problems))

    def _save(self, state: FiredAlerts) -> None:
        try:
            with replaced(self._store, 0o600) as file:
                file.write(msgspec.json.encode(state))
        except OSError as error:
            log.warning("%s cannot be written: %s", self._store, error.strerror)

    def _deliver(self, alert: Alert, targets: tuple[AlertTarget, ...], attempt: int) -> None:
        found = {each.target: each.problem for each in self._attempt(Delivery(alert=alert, targets=targets))}
        silent = fact("alert.no_answer")
        failed = []
        for number, target in enumerate(targets):
            why = found.get(number, silent)
            if why is None:
                self._failures.pop(target, None)
            else:
                failed.append((target, why))
        if failed and attempt < len(PAUSES) and not self._closing.is_set():
            self._count += 1
            due = time.monotonic() + PAUSES[attempt] * self._timings.alert_pause_s
            again = tuple(target for target, _ in failed)
            heapq.heappush(self._again, _Again(due, self._count, attempt + 1, alert, again))
            return
        for target, why in failed:
            count = self._failures[target][0] if target in self._failures else 0
            label = target_label(target)
            self._failures[target] = (count + 1, why, label)
            log.warning("an alert (%s) was not delivered to %s: %s", alert.kind, label, why.code)

    def _attempt(self, delivery: Delivery) -> list[Delivered]:
        """Run the program that delivers. Return what it reports, nothing if it fails or is killed."""
        try:
            program = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            log.warning("the program that delivers alerts could not be started: %s", error.strerror)
            return []
        try:
            output, _ = program.communicate(msgspec.json.encode(delivery), timeout=LIMIT_S)
            return msgspec.json.decode(output, type=list[Delivered])
        except (subprocess.TimeoutExpired, msgspec.DecodeError, OSError) as error:
            log.warning("the program that delivers alerts failed: %s", type(error).__name__)
            return []
        finally:
            _end(program)


def fired_alerts(store: Path) -> FiredAlerts:
    """Return what an earlier daemon has fired, nothing if its file is missing or damaged."""
    try:
        with store.open("rb") as file:
            return msgspec.json.decode(file.read(LONGEST_FILE), type=FiredAlerts)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("%s cannot be used: %s", store, type(error).__name__)
    return FiredAlerts()


def _end(program: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a program, and reap it."""
    if program.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    for pipe in (program.stdin, program.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(1.0)
