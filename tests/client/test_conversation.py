from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec import structs

from hoptui.client.conversation import (
    HELLO_S,
    LATEST_S,
    LATEST_SELDOM_S,
    LINES_AGAIN_S,
    LINES_EVERY_S,
    OUTPUT_EVERY_S,
    RANKS_PER_PAGE,
    SILENCE_S,
    WAIT_S,
    Conversation,
    Outbox,
)
from hoptui.client.subscriptions import HUNGRY
from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuProcess
from hoptui.domain.jobs import JobState
from hoptui.domain.line_counts import FoundLines, count
from hoptui.domain.outputs import OutputPart
from hoptui.domain.run_notes import AddNote, NoteAdded
from hoptui.domain.stacks import StackFrame
from hoptui.domain.stacks import pack as pack_stacks
from hoptui.domain.terminal_text import plain
from hoptui.model.store import Store
from hoptui.protocol.job_records import encode_state
from hoptui.protocol.messages import (
    PROTOCOL,
    Buckets,
    Command,
    Delta,
    Error,
    Event,
    Fetch,
    FetchLines,
    FetchOutput,
    FromViewer,
    Lease,
    LeaseState,
    Outcome,
    Query,
    RankLines,
    RunLines,
    RunOutput,
    Stage,
    ToViewer,
    ViewerHello,
    ViewerWelcome,
    Vital,
)
from tests import factories
from tests.factories import SECOND
from tests.golden import Golden

RUN = "run/abcd2345"
WELCOME = ViewerWelcome(protocol=PROTOCOL, pid=7, version="0.1.0", host="gpu07")


COUNTS = count(pack_stacks({(StackFrame("train.py", "main", 3),): 5}, 10, 20))


class Table:
    """The two ends of a conversation: `say` lets the daemon speak, `hear` is what the viewer sends until a
    time."""

    def __init__(self) -> None:
        self.store = Store(lambda: 1000 * SECOND)
        self.outbox = Outbox()
        self.talk = Conversation(self.store, self.outbox, client="test", viewer="me")
        self.now = 0.0
        self.talk.connected(0.0)

    def hear(self, until: float | None = None) -> list[FromViewer]:
        sent = self.talk.due(self.now)
        while until is not None and self.talk.wake_at() <= until:
            self.now = max(self.now, self.talk.wake_at())
            if self.talk.silent(self.now):
                break
            sent += self.talk.due(self.now)
        self.now = max(self.now, until or 0.0)
        return sent

    def say(self, *messages: ToViewer) -> None:
        for message in messages:
            self.talk.receive(message, self.now)

    def greet(self) -> Fetch:
        """Up to the first Fetch."""
        assert self.hear() == [ViewerHello(protocol=PROTOCOL, viewer="me", client="test", records=True)]
        self.say(WELCOME)
        return self.fetch()

    def fetch(self) -> Fetch:
        [fetch] = [m for m in self.hear() if isinstance(m, Fetch)]
        return fetch

    def later(self) -> Fetch:
        """The next one, when it is due."""
        [fetch] = [m for m in self.hear(self.now + HUNGRY.frame_s) if isinstance(m, Fetch)]
        return fetch

    def answer(self, fetch: Fetch, **fields: Any) -> None:
        self.say(structs.replace(Delta(id=fetch.id, now=1000 * SECOND, state=1), **fields))

    def settle(self, fetch: Fetch) -> None:
        """Answer the first Fetch with a node of one run, which lives, and every Query with nothing."""
        self.answer(fetch, node=factories.node(factories.run()), vitals={"abcd2345": Vital(state="live")})
        while queries := [m for m in self.hear() if isinstance(m, Query)]:
            for q in queries:
                self.say(
                    Buckets(id=q.id, source=q.source, names=(), t=b"", step=b"", low=(), high=(), mean=())
                )


@pytest.fixture
def table() -> Table:
    return Table()


