"""The charts of the charts screen: their time range, zoom, pan and crosshair, and their arrangement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.tui.charts.grid import LEAST_CELLS, LEAST_ROWS, MOST, PAGE, Board, Extent, Pick, Timeline, arrange
from tests.golden import Golden, sheet

FIRST, NEWEST = 1_000, 11_000
THERE = Extent(FIRST, NEWEST, NEWEST)


def later(ns: int) -> Extent:
    return Extent(FIRST, NEWEST + ns, NEWEST + ns)


def test_live_follows_and_frozen_stands_still() -> None:
    line = Timeline(100, 10)
    assert (line.mode, line.edges(THERE)) == ("live", (10_900, 11_000))
    assert line.edges(later(5)) == (10_905, 11_005)
    line.freeze(THERE)
    assert (line.mode, line.edges(later(500))) == ("frozen", (10_900, 11_000))
    line.freeze(later(500))
    assert (line.mode, line.edges(later(500))) == ("live", (11_400, 11_500))


def test_all_history_grows_with_the_run() -> None:
    line = Timeline(100, 10)
    line.all()
    assert (line.mode, line.edges(THERE)) == ("all", (FIRST, NEWEST))
    assert line.edges(later(50)) == (FIRST, NEWEST + 50)
    line.freeze(THERE)
    assert (line.mode, line.edges(later(50))) == ("frozen", (FIRST, NEWEST))


def test_zooming_out_ends_at_everything_and_in_at_the_least() -> None:
    line = Timeline(100, 10)
    for _ in range(10):
        line.zoom(2, THERE)
    assert line.mode == "all"
    for _ in range(20):
        line.zoom(0.5, THERE)
    assert (line.mode, line.edges(THERE)) == ("live", (10_990, 11_000))


def test_zoom_keeps_the_crosshair_where_it_is_on_screen() -> None:
    line = Timeline(1_000, 10)
    line.cross = 10_200
    line.zoom(0.5, THERE)
    assert (line.mode, line.edges(THERE)) == ("frozen", (10_100, 10_600))
    line.zoom(0.5, THERE, at=10_600)
    assert line.edges(THERE) == (10_350, 10_600)


def test_panning_stops_at_the_first_and_is_live_at_the_newest() -> None:
    line = Timeline(1_000, 10)
    line.pan(-0.5, THERE)
    assert (line.mode, line.edges(THERE)) == ("frozen", (9_500, 10_500))
    line.pan(-100, THERE)
    assert line.edges(THERE) == (1_000, 2_000)
    line.pan(100, THERE)
    assert line.mode == "live"


def test_the_crosshair_appears_at_the_end_and_takes_the_view_along() -> None:
    line = Timeline(1_000, 10)
    line.move_cross(0.1, THERE)
    assert line.cross == NEWEST
    line.move_cross(-0.9, THERE)
    assert (line.cross, line.mode) == (10_100, "live")
    line.move_cross(-0.2, THERE)
    assert (line.cross, line.mode, line.edges(THERE)) == (9_900, "frozen", (9_900, 10_900))
    line.move_cross(5, THERE)
    assert (line.cross, line.mode) == (NEWEST, "live")


def test_another_axis_shows_the_same_part() -> None:
    line = Timeline(1_000, 10)
    line.pan(-1, THERE)
    line.cross = 9_600
    line.remap(lambda x: x * 2, THERE, least=4)
    assert (line.cross, line.edges(Extent(2 * FIRST, 2 * NEWEST, 2 * NEWEST))) == (19_200, (18_000, 20_000))
    line.remap(lambda x: None, THERE, least=4)
    assert line.cross is None
    assert line.mode == "all"


def test_a_longer_run_beside_is_seen_to_its_end_and_live_is_where_this_one_is() -> None:
    there = Extent(0, 1_000, 5_000)
    line = Timeline(100, 10)
    assert line.edges(there) == (900, 1_000)
    line.pan(2, there)
    assert (line.mode, line.edges(there)) == ("frozen", (1_100, 1_200))
    line.all()
    assert line.edges(there) == (0, 5_000)
    line.zoom(0.5, there)  # around this run's newest
    assert line.edges(there) == (500, 3_000)
    line.pan(100, there)
    assert (line.mode, line.edges(there)) == ("frozen", (2_500, 5_000))


moves = st.tuples(st.sampled_from(["zoom", "pan", "cross", "freeze", "all", "live"]), st.floats(-3, 3))


@given(st.lists(moves, max_size=30), st.integers(0, 10_000), st.integers(1, 10_000), st.integers(0, 500))
def test_it_never_leaves_what_there_is(
    found: list[tuple[str, float]], first: int, length: int, beyond: int
) -> None:
    line, there = Timeline(500, 10), Extent(first, first + length, first + length + beyond)
    for name, by in found:
        match name:
            case "zoom":
                line.zoom(2**by, there)
            case "pan":
                line.pan(by, there)
            case "cross":
                line.move_cross(by, there)
            case "freeze":
                line.freeze(there)
            case "all":
                line.all()
            case "live":
                line.live()
        x0, x1 = line.edges(there)
        assert x1 - x0 >= 10
        assert x1 <= there.last
        assert line.cross is None or line.cross <= there.last


def test_a_run_that_has_just_begun_fills_nine_tenths_of_what_is_seen() -> None:
    line = Timeline(10_000, 10)
    young = Extent(1_000, 2_300, 2_300)
    for extent in (young, Extent(1_000, 3_600, 3_600)):
        x0, x1 = line.edges(extent)
        assert (line.mode, x1) == ("live", extent.newest)
        assert 0.9 * (x1 - x0) <= extent.newest - extent.first <= x1 - x0
    line.pan(-0.5, young)
    assert line.mode == "live"  # all of it is in sight
    assert line.edges(later(0)) == (1_000, 11_000)  # and it goes on to what it is meant to show
    x0, _ = Timeline(10_000, 10).edges(Extent(0, 20, 20))
    assert 625 <= 20 - x0 <= 625 / 0.9, "no less than a sixteenth"
    assert Timeline(10_000, 10).edges(Extent(0, 10, 10)) == (-9_990, 10)  # nothing is known yet


def board(count: int) -> Board:
    made = Board()
    for i in range(count):
        made.add([Pick("host", f"m{i}")])
    return made


def contents(made: Board) -> list[list[str]]:
    return [[pick.metric for pick in chart.picks] for chart in made.charts]


def test_a_series_is_charted_once_and_then_chosen() -> None:
    made = board(3)
    assert made.add([Pick("host", "m0")]) == ""
    assert (len(made.charts), made.index) == (3, 0)


def test_series_are_put_together_and_apart(golden: Golden) -> None:
    shown: dict[str, str] = {}
    made = board(3)
    assert made.merge() == ""
    assert (contents(made), made.index) == ([["m0"], ["m1", "m2"]], 1)
    assert made.join(Pick("host", "m9")) == ""
    shown["a series that is in the chart"] = made.join(Pick("host", "m9"))
    assert made.split() == ""
    assert contents(made) == [["m0"], ["m1"], ["m2"], ["m9"]]
    made.index = 0
    shown["the first chart with the one before"] = made.merge()
    shown["a chart of one series in parts"] = made.split()
    assert contents(made) == [["m0"], ["m1"], ["m2"], ["m9"]], "what is refused changes nothing"
    golden(sheet(shown))


def test_a_chart_holds_eight_series(golden: Golden) -> None:
    made = Board()
    made.add([Pick("host", f"m{i}") for i in range(8)])
    refused = made.join(Pick("host", "x"))
    made.add([Pick("host", "y")])
    assert made.merge() == refused
    assert [len(chart.picks) for chart in made.charts] == [8, 1]
    golden([refused])


def test_there_is_an_end_to_charts(golden: Golden) -> None:
    made = board(MOST)
    golden([made.add([Pick("host", "one more")])])
    assert len(made.charts) == MOST


def test_removing_the_last_chart_chooses_the_one_before_and_none_is_left_in_the_end() -> None:
    made = board(2)
    made.remove()
    assert (contents(made), made.index) == ([["m0"]], 0)
    made.remove()
    made.remove()
    assert (made.chosen, made.join(Pick("host", "m"))) == (None, "")


@pytest.mark.parametrize(
    ("count", "size", "columns", "rows"),
    [
        (1, (80, 20), 1, 1),
        (2, (80, 20), 1, 2),
        (4, (80, 20), 2, 2),
        (2, (120, 36), 1, 2),
        (4, (120, 36), 2, 2),
        (6, (120, 36), 3, 2),
        (3, (200, 48), 1, 3),
        (9, (120, 36), 3, 3),
    ],
)
def test_the_grid(count: int, size: tuple[int, int], columns: int, rows: int) -> None:
    grid = arrange(board(count), *size)
    assert (grid.columns, grid.rows) == (columns, rows)


def test_the_last_page_leaves_no_row_empty() -> None:
    made = board(12)
    made.index = 11
    grid = arrange(made, 120, 36)
    assert grid.shown == (9, 10, 11)
    assert (grid.columns, grid.rows) == (2, 2)


def test_one_alone() -> None:
    made = board(4)
    made.alone, made.index = True, 2
    assert arrange(made, 120, 36).shown == (2,)


@given(st.integers(0, MOST), st.integers(0, MOST), st.integers(20, 300), st.integers(4, 100))
def test_the_chosen_chart_is_on_the_page_and_charts_are_no_smaller_than_they_may(
    count: int, index: int, width: int, height: int
) -> None:
    made = board(count)
    made.index = min(index, max(0, count - 1))
    grid = arrange(made, width, height)
    assert len(grid.shown) <= min(PAGE, grid.columns * grid.rows)
    if count:
        assert made.index in grid.shown
    if width >= LEAST_CELLS and height >= LEAST_ROWS:
        assert grid.columns * LEAST_CELLS <= width
        assert grid.rows * LEAST_ROWS <= height
