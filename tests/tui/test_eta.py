"""How long is left: at the pace that the run keeps, evaluations and all, since somebody last changed it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hoptui.client.client import Link
from hoptui.domain.columns import pack
from hoptui.tui.components import header
from tests.tui.conftest import RUN, SECOND, Scene


def tell(made: Scene, ends: list[float]) -> None:
    """Iterations that ended so many seconds ago, the last of them the run's 1,204th."""
    first = 1204 - len(ends) + 1
    rows = [
        (made.client.ns - round(ago * SECOND), first + i, {"iteration_s": 0.01}) for i, ago in enumerate(ends)
    ]
    made.tell(columns=(pack(f"run/{RUN}", rows),))


def left_s(made: Scene) -> float | None:
    return made.app().view(RUN).left_s


def test_evaluations_now_and_then_count(scene: Callable[..., Scene]) -> None:
    made = scene().live(history=False)
    made.update(vital={"iteration_s": 0.01})
    ends, t = [], 0.0
    for i in range(400):
        ends.append(t)
        t += 1.01 if i % 20 == 10 else 0.01
    tell(made, ends[::-1])
    assert left_s(made) == pytest.approx((5000 - 1204) * 0.06, rel=0.1)  # and not a sixth of it


def test_until_there_are_enough_iterations_their_usual_time_counts(scene: Callable[..., Scene]) -> None:
    made = scene().live(history=False)
    assert left_s(made) == pytest.approx((5000 - 1204) * 1.82)
    tell(made, [3.0, 2.0, 1.0])
    assert left_s(made) == pytest.approx((5000 - 1204) * 1.82)


def test_a_pause_and_a_change_begin_it_anew(scene: Callable[..., Scene]) -> None:
    made = scene().live(history=False)
    slow, paused, quick = [230.0 - 2 * i for i in range(40)], 40.0, [30.0 - 0.5 * i for i in range(60)]
    tell(made, [*slow, *quick])
    assert left_s(made) == pytest.approx((5000 - 1204) * 2.3, rel=0.1)
    made.record(id="r", verb="resume", knob="", ago_s=paused)
    assert left_s(made) == pytest.approx((5000 - 1204) * 0.5, rel=0.1)


def test_nothing_is_left_to_say_of_a_run_without_an_end_or_that_is_over(scene: Callable[..., Scene]) -> None:
    assert left_s(scene(total=None).live()) is None
    made = scene().live()
    made.update(run={"exit_reason": "finished"}, vital={"state": "exited"})
    assert left_s(made) is None


def test_while_nothing_is_heard_of_it_nobody_knows(scene: Callable[..., Scene]) -> None:
    made = scene().live(history=False)
    tell(made, [float(ago) for ago in range(60, 0, -1)])
    assert left_s(made) is not None
    made.client.link = Link("lost", 0.0)
    assert left_s(made) is None
    made.client.link = Link("live", 0.0)
    made.update(vital={"state": "unresponsive"})
    assert left_s(made) is None


def test_an_iteration_that_is_no_news_is_dimmed(scene: Callable[..., Scene]) -> None:
    made = scene().live(history=False)

    def ink() -> str:
        line = header.identity(made.app().view(RUN), "", 120)
        return next(span.ink for span in line if span.text == "1 204")

    assert ink() == "strong"
    made.client.link = Link("lost", 0.0)
    assert ink() == "stale"
