"""How a tuner goes on, and what it undoes, after the end of its run, of its run's process, or of the
daemon."""

from __future__ import annotations

import pytest
from msgspec import structs

from hoptui.daemon.handlers.tuners import CRASHED, KILLED
from hoptui.domain.facts import fact
from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.domain.tuning import Change, Limits, Measured, Trial, TunerState
from hoptui.protocol.messages import Bye, CommandRecord, Declare, Outcome
from hoptui.tuner.observation import PriorResult
from hoptui.tuner.rollback import DECLARED_S, RETRY_S, TRIES, UNHEARD_S
from tests.daemon.quiet_node import ANA, LR, MICRO, PURPOSE, RUN, SECOND, UP, QuietNode


def test_it_ends_with_its_run_before_the_recording_is_closed(trying: QuietNode) -> None:
    trying.runs.receive(b"n1", None, Bye(reason="finished"))
    assert trying.keeper.log[-1] == "finish"
    last = trying.keeper.states[-1].tuner
    assert last is not None
    assert (last.stand, last.facts) == ("off", (fact("tuner.run_ended", reason="finished"),))
    assert last.tried[-1].result == "interrupted"
    assert not trying.tune("stop").granted


def test_a_run_that_crashed_in_a_trial_comes_back_without_it(trying: QuietNode) -> None:
    trying.runs.receive(b"n1", None, Bye(reason="exception", detail="OutOfMemoryError"))
    assert (trying.tuner.stand, trying.tuner.tried[-1].result) == ("off", "unfinished")
    trying.hello(nonce="n2", knobs=(structs.replace(MICRO, value=64), LR))  # as its checkpoint has it
    trying.look()
    trying.look()
    assert trying.tuner.tried[-1].result == "unfinished"
    assert (trying.commands[-1].value, trying.commands[-1].epoch) == (32, 2)
    assert trying.script.scenes == []  # nothing else before that
    trying.outcome(trying.commands[-1], identity=b"n2")
    trying.look()
    assert trying.value() == 32
    assert len(trying.script.scenes) == 1
    goes_on = fact("tuner.goes_on", cause=CRASHED, in_trial=True, values={"micro_batch": 32}, missing=[])
    assert trying.said()[-1] == goes_on
    assert sum(what.fields.get("result") == "unfinished" for what in trying.said()) == 1


def test_a_process_that_comes_after_a_crash_is_left_alone_until_it_has_knobs(trying: QuietNode) -> None:
    trying.runs.receive(b"n1", None, Bye(reason="exception", detail="OutOfMemoryError"))
    before = len(trying.commands)
    trying.hello(nonce="n2", knobs=())
    trying.look()
    trying.look()
    assert len(trying.commands) == before
    trying.runs.receive(b"n2", None, Declare(knobs=(structs.replace(MICRO, value=64), LR)))
    trying.look()
    trying.look()
    assert (trying.commands[-1].value, trying.commands[-1].epoch) == (32, 2)


def test_a_process_that_replaces_another_is_looked_at_once_it_has_knobs(trying: QuietNode) -> None:
    trying.run.restarting = True
    trying.hello(nonce="n2", knobs=())
    seen = len(trying.script.scenes)
    trying.look()
    assert len(trying.script.scenes) == seen
    trying.runs.receive(b"n2", None, Declare(knobs=(MICRO, LR)))
    trying.look()
    assert trying.script.scenes[-1].epoch == 2
    assert len(trying.script.scenes) == seen + 1


def test_what_a_run_crashed_with_is_not_tried_on_it_again(trying: QuietNode) -> None:
    trying.runs.receive(b"n1", None, Bye(reason="exception", detail="OutOfMemoryError"))
    trying.hello(nonce="n2")
    trying.look()
    assert trying.tuner.frozen == ("micro_batch",)
    why = fact("tuner.in_trial", cause=CRASHED)
    assert fact("tuner.leaves_alone", knobs=["micro_batch"], why=why) in trying.said()
    assert trying.tune("release", knob="micro_batch").granted
    trying.look()
    assert not trying.script.state.frozen


