"""When a GPU that hung is tried again, without I/O."""

from __future__ import annotations

from hoptui.daemon.sampler_supervisor import FORGIVEN_S, Suspects


def test_it_is_tried_again_ever_more_rarely() -> None:
    suspects = Suspects()
    now, pauses = 1000.0, []
    for _ in range(4):
        suspects.hung(3, now)
        assert suspects.left() == (3,)
        pauses.append(suspects.pause_s(3))
        assert suspects.due(now + pauses[-1] - 1) is None
        now += pauses[-1]
        assert suspects.due(now) == 3
    assert pauses == [60.0, 120.0, 300.0, 300.0]


def test_one_that_answers_is_not_left_any_more_but_remembered() -> None:
    suspects = Suspects()
    suspects.hung(1, 0.0)
    suspects.answered(1, 60.0)
    assert suspects.left() == ()
    suspects.hung(1, 100.0)
    assert suspects.pause_s(1) == 120.0
    suspects.answered(1, 220.0)
    suspects.hung(1, 221.0 + FORGIVEN_S)
    assert suspects.pause_s(1) == 60.0


def test_one_whose_process_cannot_be_killed_waits_and_the_next_is_tried() -> None:
    suspects = Suspects()
    suspects.hung(0, 0.0)
    suspects.hung(2, 0.0)
    assert suspects.due(61.0, blocked={0}) == 2
    assert suspects.due(61.0, blocked={0, 2}) is None
