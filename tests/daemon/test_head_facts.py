"""What the head says of a run, as the daemon of a node without rank 0 shows it."""

from __future__ import annotations

import math

import pytest
from msgspec import msgpack, structs

from hoptui.daemon.handlers.notes import NoteDesk
from hoptui.daemon.handlers.targets import TargetDesk
from hoptui.daemon.handlers.tuners import TunerDesk
from hoptui.daemon.handlers.viewers import ViewerDesk
from hoptui.daemon.head_facts import head_facts
from hoptui.daemon.prometheus import snapshot
from hoptui.daemon.state.node import AFTER_FAULT_NS
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.columns import pack
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.jobs import HeadReports, JobState
from hoptui.domain.run_notes import LONGEST_NOTE, MOST_NOTES, AddNote, RunNote
from hoptui.domain.targets import Target, TargetState
from hoptui.domain.tuning import Measured, Trial, TunerState
from hoptui.protocol import job_records, messages, record_bytes
from hoptui.protocol.job_records import HeadFacts, HeadRow, JobRecord
from hoptui.protocol.messages import FATE_UNKNOWN, Event, Outcome, RunState, StoredRecord
from hoptui.protocol.record_bytes import RecordError
from tests.daemon.quiet_node import ANA, RUN, SECOND, UP
from tests.daemon.test_jobs import Job, JobNode, LaterClock, conditions

BEHIND = 50 * SECOND
HEAD = f"head/{RUN}"


@pytest.fixture
def job() -> Job:
    """Two nodes whose stamps differ, and a viewer on the one without rank 0."""
    found = Job(behind=BEHIND)
    found.head.node.host, found.other.node.host = "gpu00", "gpu01"
    found.other.node.viewers = 1
    found.pass_by(10)
    return found


def log(node: JobNode, step: int, **values: float) -> int:
    """The process logs a row now. Returns its stamp by the clock of the node without rank 0."""
    t = node.node.clock.t()
    part = pack(node.run.source(node.rank), [(t, step, values)])
    node.runs.receive(node.identity, None, messages.Rows(parts=(part,)))
    return t + (BEHIND if node.rank == 0 else 0)


def shown(node: JobNode) -> RunState:
    """The run as viewers of a node see it."""
    return next(run for run in node.node.state().runs if run.run == RUN)


def metrics(node: JobNode) -> dict[str, float]:
    """What a request for the newest values answers of the head."""
    return {
        name: value
        for part in node.node.latest()
        if part.source == HEAD
        for name, value in part.last().items()
    }


def rows(node: JobNode) -> list[tuple[int, int, dict[str, float]]]:
    ring = node.node.rings.get(HEAD)
    return [row for part in ring.parts() for row in part.rows()] if ring is not None else []


def texts(node: JobNode) -> list[str]:
    return [event.text for event in node.node.events if event.kind == "note"]


def note(job: Job, text: str) -> None:
    """The script puts a line on the time axis."""
    job.head.runs.receive(
        job.head.identity, None, messages.Note(t=job.head.node.clock.t(), step=5, text=text)
    )


def test_metrics_have_the_time_and_the_iteration_of_their_rows(job: Job) -> None:
    evaluated = log(job.head, 7, val_loss=0.75)
    job.pass_by(3)
    logged = log(job.head, 9, loss=0.5, iteration_s=0.1, **{"phase/forward": 0.05})
    job.pass_by(2)
    assert metrics(job.other) == {"val_loss": 0.75, "loss": 0.5}
    found = {step: (t, values) for t, step, values in rows(job.other)}
    assert {step: values for step, (_, values) in found.items()} == {7: {"val_loss": 0.75}, 9: {"loss": 0.5}}
    assert 0 <= found[7][0] - evaluated <= SECOND
    assert 0 <= found[9][0] - logged <= SECOND
    head = shown(job.other).head
    assert head is not None
    assert head.host == "gpu00"
    assert 0 < head.since <= job.clock.now


def test_each_row_is_taken_once_and_none_is_recorded(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str] = []
    monkeypatch.setattr(
        job.other.keeper, "rows", lambda runs, parts: recorded.extend(part.source for part in parts)
    )
    for step in range(4):
        log(job.head, step, loss=float(step))
        job.pass_by(3)
    log(job.other, 4, iteration_s=0.1)
    assert [(step, values["loss"]) for _, step, values in rows(job.other)] == [
        (s, float(s)) for s in range(4)
    ]
    assert recorded == [f"run/{RUN}"]


