"""The life of a command in the daemon, without I/O: a book, a clock that is a number."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from hoptui.daemon.state.command_log import MOST_OPEN, Book
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.facts import fact, nested
from hoptui.domain.tuning import ADVISED, Change
from hoptui.protocol.messages import Command, CommandRecord, Origin, Outcome, Pulse, RunState, Stage

KIM = Origin(user="kim", pid=1, client="dashboard")
LEE = Origin(user="lee", pid=2, client="dashboard")
TUNER = Origin(kind="tuner", user="kim", pid=3)
AGENT = Origin(kind="agent", user="kim", pid=4, client="coder")
S = 1_000_000_000


class Desk:
    """A book, one run, and the records it wrote."""

    def __init__(self) -> None:
        self.records: list[CommandRecord] = []
        self.book = Book(self.records.append)
        self.run = TrackedRun(RunState(run="r", name="toy", epoch=2, pid=9, started_wall=0.0))
        self.t = S

    def submit(self, name: str, who: Origin = KIM, **fields: Any) -> tuple[CommandRecord, Command | None]:
        made: dict[str, Any] = {"run": "r", "epoch": 2, "verb": "set", "knob": "n", "value": 8}
        fields = made | fields
        return self.book.submit(Command(id=name, origin=who, **fields), self.run, who.user, 1.0, self.t)

    def says(self, name: str, stage: Any, **fields: Any) -> CommandRecord | None:
        return self.book.outcome("r", Outcome(id=name, stage=stage, **fields), self.t)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_whole_life(desk: Desk) -> None:
    answer, onward = desk.submit("a", why="more throughput")
    assert answer.stage == "sent"
    assert onward is not None
    for stage in ("accepted", "scheduled"):
        desk.says("a", stage, step=5)
    done = desk.says("a", "applied", step=5, before=4, effective=8, version=1, t=7)
    assert done is not None
    assert (done.stage, done.before, done.effective, done.version, done.settled) == ("applied", 4, 8, 1, 7)
    assert [r.stage for r in desk.records] == ["sent", "accepted", "scheduled", "applied"]
    assert [r.seq for r in desk.records] == sorted({r.seq for r in desk.records})
    assert desk.book.written("r", "a", done.seq) == done
    assert desk.book.since(0) == [done]
    assert desk.book.since(done.seq) == []


def test_an_applied_change_may_be_reverted_and_nothing_after_that(desk: Desk) -> None:
    desk.submit("a")
    desk.says("a", "applied", step=5, before=4, effective=8, version=1, t=7, took_s=0.25)
    undone = desk.says("a", "reverted", step=9, before=8, effective=2, version=2, reason="out of memory", t=9)
    assert undone is not None
    assert (undone.stage, undone.reason, undone.settled) == ("reverted", "out of memory", 9)
    assert (undone.before, undone.wanted, undone.effective, undone.version) == (4, 8, 2, 2)
    assert undone.took_s == 0.25
    assert desk.says("a", "applied", step=5) is None
    assert desk.says("a", "reverted", step=9) is None
    desk.submit("b")
    desk.says("b", "failed", step=9)
    assert desk.says("b", "reverted", step=9) is None  # it never took effect


def test_what_a_change_moved_besides_its_knob_is_kept_and_what_it_undid_is_told_from_the_beginning(
    desk: Desk,
) -> None:
    desk.submit("a")
    moved = (Change(knob="grad_accum", before=4, value=1),)
    done = desk.says("a", "applied", step=5, before=8, effective=32, version=1, followed=moved)
    assert done is not None
    assert done.followed == moved
    back = (Change(knob="grad_accum", before=1, value=2),)
    undone = desk.says("a", "reverted", step=9, before=32, effective=16, version=2, followed=back)
    assert undone is not None
    assert undone.followed == (Change(knob="grad_accum", before=4, value=2),)


def test_stages_never_go_back(desk: Desk) -> None:
    desk.submit("a")
    desk.says("a", "scheduled", step=5)
    assert desk.says("a", "accepted", step=5) is None
    desk.says("a", "applied", effective=8, version=1)
    assert desk.says("a", "failed") is None
    assert desk.book.of("r")[0].stage == "applied"


def test_a_repeated_command_is_sent_on_until_its_stage_is_final(desk: Desk) -> None:
    _, first = desk.submit("a")
    _, again = desk.submit("a")
    assert first == again
    desk.says("a", "scheduled", step=5)
    answer, onward = desk.submit("a")
    assert (answer.stage, onward) == ("scheduled", first), "its outcome may be lost"
    desk.says("a", "applied", step=5, effective=8, version=1)
    answer, onward = desk.submit("a")
    assert (answer.stage, onward) == ("applied", None)
    assert len(desk.book.of("r")) == 1


ENDED = fact("run_ended", reason="killed")


def test_what_became_of_a_command_that_a_run_had_is_unknown_if_it_did_not_tell(desk: Desk) -> None:
    for name in ("sent", "given", "scheduled"):
        desk.submit(name)
    desk.book.give("given")
    desk.book.give("scheduled")
    desk.says("scheduled", "scheduled", step=5)
    found = {r.id: (r.stage, r.code) for r in desk.book.void("r", ENDED, desk.t)}
    unknown = ("voided", "fate_unknown")
    assert found == {"sent": ("voided", "run_ended"), "given": unknown, "scheduled": unknown}
    assert nested(desk.book.of("r")[1].fields["why"]) == ENDED


def test_what_a_run_had_and_told_nothing_of_is_voided_if_it_told_all(desk: Desk) -> None:
    desk.submit("a")
    desk.book.give("a")
    (found,) = desk.book.void("r", ENDED, desk.t, told=2)
    assert (found.stage, found.code) == ("voided", "run_ended")


def test_an_outcome_that_comes_late_corrects_what_was_voided(desk: Desk) -> None:
    desk.submit("a")
    desk.book.give("a")
    desk.book.void("r", ENDED, desk.t)
    found = desk.says("a", "applied", step=5, effective=8, version=1)
    assert found is not None
    assert (found.stage, found.effective, found.code) == ("applied", 8, "")
    assert desk.says("a", "voided") is None


@pytest.mark.guarantee("bounded-commands")
def test_open_commands_are_kept_and_their_number_is_bounded(desk: Desk) -> None:
    for n in range(MOST_OPEN):
        assert desk.submit(f"c{n}")[0].stage == "sent"
    refused, onward = desk.submit("one more")
    assert (refused.stage, refused.code, onward) == ("rejected", "too_many_commands", None)
    assert {r.id for r in desk.book.of("r")} >= {f"c{n}" for n in range(MOST_OPEN)}
    desk.says("c0", "applied", effective=8, version=1)
    assert desk.submit("another")[0].stage == "sent"


def test_a_command_from_a_recording_is_sent_on_when_it_is_repeated_and_its_fate_is_unknown(
    desk: Desk,
) -> None:
    desk.submit("a")
    again = Desk()
    again.book.restore(desk.records)
    _, onward = again.submit("a")
    assert onward is not None
    (found,) = again.book.void("r", ENDED, again.t)
    assert found.code == "fate_unknown", "the daemon before may have passed it on"


def test_a_command_from_a_recording_that_never_reached_its_run_is_voided(desk: Desk) -> None:
    for name in ("lost", "repeated", "scheduled"):
        desk.submit(name)
    desk.says("scheduled", "scheduled", step=5)
    again = Desk()
    again.book.restore(desk.records)
    assert again.book.asking, "the run may answer at any time"
    again.says("scheduled", "scheduled", step=5)
    again.submit("repeated")
    (found,) = again.book.lose("r", 2, again.t)
    assert (found.id, found.stage, found.code) == ("lost", "voided", "daemon_ended")
    assert again.book.lose("r", 2, again.t) == []


def test_what_an_earlier_process_did_with_a_command_from_a_recording_is_unknown(desk: Desk) -> None:
    """A daemon between the two did not know the command: it could not read the recording."""
    desk.submit("a")
    desk.says("a", "scheduled", step=5)
    again = Desk()
    again.book.restore(desk.records)
    (found,) = again.book.lose("r", 3, again.t)
    assert (found.stage, found.code) == ("voided", "fate_unknown")


def test_a_repeated_command_for_an_earlier_process_does_not_stay_open(desk: Desk) -> None:
    """Nobody can say more of it. A daemon between the two could not read the recording."""
    desk.submit("a")
    again = Desk()
    again.book.restore(desk.records)
    again.run.state = structs.replace(again.run.state, epoch=3)
    assert again.submit("a", repeated=True) == (again.book.of("r")[0], None)
    (found,) = again.book.lose("r", 3, again.t)
    assert (found.stage, found.code) == ("voided", "fate_unknown")
    assert not again.book.asking


def test_what_an_earlier_daemon_may_have_passed_on_is_unknown_where_the_process_is_gone(desk: Desk) -> None:
    fresh, _ = desk.submit("fresh", epoch=1)
    assert (fresh.stage, fresh.code) == ("rejected", "stale_epoch")
    repeated, _ = desk.submit("repeated", epoch=1, repeated=True)
    assert (repeated.stage, repeated.code) == ("voided", "fate_unknown")
    assert nested(repeated.fields["why"]) == fact("stale_epoch", name="toy")
    desk.run.exit("finished", "", 0.0)
    assert desk.submit("at the end", repeated=True)[0].code == "fate_unknown"


def test_a_command_that_its_viewer_has_given_up_is_not_passed_on(desk: Desk) -> None:
    desk.t = 100 * S
    assert desk.submit("soon", t=85 * S)[0].stage == "sent"
    late, onward = desk.submit("late", t=70 * S)
    assert (late.stage, late.code, onward) == ("expired", "no_daemon", None)
    assert desk.submit("from another daemon", t=70 * S, repeated=True)[0].stage == "sent"


def test_a_repeated_command_may_have_been_passed_on(desk: Desk) -> None:
    desk.submit("a", repeated=True)
    (found,) = desk.book.void("r", ENDED, desk.t)
    assert found.code == "fate_unknown"


def test_a_run_that_is_about_to_tell_what_it_has_decides_on_a_command(desk: Desk) -> None:
    def undecided(**fields: Any) -> bool:
        made: dict[str, Any] = {"id": "a", "run": "r", "epoch": 2, "verb": "set", "knob": "n"}
        return desk.book.undecided(Command(**made | fields), desk.run)

    assert undecided(origin=TUNER), "a user may hold the knob"
    assert not undecided(repeated=True), "the run knows whether it has it"
    for n in range(MOST_OPEN):
        desk.submit(f"c{n}")
    assert undecided(repeated=True)
    assert not undecided(repeated=True, epoch=1), "that process is gone"
    assert not undecided(repeated=True, id="c0"), "it is known here"
    desk.run.pulse(Pulse(step=1), 1.0)
    assert not undecided(repeated=True)
    assert not undecided(origin=TUNER)


def test_a_run_is_being_asked_until_it_has_said_what_became_of_every_command(desk: Desk) -> None:
    assert not desk.book.asking
    desk.submit("a", epoch=1)
    assert not desk.book.asking, "it was refused here"
    desk.submit("a2")
    desk.submit("b")
    desk.says("a2", "accepted", step=5)
    desk.says("a2", "applied", step=5, effective=8, version=1)
    assert desk.book.asking
    desk.says("b", "failed", reason="no")
    assert not desk.book.asking
    desk.submit("c")
    desk.book.void("r", fact("run_ended", reason="killed"), desk.t)
    assert not desk.book.asking
    desk.submit("d")
    desk.book.forget("r")
    assert not desk.book.asking


@pytest.mark.parametrize(
    ("change", "code"),
    [({"epoch": 1}, "stale_epoch"), ({"epoch": 3}, "stale_epoch")],
)
def test_epochs_are_fences(desk: Desk, change: dict[str, Any], code: str) -> None:
    answer, onward = desk.submit("a", **change)
    assert (answer.stage, answer.code, onward) == ("rejected", code, None)


def test_an_exited_or_unknown_run(desk: Desk) -> None:
    desk.run.exit("finished", "", 1.0)
    assert desk.submit("a")[0].code == "no_such_run"
    unknown = Command(id="b", run="x", epoch=1, verb="stop", origin=KIM)
    answer, onward = desk.book.submit(unknown, None, "kim", 1.0, 1)
    assert (answer.code, onward) == ("no_such_run", None)
    assert desk.book.of("x") == []  # nothing piles up for runs that never were


def test_people_before_the_tuner(desk: Desk) -> None:
    desk.submit("a", KIM)
    assert desk.submit("b", TUNER)[0].stage == "sent"  # not accepted yet: nothing is held
    desk.says("a", "accepted", step=1)
    refused, _ = desk.submit("c", TUNER)
    assert refused.code == "held_by_person"
    assert desk.submit("d", TUNER, knob="other")[0].stage == "sent"
    desk.book.release("r", "n", KIM)
    assert desk.submit("e", TUNER)[0].stage == "sent"


def test_a_knob_that_a_person_set_is_refused_to_an_agent_which_reads_who_it_was(desk: Desk) -> None:
    desk.submit("a", KIM)
    assert desk.submit("b", AGENT)[0].stage == "sent"  # not accepted yet: nothing is held
    desk.says("a", "accepted", step=1)
    refused, onward = desk.submit("c", AGENT)
    assert (refused.code, refused.fields["by"], onward) == ("held_by_person", "kim (pid 1)", None)
    assert desk.submit("d", AGENT, knob="other")[0].stage == "sent"
    assert desk.submit("e", AGENT, verb="pause", knob="", value=None)[0].stage == "sent"
    assert desk.book.holders("r") == {"n": "kim (pid 1)"}
    desk.book.release("r", "n", KIM)
    assert desk.submit("f", AGENT)[0].stage == "sent"


def test_what_an_agent_set_is_left_alone_by_the_tuner_and_set_again_by_agents_and_persons(desk: Desk) -> None:
    desk.submit("a", AGENT)
    desk.says("a", "applied", step=1, version=1)
    assert desk.submit("b", TUNER)[0].code == "held_by_person"
    assert desk.book.holders("r") == {}
    assert desk.submit("c", AGENT)[0].stage == "sent"
    desk.submit("d", KIM)
    desk.says("d", "applied", step=2, version=2)
    assert desk.submit("e", AGENT)[0].code == "held_by_person"


def test_a_knob_that_followed_a_persons_one_is_held_against_an_agent_once_the_tuner_leaves_it(
    desk: Desk,
) -> None:
    desk.submit("a", KIM)
    desk.says("a", "applied", step=1, version=1, followed=(Change(knob="m", before=4, value=2),))
    assert desk.submit("b", AGENT, knob="m")[0].stage == "sent"
    desk.book.overrides("r").choose(["m", "k"])
    assert desk.book.holders("r") == {"k": "", "m": "kim (pid 1)", "n": "kim (pid 1)"}
    assert desk.submit("c", AGENT, knob="m")[0].fields["by"] == "kim (pid 1)"
    assert desk.submit("d", AGENT, knob="k")[0].code == "held_by_person"


def test_one_knob_is_released_and_the_others_stay_held(desk: Desk) -> None:
    for name, knob in (("a", "n"), ("b", "m")):
        desk.submit(name, knob=knob)
        desk.says(name, "accepted")
    assert desk.book.held("r") == {"n", "m"}
    desk.book.release("r", "n", KIM)
    assert desk.book.held("r") == {"m"}
    assert desk.submit("c", TUNER)[0].stage == "sent"
    assert desk.submit("d", TUNER, knob="m")[0].code == "held_by_person"


def test_what_people_have_set_is_held_after_a_restart_of_the_daemon(desk: Desk) -> None:
    for i, (knob, who) in enumerate((("n", KIM), ("m", TUNER), ("o", KIM))):
        desk.submit(f"c{i}", who, knob=knob)
        desk.says(f"c{i}", "applied", version=1)
    records = desk.book.of("r")
    old = structs.replace(records[2], id="old", epoch=1, knob="p")  # of a process that is no more
    later = Book(lambda _: None)
    later.restore([old, *records[:2], structs.replace(records[2], stage="rejected")])
    assert later.held("r") == {"n"}


@pytest.mark.parametrize("stage", ["accepted", "scheduled", "applied"])
@pytest.mark.parametrize("released", [False, True])
def test_what_a_person_has_asked_for_is_held_wherever_a_daemon_was_killed(
    desk: Desk, stage: Stage, released: bool
) -> None:
    desk.submit("a")
    desk.says("a", "accepted")
    desk.says("a", stage, step=5)
    if released:
        desk.book.release("r", "n", LEE)
    held = frozenset() if released else {"n"}
    later = Book(lambda _: None)
    later.restore(desk.book.of("r"))
    assert later.held("r") == held
    for book in (desk.book, later):
        following: Stage
        for following in ("scheduled", "applied", "reverted"):
            book.outcome("r", Outcome(id="a", stage=following, step=5), desk.t)
            assert book.held("r") == held


def test_a_change_of_which_a_daemon_heard_nothing_before_its_death_holds_once_it_is_applied(
    desk: Desk,
) -> None:
    desk.submit("a")
    later = Book(lambda _: None)
    later.restore(desk.book.of("r"))
    assert later.held("r") == frozenset(), "the run may refuse it"
    later.outcome("r", Outcome(id="a", stage="applied", step=5), desk.t)
    assert later.held("r") == {"n"}


def test_an_older_change_that_is_undone_does_not_hold_what_was_released_since(desk: Desk) -> None:
    for name in ("a", "b"):
        desk.submit(name)
        desk.says(name, "applied", step=5)
    desk.book.release("r", "n", LEE)
    desk.says("a", "reverted", step=9)
    assert desk.book.held("r") == frozenset()


def test_a_change_that_took_advice_leaves_the_knob_to_the_tuner(desk: Desk) -> None:
    desk.submit("a", value=4)
    desk.says("a", "applied", step=5)
    assert desk.book.held("r") == {"n"}
    desk.submit("b", value=8, why=f"{ADVISED}the run is launch-bound")
    desk.says("b", "accepted")
    assert desk.book.held("r") == frozenset()
    later = Book(lambda _: None)
    later.restore(desk.book.of("r"))
    assert later.held("r") == frozenset()
    desk.says("b", "failed")
    assert desk.book.held("r") == {"n"}, "the value before counts again"
    desk.submit("c", value=8, why=f"{ADVISED}the run is launch-bound")
    desk.says("c", "applied", step=7)
    desk.submit("d", value=16)
    desk.says("d", "applied", step=9)
    assert desk.book.held("r") == {"n"}


@pytest.mark.parametrize("together", [False, True])
def test_who_released_a_knob_is_told_with_its_change_and_known_after_a_restart_of_the_daemon(
    desk: Desk, together: bool
) -> None:
    for name, knob, value in (("a", "n", 8), ("b", "n", 16), ("c", "m", 8)):
        desk.submit(name, knob=knob, value=value)
        desk.says(name, "accepted")
        desk.says(name, "applied", step=5, effective=value, version=1)
    assert desk.book.held("r") == {"n", "m"}
    for knob in ("n", "n", "m") if together else ("n", "n"):  # once is enough
        desk.book.release("r", knob, KIM)
    first, last, other = desk.book.of("r")
    assert (first.released, last.released) == (None, KIM)
    assert last.reason == ""
    assert (last.stage, last.effective) == ("applied", 16)
    assert desk.records[-1].released == KIM
    later = Book(lambda _: None)
    later.restore([first, last, other])
    assert later.held("r") == (frozenset() if together else {"m"})
    again = structs.replace(last, id="d", released=None)
    later = Book(lambda _: None)
    later.restore([first, last, again])
    assert later.held("r") == {"n"}, "it was set once more since"


def test_a_release_holds_also_where_the_change_that_was_on_its_way_comes_to_nothing(desk: Desk) -> None:
    desk.submit("a")
    desk.says("a", "applied", step=5)
    desk.submit("b")
    desk.says("b", "accepted")
    desk.book.release("r", "n", KIM)
    desk.says("b", "failed")
    later = Book(lambda _: None)
    later.restore(desk.book.of("r"))
    assert (desk.book.held("r"), later.held("r")) == (frozenset(), frozenset())


def test_a_restart_voids_what_is_pending(desk: Desk) -> None:
    desk.submit("a")
    desk.submit("b")
    desk.says("b", "applied", effective=8, version=1)
    assert [r.id for r in desk.book.void("r", fact("run_restarted", restart=1), desk.t)] == ["a"]
    assert [r.stage for r in desk.book.of("r")] == ["voided", "applied"]
    assert desk.book.unanswered("r") == []


def test_a_conflict_keeps_no_effective_value(desk: Desk) -> None:
    desk.submit("a")
    lost = desk.says("a", "rejected", code="version_conflict", effective=4, version=3)
    assert lost is not None
    assert (lost.effective, lost.version, lost.stage) == (None, None, "rejected")


def test_history_is_bounded_and_survives_a_restart_of_the_daemon(desk: Desk) -> None:
    for i in range(2100):
        desk.submit(f"c{i}")
        desk.says(f"c{i}", "applied", effective=8, version=i)
    kept = desk.book.of("r")
    assert (len(kept), kept[-1].id) == (2000, "c2099")
    after = Book(lambda _: None)
    after.restore(kept)
    assert after.seq == desk.book.seq
    assert after.number(0.0) == desk.book.seq + 1


def test_what_a_run_restarts_for_outlives_the_restart_and_nothing_else_does(desk: Desk) -> None:
    for name in ("a", "b"):
        desk.submit(name, knob=name)
        desk.says(name, "scheduled", step=5)
    leaves: dict[str, Any] = {"code": "restarting", "fields": {"checkpoint": "x.ckpt"}}
    told = desk.says("a", "scheduled", step=5, **leaves)
    assert told is not None
    assert (told.stage, told.code, told.fields) == ("scheduled", "restarting", {"checkpoint": "x.ckpt"})
    assert desk.says("a", "scheduled", step=5, **leaves) is None
    assert [r.id for r in desk.book.void("r", fact("run_restarted", restart=1), desk.t, ended=False)] == ["b"]
    done = desk.says("a", "applied", step=5, effective=8, version=1, took_s=9.5)
    assert done is not None
    assert (done.stage, done.code, done.reason, done.took_s) == ("applied", "", "", 9.5)


def test_what_a_run_restarts_for_has_failed_when_it_ends(desk: Desk) -> None:
    desk.submit("a")
    desk.says("a", "scheduled", step=5, code="restarting", fields={"checkpoint": "x.ckpt"})
    ended = fact("run_ended", reason="killed")
    (record,) = desk.book.void("r", ended, desk.t)
    assert (record.stage, record.code) == ("failed", "lost_in_restart")
    assert (nested(record.fields["why"]), record.fields["checkpoint"]) == (ended, "x.ckpt")
    assert record.effective is None


@pytest.mark.parametrize("heard", [False, True])
def test_what_a_new_process_may_have_told_an_earlier_daemon_is_unknown(desk: Desk, heard: bool) -> None:
    """That daemon was killed before the report was on disk."""
    desk.submit("a")
    leaves: dict[str, Any] = {"code": "restarting", "fields": {"checkpoint": "x.ckpt"}}
    desk.says("a", "scheduled", step=5, **leaves)
    later = Desk()
    later.book.restore(desk.book.of("r"))
    if heard:  # from the process that is about to leave: the new one can have told no earlier daemon
        later.says("a", "scheduled", step=5, **leaves)
    later.submit("a", repeated=True)  # a viewer that has heard nothing
    ended = fact("run_ended", reason="killed")
    (record,) = later.book.void("r", ended, later.t)
    lost = fact("lost_in_restart", why=ended, checkpoint="x.ckpt")
    if heard:
        assert (record.stage, record.code, record.fields) == ("failed", lost.code, lost.fields)
    else:
        assert (record.stage, record.code) == ("voided", "fate_unknown")
        assert nested(record.fields["why"]) == lost
        done = later.says("a", "applied", effective=8, version=1, code="restarted")
        assert done is not None, "the process lives after all"
        assert done.stage == "applied"


def test_between_two_processes_of_a_run_nothing_is_taken(desk: Desk) -> None:
    desk.run.restarting = True
    answer, onward = desk.submit("a")
    assert (answer.stage, answer.code, onward) == ("rejected", "restarting", None)
    assert answer.fields == {"name": "toy"}


@pytest.mark.guarantee("outcomes-again")
def test_an_outcome_of_an_unknown_command_is_taken_with_the_command(desk: Desk) -> None:
    """An earlier daemon was killed before it had written the command."""
    asked = Command(id="a", run="r", epoch=2, verb="set", knob="n", value=8, origin=KIM, why="faster")
    assert desk.says("a", "applied", effective=8) is None
    assert desk.says("b", "applied", effective=8, command=asked) is None  # of another
    outcome = Outcome(id="a", stage="applied", effective=8, version=1, t=7, command=asked)
    done = desk.book.outcome("r", outcome, desk.t, 5.0)
    assert done is not None
    assert (done.knob, done.wanted, done.effective, done.origin, done.why) == ("n", 8, 8, KIM, "faster")
    assert (done.stage, done.t, done.settled, done.wall) == ("applied", 7, 7, 5.0)


@pytest.mark.parametrize(("t", "given", "wall"), [(40 * S, 40 * S, 27.0), (99 * S, 62 * S, 49.0)])
def test_a_command_that_is_taken_from_its_outcome_was_given_when_it_says(
    desk: Desk, t: int, given: int, wall: float
) -> None:
    """It may have waited for its boundary. A stamp from the future is not believed."""
    asked = Command(id="a", run="r", epoch=2, verb="set", knob="n", value=8, origin=KIM, t=t)
    outcome = Outcome(id="a", stage="applied", effective=8, version=1, t=62 * S, command=asked)
    done = desk.book.outcome("r", outcome, desk.t, 49.0)
    assert done is not None
    assert (done.t, done.wall, done.settled) == (given, wall, 62 * S)
    assert desk.book.held("r") == {"n"}
    assert not desk.book.asking
    assert desk.book.outcome("r", outcome, desk.t, 5.0) is None
