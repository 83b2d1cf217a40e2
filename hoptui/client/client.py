"""The client of the daemon: one thread with the viewer's only socket. It fills the store and sends commands.

It reconnects when the daemon returns, and keeps its data in the meantime. `conversation` decides which
message is next, `routes` how to reach the daemon. This module has the socket and the clock.
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
from typing import TYPE_CHECKING, Literal, NamedTuple, Unpack

import zmq
from msgspec.structs import replace

from hoptui.client.connection import LAST_WORD_MS, TAKE_MS, DaemonConnection
from hoptui.client.conversation import NO_LIMITS, Conversation, Details, Outbox, ReadOnlyError, TuneOp
from hoptui.client.routes import Here, Trouble, Way
from hoptui.client.subscriptions import on_the_line
from hoptui.client.target import Place
from hoptui.domain.line_counts import FoundLines
from hoptui.domain.tuning import Limits
from hoptui.model.store import Store
from hoptui.node.addresses import AddressError, Addresses, addresses
from hoptui.node.processes import user_name
from hoptui.protocol import codec
from hoptui.protocol.messages import Buckets, Command, Origin, State, Verb, ViewerBye

if TYPE_CHECKING:
    from hoptui.client.line_reader import LineReader

Change = Literal["link", "node", "events", "commands", "vitals"]

TRY_AGAIN_S = 5.0  # after a daemon that cannot be used


LinkState = Literal["connecting", "live", "lost", "failed"]


class Link(NamedTuple):
    """The connection to the daemon. Times are of `time.monotonic`; `reason` is a sentence unless live.

    `node` is the other node's name, empty for this one's daemon. The newest answer came at `answered` and was
    `under_way_s` old then. Over a `slow` link, less is requested.
    """

    state: LinkState
    since: float
    reason: str = ""
    round_trip_ms: float | None = None
    node: str = ""
    answered: float | None = None
    under_way_s: float = 0.0
    slow: bool = False

    def age_s(self, now: float) -> float | None:
        """Return the age of the daemon's newest answer in seconds, None before the first."""
        return None if self.answered is None else max(0.0, now - self.answered) + self.under_way_s


