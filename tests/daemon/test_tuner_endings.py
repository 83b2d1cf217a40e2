"""What is set back where a tuner ends while a change is on its way to the run, or on its way back."""

from __future__ import annotations

import pytest
from msgspec import structs

from hoptui.domain.facts import fact
from hoptui.protocol.messages import Bye
from hoptui.sdk.command_inbox import CommandInbox
from hoptui.sdk.knob_declarations import Knob, knob_spec
from hoptui.sdk.knobs import LiveKnob
from tests.daemon.quiet_node import LR, MICRO, RUN, UP, QuietNode

STAGES = ("sent", "accepted", "scheduled")


def on_its_way(quiet: QuietNode, stage: str) -> QuietNode:
    """A trial whose command has come so far, and is not in effect."""
    quiet.tune()
    quiet.script.propose(UP)
    quiet.look()
    for passed in STAGES[1 : STAGES.index(stage) + 1]:
        quiet.outcome(quiet.commands[0], passed)
    return quiet


def applied(quiet: QuietNode, *, late: bool) -> list[object]:
    """What a run sets micro_batch to that is sent the commands; `late`: the first was carried out before it
    heard of the next."""
    spec = knob_spec(Knob(1, 512, effect="speed"), "micro_batch", 32)
    knob = LiveKnob(spec, 32)
    inbox = CommandInbox({"micro_batch": knob}, lambda: ())
    inbox.epoch = 1
    found: list[object] = []
    for command in quiet.commands:
        inbox.receive(command, 0.0, 51)
        if late:
            found += [taken.value for taken in inbox.take_due(0.0)]
            knob.version += 1
    return found + [taken.value for taken in inbox.take_due(0.0)]


@pytest.mark.parametrize("stage", STAGES)
def test_a_daemon_that_ends_takes_back_what_is_on_its_way(quiet: QuietNode, stage: str) -> None:
    there = on_its_way(quiet, stage)
    there.tuners.close()
    assert [command.value for command in there.commands] == [64, 32]
    assert applied(there, late=False) == [32], "the run has not begun with the first"
    assert applied(there, late=True) == [64, 32], "or it has"
    there.tuners.close()
    assert len(there.commands) == 2, "what takes it back is on its way"


@pytest.mark.parametrize("stage", STAGES)
def test_a_tuner_that_breaks_takes_back_what_is_on_its_way(quiet: QuietNode, stage: str) -> None:
    there = on_its_way(quiet, stage)
    there.script.plan.append(ZeroDivisionError())
    there.look()
    assert [command.value for command in there.commands] == [64, 32]


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_person_has_sent_is_not_taken_back_with_it(quiet: QuietNode, stage: str) -> None:
    there = on_its_way(quiet, "sent")
    there.person("micro_batch", 48, stage=stage)
    there.tuners.close()
    assert [command.value for command in there.commands] == [64]


@pytest.mark.parametrize("stage", [*STAGES, "applied"])
def test_what_a_person_has_set_since_the_last_look_is_not_taken_back_by_a_stop(
    quiet: QuietNode, stage: str
) -> None:
    there = on_its_way(quiet, "sent")
    there.person("micro_batch", 48, stage=stage)
    assert there.tune("stop").granted
    assert [command.value for command in there.commands] == [64]
    assert there.said()[-1] == fact("rollback.user_chose", knobs=["micro_batch"])


def test_stopping_before_a_knob_of_a_trial_is_declared_says_what_it_may_be(trying: QuietNode) -> None:
    trying.runs.receive(b"n1", None, Bye(reason="exception", detail="out of memory"))
    trying.hello(nonce="n2", knobs=(LR,))
    trying.look()
    assert trying.tune("stop").state.stand == "off"
    assert trying.said()[-1] == fact("rollback.not_declared_yet", knobs=["micro_batch"])


def test_a_trial_that_cannot_be_set_back_is_reported(trying: QuietNode) -> None:
    trying.run.restarting = True
    trying.tuners.close()
    why = fact("restarting", name="lm")
    assert trying.said()[-1] == fact("rollback.impossible", knob="micro_batch", value=32, why=why)


def test_a_tuner_that_breaks_on_the_way_back_from_a_trial_is_back(trying: QuietNode) -> None:
    trying.script.end("reverted", fact("trial.harmful"))
    trying.look()
    trying.script.plan.append(ZeroDivisionError())
    trying.look()
    assert trying.tuner.stand == "off"
    assert [command.value for command in trying.commands] == [64, 32]


def test_a_tuner_that_breaks_after_a_trial_was_kept_leaves_it(trying: QuietNode) -> None:
    trying.script.end("kept")
    trying.look()
    trying.script.plan.append(ZeroDivisionError())
    trying.look()
    assert [command.value for command in trying.commands] == [64]


def cut_off(trying: QuietNode) -> QuietNode:
    """Another daemon, which has just read that the tuner is in a trial that is in effect."""
    there = QuietNode(state=trying.run.state)
    there.now = trying.now
    there.node.book.restore(trying.node.book.of(RUN))
    there.hello(knobs=trying.run.state.knobs, step=0)
    return there


def test_a_tuner_that_breaks_before_a_trial_is_undone_undoes_it(
    trying: QuietNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = cut_off(trying)
    monkeypatch.setattr("hoptui.daemon.handlers.tuners.observe", lambda *_: 1 / 0)
    there.look()
    assert (there.tuner.stand, there.tuner.tried[-1].result) == ("off", "unfinished")
    assert [command.value for command in there.commands] == [32]


def test_a_tuner_that_is_stopped_before_a_trial_is_undone_undoes_it_and_stays_off(trying: QuietNode) -> None:
    there = cut_off(trying)
    there.run.restarting = True
    there.look()
    assert (there.tuner.stand, there.commands) == ("waiting", [])
    there.run.restarting = False
    answer = there.tune("stop")
    assert (answer.granted, answer.state.stand, answer.state.tried[-1].result) == (True, "off", "unfinished")
    assert [command.value for command in there.commands] == [32]
    there.outcome(there.commands[0])
    for _ in range(3):
        there.look()
    assert (there.tuner.stand, there.value()) == ("off", 32)
    assert (len(there.scripts), there.script.scenes, there.tuners.at_work) == (1, [], False)


def test_a_trial_that_is_known_to_be_in_effect_only_after_a_stop_is_undone(quiet: QuietNode) -> None:
    there = QuietNode(state=on_its_way(quiet, "sent").run.state)
    there.now = quiet.now
    there.look()
    assert there.tune("stop").state.stand == "off"
    assert there.commands == [], "the run has not told the next daemon its values"
    there.hello(knobs=(structs.replace(MICRO, value=64), LR))
    there.look()
    assert [command.value for command in there.commands] == [32]
    assert not there.tuners.at_work


@pytest.mark.parametrize("stage", STAGES)
def test_so_does_one_whose_trial_is_still_on_its_way(quiet: QuietNode, stage: str) -> None:
    there = cut_off(on_its_way(quiet, stage))
    there.look()
    assert there.tune("stop").state.stand == "off"
    assert [command.value for command in there.commands] == [32]
    there.commands.insert(0, quiet.commands[0])
    assert applied(there, late=False) == [32]
    assert applied(there, late=True) == [64, 32]
