"""Planted defects in the daemon and in what viewers make of its answers."""

from __future__ import annotations

import os
from typing import Any

from msgspec import structs

from hoptui.client import connection, conversation
from hoptui.daemon import process_watch, server, sockets
from hoptui.daemon.handlers import pages, runs, viewers
from hoptui.daemon.state import command_log, registry
from hoptui.sdk import command_inbox
from tests.simulation.defects import Patch, clock, defect, nothing


@defect("an outcome is acknowledged before it is written", "last change")
def _early_acknowledgement() -> list[Patch]:
    outcome = runs.RunDesk._outcome

    def early(self: Any, run: Any, said: Any) -> None:
        outcome(self, run, said)
        self._acknowledge(run.id, said.id, said.stage)

    return [(runs.RunDesk, "_outcome", early)]


@defect("outcomes go to a new daemon once", "narrow", "kill daemon")
def _once_anew() -> list[Patch]:
    unsettled = command_inbox.CommandInbox.unsettled

    def once(self: Any) -> Any:
        found = unsettled(self)
        for outcome in found:
            self._commands.pop(outcome.id, None)
        return found

    return [(command_inbox.CommandInbox, "unsettled", once)]


@defect("a lost wake-up of viewers")
def _lost_wake_up() -> list[Patch]:
    def later(self: Any) -> None:
        self._serve_at = min(self._serve_at, clock().monotonic() + 2.0)

    return [(server.Server, "_changed", later), (viewers.ViewerDesk, "tell", nothing)]


@defect("a full socket of a run loses the command", "narrow")
def _lost_command() -> list[Patch]:
    def once(self: Any, run: Any) -> None:
        for name, command in self._unsent.pop(run.id, {}).items():
            if run.identity is not None:
                self._send(run.identity, command)
                self._node.book.give(name)

    return [(runs.RunDesk, "_forward_waiting", once)]


@defect("commands are not forwarded after a reconnect")
def _no_unanswered() -> list[Patch]:
    return [(command_log.Book, "unanswered", lambda self, run: []), (runs.RunDesk, "pump", nothing)]


@defect("what became of a command is guessed")
def _guessed_fate() -> list[Patch]:
    void = command_log.Book.void

    def sure(self: Any, run: str, why: Any, t: int, *, ended: bool = True, told: int | None = None) -> Any:
        newest = max((record.epoch for record in self.of(run)), default=None)
        return void(self, run, why, t, ended=ended, told=newest)

    return [(command_log.Book, "void", sure)]


@defect("a new daemon does not know the predecessor may have passed a command on", "last change")
def _not_passed_on() -> list[Patch]:
    submit = command_log.Book.submit

    def fresh(self: Any, command: Any, *rest: Any) -> Any:
        answer = submit(self, command, *rest)
        self._given.discard(command.id)
        return answer

    return [(command_log.Book, "submit", fresh)]


@defect("open commands stay open when a run ends")
def _never_void() -> list[Patch]:
    return [(command_log.Book, "void", lambda self, *_, **__: [])]


@defect("commands are not restored")
def _no_restore() -> list[Patch]:
    return [(command_log.Book, "restore", nothing)]


@defect("numbers of records follow the wall clock", "wall clock")
def _wall_numbers() -> list[Patch]:
    def number(self: Any, wall: float) -> int:
        self._seq = int(clock().time() * 1e6)
        return int(self._seq)

    return [(command_log.Book, "number", number)]


@defect("the value is shown before it is read back")
def _early_value() -> list[Patch]:
    submit = command_log.Book.submit

    def eager(self: Any, command: Any, run: Any, *rest: Any) -> Any:
        answer = submit(self, command, run, *rest)
        if run is not None and command.verb == "set":
            state = run.state
            eagerly = tuple(structs.replace(k, value=command.value) for k in state.knobs)
            run.state = structs.replace(state, knobs=eagerly)
        return answer

    return [(command_log.Book, "submit", eager), (registry.TrackedRun, "outcome", nothing)]


@defect("a tuner may change what a person has set", "tuner")
def _tuner_wins() -> list[Patch]:
    return [(command_log.Book, "_hold", nothing)]