def pushed(stage: Stage) -> Delta:
    """What became of the command c1, as the daemon sends it without being asked."""
    return Delta(id=0, now=0, state=0, commands=(factories.change("c1", stage=stage, seq=0),))


def of(messages: list[FromViewer], kind: type[FromViewer]) -> list[FromViewer]:
    return [m for m in messages if isinstance(m, kind)]


def test_hello_is_repeated_until_somebody_answers(table: Table) -> None:
    assert len(of(table.hear(2 * HELLO_S + 0.5), ViewerHello)) == 3
    assert not table.talk.silent(HELLO_S + SILENCE_S - 0.1)
    assert table.talk.silent(HELLO_S + SILENCE_S)


def test_the_first_question_is_for_everything_at_once(table: Table) -> None:
    fetch = table.greet()
    assert (fetch.latest, fetch.wait_s, fetch.state, fetch.run) == (True, 0.0, 0, "")
    table.now = 0.02
    table.answer(fetch, node=factories.node(factories.run()), columns=(pack(RUN, [(5, 1, {"loss": 1.0})]),))
    assert table.store.latest(RUN) == {"loss": 1.0}
    assert table.talk.round_trip_s == 0.02


def test_one_fetch_at_a_time_and_never_more_than_ten_a_second(table: Table) -> None:
    fetch = table.greet()
    assert of(table.hear(0.5), Fetch) == []
    table.answer(fetch)
    second = table.fetch()
    assert not second.latest
    assert 0 < second.wait_s <= WAIT_S
    table.answer(second)
    assert table.talk.wake_at() == pytest.approx(0.5 + HUNGRY.frame_s)
    assert of(table.hear(0.5 + HUNGRY.frame_s - 0.01), Fetch) == []
    table.now = 0.5 + HUNGRY.frame_s
    third = table.fetch()
    table.answer(third, more=True)
    assert table.fetch().id > third.id


def test_cursors_go_on(table: Table) -> None:
    table.settle(table.greet())
    table.now = 0.2
    fetch = table.fetch()
    assert set(fetch.cursors) == {"host"}
    event = Event(seq=9, t=1, wall=1.0, kind="note", text="x")
    newer = pack("host", [(999 * SECOND, 0, {"load_1m": 1.0})])
    table.answer(fetch, state=4, columns=(newer,), events=(event,), commands=(factories.change(seq=5),))
    table.now = 0.4
    after = table.fetch()
    assert (after.cursors, after.events, after.commands, after.state) == ({"host": 999 * SECOND}, 9, 5, 4)


def test_single_newest_rows_do_not_tear_holes_into_what_is_followed(table: Table) -> None:
    table.settle(table.greet())
    table.now = 0.2
    table.answer(table.fetch())
    table.now = 2.0
    fetch = table.fetch()
    assert fetch.latest
    rows = (pack("host", [(5, 0, {"load_1m": 1.0})]), pack(RUN, [(5, 1, {"loss": 1.0})]))
    table.answer(fetch, columns=rows)
    assert table.store.names("host") == []
    assert table.store.latest(RUN) == {"loss": 1.0}


def test_last_values_are_asked_for_less_often_while_a_run_is_watched_or_none_lives(table: Table) -> None:
    def gaps() -> list[float]:
        times = []
        for _ in range(200):
            for message in of(table.hear(table.now + HUNGRY.frame_s), Fetch):
                assert isinstance(message, Fetch)
                times += [table.now] * message.latest
                table.answer(message)
        return [b - a for a, b in itertools.pairwise(times)]

    table.settle(table.greet())
    assert set(map(round, gaps())) == {round(LATEST_S)}
    table.talk.watch("abcd2345", table.now)
    assert set(map(round, gaps()[2:])) == {round(LATEST_SELDOM_S)}
    table.talk.watch(None, table.now)
    assert set(map(round, gaps()[2:])) == {round(LATEST_S)}
    table.answer(table.later(), vitals={"abcd2345": Vital(state="exited")})
    assert set(map(round, gaps()[2:])) == {round(LATEST_SELDOM_S)}


