"""A conversation with the daemon in blocking calls, for the command line and for scripts."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal, TypeVar, Unpack

import msgspec
import zmq

from hoptui.client.connection import LAST_WORD_MS, TAKE_MS, dealer
from hoptui.client.conversation import (
    NO_LIMITS,
    Details,
    ReadOnlyError,
    TuneOp,
    joined,
    mismatch,
    pause_renewal,
)
from hoptui.domain.details import RunDetails
from hoptui.domain.run_notes import AddNote, NoteAdded
from hoptui.domain.targets import SetTargets, Target, TargetsSet
from hoptui.domain.tuning import Limits, Tune, Tuned
from hoptui.node import processes as node_processes
from hoptui.node.addresses import AddressError, Addresses, addresses
from hoptui.node.processes import unstable
from hoptui.protocol import codec, messages
from hoptui.protocol.messages import FINAL, PROTOCOL, Command, CommandRecord, RunState, Verb, record_of

T = TypeVar("T", bound=messages.ToViewer)
NO_EVENTS = 1 << 62
"""Greater than any event's number."""
ASK_AGAIN_S = 1.0
ASK_FOR_RECORDS_S = 0.1
"""Time between two requests to an older daemon, which sends no record by itself."""
STARTED_TIMES = 3
"""A daemon that was just started may take so many times the usual time for its first answer."""
STOPPED_S = 0.5
"""A deadline missed by more than this means that the process was suspended."""


class Unreachable(Exception):  # noqa: N818 - says what is the case
    """There is no conversation with the daemon. The text is one sentence."""


class NoDaemon(Unreachable):
    """No daemon is running, so no run is watched or controlled."""


