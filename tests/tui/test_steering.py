"""Commands from keys: what is sent, when it may be, how a pause is kept, what an undo undoes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hoptui.tui.steering import RENEW_S, Steering
from hoptui.tui.view import View
from hoptui.viewer.client import Link
from hoptui.wire.messages import Outcome

MakeScene = Callable[..., Any]
RUN = "3f2a9c10"
SECOND = 1_000_000_000


def look(scene: Any) -> View:
    client = scene.client
    store = client.store
    return View(store, client.link, store.run(RUN), store.vital(RUN), store.now(), 0.0, 0.0)


def settle(scene: Any, command: str, **fields: Any) -> None:
    client = scene.client
    client.store.apply_outcome(Outcome(id=command, t=client.ns, **{"stage": "applied", **fields}))


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
    assert steering.pause_or_resume(look(there), 0.0) == "pause"
    settle(there, "c0")
    there.update(vital={"state": "paused"})
    for now in (1.0, RENEW_S - 1, RENEW_S, RENEW_S + 1, 2 * RENEW_S):
        steering.renew(now)
    assert there.client.leases == [(RUN, "renew", "pause")] * 2
    assert steering.held == [RUN]
    assert steering.pause_or_resume(look(there), 50.0) == "resume"
    steering.renew(100.0)
    assert len(there.client.leases) == 2
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
    assert (steering.held, there.client.leases) == ([], [])


def test_a_refused_pause_is_not_renewed(scene: MakeScene) -> None:
    there = scene().live()
    steering = Steering(there.client)
    steering.pause_or_resume(look(there), 0.0)
    settle(there, "c0", stage="rejected", code="lease_held")
    steering.renew(RENEW_S)
    assert (steering.held, there.client.leases) == ([], [])


def test_undo_sets_the_last_change_back_and_then_the_one_before(scene: MakeScene) -> None:
    there = scene().live().history()
    steering = Steering(there.client)
    record, problem = steering.undo(look(there))
    assert (record.id if record else "", problem) == ("b", "")
    first = there.client.sent[0]
    assert (first.knob, first.value, first.expect_version) == ("num_envs", 1024, 1)
    there.client.ns += SECOND
    steering.undo(look(there))
    second = there.client.sent[1]
    assert (second.knob, second.value) == ("lr", 1e-3)
    assert steering.undo(look(there)) == (None, "there is no applied change to undo")


def test_an_undo_that_was_refused_can_be_tried_again(scene: MakeScene) -> None:
    there = scene().live().history()
    steering = Steering(there.client)
    steering.undo(look(there))
    settle(there, "c0", stage="rejected", code="version_conflict")
    steering.undo(look(there))
    assert [c.knob for c in there.client.sent] == ["num_envs", "num_envs"]


def test_undo_says_when_there_is_nothing_to_set_back(scene: MakeScene) -> None:
    there = scene().live()
    there.record(id="a", knob="grad_accum", before=4, wanted=8, effective=8)
    steering = Steering(there.client)
    assert steering.undo(look(there)) == (None, "grad_accum has its value of before already")
    there.record(id="b", ago_s=5.0, knob="gone", before=1, wanted=2, effective=2)
    assert steering.undo(look(there)) == (None, "gone is no longer a knob of this run")
    assert there.client.sent == []