def test_a_run_that_begins_is_asked_for_at_once_where_none_lived(table: Table) -> None:
    table.answer(table.greet(), node=factories.node())
    table.answer(
        table.later(), state=2, node=factories.node(factories.run()), vitals={"abcd2345": Vital(state="live")}
    )
    began = table.now
    while not (fetch := table.later()).latest:
        table.answer(fetch)
    assert table.now - began <= LATEST_S + HUNGRY.frame_s


def test_who_sees_nothing_asks_for_rows_no_more_often_than_it_says(table: Table) -> None:
    table.settle(table.greet())
    table.talk.least_s = 3.0
    table.answer(table.later())
    assert of(table.hear(table.now + 3.0 - 2 * HUNGRY.frame_s), Fetch) == []
    assert of(table.hear(table.now + 2 * HUNGRY.frame_s), Fetch) != []


def test_a_line_so_slow_that_last_values_are_always_due_still_carries_rows(table: Table) -> None:
    table.settle(table.greet())
    asked = []
    for _ in range(8):
        table.now += 3 * LATEST_S
        fetch = table.fetch()
        assert fetch.wait_s >= 0
        asked.append(fetch.latest)
        table.now += 3 * LATEST_S
        table.answer(fetch)
    assert asked == [False, True] * 4


def test_watching_asks_for_the_past_and_then_for_rows(table: Table) -> None:
    table.settle(table.greet())
    table.talk.watch("abcd2345", table.now)
    [recent] = [q for q in table.hear() if isinstance(q, Query) and q.source == RUN]
    part = pack(RUN, [(990 * SECOND, 7, {"loss": 0.5})])
    v = part.values
    table.say(
        Buckets(id=recent.id, source=RUN, names=part.names, t=part.t, step=part.step, low=v, high=v, mean=v)
    )
    table.now = 0.3
    assert table.fetch().cursors[RUN] == 990 * SECOND
    assert table.store.latest(RUN) == {"loss": 0.5}


def test_nodes_of_an_earlier_restart_are_dropped_where_the_run_has_none_now(table: Table) -> None:
    table.settle(table.greet())
    table.talk.watch("abcd2345", table.now)
    asked = table.later()
    assert asked.job == "abcd2345"
    nodes = JobState(run="abcd2345", epoch=1, world=2)
    table.answer(asked, job=encode_state(nodes), job_version=3)
    assert table.store.jobs == {"abcd2345": nodes}
    table.answer(table.later(), job_version=0)  # a new daemon, which does not know them yet
    assert table.store.jobs == {"abcd2345": nodes}
    table.answer(table.later(), state=2, node=factories.node(factories.run(epoch=2)), job_version=0)
    table.answer(table.later(), state=2, job_version=0)
    assert table.store.jobs == {}
    assert table.store.job("abcd2345") is None


def test_a_silent_daemon_is_noticed(table: Table) -> None:
    table.settle(table.greet())
    table.now = 0.2
    fetch = table.fetch()
    due = 0.2 + fetch.wait_s + SILENCE_S
    assert table.talk.wake_at() == pytest.approx(due)
    assert not table.talk.silent(due - 0.01)
    assert table.talk.silent(due)


def test_any_word_is_a_sign_of_life(table: Table) -> None:
    table.greet()
    table.now = SILENCE_S - 0.1
    table.say(LeaseState(id=1, run="abcd2345"))
    assert not table.talk.silent(2 * SILENCE_S - 0.2)
    assert table.talk.silent(2 * SILENCE_S)


def test_a_new_connection_goes_on_where_the_old_one_was(table: Table) -> None:
    table.settle(table.greet())
    table.now = 0.2
    table.answer(table.fetch(), state=4, columns=(pack("host", [(999 * SECOND, 0, {"load_1m": 1.0})]),))
    table.now = 5.0
    table.talk.connected(5.0)
    assert len(of(table.hear(), ViewerHello)) == 1
    table.say(WELCOME)
    first = table.fetch()
    assert first.state == 0
    table.answer(first)
    table.now = 5.2
    assert table.fetch().cursors == {"host": 999 * SECOND}


