"""A pidfd for each run's process: the kernel says at once when it ends, and never mistakes another process for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import zmq

from hoptui.daemon.registry import TrackedRun
from hoptui.daemon.runs import process_started

log = logging.getLogger("hoptui.daemon")


class Lives:
    """Registers with the loop's poller; `end` is called with a run whose process is gone, a reason and a detail."""

    def __init__(self, poller: zmq.Poller, end: Callable[[TrackedRun, str, str], None]) -> None:
        self._poller = poller
        self._end = end
        self._watched: dict[int, TrackedRun] = {}

    def watch(self, run: TrackedRun) -> None:
        """Be told when the run's process ends; if it has ended already, say so now."""
        for number, watched in list(self._watched.items()):
            if watched is run or watched.id == run.id:
                self._unwatch(number)
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

    def ended(self, ready: Mapping[Any, int], last_words: Callable[[], None]) -> None:
        """End the runs whose process is gone, by what the poller says; `last_words` takes in what they said before."""
        for number in [number for number in self._watched if number in ready]:
            run = self._watched[number]
            self._unwatch(number)
            last_words()  # a Bye explains more than a vanished process
            self._end(run, "killed", "its process ended without a word")

    def bury(self, run_id: str) -> None:
        """Before a hello of a known run: if its last process is gone, note that first."""
        for number, run in list(self._watched.items()):
            if run.id == run_id and process_started(run.state.pid) != run.process_started:
                self._unwatch(number)
                self._end(run, "killed", "its process ended without a word")

    def _unwatch(self, number: int) -> None:
        self._poller.unregister(number)
        os.close(number)
        del self._watched[number]
