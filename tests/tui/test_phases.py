"""Where an iteration goes: shares that add up to the truth, also when a phase is not in every iteration."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable

import pytest

from hoptui.domain.columns import pack
from hoptui.protocol.messages import Buckets, RankState
from hoptui.tui.components import phases
from tests.tui.conftest import RUN, SECOND, Scene, line, rendered


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


def test_no_phase_takes_more_than_the_iterations_that_it_is_a_part_of(scene: Callable[..., Scene]) -> None:
    """Quick iterations, and an evaluation with every twentieth that takes as long as a hundred of them."""
    made = scene().live(history=False)
    rows, t = [], made.client.ns - 30 * SECOND
    for i in range(200):
        row = {"phase/rollout": 0.006, "phase/update": 0.004, "iteration_s": 0.010}
        if i % 20 == 0:
            row |= {"phase/evaluation": 1.0, "iteration_s": 1.010}
        t += round(row["iteration_s"] * SECOND)
        rows.append((t, i, row))
    made.update(vital={"iteration_s": 0.010})
    made.tell(columns=(pack(f"run/{RUN}", rows),))
    split = phases.measured(made.app().view(RUN))
    assert split.whole is not None
    found = {phase.path: phase.seconds for phase in split.phases}
    assert sum(found.values()) == pytest.approx(split.whole, rel=1e-6)
    assert found["evaluation"] == pytest.approx(split.whole - 0.010, rel=1e-6)


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


def test_in_a_small_terminal_a_run_without_phases_has_its_lines_of_code(scene: Callable[..., Scene]) -> None:
    made = scene().live(history=False)
    made.tell(columns=(pack(f"run/{RUN}", [(made.client.ns, 1, {"iteration_s": 0.15})]),))
    assert rendered(phases.short(made.app().view(RUN), 78), 78) == ["where the time goes: asking the daemon"]
    made.sampled({line("wait", 140, "update", "item"): 9})
    assert rendered(phases.short(made.app().view(RUN), 60), 60) == [
        "━ waits for the GPU 100 %",
        "100 %  waits for the GPU  ppo.py:140 update (item)",
    ]


def test_of_what_was_summed_up_before_somebody_came_a_few_iterations_are_asked_for(
    scene: Callable[..., Scene],
) -> None:
    """Half-second summaries of quick iterations with an evaluation now and then say nothing of shares."""
    made = scene().live(history=False)
    made.update(vital={"iteration_s": 0.010})
    t = [made.client.ns - (60 - i) * SECOND // 2 for i in range(60)]
    low, high = array("d", [0.01] * 60).tobytes(), array("d", [0.01, 0.4] * 30).tobytes()
    names = ("iteration_s", "phase/rollout", "phase/evaluation")
    evaluations = array("d", [math.nan, 0.39] * 30).tobytes()
    seed = Buckets(
        id=1,
        source=f"run/{RUN}",
        names=names,
        t=array("q", t).tobytes(),
        step=array("q", range(60)).tobytes(),
        low=(low, low, evaluations),
        high=(high, low, evaluations),
        mean=(low, low, evaluations),
    )
    made.client.store.apply_buckets(seed)
    view = made.app().view(RUN)
    shares = phases.measured(view)
    assert shares.whole is not None
    assert sum(phase.seconds for phase in shares.phases) <= shares.whole + 1e-9
    (look,) = made.client.store.looks(8)
    assert set(look.names) == set(names)
    assert look.points <= 8 * 256
    assert look.t1 - look.t0 < 10 * SECOND

    rows = [(t[-1] + (i + 1) * SECOND // 100, 60 + i, {names[0]: 0.01, names[1]: 0.01}) for i in range(200)]
    made.tell(columns=(pack(f"run/{RUN}", rows),))
    split = phases.measured(made.app().view(RUN))
    assert split.iterations == pytest.approx(200, abs=2), "those that came since are enough"
    assert split.whole == pytest.approx(0.01)