def test_a_daemon_that_forgot_us_is_greeted_again(table: Table) -> None:
    fetch = table.greet()
    table.say(Error(code="hello_first", text="say hello first", id=fetch.id))
    assert not table.talk.greeted
    assert len(of(table.hear(), ViewerHello)) == 1


def test_commands_go_out_at_once_and_again_until_answered(table: Table) -> None:
    fetch = table.greet()
    command = Command(id="c1", run="abcd2345", epoch=1, verb="set", knob="lr", value=1.0)
    table.store.sent(command)
    table.outbox.add(command, 0.0)
    assert of(table.hear(), Command) == [command]
    table.answer(fetch)
    assert of(table.hear(1.0), Command) == [command]
    table.say(pushed("accepted"))
    assert of(table.hear(1.9), Command) == []
    assert table.store.commands["c1"].stage == "accepted"
    table.talk.connected(1.9)
    table.hear()
    table.say(WELCOME)
    assert of(table.hear(), Command) == [command]
    table.say(pushed("applied"))
    table.talk.connected(2.0)
    table.hear()
    table.say(WELCOME)
    assert of(table.hear(), Command) == []


def test_a_record_that_was_not_asked_for_answers_no_question_and_moves_no_cursor(table: Table) -> None:
    fetch = table.greet()
    table.answer(fetch, state=4, commands=(factories.change("c0", seq=7),))
    table.now += 1.0
    asked = table.fetch()
    table.say(pushed("scheduled"))
    assert of(table.hear(), Fetch) == [], "the question is still open"
    table.answer(asked, state=5)
    table.now += 1.0
    assert (table.fetch().commands, table.store.commands["c1"].stage) == (7, "scheduled")


def test_what_an_older_daemon_says_of_a_command_is_passed_over_and_its_record_counts(table: Table) -> None:
    fetch = table.greet()
    command = Command(id="c1", run="abcd2345", epoch=1, verb="set", knob="lr", value=1.0)
    table.store.sent(command)
    table.outbox.add(command, 0.0)
    table.hear()
    own = table.store.commands["c1"]
    table.say(Outcome(id="c1", stage="applied"))
    assert table.store.commands["c1"] == own
    table.answer(fetch, commands=(factories.change("c1"),))
    assert table.store.commands["c1"].stage == "applied"
    assert table.outbox.unanswered() == {}


def test_a_record_from_the_daemon_answers_too(table: Table) -> None:
    fetch = table.greet()
    command = Command(id="c1", run="abcd2345", epoch=1, verb="set", knob="lr", value=1.0)
    table.outbox.add(command, 0.0)
    table.hear()
    table.answer(fetch, commands=(factories.change("c1"),))
    assert table.outbox.unanswered() == {}


def test_a_command_nobody_took_expires_with_a_reason(table: Table, golden: Golden) -> None:
    command = Command(id="c1", run="abcd2345", epoch=1, verb="set", knob="lr", value=1.0, ttl_s=3.0)
    table.store.sent(command)
    table.outbox.add(command, 0.0)
    table.now = 3.0
    table.hear()
    record = table.store.commands["c1"]
    assert (record.stage, "3 s" in record.reason) == ("expired", True)
    golden(record.reason)


def test_a_pause_is_renewed_for_a_minute(table: Table) -> None:
    table.greet()
    table.talk.renew_pause("abcd2345")
    leases = [(m.run, m.op, m.what, m.seconds) for m in table.hear() if isinstance(m, Lease)]
    assert leases == [("abcd2345", "renew", "pause", 60.0)]


def test_another_protocol_ends_the_conversation_with_advice(table: Table, golden: Golden) -> None:
    table.hear()
    table.say(structs.replace(WELCOME, protocol=9, version="2.0"))
    assert "hoptui daemon stop" in table.talk.problem
    golden(table.talk.problem)
    assert table.hear(60.0) == []
    assert not table.talk.silent(1e9)


