"""Reads where the time of recorded runs went, in a thread: a viewer never waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hoptui.domain.line_counts import FoundLines
from hoptui.model.recorded.lines import RecordedLines
from hoptui.protocol.ranges import MOST_STAMP

Answer = Callable[[FoundLines], None]
LIVE_NS = 30_000_000_000
"""The recording of a live run is read again after this time."""


class LineReader:
    """One recording at a time. Of the questions that come while it reads, the newest of each kind counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[bool, Callable[[], None]] = {}  # by whether it is about the whole time
        self._reading = False
        self._lines: RecordedLines | None = None

    def ask(self, path: Path, t: int, answer: Answer, *, whole: bool, live: bool = False) -> None:
        """Read the lines of the minute around a stamp, or of the `whole` time before it. Returns at once.

        `answer` is called in the thread. Of a `live` run, the answer holds for half a minute.
        """
        with self._lock:
            self._asked[whole] = partial(self._read, path, t, answer, whole, live)
            if self._reading:
                return
            self._reading = True
        threading.Thread(target=self._main, name="hoptui-lines", daemon=True).start()

    def _main(self) -> None:
        while True:
            with self._lock:
                if not self._asked:
                    self._reading = False
                    return
                read = self._asked.pop(next(iter(self._asked)))
            read()

    def _read(self, path: Path, t: int, answer: Answer, whole: bool, live: bool) -> None:
        if self._lines is None or self._lines.path != path:
            self._lines = RecordedLines(path)
        try:
            if not path.exists():
                found = FoundLines(problem="no_recording", detail=str(path), t1=MOST_STAMP)
            else:
                found = self._lines.upto(t) if whole else self._lines.around(t)
        except Exception as error:  # the thread goes on, and the reason is shown
            found = FoundLines(problem="unreadable", detail=str(error) or type(error).__name__, t1=MOST_STAMP)
        answer(found._replace(t0=t, t1=t + LIVE_NS) if live else found)
