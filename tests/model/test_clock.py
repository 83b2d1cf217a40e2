"""The node's clock, told from the stamps of its answers."""

from __future__ import annotations

from hoptui.model.store import SECOND, NodeClock


class Own:
    t = 500 * SECOND

    def __call__(self) -> int:
        return self.t


def test_the_fastest_answer_counts() -> None:
    own = Own()
    clock = NodeClock(own)
    assert clock.now() == own.t
    clock.heard(9_000 * SECOND)
    assert clock.now() == 9_000 * SECOND
    own.t += SECOND
    clock.heard(9_000 * SECOND + 900)  # was under way for most of a second
    assert clock.now() == 9_001 * SECOND
    own.t += SECOND
    clock.heard(9_002 * SECOND + 50)
    assert clock.now() == 9_002 * SECOND + 50


def test_a_slow_answer_is_old_and_does_not_turn_the_clock_back() -> None:
    own = Own()
    clock = NodeClock(own)
    clock.heard(9_000 * SECOND)
    for _ in range(10):
        own.t += 3 * SECOND
        clock.heard(clock.now() - 2 * SECOND)
    assert clock.now() == 9_030 * SECOND


def test_a_node_that_stood_still_is_followed_within_a_minute() -> None:
    own = Own()
    clock = NodeClock(own)
    clock.heard(9_000 * SECOND)
    for _ in range(70):
        own.t += SECOND
        clock.heard(8_995 * SECOND + own.t - Own.t)
    assert clock.now() == 9_065 * SECOND


def test_another_start_of_the_node_counts_at_once() -> None:
    own = Own()
    clock = NodeClock(own)
    clock.heard(9_000 * SECOND)
    clock.heard(20 * SECOND)
    assert clock.now() == 20 * SECOND