def test_a_daemon_that_refuses_our_protocol(table: Table) -> None:
    table.hear()
    error = Error(code="protocol", text="too old: 'hoptui daemon stop', then try again")
    table.say(error)
    assert table.talk.problem == error.text


def test_refused_requests_are_counted_and_do_not_stop_the_rest(table: Table) -> None:
    fetch = table.greet()
    table.say(Error(code="malformed", text="what?", id=fetch.id))
    assert (table.talk.refused, table.talk.complaint) == (1, "what?")
    assert of(table.hear(WAIT_S - 0.1), Fetch) == []
    table.now = WAIT_S
    again = table.fetch()
    table.answer(again, node=factories.node(factories.run()))
    [query] = of(table.hear(), Query)
    assert isinstance(query, Query)
    table.say(Error(code="no_history", text="no recording", id=query.id))
    table.now += HUNGRY.frame_s
    assert "host" in table.fetch().cursors


def test_the_wish_for_a_rate_goes_with_every_fetch(table: Table) -> None:
    fetch = table.greet()
    assert fetch.hz == 0.0
    table.talk.hz = 10.0
    table.answer(fetch)
    table.now += HUNGRY.frame_s
    assert table.fetch().hz == 10.0


def test_processes_come_once_for_each_version_and_anew_from_another_daemon(table: Table) -> None:
    fetch = table.greet()
    assert fetch.processes == 0
    held = (GpuProcess(gpu="GPU-a", pid=7, run="abcd2345"),)
    table.answer(fetch, processes=held, processes_version=5)
    assert table.store.processes == held
    table.now += HUNGRY.frame_s
    fetch = table.fetch()
    assert fetch.processes == 5
    table.answer(fetch, processes_version=5)
    assert table.store.processes == held
    table.talk.connected(table.now)
    table.hear()
    table.say(WELCOME)
    assert table.fetch().processes == 0


def lines_asked(table: Table) -> list[tuple[int, int]]:
    """The first rank and the most ranks of each request for lines that is sent now."""
    return [(m.first, m.ranks) for m in table.hear() if isinstance(m, FetchLines)]


def page(table: Table, ranks: tuple[int, ...], following: int = -1) -> RunLines:
    """An answer to the newest request for lines."""
    assert table.talk._lines is not None
    found = tuple(RankLines(rank=rank, counts=COUNTS) for rank in ranks)
    return RunLines(id=table.talk._lines.id, run="abcd2345", ranks=found, next=following)


def test_lines_are_asked_for_every_two_seconds_however_often_a_screen_draws(table: Table) -> None:
    table.settle(table.greet())
    for _ in range(3):
        table.talk.fetch_lines("abcd2345", False, table.now)
    assert lines_asked(table) == [(0, 1)]
    table.say(page(table, (0,), following=1))
    assert table.store.lines["abcd2345", False] == FoundLines({0: COUNTS})
    table.talk.fetch_lines("abcd2345", False, table.now + LINES_EVERY_S / 2)
    assert lines_asked(table) == []
    table.talk.fetch_lines("abcd2345", False, table.now + LINES_EVERY_S)
    assert lines_asked(table) == [(0, 1)]
    table.talk.fetch_lines("abcd2345", False, table.now + 2 * LINES_EVERY_S)
    assert lines_asked(table) == [], "the answer is on its way"
    table.talk.fetch_lines("abcd2345", False, table.now + LINES_EVERY_S + LINES_AGAIN_S)
    assert lines_asked(table) == [(0, 1)], "it was lost"


def test_lines_of_all_ranks_come_page_by_page(table: Table) -> None:
    table.settle(table.greet())
    table.talk.fetch_lines("abcd2345", True, table.now)
    assert lines_asked(table) == [(0, RANKS_PER_PAGE)]
    late = page(table, (7,))
    table.say(page(table, (0, 1), following=5))
    assert table.store.lines == {}
    assert lines_asked(table) == [(5, RANKS_PER_PAGE)]
    table.say(late)
    assert table.store.lines == {}, "it answers an earlier request"
    table.say(page(table, (5,)))
    assert list(table.store.lines["abcd2345", False].ranks) == [0, 1, 5]
    assert lines_asked(table) == []


