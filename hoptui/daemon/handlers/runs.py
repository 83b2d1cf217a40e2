"""The handler for runs: messages of a training process, and its end. No I/O: sending is passed in."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

import msgspec

from hoptui.daemon.handlers.jobs import JobDesk
from hoptui.daemon.process_endings import ProcessEnding
from hoptui.daemon.recordings import RecordedRun
from hoptui.daemon.state.command_log import REPEATED_S, restarting
from hoptui.daemon.state.derived_rows import Account
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import DuplicateRunError, Leaving, Member, TrackedRun
from hoptui.domain.details import Repository
from hoptui.domain.facts import Fact, fact
from hoptui.domain.outputs import STREAM_NAMES, OutputPart, OutputTail
from hoptui.node.processes import Peer, process_started
from hoptui.protocol import VERSION, messages
from hoptui.protocol.authors import author
from hoptui.protocol.messages import FINAL, Command, CommandRecord, Stage
from hoptui.recording.library import KnownEnding

FUTURE_NS = 1_000_000_000
LONGEST_WAIT_S = 3.0
"""The longest time before a run's message is read."""
MOST_ACKS, LONGEST_ID = 4096, 128
"""Bounds of an acknowledgement, which must fit into a message."""
YOUNG_NS = 60 * 1_000_000_000
"""The repository of a run that is older is not looked up: it may have another commit by now."""
LEAVES_S = 10.0
"""How long a run whose interpreter exits may take to end, before it is reported as it said."""
ARRIVE_S = 1.5
"""How long a node without rank 0 waits for a lower rank. Ranks repeat their hello every second."""
FORGET_ARRIVALS_S = 60.0
MOST_WAITING = 64
"""Restarts that wait for the end of a process."""
RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class _Arrival(NamedTuple):
    """When the first rank of a run without rank 0 said hello, in seconds, and the lowest that has."""

    since: float
    lowest: int