def test_values_that_are_no_numbers_travel(job: Job) -> None:
    log(job.head, 1, loss=math.inf)
    job.pass_by(2)
    assert metrics(job.other) == {"loss": math.inf}


def test_the_head_itself_has_no_reports(job: Job) -> None:
    log(job.head, 1, loss=0.5)
    job.pass_by(3)
    assert shown(job.head).head is None
    assert job.head.node.rings.get(HEAD) is None


def test_events_of_the_head_are_shown_once_and_not_recorded(job: Job) -> None:
    note(job, "first")
    job.pass_by(3)
    note(job, "second")
    job.pass_by(12)  # an unchanged record is read again
    assert texts(job.other) == texts(job.head) == ["first", "second"]
    found = [event for event in job.other.node.events if event.host]
    assert {(event.host, event.alert, event.run) for event in found} == {("gpu00", "", RUN)}
    assert {event.kind for event in found} == {"note"}, "each node reports its own processes"
    assert texts_of(job.other.keeper.events) == []
    numbers = [event.seq for event in job.other.node.events]
    assert numbers == sorted(numbers)


def texts_of(events: list[Event]) -> list[str]:
    return [event.text for event in events if event.text]


def test_a_restart_of_the_run_doubles_no_event(job: Job) -> None:
    note(job, "first")
    job.pass_by(2)
    for node in (job.head, job.other):
        node.runs.end(node.run, "exited", "")
    job.start("n2")
    job.pass_by(8)
    assert texts(job.other) == ["first"]
    assert shown(job.other).head is not None


def test_a_command_given_on_the_head_is_shown_with_its_end(job: Job) -> None:
    job.head.give("c1")
    job.pass_by(2)
    assert job.other.stage("c1") == "", "what is open may still change"
    outcome = Outcome(id="c1", stage="applied", step=51, effective=64, version=1, t=job.head.node.clock.t())
    job.head.runs.receive(job.head.identity, None, outcome)
    job.pass_by(3)
    known = job.other.node.book.known(RUN, "c1")
    assert known is not None
    assert (known.stage, known.effective, known.origin.user) == ("applied", 64, "ana")
    assert 0 <= job.clock.now - known.settled <= 5 * SECOND
    assert "command micro_batch applied" in job.other.keeper.log
    assert shown(job.other).held == {"micro_batch": "ana (pid 7)"}
    seq = job.other.node.book.seq
    job.pass_by(5)
    assert job.other.node.book.seq == seq, "nothing is new"


def test_the_effect_of_a_command_is_that_of_the_head(job: Job) -> None:
    job.other.give("c1")
    job.pass_by(3)
    outcome = Outcome(id="c1", stage="applied", step=51, effective=64, version=1, t=job.head.node.clock.t())
    job.head.runs.receive(job.head.identity, None, outcome)
    job.pass_by(3)
    record = job.head.node.book.known(RUN, "c1")
    assert record is not None
    found = Measured(metric="tokens_per_s", gain=0.1, interval=0.01, settled=True)
    job.head.node.book.measured(record, found)
    job.pass_by(3)
    known = job.other.node.book.known(RUN, "c1")
    assert known is not None
    assert known.measured == found


def test_the_head_knows_the_end_of_a_command_that_is_unknown_here(job: Job) -> None:
    job.other.give("c1")
    job.pass_by(3)
    outcome = Outcome(id="c1", stage="applied", step=51, effective=64, version=1, t=job.head.node.clock.t())
    record = job.other.node.book.known(RUN, "c1")
    assert record is not None
    later = JobNode(job.clock, job.other.store, 1)
    later.node.viewers = 1
    later.node.book.restore([structs.replace(record, stage="voided", code=FATE_UNKNOWN)])
    job.other = later
    for _ in range(3):
        job.clock.now += SECOND
        later.start("n1")
    job.pass_by(3)
    job.head.runs.receive(job.head.identity, None, outcome)
    job.pass_by(4)
    assert later.stage("c1") == "applied"