def test_what_a_run_crashed_with_is_given_to_no_other(quiet: QuietNode) -> None:
    quiet.tune()
    quiet.script.rests = PriorResult({"micro_batch": 64, "num_workers": 4}, peak=100)
    quiet.look()
    quiet.script.rests = None
    for value, known in ((48, {"micro_batch": 64, "num_workers": 4}), (64, {"num_workers": 4})):
        quiet.script.propose(structs.replace(UP, value=value))
        quiet.look()
        quiet.runs.receive(quiet.run.nonce.encode(), None, Bye(reason="exception"))
        assert [result.values for result in quiet.keeper.settled] == [known]
        quiet.hello(nonce=f"after {value}")
        quiet.look()


def test_a_crash_between_trials_costs_no_knob(trying: QuietNode) -> None:
    trying.script.end("kept")
    trying.look()
    trying.runs.receive(b"n1", None, Bye(reason="exception"))
    trying.hello(nonce="n2")
    trying.look()
    assert trying.tuner.frozen == ()
    assert trying.said()[-1] == fact("tuner.goes_on", cause=CRASHED)


def test_a_run_that_has_finished_and_starts_again_is_not_tuned(trying: QuietNode) -> None:
    trying.runs.receive(b"n1", None, Bye(reason="finished"))
    trying.hello(nonce="n2")
    trying.look()
    assert (trying.tuner.stand, trying.tuners.at_work) == ("off", False)


AT_END = fact("tuner.run_ended", reason="finished")


def finished(trying: QuietNode, *, known: bool = True) -> QuietNode:
    """A run that has finished in a trial goes on from a checkpoint with its value, perhaps with another
    daemon."""
    trying.outcome(trying.commands[0])
    return resumed(trying, known=known)


def resumed(before: QuietNode, *, known: bool = True) -> QuietNode:
    """The next process of a run, from a checkpoint with the value of a trial, perhaps with another daemon."""
    epoch = before.run.state.epoch
    before.runs.receive(before.run.nonce.encode(), None, Bye(reason="finished"))
    there = before if known else QuietNode(state=before.run.state)
    there.now = before.now
    if not known:
        there.node.book.restore(before.node.book.of(RUN))
    there.commands.clear()
    there.hello(nonce=f"n{epoch + 1}", knobs=(structs.replace(MICRO, value=64), LR))
    return there


@pytest.mark.parametrize("known", [True, False])
def test_a_run_that_finished_in_a_trial_comes_back_without_it(trying: QuietNode, known: bool) -> None:
    there = finished(trying, known=known)
    there.look()
    there.look()
    why = fact("rollback.unfinished", cause=AT_END)
    assert [(c.value, c.epoch, c.purpose) for c in there.commands] == [(32, 2, (why,))]
    there.outcome(there.commands[0], identity=b"n2")
    there.look()
    assert there.value() == 32
    assert (there.tuner.stand, there.tuners.at_work) == ("off", False)
    there.person("micro_batch", 64, identity=b"n2")
    there.look()
    assert len(there.commands) == 1


def test_a_trial_at_the_end_is_undone_by_the_second_process_if_not_by_the_first(trying: QuietNode) -> None:
    there = finished(trying)
    there.runs.receive(b"n2", None, Bye(reason="exception"))
    there.hello(nonce="n3", knobs=(structs.replace(MICRO, value=64), LR))
    there.look()
    assert [(c.value, c.epoch) for c in there.commands] == [(32, 3)]


def test_a_tuner_that_is_started_first_undoes_the_trial_at_the_end(trying: QuietNode) -> None:
    there = finished(trying)
    assert there.tune().granted
    there.look()
    assert [(c.value, c.epoch) for c in there.commands] == [(32, 2)]
    assert there.script.scenes == []
    there.outcome(there.commands[0], identity=b"n2")
    there.look()
    assert len(there.script.scenes) == 1


