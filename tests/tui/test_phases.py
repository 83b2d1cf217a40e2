"""Where an iteration goes: shares that add up to the truth, also when a phase is not in every iteration."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hoptui.tui.panels import phases
from hoptui.wire.columns import pack
from hoptui.wire.messages import RankState
from tests.tui.conftest import RUN, SECOND, Scene


def test_a_rare_long_phase_leaves_nothing_unaccounted_for(scene: Callable[..., Scene]) -> None:
    made = scene().live(history=False)
    rows = []
    for i in range(100):
        row = {"phase/rollout": 0.02, "phase/update": 0.13, "iteration_s": 0.15}
        if i % 10 == 9:
            row |= {"phase/evaluation": 0.45, "iteration_s": 0.60}
        rows.append((made.client.ns - (100 - i) * SECOND // 5, i, row))
    made.tell(columns=(pack(f"run/{RUN}", rows),))
    view = made.app().view(RUN)
    whole = phases.iteration_s(view)
    assert whole == pytest.approx(0.195, rel=0.05)
    found = {phase.path: phase.seconds for phase in phases.measured(view).phases}
    assert found.keys() == {"rollout", "update", "evaluation"}  # and no "other"
    assert sum(found.values()) == pytest.approx(whole, rel=0.02)


def test_the_slowest_rank_is_named_where_one_is_slower(scene: Callable[..., Scene]) -> None:
    made = scene().live(history=False)
    assert phases.slowest(made.app().view(RUN)) == ""
    made.update(run={"world": 3, "ranks": (RankState(rank=1, pid=5), RankState(rank=2, pid=6))})
    stamps = [made.client.ns - (20 - i) * SECOND for i in range(20)]

    def tell(source: str, seconds: float) -> None:
        made.tell(columns=(pack(source, [(t, i, {"iteration_s": seconds}) for i, t in enumerate(stamps)]),))

    tell(f"run/{RUN}", 0.200)
    tell(f"rank/{RUN}/1", 0.204)
    assert phases.slowest(made.app().view(RUN)) == ""
    tell(f"rank/{RUN}/2", 0.250)
    assert phases.slowest(made.app().view(RUN)) == "slowest: rank 2, 250 ms"


def test_in_a_small_terminal_the_one_line_tells_how_phases_are_named(scene: Callable[..., Scene]) -> None:
    made = scene().live(history=False)
    made.tell(columns=(pack(f"run/{RUN}", [(made.client.ns, 1, {"iteration_s": 0.15})]),))
    (line,) = phases.short(made.app().view(RUN), 78)
    assert "".join(span.text for span in line) == 'run.phase("rollout") in its loop names phases'