def test_notes_are_the_same_on_both_nodes(job: Job) -> None:
    for number, (node, text) in enumerate(((job.head, "one"), (job.other, "two"), (job.head, "three"))):
        answer = NoteDesk(node.node).receive(AddNote(id=number, run=RUN, text=text), ANA)
        assert answer.granted
        job.pass_by(4)
    for node in (job.head, job.other):
        assert [one.text for one in shown(node).notes] == ["one", "two", "three"]
    assert [one.text for one in answer.notes] == ["one", "two", "three"]
    assert [one.text for one in job.other.run.state.notes] == ["two"], "its own are recorded"


def test_the_tuner_the_verdict_and_targets_are_those_of_the_head(job: Job) -> None:
    t = job.head.node.clock.t()
    trial = Trial(changes=(UP,), result="kept", t=t)
    run = job.head.run
    run.state = structs.replace(
        run.state,
        diagnosis=Diagnosis(verdict="data-bound", confidence=0.9, t=t),
        tuner=TunerState(stand="holding", tried=(trial,), started=t, user="ana"),
        targets=(TargetState(target=Target(reading="busy", value=90.0), standing="missed", t=t, since=t),),
    )
    version = job.other.node.version
    job.pass_by(3)
    found = shown(job.other)
    assert job.other.node.version > version
    assert found.tuner is not None
    assert found.head is not None
    assert found.head.diagnosis is not None
    here = job.clock.now - 3 * SECOND
    for stamp in (
        found.tuner.started,
        found.tuner.tried[0].t,
        found.head.diagnosis.t,
        found.head.targets[0].t,
        found.head.targets[0].since,
    ):
        assert 0 <= stamp - here <= SECOND
    assert (found.tuner.stand, found.head.diagnosis.verdict) == ("holding", "data-bound")
    assert found.diagnosis is None, "the verdict of this node is its own"
    assert job.other.run.state.tuner is None, "no tuner of this node is to be ended"
    version = job.other.node.version
    job.pass_by(5)
    assert job.other.node.version == version, "nothing is new"


def test_what_the_head_alone_knows_is_counted(job: Job) -> None:
    for number in range(job_records.MOST_EVENTS + 5):
        note(job, f"note {number}")
    job.pass_by(3)
    head = shown(job.other).head
    assert head is not None
    assert head.left_out == {"events": 5}
    note(job, "another one")
    job.pass_by(3)
    assert shown(job.other).head == head
    assert len(texts(job.other)) == job_records.MOST_EVENTS + 1


def test_the_throughput_is_that_of_rank_0(job: Job) -> None:
    for step in range(10):
        log(job.head, step, iteration_s=0.1, tokens_per_s=800.0)
        log(job.other, step, iteration_s=0.1, tokens_per_s=100.0)
        job.pass_by(1)
    job.pass_by(2)
    now = job.clock.now / SECOND
    assert job.other.run.vital(now).throughput == pytest.approx(800.0)
    assert snapshot(job.other.node).vitals[RUN].throughput == pytest.approx(100.0), "a sum has rank 0 once"
    own = next(rank for _, rank in job.head.state.ranks() if rank.rank == 1)
    assert own.throughput == pytest.approx(100.0)


