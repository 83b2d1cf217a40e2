"""The client of the daemon: one thread with the viewer's only socket, which fills the store and carries commands.

It starts the daemon where there is none, comes back when the daemon does, and keeps what it knows in the meantime. Which
message is next is decided in `protocol`; here are the socket, the clock and the process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import zmq

from hoptui.viewer.connection import LAST_WORD_MS, Connection
from hoptui.viewer.outbox import Outbox
from hoptui.viewer.protocol import Conversation, Leased, LeaseOp
from hoptui.viewer.store import Store
from hoptui.wire import codec, presence
from hoptui.wire.addresses import AddressError, Addresses, addresses
from hoptui.wire.credentials import user_name
from hoptui.wire.knobs import KnobValue
from hoptui.wire.messages import Command, Origin, State, Verb, ViewerBye

Change = Literal["link", "node", "events", "commands", "vitals"]

QUIET_S = 1.0  # after so long without a word the daemon's lock is looked at
START_AGAIN_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
TRY_AGAIN_S = 5.0  # with a daemon that was of no use


class Link(NamedTuple):
    """How the viewer stands with the daemon, `since` a time of `time.monotonic`, `reason` a sentence unless live."""

    state: Literal["connecting", "live", "lost", "failed"]
    since: float
    reason: str = ""
    round_trip_ms: float | None = None


class Client:
    """Connects to the daemon of `where` (default: this user's) in a thread of its own, once started.

    `on_change` is called in that thread, and only for changes of state: of the link, the node, events, commands, or of a
    run's state word. Rows are looked up in `store` by whoever draws them, when they draw.
    """

    def __init__(
        self,
        where: Addresses | None = None,
        *,
        client: str = "dashboard",
        on_change: Callable[[Change], None] | None = None,
        start_daemon: bool = True,
    ) -> None:
        self.store = Store()
        self.link = Link("connecting", time.monotonic())
        self._where = where
        self._on_change = on_change
        self._start_daemon = start_daemon
        self._origin = Origin(user=user_name(), pid=os.getpid(), client=client)
        self._outbox = Outbox()
        self._conversation = Conversation(self.store, self._outbox, client=client, viewer=os.urandom(8).hex())
        self._calls: deque[Callable[[], None]] = deque()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._main, name="hoptui-viewer", daemon=True)
        self._told = self._versions()
        self._check_at = 0.0
        self._start_at = 0.0
        self._starts = 0

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """End the thread and the connection; nothing changes for any run."""
        self._closing.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(2.0)
        if not self._thread.is_alive():
            self._wake_in.close()
            self._wake_out.close()

    def watch(self, run: str | None) -> None:
        """Follow this run's rows and process beside host and GPUs; None: only the last values of every run."""
        self._call(lambda: self._conversation.watch(run, time.monotonic()))

    def send(
        self,
        verb: Verb,
        run_id: str,
        *,
        knob: str = "",
        value: KnobValue | None = None,
        expect_version: int | None = None,
        why: str = "",
        hold_s: float = 60.0,
    ) -> str:
        """Send a command and return its id at once; `store.commands[id]` tells what becomes of it."""
        run = self.store.run(run_id)
        command = Command(
            id=os.urandom(8).hex(),
            run=run_id,
            epoch=run.epoch if run else 0,
            verb=verb,
            knob=knob,
            value=value,
            expect_version=expect_version,
            hold_s=hold_s,
            origin=self._origin,
            why=why,
        )
        self.store.sent(command)
        self._outbox.add(command, time.monotonic())
        self._wake()
        return command.id

    def lease(self, run_id: str, op: LeaseOp, what: Leased = "wheel") -> None:
        """Take, renew, release or steal the wheel of a run, or renew its pause; answers come to `store.leases`."""
        self._call(partial(self._conversation.lease, run_id, op, what))

    def sample(self, hz: float) -> None:
        """Ask for GPUs to be sampled so often from now on (0: as the daemon likes; at most 10)."""
        self._call(partial(setattr, self._conversation, "hz", hz))

    def pending(self) -> dict[str, Command]:
        """The commands of which the daemon has not said anything yet."""
        return self._outbox.unanswered()

    def _call(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: the thread is awake anyway
            self._wake_out.send(b"!")

    # in the thread -----------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        context = zmq.Context()
        try:
            where = self._where or addresses()
            self._begin(where)
            connection = Connection(context, where, self._wake_in)
            self._conversation.connected(time.monotonic())
            while not self._closing.is_set():
                self._turn(connection, where)
            connection.send(codec.encode(ViewerBye()))
        except AddressError as error:
            self._set_link("failed", str(error))
        except Exception as error:  # the thread ends, but never without a word
            self._set_link("failed", f"the viewer's connection broke: {type(error).__name__}: {error}")
        finally:
            context.destroy(linger=LAST_WORD_MS)
            with contextlib.suppress(Exception):  # the screen may be gone
                self._tell()

    def _turn(self, connection: Connection, where: Addresses) -> None:
        while self._calls:
            self._calls.popleft()()
        now = time.monotonic()
        reason = self._trouble(where, now)
        if reason:
            connection.reopen()
            self._conversation.connected(now)
        for message in self._conversation.due(now):
            connection.send(codec.encode(message))
        self._tell()
        wake_at = min(self._conversation.wake_at(), max(self._check_at, self._conversation.heard + QUIET_S))
        for frames in connection.receive(max(0.0, wake_at - time.monotonic())):
            try:
                self._conversation.receive(codec.to_viewer(frames), time.monotonic())
            except codec.WireError as error:
                self._conversation.refused += 1
                self._conversation.complaint = str(error)
        if self._conversation.greeted:
            self._starts = 0
            self._set_link("live")

    def _begin(self, where: Addresses) -> None:
        if not presence.daemon_lives(where):
            self._start(where, time.monotonic())

    def _trouble(self, where: Addresses, now: float) -> str:
        """Why the connection has to be made anew, if it has; starts the daemon where there is none."""
        talk = self._conversation
        if talk.problem:
            self._set_link("failed", talk.problem)
            self._check_at = talk.heard + TRY_AGAIN_S
            if now < self._check_at:
                return ""
            reason, talk.problem = talk.problem, ""
            return reason
        reason = ""
        if now >= max(self._check_at, talk.heard + QUIET_S):
            self._check_at = now + QUIET_S / 2
            if not presence.daemon_lives(where):
                reason = "the daemon is gone" if talk.greeted else "no daemon is running"
                self._lose(reason)
                self._start(where, now)
        if not reason and talk.silent(now):
            pid = f" (pid {talk.daemon.pid})" if talk.daemon else ""
            reason = f"the daemon{pid} does not answer"
            self._lose(reason)
        return reason

    def _lose(self, reason: str) -> None:
        if self.link.state != "failed":
            self._set_link("connecting" if self._conversation.daemon is None else "lost", reason)

    def _start(self, where: Addresses, now: float) -> None:
        if not self._start_daemon or now < self._start_at:
            return
        self._starts = min(self._starts + 1, len(START_AGAIN_S) - 1)
        self._start_at = now + START_AGAIN_S[self._starts]
        try:
            presence.start_daemon(where)
        except presence.StartError as error:
            self._set_link("failed", str(error))
        self._check_at = time.monotonic() + QUIET_S

    def _set_link(self, state: Literal["connecting", "live", "lost", "failed"], reason: str = "") -> None:
        trip = self._conversation.round_trip_s
        since = self.link.since if self.link.state == state else time.monotonic()
        self.link = Link(state, since, reason, trip * 1e3 if trip is not None else None)

    def _tell(self) -> None:
        """Call `on_change` for what is different from what was told last."""
        now = self._versions()
        before, self._told = self._told, now
        if self._on_change is not None:
            for change in (change for change in now if now[change] != before.get(change)):
                self._on_change(change)

    def _versions(self) -> dict[Change, object]:
        states: dict[str, State] = {run: vital.state for run, vital in self.store.vitals.items()}
        return {
            "link": self.link[:3],
            "node": self.store.node_version,
            "events": self.store.events_version,
            "commands": self.store.commands_version,
            "vitals": states,
        }
