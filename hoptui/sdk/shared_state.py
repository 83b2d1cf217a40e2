"""The state of one run that the training thread and the link thread share, and the phases of an iteration.

There are no locks: each field is one number or one reference, and the queues are deques. The training thread
writes. The link thread writes only `id` and `epoch` (as the daemon asks), `paused_until` and `alive`.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from types import TracebackType
from typing import Literal, Protocol

from hoptui.protocol.messages import Note
from hoptui.sdk.command_inbox import CommandInbox
from hoptui.sdk.declarations import Declarations
from hoptui.sdk.metric_values import MetricConverter, TimedRow, clean_text

log = logging.getLogger("hoptui")

ROWS_KEPT = 4096
NOTES_KEPT = 256
Ending = Literal["finished", "stopped", "exception"]
Level = Literal["info", "warning"]


class LinkControl(Protocol):
    """The link thread for the training thread. `idle`: it does not look for rows soon, so wake it."""

    idle: bool

    def wake(self) -> None: ...
    def close(self, reason: Ending, detail: str) -> None: ...
    def leave(self) -> None: ...


class SharedState:
    """The state of one run.

    Attributes:
        rank: Index of this process among the `world` processes of the run.
        step: The iteration in progress.
        progress: Monotonic seconds of the last boundary.
        alive: Whether hoptui shows this run and takes commands for it.
        stopping: Whether the loop ends at this boundary; all ranks agreed on it.
        stop_by: Who asked for that.
        paused: Whether all ranks agreed to wait.
        paused_until: The end of rank 0's pause lease in monotonic seconds, 0.0 without a pause.
        rows: Rows for the link thread. The oldest are dropped first.
        rows_added: How many rows were ever added.
    """

    def __init__(self, name: str, total: int | None) -> None:
        self.name = name
        self.id = ""
        self.epoch = 0
        self.nonce = ""
        self.total = total
        self.started = time.monotonic_ns()
        self.rank, self.world = 0, 1
        self.declarations = Declarations()
        self.inbox = CommandInbox(self.declarations.knobs, self.declarations.verbs)
        self.phases = PhaseTimes()
        self.converter = MetricConverter()
        self.notes: deque[Note] = deque(maxlen=NOTES_KEPT)
        self.rows: deque[TimedRow] = deque(maxlen=ROWS_KEPT)
        self.rows_added = 0
        self.step = 0
        self.progress = time.monotonic()
        self.alive = True
        self.stopping = False
        self.stop_by = ""
        self.paused = False
        self.paused_until = 0.0
        self.boundary_wake = threading.Event()
        self.link: LinkControl | None = None

    # called by the training thread --------------------------------------------------------------------------

    def event(self, text: str, level: Level = "info") -> None:
        """Queue a line for the time axis. Only rank 0 does."""
        if self.alive and self.rank == 0:
            self.notes.append(
                Note(t=time.monotonic_ns(), step=self.step, text=clean_text(text, 500), level=level)
            )

    def wake_link(self) -> None:
        """Have the link thread send at once."""
        if self.link is not None:
            self.link.wake()

    def give_up(self, error: Exception) -> None:
        """Switch hoptui off in this run after an error of its own. Training goes on."""
        log.warning("hoptui is off in this run: %s: %s. Training goes on.", type(error).__name__, error)
        self.disconnect()

    def disconnect(self) -> None:
        """Show nothing and take no commands from now on. Safe in both threads."""
        self.alive = False
        self.paused_until = 0.0

    # called by the link thread ------------------------------------------------------------------------------

    def renew_pause(self, seconds: float) -> None:
        """Renew the lease of a pause."""
        if self.paused_until:
            self.paused_until = time.monotonic() + seconds

    def wake_boundary(self) -> None:
        """Have a paused loop look for commands at once."""
        self.boundary_wake.set()


class PhaseTimes:
    """The phases of the iteration in progress. `current` is the path of the innermost one."""

    def __init__(self) -> None:
        self.current = ""
        self.since = time.monotonic()
        self._seconds: dict[str, float] = {}

    def add(self, path: str, seconds: float) -> None:
        """Add time to a phase of this iteration."""
        self._seconds[path] = self._seconds.get(path, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """Return the seconds by phase path since the last call, and start again from zero."""
        taken, self._seconds = self._seconds, {}
        return taken


class PhaseTimer:
    """The context manager of `run.phase`. It adds the time also if the body raises."""

    __slots__ = ("_name", "_outer", "_phases", "_start")

    def __init__(self, phases: PhaseTimes, name: str) -> None:
        self._phases = phases
        self._name = name

    def __enter__(self) -> None:
        phases = self._phases
        self._outer = phases.current
        phases.current = f"{self._outer}/{self._name}" if self._outer else self._name
        self._start = phases.since = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        phases = self._phases
        now = time.monotonic()
        phases.add(phases.current, now - self._start)
        phases.current = self._outer
        phases.since = now


def new_run_id() -> str:
    """Return eight letters and digits that are hard to mistake for one another."""
    return "".join(secrets.choice("abcdefghjkmnpqrstuvwxyz23456789") for _ in range(8))
