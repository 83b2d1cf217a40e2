"""A clean stop on Ctrl-C or SIGTERM: the first one finishes the iteration, the second one ends at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType

import hoptui

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPED = "TRAINER_STOPPED"
"""In the environment: a file to write once a signal has stopped the run. By it a batch file knows this ending
from the others, which have the same exit code."""


class StopOnSignal:
    """While entered, a signal asks the run to stop at its next boundary. Main thread only.

    The previous handlers come back on leaving. They come back with the first signal too, so that a second
    one acts as if this class were not there. `received` is true after the first one.
    """

    def __init__(self, run: hoptui.Run) -> None:
        self._run = run
        self.received = False

    def __enter__(self) -> StopOnSignal:
        self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """In here a signal acts as if this class were not there: what takes a minute to prepare has no next
        boundary."""
        self._restore()
        yield
        self._listen()

    def _listen(self) -> None:
        self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._restore()
        self.received = True
        which = signal.Signals(number)
        self._run.stop(which.name)
        # os.write: print is not reentrant, and the signal may have come in the middle of one. Who read this
        # may be gone already: Ctrl-C ends `tee` as well.
        again = "" if self._before[which] is signal.SIG_IGN else "; once more ends at once"
        with contextlib.suppress(OSError):
            os.write(2, f"{which.name}: stopping after this iteration{again}\n".encode())

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
