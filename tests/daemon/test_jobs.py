"""Two daemons and one run, without processes: the store of the job is a dict, and time is scripted."""

from __future__ import annotations

from collections import deque

import pytest
from msgspec import structs

from hoptui.daemon.handlers.jobs import NO_ANSWER, RELAYED_S
from hoptui.daemon.handlers.runs import RunDesk
from hoptui.daemon.state.command_log import REPEATED_S
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.jobs import SILENT_S, JobState
from hoptui.protocol import job_records, messages
from hoptui.protocol.messages import FATE_UNKNOWN, Command, CommandRecord, JobReading, Outcome, StoredRecord
from hoptui.sdk.job_exchange import NodeRecords
from tests.daemon.quiet_node import ANA, MICRO, RUN, SECOND, Keeper
from tests.sdk.test_job_exchange import MemoryStore


class Clock:
    now = 100 * SECOND

    def t(self) -> int:
        return self.now

    def behind(self, by: int) -> Clock:
        """The clock of a node that has booted so much later."""
        return self if not by else LaterClock(self, by)

    def wall(self) -> float:
        return 1.7e9 + self.now / SECOND


class LaterClock(Clock):
    def __init__(self, clock: Clock, by: int) -> None:
        self._clock, self._by = clock, by

    @property
    def now(self) -> int:  # type: ignore[override]
        return self._clock.now - self._by

    def wall(self) -> float:
        return self._clock.wall()


class JobNode:
    """The daemon of one node, and the process of its only rank, which talks to the store at once."""

    def __init__(self, clock: Clock, store: MemoryStore, rank: int) -> None:
        self.clock, self.store, self.rank = clock, store, rank
        self.problem, self.answers = "", True
        self.slow, self._waiting = 0, deque[messages.JobReport]()
        """How many reports the store is behind."""
        self.commands: list[Command] = []
        self.holds: list[float] = []
        self.errors: list[str] = []
        self.keeper = Keeper()
        self.node = Node(clock, self.keeper, lambda: None, lambda _: None)
        self.runs = RunDesk(
            self.node, self._send, lambda _: None, lambda _: None, identity=f"identity-{rank}"
        )
        self.jobs = self.runs.jobs
        self.keeper.written = lambda record: self.runs.written(record.run, {record.id: record.seq})
        self.identity, self.records = b"", NodeRecords(store, "")

    def start(self, nonce: str, world: int = 2) -> None:
        """The process of the rank says hello, until it is known."""
        self.identity, self.records = nonce.encode(), NodeRecords(self.store, f"{nonce}/")
        hello = messages.RunHello(
            protocol=messages.PROTOCOL,
            run=RUN,
            name="lm",
            epoch=1,
            nonce=nonce,
            pid=1 + self.rank,
            started=0,
            step=50,
            knobs=(MICRO,),
            rank=self.rank,
            world=world,
            away=self.rank > 0,
        )
        self.runs.receive(self.identity, None, hello)

    @property
    def run(self) -> TrackedRun:
        found = self.node.registry.get(RUN)
        assert found is not None
        return found

    @property
    def state(self) -> JobState:
        found = self.jobs.state(RUN)
        assert found is not None
        return found

    def give(self, name: str) -> CommandRecord:
        """A viewer of this node gives a command."""
        epoch = self.run.state.epoch
        command = Command(id=name, run=RUN, epoch=epoch, verb="set", knob="micro_batch", value=64, origin=ANA)
        answer, onward = self.node.book.submit(command, self.run, "v1", self.clock.wall(), self.clock.t())
        if onward is not None:
            self.runs.forward(onward, self.run)
        return answer

    def stage(self, name: str) -> str:
        known = self.node.book.known(RUN, name)
        return known.stage if known is not None else ""

    def tend(self) -> None:
        if self.run.identity is not None:
            self.run.pulse(messages.Pulse(step=self.run.last_step), self.clock.now / SECOND)
        self.jobs.tend()

    def _send(self, identity: bytes, message: messages.ToRun) -> bool:
        match message:
            case messages.Command():
                self.commands.append(message)
            case messages.Hold(seconds=seconds):
                self.holds.append(seconds)
            case messages.Error(code=code):
                self.errors.append(code)
            case messages.JobReport() if self.answers:
                self._waiting.append(message)
                if len(self._waiting) > self.slow:
                    self.runs.receive(identity, None, self._exchange(self._waiting.popleft()))
        return True

    def _exchange(self, report: messages.JobReport) -> JobReading:
        if self.problem:
            return JobReading(number=report.number, problem=self.problem)
        if report.head:
            if report.record is not None:
                self.records.write_head(report.record)
            return JobReading(number=report.number, nodes=tuple(self.records.read()))
        assert report.record is not None
        self.records.write(report.record)
        return JobReading(number=report.number, state=self.records.read_head())


