from __future__ import annotations

import math

import msgspec

from hoptui.client.conversation import PATIENCE_S, Outbox
from hoptui.protocol.messages import Command


def command(number: int = 1, ttl_s: float = 600.0) -> Command:
    return Command(id=f"c{number}", run="r", epoch=1, verb="set", knob="lr", value=1.0, ttl_s=ttl_s)


def sent_at(box: Outbox, seconds: range) -> list[int]:
    return [s for s in seconds if box.due(float(s))]


def test_the_same_command_is_sent_again_until_it_is_answered() -> None:
    box = Outbox()
    box.add(command(), 0.0)
    assert sent_at(box, range(14)) == [0, 1, 2, 4, 8, 12]
    box.answered("c1", final=False)
    assert sent_at(box, range(14, 30)) == []
    assert box.unanswered() == {}


def test_commands_keep_their_order() -> None:
    box = Outbox()
    for number in (3, 1, 2):
        box.add(command(number), 0.0)
    assert [c.id for c in box.due(0.0)] == ["c3", "c1", "c2"]


def test_a_command_without_an_answer_is_resent_before_a_later_one_to_the_same_run() -> None:
    box = Outbox()
    box.add(command(1), 0.0)
    assert [c.id for c in box.due(0.0)] == ["c1"]
    box.add(command(2), 0.05)
    assert [c.id for c in box.due(0.05)] == ["c2"], "the answer may still come"
    box.add(msgspec.structs.replace(command(3), run="other"), 0.5)
    assert [c.id for c in box.due(0.5)] == ["c3"]
    box.answered("c2", final=False)
    box.add(command(4), 0.5)
    assert [c.id for c in box.due(0.5)] == ["c1", "c4"]


def test_a_new_connection_hears_of_everything_unsettled() -> None:
    box = Outbox()
    for number in (1, 2, 3):
        box.add(command(number), 0.0)
    box.due(0.0)
    box.answered("c1", final=False)
    box.answered("c2", final=True)
    box.reconnected(5.0)
    assert [c.id for c in box.due(5.0)] == ["c1", "c3"]
    assert list(box.unanswered()) == ["c1", "c3"]


def test_another_daemon_hears_that_an_earlier_one_may_have_passed_a_command_on() -> None:
    box = Outbox()
    box.add(command(1), 0.0)
    box.due(0.0)
    box.add(command(2), 0.5)
    box.reconnected(1.0)
    assert [c.repeated for c in box.due(1.0)] == [False, False], "the same daemon knows what it did"
    box.add(command(3), 1.5)
    box.reconnected(2.0, another=True)
    assert [(c.id, c.repeated) for c in box.due(2.0)] == [("c1", True), ("c2", True), ("c3", False)]


def test_nobody_is_surprised_by_an_old_command() -> None:
    box = Outbox()
    box.add(command(1, ttl_s=10.0), 0.0)
    box.add(command(2, ttl_s=10.0), 0.0)
    box.add(command(3, ttl_s=0.0), 0.0)
    box.due(0.0)
    box.answered("c2", final=False)
    assert box.given_up(9.9) == []
    assert box.next_at() == 1.0
    assert [c.id for c in box.given_up(10.0)] == ["c1"]
    assert box.given_up(10.0) == []
    assert [c.id for c in box.due(PATIENCE_S - 0.1)] == ["c3"]
    assert [c.id for c in box.given_up(PATIENCE_S)] == ["c3"]


def test_what_no_daemon_has_answered_is_not_carried_out_much_later() -> None:
    box = Outbox()
    for number in (1, 2):
        box.add(command(number, ttl_s=600.0), 0.0)
    box.due(0.0)
    box.answered("c2", final=False)
    assert [c.id for c in box.given_up(PATIENCE_S)] == ["c1"]
    box.reconnected(100.0)
    assert [c.id for c in box.due(100.0)] == ["c2"], "a daemon has had it: the run may have it too"
    assert [c.id for c in box.given_up(100.0 + PATIENCE_S)] == ["c2"]


def test_another_daemon_is_told_what_was_sent_over_any_connection_before() -> None:
    box = Outbox()
    box.add(command(), 0.0)
    box.due(0.0)
    box.reconnected(1.0)  # to the same daemon, which is killed before it is asked again
    box.add(command(2), 1.0)
    box.reconnected(2.0, another=True)
    assert [(c.id, c.repeated) for c in box.due(2.0)] == [("c1", True), ("c2", False)]


def test_an_empty_outbox_never_wakes_anybody() -> None:
    box = Outbox()
    assert box.next_at() == math.inf
    box.answered("unheard", final=True)
    assert box.due(0.0) == []
