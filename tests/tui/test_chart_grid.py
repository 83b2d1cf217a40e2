"""The charts of the chart screen: which there are, what is in them, how they are laid out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.tui.charts.grid import LEAST_CELLS, LEAST_ROWS, MOST, PAGE, Board, Pick, arrange
from tests.golden import Golden, sheet


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


def test_a_chart_holds_four_series(golden: Golden) -> None:
    made = Board()
    made.add([Pick("host", f"m{i}") for i in range(4)])
    refused = made.join(Pick("host", "x"))
    made.add([Pick("host", "y")])
    assert made.merge() == refused
    assert [len(chart.picks) for chart in made.charts] == [4, 1]
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
        (1, (80, 20), 1, 1), (2, (80, 20), 1, 2), (4, (80, 20), 2, 2), (2, (120, 36), 1, 2), (4, (120, 36), 2, 2),
        (6, (120, 36), 3, 2), (3, (200, 48), 1, 3), (9, (120, 36), 3, 3),
    ],
)  # fmt: skip
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
