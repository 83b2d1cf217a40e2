"""A viewer's side of the conversation with the daemon, without I/O: what to send when.

Hello → Welcome, then one Fetch at a time. So a slow link gets fewer and larger answers instead of a growing
backlog. Times are seconds of any monotonic clock, passed in.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Literal, TypedDict

import msgspec

from hoptui.client.subscriptions import Flow, Following
from hoptui.domain.knobs import KnobValue
from hoptui.domain.line_counts import FoundLines, LineCounts
from hoptui.domain.run_notes import AddNote, NoteAdded
from hoptui.domain.tuning import Limits, Tune, Tuned
from hoptui.model.outputs import FoundOutput, OutputText
from hoptui.model.store import Store
from hoptui.protocol import messages
from hoptui.protocol.job_records import decode_state
from hoptui.protocol.messages import FINAL, PROTOCOL, Command, CommandRecord
from hoptui.protocol.record_bytes import RecordError

RESEND_S = (1.0, 1.0, 2.0, 4.0)  # then every four seconds
IN_ORDER_S = 0.1
"""A command without an answer for so long is resent before a later one to the same run. It may be
lost, or its answer."""
PATIENCE_S = 15.0
"""How long a command waits for a daemon. A restarting daemon is ready by then, and the command is not
stale."""


def patience_s(command: Command) -> float:
    """Return how long a command is resent without an answer, in seconds."""
    return min(command.ttl_s or PATIENCE_S, PATIENCE_S)


@dataclass
class _Sent:
    command: Command
    until: float  # it expires at this time
    answer_by: float
    next_at: float
    sent_at: float = 0.0
    sent: bool = False  # to any daemon
    times: int = 0  # since the connection began
    answered: bool = False

    @property
    def over_at(self) -> float:
        return self.until if self.answered else min(self.answer_by, self.until)


class Outbox:
    """The commands of one viewer without a final stage. Resending is harmless: a run accepts an id only once.

    Any thread may call any method.
    """

    def __init__(self) -> None:
        self._sent: dict[str, _Sent] = {}
        self._lock = Lock()

    def add(self, command: Command, now: float) -> None:
        """Send `command` at the next `due`. Without an answer it is given up after `patience_s`."""
        until = now + (command.ttl_s or float("inf"))
        with self._lock:
            for one in self._sent.values():
                late = not one.answered and now - one.sent_at >= IN_ORDER_S
                if late and one.command.run == command.run:
                    one.next_at = min(one.next_at, now)
            self._sent[command.id] = _Sent(command, until, now + patience_s(command), now)

    def due(self, now: float) -> list[Command]:
        """Return the commands to send or resend now."""
        with self._lock:
            found = []
            for one in self._sent.values():
                if not one.answered and one.next_at <= now < one.over_at:
                    one.sent, one.sent_at = True, now
                    one.next_at = now + RESEND_S[min(one.times, len(RESEND_S) - 1)]
                    one.times += 1
                    found.append(one.command)
            return found

    def given_up(self, now: float) -> list[Command]:
        """Return the commands without an answer in time. Each is returned once."""
        with self._lock:
            old = [one for one in self._sent.values() if one.over_at <= now]
            for one in old:
                del self._sent[one.command.id]
            return [one.command for one in old if not one.answered]

    def answered(self, command_id: str, *, final: bool) -> None:
        """Record that the daemon knows this command. After its final stage it is removed."""
        with self._lock:
            if final:
                self._sent.pop(command_id, None)
            elif command_id in self._sent:
                self._sent[command_id].answered = True

    def reconnected(self, now: float, *, another: bool = False) -> None:
        """Resend everything without a final stage. `another`: the new connection leads to another daemon."""
        with self._lock:
            for one in self._sent.values():
                if another and one.sent:
                    one.command = msgspec.structs.replace(one.command, repeated=True)
                if one.answered:
                    one.answered, one.answer_by = False, now + patience_s(one.command)
                one.next_at, one.times = now, 0

    def next_at(self) -> float:
        """Return when `due` or `given_up` has something next; infinity if never."""
        with self._lock:
            times = [
                one.over_at if one.answered else min(one.next_at, one.over_at) for one in self._sent.values()
            ]
            return min(times, default=float("inf"))

    def unanswered(self) -> dict[str, Command]:
        """Return the commands that the daemon has not answered."""
        with self._lock:
            return {key: one.command for key, one in self._sent.items() if not one.answered}


TuneOp = Literal["start", "stop", "freeze", "release"]
NO_LIMITS = Limits()
"""The limits of a tuner if the user sets none."""

WAIT_S = 1.0
"""How long the daemon may hold a Fetch when there is nothing new."""
SILENCE_S = 2.0
"""The daemon counts as lost this long after an answer was due. A remote daemon gets more time:"""
SILENCE_THERE_S = 10.0
HELLO_S = 1.0
LATEST_S = 1.0
"""Interval of requests for the last values of every run, while one lives and none is watched; else:"""
LATEST_SELDOM_S = 5.0

LINES_EVERY_S = 2.0
"""The least time between two requests for the lines of a run. Without an answer, it is the following."""
LINES_AGAIN_S = 10.0
OUTPUT_EVERY_S = 0.5
"""The least time between two requests for the output of a process, unless a page is only the first."""
RANKS_PER_PAGE = 8
"""Processes of an answer with lines. More of them would keep the daemon from others for milliseconds."""

PAUSE_S = 60.0
"""How long a run stays paused after its pause was renewed."""


class Details(TypedDict, total=False):
    """Optional fields of a `Command` besides its verb and its run."""

    knob: str
    value: KnobValue | None
    options: dict[str, int | bool]
    expect_version: int | None
    why: str
    hold_s: float


class ReadOnlyError(Exception):
    """A read-only viewer was asked to send something. Nothing was sent."""


def mismatch(theirs: int, version: str = "") -> str:
    """Return why this viewer and that daemon are incompatible, and what to do."""
    who = f"the daemon ({version})" if version else "the daemon"
    return (
        f"{who} speaks protocol {theirs} and this hoptui speaks {PROTOCOL}: "
        "run `hoptui daemon stop`, then try again (training goes on meanwhile)"
    )


def pause_renewal(number: int, run: str) -> messages.Lease:
    """Return the message that renews the pause of a run."""
    return messages.Lease(id=number, run=run, op="renew", what="pause", seconds=PAUSE_S)


def joined(
    before: messages.NodeState | None, page: messages.NodeState | None, *, anew: bool
) -> messages.NodeState | None:
    """Return the node's state with the runs of another page. `anew`: the page begins a newer state."""
    if before is None or page is None or anew:
        return page or before
    return msgspec.structs.replace(page, runs=(*before.runs, *page.runs))


