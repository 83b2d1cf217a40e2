"""The terminal: how many frames wait to be written, signals that end the app cleanly, and a terminal that vanishes.

Textual restores the terminal only when the app ends by itself: without handlers SIGTERM and SIGHUP leave the mouse and
the alternate screen on, and a write to a vanished terminal kills the writer thread, after which its queue blocks the app.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import select
import signal
from typing import Any, TextIO, cast

from textual.drivers.linux_driver import LinuxDriver

SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)


class Terminal:
    """A file that stops writing, without an error, once the terminal is gone."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.gone = False

    def write(self, text: str) -> int:
        if not self.gone:
            try:
                return self._file.write(text)
            except OSError:
                self.gone = True
        return len(text)

    def flush(self) -> None:
        if not self.gone:
            try:
                self._file.flush()
            except OSError:
                self.gone = True

    def fileno(self) -> int:
        return self._file.fileno()


class TerminalDriver(LinuxDriver):
    """Textual's driver with the three things above."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.terminal = Terminal(cast(TextIO, self._file))
        self._file = cast(Any, self.terminal)

    @property
    def waiting(self) -> int:
        """Frames that wait to be written: more than two mean that the link is slower than the screen."""
        writer = self._writer_thread
        return writer._queue.qsize() if writer is not None else 0

    @property
    def gone(self) -> bool:
        """Whether the terminal has vanished (its other end is closed)."""
        poll = select.poll()
        with contextlib.suppress(OSError, ValueError):
            poll.register(self.fileno, 0)  # POLLHUP and POLLERR are always reported
            return self.terminal.gone or bool(poll.poll(0))
        return True

    def _sigcont_application(self, *arguments: object) -> None:
        """Come back from Ctrl-Z, and from nothing else.

        The kernel sends SIGCONT with the SIGHUP of a vanished terminal as well: starting again on that one left a second
        pair of threads behind, of which the reader span for ever on a terminal that was gone.
        """
        if self._must_signal_resume:
            super()._sigcont_application(*arguments)

    def start_application_mode(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._leave, loop, number)
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def stop_application_mode(self) -> None:
        self._drop_waiting()
        super().stop_application_mode()

    def _drop_waiting(self) -> None:
        """Forget the frames that a slow link has not taken: nobody waits for them before the prompt comes back."""
        if self._writer_thread is not None:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._writer_thread._queue.get_nowait()

    def run_input_thread(self) -> None:
        with contextlib.suppress(OSError):  # the terminal vanished under a read: the app sees `gone`
            super().run_input_thread()

    def _leave(self, loop: asyncio.AbstractEventLoop, number: signal.Signals) -> None:
        loop.remove_signal_handler(
            number
        )  # a second one ends it at once, should the terminal take nothing any more
        self._app.exit(return_code=128 + number)