class RunDesk:
    """Answers runs. `send` returns False if the run does not accept the message.

    `ending` is called for an exited run while its recording is still open. `look_up` gets the id, the pid and
    the script of a run whose repository is to be found. `identity` is that of this node, "" if it is not
    known. `jobs` keeps what other nodes say of runs.
    """

    def __init__(
        self,
        node: Node,
        send: Callable[[bytes, messages.ToRun], bool],
        tell: Callable[[CommandRecord], None],
        ending: Callable[[TrackedRun], None],
        look_up: Callable[[str, int, str], None] = lambda *_: None,
        identity: str = "",
    ) -> None:
        self._look_up = look_up
        self.jobs = JobDesk(node, identity, send, self.forward, self.hold, self._outcome)
        self._node = node
        self._send = send
        self._tell = tell
        self._ending = ending
        self._unsent: dict[str, dict[str, Command]] = {}  # by run and id, in order
        self._acks: dict[str, dict[str, Stage]] = {}  # by run
        self._retired: set[str] = set()
        self._parting: dict[str, bytes] = {}  # by run: its process waits for the answer to its goodbye
        self._welcomes: dict[str, messages.RunWelcome] = {}  # by run: sent before it was known what is stored
        self._waiting: dict[str, float] = {}  # by nonce: since when it waits for the process before it
        self._arrivals: dict[str, _Arrival] = {}  # by nonce: of runs whose rank 0 is on another node

    def receive(self, identity: bytes, peer: Peer | None, message: messages.FromRun) -> TrackedRun | None:
        """Process a message. After a hello, returns the run whose processes must be watched."""
        if isinstance(message, messages.RunHello):
            return (self._hello if self._represents(message) else self._join)(identity, peer, message)
        run = self._node.registry.of(identity)
        if run is None and (found := self._node.registry.member(identity)) is not None:
            self._of_member(*found, message)
            return None
        if run is None:
            self._send(identity, messages.Error(code="hello_first", text="say hello first"))
            return None
        match message:
            case messages.Rows(parts=parts):
                newest = self._node.clock.t() + FUTURE_NS
                for part in parts:
                    # A stamp from the future would make every later row look like a repeat.
                    if part.source == run.source(run.rank) and len(part) and part.last_t <= newest:
                        own = msgspec.structs.replace(part, source=f"run/{run.id}")
                        self._node.rows((run.with_rates(own),))
                if run.resends:  # the daemon before was killed without writing them, and this one may be, too
                    run.resends = False
                    self._node.archive.keep(run.id)
            case messages.Pulse():
                before = run.judge(self._now())[0]
                # It may have waited here: its ages are those at the time of sending. Stamps of another clock
                # are ignored.
                waited = self._now() - message.t / 1e9
                run.pulse(message, self._now() - (waited if 0 < waited < LONGEST_WAIT_S else 0.0))
                run.phases.add(message.spans, self._node.clock.t() + FUTURE_NS)
                if run.judge(self._now())[0] != before:
                    self._node.changed()
                if run.trains_in(run.rank, message.thread):
                    self._node.touch()
                if message.off is not None:
                    self._node.event("off", message.off, run=run.id, step=message.step, level="warning")
            case messages.Outcome():
                self._outcome(run, message)
                if message.stage in FINAL and not self._node.book.barrier.hides(message.id):
                    self._acknowledge(run.id, message.id, message.stage)
            case messages.Declare():
                details = run.details
                changed = run.declare(message)
                if changed or run.details is not details:
                    self._node.remember(run)
                if changed:  # viewers ask for details
                    self._node.touch()
            case messages.Note():
                self._node.event(
                    "note",
                    Fact(message.code, message.fields) if message.code else None,
                    text=message.text,
                    run=run.id,
                    step=message.step,
                    level=message.level,
                    t=message.t if message.t <= self._node.clock.t() + FUTURE_NS else 0,
                )
            case messages.Stacks():
                self._stacks(run, run.rank, message)
            case messages.Output():
                _keep_output(run, run.rank, message.part)
            case messages.JobReading():
                self.jobs.reading(run, message)
            case messages.Bye():
                self._bye(run, identity, message)
        return None

    def _bye(self, run: TrackedRun, identity: bytes, bye: messages.Bye) -> None:
        """The run ends: now, or with its process."""
        if bye.at_exit and run.watched:
            wall = self._node.clock.wall()
            said = KnownEnding(reason=bye.reason, detail=bye.detail, told=bye.told, wall=wall)
            run.leaving = Leaving(said, self._now() + LEAVES_S)
            self._node.remember(run)
        else:
            self.end(run, bye.reason, bye.detail, told=bye.told)
        if bye.confirm:
            self._parting[run.id] = identity
            self._node.archive.confirm(run.id)

    def forward(self, command: Command, run: TrackedRun) -> None:
        """Forward a command to its run, after those that wait. It waits while the run does not accept it.

        The command log bounds how many wait.
        """
        self._unsent.setdefault(run.id, {}).setdefault(command.id, command)
        self._forward_waiting(run)

    def found(self, run_id: str, repository: Repository) -> None:
        """Store the repository of a run's script."""
        run = self._node.registry.get(run_id)
        if run is not None:
            run.found(repository)
            self._node.remember(run)

    def tend(self) -> None:
        """Void what the daemon before kept and did not pass on, once no viewer can be about to repeat it."""
        node = self._node
        for run in node.registry.live():
            if run.told and self._now() - run.met_at > REPEATED_S:
                for record in node.book.lose(run.id, run.state.epoch, node.clock.t(), away=run.away):
                    self._tell(record)
        self._tell_stored()

    def _tell_stored(self) -> None:
        """Tell runs that wait for it what earlier daemons have stored of their rows."""
        for name, welcome in list(self._welcomes.items()):
            run, stored = self._node.registry.get(name), self._node.archive.stored(name)
            if run is None or run.identity is None or run.exited:
                del self._welcomes[name]
            elif stored is not None:
                answer = msgspec.structs.replace(welcome, since=stored, stored=stored)
                if self._send(run.identity, answer):
                    del self._welcomes[name]

    def written(self, run: str, numbers: Mapping[str, int]) -> None:
        """Process that data of a run is on disk. `numbers`: by the id of a command, that of its record."""
        if not numbers and (identity := self._parting.pop(run, None)) is not None:
            self._send(identity, messages.Farewell())
        book = self._node.book
        self._release(filter(None, (book.written(run, name, number) for name, number in numbers.items())))

    def _release(self, records: Iterable[CommandRecord]) -> None:
        """Show outcomes to viewers, and acknowledge them to their runs."""
        for record in records:
            self._tell(record)
            self._acknowledge(record.run, record.id, record.stage)
            self._node.changed()

    def _acknowledge(self, run: str, command: str, stage: Stage) -> None:
        acks = self._acks.setdefault(run, {})
        if len(acks) < MOST_ACKS and len(command) <= LONGEST_ID:  # the run sends others again
            acks[command] = stage

    def pump(self) -> None:
        """Show outcomes that have waited for the disk for too long. Send acknowledgements, and the commands
        that wait for their runs."""
        self._release(self._node.book.overdue(self._node.clock.t()))
        for run_id in list(self._unsent):
            run = self._node.registry.get(run_id)
            if run is None:
                del self._unsent[run_id]
            else:
                self._forward_waiting(run)
        for run_id, stages in list(self._acks.items()):
            run = self._node.registry.get(run_id)
            identity = run.identity if run is not None else None
            if (
                identity is None
                or not stages
                or self._send(identity, messages.Acknowledgement(stages=stages))
            ):
                del self._acks[run_id]  # a run that is gone sends its outcomes again when it is back

    @property
    def waiting(self) -> bool:
        """Whether a command or an acknowledgement waits for a run that does not accept it."""
        known = map(self._node.registry.get, (*self._unsent, *self._acks))
        return any(run is not None and run.identity is not None for run in known)

    def _forward_waiting(self, run: TrackedRun) -> None:
        waiting = self._unsent.get(run.id, {})
        if run.away:  # through the node of rank 0
            for name, command in waiting.items():
                self.jobs.relay(command, run)
                self._node.book.give(name)
            self._unsent.pop(run.id, None)
            return
        while waiting and run.identity is not None:
            name, command = next(iter(waiting.items()))
            if not self._send(run.identity, command):
                return
            del waiting[name]
            self._node.book.give(name)
        if not waiting:
            self._unsent.pop(run.id, None)

    def hold(self, run: TrackedRun, seconds: float) -> bool:
        """Renew the run's pause. False if the run does not accept it now."""
        if run.away:
            return self.jobs.relay_hold(run, seconds)
        return run.identity is not None and self._send(run.identity, messages.Hold(seconds=seconds))

    def retire(self) -> bool:
        """Ask every run not to start another daemon. False if some do not take it now: call it again."""
        runs = [run for run in self._node.registry.live() if run.identity is not None]
        for run in runs:
            if run.id not in self._retired and run.identity and self._send(run.identity, messages.Retire()):
                self._retired.add(run.id)
        return all(run.id in self._retired for run in runs)

    def end(self, run: TrackedRun, reason: str, detail: str, *, told: bool = False) -> None:
        """Record the end of a run: reported by the run, or because its process is gone.

        `told`: its process has said what became of every command that it received.
        """
        if run.exited:
            return
        node = self._node
        self._unsent.pop(run.id, None)
        self._void_unreported(run)
        why = fact("run_ended", reason=reason)
        dead = [f"rank {rank} {how}" for rank, how in sorted(run.dead.items()) if rank in run.members]
        detail = "; ".join(filter(None, (detail, *dead[:1])))
        node.registry.disconnect(run)
        wall = run.leaving.said.wall if run.leaving is not None else run.lived_until
        run.exit(reason, detail, node.clock.wall() if wall is None else wall)
        self.jobs.ended(run, reason)
        epoch = run.state.epoch if told and not run.away else None  # commands for it went another way
        for record in node.book.void(run.id, why, node.clock.t(), told=epoch):
            self._tell(record)
        level: Literal["info", "warning"] = "info" if reason in ("finished", "stopped") else "warning"
        node.event(
            "exited",
            fact("run.exited", reason=reason, detail=detail),
            run=run.id,
            step=run.step,
            level=level,
        )
        self._ending(run)
        node.remember(run)
        node.record_stacks(run)
        node.archive.finish(run.id)
        node.touch()

    def restore(self, found: RecordedRun) -> TrackedRun | None:
        """Restore a run from its recording. Returned if its process may still live and must be watched."""
        node = self._node
        run = TrackedRun(
            found.state,
            nonce=found.nonce,
            process_started=found.process_started,
            account=Account(found.energy_j, found.counters),
            details=found.details,
        )
        if found.newest is not None:
            run.rows(found.newest)
            node.rings.append(found.newest)
            age = (node.clock.t() - found.newest.last_t) / 1e9
            run.lived_until = node.clock.wall() - max(0.0, age)
        node.registry.restore(run)
        ended = fact("run_ended", reason=run.state.exit_reason) if run.exited else None
        node.book.restore(found.commands, ended)
        left = (record.epoch for record in found.commands if restarting(record))
        run.restarting = run.state.epoch in left  # else the process that it was left for has come
        node.restore_events(found.events)
        if run.exited:
            return None
        if found.leaving is not None:
            run.leaving = Leaving(found.leaving, self._now() + LEAVES_S)
        node.remember(run)
        return run

    def _waits(self, hello: messages.RunHello) -> bool:
        """Whether a restart waits for the end of the process before it, which may be suspended.

        The other ranks know the id of the run, so another one for rank 0 would make two runs of it. A process
        that lives sends a pulse each second.
        """
        known = self._node.registry.get(hello.run)
        if hello.world == 1 or known is None:
            return False
        while len(self._waiting) >= MOST_WAITING and hello.nonce not in self._waiting:
            del self._waiting[next(iter(self._waiting))]
        return known.newest_pulse[1] <= self._waiting.setdefault(hello.nonce, self._now())

    def _hello(self, identity: bytes, peer: Peer | None, hello: messages.RunHello) -> TrackedRun | None:
        node = self._node
        if hello.protocol != messages.PROTOCOL:
            text = (
                f"this process speaks version {hello.protocol} of hoptui's protocol, "
                f"the running daemon ({VERSION}) version {messages.PROTOCOL}"
            )
            self._send(identity, messages.Error(code="protocol", text=text))
            return None
        if not RUN_ID.fullmatch(hello.run):  # it is part of a file name
            self._send(identity, messages.Error(code="malformed", text=f"{hello.run[:80]!r} is no run id"))
            return None
        pid = peer.pid if peer is not None and peer.pid else hello.pid
        # A run that is not welcomed within a second sends hello again.
        repeated = (known := node.registry.of(identity)) is not None and known.nonce == hello.nonce
        try:
            known_by = msgspec.structs.replace(hello, pid=pid)
            run, kind = node.registry.hello(identity, known_by, node.clock.wall())
        except DuplicateRunError as error:
            if hello.away or self._waits(hello):
                return None
            self._send(identity, messages.Error(code="duplicate_run", text=str(error)))
            return None
        run.state = msgspec.structs.replace(run.state, pid=pid)
        run.process_started = process_started(pid) or 0
        run.pulse(
            messages.Pulse(
                step=hello.step,
                phase=hello.phase,
                paused=hello.paused,
                paused_left_s=60.0 * hello.paused,
                began=hello.began,
            ),
            self._now(),
        )
        run.told = False
        source = f"run/{run.id}"
        if kind == "epoch":
            why = fact("run_restarted", restart=run.state.epoch - 1)
            self._unsent.pop(run.id, None)
            for record in node.book.void(run.id, why, node.clock.t(), ended=False):
                self._tell(record)
        self._void_unreported(run)
        ring = node.rings.get(source)
        since = max(ring.last_t if ring is not None and kind == "same" else 0, node.archive.flushed(source))
        node.remember(run)
        young = 0 <= node.clock.t() - hello.started <= YOUNG_NS
        if run.details is not None and run.details.repository is None and young:
            self._look_up(run.id, pid, run.details.script)
        welcome = messages.RunWelcome(
            protocol=messages.PROTOCOL,
            pid=os.getpid(),
            version=VERSION,
            epoch=run.state.epoch,
            since=since,
            acks=True,
            hello=hello.number,
            stacks=True,
            output=True,
            on_disk=max(node.archive.flushed(source), node.archive.stored(run.id) or 0),
        )
        self._send(identity, welcome)
        earlier = self._welcomes.pop(run.id, None)
        # A run ignores the answer to a hello that it repeats: the first one still lacks what is stored.
        ignored = repeated and earlier is not None and earlier.hello == hello.number
        if hello.past_rows and (ignored or not since):
            self._welcomes[run.id] = welcome
        run.resends = True
        self._unsent[run.id] = {command.id: command for command in node.book.unanswered(run.id)}
        self._forward_waiting(run)
        match kind:
            case "new":
                node.event("started", fact("run.started", pid=pid), run=run.id)
            case "epoch":
                what = fact("run.restarted", restart=run.state.epoch - 1, pid=pid)
                node.event("restarted", what, run=run.id, step=hello.step, level="warning")
            case "same" if not repeated:
                node.event("reconnected", fact("run.reconnected"), run=run.id, step=hello.step)
        node.touch()
        return run

    def _represents(self, hello: messages.RunHello) -> bool:
        """Whether a process represents its run on this node: rank 0, or else the lowest rank that is here."""
        if not hello.rank:
            return True
        if not hello.away:
            return False
        run, now = self._node.registry.of_nonce(hello.nonce), self._now()
        if run is not None:
            return run.rank == hello.rank
        known = self._node.registry.get(hello.run)
        if known is not None and known.exited and known.nonce == hello.nonce:
            return False  # the run has ended here with the rank that represented it
        self._arrivals = {
            nonce: one for nonce, one in self._arrivals.items() if now - one.since < FORGET_ARRIVALS_S
        }
        since, lowest = self._arrivals.get(hello.nonce, _Arrival(now, hello.rank))
        self._arrivals[hello.nonce] = _Arrival(since, min(lowest, hello.rank))
        return now - since >= ARRIVE_S and hello.rank <= lowest

    def _void_unreported(self, run: TrackedRun) -> None:
        node = self._node
        for record in node.book.void_unreported(run.id, run.state.epoch, node.clock.t()):
            self._tell(record)

    def _join(self, identity: bytes, peer: Peer | None, hello: messages.RunHello) -> TrackedRun | None:
        """Connect a rank that does not represent its run. It retries every second until its run is known."""
        node = self._node
        if hello.protocol != messages.PROTOCOL:
            return None
        run = node.registry.join(identity, hello, peer.pid if peer is not None and peer.pid else hello.pid)
        if run is None:
            return None
        source = run.source(hello.rank)
        ring = node.rings.get(source)
        self._send(
            identity,
            messages.RunWelcome(
                protocol=messages.PROTOCOL,
                pid=os.getpid(),
                version=VERSION,
                epoch=run.state.epoch,
                since=ring.last_t if ring is not None else 0,
                hello=hello.number,
                stacks=True,
                output=True,
                on_disk=node.archive.flushed(source),
            ),
        )
        node.remember(run)
        node.touch()
        return run

    def rank_ended(self, run: TrackedRun, rank: int, pid: int, ending: ProcessEnding) -> None:
        """Record that the process of a rank is gone that does not represent its run, without goodbye."""
        if run.exited or rank not in run.members:
            return
        what = fact("rank.ended", rank=rank, pid=pid, reason=ending.reason, detail=ending.detail)
        self._node.event("rank-ended", what, run=run.id, step=run.step, level="warning")

    def _of_member(self, run: TrackedRun, member: Member, message: messages.FromRun) -> None:
        """Process a message of a rank that does not represent its run.

        That is rows, its GPUs, an error of its link, or goodbye.
        """
        node = self._node
        match message:
            case messages.Rows(parts=parts):
                newest = node.clock.t() + FUTURE_NS
                source = run.source(member.rank)  # whatever the run was called at its start
                own = [p for p in parts if len(p) and p.last_t <= newest]
                node.rows(msgspec.structs.replace(part, source=source) for part in own)
            case messages.Declare(gpus=gpus):
                claim = replace(member.claim, declared=gpus)
                run.members[member.rank] = replace(member, claim=claim)
                node.touch()
            case messages.Stacks():
                self._stacks(run, member.rank, message)
            case messages.Output():
                _keep_output(run, member.rank, message.part)
            case messages.Pulse(off=None):
                run.members[member.rank] = replace(member, pulse_at=self._now(), pulse=message)
                if run.trains_in(member.rank, message.thread):
                    node.touch()
            case messages.Pulse(off=Fact() as why):
                off = fact("rank.off", rank=member.rank, why=why)
                node.event("off", off, run=run.id, step=message.step, level="warning")
            case messages.Bye():
                run.leave(member.rank)
                node.touch()

    def _stacks(self, run: TrackedRun, rank: int, message: messages.Stacks) -> None:
        if message.samples.ended <= self._node.clock.t() + FUTURE_NS:
            run.stacks.knows_loop(message.loop)
            self._node.stacks(run, rank, message.samples)

    def _outcome(self, run: TrackedRun, outcome: messages.Outcome) -> None:
        node = self._node
        if outcome.t > node.clock.t() + FUTURE_NS:
            outcome = msgspec.structs.replace(outcome, t=0)
        t = node.clock.t()
        wall = node.clock.wall() - (t - (outcome.t or t)) / 1e9
        record = node.book.outcome(run.id, outcome, t, wall)
        if record is None:
            return
        if restarting(record):
            run.restarting = True
            node.changed()
        if record.verb == "resume" and outcome.stage == "applied":
            run.resumed()
        if record.verb == "set" and outcome.stage in ("applied", "failed", "reverted"):
            run.outcome(record.knob, outcome, author(record.origin, sentence=True))
            if outcome.stage == "reverted":
                why = Fact(outcome.code, outcome.fields)
                if outcome.reason:  # from an older run
                    why = fact("reverted", reason=outcome.reason)
                what = fact("command.reverted", knob=record.knob, value=outcome.effective, why=why)
                node.event("reverted", what, run=run.id, step=outcome.step, level="warning")
            node.remember(run)
            node.touch()
        self._tell(record)

    def _now(self) -> float:
        return self._node.clock.t() / 1e9


def _keep_output(run: TrackedRun, rank: int, part: OutputPart) -> None:
    if part.stream in STREAM_NAMES:
        run.copied.setdefault((rank, part.stream), OutputTail()).add(part)