@defect("what a killed daemon did not pass on stays open", "logout")
def _never_lost() -> list[Patch]:
    return [(command_log.Book, "lose", lambda self, run, epoch, t: [])]


@defect("a command that an earlier daemon may have passed on is rejected", "last change")
def _not_repeated() -> list[Patch]:
    submit = command_log.Book.submit

    def fresh(self: Any, command: Any, *rest: Any) -> Any:
        return submit(self, structs.replace(command, repeated=False), *rest)

    return [(command_log.Book, "submit", fresh)]


@defect("a command that was given up is carried out", "stop daemon")
def _never_too_late() -> list[Patch]:
    return [(command_log, "REPEATED_S", 1e9)]


@defect("a restart does not raise the epoch")
def _same_epoch() -> list[Patch]:
    state = registry._state

    def first(hello: Any, epoch: int, wall: float) -> Any:
        return state(hello, 1, wall)

    return [(registry, "_state", first)]


@defect("the end of a process is not noticed", "kill run")
def _unnoticed_end() -> list[Patch]:
    return [(process_watch.ProcessWatch, "watch", nothing)]


@defect("a socket that was removed is not bound again")
def _no_heal() -> list[Patch]:
    return [(sockets.Doorway, "heal", lambda self: False)]


@defect("two daemons at once")
def _no_lock() -> list[Patch]:
    taken = sockets.Lock._taken

    def anyway(self: Any) -> int:
        try:
            return taken(self)
        except sockets.AlreadyRunningError:
            flags = os.O_RDWR | os.O_CREAT
            return os.open(self._where.lock, flags, 0o600)

    return [(sockets.Lock, "_taken", anyway)]


@defect("off by one in the pages of commands", "wall clock")
def _off_by_one() -> list[Patch]:
    since = command_log.Book.since

    def later(self: Any, seq: int, run: str = "") -> Any:
        return since(self, seq + 1 if seq else 0, run)

    return [(command_log.Book, "since", later)]


@defect("an endless page")
def _one_page() -> list[Patch]:
    def everything(records: Any) -> Any:
        padded = [structs.replace(r, why="x" * 30_000) for r in records]
        return tuple(padded), False

    return [(pages, "commands", everything)]


@defect("a command is given when its outcome comes", "last change")
def _given_with_its_outcome() -> list[Patch]:
    taken_over = command_log._taken_over

    def late(run: str, outcome: Any, t: int, wall: float) -> Any:
        command = outcome.command and structs.replace(outcome.command, t=0)
        return taken_over(run, structs.replace(outcome, command=command), t, wall)

    return [(command_log, "_taken_over", late)]


@defect("a restart that a daemon has missed stays under way", "set width")
def _under_way_for_ever() -> list[Patch]:
    return [(command_log.Book, "void_unreported", lambda *_: [])]


@defect("a viewer takes the state of another daemon for an older one", "kill daemon")
def _stale_version() -> list[Patch]:
    fetched = conversation.Conversation._fetched

    def newer(self: Any, delta: Any, now: float) -> None:
        newest = self.__dict__.setdefault("_newest", 0)
        self.__dict__["_newest"] = max(newest, delta.state)
        fetched(self, structs.replace(delta, node=None) if delta.state < newest else delta, now)

    return [(conversation.Conversation, "_fetched", newer)]


@defect("a viewer drops what its socket does not take", "narrow", "burst")
def _dropped_frames() -> list[Patch]:
    send = connection.DaemonConnection.send

    def careless(self: Any, *frames: bytes) -> None:
        send(self, *frames)
        self._unsent.clear()

    return [(connection.DaemonConnection, "send", careless)]


@defect("a viewer keeps its cursors for another daemon", "crash")
def _stale_cursors() -> list[Patch]:
    welcomed = conversation.Conversation._welcomed

    def keep(self: Any, welcome: Any, now: float) -> None:
        before = self._events, self._commands
        welcomed(self, welcome, now)
        self._events, self._commands = before

    return [(conversation.Conversation, "_welcomed", keep)]


@defect("a viewer takes the end of a command back")
def _taken_back() -> list[Patch]:
    from hoptui.model import store

    return [(store, "_news", lambda known, record: known != record)]