def test_what_a_person_has_set_since_the_run_goes_on_stays(trying: QuietNode) -> None:
    there = finished(trying)
    there.person("micro_batch", 64, identity=b"n2")
    there.look()
    assert there.commands == []


def test_a_trial_that_was_undone_after_the_last_checkpoint_is_undone_again(trying: QuietNode) -> None:
    trying.outcome(trying.commands[0])
    assert trying.tune("stop").granted
    trying.outcome(trying.commands[1])
    there = finished(trying)
    there.look()
    assert [(c.value, c.epoch) for c in there.commands] == [(32, 2)]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("tuned", [True, False])
def test_a_trial_is_undone_in_each_process_that_resumes_with_it(
    trying: QuietNode, tuned: bool, known: bool
) -> None:
    there = finished(trying)
    if tuned:
        assert there.tune().granted
    there.look()
    there.outcome(there.commands[0], identity=b"n2")
    there.look()
    there = resumed(there, known=known)
    there.look()
    assert [(c.value, c.epoch) for c in there.commands] == [(32, 3)]


def test_a_trial_that_a_killed_daemon_had_still_to_undo_is_undone_by_the_next(trying: QuietNode) -> None:
    before = finished(trying)
    there = QuietNode(state=before.run.state)
    there.now = before.now
    there.hello(knobs=before.run.state.knobs)
    there.look()
    assert [(c.value, c.epoch) for c in there.commands] == [(32, 2)]


@pytest.mark.parametrize(("dry", "sent"), [(False, [32]), (True, [])])
def test_a_trial_of_the_tuner_before_is_undone_where_a_process_resumes_with_it(
    trying: QuietNode, dry: bool, sent: list[int]
) -> None:
    trying.outcome(trying.commands[0])
    assert trying.tune("stop").granted
    trying.outcome(trying.commands[1])
    trying.now += 1
    assert trying.tune(limits=Limits(dry=dry)).granted
    trying.runs.receive(b"n1", None, Bye(reason="exception"))
    trying.commands.clear()
    trying.hello(nonce="n2", knobs=(structs.replace(MICRO, value=64), LR))
    trying.look()
    assert [command.value for command in trying.commands] == sent


def test_a_rollback_that_was_refused_is_not_taken_for_a_trial(trying: QuietNode) -> None:
    trying.script.end("reverted")
    trying.script.propose(Change(knob="micro_batch", before=64, value=32))
    trying.look()
    trying.script.end("failed", fact("rollback.trial"), fact("rollback.refused", tries=TRIES))
    trying.look()
    there = finished(trying)
    there.runs.receive(b"n2", None, Declare(knobs=(MICRO, LR)))  # its checkpoint is of before the trial
    there.look()
    assert there.commands == []


def test_a_trial_that_was_kept_stays(trying: QuietNode) -> None:
    trying.script.end("kept")
    trying.look()
    there = finished(trying)
    there.look()
    assert there.commands == []


def test_a_daemon_sends_the_rollback_of_a_stop_that_was_lost_with_the_one_before(trying: QuietNode) -> None:
    trying.outcome(trying.commands[0])
    assert trying.tune("stop").granted
    there = QuietNode(state=trying.run.state)
    there.now = trying.now
    there.node.book.restore(trying.node.book.of(RUN))
    there.node.book.lose(RUN, 1, there.now)
    there.hello(knobs=(structs.replace(MICRO, value=64), LR))
    there.look()
    assert [command.value for command in there.commands] == [32]
    assert not there.tuners.at_work


def test_a_trial_at_the_end_that_cannot_be_undone_is_reported(trying: QuietNode) -> None:
    there = finished(trying)
    for _ in range(round((TRIES + 1) * RETRY_S)):
        there.look()
        if there.commands and there.node.book.of(RUN)[-1].stage == "sent":
            there.outcome(there.commands[-1], "rejected", identity=b"n2", code="busy", reason="no")
    assert len(there.commands) == TRIES
    why = fact("rollback.refused", tries=TRIES)
    assert there.said()[-1] == fact("rollback.impossible", knob="micro_batch", value=32, why=why)


