"""A pidfd for each run's process: the kernel says at once when it ends, and never mistakes another process
for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import zmq

from hoptui.daemon.handlers.runs import process_started
from hoptui.daemon.state.registry import TrackedRun
from hoptui.daemon.timings import DEFAULT

log = logging.getLogger("hoptui.daemon")


class Lives:
    """Registers with the loop's poller; `end` is called with a run whose process is gone, a reason and a
    detail.

    The clock is passed in: seconds, monotonic.
    """

    def __init__(
        self,
        poller: zmq.Poller,
        end: Callable[[TrackedRun, str, str], None],
        last_words_s: float = DEFAULT.last_words_s,
    ) -> None:
        self._last_words_s = last_words_s
        self._poller = poller
        self._end = end
        self._watched: dict[int, TrackedRun] = {}
        self._gone: dict[str, tuple[TrackedRun, float]] = {}

    def watch(self, run: TrackedRun) -> None:
        """Be told when the run's process ends; if it has ended already, say so now."""
        for number, watched in list(self._watched.items()):
            if watched is run or watched.id == run.id:
                self._unwatch(number)
        self._gone.pop(run.id, None)
        pid = run.state.pid
        try:
            number = os.pidfd_open(pid)
        except ProcessLookupError:
            self._end(run, "exited", "its process is gone")
            return
        except OSError as error:
            log.warning("the process %d of %s cannot be watched: %s", pid, run.state.name, error)
            return
        if run.process_started and process_started(pid) != run.process_started:
            os.close(number)
            self._end(run, "exited", "its process ended while no daemon was running")
            return
        self._watched[number] = run
        self._poller.register(number, zmq.POLLIN)

    def ended(self, ready: Mapping[Any, int], now: float) -> None:
        """Note whose process is gone, by what the poller says; end those whose last words have had their
        time."""
        for number in [number for number in self._watched if number in ready]:
            run = self._watched[number]
            self._unwatch(number)
            self._gone[run.id] = (run, now + self._last_words_s)
        for name, (run, until) in list(self._gone.items()):
            if run.exited or now >= until:
                self._silent(name)

    def next_deadline(self) -> float | None:
        """When the next silent end is to be told; None where none is waiting."""
        return min((until for _, until in self._gone.values()), default=None)

    def bury(self, run_id: str) -> None:
        """Before a hello of a known run: if its last process is gone, note that first."""
        for number, run in list(self._watched.items()):
            if run.id == run_id and process_started(run.state.pid) != run.process_started:
                self._unwatch(number)
                self._gone[run_id] = (run, 0.0)
        if run_id in self._gone:
            self._silent(run_id)

    def _silent(self, run_id: str) -> None:
        run, _ = self._gone.pop(run_id)
        if not run.exited:
            self._end(run, "killed", "its process ended without a word")

    def _unwatch(self, number: int) -> None:
        self._poller.unregister(number)
        os.close(number)
        del self._watched[number]