class Job:
    """Two nodes, and the seconds that pass. The head may have booted later than the other node."""

    def __init__(self, behind: int = 0) -> None:
        self.clock = Clock()
        store = MemoryStore(world=2)
        self.head = JobNode(self.clock.behind(behind), store, 0)
        self.other = JobNode(self.clock, store.of(1), 1)
        self.start("n1")

    def start(self, nonce: str) -> None:
        """All ranks start, or restart."""
        self.head.start(nonce)
        for _ in range(3):
            self.other.start(nonce)
            self.clock.now += SECOND

    def pass_by(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.now += SECOND
            self.other.tend()
            self.head.tend()


@pytest.fixture
def job() -> Job:
    found = Job()
    found.pass_by(10)
    return found


def conditions(state: JobState) -> list[str]:
    return [node.condition for node in state.nodes]


def test_a_recording_has_a_node_soon_after_it_has_come_and_after_it_has_gone() -> None:
    job = Job()
    for _ in range(3):
        job.clock.now += SECOND
        job.head.tend()
    recorded = job.head.keeper.jobs
    assert conditions(recorded[-1]) == ["live", "missing"]
    job.pass_by(5)
    assert conditions(recorded[-1]) == ["live", "live"]
    count = len(recorded)
    job.pass_by(20)
    assert len(recorded) <= count + 1, "nothing has changed"
    job.other.runs.receive(job.other.identity, None, messages.Bye(reason="finished"))
    for _ in range(int(SILENT_S) + 5):
        job.clock.now += SECOND
        job.head.tend()
    assert conditions(recorded[-1]) == ["live", "silent"]


def test_both_nodes_have_the_same_picture(job: Job) -> None:
    job.other.node.viewers = 1
    job.pass_by(2)
    for node, here in ((job.head, 0), (job.other, 1)):
        assert conditions(node.state) == ["live", "live"]
        assert (node.state.head, node.state.here, node.state.world) == (0, here, 2)
        assert [rank.rank for _, rank in node.state.ranks()] == [0, 1]
        version, body = node.jobs.newer(RUN, 0)
        assert body is not None
        assert job_records.decode_state(body) == node.state
        assert node.jobs.newer(RUN, version) == (version, None)


def test_a_command_of_another_node_is_carried_out_once(job: Job) -> None:
    assert job.other.give("c1").stage == "sent"
    job.pass_by(5)
    assert [command.id for command in job.head.commands] == ["c1"]
    assert job.head.commands[0].origin == ANA
    assert job.other.commands == []
    outcome = Outcome(id="c1", stage="applied", step=51, effective=64, version=1, t=job.clock.now)
    job.head.runs.receive(job.head.identity, None, outcome)
    job.pass_by(3)
    assert job.other.stage("c1") == "applied"
    assert job.other.run.state.knobs[0].value == 64
    job.pass_by(5)
    assert [command.id for command in job.head.commands] == ["c1"]


def test_the_refusal_of_the_head_comes_back(job: Job) -> None:
    job.head.run.restarting = True
    job.other.give("c1")
    job.pass_by(4)
    known = job.other.node.book.known(RUN, "c1")
    assert known is not None
    assert (known.stage, known.code) == ("rejected", "restarting")


def test_a_command_without_an_answer_is_unknown_in_the_end(job: Job) -> None:
    job.other.problem = "the store is gone"
    job.other.give("c1")
    job.pass_by(5)
    assert job.other.stage("c1") == "sent"
    job.pass_by(int(RELAYED_S))
    known = job.other.node.book.known(RUN, "c1")
    assert known is not None
    assert (known.stage, known.code) == ("voided", "fate_unknown")


def test_the_renewal_of_a_pause_reaches_the_run_once(job: Job) -> None:
    assert job.other.runs.hold(job.other.run, 30.0)
    job.pass_by(4)
    assert job.head.holds == [30.0]
    assert job.other.holds == []


def test_a_silent_node_and_one_that_left(job: Job) -> None:
    for _ in range(7):
        job.clock.now += SECOND
        job.head.tend()
    assert conditions(job.head.state) == ["live", "silent"]
    assert [event.code for event in job.head.keeper.events][-1] == "job.silent_node"
    last = job.other.records
    last.write(job.head.store.values["n1/node/1"][1:], left=True)
    job.clock.now += SECOND
    job.head.tend()
    assert conditions(job.head.state) == ["live", "left"]


def test_a_head_that_writes_no_more_is_silent_and_so_are_those_that_it_tells_of(job: Job) -> None:
    job.other.node.viewers = 1
    job.pass_by(2)
    for _ in range(8):
        job.clock.now += SECOND
        job.other.tend()
    assert conditions(job.other.state) == ["silent", "live"]
    head, own = job.other.state.nodes
    assert head.age_s > SILENT_S
    assert own.summary is not None
    assert own.summary.wall == pytest.approx(job.clock.wall())
    job.pass_by(3)
    assert conditions(job.other.state) == ["live", "live"]


def test_a_head_behind_a_slow_store_is_silent_too(job: Job) -> None:
    job.other.node.viewers = 1
    job.other.slow = 2
    job.pass_by(6)
    assert conditions(job.other.state) == ["live", "live"]
    for _ in range(10):
        job.clock.now += SECOND
        job.other.tend()
    assert conditions(job.other.state) == ["silent", "live"]
    job.pass_by(3)
    assert conditions(job.other.state) == ["live", "live"]


def test_the_problem_of_a_head_that_writes_no_more_is_old_too(job: Job) -> None:
    job.other.node.viewers = 1
    job.head.problem = "RuntimeError: connection lost"
    job.pass_by(2)
    job.head.problem = ""
    job.pass_by(1)  # it writes what it knew before it has read again, and ends
    job.clock.now += SECOND
    job.other.tend()
    assert job.other.state.store_problem == "RuntimeError: connection lost"
    for _ in range(8):
        job.clock.now += SECOND
        job.other.tend()
    assert conditions(job.other.state) == ["silent", "live"]
    assert job.other.state.store_problem == ""


def test_a_store_that_fails_is_said_and_accuses_nobody(job: Job) -> None:
    job.head.problem = "RuntimeError: connection lost"
    job.pass_by(20)
    assert job.head.state.store_problem == "RuntimeError: connection lost"
    assert conditions(job.head.state) == ["live", "live"]
    assert job.head.state.age_s > 15
    job.head.problem = ""
    job.head.answers = False
    job.pass_by(1)
    job.head.answers = True
    job.pass_by(2)
    assert job.head.state.store_problem == ""
    job.head.answers = False
    job.pass_by(10)
    assert job.head.state.store_problem == NO_ANSWER
    assert not [event for event in job.head.keeper.events if event.kind == "job"]


def test_a_restart_begins_with_no_nodes_and_ends_with_all(job: Job) -> None:
    job.other.give("c1")
    for node in (job.head, job.other):
        node.runs.end(node.run, "exited", "")
    job.start("n2")
    job.head.tend()
    job.pass_by(1)
    assert job.head.run.state.epoch == job.other.run.state.epoch == 2
    job.pass_by(8)
    assert conditions(job.head.state) == ["live", "live"]
    assert job.head.state.epoch == 2
    assert job.head.commands == []  # the command was for the process before


@pytest.mark.parametrize("record", [b"", b"x" * 100, b"\x78\x01", bytes(job_records.NODE_BYTES + 1)])
def test_damaged_records_are_left_out(job: Job, record: bytes) -> None:
    job.head.store.values["n1/node/1"] = b"\x01" + record
    before = job.head.state.nodes[1].summary
    job.clock.now += SECOND
    job.head.tend()
    assert job.head.state.nodes[1].summary == before
    job.other.runs.receive(job.other.identity, None, JobReading(number=99, state=record))
    assert conditions(job.other.state)[0] == "live"


def test_only_the_head_alerts_of_what_concerns_all_ranks(job: Job) -> None:
    for node in (job.head, job.other):
        node.runs.end(node.run, "exited", "killed by SIGKILL")
    alerts = [event.alert for event in job.head.keeper.events if event.kind == "exited"]
    assert alerts == ["crashed"]
    assert [event.alert for event in job.other.keeper.events if event.kind == "exited"] == [""]


def test_too_many_commands_at_once_are_refused(job: Job) -> None:
    for number in range(job_records.MOST_RELAYED + 1):
        job.other.give(f"c{number}")
    assert job.other.stage(f"c{job_records.MOST_RELAYED}") == "rejected"
    assert job.other.stage("c0") == "sent"


def test_what_is_read_again_after_a_failure_is_as_old_as_before(job: Job) -> None:
    for _ in range(8):
        job.clock.now += SECOND
        job.head.tend()
    assert conditions(job.head.state) == ["live", "silent"]
    job.head.problem = "RuntimeError: connection lost"
    job.clock.now += SECOND
    job.head.tend()
    job.head.problem = ""
    job.head.records = NodeRecords(job.head.store, "n1/")  # the process has connected again
    job.clock.now += SECOND
    job.head.tend()
    job.clock.now += SECOND
    job.head.tend()
    assert job.head.state.store_problem == ""
    assert conditions(job.head.state) == ["live", "silent"]
    assert job.head.state.nodes[1].age_s > 8


def test_a_record_from_before_a_failure_that_is_read_after_it_is_old(job: Job) -> None:
    job.head.problem = "RuntimeError: connection lost"
    job.pass_by(2)  # the other node writes, and is killed
    for _ in range(10):
        job.clock.now += SECOND
        job.head.tend()
    job.head.problem = ""
    for _ in range(2):
        job.clock.now += SECOND
        job.head.tend()
    assert conditions(job.head.state) == ["live", "silent"]


def test_a_head_that_begins_takes_no_old_record_for_a_live_node(job: Job) -> None:
    # Its daemon was killed, and another node while there was none.
    new = JobNode(job.clock, job.head.store, 0)
    new.start("n1")
    new.records = NodeRecords(job.head.store, "n1/")
    seen = set()
    for _ in range(14):
        job.clock.now += SECOND
        new.tend()
        if new.jobs.state(RUN) is not None:
            seen.add(tuple(conditions(new.state)))
    assert seen == {("live", "missing"), ("live", "silent")}


def test_the_record_of_an_earlier_connection_is_no_news(job: Job) -> None:
    # Two places of the store have records of the same node. Both are read again, one after the other.
    before = StoredRecord(1, job.head.store.values["n1/node/1"][1:])
    job.pass_by(1)
    after = StoredRecord(2, job.head.store.values["n1/node/1"][1:])
    job.head.records = NodeRecords(MemoryStore(), "")  # the process reads nothing more

    def read(*nodes: StoredRecord) -> None:
        job.clock.now += SECOND
        job.head.tend()
        job.head.runs.receive(job.head.identity, None, JobReading(number=99, nodes=nodes))

    read(after)
    for _ in range(10):
        read(before, after)
    assert conditions(job.head.state) == ["live", "silent"]
    assert job.head.state.nodes[1].age_s > 10
    read(StoredRecord(2, before.record))
    read(StoredRecord(2, after.record))
    assert conditions(job.head.state) == ["live", "live"]


def test_a_silent_node_is_live_with_its_second_record(job: Job) -> None:
    # A write may have hung for as long as nothing was read, and its daemon may have ended since.
    def alone(seconds: int) -> None:
        for _ in range(seconds):
            job.clock.now += SECOND
            job.head.tend()

    alone(20)
    job.clock.now += SECOND
    job.other.tend()
    job.head.tend()
    assert conditions(job.head.state) == ["live", "silent"]
    assert job.head.state.nodes[1].age_s > 20
    alone(5)
    assert conditions(job.head.state) == ["live", "silent"]
    job.pass_by(2)
    assert conditions(job.head.state) == ["live", "live"]


def test_a_slow_daemon_that_lives_is_not_silent(job: Job) -> None:
    seen = set()
    for _ in range(10):
        for _ in range(3):
            job.clock.now += SECOND
            job.head.tend()
        job.pass_by(1)
        seen.add(tuple(conditions(job.head.state)))
    assert seen == {("live", "live")}


def test_a_silent_head_is_live_with_its_second_record(job: Job) -> None:
    job.other.node.viewers = 1
    job.pass_by(2)
    for _ in range(20):
        job.clock.now += SECOND
        job.other.tend()
    job.head.tend()  # this write was under way, and no other one follows
    for _ in range(3):
        job.clock.now += SECOND
        job.other.tend()
        assert conditions(job.other.state) == ["silent", "live"]
        assert job.other.state.age_s >= 20
    job.pass_by(3)
    assert conditions(job.other.state) == ["live", "live"]


def test_the_first_record_of_a_head_has_no_age_of_its_own() -> None:
    job = Job()
    job.other.node.viewers = 1
    for _ in range(20):
        job.clock.now += SECOND
        job.other.tend()
    assert conditions(job.other.state) == ["live", "missing"]
    job.head.tend()
    job.clock.now += SECOND
    job.head.tend()
    job.other.tend()
    assert conditions(job.other.state) == ["live", "missing"]
    assert job.other.state.age_s == 0
    job.pass_by(3)
    assert conditions(job.other.state) == ["live", "live"]


def test_a_command_that_was_given_up_is_not_carried_out(job: Job) -> None:
    job.head.problem = job.other.problem = ""
    job.other.give("c1")
    job.clock.now += SECOND
    job.other.tend()  # it is in the store, and then the store is gone for both
    job.head.problem = job.other.problem = "RuntimeError: connection lost"
    job.pass_by(int(RELAYED_S) + 2)
    assert job.other.stage("c1") == "voided"
    job.head.problem = ""
    job.clock.now += SECOND
    job.head.tend()
    job.other.problem = ""
    job.pass_by(5)
    assert job.head.commands == []


def test_what_a_killed_daemon_has_passed_on_is_answered_or_unknown(job: Job) -> None:
    for name in ("c1", "c2"):
        job.other.give(name)
    job.pass_by(3)
    taken = [job.other.node.book.known(RUN, name) for name in ("c1", "c2")]
    outcome = Outcome(id="c1", stage="applied", step=51, effective=64, version=1, t=job.clock.now)
    job.head.runs.receive(job.head.identity, None, outcome)
    job.head.tend()

    later = JobNode(job.clock, job.other.store, 1)
    later.node.book.restore([structs.replace(record, stage="sent") for record in taken if record])
    job.other = later
    for _ in range(3):
        job.clock.now += SECOND
        later.start("n1")
    job.pass_by(3)
    assert later.stage("c1") == "applied"
    assert later.stage("c2") == "sent", "a viewer may repeat it"
    for _ in range(int(REPEATED_S) + 2):
        job.pass_by(1)
        later.runs.tend()
    unknown = later.node.book.known(RUN, "c2")
    assert unknown is not None
    assert (unknown.stage, unknown.code) == ("voided", FATE_UNKNOWN)
    assert [command.id for command in job.head.commands] == ["c1", "c2"]


def test_a_restart_waits_for_the_end_of_a_suspended_process(job: Job) -> None:
    # The other ranks know the id of the run, so rank 0 cannot take another one.
    before = job.head.run
    job.head.start("n2")
    job.clock.now += 30 * SECOND
    job.head.start("n2")
    assert job.head.errors == []
    assert job.head.run is before
    job.head.runs.end(before, "exited", "killed by SIGKILL")
    job.head.start("n2")
    assert job.head.run.nonce == "n2"
    assert job.head.run.state.epoch == 2


def test_a_restart_beside_a_process_that_lives_is_another_run(job: Job) -> None:
    job.head.start("n2")
    job.clock.now += SECOND
    job.head.runs.receive(b"n1", None, messages.Pulse(step=51))
    job.head.start("n2")
    assert job.head.errors == ["duplicate_run"]
    assert job.head.run.nonce == "n1"


def test_a_restart_of_which_this_node_has_all_ranks_has_no_other_nodes(job: Job) -> None:
    version, _ = job.head.jobs.newer(RUN, 0)
    job.head.runs.end(job.head.run, "exited", "")
    job.head.start("n2", world=1)
    job.pass_by(2)
    assert job.head.jobs.state(RUN) is None
    assert job.head.jobs.newer(RUN, version) == (0, None)


def test_an_outcome_that_comes_late_does_not_replace_a_later_value(job: Job) -> None:
    job.other.give("c1")
    job.pass_by(3)
    job.other.run.state = structs.replace(
        job.other.run.state, knobs=(structs.replace(MICRO, value=256, version=2),)
    )
    outcome = Outcome(id="c1", stage="applied", step=51, effective=64, version=1, t=job.clock.now)
    job.head.runs.receive(job.head.identity, None, outcome)
    job.pass_by(3)
    assert job.other.stage("c1") == "applied"
    assert job.other.run.state.knobs[0].value == 256