def killed(trial: Trial | None) -> tuple[QuietNode, TunerState]:
    """A daemon that has just read of a run that was being tuned."""
    before = QuietNode()
    before.hello()
    state = TunerState(
        stand="trial" if trial else "holding",
        trial=trial,
        frozen=("lr",),
        started=90 * SECOND,
        user="ana",
        limits=Limits(memory=0.8),
    )
    return QuietNode(state=structs.replace(before.run.state, tuner=state)), state


def test_a_daemon_that_ends_in_good_order_sets_a_trial_back_and_another_goes_on(trying: QuietNode) -> None:
    trying.tuners.close()
    assert [command.value for command in trying.commands] == [64, 32]
    assert trying.tuner.trial is not None, "the next daemon is to know of it"
    trying.outcome(trying.commands[-1])
    trying.tuners.close()
    assert len(trying.commands) == 2, "there is nothing left to set back"


def test_the_figure_of_a_trial_that_was_cut_off_is_its_last(trying: QuietNode) -> None:
    assert trying.script.state.trial is not None
    measured = Measured(metric="tokens_per_s", gain=0.06, interval=0.01)
    trying.script.put(trial=structs.replace(trying.script.state.trial, measured=measured))
    trying.runs.receive(b"n1", None, Bye(reason="exception"))
    assert trying.tuner.tried[-1].measured == structs.replace(measured, settled=True)


RUNNING = Trial(changes=(UP,), t=95 * SECOND, why=(PURPOSE,))


def test_after_the_daemons_death_a_trial_is_unfinished_and_undone() -> None:
    there, _ = killed(RUNNING)
    there.look()
    assert (there.tuner.stand, there.tuner.trial) == ("waiting", None)
    assert there.tuner.tried[-1].result == "unfinished"
    assert there.commands == []  # nobody knows yet what is in effect
    there.hello(knobs=(structs.replace(MICRO, value=64, by="the tuner"), LR))
    there.look()
    assert [(c.knob, c.value) for c in there.commands] == [("micro_batch", 32)]
    there.outcome(there.commands[0])
    there.look()
    assert there.value() == 32
    assert there.script.scenes
    assert there.script.state.limits.memory == 0.8
    assert there.tuner.frozen == ("lr",)
    assert (there.tuner.user, there.tuner.started) == ("ana", 90 * SECOND)
    assert there.tuner.tried[0].result == "unfinished"


def test_a_run_that_died_with_its_daemon_comes_back_without_the_trial() -> None:
    there, _ = killed(RUNNING)
    there.runs.end(there.run, "exited", "its process ended while no daemon was running")
    assert (there.tuner.stand, there.tuner.tried[-1].result) == ("off", "unfinished")
    assert there.tuner.facts == (fact("tuner.run_ended", reason="exited"),)
    there.hello(nonce="n2", knobs=(structs.replace(MICRO, value=64), LR))
    there.look()
    assert [(c.knob, c.value, c.epoch) for c in there.commands] == [("micro_batch", 32, 2)]
    assert there.tuner.frozen == ("lr", "micro_batch")


def test_another_daemons_tuner_goes_on_with_what_was_spent() -> None:
    there, state = killed(None)
    left = structs.replace(state, spent=0.015, lived_s=7200.0)
    there.run.state = structs.replace(there.run.state, tuner=left)
    there.hello()
    there.look()
    assert there.script.took_over == left


def test_what_was_spent_is_on_the_disk_before_a_death(quiet: QuietNode) -> None:
    quiet.tune()
    quiet.look()
    kept = len(quiet.keeper.states)
    for lived_s in range(1, 92):
        quiet.script.put(spent=0.01, lived_s=float(lived_s))
        quiet.look()
    told = [state.tuner.lived_s for state in quiet.keeper.states[kept:] if state.tuner is not None]
    assert told == [30.0, 60.0, 90.0]


