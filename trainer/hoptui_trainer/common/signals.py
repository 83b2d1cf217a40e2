"""A clean stop on Ctrl-C or SIGTERM: the first one finishes the iteration, the second one ends at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType

import hoptui

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopOnSignal:
    """While entered, a signal asks the run to stop at its next boundary. Main thread only.

    The previous handlers come back on leaving. They come back with the first signal too, so that a second
    one acts as if this class were not there.
    """

    def __init__(self, run: hoptui.Run) -> None:
        self._run = run

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
        name = signal.Signals(number).name
        self._run.stop(name)
        # os.write: print is not reentrant, and the signal may have come in the middle of one. Who read this
        # may be gone already: Ctrl-C ends `tee` as well.
        with contextlib.suppress(OSError):
            os.write(2, f"{name}: stopping after this iteration; once more ends at once\n".encode())

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