def test_an_older_daemon_has_no_lines_and_still_describes_runs(table: Table) -> None:
    table.settle(table.greet())
    table.talk.describe("abcd2345")
    table.talk.fetch_lines("abcd2345", False, table.now)
    table.hear()
    text = "no message of the kind 'lines.fetch' is understood here"
    table.say(Error(code="unsupported", text=text))
    assert table.store.lines["abcd2345", False].problem == "old_daemon"
    assert "abcd2345" not in table.store.details
    assert not table.talk.refused


def test_after_a_reconnect_lines_are_asked_for_again(table: Table) -> None:
    table.settle(table.greet())
    table.talk.fetch_lines("abcd2345", False, table.now)
    lost = lines_asked(table)
    table.talk.connected(table.now)
    table.greet()
    table.talk.fetch_lines("abcd2345", False, table.now + LINES_EVERY_S)
    assert lines_asked(table) == lost


# the output of a process ------------------------------------------------------------------------------------


def output_asked(table: Table) -> list[FetchOutput]:
    return [m for m in table.hear() if isinstance(m, FetchOutput)]


def output_page(asked: FetchOutput, start: int, data: bytes, end: int) -> RunOutput:
    part = OutputPart(stream="output", origin="file", source="1:2", start=start, end=end, data=data)
    return RunOutput(id=asked.id, run=asked.run, rank=asked.rank, parts=(part,), ranks=(0, 1))


def test_output_comes_page_by_page_and_goes_on_where_it_ended(table: Table) -> None:
    table.settle(table.greet())
    for _ in range(3):
        table.talk.fetch_output("abcd2345", 0, table.now)
    (first,) = output_asked(table)
    table.say(output_page(first, 0, b"one\n", 8))
    assert table.store.outputs == {}
    (second,) = output_asked(table)
    assert second.since == {"1:2": 4}
    table.say(output_page(first, 0, b"late", 4))
    table.say(output_page(second, 4, b"two\n", 8))
    (stream,) = table.store.outputs["abcd2345"].streams
    assert [plain(line) for line in stream.lines] == ["one", "two"]
    assert output_asked(table) == []
    table.talk.fetch_output("abcd2345", 0, table.now + OUTPUT_EVERY_S)
    (third,) = output_asked(table)
    assert third.since == {"1:2": 8}
    table.talk.fetch_output("abcd2345", 1, table.now + OUTPUT_EVERY_S)
    (other,) = output_asked(table)
    assert (other.rank, other.since) == (1, {})


def test_an_older_daemon_has_no_output(table: Table) -> None:
    table.settle(table.greet())
    table.talk.fetch_output("abcd2345", 0, table.now)
    table.hear()
    table.say(Error(code="unsupported", text="no message of the kind 'output.fetch' is understood here"))
    assert table.store.outputs["abcd2345"].problem == "old_daemon"
    assert not table.talk.refused


def test_an_older_daemon_takes_no_notes_and_says_so(table: Table) -> None:
    table.settle(table.greet())
    table.talk.describe("abcd2345")
    table.talk.add_note("abcd2345", "good")
    (asked,) = [message for message in table.hear() if isinstance(message, AddNote)]
    assert (asked.run, asked.text) == ("abcd2345", "good")
    table.say(Error(code="unsupported", text="no message of the kind 'note.add' is understood here"))
    assert table.store.noted["abcd2345"].code == "note.old_daemon"
    assert "abcd2345" not in table.store.details
    assert not table.talk.refused


def test_the_answer_to_a_note_is_kept(table: Table) -> None:
    table.settle(table.greet())
    answer = NoteAdded(id=3, run="abcd2345", granted=True)
    table.say(answer)
    assert table.store.noted == {"abcd2345": answer}