def test_a_trial_that_never_took_effect_needs_nothing_undone() -> None:
    there, _ = killed(RUNNING)
    there.hello()
    there.look()
    assert there.commands == []
    assert there.script.scenes


@pytest.mark.parametrize(("result", "undone"), [("reverted", [32]), ("failed", [32]), ("kept", [])])
def test_a_way_back_that_was_cut_off_is_gone_again(result: str, undone: list[int]) -> None:
    there, state = killed(None)
    last = structs.replace(RUNNING, result=result)
    there.run.state = structs.replace(there.run.state, tuner=structs.replace(state, tried=(last,)))
    there.hello(knobs=(structs.replace(MICRO, value=64), LR))
    there.look()
    assert [command.value for command in there.commands] == undone
    assert there.tuner.tried == (last,)


def test_a_value_that_was_read_back_otherwise_is_undone_as_well(trying: QuietNode) -> None:
    record = structs.replace(trying.node.book.of(RUN)[0], effective=63)
    there, _ = killed(structs.replace(RUNNING, t=record.t))
    there.node.book.restore([record])
    there.hello(knobs=(structs.replace(MICRO, value=63), LR))
    there.look()
    assert [(c.value, c.purpose) for c in there.commands] == [
        (32, (fact("rollback.unfinished", cause=KILLED),))
    ]


def test_a_value_that_nobody_here_knows_of_is_left() -> None:
    there, _ = killed(RUNNING)
    there.hello(knobs=(structs.replace(MICRO, value=48), LR))
    there.look()
    assert there.commands == []
    assert there.said()[-1].fields["values"] == {"micro_batch": 48}


def test_what_a_person_has_set_meanwhile_stays() -> None:
    there, _ = killed(RUNNING)
    there.hello()
    there.person("micro_batch", 64)
    there.look()
    assert there.commands == []
    assert there.said()[-1].fields["values"] == {"micro_batch": 64}


ACCUM = KnobState(
    spec=KnobSpec(name="grad_accum", kind="int", default=64, min=1, max=512, effect="speed"), value=32
)
BOTH = structs.replace(RUNNING, changes=(UP, Change(knob="grad_accum", before=64, value=32)))


@pytest.mark.parametrize("stage", ["accepted", "scheduled", "applied"])
def test_of_a_trial_of_which_a_person_has_set_one_knob_nothing_is_set_back(stage: str) -> None:
    there, _ = killed(BOTH)
    there.hello(knobs=(structs.replace(MICRO, value=64), ACCUM))
    given = there.person("micro_batch", 16, stage=stage)
    for _ in range(3):
        there.look()
    assert there.commands == [], "the run would have micro_batch follow"
    if stage != "applied":  # it may still be refused
        assert not there.script.scenes
        there.outcome(given, "applied")
        there.look()
    assert there.commands == []
    assert there.script.scenes


def test_a_trial_is_undone_after_all_once_what_a_person_has_set_is_refused() -> None:
    there, _ = killed(BOTH)
    there.hello(knobs=(structs.replace(MICRO, value=64), ACCUM))
    given = there.person("micro_batch", 16, stage="scheduled")
    there.look()
    there.outcome(given, "rejected", code="busy", reason="no")
    there.look()
    assert {command.knob: command.value for command in there.commands} == {
        "micro_batch": 32,
        "grad_accum": 64,
    }


def test_nor_where_a_knob_of_it_has_followed_what_a_person_has_set() -> None:
    there, _ = killed(RUNNING)
    there.hello(knobs=(structs.replace(MICRO, value=64), ACCUM))
    followed = (Change(knob="micro_batch", before=48, value=64),)
    there.person("grad_accum", 32, followed=followed)
    there.look()
    assert there.commands == []