class RefusedError(Exception):
    """The daemon answered with an error: a stable `code`, and one sentence as text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Session:
    """A context manager. Every call waits for its answer, at most `timeout_s`, and may raise an error.

    Raises:
        NoDaemon: none is running and `start_daemon` is false.
        Unreachable: it does not answer, uses another protocol or cannot be started, or its directory is
            not safe.
        RefusedError: it refuses the request.
        ReadOnlyError: from `submit`, `renew_pause`, `tune` and `shutdown` of a `read_only` session.
            Nothing was sent.
    """

    hello: messages.ViewerWelcome

    def __init__(
        self,
        where: Addresses | None = None,
        *,
        client: str = "cli",
        kind: Literal["person", "agent"] = "person",
        start_daemon: bool = False,
        timeout_s: float = 5.0,
        read_only: bool = False,
    ) -> None:
        self._where = where
        self._read_only = read_only
        self._greeting = messages.ViewerHello(
            protocol=PROTOCOL, viewer=os.urandom(8).hex(), client=client, kind=kind, records=True
        )
        self._start_daemon = start_daemon
        self.started_daemon = False
        self._timeout_s = timeout_s
        self._records: dict[str, CommandRecord] = {}
        self._holder: int | None = None  # pid of the process with the daemon's lock
        self._daemon = 0  # pid of the daemon that has welcomed this session
        self._version = 0  # of the newest state of the node
        self._newest = 0  # the number of the newest record
        self._commands: dict[str, Command] = {}
        self._id = 0

    def __enter__(self) -> Session:
        try:
            where = self._where or addresses()
            if not node_processes.daemon_lives(where):
                if not self._start_daemon:
                    raise NoDaemon("no daemon is running on this node")
                node_processes.start_daemon(where)
                self.started_daemon = True
        except (AddressError, node_processes.StartError) as error:
            raise Unreachable(str(error)) from None
        self._where = where
        self._replaced()
        self._context = zmq.Context()
        try:
            self._socket = dealer(self._context, f"ipc://{where.viewers}")
            self._greet()
        except BaseException:
            self._context.destroy(linger=0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(zmq.Again):
            self._socket.send(codec.encode(messages.ViewerBye()), zmq.NOBLOCK)
        self._context.destroy(linger=LAST_WORD_MS)

    @property
    def where(self) -> Addresses:
        """The files of the daemon of this session."""
        assert self._where is not None
        return self._where

    def fetch(
        self,
        *,
        run: str = "",
        cursors: dict[str, int] | None = None,
        events: int = 0,
        commands: int = 0,
        state: int = 0,
        max_rows: int = 2000,
        wait_s: float = 0.0,
        latest: bool = False,
        hz: float = 0.0,
        processes: int | None = None,
        job: str = "",
    ) -> messages.Delta:
        """Return what is new since these cursors; by default the node, its runs, and every event and command.

        `hz` requests a sampling rate of the GPUs; repeat it to keep the rate. `processes` is the known
        version of the processes on GPUs (0: none); with it, the answer includes them. `job` is a run whose
        state on all its nodes is wanted.
        """
        fetch = messages.Fetch(
            id=self._next(),
            run=run,
            cursors=cursors or {},
            events=events,
            commands=commands,
            state=state,
            max_rows=max_rows,
            wait_s=wait_s,
            latest=latest,
            hz=hz,
            processes=processes,
            page=0,
            job=job,
        )
        found = self._ask(fetch, fetch.id, messages.Delta, wait_s + self._timeout_s)
        return self._rest(fetch, found) if found.more else found

    def _rest(self, fetch: messages.Fetch, first: messages.Delta) -> messages.Delta:
        """Fetch the other pages of an answer, and return the whole. Rows are left to the caller."""
        whole = delta = first
        version = first.state
        while delta.more:
            fetch = msgspec.structs.replace(
                fetch,
                id=self._next(),
                cursors={},
                latest=False,
                wait_s=0.0,
                events=max([fetch.events, *(event.seq for event in delta.events)]),
                commands=max([fetch.commands, *(record.seq for record in delta.commands)]),
                state=delta.state if not delta.next_page else fetch.state,
                page=delta.next_page,
                processes=None,
            )
            delta = self._ask(fetch, fetch.id, messages.Delta, self._timeout_s)
            commands = {record.id: record for record in (*whole.commands, *delta.commands)}
            whole = msgspec.structs.replace(
                whole,
                node=joined(whole.node, delta.node, anew=not fetch.page),
                vitals=whole.vitals | delta.vitals,
                events=(*whole.events, *delta.events),
                commands=tuple(commands.values()),
            )
        return msgspec.structs.replace(whole, state=version)

    def query(
        self,
        source: str,
        names: tuple[str, ...] = (),
        *,
        run: str = "",
        t0: int = 0,
        t1: int = 0,
        points: int = 512,
    ) -> messages.Buckets:
        """Return past values of a source between two stamps."""
        query = messages.Query(
            id=self._next(), source=source, run=run, names=names, t0=t0, t1=t1, points=points
        )
        return self._ask(query, query.id, messages.Buckets, self._timeout_s)

    def describe(self, run: str) -> RunDetails | None:
        """Return what a run is. None if it is unknown, or if the run or the daemon is too old to say."""
        request = messages.Describe(id=self._next(), run=run)
        try:
            return self._ask(request, request.id, messages.Description, self._timeout_s).details
        except RefusedError as error:
            if error.code != "unsupported":
                raise
            return None

    def stacks(self, run: str, seconds: float) -> tuple[messages.RankStacks, ...]:
        """Return where the processes of a run were in the last seconds, in order of rank.

        Raises:
            RefusedError: the daemon is older and has no samples.
        """
        request = messages.FetchStacks(id=self._next(), run=run, seconds=seconds)
        return self._ask(request, request.id, messages.RunStacks, self._timeout_s).ranks

    def output(self, run: str, rank: int, since: dict[str, int]) -> messages.RunOutput:
        """Return a page of what a process has written. `since` has the offsets of what is known.

        Raises:
            RefusedError: the daemon is older and reads no output.
        """
        request = messages.FetchOutput(id=self._next(), run=run, rank=rank, since=since)
        return self._ask(request, request.id, messages.RunOutput, self._timeout_s)

    def renew_pause(self, run: str) -> messages.LeaseState:
        """Extend the pause of a run. The answer says whether it was granted."""
        self._must_steer()
        request = pause_renewal(self._next(), run)
        return self._ask(request, request.id, messages.LeaseState, self._timeout_s)

    def tune(self, run: str, op: TuneOp, *, knob: str = "", limits: Limits = NO_LIMITS) -> Tuned:
        """Start or stop the tuner of a run, or freeze or release a knob. The answer says whether it was
        granted."""
        self._must_steer()
        request = Tune(id=self._next(), run=run, op=op, knob=knob, limits=limits)
        return self._ask(request, request.id, Tuned, self._timeout_s)

    def set_targets(
        self, run: str, targets: tuple[Target, ...] = (), *, remove: tuple[str, ...] = (), clear: bool = False
    ) -> TargetsSet:
        """Set and remove targets of a run. The answer says whether it was granted.

        Raises:
            RefusedError: the daemon is too old for targets.
        """
        self._must_steer()
        request = SetTargets(id=self._next(), run=run, targets=targets, remove=remove, clear=clear)
        return self._ask(request, request.id, TargetsSet, self._timeout_s)

    def add_note(self, run: str, text: str) -> NoteAdded:
        """Add a note to a run. The answer says whether it was granted.

        Raises:
            RefusedError: the daemon is too old for notes.
        """
        self._must_steer()
        request = AddNote(id=self._next(), run=run, text=text)
        return self._ask(request, request.id, NoteAdded, self._timeout_s)

    def submit(self, run: RunState, verb: Verb, **details: Unpack[Details]) -> str:
        """Send a command and return its id. `outcome` waits for its final stage."""
        self._must_steer()
        command = Command(id=os.urandom(8).hex(), run=run.run, epoch=run.epoch, verb=verb, **details)
        self._commands[command.id] = command
        self._send(command)
        return command.id

    def outcome(
        self,
        command_id: str,
        *,
        timeout_s: float | None = None,
        on_stage: Callable[[CommandRecord], None] | None = None,
    ) -> CommandRecord:
        """Return the final stage of a command, or its stage after `timeout_s` (None: wait forever).

        The command is resent every second with the same id. That is harmless, and survives a restart of the
        daemon. The stage stays `sent` if there never was an answer.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        shown: CommandRecord | None = None
        again_s = ASK_AGAIN_S if self.hello.records else ASK_FOR_RECORDS_S
        ask_at = time.monotonic() + again_s
        asked = self._newest
        while True:
            found = self._records.get(command_id)
            if found is not None and found != shown:
                shown = found
                if on_stage is not None:
                    on_stage(found)
            if found is not None and found.stage in FINAL:
                del self._commands[command_id]
                return found
            now = time.monotonic()
            if until is not None and now >= until:
                return found or record_of(self._commands[command_id])
            if now >= ask_at:
                ask_at = now + again_s
                command = self._commands[command_id]
                self._send(command)
                # An older daemon sends no record by itself.
                self._send(
                    messages.Fetch(
                        id=self._next(),
                        run=command.run,
                        commands=self._newest,
                        events=NO_EVENTS,
                        wait_s=0.0,
                        state=self._version,
                    )
                )
                asked = self._newest
            got = self._receive(min(ask_at, until or ask_at) - now)
            if isinstance(got, messages.Delta) and got.more and self._newest > asked:
                ask_at = now  # there is another page
                continue

    def shutdown(self) -> None:
        """End the daemon and return once it has released its lock. Runs continue without it."""
        self._must_steer()
        self._send(messages.Shutdown(id=self._next()))
        until = time.monotonic() + self._timeout_s
        while node_processes.daemon_lives(self.where):
            if time.monotonic() > until:
                raise Unreachable(f"the daemon (pid {self.hello.pid}) does not end")
            self._receive(0.02)

    def _must_steer(self) -> None:
        if self._read_only:
            raise ReadOnlyError("read-only: nothing is sent")

    def _greet(self) -> None:
        patience_s = self._timeout_s * (STARTED_TIMES if self.started_daemon else 1)
        self._send(self._greeting)
        try:
            welcome = self._until(lambda m: m if isinstance(m, messages.ViewerWelcome) else None, patience_s)
        except Unreachable:
            if self.started_daemon and not node_processes.daemon_lives(self.where):
                late = f"the daemon has not begun to serve within {patience_s:g} s"
                raise Unreachable(unstable(self.where, late)) from None
            raise
        if welcome.protocol != PROTOCOL:
            raise Unreachable(mismatch(welcome.protocol, welcome.version))
        self.hello = welcome

    def _ask(self, message: messages.FromViewer, its_id: int, kind: type[T], timeout_s: float) -> T:
        if self._replaced():
            message = _anew(message)
        self._send(message)
        again = isinstance(
            message,
            messages.Fetch | messages.Query | messages.Describe | messages.FetchStacks | messages.FetchOutput,
        )

        def repeat() -> bool:
            """Ask a daemon that has replaced the one that was asked. True if there is one."""
            nonlocal message
            if not (again and self._replaced()):
                return False
            message = _anew(message)
            self._send(message)
            return True

        def answer(got: messages.ToViewer) -> T | None:
            if isinstance(got, messages.Error) and got.id == its_id:
                if got.code == "hello_first":  # after a long silence; `_receive` has sent Hello again
                    self._send(message)
                    return None
                raise RefusedError(got.code, got.text)
            # An older daemon that does not know the message answers without its id.
            if isinstance(got, messages.Error) and got.code == "unsupported":
                raise RefusedError(
                    got.code, f"the running daemon ({self.hello.version}) is too old: {got.text}"
                )
            return got if isinstance(got, kind) and getattr(got, "id", None) == its_id else None

        return self._until(answer, timeout_s, repeat)

    def _replaced(self) -> bool:
        """Return whether another daemon than the last time runs now."""
        found = node_processes.lock_holder(self.where)
        if not found or found == self._holder:
            return False
        before, self._holder = self._holder, found
        return before is not None

    def _until(
        self,
        answer: Callable[[messages.ToViewer], T | None],
        timeout_s: float,
        repeat: Callable[[], bool] = lambda: False,
    ) -> T:
        """Receive until `answer` finds what it wants. The time begins again when `repeat` has asked again."""
        until = time.monotonic() + timeout_s
        while (left := until - time.monotonic()) > 0 or left < -STOPPED_S:
            if left < 0:  # this process was suspended: the time did not pass for it, nor for its socket
                until, left = time.monotonic() + timeout_s, timeout_s
            got = self._receive(min(left, ASK_AGAIN_S))
            if got is not None and (found := answer(got)) is not None:
                return found
            if got is None and repeat():
                until = time.monotonic() + timeout_s
        if not node_processes.daemon_lives(self.where):
            raise Unreachable("the daemon is gone; runs go on without it")
        raise Unreachable(f"the daemon is running but does not answer within {timeout_s:g} s")

    def _receive(self, timeout_s: float) -> messages.ToViewer | None:
        """Return the next message, None if none came in time. Records of its own commands are always kept."""
        if not self._socket.poll(max(0, int(timeout_s * 1000) + 1)):
            return None
        try:
            got = codec.to_viewer(self._socket.recv_multipart())
        except codec.WireError as error:
            raise Unreachable(f"the daemon sent an invalid message: {error}") from None
        match got:
            case messages.Delta(commands=records):
                self._version = got.state or self._version
                self._newest = max([self._newest, *(record.seq for record in records)])
                self._records |= {record.id: record for record in records if record.id in self._commands}
            case messages.ViewerWelcome(pid=pid):
                if pid != self._daemon:
                    self._commands = {
                        name: msgspec.structs.replace(command, repeated=True)
                        for name, command in self._commands.items()
                    }
                self._daemon = pid
            case messages.Error(code="protocol" | "descriptors", text=text):
                raise Unreachable(text)
            case messages.Error(code="hello_first"):
                self._send(self._greeting)
        return got

    def _send(self, message: messages.FromViewer) -> None:
        frame = codec.encode(message)
        if len(frame) > codec.MAX_VIEWER_BYTES:
            text = f"{len(frame)} bytes are too much for a request: the limit is {codec.MAX_VIEWER_BYTES}"
            raise RefusedError("too_large", text)
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                self._socket.send(frame, zmq.NOBLOCK)
                return
            except zmq.Again:
                if time.monotonic() > until:
                    raise Unreachable("the daemon takes no more messages") from None
            if self._socket.poll(TAKE_MS, zmq.POLLIN | zmq.POLLOUT) & zmq.POLLIN:
                self._receive(0.0)  # a daemon that waits for this viewer to read takes nothing

    def _next(self) -> int:
        self._id += 1
        return self._id


def _anew(message: messages.FromViewer) -> messages.FromViewer:
    """Return a request for a new daemon, which counts the versions of its state from the start."""
    if not isinstance(message, messages.Fetch):
        return message
    processes = None if message.processes is None else 0
    page = None if message.page is None else 0
    return msgspec.structs.replace(message, state=0, processes=processes, page=page)
