"""The ssh process of a tunnel: started, listened to without ever waiting, ended, reaped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence

MOST_ERRORS = 4096
MOST_LINE = 65536
LEAVE_S = 0.5
"""How long it gets to leave in good order; then it is asked to end, then killed."""
END_S = 1.0


class Child:
    """A process whose output lines are taken as they come. Closing its input, which its owner's death does too, ends it."""

    def __init__(self, words: Sequence[str]) -> None:
        """Start it, in a session of its own: what the terminal sends to the dashboard is not meant for it.

        Raises:
            OSError: it cannot be started.
        """
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out, self._err = self._process.stdout.fileno(), self._process.stderr.fileno()
        self._open = [self._out, self._err]
        for fd in self._open:
            os.set_blocking(fd, False)
        self._line = b""
        self._errors = b""

    @property
    def waits_on(self) -> list[int]:
        """The file descriptors on which something may come."""
        return list(self._open)

    def lines(self) -> list[str]:
        """The lines that have come since the last call."""
        self._errors = (self._errors + self._read(self._err))[-MOST_ERRORS:]
        *whole, rest = (self._line + self._read(self._out)).split(b"\n")
        self._line = rest[-MOST_LINE:]
        return [line.decode(errors="replace") for line in whole]

    @property
    def errors(self) -> str:
        """What it has said on its standard error, or the end of it."""
        return self._errors.decode(errors="replace")

    def code(self) -> int | None:
        """Its exit code, minus the signal that ended it, None while it runs. It is not reaped before `end`."""
        if self._process.returncode is not None:
            return self._process.returncode
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def end(self) -> None:
        """End it and all that it started, and reap it.

        It is told by the end of its input first, so that the last word still gets through. Its group is ended while it is not
        reaped yet: until then the number of the group is nobody else's.
        """
        process = self._process
        self._open = []
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        self._wait(LEAVE_S)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.returncode is None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, number)
                if self._wait(END_S):
                    process.wait()

    def _wait(self, seconds: float) -> bool:
        """Whether it has ended, or does so in so many seconds."""
        until = time.monotonic() + seconds
        while self.code() is None:
            if time.monotonic() > until:
                return False
            time.sleep(0.005)
        return True

    def _read(self, fd: int) -> bytes:
        found = b""
        while fd in self._open:
            try:
                part = os.read(fd, 65536)
            except BlockingIOError:
                break
            if not part:
                self._open.remove(fd)  # at its end it would be ready for ever
            found += part
        return found
