"""The terminal driver: its queue of frames, signals, a terminal that disappears, and keys passed on one by
one.

Textual restores the terminal only when the app ends by itself. Without handlers, SIGTERM and SIGHUP leave the
mouse and the alternate screen on. A write to a terminal that is gone kills the writer thread; then its queue
blocks the app.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import math
import os
import queue
import select
import signal
import time
from collections.abc import Iterable
from concurrent.futures import wait
from typing import Any, TextIO, cast

from textual._xterm_parser import XTermParser
from textual.app import App, ScreenStackError
from textual.constants import ESCAPE_DELAY
from textual.dom import DOMNode
from textual.drivers.linux_driver import LinuxDriver
from textual.drivers.web_driver import WebDriver
from textual.events import Key, Paste, Resize
from textual.geometry import Size
from textual.message import Message
from textual.message_pump import MessagePump


class BrowserDriver(WebDriver):
    """Leaves when the server has gone: Textual's own goes on drawing for nobody."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        write = self._write
        self._write = lambda data: self._until_gone(write, data)  # type: ignore[assignment]

    def run_input_thread(self) -> None:
        super().run_input_thread()
        if not self.exit_event.is_set():
            self._app.call_from_thread(self._app.exit)

    @staticmethod
    def _until_gone(write: Any, data: bytes) -> int:
        with contextlib.suppress(BrokenPipeError):
            return int(write(data))
        return len(data)


ROUNDS = 2
"""In the first pass a key travels from the focused widget up to the app. In the second pass its effects are
handled: a changed text, another focus.
"""


async def taken(app: App[Any]) -> None:
    """Return once the last key has been handled everywhere.

    It may never return if the receiver of the key ends; the caller needs a time limit.
    """
    for _ in range(ROUNDS):
        for pump in _way(app):
            passed = asyncio.Event()
            if pump.call_later(passed.set):
                await passed.wait()


def _way(app: App[Any]) -> list[MessagePump]:
    """The app, which sees a key first, then those that may take it, from what has the focus up."""
    try:
        first: DOMNode = app.focused or app.screen
    except ScreenStackError:  # it is on its way out
        return []
    return [app, *first.ancestors_with_self]


SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
LOOK_AGAIN_MS = 50
TYPING_S = 2 * ESCAPE_DELAY + 0.5
"""So long after the last key nothing of a key can be waited for any more."""
PATIENCE_S = 1.0
"""So long the next key waits for the one before: opening a box takes a tenth of that on a busy node."""
LOOK_FOR_END_S = 0.01
_CLOSED = (-1, -1)


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
    """Textual's driver with the things above, and a reader of keys that sleeps while nothing is typed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.terminal = Terminal(cast(TextIO, self._file))
        self._file = cast(Any, self.terminal)
        self._ending = _CLOSED  # a pipe, written to when the thread that reads keys is to end

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

    @property
    def can_suspend(self) -> bool:
        """Whether a shell started this process as a job of its own, and can bring it back.

        Nothing can bring it back under `ssh -t` or in a container. Under `make` and in scripts the shell
        would not see that it stopped, and the processes that stop with it may be training.
        """
        parent = os.getppid()
        with contextlib.suppress(OSError):
            return os.getpgrp() == os.getpid() != os.getsid(0) and os.getsid(parent) == os.getsid(0)
        return False  # a parent that may not be looked at is none of this terminal's

    def _stop_for_shell(self) -> None:
        """Restore the terminal and stop, as SIGTSTP asks; runs in the event loop, where no frame is half
        written.
        """
        if self.can_suspend:
            self._sigtstp_application()

    def _sigcont_application(self, *arguments: object) -> None:
        """Resume after Ctrl-Z, and after nothing else.

        The kernel sends SIGCONT also with the SIGHUP of a terminal that disappears. Resuming there would
        leave a second pair of threads, and its reader would loop forever.
        """
        if self._must_signal_resume:
            super()._sigcont_application(*arguments)

    def start_application_mode(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._leave, loop, number)
        loop.add_signal_handler(signal.SIGTSTP, self._stop_for_shell)
        if self._ending == _CLOSED:
            self._ending = os.pipe()
            os.set_blocking(self._ending[0], False)
        super().start_application_mode()  # type: ignore[no-untyped-call]
        loop.add_signal_handler(signal.SIGWINCH, self._resized)

    def _resized(self) -> None:
        """Report the size to the app, in the event loop.

        A signal may interrupt Textual's handler between reading the size and reporting it. Then an older size
        would be reported last, and stay.
        """
        if not self._in_band_window_resize:
            size = Size(*self._get_terminal_size())
            self.send_message(Resize(size, size))

    def stop_application_mode(self) -> None:
        self._drop_waiting()
        super().stop_application_mode()

    def _drop_waiting(self) -> None:
        """Drop the frames that a slow link has not taken: the prompt must not wait for them."""
        if self._writer_thread is not None:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._writer_thread._queue.get_nowait()

    def disable_input(self) -> None:
        if not self.exit_event.is_set():
            os.write(self._ending[1], b"!")
        super().disable_input()
        with contextlib.suppress(BlockingIOError):
            os.read(self._ending[0], 64)

    def close(self) -> None:
        """Runs at the end and before each stop: whatever is open then is opened again when the shell resumes
        the process.
        """
        super().close()
        ends, self._ending = self._ending, _CLOSED
        for end in ends:
            os.close(end)

    def run_input_thread(self) -> None:
        """Wait for input until the end.

        Textual's version wakes ten times a second. That costs more than everything a quiet dashboard draws,
        and it ends up to 0.2 s late. This one is woken by keys and by the end. It polls again only after a
        key, because an Escape may be a key of its own or start a longer one.
        """
        poll = select.poll()
        for readable in (self.fileno, self._ending[0]):
            poll.register(readable, select.POLLIN)
        parser = XTermParser(self._debug)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        typed_at = -math.inf
        while not self.exit_event.is_set():
            soon = time.monotonic() - typed_at < TYPING_S
            ready = dict(poll.poll(LOOK_AGAIN_MS if soon else None))
            if self._ending[0] in ready:
                self.exit_event.wait()
            elif self.fileno in ready:
                try:
                    typed = os.read(self.fileno, 4096)
                except OSError:
                    typed = b""
                if not typed:  # the terminal vanished: the app sees `gone`
                    return
                typed_at = time.monotonic()
                self._pass_on(parser.feed(decode(typed)))
            self._pass_on(parser.tick())

    def _pass_on(self, found: Iterable[Message]) -> None:
        for message in found:
            self.process_message(message)
            if isinstance(message, Key | Paste):
                self._take_turns()

    def _take_turns(self) -> None:
        """Wait until the app has done with a key before it is given the next one, but not for ever."""
        done = asyncio.run_coroutine_threadsafe(taken(self._app), self._loop)
        end = time.monotonic() + PATIENCE_S
        while not done.done() and time.monotonic() < end and not self.exit_event.is_set():
            wait([done], timeout=LOOK_FOR_END_S)
        done.cancel()

    def _leave(self, loop: asyncio.AbstractEventLoop, number: signal.Signals) -> None:
        # A second one ends it at once, should the terminal take nothing any more.
        loop.remove_signal_handler(number)
        self._app.exit(return_code=128 + number)
