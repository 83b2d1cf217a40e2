"""Watches the processes of runs: the kernel reports the end of each at once.

Each process has a pidfd, which never refers to another process.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import zmq

from hoptui.daemon.process_endings import ProcessEnding, ending_of
from hoptui.daemon.state.registry import Leaving, TrackedRun
from hoptui.domain.pacing import DEFAULT
from hoptui.node.processes import process_started

LONGEST_UNREAD_S = 5.0
"""The end of a run's process is not reported while messages are unread, for so long at most."""

log = logging.getLogger("hoptui.daemon")


class _Watched(NamedTuple):
    """A process of a run. `rank` is 0 for the one that represents it."""

    run: TrackedRun
    rank: int
    pid: int


class _Gone(NamedTuple):
    watched: _Watched
    until: float
    ending: ProcessEnding


class ProcessWatch:
    """Watches processes with the loop's poller.

    `end` is called with a run whose process is gone, a reason and a detail. `rank_ended` is called with a
    run, the rank and the pid of another of its processes, and how it ended. The clock is passed in: seconds,
    monotonic.
    """

    def __init__(
        self,
        poller: zmq.Poller,
        end: Callable[..., None],
        last_words_s: float = DEFAULT.last_words_s,
        rank_ended: Callable[[TrackedRun, int, int, ProcessEnding], None] | None = None,
    ) -> None:
        self._last_words_s = last_words_s
        self._poller = poller
        self._end = end
        self._rank_ended = rank_ended
        self._watched: dict[int, _Watched] = {}
        self._gone: dict[str, _Gone] = {}
        self._ranks_gone: list[_Gone] = []

    def watch(self, run: TrackedRun, hello_at: float | None = None) -> None:
        """Watch the run's processes. If its own has already ended, report that: now, or after its last words
        if it has said hello, at `hello_at`."""
        pid = run.state.pid
        if any((one.run, one.pid) == (run, pid) for one in self._watched.values() if not one.rank):
            self._watch_ranks(run)
            return
        for number, watched in list(self._watched.items()):
            if watched.run is run or watched.run.id == run.id:
                self._unwatch(number)
        gone = self._gone.pop(run.id, None)
        run.watched = False
        try:
            number = os.pidfd_open(pid)
        except ProcessLookupError:
            ending = ProcessEnding("exited", "its process is gone", known=False)
            if gone is not None and gone.watched.pid == pid:
                ending = gone.ending
            if hello_at is None and run.leaving is not None:
                self._end_as_said(run, run.leaving)
            elif hello_at is None:
                self._end(run, ending.reason, ending.detail)
            else:  # what it sent before it ended follows its hello
                self._gone[run.id] = _Gone(_Watched(run, 0, pid), hello_at + self._last_words_s, ending)
            return
        except OSError as error:
            log.warning("the process %d of %s cannot be watched: %s", pid, run.state.name, error)
            return
        if run.process_started and process_started(pid) != run.process_started:
            os.close(number)
            if run.leaving is not None:
                self._end_as_said(run, run.leaving)
            else:
                self._end(run, "exited", "its process ended while no daemon was running")
            return
        run.watched, run.lived_until = True, None
        self._add(number, _Watched(run, 0, pid))
        self._watch_ranks(run)

    def _watch_ranks(self, run: TrackedRun) -> None:
        known = {(one.rank, one.pid) for one in self._watched.values() if one.run is run}
        for rank in run.state.ranks:
            if rank.rank in run.members and (rank.rank, rank.pid) not in known:
                with contextlib.suppress(OSError):
                    self._add(os.pidfd_open(rank.pid), _Watched(run, rank.rank, rank.pid))

    def _add(self, number: int, watched: _Watched) -> None:
        self._watched[number] = watched
        self._poller.register(number, zmq.POLLIN)

    def look(self, ready: Mapping[Any, int], now: float) -> None:
        """Record which processes are gone, before the messages of others say what followed from it."""
        for number in [number for number in self._watched if number in ready]:
            watched = self._watched[number]
            ending = ending_of(number, watched.pid)
            self._unwatch(number)
            gone = _Gone(watched, now + self._last_words_s, ending)
            if not watched.rank:
                self._gone[watched.run.id] = gone
                continue
            self._ranks_gone.append(gone)
            if ending.known and not ending.normal:
                watched.run.dead[watched.rank] = ending.text

    def ended(self, ready: Mapping[Any, int], now: float, *, unread: bool = False) -> None:
        """Record which processes are gone, and end runs whose last messages have had time to arrive.

        `unread`: messages of runs still wait to be read.
        """
        self.look(ready, now)
        for name, gone in list(self._gone.items()):
            run = gone.watched.run
            waits = now < gone.until or (unread and now < gone.until + LONGEST_UNREAD_S)
            if run.exited or run.leaving is not None or not waits:
                self._silent(name)
        for gone in [gone for gone in self._ranks_gone if now >= gone.until]:
            self._ranks_gone.remove(gone)
            run, rank, pid = gone.watched
            if rank in run.members and self._rank_ended is not None:
                self._rank_ended(run, rank, pid, gone.ending)
        for run in self._leaving():
            if run.leaving is not None and now >= run.leaving.until:  # it lives on after its exit handlers
                self._end_as_said(run, run.leaving)

    def _leaving(self) -> list[TrackedRun]:
        watched = (one.run for one in self._watched.values() if not one.rank)
        return [run for run in watched if run.leaving is not None and not run.exited]

    def next_deadline(self) -> float | None:
        """Return when the next silent end will be reported, None if none is waiting."""
        untils = [gone.until for gone in (*self._gone.values(), *self._ranks_gone)]
        untils += [run.leaving.until for run in self._leaving() if run.leaving is not None]
        return min(untils, default=None)

    def report_end(self, run_id: str) -> None:
        """Before a hello of another process of a known run: if its last one is gone, report that first."""
        for number, (run, rank, pid) in list(self._watched.items()):
            if not rank and run.id == run_id and process_started(run.state.pid) != run.process_started:
                ending = ending_of(number, pid)
                self._unwatch(number)
                self._gone[run_id] = _Gone(_Watched(run, 0, pid), 0.0, ending)
        for run in self._leaving():
            if run.id == run_id and run_id not in self._gone and run.leaving is not None:
                self._end_as_said(run, run.leaving)
        if run_id in self._gone:
            self._silent(run_id)

    def _silent(self, run_id: str) -> None:
        (run, _, _), _, ending = self._gone.pop(run_id)
        if run.exited:
            return
        told = run.leaving is not None and run.leaving.said.told
        if run.leaving is not None and (ending.normal or not ending.known):
            self._end_as_said(run, run.leaving)
        elif told:
            self._end(run, ending.reason, ending.detail, told=True)
        else:
            self._end(run, ending.reason, ending.detail)

    def _end_as_said(self, run: TrackedRun, leaving: Leaving) -> None:
        said = leaving.said
        self._end(run, said.reason, said.detail, told=said.told)

    def _unwatch(self, number: int) -> None:
        self._poller.unregister(number)
        os.close(number)
        del self._watched[number]