def test_an_older_head_says_nothing_of_the_run(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Job()
    monkeypatch.setattr(job_records, "encode_facts", lambda _: b"")
    old.other.node.viewers = 1
    old.pass_by(10)
    assert conditions(old.other.state) == ["live", "live"]
    assert shown(old.other).head is None


def test_a_newer_head_with_more_than_is_taken_leaves_the_picture(job: Job) -> None:
    def record(facts: HeadFacts) -> bytes:
        body = job_records.decode_job(job.head.store.values["n1/head"])
        return job_records.encode_job(structs.replace(body, run=record_bytes.compressed(facts)))

    before = shown(job.other).head
    many = tuple(Event(seq=n, t=1, wall=1.0, kind="note") for n in range(job_records.MOST_EVENTS + 1))
    job.clock.now += SECOND
    job.head.tend()
    job.head.store.values["n1/head"] = record(HeadFacts(t=1, events=many))
    job.other.tend()
    assert conditions(job.other.state) == ["live", "live"]
    assert shown(job.other).head == before


def test_a_head_that_may_have_ended_long_ago_says_nothing() -> None:
    job = Job()
    job.pass_by(1)
    log(job.head, 1, loss=0.5)
    job.clock.now += SECOND
    job.head.tend()
    job.clock.now += SECOND
    job.head.tend()
    later = JobNode(job.clock, job.other.store, 1)
    later.node.viewers = 1
    for _ in range(3):
        later.start("n1")
        job.clock.now += SECOND
    for _ in range(5):
        job.clock.now += SECOND
        later.tend()
    assert metrics(later) == {}
    assert shown(later).head is None


def age_s(node: JobNode) -> float | None:
    """How old what the head says is, as viewers of a node see it."""
    return node.run.vital(node.clock.now / SECOND).head_age_s


def alone(job: Job, seconds: int) -> None:
    """The head writes nothing for a while."""
    for _ in range(seconds):
        job.clock.now += SECOND
        job.other.tend()


def test_what_the_head_has_said_is_as_old_as_its_record(job: Job) -> None:
    job.pass_by(2)
    fresh = age_s(job.other)
    assert fresh is not None
    assert fresh <= 2
    assert age_s(job.head) is None
    alone(job, 40)
    assert age_s(job.other) == pytest.approx(fresh + 40, abs=1)
    assert shown(job.other).head is not None, "it stays, as old as it is"
    job.pass_by(3)
    assert age_s(job.other) == pytest.approx(fresh, abs=1)


def test_a_viewer_that_waits_hears_that_the_head_is_silent(job: Job) -> None:
    job.pass_by(2)
    node, runs, said = job.other.node, job.other.runs, list[messages.ToViewer]()

    def send(_: bytes, message: messages.ToViewer) -> bool:
        said.append(message)
        return True

    tuners = TunerDesk(node, job.other.keeper, runs.forward)
    desk = ViewerDesk(node, send, runs, tuners, TargetDesk(node, lambda _: None), lambda: None)
    desk.receive(b"v", None, messages.ViewerHello(protocol=messages.PROTOCOL, viewer="v", client="test"))
    desk.receive(b"v", None, messages.Fetch(id=1, latest=True))
    known = said[-1]
    assert isinstance(known, messages.Delta)
    seq = max(event.seq for event in node.events) if node.events else 0
    desk.receive(
        b"v", None, messages.Fetch(id=2, state=known.state, events=seq, commands=node.book.seq, wait_s=9.0)
    )
    assert said[-1] is known
    heard = []
    for _ in range(8):
        alone(job, 1)
        heard.append(desk.moved)
    assert not heard[0]
    assert heard[-1]


def test_what_the_head_has_said_ages_after_the_run_has_ended_here(job: Job) -> None:
    job.pass_by(2)
    job.other.runs.end(job.other.run, "finished", "")
    job.pass_by(30)
    found = age_s(job.other)
    assert found is not None
    assert found >= 30


def spoiled(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head writes another state that is no state each second."""
    monkeypatch.setattr(
        job_records, "decode_state", lambda body: record_bytes.checked(b"\xc1" + body, JobState)
    )


def test_a_record_of_the_head_that_is_not_valid_is_logged_once_and_shown(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job.pass_by(3)
    with monkeypatch.context() as broken:
        spoiled(job, broken)
        job.pass_by(30)
    refused = [line for line in caplog.messages if "the record of the head" in line]
    assert len(refused) == 1
    assert job.other.state.head_problem.startswith("a record is no JobState")
    found = age_s(job.other)
    assert found is not None
    assert found >= 30
    assert conditions(job.other.state) == ["silent", "live"]
    job.pass_by(3)
    assert job.other.state.head_problem == ""
    with monkeypatch.context() as broken:
        spoiled(job, broken)
        job.clock.now += AFTER_FAULT_NS
        job.pass_by(3)
    refused = [line for line in caplog.messages if "the record of the head" in line]
    assert len(refused) == 2, "it is said again after a long time"


def test_what_the_head_says_of_the_run_is_old_if_it_is_not_valid(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job.pass_by(3)
    many = tuple(Event(seq=n, t=1, wall=1.0, kind="note") for n in range(job_records.MOST_EVENTS + 1))
    body = record_bytes.compressed(HeadFacts(t=1, events=many))
    monkeypatch.setattr(job_records, "encode_facts", lambda _: body)
    job.pass_by(30)
    assert conditions(job.other.state) == ["live", "live"]
    assert job.other.state.head_problem == "a head says too much of its run"
    assert len([line for line in caplog.messages if "what the head says" in line]) == 1
    found = age_s(job.other)
    assert found is not None
    assert found >= 29


def test_a_record_of_a_node_that_is_not_valid_is_logged_once(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(30):
        body = bytes(job_records.NODE_BYTES + number + 1)
        reading = messages.JobReading(number=number, nodes=(StoredRecord(3, body),))
        job.head.runs.receive(job.head.identity, None, reading)
    assert len([line for line in caplog.messages if "the record of a node" in line]) == 1


def test_the_causes_of_refusals_are_few() -> None:
    causes = {RecordError(f"a record has {size} bytes; the limit is 9").cause for size in range(9)}
    assert causes == {"a record has"}
    texts = ("a record is no JobState: Expected `int`", "a record is no JobState: Invalid value 'x'")
    assert {RecordError(text).cause for text in texts} == {"a record is no JobState"}


def test_a_new_daemon_still_knows_which_commands_the_head_has(job: Job) -> None:
    for number in range(job_records.MOST_RECORDS + 5):
        name = f"c{number}"
        (job.head if number % 2 else job.other).give(name)
        job.pass_by(4)
        outcome = Outcome(
            id=name, stage="applied", step=51, effective=64, version=1, t=job.head.node.clock.t()
        )
        job.head.runs.receive(job.head.identity, None, outcome)
        job.pass_by(3)
    head = shown(job.other).head
    assert head is not None
    assert head.left_out == {}
    refused = structs.replace(job.other.node.book.of(RUN)[0], id="x", stage="rejected", host="")
    later = JobNode(job.clock, job.other.store, 1)
    later.node.viewers = 1
    later.node.book.restore([*job.other.node.book.of(RUN), refused])
    job.other = later
    for _ in range(3):
        job.clock.now += SECOND
        later.start("n1")
    job.pass_by(5)
    head = shown(later).head
    assert head is not None
    assert head.left_out == {}
    # A daemon that has lost them says so. One that was refused on this node is none of the head's.
    later.node.book.forget(RUN)
    later.node.book.restore([refused])
    job.pass_by(5)
    head = shown(later).head
    assert head is not None
    assert head.left_out == {"commands": 5}


class AheadClock(LaterClock):
    """The clock of a node whose wall time is an hour ahead."""

    def wall(self) -> float:
        return super().wall() + 3600


def test_times_of_the_head_are_by_the_clock_of_this_node() -> None:
    job = Job(behind=BEHIND)
    job.head.node.host, job.other.node.host = "gpu00", "gpu01"
    job.head.node.clock = job.head.clock = AheadClock(job.clock, BEHIND)
    job.other.node.viewers = 1
    job.pass_by(10)
    note(job, "first")
    job.head.give("c1")
    wall = job.clock.wall()
    outcome = Outcome(id="c1", stage="applied", step=51, effective=64, version=1, t=job.head.node.clock.t())
    job.head.runs.receive(job.head.identity, None, outcome)
    job.pass_by(5)
    event = next(event for event in job.other.node.events if event.text == "first")
    assert 0 <= event.wall - wall <= 2
    assert event.host_wall == pytest.approx(wall + 3600)
    command = job.other.node.book.known(RUN, "c1")
    assert command is not None
    assert 0 <= command.wall - wall <= 2
    assert (command.host, event.host) == ("gpu00", "gpu00")


LARGE = HeadFacts(
    t=1,
    reports=HeadReports(host="gpu00"),
    tuner=TunerState(stand="trial", tried=(Trial(changes=(UP,)),) * 50),
    rows=(
        HeadRow(1, 1, {f"metric {n} {math.sin(n)}": math.sin(n) for n in range(job_records.MOST_METRICS)}),
    ),
    events=tuple(
        Event(
            seq=n,
            t=n,
            wall=float(n),
            kind="diagnosis",
            code="diagnosis",
            fields={"text": f"{math.sin(n)}" * 200},
        )
        for n in range(job_records.MOST_EVENTS)
    ),
)


def unlike(number: int, length: int) -> str:
    """A text that compresses badly."""
    return "".join(chr(0x4E00 + (number * 7919 + at * at * 104729) % 20000) for at in range(length))


@pytest.mark.parametrize("notes", [0, MOST_NOTES])
def test_what_is_too_much_is_left_out_and_the_tuner_is_never_taken_for_off(notes: int) -> None:
    written = tuple(RunNote(wall=float(n), by="ana", text=unlike(n, LONGEST_NOTE)) for n in range(notes))
    events = tuple(structs.replace(one, fields={"text": unlike(one.seq, 4000)}) for one in LARGE.events)
    body = job_records.encode_facts(structs.replace(LARGE, notes=written, events=events))
    assert 0 < len(body) <= job_records.RUN_BYTES
    found = job_records.decode_facts(body)
    assert found is not None
    assert found.tuner is not None
    assert found.tuner.stand == "trial"
    assert (found.notes == written[-len(found.notes) :]) if notes else not found.notes


@pytest.mark.parametrize("length", [1, job_records.LONGEST_TEXT // 2, job_records.LONGEST_TEXT])
def test_of_metrics_with_long_names_some_are_left_out(length: int) -> None:
    """All are of one row, and there is no note."""
    names = [unlike(n, length - 1) + chr(0x100 + n) for n in range(job_records.MOST_METRICS)]
    facts = HeadFacts(t=1, tuner=LARGE.tuner, rows=(HeadRow(1, 1, dict.fromkeys(names, 1.0)),))
    body = job_records.encode_facts(facts)
    assert 0 < len(body) <= job_records.RUN_BYTES
    found = job_records.decode_facts(body)
    assert found is not None
    assert found.tuner is not None
    assert found.tuner.stand == "trial"
    [row] = found.rows
    assert list(row.values) == names[: len(row.values)]
    assert len(row.values) >= (len(names) if length == 1 else 32)


def test_a_record_has_room_for_the_largest_state_and_what_is_said_of_the_run() -> None:
    record = JobRecord(state=bytes(job_records.STATE_BYTES), run=bytes(job_records.RUN_BYTES))
    assert job_records.decode_job(job_records.encode_job(record)) == record
    crowded = structs.replace(record, identities=tuple(f"{n:036}" for n in range(2500)))
    assert job_records.decode_job(job_records.encode_job(crowded)) == structs.replace(crowded, run=b"")


@pytest.mark.parametrize(
    "facts",
    [
        HeadFacts(t=1, rows=(HeadRow(1, 1, dict.fromkeys(map(str, range(300)), 1.0)),)),
        HeadFacts(t=1, notes=(RunNote(wall=1.0, by="ana", text="x" * (LONGEST_NOTE + 1)),)),
        HeadFacts(t=1, reports=HeadReports(host="x" * 300)),
        HeadFacts(t=1 << 63),
        HeadFacts(
            t=1, events=(Event(seq=1, t=1, wall=1.0, kind="note", text="x" * job_records.RUN_PLAIN_BYTES),)
        ),
    ],
)
def test_more_than_a_head_may_say_is_refused(facts: HeadFacts) -> None:
    with pytest.raises(RecordError):
        job_records.decode_facts(record_bytes.compressed(facts))


def test_an_older_node_understands_the_record_of_a_newer_head(job: Job) -> None:
    body = msgpack.decode(job.head.store.values["n1/head"])
    assert body.pop("run")
    known = msgpack.decode(job.head.store.values["n1/head"], type=JobRecord)
    assert msgpack.decode(msgpack.encode(body), type=JobRecord) == structs.replace(known, run=b"")


def test_too_many_notes_of_another_node_are_refused(job: Job) -> None:
    record = job_records.decode_node(job.head.store.values["n1/node/1"][1:])
    many = tuple(RunNote(wall=float(n), by="ana", text="x") for n in range(job_records.MOST_PASSED_NOTES + 1))
    with pytest.raises(RecordError):
        job_records.decode_node(record_bytes.compressed(structs.replace(record, notes=many)))
    run: TrackedRun = job.head.run
    run.state = structs.replace(run.state, notes=many * 5)
    stored = StoredRecord(1, job_records.encode_node(structs.replace(record, notes=many[:5])))
    job.head.runs.receive(job.head.identity, None, messages.JobReading(number=99, nodes=(stored,)))
    assert len(run.state.notes) == len(many * 5) <= MOST_NOTES
    assert len(head_facts(job.head.node, run).notes) == len(many * 5)


def test_a_fault_in_what_the_head_says_costs_nothing_else(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr("hoptui.daemon.head_facts.HeadView._rows", broken)
    job.pass_by(5)
    assert conditions(job.other.state) == ["live", "live"]
    job.other.give("c1")
    job.pass_by(4)
    assert [command.id for command in job.head.commands] == ["c1"]
