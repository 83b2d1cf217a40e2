"""The handler for viewers: each viewer gets only what it requests, when it requests it. No I/O."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import msgspec

from hoptui.daemon.handlers import pages
from hoptui.daemon.handlers.notes import NoteDesk
from hoptui.daemon.handlers.runs import RunDesk
from hoptui.daemon.handlers.targets import TargetDesk
from hoptui.daemon.handlers.tuners import TunerDesk
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.stack_windows import MOST_RANKS
from hoptui.domain.columns import Columns
from hoptui.domain.jobs import SILENT_S
from hoptui.domain.outputs import OutputPart
from hoptui.domain.pacing import MOST_HZ
from hoptui.domain.run_notes import AddNote
from hoptui.domain.stacks import KEPT_S
from hoptui.domain.targets import SetTargets
from hoptui.domain.tuning import Tune
from hoptui.node.processes import Peer
from hoptui.protocol import VERSION, messages
from hoptui.protocol.messages import CommandRecord, Origin, State, Vital

LONGEST_WAIT_S = 10.0
MOST_ROWS = 4096
WATCHED_HZ = 2.0
LONGEST_PAUSE_S = 3600.0
NOT_READ = "the run does not read its messages now; try again"
NO_LEASE = "this lease no longer exists: several dashboards may steer a run"


Shown = dict[str, tuple[State, str, bool]]
"""The parts of the vitals whose change needs an answer, by run: the state, the phase of a busy run, and
whether what the head says is old.
"""


@dataclass
class Viewer:
    """A connection that has sent hello."""

    identity: bytes
    hello: messages.ViewerHello
    origin: Origin
    heard: float
    waiting: messages.Fetch | None = None
    deadline: float = 0.0
    hz: float = 0.0
    latest_from: int = 0
    shown: Shown = field(default_factory=dict)


class ViewerDesk:
    """Answers viewers. `send` returns False if the viewer does not take the message."""

    def __init__(
        self,
        node: Node,
        send: Callable[[bytes, messages.ToViewer], bool],
        forward: RunDesk,
        tuners: TunerDesk,
        targets: TargetDesk,
        shutdown: Callable[[], None],
    ) -> None:
        self._node = node
        self._send = send
        self._runs = forward
        self._tuners = tuners
        self._targets = targets
        self._notes = NoteDesk(node)
        self._shutdown = shutdown
        self._viewers: dict[bytes, Viewer] = {}
        self._by_name: dict[str, bytes] = {}

    @property
    def count(self) -> int:
        """The number of connected viewers."""
        return len(self._viewers)

    @property
    def hz(self) -> float:
        """The sampling rate of the GPUs that viewers request, 0 for none."""
        return max((viewer.hz for viewer in self._viewers.values()), default=0.0)

    @property
    def waiting(self) -> bool:
        """Whether any viewer waits for an answer."""
        return any(viewer.waiting is not None for viewer in self._viewers.values())

    @property
    def moved(self) -> bool:
        """Whether a waiting viewer lacks a change by time alone: a silent run, or an expired pause."""
        waiting = [viewer for viewer in self._viewers.values() if viewer.waiting is not None]
        shown = self._shown(self._now()) if waiting else {}
        return any(viewer.shown != shown for viewer in waiting)

    def receive(self, identity: bytes, peer: Peer | None, message: messages.FromViewer) -> None:
        """Answer a message now; a Fetch when there is something to report."""
        now = self._now()
        if isinstance(message, messages.ViewerHello):
            self._hello(identity, peer, message, now)
            return
        viewer = self._viewers.get(identity)
        if viewer is None:
            number = 0 if isinstance(message, messages.Command) else message.id
            self._send(identity, messages.Error(code="hello_first", text="say hello first", id=number))
            return
        viewer.heard = now
        match message:
            case messages.Fetch():
                viewer.waiting = message
                wish = min(message.hz, MOST_HZ) if message.hz > 0 else 0.0  # NaN requests nothing
                viewer.hz = max(wish, WATCHED_HZ if message.cursors else 0.0)
                viewer.deadline = now + min(max(message.wait_s, 0.0), LONGEST_WAIT_S)
                self._answer(viewer, message, self._shown(now), self._vitals(now))
            case messages.Query():
                self._node.query(identity, message)
            case messages.Describe(id=number, run=name):
                run = self._node.registry.get(name)
                details = run.details if run is not None else None
                self.reply(identity, messages.Description(id=number, run=name, details=details))
            case messages.FetchStacks(id=number, run=name, seconds=seconds):
                self.reply(identity, self._stacks(number, name, seconds))
            case messages.FetchLines():
                self.reply(identity, self._lines(message))
            case messages.FetchOutput():
                self._node.fetch_output(identity, message, self._copied(message))
            case messages.Command():
                self._command(viewer, message)
            case messages.Lease():
                self._lease(viewer, message)
            case Tune():
                self.reply(identity, self._tuners.receive(message, viewer.hello.viewer, viewer.origin))
            case SetTargets():
                self.reply(identity, self._targets.receive(message, viewer.origin))
            case AddNote():
                self.reply(identity, self._notes.receive(message, viewer.origin))
            case messages.ViewerBye():
                self._forget(identity)
            case messages.Shutdown():
                self._shutdown()

    def reply(self, identity: bytes, answer: messages.ToViewer) -> None:
        """Send an answer. A viewer that does not take it has to say hello again, and then starts over."""
        if not self._send(identity, answer):
            self._forget(identity)

    def tell(self, record: CommandRecord) -> None:
        """Send the record of a command to its sender at once. Other viewers get it with their next Delta.

        An outcome that is not on disk yet is sent later.
        """
        if self._node.book.barrier.hides(record.id):
            return
        identity = self._by_name.get(self._node.book.sender(record.id))
        if identity is not None:
            self._push(identity, record)

    def _push(self, identity: bytes, record: CommandRecord) -> None:
        # It answers no Fetch and moves no cursor: other records may have changed before.
        pushed = msgspec.structs.replace(pages.record(record), seq=0)
        self._send(identity, messages.Delta(id=0, now=self._node.clock.t(), state=0, commands=(pushed,)))
        viewer = self._viewers.get(identity)
        if viewer is not None and not viewer.hello.records:
            self._send(identity, _outcome(pushed))

    def serve(self) -> None:
        """Answer the waiting fetches that have news or have waited long enough. Remove viewers that are
        gone."""
        now = self._now()
        shown, vitals = self._shown(now) if self.waiting else {}, self._vitals(now)
        for identity, viewer in list(self._viewers.items()):
            if viewer.waiting is not None:
                self._answer(viewer, viewer.waiting, shown, vitals)
            elif now - viewer.heard > self._node.timings.gone_s:
                self._forget(identity)

    def next_deadline(self) -> float | None:
        """Return when the next waiting fetch must be answered, monotonic seconds."""
        return min((v.deadline for v in self._viewers.values() if v.waiting is not None), default=None)

    def _hello(self, identity: bytes, peer: Peer | None, hello: messages.ViewerHello, now: float) -> None:
        if hello.protocol != messages.PROTOCOL:
            text = (
                f"this hoptui speaks version {hello.protocol} of the protocol, the running daemon "
                f"({VERSION}) version {messages.PROTOCOL}: 'hoptui daemon stop', then try again (training "
                "goes on)"
            )
            self._send(identity, messages.Error(code="protocol", text=text))
            return
        old = self._by_name.get(hello.viewer)
        if old is not None and old != identity:
            self._viewers.pop(old, None)
        origin = Origin(
            kind=hello.kind,
            user=peer.user if peer else "",
            pid=peer.pid if peer else 0,
            client=hello.client[:40],
        )
        self._viewers[identity] = Viewer(identity, hello, origin, now)
        self._by_name[hello.viewer] = identity
        self._count()
        welcome = messages.ViewerWelcome(
            protocol=messages.PROTOCOL,
            pid=os.getpid(),
            version=VERSION,
            host=self._node.host,
            records=True,
        )
        self._send(identity, welcome)

    def _forget(self, identity: bytes) -> None:
        viewer = self._viewers.pop(identity, None)
        if viewer is not None and self._by_name.get(viewer.hello.viewer) == identity:
            del self._by_name[viewer.hello.viewer]
        self._count()

    def _count(self) -> None:
        if self._node.viewers != len(self._viewers):
            self._node.viewers = len(self._viewers)
            self._node.touch()

    def _stacks(self, number: int, name: str, seconds: float) -> messages.RunStacks:
        run = self._node.registry.get(name)
        since = self._node.clock.t() - int(min(seconds, KEPT_S) * 1e9)
        found = run.stacks.since(since) if run is not None else {}
        ranks = tuple(messages.RankStacks(rank=rank, samples=samples) for rank, samples in found.items())
        return messages.RunStacks(id=number, run=name, ranks=ranks[:MOST_RANKS])

    def _lines(self, asked: messages.FetchLines) -> messages.RunLines:
        run = self._node.registry.get(asked.run)
        if run is None:
            return messages.RunLines(id=asked.id, run=asked.run)
        end = run.stacks.last_t if run.exited else self._node.clock.t()
        found = run.stacks.lines(end - int(min(asked.seconds, KEPT_S) * 1e9), asked.first)
        ranks, following = pages.lines(found, max(1, min(asked.ranks, MOST_RANKS)))
        return messages.RunLines(id=asked.id, run=asked.run, ranks=ranks, next=following)

    def _copied(self, asked: messages.FetchOutput) -> list[OutputPart]:
        run = self._node.registry.get(asked.run)
        found = []
        for (rank, stream), tail in run.copied.items() if run is not None else ():
            if rank == asked.rank:
                start, data = tail.page(asked.since.get(tail.source, 0))
                found.append(
                    OutputPart(
                        stream=stream,
                        origin="copied",
                        source=tail.source,
                        start=start,
                        end=tail.end,
                        data=data,
                    )
                )
        return found

    def _command(self, viewer: Viewer, command: messages.Command) -> None:
        node = self._node
        run = node.registry.get(command.run)
        command = msgspec.structs.replace(command, origin=viewer.origin)
        if node.book.undecided(command, run):
            return
        answer, onward = node.book.submit(
            command, run, viewer.hello.viewer, node.clock.wall(), node.clock.t()
        )
        if onward is not None and run is not None:
            self._runs.forward(onward, run)
        shown = node.book.barrier.shown(answer)
        if shown is not None:
            self._push(viewer.identity, shown)

    def _lease(self, viewer: Viewer, lease: messages.Lease) -> None:
        """Renew a pause. Other leases of older viewers are refused."""
        run = self._node.registry.get(lease.run)
        if run is None or run.exited:
            text = f"no live run has the id {lease.run!r}"
            self.reply(viewer.identity, messages.Error(code="no_such_run", text=text, id=lease.id))
            return
        if lease.what != "pause" or lease.op not in ("take", "renew"):  # from an older viewer
            refused = messages.LeaseState(id=lease.id, run=lease.run, reason=NO_LEASE)
            self.reply(viewer.identity, refused)
            return
        granted = self._runs.hold(run, min(max(lease.seconds, 1.0), LONGEST_PAUSE_S))
        answer = messages.LeaseState(
            id=lease.id, run=lease.run, granted=granted, reason="" if granted else NOT_READ
        )
        self.reply(viewer.identity, answer)

    def _answer(
        self, viewer: Viewer, fetch: messages.Fetch, shown: Shown, vitals: Callable[[], dict[str, Vital]]
    ) -> None:
        """Send a Delta if it has content, or if the time is up."""
        node = self._node
        if fetch.latest:
            columns, more = self._latest(viewer), False
        else:
            columns, more = self._columns(fetch)
        newer = node.events_since(fetch.events, fetch.run)
        if not viewer.hello.records:  # an older viewer, which shows the text alone
            newer = tuple(msgspec.structs.replace(event, text=event.text or event.code) for event in newer)
        events, more_events = pages.events(newer)
        commands, more_commands = pages.commands(node.book.since(fetch.commands, fetch.run))
        new_state = fetch.state != node.version or bool(fetch.page)
        new_processes = fetch.processes is not None and fetch.processes != node.processes_version
        moved = shown != viewer.shown
        job_version, job = self._job(fetch)
        news = columns or events or commands or new_state or new_processes or moved or job
        t = node.clock.t()
        if not (news or fetch.latest or t / 1e9 >= viewer.deadline):
            return
        viewer.shown = shown
        oldest = min((c.last_t for c in columns if len(c)), default=t)
        viewer.waiting = None
        viewer.heard = t / 1e9
        state, next_page = pages.node(node.state(), fetch.page) if new_state else (None, 0)
        self.reply(
            viewer.identity,
            messages.Delta(
                id=fetch.id,
                now=t,
                state=node.version,
                node=state,
                vitals=vitals(),
                columns=columns,
                events=events,
                commands=commands,
                more=bool(more or more_events or more_commands or next_page),
                behind_ms=(t - oldest) / 1e6 if more else 0.0,
                processes=pages.processes(node.processes) if new_processes else None,
                tree=pages.tree(node.tree) if new_processes else None,
                processes_version=node.processes_version,
                next_page=next_page,
                job=job,
                job_version=job_version,
            ),
        )

    def _job(self, fetch: messages.Fetch) -> tuple[int, bytes | None]:
        """Return the version of the state of the job that a viewer asks for, and the state if it is newer."""
        return self._runs.jobs.newer(fetch.job, fetch.job_version) if fetch.job else (0, None)

    def _vitals(self, now: float) -> Callable[[], dict[str, Vital]]:
        """Return a function that returns the vitals at a moment, worked out when first asked for."""
        return cache(lambda: pages.vitals({run.id: run.vital(now) for run in self._node.registry}))

    def _shown(self, now: float) -> Shown:
        judged = ((run, run.judge(now)[0]) for run in self._node.registry)
        return {
            run.id: (state, run.phase if state == "busy" else "", (run.head_age_s(now) or 0.0) > SILENT_S)
            for run, state in judged
        }

    def _columns(self, fetch: messages.Fetch) -> tuple[tuple[Columns, ...], bool]:
        limit = max(1, min(fetch.max_rows, MOST_ROWS))
        found: list[Columns] = []
        left, more = pages.ROWS, False
        for source, cursor in fetch.cursors.items():
            ring = self._node.rings.get(source)
            if ring is None:
                continue
            rows, held_back = ring.since(cursor, limit)
            if rows is None:
                continue
            if found and pages.weight(rows.slice(0, 1)) > left:
                more = True
                break
            rows, cut = pages.rows(rows, left)
            left -= pages.weight(rows)
            found.append(rows)
            more = more or held_back or cut
        return tuple(found), more

    def _latest(self, viewer: Viewer) -> tuple[Columns, ...]:
        """Return the newest values of every source. If they are too many, the next answer has the others."""
        latest = self._node.latest()
        start = viewer.latest_from % len(latest) if latest else 0
        turned = [pages.rows(part, pages.ROWS)[0] for part in (*latest[start:], *latest[:start])]
        found, more = pages.first(turned, pages.ROWS + pages.KIB, pages.weight)
        viewer.latest_from = start + len(found) if more else 0
        return tuple(found)

    def _now(self) -> float:
        return self._node.clock.t() / 1e9


def _outcome(record: CommandRecord) -> messages.Outcome:
    """Return the outcome of a command for an older viewer, which knows no codes."""
    return messages.Outcome(
        id=record.id,
        stage=record.stage,
        step=record.step,
        before=record.before,
        effective=record.effective,
        version=record.version,
        code=record.code,
        fields=record.fields,
        reason=record.reason or record.code,
        t=record.settled,
        took_s=record.took_s,
        followed=record.followed,
    )