class Conversation:
    """The state of the conversation. Call `connected`, then `due` and `receive` as time and messages come.

    The caller checks `greeted`, `problem` and `silent`. `problem` is one sentence once this daemon cannot be
    used. `heard` is the time of its last message. `refused` counts its errors and invalid answers,
    `complaint` is the last of them. `round_trip_s` is the time of an answer that needed no waiting.
    `answered_at` is when the newest Delta came, and `under_way_s` how old it was then.

    With `remote`, `flow` measures the link. `hz` is the requested sampling rate of the GPUs, 0 for none;
    `least_s` is the least seconds between two requests for rows.
    """

    def __init__(
        self, store: Store, outbox: Outbox, *, client: str, viewer: str, remote: bool = False
    ) -> None:
        self.store = store
        self.greeted = False
        self.problem = ""
        self.daemon: messages.ViewerWelcome | None = None
        self.round_trip_s: float | None = None
        self.answered_at: float | None = None
        self.under_way_s = 0.0
        self.flow = Flow(remote=remote)
        self._silence_s = SILENCE_THERE_S if remote else SILENCE_S
        self.refused = 0
        self.complaint = ""
        self.hz = 0.0
        self.least_s = 0.0
        self._outbox = outbox
        self._hello = messages.ViewerHello(protocol=PROTOCOL, viewer=viewer, client=client, records=True)
        self._ids = itertools.count(1)
        self.following = Following(store, self._ids, self.flow.appetite)
        self._asked_at: dict[int, float] = {}  # when each Query was sent
        self._requests: list[
            messages.Lease | Tune | AddNote | messages.Describe | messages.FetchLines | messages.FetchOutput
        ] = []
        self._noted = ""  # the run of the newest AddNote
        self._described = ""  # the run of the newest Describe
        self._lines: messages.FetchLines | None = None  # that is not answered yet
        self._lines_at = -LINES_AGAIN_S
        self._asked_for = ("", False)  # the run, and whether all of its ranks
        self._pages: dict[int, LineCounts] = {}  # the ranks of the pages before
        self._output: messages.FetchOutput | None = None  # that is not answered yet
        self._output_at = -LINES_AGAIN_S
        self._output_of = ("", 0)  # a run and its rank
        self._text = OutputText()
        self._state = 0
        self._events = 0
        self._commands = 0
        self._processes = 0
        self._job = ("", 0)  # the run whose job was received last, and its version
        self._page = 0
        self._paged: messages.NodeState | None = None
        self._paged_version = 0
        self.heard = 0.0
        self._next_hello = 0.0
        self._next_latest = 0.0
        self._next_fetch = 0.0
        self._fetch: messages.Fetch | None = None
        self._fetched_at = 0.0
        self._thin_before = False  # whether the previous request was for the last values

    def connected(self, now: float) -> None:
        """Start over on a new connection: send Hello, then continue from the known stamps."""
        self.greeted = False
        self.heard = self._next_hello = self._next_latest = self._next_fetch = now
        self._fetch = self._lines = self._output = None
        self._thin_before = False
        self._asked_at = {}
        self.following.reconnected()

    def watch(self, run: str | None, now: float) -> None:
        """Follow the rows of this run (None: of none), host and GPUs."""
        self.following.watch(run, now)
        self._next_latest = min(self._next_latest, now + self._latest_s)

    def renew_pause(self, run: str) -> None:
        """Extend the pause of a run."""
        self._requests.append(pause_renewal(next(self._ids), run))

    def tune(self, run: str, op: TuneOp, knob: str, limits: Limits) -> None:
        """Start or stop the tuner of a run, or freeze or release a knob."""
        self._requests.append(Tune(id=next(self._ids), run=run, op=op, knob=knob, limits=limits))

    def add_note(self, run: str, text: str) -> None:
        """Add a note to a run. The daemon is the judge of it."""
        self._noted = run
        self._requests.append(AddNote(id=next(self._ids), run=run, text=text))

    def describe(self, run: str) -> None:
        """Ask what a run is. An older daemon does not know the request: then it is unknown."""
        self._described = run
        self._requests.append(messages.Describe(id=next(self._ids), run=run))

    def fetch_lines(self, run: str, every_rank: bool, now: float) -> None:
        """Ask for the lines of a run, of its first rank or page by page of all, unless that was just done."""
        wait_s = LINES_EVERY_S if self._lines is None else LINES_AGAIN_S
        if self._asked_for == (run, every_rank) and now - self._lines_at < wait_s:
            return
        self._asked_for, self._lines_at, self._pages = (run, every_rank), now, {}
        self._ask_lines(run, 0)

    def _ask_lines(self, run: str, first: int) -> None:
        ranks = RANKS_PER_PAGE if self._asked_for[1] else 1
        self._lines = messages.FetchLines(id=next(self._ids), run=run, first=first, ranks=ranks)
        self._requests.append(self._lines)

    def _got_lines(self, page: messages.RunLines) -> None:
        asked = self._lines
        if asked is None or page.id != asked.id:
            return
        self._lines = None
        self._pages |= {each.rank: each.counts for each in page.ranks}
        if page.next > asked.first and self._asked_for[1]:
            self._ask_lines(page.run, page.next)
        else:
            self.store.apply_lines(page.run, FoundLines(self._pages))

    def fetch_output(self, run: str, rank: int, now: float) -> None:
        """Ask for what a process has written since the last answer, unless that was just done."""
        if self._output_of != (run, rank):
            self._output_of, self._text, self._output = (run, rank), OutputText(), None
        elif now - self._output_at < (OUTPUT_EVERY_S if self._output is None else LINES_AGAIN_S):
            return
        self._ask_output(now)

    def _ask_output(self, now: float) -> None:
        run, rank = self._output_of
        self._output_at = now
        self._output = messages.FetchOutput(id=next(self._ids), run=run, rank=rank, since=self._text.since)
        self._requests.append(self._output)

    def _got_output(self, answer: messages.RunOutput, now: float) -> None:
        if self._output is None or answer.id != self._output.id:
            return
        self._output = None
        found, more = self._text.add(answer)
        if more:
            self._ask_output(now)
        else:
            self.store.apply_output(answer.run, found)

    def due(self, now: float) -> list[messages.FromViewer]:
        """Return what to send now, in this order."""
        if self.problem:
            return []
        for command in self._outbox.given_up(now):
            reason = f"no daemon answered for {patience_s(command):.0f} s"
            self.store.expire(command.id, reason)
        if not self.greeted:
            if now < self._next_hello:
                return []
            self._next_hello = now + HELLO_S
            return [self._hello]
        queries = self.following.queries()
        self._asked_at.update((query.id, now) for query in queries)
        sent: list[messages.FromViewer] = [*self._outbox.due(now), *self._requests, *queries]
        self._requests = []
        if self._fetch is None and now >= self._next_fetch:
            self._fetch = self._next(now)
            self._fetched_at = now
            sent.append(self._fetch)
        return sent

    def wake_at(self) -> float:
        """Return when `due` has something next, or `silent` turns true, if nothing arrives before."""
        if self.problem:
            return float("inf")
        if not self.greeted:
            return self._next_hello
        return min(self._silent_at() if self._fetch else self._next_fetch, self._outbox.next_at())

    def silent(self, now: float) -> bool:
        """Return whether an answer is overdue."""
        return not self.problem and now >= self._silent_at()

    def receive(self, message: messages.ToViewer, now: float, size: int = 0) -> None:
        """Process a message of the daemon. `size` is the bytes on the link of an answer about the past."""
        before, self.heard = self.heard, now
        match message:
            case messages.ViewerWelcome():
                self._welcomed(message, now)
            case messages.Delta(id=0):
                self.store.apply_records(message.commands)
                self._answered(message.commands)
            case messages.Delta():
                self._fetched(message, now)
            case messages.Buckets():
                self.flow.carried(size, now - max(before, self._asked_at.pop(message.id, now)), now)
                self._feed(now)
                self.following.answered(message.id, message)
            case messages.Description():
                self.store.apply_details(message.run, message.details)
            case messages.RunLines():
                self._got_lines(message)
            case messages.RunOutput():
                self._got_output(message, now)
            case messages.LeaseState():
                pass  # the run's pulse reports how long it stays paused
            case Tuned():
                self.store.apply_tuned(message)
            case NoteAdded():
                self.store.apply_noted(message)
            case messages.Error():
                self._complained(message, now)

    def _welcomed(self, welcome: messages.ViewerWelcome, now: float) -> None:
        if welcome.protocol != PROTOCOL:
            self.problem = mismatch(welcome.protocol, welcome.version)
            return
        another = self.daemon is not None and self.daemon.pid != welcome.pid
        if another:  # the one before may have numbered more than it wrote, by a clock that was ahead
            self._events = self._commands = 0
        self.daemon = welcome
        self.greeted = True
        self._state = self._processes = self._page = 0  # another daemon counts from the start
        self._job = ("", 0)
        self._next_fetch = now
        self._requests, self._lines, self._output = (
            [],
            None,
            None,
        )  # requests from before the reconnect are outdated
        self._outbox.reconnected(now, another=another)

    def _fetched(self, delta: messages.Delta, now: float) -> None:
        asked = self._fetch
        thin = False
        if asked is not None and delta.id == asked.id:
            self._fetch = None
            hurry = delta.more and self.flow.appetite.every_source
            self._next_fetch = (
                now if hurry else self._fetched_at + max(self.flow.appetite.frame_s, self.least_s)
            )
            thin = asked.latest
            if thin:
                self.round_trip_s = now - self._fetched_at
        followed = self.following.cursors()
        if thin:  # single newest rows of a followed source would leave a gap before them
            keep = tuple(part for part in delta.columns if not self.following.follows(part.source))
        else:
            keep = tuple(part for part in delta.columns if part.source in followed)
        whole = self._whole(delta, asked)
        self.store.apply(msgspec.structs.replace(delta, columns=keep, node=whole))
        self.following.fetched(keep, asked.max_rows if asked else 0)
        self._measure(delta, asked, now)
        if not self._page:
            self._paged_version = delta.state
        self._page = delta.next_page
        if not self._page:
            self._state = self._paged_version
        self._processes = delta.processes_version
        self._got_job(delta, asked)
        self._events = max([self._events, *(event.seq for event in delta.events)])
        self._commands = max([self._commands, *(record.seq for record in delta.commands)])
        self._answered(delta.commands)
        if delta.node is not None:
            self.following.refresh(now)
            self._next_latest = min(self._next_latest, now + self._latest_s)

    def _got_job(self, delta: messages.Delta, asked: messages.Fetch | None) -> None:
        if asked is None or asked.id != delta.id or not asked.job:
            return
        self._job = (asked.job, delta.job_version)
        if not delta.job_version:
            self.store.drop_earlier_job(asked.job)
        if delta.job is None:
            return
        try:
            self.store.apply_job(asked.job, decode_state(delta.job))
        except RecordError as error:
            self.refused += 1
            self.complaint = str(error)

    def _whole(self, delta: messages.Delta, asked: messages.Fetch | None) -> messages.NodeState | None:
        """Return the state of the node once its last page is there."""
        if delta.node is None:
            return None
        first = asked is None or delta.id != asked.id or not asked.page
        self._paged = joined(self._paged, delta.node, anew=first)
        return None if delta.next_page else self._paged

    def _answered(self, records: Iterable[CommandRecord]) -> None:
        for record in records:
            self._outbox.answered(record.id, final=record.stage in FINAL)

    def _measure(self, delta: messages.Delta, asked: messages.Fetch | None, now: float) -> None:
        """Measure the age of the answer; without a wait, by the round trip, which needs no clocks."""
        self.answered_at = now
        self.under_way_s = max(0.0, (self.store.now() - delta.now) / 1e9)
        if asked is not None and asked.id == delta.id and asked.latest:
            self.under_way_s = max(self.under_way_s, now - self._fetched_at)
        self.flow.answered(self.under_way_s, now)
        self._feed(now)

    def _feed(self, now: float) -> None:
        """Adjust the requests to the capacity of the link."""
        if self.following.appetite is not self.flow.appetite:
            self.following.appetite = self.flow.appetite
            self.following.refresh(now)
            self._next_fetch = min(self._next_fetch, now + self.flow.appetite.frame_s)

    def _complained(self, error: messages.Error, now: float) -> None:
        if error.code == "hello_first":
            self.connected(now)
            return
        if error.code in ("protocol", "descriptors"):
            self.problem = error.text
            return
        if error.code == "unsupported" and self._lines is not None and "'lines.fetch'" in error.text:
            self.store.apply_lines(self._lines.run, FoundLines(problem="old_daemon"))
            return
        if error.code == "unsupported" and self._output is not None and "'output.fetch'" in error.text:
            self.store.apply_output(self._output.run, FoundOutput(self._output.rank, problem="old_daemon"))
            return
        if error.code == "unsupported" and self._noted and "'note.add'" in error.text:
            answer = NoteAdded(id=error.id, run=self._noted, granted=False, code="note.old_daemon")
            self.store.apply_noted(answer)
            return
        if error.code == "unsupported" and self._described and not error.id:
            self.store.apply_details(self._described, None)
            return
        self.refused += 1
        self.complaint = error.text
        if self._fetch is not None and error.id == self._fetch.id:
            self._fetch = None
            self._next_fetch = now + WAIT_S
        else:
            self.following.answered(error.id, None)

    def _next(self, now: float) -> messages.Fetch:
        """Return the next Fetch: sometimes the last values of everything, else new rows of followed sources.

        The last values are never requested twice in a row. If an answer took longer than their interval, no
        rows would be fetched.
        """
        latest = now >= self._next_latest and not self._thin_before
        self._thin_before = latest
        if latest:
            self._next_latest = now + self._latest_s
        cursors, much = self.following.cursors(), self.flow.appetite
        job = self.following.run or ""
        widest = 2 + max((len(self.store.names(source)) for source in cursors), default=0)
        return messages.Fetch(
            id=next(self._ids),
            cursors=cursors,
            events=self._events,
            commands=self._commands,
            state=self._state,
            max_rows=max(1, min(much.rows, much.values // widest)),
            wait_s=0.0 if latest else min(WAIT_S, max(0.0, self._next_latest - now)),
            latest=latest,
            hz=self.hz,
            processes=self._processes,
            page=self._page,
            job=job,
            job_version=self._job[1] if self._job[0] == job else 0,
        )

    @property
    def _latest_s(self) -> float:
        living = any(vital.state != "exited" for vital in self.store.vitals.values())
        return LATEST_S if living and self.following.run is None else LATEST_SELDOM_S

    def _silent_at(self) -> float:
        if not self.greeted:
            return self.heard + HELLO_S + self._silence_s
        if self._fetch is None:
            return float("inf")
        return max(self.heard, self._fetched_at + self._fetch.wait_s) + self._silence_s
