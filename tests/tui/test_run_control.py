"""Commands from keys: what is sent, when it may be, how a pause is kept, what an undo undoes."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest

from hoptui.client.client import Link
from hoptui.tui.run_control import RENEW_S, Sent, Steering, left_paused
from hoptui.tui.snapshot import View
from tests.client import fake_daemon
from tests.golden import Golden, sheet

MakeScene = Callable[..., Any]
RUN = "3f2a9c10"
SECOND = 1_000_000_000


def look(scene: Any) -> View:
    client = scene.client
    store = client.store
    return View(store, client.link, store.run(RUN), store.vital(RUN), store.now(), 0.0, 0.0)


def settle(scene: Any, command: str, **fields: Any) -> None:
    client = scene.client
    fake_daemon.settle(client.store, command, client.ns, **fields)


def undo_last(scene: Any, steering: Steering) -> None:
    record, problem = steering.undoable(look(scene))
    assert record is not None, problem
    assert steering.undo(look(scene), record).command


def test_a_change_names_the_version_that_was_seen(scene: MakeScene) -> None:
    there = scene().live()
    view = look(there)
    knob = view.knob("grad_accum")
    assert knob is not None
    Steering(there.client).set(view, knob, 8, knob.version)
    (command,) = there.client.sent
    assert (command.verb, command.run, command.knob) == ("set", RUN, "grad_accum")
    assert (command.value, command.expect_version) == (8, 3)


@pytest.mark.parametrize("state", ["connecting", "lost", "failed"])
def test_nothing_may_be_sent_without_a_link(scene: MakeScene, state: Any) -> None:
    there = scene().live()
    assert Steering(there.client).may(look(there), "pause")
    there.client.link = Link(state, 0.0)
    assert not Steering(there.client).may(look(there), "pause")


def steer_every_way(there: Any, view: View) -> list[Sent]:
    """What each verb says of a view that was taken after the person had agreed."""
    steering, knob = Steering(there.client), there.run.knobs[3]
    record, _ = steering.undoable(view)
    return [
        steering.set(view, knob, 1e-3, 0),
        steering.undo(view, record or there.client.store.commands["a"]),
        steering.pause_or_resume(view, 0.0),
        steering.checkpoint(view),
        steering.stop(view, 1),
    ]


def test_what_was_agreed_to_too_late_is_refused_by_every_verb(scene: MakeScene, golden: Golden) -> None:
    there = scene().live().history()
    seen = look(there)
    there.update(vital={"state": "exited"})
    shown = {}
    for what, view in {
        "a lost link": seen._replace(link=Link("lost", 0.0)),
        "an unknown run": seen._replace(run=None),
        "a dashboard that only looks": seen._replace(read_only=True),
        "a run that has ended": look(there),
    }.items():
        (refusal,) = set(steer_every_way(there, view))
        assert refusal.refused
        assert refusal == Sent(refused=refusal.refused)
        shown[what] = refusal.refused
    assert there.client.sent == []
    golden(sheet(shown))


def test_the_process_that_was_asked_about_is_stopped_and_not_the_next(
    scene: MakeScene, golden: Golden
) -> None:
    there = scene().live()
    steering = Steering(there.client)
    there.update(run={"epoch": 2})
    refusal = steering.stop(look(there), 1)
    assert (refusal.command, there.client.sent) == ("", [])
    golden([refusal.refused])
    assert steering.stop(look(there), 2) == Sent("c0")


def test_an_ended_run_takes_no_command_and_a_run_only_what_it_can(scene: MakeScene) -> None:
    there = scene().live()
    steering = Steering(there.client)
    there.update(run={"can": ("set", "pause", "resume", "stop")})
    assert not steering.may(look(there), "checkpoint")
    there.update(vital={"state": "exited"})
    assert not steering.may(look(there), "set")


def test_a_pause_is_renewed_until_it_is_over(scene: MakeScene) -> None:
    there = scene().live()
    steering = Steering(there.client)
    assert steering.pause_or_resume(look(there), 0.0).command == "c0"
    settle(there, "c0")
    there.update(vital={"state": "paused"})
    for now in (1.0, RENEW_S - 1, RENEW_S, RENEW_S + 1, 2 * RENEW_S):
        steering.renew(now)
    assert there.client.renewed == [RUN] * 2
    assert steering.held == [RUN]
    assert steering.pause_or_resume(look(there), 50.0).command == "c1"
    steering.renew(100.0)
    assert len(there.client.renewed) == 2
    assert [c.verb for c in there.client.sent] == ["pause", "resume"]


def test_a_pause_that_somebody_ended_is_let_go(scene: MakeScene) -> None:
    there = scene().live()
    steering = Steering(there.client)
    steering.pause_or_resume(look(there), 0.0)
    settle(there, "c0")
    steering.renew(1.0)
    assert steering.held == [RUN], "the run may not have told yet that it is paused"
    there.client.ns += 10 * SECOND
    steering.renew(RENEW_S)
    assert (steering.held, there.client.renewed) == ([], [])


def test_a_refused_pause_is_not_renewed(scene: MakeScene) -> None:
    there = scene().live()
    steering = Steering(there.client)
    steering.pause_or_resume(look(there), 0.0)
    settle(there, "c0", stage="rejected", code="stale_epoch")
    steering.renew(RENEW_S)
    assert (steering.held, there.client.renewed) == ([], [])


def test_undo_sets_the_last_change_back_and_then_the_one_before(scene: MakeScene, golden: Golden) -> None:
    there = scene().live().history()
    steering = Steering(there.client)
    undo_last(there, steering)
    first = there.client.sent[0]
    assert (first.knob, first.value, first.expect_version) == ("num_envs", 1024, 1)
    there.client.ns += SECOND
    undo_last(there, steering)
    second = there.client.sent[1]
    assert (second.knob, second.value) == ("lr", 1e-3)
    record, problem = steering.undoable(look(there))
    assert record is None
    golden([problem])


def test_only_the_change_that_was_asked_about_is_undone(scene: MakeScene, golden: Golden) -> None:
    there = scene().live().history()
    steering = Steering(there.client)
    asked, _ = steering.undoable(look(there))
    assert asked is not None
    there.record(id="c", ago_s=1.0, knob="clip_range", before=0.1, wanted=0.2, effective=0.2)
    golden([steering.undo(look(there), asked).refused])
    assert there.client.sent == []


def test_an_undo_that_was_refused_can_be_tried_again(scene: MakeScene) -> None:
    there = scene().live().history()
    steering = Steering(there.client)
    undo_last(there, steering)
    settle(there, "c0", stage="rejected", code="version_conflict")
    undo_last(there, steering)
    assert [c.knob for c in there.client.sent] == ["num_envs", "num_envs"]


def test_undo_says_when_there_is_nothing_to_set_back(scene: MakeScene, golden: Golden) -> None:
    shown: dict[str, str] = {}
    there = scene().live()
    there.record(id="a", knob="grad_accum", before=4, wanted=8, effective=8)
    steering = Steering(there.client)
    unchanged, shown["it has that value"] = steering.undoable(look(there))
    there.record(id="b", ago_s=5.0, knob="gone", before=1, wanted=2, effective=2)
    unknown, shown["the knob is gone"] = steering.undoable(look(there))
    assert (unchanged, unknown, there.client.sent) == (None, None, [])
    golden(sheet(shown))


def test_the_way_to_end_a_pause_is_no_strangers_words(scene: MakeScene, golden: Golden) -> None:
    there = scene().live()
    there.update(run={"name": "a run; rm -rf ~"})
    store = there.client.store
    shown = {
        "a name for a shell": left_paused(store, RUN),
        "on another node": left_paused(store, RUN, "gpu07"),
        "gone meanwhile": left_paused(store, "ffff6666"),
    }
    for told in shown.values():
        resume, run = shlex.split(told.rpartition(": hoptui ")[2])
        assert resume == "resume"
        assert run == ("ffff6666" if told is shown["gone meanwhile"] else there.run.name)
    golden(sheet(shown))