class Client:
    """Connects to the daemon of `where` (default: this user's), or to the one at the end of `way`, in a
    thread.

    `on_change` is called in that thread, and only for changes of state: of the link, the node or its known
    past, events, commands, or a run's state word. It may be set later; the caller then reads the current
    state. Rows are read from `store` when they are drawn.

    With `read_only`, `send`, `renew_pause`, `tune` and `sample` raise `ReadOnlyError`. The client then sends
    only queries.
    """

    def __init__(
        self,
        where: Addresses | None = None,
        *,
        way: Way | None = None,
        client: str = "dashboard",
        on_change: Callable[[Change], None] | None = None,
        start_daemon: bool = True,
        read_only: bool = False,
    ) -> None:
        self.store = Store()
        self.read_only = read_only
        self.place = way.place if way else Place()
        node = self.place.name if self.place.remote else ""
        self.link = Link("connecting", time.monotonic(), node=node)
        self._where = where
        self._way = way
        self.on_change = on_change
        self._start_daemon = start_daemon
        if node:
            client = f"{client} over ssh from {socket.gethostname()}"
        self._origin = Origin(user="" if node else user_name(), pid=0 if node else os.getpid(), client=client)
        self._outbox = Outbox()
        self._conversation = Conversation(
            self.store, self._outbox, client=client, viewer=os.urandom(8).hex(), remote=bool(node)
        )
        self._lines_of: LineReader | None = None
        self._calls: deque[Callable[[], None]] = deque()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self.store.on_wish = self._wake
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._main, name="hoptui-viewer", daemon=True)
        self._reported = self._versions()
        self._check_at = 0.0

    def start(self) -> None:
        """Begin to connect unless it has begun. Returns at once."""
        if not self._thread.ident:
            self._thread.start()

    def again(self) -> None:
        """Retry now instead of later or never."""
        self._call(self._again)

    def close(self) -> None:
        """End the thread and the connection. Runs are not affected."""
        self._closing.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(2.0)
        if not self._thread.is_alive():
            self._wake_in.close()
            self._wake_out.close()

    def watch(self, run: str | None) -> None:
        """Follow this run's rows and process, host and GPUs. None: only the last values of every run."""
        self._call(lambda: self._conversation.watch(run, time.monotonic()))

    def send(self, verb: Verb, run_id: str, **details: Unpack[Details]) -> str:
        """Send a command and return its id at once. `store.commands[id]` has its state."""
        self._must_steer()
        run = self.store.run(run_id)
        command = Command(
            id=os.urandom(8).hex(),
            run=run_id,
            epoch=run.epoch if run else 0,
            verb=verb,
            origin=self._sender(),
            t=self.store.now(),
            **details,
        )
        self.store.sent(command)
        self._outbox.add(command, time.monotonic())
        self._wake()
        return command.id

    def renew_pause(self, run_id: str) -> None:
        """Extend the pause of a run."""
        self._must_steer()
        self._call(partial(self._conversation.renew_pause, run_id))

    def tune(self, run_id: str, op: TuneOp, *, knob: str = "", limits: Limits = NO_LIMITS) -> None:
        """Start or stop the tuner of a run, or freeze or release a knob. `store.tuned` gets the answers."""
        self._must_steer()
        self._call(partial(self._conversation.tune, run_id, op, knob, limits))

    def add_note(self, run_id: str, text: str) -> None:
        """Add a note to a run. `store.noted` gets the answer."""
        self._must_steer()
        self._call(partial(self._conversation.add_note, run_id, text))

    def describe(self, run_id: str) -> None:
        """Ask what a run is. `store.details` gets the answer."""
        self._call(partial(self._conversation.describe, run_id))

    def fetch_lines(self, run_id: str, *, every_rank: bool = False, whole: bool = False) -> None:
        """Ask where the time of a run goes. `store.lines` gets the answer.

        The last minute is that of its first process, or of `every_rank`. It is asked for every two seconds at
        most, however often this is called. The `whole` time is read from the recording, in a thread.
        """
        if not whole:
            self._call(lambda: self._conversation.fetch_lines(run_id, every_rank, time.monotonic()))
        elif self.link.node:
            self.store.apply_lines(run_id, FoundLines(problem="elsewhere"), whole=True)
        else:
            self._read_lines(run_id)

    def fetch_output(self, run_id: str, rank: int) -> None:
        """Ask for what a process has written. `store.outputs` gets the answer.

        It is asked for twice a second at most, however often this is called.
        """
        self._call(lambda: self._conversation.fetch_output(run_id, rank, time.monotonic()))

    def _read_lines(self, run_id: str) -> None:
        from hoptui.client.line_reader import LineReader  # here: it needs SQLite, other screens do not

        found = self.store.lines.get((run_id, True))
        if found is not None and found.t0 <= self.store.now() <= found.t1:
            return
        try:
            path = (self._where or addresses()).recording(run_id)
        except AddressError as error:
            self.store.apply_lines(run_id, FoundLines(problem="unreadable", detail=str(error)), whole=True)
            return
        if self._lines_of is None:
            self._lines_of = LineReader()
        answer = partial(self.store.apply_lines, run_id, whole=True)
        self._lines_of.ask(path, self.store.now(), answer, whole=True, live=True)

    def sample(self, hz: float) -> None:
        """Request a sampling rate of the GPUs (0: the daemon's default; at most 10)."""
        self._must_steer()
        self._call(partial(setattr, self._conversation, "hz", hz))

    def pace(self, seconds: float) -> None:
        """Set the least seconds between requests for rows (0: as often as the link allows).

        It is used while the rows are not visible.
        """
        if seconds != self._conversation.least_s:
            self._call(partial(setattr, self._conversation, "least_s", seconds))

    def pending(self) -> dict[str, Command]:
        """Return the commands that the daemon has not answered."""
        return self._outbox.unanswered()

    def _must_steer(self) -> None:
        if self.read_only:
            raise ReadOnlyError("read-only: nothing is sent")

    def _sender(self) -> Origin:
        """Return the sender as far as known before the daemon fills it in.

        On another node, it is the login name there, without a process.
        """
        return replace(self._origin, user=self._way.user) if self._way and self.link.node else self._origin

    def _call(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the buffer is full: the thread is awake anyway
            self._wake_out.send(b"!")

    # in the thread ------------------------------------------------------------------------------------------

    def _main(self) -> None:
        context = zmq.Context()
        way = self._way
        try:
            if way is None:
                way = self._way = Here(self._where or addresses(), start_daemon=self._start_daemon)
            way.begin(time.monotonic())
            connection = DaemonConnection(context, self._wake_in, patient=self.place.remote)
            self._conversation.connected(time.monotonic())
            while not self._closing.is_set():
                self._turn(connection, way)
            connection.send(codec.encode(ViewerBye()))
        except AddressError as error:
            self._set_link("failed", str(error))
        except Exception as error:  # the thread ends, but always reports the reason
            self._set_link("failed", f"the viewer's connection broke: {type(error).__name__}: {error}")
        finally:
            context.destroy(linger=LAST_WORD_MS)
            if way is not None:
                way.close()
            with contextlib.suppress(Exception):  # the screen may be closed
                self._report_changes()

    def _turn(self, connection: DaemonConnection, way: Way) -> None:
        talk = self._conversation
        while self._calls:
            self._calls.popleft()()
        now = time.monotonic()
        trouble = self._trouble(way, now)
        if trouble is not None or connection.path != way.socket:
            connection.reopen(way.socket)
            talk.connected(now)
        connection.send(*(codec.encode(message) for message in ([] if connection.stuck else talk.due(now))))
        self._report_changes()
        wake_at = min(talk.wake_at(), max(self._check_at, way.wake_at(talk.heard)))
        if connection.stuck:
            wake_at = max(wake_at, now + TAKE_MS / 1000)
        if way.socket is None:
            wake_at = way.wake_at(talk.heard)
        for frames in connection.receive(max(0.0, wake_at - time.monotonic()), way.waits_on):
            try:
                said = codec.to_viewer(frames)
                past = self.place.remote and isinstance(said, Buckets)
                talk.receive(said, time.monotonic(), on_the_line(frames) if past else 0)
            except codec.WireError as error:
                talk.refused += 1
                talk.complaint = str(error)
        if talk.greeted:
            way.served()
            self._set_link("live")

    def _trouble(self, way: Way, now: float) -> Trouble | None:
        """Return why the connection must be reopened, None if it need not."""
        talk = self._conversation
        if talk.problem:
            where = f"on {self.link.node}: " if self.link.node else ""
            self._set_link("failed", where + talk.problem)
            self._check_at = talk.heard + TRY_AGAIN_S
            if now < self._check_at:
                return None
            reason, talk.problem = talk.problem, ""
            return Trouble(reason)
        trouble = way.check(now, talk.heard, talk.greeted)
        if trouble is None and talk.silent(now):
            trouble = way.silent(now, talk.daemon.pid if talk.daemon else None)
        if trouble is not None and trouble.failed:
            self._set_link("failed", trouble.reason)
        elif trouble is not None:
            self._set_link("connecting" if talk.daemon is None else "lost", trouble.reason)
        return trouble

    def _again(self) -> None:
        if self._way is not None and self.link.state != "live":
            self._way.again(time.monotonic())

    def _set_link(self, state: LinkState, reason: str = "") -> None:
        talk = self._conversation
        trip = talk.round_trip_s
        since = self.link.since if self.link.state == state else time.monotonic()
        self.link = Link(
            state,
            since,
            reason,
            trip * 1e3 if trip is not None else None,
            self.link.node,
            talk.answered_at,
            talk.under_way_s,
            talk.flow.slow,
        )

    def _report_changes(self) -> None:
        """Call `on_change` for each kind of state that changed since the last call."""
        now, on_change = self._versions(), self.on_change
        before, self._reported = self._reported, now
        if on_change is not None:
            for change in (change for change in now if now[change] != before.get(change)):
                on_change(change)

    def _versions(self) -> dict[Change, object]:
        states: dict[str, State] = {run: vital.state for run, vital in self.store.vitals.items()}
        return {
            "link": (*self.link[:3], self.link.slow),
            "node": (self.store.node_version, self._conversation.following.begun),
            "events": self.store.events_version,
            "commands": self.store.commands_version,
            "vitals": states,
        }
