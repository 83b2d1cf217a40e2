"""The wheel: taken, renewed, given back, lost and stolen, as one dashboard sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hoptui.protocol.messages import LeaseState, Origin
from hoptui.tui.snapshot import View
from hoptui.tui.wheel import Wheel

MakeScene = Callable[..., Any]
RUN = "3f2a9c10"
ANA = Origin(user="ana", pid=4121, client="dashboard")
BO = Origin(user="bo", pid=5, client="dashboard")


def look(scene: Any) -> View:
    store = scene.client.store
    return View(store, scene.client.link, store.run(RUN), store.vital(RUN), store.now(), 0.0, 0.0)


def granted(holder: Origin = ANA, viewer: str = "me", left_s: float = 15.0) -> LeaseState:
    return LeaseState(run=RUN, holder=holder, viewer=viewer, left_s=left_s, granted=True)


class Desk:
    """A wheel, a clock that is a number, and a daemon that answers what the test says."""

    def __init__(self, scene: Any) -> None:
        self.scene = scene.live()
        self.wheel = Wheel(self.scene.client)

    def answer(self, lease: LeaseState, now: float) -> list[str]:
        self.scene.client.store.apply_lease(lease)
        return self.wheel.poll(now)

    def state(self, now: float) -> tuple[bool, str, float] | None:
        held = self.wheel.state(look(self.scene), now)
        return (held.mine, held.holder.user, held.left_s) if held else None

    @property
    def asked(self) -> list[str]:
        return [op for _, op, _ in self.scene.client.leases]


def test_it_is_mine_only_once_the_daemon_says_so_and_is_renewed(scene: MakeScene) -> None:
    desk = Desk(scene())
    desk.wheel.take(RUN, 0.0)
    assert (desk.asked, desk.state(0.1), desk.wheel.held) == (["take"], None, [])
    assert desk.answer(granted(), 0.2) == []
    assert desk.state(1.0) == (True, "ana", 14.2)
    assert desk.wheel.held == [RUN]
    desk.wheel.poll(4.0)
    assert desk.asked == ["take"]
    desk.wheel.poll(5.1)
    assert desk.asked == ["take", "renew"]
    desk.answer(granted(), 5.2)
    assert desk.state(16.0) == (True, "ana", 5.2 + 15 - 16)


def test_it_is_given_back(scene: MakeScene) -> None:
    desk = Desk(scene())
    desk.wheel.take(RUN, 0.0)
    desk.answer(granted(), 0.1)
    desk.scene.update(run={"lease": granted()})
    desk.wheel.give_back(RUN)
    assert desk.asked == ["take", "release"]
    assert desk.answer(LeaseState(run=RUN, granted=True), 0.2) == []
    assert desk.state(0.3) is None, "though the node's state may still name this dashboard"
    desk.wheel.poll(60.0)
    assert desk.asked == ["take", "release"]
    assert desk.answer(granted(), 61.0) == []
    assert desk.state(61.0) is None, "an answer to a renewal that was on its way"


def test_a_refusal_is_told_and_nothing_is_renewed(scene: MakeScene) -> None:
    desk = Desk(scene())
    desk.wheel.take(RUN, 0.0)
    refused = LeaseState(
        run=RUN, holder=BO, viewer="bo", left_s=9.0, reason="bo (pid 5) has the wheel for 9 s more"
    )
    assert desk.answer(refused, 0.1) == ["you do not have the wheel: bo (pid 5) has the wheel for 9 s more"]
    assert desk.wheel.poll(30.0) == []
    assert (desk.asked, desk.wheel.held) == (["take"], [])


def test_another_one_s_wheel_is_shown_until_it_runs_out(scene: MakeScene) -> None:
    desk = Desk(scene())
    desk.scene.update(run={"lease": granted(BO, "bo", 9.0)})
    assert desk.state(100.0) == (False, "bo", 9.0)
    assert desk.state(103.0) == (False, "bo", 6.0)
    held = desk.wheel.state(look(desk.scene), 103.0)
    assert str(held) == "bo (pid 5) has the wheel for 6 s more: others are refused"
    assert desk.state(109.5) is None
    desk.scene.update(run={"lease": granted(BO, "bo", 15.0)})
    assert desk.state(110.0) == (False, "bo", 15.0), "it was renewed"


def test_a_renewal_that_is_refused_is_told(scene: MakeScene) -> None:
    desk = Desk(scene())
    desk.wheel.take(RUN, 0.0, steal=True)
    desk.answer(granted(), 0.1)
    lost = LeaseState(run=RUN, reason="the wheel was not yours any more")
    desk.wheel.poll(5.2)
    assert desk.asked == ["steal", "renew"]
    assert desk.answer(lost, 5.3) == ["you do not have the wheel: the wheel was not yours any more"]
    assert desk.state(5.3) is None
    assert desk.wheel.held == []


def test_a_wheel_that_another_has_taken_is_gone_before_its_next_renewal(scene: MakeScene) -> None:
    desk = Desk(scene())
    desk.scene.update(run={"lease": granted(BO, "bo", 9.0)})
    desk.wheel.take(RUN, 0.0, steal=True)
    assert desk.answer(granted(), 0.1) == []
    assert desk.wheel.poll(0.2) == [], "the node's word is of before"
    assert desk.state(0.2) == (True, "ana", 14.9)
    desk.scene.update(run={"lease": granted(ANA, "me", 15.0)})
    assert desk.wheel.poll(1.0) == []
    desk.scene.update(run={"lease": granted(BO, "bo", 15.0)})
    assert desk.wheel.poll(2.0) == ["bo (pid 5) has taken the wheel"]
    assert desk.state(2.0) == (False, "bo", 15.0)
    assert desk.wheel.poll(60.0) == []
    assert desk.asked == ["steal"], "nothing is renewed any more"


def test_without_answers_it_is_asked_for_again_and_then_given_up(scene: MakeScene) -> None:
    desk = Desk(scene())
    desk.wheel.take(RUN, 0.0)
    assert desk.wheel.poll(5.0) == []
    assert desk.asked == ["take", "take"]
    assert desk.wheel.poll(15.0) == ["nobody answered: you do not have the wheel"]
    desk.wheel.take(RUN, 20.0)
    desk.answer(granted(), 20.1)
    assert desk.wheel.poll(35.2) == ["the wheel is lost: it could not be renewed"]
    assert desk.state(35.2) is None


def test_the_answer_to_a_renewed_pause_is_none_to_the_wheel(scene: MakeScene) -> None:
    desk = Desk(scene())
    desk.wheel.take(RUN, 0.0)
    assert desk.answer(LeaseState(run=RUN, granted=True), 0.1) == []
    assert desk.state(0.2) is None
    desk.answer(granted(), 0.3)
    desk.answer(LeaseState(run=RUN, granted=True), 0.4)
    assert desk.state(0.5) == (True, "ana", 14.8)
