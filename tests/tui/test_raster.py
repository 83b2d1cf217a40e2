"""The rasteriser: golden pictures, and what holds for all values."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hoptui.tui.charts.plot import ACROSS, CROSS, MARK, Picture, Trace, place, rasterize

NAN = math.nan


def line(*values: float) -> Trace:
    return Trace(values, values)


def picture(*rows: str) -> list[str]:
    return list(rows)


def test_a_rising_line_in_braille() -> None:
    drawn = rasterize([line(0, 1, 2, 3, 4, 5, 6, 7)], 4, 2, 0, 7)
    assert drawn.text == picture("  ⡠⠊", "⡠⠊  ")
    assert [bytes(row) for row in drawn.owner] == [b"\0\0\1\1", b"\1\1\0\0"]


def test_a_jump_is_joined_into_one_stroke() -> None:
    assert rasterize([line(0, 0, 7, 7)], 2, 2, 0, 7).text == picture(" ⡏", "⣀⠇")


def test_a_gap_stays_empty() -> None:
    assert rasterize([line(0, 0, NAN, NAN, 0, 0)], 3, 1, 0, 1).text == picture("⣀ ⣀")


def test_a_spike_between_two_columns_reaches_the_top() -> None:
    low, high = [0.0] * 6, [0.0, 0.0, 0.0, 9.0, 0.0, 0.0]
    text = rasterize([Trace(low, high)], 3, 2, 0, 9).text
    assert text == picture(" ⢸ ", "⣀⣸⣀")


def test_the_first_trace_owns_a_cell_that_two_share() -> None:
    drawn = rasterize([line(0, 0), line(0, 0, 0, 0)], 2, 1, 0, 1)
    assert drawn.owner == [b"\1\2"]


def test_traces_that_share_cells_own_them_by_turns() -> None:
    three = [line(0, 0, 0, 0, 0, 0, 0, 0) for _ in range(3)]
    assert rasterize(three, 4, 1, 0, 1).owner == [b"\1\2\3\1"]


def test_marks_stand_where_nothing_is_drawn() -> None:
    drawn = rasterize([line(0, 0, 0, 0)], 2, 2, 0, 7, marks={1: "", 7: ""})
    assert drawn == Picture(picture(" ┆", "⣀⣀"), [bytes((0, MARK)), b"\1\1"])


def test_the_sign_of_a_mark_stands_in_its_first_free_cell() -> None:
    drawn = rasterize([line(0, 0, 0, 0)], 2, 3, 0, 11, marks={0: "T", 1: ""})
    assert drawn.text == picture("T┆", "┆┆", "⣀⣀")
    assert drawn.owner[0] == bytes((MARK, MARK))
    assert rasterize([line(7, 7)], 1, 2, 0, 7, marks={0: "T"}).text == picture("⠉", "T"), "below a curve"


def test_the_crosshair_goes_through_marks_and_behind_curves() -> None:
    drawn = rasterize([line(0, 0, 0, 0)], 3, 2, 0, 7, marks={2: ""}, cross=2)
    assert drawn == Picture(picture("  │", "⣀⣀│"), [bytes((0, 0, CROSS)), bytes((1, 1, CROSS))])
    assert rasterize([line(0, 0, 0, 0)], 2, 1, 0, 7, cross=0).text == ["⣀⣀"]


def test_placing_interpolates_between_samples_and_breaks_at_nan() -> None:
    placed = place([5, 45, 60, 95], [0, 4, NAN, 8], [0, 4, NAN, 8], 0, 100, 10)
    assert placed.low[:5] == [0, 1, 2, 3, 4]
    assert all(math.isnan(v) for v in placed.low[5:9])
    assert placed.low[9] == 8


def test_placing_keeps_the_extremes_of_a_column() -> None:
    placed = place([1, 2, 3], [5, 1, 4], [6, 2, 9], 0, 10, 1)
    assert (placed.low, placed.high) == ([1], [9])


values = st.floats(allow_nan=True, allow_infinity=True) | st.floats(-10, 10)


@given(st.lists(values, max_size=40), st.integers(1, 20), st.integers(1, 6))
def test_never_outside_and_no_known_column_is_lost(found: list[float], width: int, height: int) -> None:
    columns = ACROSS * width
    drawn = rasterize([line(*found)], width, height, -5, 5)
    assert len(drawn.text) == len(drawn.owner) == height
    assert all(len(row) == width for row in drawn.text)
    for x, value in enumerate(found[:columns]):
        if not math.isnan(value):
            assert any(row[x * width // columns] != " " for row in drawn.text)
    if all(math.isnan(v) for v in found[:columns]):
        assert set("".join(drawn.text)) <= {" "}


@given(
    st.lists(
        st.tuples(st.integers(-1000, 1000), st.floats(-1e6, 1e6) | st.just(NAN), st.floats(0, 1e6)),
        max_size=60,
    ),
    st.integers(1, 50),
)
def test_placed_values_stay_within_what_was_given(samples: list[tuple[int, float, float]], dots: int) -> None:
    samples.sort(key=lambda s: s[0])
    t, low = [s[0] for s in samples], [s[1] for s in samples]
    high = [s[1] + s[2] for s in samples]
    placed = place(t, low, high, 0, 500, dots)
    inside = [i for i in range(len(t)) if 0 <= t[i] < 500 and not math.isnan(low[i])]
    assert len(placed.low) == len(placed.high) == dots
    if not inside:
        assert all(math.isnan(v) for v in placed.low)
        return
    known = [v for v in placed.high if not math.isnan(v)]
    assert max(known) == max(high[i] for i in inside)
    assert min(v for v in placed.low if not math.isnan(v)) == min(low[i] for i in inside)
