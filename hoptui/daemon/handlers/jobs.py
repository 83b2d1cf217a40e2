"""The handler for runs on several nodes: what the nodes tell each other over the store of the job. No I/O.

Once a second, the daemon hands the record of its node to the process that represents the run here. That
process writes it to the store, and answers with what it has read. The head, the node of rank 0, puts the
records of all nodes together, and writes the state of the job for the others.

A command that is given on another node goes into the record of that node until it is answered. The head takes
it up once, and its record has the outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import structs

from hoptui.daemon.head_facts import HeadView, head_facts
from hoptui.daemon.rank_summaries import node_summary
from hoptui.daemon.state.command_log import LONGEST_HOLD_S
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.diagnosis.job_health import JobHealth
from hoptui.domain.alerts import TRIGGERS
from hoptui.domain.devices import Level
from hoptui.domain.facts import fact
from hoptui.domain.jobs import SILENT_S, JobNode, JobState, NodeCondition, NodeSummary
from hoptui.domain.run_notes import MOST_NOTES, RunNote
from hoptui.protocol import job_records, messages
from hoptui.protocol.job_records import JobRecord, NodeRecord, PauseRenewal
from hoptui.protocol.messages import (
    FATE_UNKNOWN,
    FINAL,
    Command,
    CommandRecord,
    JobReading,
    Outcome,
    StoredRecord,
)
from hoptui.protocol.record_bytes import RecordError

EVERY_S = 0.85
"""The least time between two reports. The daemon wakes up about once a second."""
SELDOM = 10
"""A node without viewers reads the record of the head once in so many reports."""
SPREAD_S = 5.0
"""A run whose other ranks have not come to this node after so long has several nodes."""
ANSWER_S = 0.3
"""How long a reading wakes the daemon at once."""
UNREAD_S = 15.0
"""What was not read for so long may have been written at any time since."""
NO_ANSWER_S = 4.0
"""A store that has not answered for so long is reported."""
RECORD_S = 30.0
"""How often the state is recorded. The recording keeps the last one of each minute."""
CHANGED_S = 2.0
"""How soon after the last time it is recorded again where a node has come or gone. A run may be short."""
RELAYED_S = 60.0
"""How long a command waits for the head. After that, what became of it is unknown."""
NO_ANSWER = "no word from the store of the job"
NO_IDENTITY = "its directory cannot be used"
MOST_TAKEN = 4096
MOST_ASKED = 64
"""Reports whose answers may still come. A report that waits for the store is replaced by a newer one."""


@dataclass
class _KnownNode:
    """Another node as the head knows it. Times are in seconds.

    `slot` is the newest place of its record in the store. `read_at` is when its record was first read. The
    record is no older than `changed_at`. That is None if nobody knows: the record may be the last one of a
    node that has died.
    """

    slot: int
    record: NodeRecord
    read_at: float
    changed_at: float | None
    left: bool


@dataclass
class _Relayed:
    """A command that was given on this node, and when, in seconds."""

    command: Command
    since: float


@dataclass
class _Job:
    """What is known of one process of a run on several nodes. Times are in seconds."""

    nonce: str
    number: int = 0
    reported_at: float = -1.0
    answered: int = 0
    good_at: float = -1.0  # when the store last worked
    readable_since: float = -1.0
    began: float = 0.0
    problem: str = ""
    took_s: float | None = None
    own: NodeSummary | None = None
    nodes: dict[str, _KnownNode] = field(default_factory=dict)  # by identity, without this one
    slots: dict[int, tuple[NodeRecord, bool]] = field(default_factory=dict)  # as they were read last
    identities: tuple[str, ...] = ()  # of the nodes in the state of the head
    head_record: bytes = b""  # as it was read last
    head_problem: str = ""  # why what the head says last cannot be read
    told: JobState | None = None  # by the head, for this node
    told_at: float = -1.0  # the record of the head is no older
    told_read_at: float = -1.0  # when it was first read
    told_fresh: bool = False  # whether the head has written since its record was read first
    view: HeadView | None = None  # what it says of the run
    asked: list[int] = field(default_factory=list)  # reports that asked for the record of the head: numbers
    looked_at: float = -1.0  # when such a report was answered last
    state: JobState | None = None
    version: int = 0
    body: tuple[int, bytes] = (0, b"")  # the state of a version, encoded
    relayed: dict[str, _Relayed] = field(default_factory=dict)  # by id
    renewal: PauseRenewal | None = None
    taken: dict[str, str] = field(default_factory=dict)  # by the head: identity of its node, by id
    renewed: dict[str, int] = field(default_factory=dict)  # the last renewal of each node
    health: JobHealth = field(default_factory=JobHealth)
    judged_at: float = -1.0
    recorded_at: float = -RECORD_S
    recorded: tuple[NodeCondition, ...] = ()


class JobDesk:
    """Keeps the state of each live run that has several nodes.

    Args:
        node: This node.
        identity: See `hoptui.node.identity`, "" if it is not known.
        send: Sends a message to a run. False if the run does not accept it.
        forward: Passes a command on to its run.
        hold: Renews the pause of a run, in seconds. False if that is not possible.
        finish: Processes the outcome of a command.
    """

    def __init__(
        self,
        node: Node,
        identity: str,
        send: Callable[[bytes, messages.ToRun], bool],
        forward: Callable[[Command, TrackedRun], None],
        hold: Callable[[TrackedRun, float], bool],
        finish: Callable[[TrackedRun, Outcome], None],
    ) -> None:
        self._node, self._identity, self._send = node, identity, send
        self._forward, self._hold, self._finish = forward, hold, finish
        self._jobs: dict[str, _Job] = {}
        self._version = 0  # of the newest state, of whichever run

    @property
    def waiting(self) -> bool:
        """Whether a reading is about to come."""
        now = self._now()
        return any(
            job.answered < job.number and now - job.reported_at < ANSWER_S for job in self._jobs.values()
        )

    def state(self, run: str) -> JobState | None:
        """Return the state of a run on all its nodes, None if it has one node, or nothing is known."""
        job = self._current(run)
        return job.state if job is not None else None

    def newer(self, run: str, version: int) -> tuple[int, bytes | None]:
        """Return the version of the state of a run, and the encoded state if `version` is another one."""
        job = self._current(run)
        if job is None or job.state is None or job.version == version:
            return (job.version if job is not None else 0), None
        return job.version, self._body(job)

    def tend(self) -> None:
        """Report to the store of each run that is due."""
        node, now = self._node, self._now()
        known = {run.id: run.nonce for run in node.registry}
        self._jobs = {name: job for name, job in self._jobs.items() if known.get(name) == job.nonce}
        for run in node.registry.live():
            if self._spread(run, now):
                node.faults.attempt(f"reporting {run.id} to its other nodes", self._report, run, now)

    def reading(self, run: TrackedRun, reading: JobReading) -> None:
        """Process what a process has read from the store."""
        job = self._current(run.id)
        if job is None:
            return
        now = self._now()
        since = max(job.good_at, job.began)
        looked_at = job.looked_at
        late = bool(job.problem) or now - since > NO_ANSWER_S
        written = since if late else now  # what is read now and was not before is no older
        sure = not (job.problem or now - since > UNREAD_S)
        if late:
            job.readable_since = now
        job.answered = max(job.answered, reading.number)
        job.problem, job.took_s = reading.problem, reading.took_s
        if not reading.problem:
            job.good_at = now
            if reading.number in job.asked:  # a slow store answers a report after further ones were sent
                job.looked_at = now
                job.asked = [number for number in job.asked if number > reading.number]
        for stored in reading.nodes:
            try:
                record = job_records.decode_node(stored.record)
            except RecordError as error:
                self._refused(f"the record of a node of {run.id}", error)
                continue
            if record.node == self._identity or not record.node:
                continue
            before = job.slots.get(stored.slot)
            job.slots[stored.slot] = record, stored.left
            if before != (record, stored.left):  # else it was only read again
                self._heard(run, job, stored, record, written, now, sure=sure and before is not None)
        if reading.state is not None:
            silent = job.told is not None and looked_at - job.told_read_at > SILENT_S  # see `_heard`
            self._told(run, job, reading.state, job.told_at if silent else written, now)
        self._compose(run, job, now)

    def relay(self, command: Command, run: TrackedRun) -> None:
        """Pass a command on to the head, with the next report."""
        job = self._job(run)
        if command.id not in job.relayed and len(job.relayed) < job_records.MOST_RELAYED:
            job.relayed[command.id] = _Relayed(command, self._now())
            job.reported_at = -1.0
        elif command.id not in job.relayed:
            self._finish(run, Outcome(id=command.id, stage="rejected", code="job.too_many_commands"))

    def relay_hold(self, run: TrackedRun, seconds: float) -> bool:
        """Pass the renewal of a pause on to the head, with the next report."""
        job = self._job(run)
        job.renewal = PauseRenewal((job.renewal.number if job.renewal else 0) + 1, seconds)
        return True

    def ended(self, run: TrackedRun, reason: str) -> None:
        """The run has ended here. If it was stopped, so are the requests for that on their way."""
        job = self._jobs.get(run.id)
        if job is None:
            return
        for name, one in job.relayed.items():
            if one.command.verb == "stop" and reason == "stopped":
                self._finish(run, Outcome(id=name, stage="applied"))
        job.relayed.clear()

    # every second -------------------------------------------------------------------------------------------

    def _spread(self, run: TrackedRun, now: float) -> bool:
        """Whether a run has other nodes, as far as it is known here."""
        if run.identity is None or run.state.world < 2:
            return False
        missing = run.state.world > 1 + len(run.state.ranks)
        return run.away or (missing and now - run.met_at > SPREAD_S)

    def _current(self, name: str) -> _Job | None:
        """Return what is known of a run, None if that is of an earlier process."""
        job, run = self._jobs.get(name), self._node.registry.get(name)
        return job if job is not None and run is not None and run.nonce == job.nonce else None

    def _job(self, run: TrackedRun) -> _Job:
        job = self._current(run.id)
        if job is None:
            job = self._jobs[run.id] = _Job(run.nonce, began=self._now())
        return job

    def _report(self, run: TrackedRun, now: float) -> None:
        job = self._job(run)
        if now - job.reported_at < EVERY_S or run.identity is None:
            return
        job.own = node_summary(self._node, run, job.number + 1)
        if run.away:
            self._give_up_old(run, job, now)
            record = NodeRecord(
                node=self._identity,
                summary=job.own,
                commands=tuple(one.command for one in job.relayed.values()),
                renewal=job.renewal,
                notes=_unlisted(run),
            )
            body: bytes | None = job_records.encode_node(record)
        else:
            self._compose(run, job, now)
            body = self._head_record(run, job) if job.state is not None else None
        job.number += 1
        wanted = bool(self._node.viewers or job.relayed) or not job.told_fresh
        read = wanted or job.number % SELDOM == 1
        if read:
            job.asked = [*job.asked[1 - MOST_ASKED :], job.number]
        report = messages.JobReport(number=job.number, head=not run.away, record=body, read=read)
        if self._send(run.identity, report):
            job.reported_at = now
        if run.away:
            self._compose(run, job, now)

    def _compose(self, run: TrackedRun, job: _Job, now: float) -> None:
        """Make the state of the job from what is known now."""
        if job.own is None:
            return
        problem = job.problem
        heard = max(job.good_at, job.began)
        if not problem and job.number > job.answered and now - heard > NO_ANSWER_S:
            problem = NO_ANSWER
        if not self._identity:
            problem = NO_IDENTITY
        if run.away:
            job.state = self._as_told(run, job, problem, now)
        else:
            job.state = self._of_head(run, job, problem, now)
            if not problem:
                self._node.faults.attempt(f"judging the nodes of {run.id}", self._judge, run, job, now)
        self._version += 1
        job.version = self._version
        run.job = job.state
        conditions = tuple(node.condition for node in job.state.nodes)
        if now - job.recorded_at >= (RECORD_S if conditions == job.recorded else CHANGED_S):
            job.recorded_at, job.recorded = now, conditions
            self._node.archive.job(run.id, self._node.clock.t(), job.state)
        self._node.changed()

    # the head -----------------------------------------------------------------------------------------------

    def _of_head(self, run: TrackedRun, job: _Job, problem: str, now: float) -> JobState:
        assert job.own is not None
        at = now if not problem else max(job.good_at, job.began)  # nobody is silent because nothing is read
        found = [(self._identity, JobNode(index=0, condition="live", age_s=0.0, summary=job.own))]
        for name, known in job.nodes.items():
            age_s = max(0.0, at - (known.read_at if known.changed_at is None else known.changed_at))
            condition: NodeCondition = "left" if known.left else "silent" if age_s > SILENT_S else "live"
            if condition == "live" and known.changed_at is None:
                continue  # it is live if it writes again
            summary = structs.replace(known.record.summary, epoch=run.state.epoch)
            found.append(
                (name, JobNode(index=0, condition=condition, age_s=round(age_s, 1), summary=summary))
            )
        found.sort(key=lambda pair: _first_rank(pair[1]))
        if sum(len(node.summary.ranks) for _, node in found if node.summary) < run.state.world:
            missing = JobNode(index=0, condition="missing", age_s=round(max(0.0, at - job.began), 1))
            found.append(("", missing))
        job.identities = tuple(name for name, _ in found)
        head = job.identities.index(self._identity)
        return JobState(
            run=run.id,
            epoch=run.state.epoch,
            world=run.state.world,
            nodes=tuple(structs.replace(node, index=index) for index, (_, node) in enumerate(found)),
            head=head,
            here=head,
            store_problem=problem,
            read_s=job.took_s,
            age_s=round(max(0.0, now - max(job.good_at, job.began)), 1) if problem else 0.0,
            slow=job.health.slow,
        )

    def _judge(self, run: TrackedRun, job: _Job, now: float) -> None:
        """Report slow and hung ranks and silent nodes, once each."""
        if job.state is None or now - job.judged_at < EVERY_S:
            return
        if now - job.readable_since <= SILENT_S:  # other nodes may reach the store a little later
            return
        job.judged_at = now
        for what in job.health.look(job.state, now):
            level: Level = "warning" if what.code in TRIGGERS else "info"
            self._node.event("job", what, run=run.id, step=run.step, level=level)

    def _head_record(self, run: TrackedRun, job: _Job) -> bytes:
        assert job.state is not None
        answers = [
            record
            for command in job.taken
            if (known := self._node.book.known(job.state.run, command)) is not None
            and (record := self._node.book.barrier.shown(known)) is not None
        ]
        facts = self._node.faults.attempt(f"telling other nodes of {run.id}", head_facts, self._node, run)
        return job_records.encode_job(
            JobRecord(
                state=self._body(job),
                identities=job.identities,
                answers=tuple(answers),
                run=job_records.encode_facts(facts) if facts is not None else b"",
            )
        )

    def _heard(
        self,
        run: TrackedRun,
        job: _Job,
        stored: StoredRecord,
        record: NodeRecord,
        written: float,
        now: float,
        *,
        sure: bool,
    ) -> None:
        """Process a record of another node that has changed. It is no older than `written` as a rule.

        A node writes one record after another. How long a write takes is not known, so a record is only
        known to be newer than the one before was when it was read. After a silence the first record may
        be as old as the silence, and the node is live with the second one. A node that connects again may
        write in the next slot, and its earlier record stays in the store.
        """
        known = job.nodes.get(record.node)
        changed_at: float | None = written
        if known is None:
            changed_at = None
        elif stored.slot < known.slot:
            return
        elif stored.slot > known.slot:
            changed_at = known.changed_at
        elif now - known.read_at > SILENT_S:
            changed_at = min(written, known.read_at)
        job.nodes[record.node] = _KnownNode(stored.slot, record, now, changed_at, stored.left)
        self._take_notes(run, record)
        if known is not None and sure and now - known.read_at <= UNREAD_S:
            self._take_up(run, job, record)  # else its commands may have been given up by now

    def _take_notes(self, run: TrackedRun, record: NodeRecord) -> None:
        """Add the notes that users have written on another node, as many as there may be."""
        new = [note for note in record.notes if note not in run.state.notes]
        if new and not run.away and len(run.state.notes) + len(new) <= MOST_NOTES:
            self._node.add_notes(run, new)

    def _take_up(self, run: TrackedRun, job: _Job, record: NodeRecord) -> None:
        """Take up what another node passes on, each command once."""
        if run.away:
            return
        listed = {command.id for command in record.commands}
        for answered in [name for name, node in job.taken.items() if node == record.node]:
            if answered not in listed:  # it has the answer
                del job.taken[answered]
        for command in record.commands:
            if command.id not in job.taken and len(job.taken) < MOST_TAKEN:
                self._submit(run, job, record, command)
        renewal = record.renewal
        if (
            renewal is not None
            and renewal.number > job.renewed.get(record.node, 0)
            and self._hold(run, min(max(renewal.seconds, 1.0), LONGEST_HOLD_S))
        ):  # else it is still in the record the next time
            job.renewed[record.node] = renewal.number

    def _submit(self, run: TrackedRun, job: _Job, record: NodeRecord, command: Command) -> None:
        node = self._node
        epoch = run.state.epoch if command.epoch == record.summary.epoch else command.epoch
        own = structs.replace(command, run=run.id, epoch=epoch, t=0)
        if node.book.undecided(own, run):  # it is still in the record the next time
            return
        job.taken[command.id] = record.node
        _, onward = node.book.submit(own, run, "", node.clock.wall(), node.clock.t())
        if onward is not None:
            self._forward(onward, run)
        job.reported_at = -1.0
        node.changed()

    # the others ---------------------------------------------------------------------------------------------

    def _told(self, run: TrackedRun, job: _Job, body: bytes, written: float, now: float) -> None:
        """Process the record of the head, which is no older than `written` if it has changed."""
        if body == job.head_record:
            return
        fresh, job.head_record = bool(job.head_record), body
        try:
            record = job_records.decode_job(body)
            state = job_records.decode_state(record.state)
        except RecordError as error:
            job.head_problem = self._refused(f"the record of the head of {run.id}", error)
            return
        job.head_problem = ""
        here = next((i for i, name in enumerate(record.identities) if name == self._identity), None)
        job.told, job.told_at, job.told_fresh = structs.replace(state, here=here, run=run.id), written, fresh
        job.told_read_at = now
        for answer in record.answers:
            self._answered(run, job, answer)
        if fresh:  # else the head may have ended long ago
            self._view(run, job, record.run, state.epoch, written)

    def _view(self, run: TrackedRun, job: _Job, body: bytes, epoch: int, written: float) -> None:
        """Process what the head says of the run, no older than `written`. `epoch` is that of the head."""
        try:
            facts = job_records.decode_facts(body)
        except RecordError as error:
            job.head_problem = self._refused(f"what the head says of {run.id}", error)
            return
        if facts is not None:
            job.view = job.view or HeadView(self._node, run, lambda known: self._finish(run, _outcome(known)))
            what = f"taking what the head says of {run.id}"
            self._node.faults.attempt(what, job.view.take, facts, epoch, written)

    def _refused(self, what: str, error: RecordError) -> str:
        """Log that a record is not valid, and return why. Its writer writes another one each second."""
        self._node.faults.warn(f"{what}: {error.cause}", f"{what}: {error}")
        return str(error)[: job_records.LONGEST_TEXT]

    def _as_told(self, run: TrackedRun, job: _Job, problem: str, now: float) -> JobState:
        """Return the state as the head has said it. Before that, only this node is known."""
        assert job.own is not None
        if job.told is None or not (job.told_fresh or now - job.told_at > SILENT_S):
            own = JobNode(index=0, condition="live", age_s=0.0, summary=job.own)
            return JobState(
                run=run.id,
                epoch=run.state.epoch,
                world=run.state.world,
                nodes=(own, JobNode(index=1, condition="missing", age_s=round(now - job.began, 1))),
                head=1,
                here=0,
                store_problem=problem,
                head_problem=job.head_problem,
                read_s=job.took_s,
            )
        unchanged_s = job.looked_at - job.told_at  # it was read so long after it had been written
        nodes = tuple(
            _own_node(node, job.own, job.told) if node.index == job.told.here else _aged(node, unchanged_s)
            for node in job.told.nodes
        )
        return structs.replace(
            job.told,
            nodes=nodes,
            store_problem=problem or (job.told.store_problem if unchanged_s <= SILENT_S else ""),
            head_problem=job.head_problem,
            read_s=job.took_s,
            age_s=round(max(0.0, now - job.told_at), 1),
        )

    def _answered(self, run: TrackedRun, job: _Job, answer: CommandRecord) -> None:
        """Process what the head says of a command of this node."""
        if answer.id not in job.relayed:
            known = self._node.book.known(run.id, answer.id)
            if known is not None and known.stage not in FINAL and answer.stage in FINAL:
                self._finish(run, _outcome(answer))  # the daemon before has passed it on
            return
        if answer.stage != "sent":
            self._finish(run, _outcome(answer))
        if answer.stage in FINAL:
            del job.relayed[answer.id]
            job.reported_at = -1.0

    def _give_up_old(self, run: TrackedRun, job: _Job, now: float) -> None:
        for name in [name for name, one in job.relayed.items() if now - one.since > RELAYED_S]:
            del job.relayed[name]
            unknown = fact(FATE_UNKNOWN, why=fact("job.no_head"))
            self._finish(run, Outcome(id=name, stage="voided", code=unknown.code, fields=unknown.fields))

    # inside -------------------------------------------------------------------------------------------------

    def _body(self, job: _Job) -> bytes:
        assert job.state is not None
        if job.body[0] != job.version:
            job.body = (job.version, job_records.encode_state(job.state))
        return job.body[1]

    def _now(self) -> float:
        return self._node.clock.t() / 1e9


def _unlisted(run: TrackedRun) -> tuple[RunNote, ...]:
    """Return the notes that were written here and that the head does not list."""
    listed: tuple[RunNote, ...] = ()
    since = 0.0
    if run.head is not None:
        listed = run.head.notes
        if listed and run.head.reports.left_out.get("notes"):  # the oldest ones
            since = listed[0].wall
    new = [note for note in run.state.notes if note not in listed and note.wall >= since]
    return tuple(new[-job_records.MOST_PASSED_NOTES :])


def _first_rank(node: JobNode) -> int:
    ranks = node.summary.ranks if node.summary is not None else ()
    return min((rank.rank for rank in ranks), default=1 << 31)


def _own_node(node: JobNode, own: NodeSummary, told: JobState) -> JobNode:
    """Return this node as it is, which the head need not know."""
    return structs.replace(node, condition="live", age_s=0.0, summary=structs.replace(own, epoch=told.epoch))


def _aged(node: JobNode, unchanged_s: float) -> JobNode:
    """Return what the head has said of a node, which is so much older by now.

    The head writes each second. If it does not, what it has said of the others is as old as its record.
    """
    if node.condition not in ("live", "silent") or unchanged_s <= 0:
        return node
    condition: NodeCondition = "silent" if unchanged_s > SILENT_S else node.condition
    return structs.replace(node, condition=condition, age_s=round(node.age_s + unchanged_s, 1))


def _outcome(answer: CommandRecord) -> Outcome:
    """Return what the head says of a command. Its stamps are of another clock."""
    return Outcome(
        id=answer.id,
        stage=answer.stage,
        step=answer.step,
        before=answer.before,
        effective=answer.effective,
        version=answer.version,
        code=answer.code,
        fields=answer.fields,
        reason=answer.reason,
        took_s=answer.took_s,
        followed=answer.followed,
    )
