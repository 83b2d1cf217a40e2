"""The shares of phases over time, stacked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from hoptui.domain.columns import pack
from hoptui.tui.charts.line_chart import latest
from hoptui.tui.charts.plot import Curve, Mark
from hoptui.tui.screens.run import content
from tests.tui.conftest import RUN, SECOND, Scene

MakeScene = Callable[..., Scene]
DOTS, DEEP = 60, 40


def run_of(scene: MakeScene, rows: Iterable[dict[str, float]], every_s: float = 1.0) -> Scene:
    there, made = scene().live(history=False), list(rows)
    end = there.client.ns
    stamped = [(end - int((len(made) - 1 - i) * every_s * SECOND), i, row) for i, row in enumerate(made)]
    there.tell(columns=(pack(f"run/{RUN}", stamped),))
    return there


def layers(there: Scene, span_s: float = 60.0, marks: tuple[Mark, ...] = ()) -> dict[str, Curve]:
    view = there.app().view(RUN)
    found = content.phase_curves(view, latest(view, span_s, DOTS, marks=marks), DOTS, 600, DEEP)
    return {curve.label: curve for curve in found}


def dots(value: float) -> int:
    """The dot of a value, from below."""
    return round(value * (DEEP - 1) / 100)


def drawn(there: Scene, width: int, height: int, span_s: float, *marks: Mark) -> list[str]:
    found = content.phase_layers(there.app().view(RUN), width, height, span_s, marks=marks)
    return ["".join(span.text for span in line) for line in found.lines]


def test_layers_lie_on_each_other_and_change_with_the_shares(scene: MakeScene) -> None:
    before = {"iteration_s": 1.0, "phase/rollout": 0.25, "phase/rollout/env": 0.2, "phase/update": 0.5}
    after = {"iteration_s": 1.0, "phase/rollout": 0.75, "phase/rollout/env": 0.2, "phase/update": 0.25}
    found = layers(run_of(scene, [*[before] * 30, *[after] * 30]))
    assert list(found) == ["rollout", "update", "other"]
    ends = [(dots(found[name].low[0]), dots(found[name].high[0])) for name in found]
    assert ends == [(0, 8), (10, 28), (30, 39)], "a dot between two layers"
    ends = [(dots(found[name].low[-1]), dots(found[name].high[-1])) for name in ("rollout", "update")]
    assert ends == [(0, 28), (30, 39)]
    assert found["other"].low[-1] != found["other"].low[-1], "nothing is left for it"


def test_a_phase_of_some_iterations_takes_its_share_of_the_column(scene: MakeScene) -> None:
    usual = {"iteration_s": 0.1, "phase/update": 0.1}
    rare = {"iteration_s": 0.4, "phase/update": 0.1, "phase/evaluation": 0.3}
    rows = [rare if i % 10 == 9 else usual for i in range(600)]
    found = layers(run_of(scene, rows, every_s=0.1))
    shares = [100 - low for low in found["evaluation"].low[2:-2] if low == low]
    assert shares
    assert sum(shares) / len(shares) == pytest.approx(100 * 0.3 / 1.3, abs=3), (
        "and never as if it were in all"
    )


def test_a_gap_in_the_rows_is_a_gap_in_the_layers(scene: MakeScene) -> None:
    row = {"iteration_s": 1.0, "phase/update": 1.0}
    there = scene().live(history=False)
    now = there.client.ns
    stamps = [now - s * SECOND for s in (*range(60, 40, -1), *range(19, -1, -1))]
    there.tell(columns=(pack(f"run/{RUN}", [(t, i, row) for i, t in enumerate(stamps)]),))
    update = layers(there)["update"]
    unknown = [t for t, low in zip(update.x, update.low, strict=True) if low != low]
    assert unknown
    assert all(now - 40 * SECOND < t < now - 19 * SECOND for t in unknown)


def test_a_long_iteration_fills_the_time_that_it_took(scene: MakeScene) -> None:
    usual = {"iteration_s": 1.0, "phase/update": 1.0}
    long = {"iteration_s": 20.0, "phase/update": 1.0, "phase/evaluation": 19.0}
    there = scene().live(history=False)
    now = there.client.ns
    stamps = [now - s * SECOND for s in (*range(59, 30, -1), 10, *range(9, -1, -1))]
    rows = [(t, i, long if t == now - 10 * SECOND else usual) for i, t in enumerate(stamps)]
    there.tell(columns=(pack(f"run/{RUN}", rows),))
    lines = drawn(there, 67, 5, 60.0)
    across = slice(lines[0].index("┤") + 1, None)
    evaluation = layers(there)["evaluation"]
    seen = [t for t, low in zip(evaluation.x, evaluation.low, strict=True) if low == low]
    assert min(seen) == pytest.approx(now - 29.5 * SECOND, abs=1.5 * SECOND)
    assert max(seen) == pytest.approx(now - 10 * SECOND, abs=1.5 * SECOND)
    assert " " not in lines[3][across].strip(), "and leaves no gap"


def test_a_change_of_a_knob_is_seen_between_the_layers(scene: MakeScene) -> None:
    there = run_of(scene, [{"iteration_s": 1.0, "phase/update": 1.0}] * 120)
    mark = Mark(there.client.ns - 30 * SECOND)
    lines = drawn(there, 60, 6, 60.0, mark)
    assert all(line.count("┆") == 1 for line in lines[:5])
    assert lines[0].lstrip().startswith("100┤")
    assert lines[-1].endswith("now")


def test_iterations_that_could_not_be_told_apart_shorten_the_stretch(scene: MakeScene) -> None:
    slow = run_of(scene, [{"iteration_s": 1.0, "phase/update": 1.0}] * 60)
    assert "−4 min" in drawn(slow, 80, 6, 300.0)[-1]
    fast = run_of(scene, [{"iteration_s": 0.02, "phase/update": 0.02}] * 1500, every_s=0.02)
    axis = drawn(fast, 80, 6, 300.0)[-1]
    assert "min" not in axis
    assert "−10 s" in axis


def test_each_share_is_taken_over_a_part_of_the_width(scene: MakeScene) -> None:
    """So that a phase of every tenth iteration is a layer and not a comb."""
    usual = {"iteration_s": 1.0, "phase/update": 1.0}
    rare = {"iteration_s": 2.0, "phase/update": 1.0, "phase/evaluation": 1.0}
    there = run_of(scene, [rare if i % 10 == 9 else usual for i in range(600)])
    view = there.app().view(RUN)
    found = content.phase_curves(view, latest(view, 600.0, 240), 240, 1200, DEEP)[1]
    known = [dots(low) for low in found.low[20:-20]]
    assert max(known) - min(known) <= 5
    over_s = content.phase_layers(view, 127, 6, 600.0).over_s
    assert over_s == pytest.approx(25.0, rel=0.05)


def test_nothing_is_drawn_where_nothing_is_known_or_there_is_no_room(scene: MakeScene) -> None:
    there = run_of(scene, [{"iteration_s": 1.0, "phase/update": 1.0}] * 60)
    assert drawn(there, 80, 3, 300.0) == []
    assert drawn(there, 7, 6, 300.0) == []
    plain = run_of(scene, [{"iteration_s": 1.0}] * 60)
    assert drawn(plain, 80, 6, 300.0) == []