def test_knobs_that_are_declared_one_by_one_are_waited_for() -> None:
    there, _ = killed(BOTH)
    there.hello(knobs=(ACCUM,))
    for _ in range(30):
        there.look()
    assert (there.commands, there.script.scenes) == ([], [])
    there.runs.receive(b"n1", None, Declare(knobs=(ACCUM, structs.replace(MICRO, value=64))))
    there.look()
    assert {command.knob: command.value for command in there.commands} == {
        "micro_batch": 32,
        "grad_accum": 64,
    }
    assert there.tuner.frozen == ("lr",)


def test_a_knob_that_is_not_declared_any_more_is_left_alone_with_a_word() -> None:
    there, _ = killed(BOTH)
    there.hello(knobs=(ACCUM,))
    there.look(1.0)
    there.look(DECLARED_S)
    assert [(command.knob, command.value) for command in there.commands] == [("grad_accum", 64)]
    there.outcome(there.commands[0])
    there.look()
    assert there.script.scenes
    assert there.tuner.frozen == ("lr", "micro_batch")
    last = [event for event in there.node.events if event.kind == "tuner"][-1]
    assert last.level == "warning"
    assert (last.fields["values"], last.fields["missing"]) == ({"grad_accum": 64}, ["micro_batch"])


def sent(trying: QuietNode) -> tuple[QuietNode, CommandRecord]:
    """A daemon that knows of a trial no more than that the run was sent it."""
    record = structs.replace(trying.node.book.of(RUN)[0], stage="sent", step=None)
    there, _ = killed(structs.replace(RUNNING, t=record.t))
    there.node.book.restore([record])
    there.hello(step=0)
    there.look()
    return there, record


def test_a_change_that_may_still_come_is_waited_for(trying: QuietNode) -> None:
    there, _ = sent(trying)
    there.rows(100.0, 100.0)
    there.look()
    assert there.script.scenes == [], "iterations of a second: too soon to tell"
    there.look(UNHEARD_S + 1)
    assert there.script.scenes


def test_a_change_may_still_come_until_an_iteration_was_begun_and_ended(trying: QuietNode) -> None:
    there, record = sent(trying)
    there.look(600.0)
    there.rows(100.0)
    there.look(600.0)
    assert there.script.scenes == []
    applied = Outcome(id=record.id, stage="applied", step=51, effective=64, version=1, t=there.now)
    there.runs.receive(b"n1", None, applied)
    there.rows(100.0)
    there.look()
    assert [command.value for command in there.commands] == [32]
    there.outcome(there.commands[0])
    there.look()
    assert there.script.scenes


def test_a_way_back_that_is_refused_is_tried_again_and_then_left_with_a_word() -> None:
    there, _ = killed(RUNNING)
    there.hello(knobs=(structs.replace(MICRO, value=64), LR))
    for _ in range(round((TRIES + 1) * RETRY_S)):
        there.look()
        if there.commands and there.node.book.of(RUN)[-1].stage == "sent":
            there.outcome(there.commands[-1], "rejected", code="busy", reason="no")
    assert len(there.commands) == TRIES
    assert there.tuner.frozen == ("lr", "micro_batch")
    last = [e for e in there.node.events if e.kind == "tuner"][-1]
    assert (last.level, last.fields["values"]) == ("warning", {"micro_batch": 64})
    assert last.fields["missing"] == []


def test_a_tuner_that_was_stopped_does_not_come_back() -> None:
    there, state = killed(None)
    there.run.state = structs.replace(there.run.state, tuner=structs.replace(state, stand="off"))
    there.hello()
    there.look()
    assert there.scripts == []


def test_without_a_trial_it_just_goes_on() -> None:
    there, _ = killed(None)
    there.hello()
    there.look()
    assert there.script.scenes
    assert there.said()[-1] == fact("tuner.goes_on", cause=KILLED)
    assert ANA.user == there.tuner.user
