"""A process of this machine, held while a person decides: what it is, and a signal that reaches it and no
other.

A pid may be another's by the time a question is answered. The kernel's handle of the process (pidfd_open(2))
never is.
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
"""A daemon and the process that it is agree on when it started, within what a clock may be set by."""


class NotYoursError(Exception):
    """The process may not be ended from here; the text is one sentence."""


class ProcessHandle:
    """The process that `shown` is about, to be closed when it is no longer wanted (it is a context).

    Raises:
        NotYoursError: it is somebody else's, has ended, is another one by now, or is not on this machine.
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
        """See that it is what the person was shown: the handle is held, so what is read now is of this
        process or of none."""
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
        """Whether it has not ended (one that waits for its parent to take notice has)."""
        try:
            signal.pidfd_send_signal(self._handle, 0)
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except (OSError, psutil.Error):
            return False

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal: to this very process, or to none.

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
    """The pid has to mean the same process to the driver, to the node's daemon and to us."""
    if not shown.command or not shown.user:
        raise NotYoursError(
            f"who process {shown.pid} is, is not known here: it is of another container or user"
        )
    if whose_pids() == "container":
        raise NotYoursError(
            "this is a container with pids of its own, and the driver counts the machine's: end it where "
            "it was started"
        )
    try:
        daemon = psutil.Process(node.pid)
        here = abs(daemon.create_time() - node.started_wall) < CLOCKS_APART_S
    except psutil.Error:
        here = False
    if not here or os.uname().nodename.partition(".")[0] != node.host.partition(".")[0]:
        raise NotYoursError(f"the processes are on {node.host}, not on this machine: end it there")
