"""A process on a GPU that the user may end.

A pid may be another process's by the time a question is answered. The kernel's handle of the process
(pidfd_open(2)) never is.
"""

from __future__ import annotations

import os
import signal
from types import TracebackType

import psutil

from hoptui.domain.devices import GpuProcess
from hoptui.node.processes import whose_pids
from hoptui.protocol.messages import NodeState

CLOCKS_APART_S = 30.0
"""Tolerance for the start time of the daemon's process: a clock may be adjusted."""


class NotYoursError(Exception):
    """The process may not be ended from here. The text is one sentence."""


class ProcessHandle:
    """The process that `shown` describes. Close it after use; it is a context manager.

    Raises:
        NotYoursError: it belongs to another user, has ended, has been replaced by another process, or is
            not on this machine.
    """

    def __init__(self, shown: GpuProcess, node: NodeState) -> None:
        _must_be_here(shown, node)
        self.pid = shown.pid
        try:
            self._handle = os.pidfd_open(shown.pid)
        except OSError as error:
            raise NotYoursError(f"there is no process {shown.pid} any more") from error
        try:
            self._look(shown)
        except BaseException:
            self.close()
            raise

    def _look(self, shown: GpuProcess) -> None:
        """Check that the process is the one shown to the user.

        The handle is open, so what is read now belongs to this process or to none.
        """
        gone = f"there is no process {shown.pid} any more"
        try:
            process = psutil.Process(shown.pid)
            with process.oneshot():
                self.started = process.create_time()
                self.user = process.username()
                self.command = " ".join(process.cmdline()) or process.name()
                owner = process.uids().real
        except psutil.AccessDenied:
            raise NotYoursError(f"process {shown.pid} may not be looked at: it is not yours") from None
        except psutil.Error:
            raise NotYoursError(gone) from None
        if not self.lives():
            raise NotYoursError(gone)
        if owner != os.getuid():
            raise NotYoursError(f"process {shown.pid} is {self.user}'s: only your own can be ended from here")
        if not self.command.startswith(shown.command):
            raise NotYoursError(f"process {shown.pid} is another one by now: nothing was sent")
        if shown.pid == os.getpid():
            raise NotYoursError(f"process {shown.pid} is this dashboard")

    def lives(self) -> bool:
        """Return whether it has not ended. A zombie has ended."""
        try:
            signal.pidfd_send_signal(self._handle, 0)
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except (OSError, psutil.Error):
            return False

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to exactly this process, or to none.

        Raises:
            NotYoursError: it has ended, or the kernel refuses.
        """
        try:
            if not self.lives() or psutil.Process(self.pid).create_time() != self.started:
                raise ProcessLookupError
            signal.pidfd_send_signal(self._handle, number)
        except (ProcessLookupError, psutil.NoSuchProcess):
            raise NotYoursError(f"process {self.pid} has ended meanwhile: nothing was sent") from None
        except OSError as error:
            raise NotYoursError(f"process {self.pid} takes no {number.name}: {error.strerror}") from None

    def close(self) -> None:
        os.close(self._handle)

    def __enter__(self) -> ProcessHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _must_be_here(shown: GpuProcess, node: NodeState) -> None:
    """Check that the pid means the same process to the driver, to the node's daemon and to this process."""
    if not shown.command or not shown.user:
        raise NotYoursError(f"process {shown.pid} is unknown here: it belongs to another container or user")
    if whose_pids() == "container":
        raise NotYoursError(
            "this container has its own pids, and the driver reports the machine's: end it where "
            "it was started"
        )
    try:
        daemon = psutil.Process(node.pid)
        here = abs(daemon.create_time() - node.started_wall) < CLOCKS_APART_S
    except psutil.Error:
        here = False
    if os.uname().nodename.partition(".")[0] != node.host.partition(".")[0]:
        raise NotYoursError(f"the processes are on {node.host}, not on this machine: end it there")
    if not here:
        raise NotYoursError(
            f"process {shown.pid} may be another one here: the daemon is elsewhere, it started slowly, or "
            "the clock was set"
        )
