"""What charts say: series in words, values at the crosshair, marks, legends, and how runs lie beside each
other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hoptui.model.reference_run import MILLI, IterationIndex
from hoptui.protocol.messages import Event
from hoptui.tui.charts.grid import Board, Chart, Pick
from hoptui.tui.charts.plot import Curve
from hoptui.tui.screens.charts import content
from hoptui.tui.screens.charts.axes import Side, StepAxis, TimeAxis, counterpart
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import width_of
from tests import factories
from tests.golden import Golden, sheet

MakeScene = Callable[..., Any]
SECOND = 1_000_000_000
START = 1_000 * SECOND
RUN = "3f2a9c10"
NAN = math.nan


def view_of(there: Any) -> View:
    store = there.client.store
    return View(store, there.client.link, store.run(RUN), store.vital(RUN), START, 1_780_000_000.0, 100.0)


@pytest.fixture
def view(scene: MakeScene) -> View:
    return view_of(scene(gpus=2).live().history())


def test_every_series_is_listed_in_words_the_run_first(view: View, golden: Golden) -> None:
    listed = content.catalog(view)
    assert listed[0].pick == Pick(f"run/{RUN}", "env_steps_per_s")
    titles = [entry.title for entry in listed]
    golden(titles)
    assert len(set(titles)) == len(titles)
    assert not any(entry.pick.metric == "throttle" for entry in listed)  # a bit mask is no curve


@pytest.mark.parametrize(
    ("source", "metric", "text", "axis"),
    [
        ("gpu/GPU-0", "power_w", "612 W", "W"),
        ("gpu/GPU-0", "memory_used_bytes", "612 GiB", "GiB"),
        (f"run/{RUN}", "env_steps_per_s", "612 env steps/s", "env steps/s"),
        (f"run/{RUN}", "iteration_s", "612 s", "s"),
        (f"run/{RUN}", "policy_loss", "612", ""),
        ("gpu/gone", "power_w", "612 W", "W"),
    ],
)
def test_values_have_the_unit_of_their_axis(
    view: View, source: str, metric: str, text: str, axis: str
) -> None:
    entry = content.described(view, Pick(source, metric))
    assert entry.axis_unit == axis
    assert entry.text(612.0).replace("10 m 12 s", "612 s") == text
    assert entry.text(NAN) == entry.text(None) == "–"


def test_a_range_has_its_unit_once(view: View) -> None:
    power = content.described(view, Pick("gpu/GPU-0", "power_w"))
    assert power.range_text(612.0, 640.0) == "612…640 W"
    assert power.range_text(640.1, 640.2) == "640 W"
    steps = content.described(view, Pick(f"run/{RUN}", "env_steps_per_s"))
    assert steps.range_text(73e3, 102e3) == "73.0 k…102 k env steps/s"
    assert steps.spread_text(73e3, 80e3, 102e3) == "80.0 k env steps/s (73.0 k…102 k)"
    assert power.spread_text(640.1, 640.1, 640.2) == "640 W"


CURVE = Curve(
    "x", "1", [0, 10, 20, 30, 40, 50], [0, 1, 2, NAN, 4, 5], [0, 1, 3, NAN, 4, 5], [0, 1, 2.5, NAN, 4, 5]
)


@pytest.mark.parametrize(
    ("x", "known"),
    [
        (-6, None),
        (0, (0, 0, 0)),
        (18, (2, 2.5, 3)),
        (12, (1, 1, 1)),
        (24, (2, 2.5, 3)),
        (33, None),
        (38, (4, 4, 4)),
        (60, (5, 5, 5)),
        (90, None),
    ],
)
def test_the_value_at_a_place_is_the_newest_unless_it_is_before_a_gap_or_long_ago(
    x: int, known: tuple[float, float, float] | None
) -> None:
    assert content.reading(CURVE, x, 4) == known


def test_nothing_is_read_from_nothing() -> None:
    assert content.reading(Curve("x", "1", [], [], []), 5, 1) is None


def test_knob_changes_and_events_are_marks_and_an_alarm_is_drawn_over_them(scene: MakeScene) -> None:
    there = scene(gpus=1).live().history()
    alarm = Event(
        seq=5, t=START - 5 * SECOND, wall=0.0, kind="xid", text="x", level="alarm", source="gpu/GPU-0"
    )
    other = Event(seq=6, t=START - 4 * SECOND, wall=0.0, kind="note", text="another run's", run="other")
    there.tell(events=(alarm, other))
    view = view_of(there)
    found = content.marks(view, TimeAxis(view))
    assert [mark.ink for mark in found] == ["dim", "dim", "mark", "mark", "bad"]
    assert [mark.sign for mark in found] == ["", "", "", "", "!"]  # its colour alone would not tell it
    assert found[-1].x == alarm.t


def test_a_legend_has_room_for_every_series_if_need_be_without_names(view: View) -> None:
    picks = [Pick("gpu/GPU-0", name) for name in ("sm_active", "tensor_active", "dram_active")]
    found = content.entries(view, Chart(picks))
    told = [("81 %", "80 %")] * 3
    for width in (110, 60, 34):
        lines = content.legend(found, told, others=None, width=width, most=1)
        assert len(lines) == 1
        assert sum(span.text == "━" for span in lines[0]) == 3
        assert width_of(lines[0]) <= width
    beside = content.legend(found, told, others=("a", "b"), width=110, most=3)
    assert sum(span.text == "━" for line in beside for span in line) == 6
    spoken = [span.text.strip() for line in beside for span in line]
    assert spoken.count("b") == 3, "each series of the other run has its name"


def test_a_legend_keeps_its_names_and_says_how_many_series_have_no_room(view: View, golden: Golden) -> None:
    picks = [Pick("gpu/GPU-0", name) for name in ("sm_active", "tensor_active", "dram_active")]
    found = content.entries(view, Chart(picks))
    told = [("0.8…0.9 %", ""), ("0.02…0.03 %", ""), ("0.1 %", "")]

    def legend(width: int) -> str:
        (line,) = content.legend(found, told, others=None, width=width, most=1)
        return " ".join("".join(span.text for span in line).replace("━", "").split())

    golden(sheet({f"{width} columns": legend(width) for width in (80, 60, 42, 34, 24, 18)}))


def test_a_value_is_told_with_its_unit_or_without_but_never_cut(view: View) -> None:
    found = content.entries(view, Chart([Pick("gpu/GPU-0", "power_w")]))
    told = [("160…244 W", "")]
    for width in range(14, 70):
        (line,) = content.legend(found, told, others=None, width=width, most=1)
        assert width_of(line) <= width
        value = "".join(span.text for span in line if span.ink == "strong")
        assert value in ("160…244 W", "≤244 W", "≤244", "")


def test_a_unit_that_the_name_tells_is_told_once(view: View, golden: Golden) -> None:
    found = content.entries(view, Chart([Pick(f"run/{RUN}", "env_steps_per_s")]))
    (line,) = content.legend(found, [("501 k env steps/s", "")], others=None, width=70, most=1)
    golden(["".join(span.text for span in line)])
    assert content.units(found) == ""


def test_the_unit_of_some_series_is_not_told_as_that_of_all(view: View) -> None:
    run = f"run/{RUN}"
    mixed = content.entries(view, Chart([Pick(run, "loss"), Pick(run, "iteration_s")]))
    assert content.units(mixed) == "no unit · s"
    assert content.units(mixed[:1]) == ""


def test_names_of_runs_are_whole_or_say_which_side_it_is(view: View, golden: Golden) -> None:
    found = content.entries(view, Chart([Pick("gpu/GPU-0", "power_w")]))
    told, others = [("633 W", "300…399 W")], ("ppo-cartpole", "ppo-recorded")
    seen = {}
    for width in (70, 36):
        (line,) = content.legend(found, told, others=others, width=width, most=1)
        seen[f"{width} columns"] = "".join(span.text for span in line)
    golden(sheet(seen))


def test_series_are_told_apart_by_what_differs(view: View) -> None:
    two_gpus = content.entries(view, Chart([Pick("gpu/GPU-0", "power_w"), Pick("gpu/GPU-1", "power_w")]))
    assert content.title(two_gpus) == "power · 2 series"
    assert content.names(two_gpus) == ["GPU 0", "GPU 1"]
    mixed = content.entries(view, Chart([Pick("gpu/GPU-0", "power_w"), Pick("gpu/GPU-1", "busy")]))
    assert content.names(mixed) == ["power", "busy"]


def test_shares_reach_from_0_to_100_but_not_on_a_logarithmic_axis(view: View) -> None:
    shares = content.entries(view, Chart([Pick("gpu/GPU-0", "busy"), Pick("host", "cpu_percent")]))
    assert content.bounds(shares, log=False) == (0.0, 100.0)
    assert content.bounds(shares, log=True) is None
    process = content.entries(view, Chart([Pick(f"process/{RUN}", "cpu_percent")]))
    assert content.bounds(process, log=False) is None  # of one core: may be more than 100


def test_without_a_gpu_the_host_is_charted(scene: MakeScene) -> None:
    board = Board()
    content.fill(board, view_of(scene().live()))
    assert [chart.picks for chart in board.charts][-1] == [Pick("host", "cpu_percent")]


def test_the_counterpart_of_a_series_is_that_of_the_other_run(view: View) -> None:
    assert view.run is not None
    other = msgspec.structs.replace(view.run, run="other", gpus=("GPU-9",))
    assert counterpart(Pick(f"run/{RUN}", "loss"), view.run, other) == Pick("run/other", "loss")
    assert counterpart(Pick(f"rank/{RUN}/3", "loss"), view.run, other) == Pick("rank/other/3", "loss")
    assert counterpart(Pick("gpu/GPU-0", "busy"), view.run, other) == Pick("gpu/GPU-9", "busy")
    assert counterpart(Pick("gpu/GPU-1", "busy"), view.run, other) is None  # not the run's
    assert counterpart(Pick("host", "load_1m"), view.run, other) == Pick("host", "load_1m")


def test_two_runs_lie_beside_each_other_from_their_starts_and_by_iteration(
    scene: MakeScene, view: View
) -> None:
    there = scene(gpus=1)
    there.client.ns += 500 * SECOND
    there.live()
    other = view_of(there)
    side = Side(other.store, other.run)
    pick = Pick(f"run/{RUN}", "episode_return")
    axis = TimeAxis(view, [side])
    first, newest, _ = axis.extent([pick])
    own, [beside] = axis.own(pick), axis.beside(pick)
    assert own is not None
    assert beside is not None
    assert own.columns(first, newest, 240).high == beside.columns(first, newest, 240).high
    steps, theirs = view.store.steps(view.source), other.store.steps(other.source)
    assert steps is not None
    assert theirs is not None
    by_step = StepAxis(view, IterationIndex(steps), [(side, IterationIndex(theirs))])
    own, [beside] = by_step.own(pick), by_step.beside(pick)
    assert own is not None
    assert beside is not None
    one, two = (s.columns(1100 * MILLI, 1200 * MILLI, 400) for s in (own, beside))
    assert one == two
    assert len(one.t) > 150


def test_every_run_of_eight_has_a_stroke_of_its_own() -> None:
    for others in range(8):
        [of_runs] = content.strokes(1, others)
        assert len(of_runs) == len(set(of_runs)) == others + 1
    assert [len(of_runs) for of_runs in content.strokes(3, 2)] == [1, 1, 1]
    assert content.strokes(3, 1)[0] == (content.Stroke("1"), content.Stroke("dim"))
    assert content.strokes(2, 1)[1] == (content.Stroke("3"), content.Stroke("4"))


def test_runs_of_the_same_name_are_called_by_their_ids() -> None:
    named = [factories.run(run, name) for run, name in (("id1", "a"), ("id2", "b"), ("id3", "a"))]
    assert content.sides(named[0], named[1:]) == ("id1", "b", "id3")


def test_the_legend_of_eight_runs_fits(view: View) -> None:
    [entry] = content.catalog(view)[:1]
    called = tuple(f"a-long-name-of-run-{i}" for i in range(8))
    for width in (30, 76, 116, 196):
        lines = content.legend([entry], [("0.5",) * 8], others=called, width=width, most=3)
        assert len(lines) <= 3
        assert all(width_of(line) <= width for line in lines)
    ends = "".join(span.text for line in lines for span in line)
    assert all(name in ends for name in called)


def test_the_legend_of_several_series_tells_that_only_this_run_is_drawn(view: View) -> None:
    found = content.catalog(view)[:2]
    told = [("0.5",), ("0.6",)]
    alone = content.legend(found, told, others=("a", "b", "c"), width=110, most=3)
    assert any(span.text == content.ALONE for line in alone for span in line)
