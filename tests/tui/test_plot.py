"""A chart as text: the raster, axes, marks, crosshair and gaps, in every set of characters."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.presentation.scales import typical_range
from hoptui.tui.charts.line_chart import smoothed
from hoptui.tui.charts.plot import AXIS_WIDTH, Curve, Mark, Paper, plot, plot_apart
from hoptui.tui.charts.raster import ACROSS, BAND, CROSS, MARK, PEAK, Picture, Trace, place, rasterize
from hoptui.tui.styled_text import Line, lay, width_of

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


def test_a_band_fills_only_the_cells_that_no_line_goes_through() -> None:
    band = Trace([0, 0, 0, 0], [11, 11, 11, 11], [4, 4, 4, 4])
    drawn = rasterize([band], 2, 3, 0, 11)
    assert drawn.text == picture("⣿⣿", "⣀⣀", "⣿⣿")
    assert drawn.owner == [bytes((BAND, BAND)), b"\1\1", bytes((BAND, BAND))]


def test_a_mark_and_the_crosshair_go_through_a_band() -> None:
    band = Trace([0] * 6, [7] * 6, [0] * 6)
    drawn = rasterize([band], 3, 2, 0, 7, marks={0: ""}, cross=1)
    assert drawn.text == picture("┆│⣿", "⣀⣀⣀")


def test_values_beyond_the_axis_are_marked_at_its_edge() -> None:
    spike = Trace([3, 3, -9, 3], [4, 99, 4, 4], [3, 3, 3, 3])
    drawn = rasterize([spike], 2, 3, 0, 7)
    assert (drawn.text[0], drawn.owner[0][0]) == ("▴ ", PEAK)
    assert (drawn.text[2], drawn.owner[2][1]) == (" ▾", PEAK)


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


def test_the_middle_of_a_column_is_the_mean_of_its_middles() -> None:
    placed = place([1, 2, 60], [5, 1, 4], [6, 2, 9], 0, 100, 2, [5.5, 1.5, 5])
    assert placed == Trace([1, 4], [6, 9], [3.5, 5])


def test_an_axis_follows_typical_values_and_not_spikes() -> None:
    level = [26.0 + i % 3 for i in range(200)]
    least, most = typical_range([13.0] * 200, [102.0] * 200, level) or (0.0, 0.0)
    assert 18 <= least <= 26
    assert 28 <= most <= 36


def test_an_axis_holds_a_ramp_and_a_step_whole() -> None:
    ramp = [float(i) for i in range(100)]
    assert typical_range(ramp, ramp, ramp) == (0, 99)
    step = [1.0] * 90 + [50.0] * 10
    assert typical_range(step, step, step) == (1, 50)


def test_an_axis_leaves_rare_typical_values_far_away_out() -> None:
    noise = random.Random(1)
    level = [100 + noise.random() for _ in range(200)]
    level[7] = 5000.0
    _, most = typical_range(level, level, level) or (0.0, 0.0)
    assert most <= 130


def test_an_axis_of_nothing_known_is_empty() -> None:
    assert typical_range([NAN], [NAN], [NAN]) == ()


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


S = 1_000_000_000


def curve(values: list[float], label: str = "speed", ink: str = "1") -> Curve:
    return Curve(label, ink, [i * S for i in range(len(values))], values, values)


def drawn(lines: list[Line], width: int, *, plain: bool = False) -> list[str]:
    return ["".join(piece for piece, _ in lay(line, width, plain=plain)).rstrip() for line in lines]


RISE_AND_FALL = curve([0, 10, 20, 30, NAN, NAN, NAN, 30, 20, 10])


def test_a_spike_is_cut_off_and_its_height_is_written() -> None:
    level = [20.0 + i / 10 for i in range(20)]
    high = [*level]
    high[14] = 400.0
    spiked = Curve("speed", "1", [i * S for i in range(20)], level, high, level)
    shown = drawn(plot([spiked], Paper(0, 20 * S), 47, 6), 47)
    assert "▴ up to 400" in shown[0]
    assert not any("400" in row[:7] for row in shown), "no label of the axis"
    assert "^ up to 400" in drawn(plot([spiked], Paper(0, 20 * S), 47, 6), 47, plain=True)[0]


def test_a_logarithmic_axis_with_zeros_in_its_band_shows_its_line() -> None:
    middle = [1.0, 10.0, 100.0, 1000.0] * 5
    zeros = Curve("loss", "1", [i * S for i in range(20)], [0.0] * 20, middle, middle)
    labels = [row[:6].strip() for row in drawn(plot([zeros], Paper(0, 20 * S, log=True), 47, 9), 47)]
    assert {"1", "1 k"} <= set(labels)


TEN_S = Paper(0, 10 * S, ticks=((5 * S, "−5 s"), (0, "−10 s")), end="now", marks=(Mark(5 * S),))


def test_axes_marks_and_a_gap() -> None:
    assert drawn(plot([RISE_AND_FALL], TEN_S, 27, 5), 27) == [
        "    40┤          ┆",
        "      │    ⢀⠔⠁   ┆   ⠑⢄",
        "      │  ⡠⠊⠁     ┆     ⠉⠢⡀",
        "     0┤⡠⠊        ┆",
        "       −10 s   −5 s     now",
    ]


def test_the_same_without_utf8() -> None:
    assert drawn(plot([RISE_AND_FALL], TEN_S, 27, 5), 27, plain=True) == [
        "    40+          :",
        "      |    .:'   :   '.",
        "      |  .''     :     ':.",
        "     0+.'        :",
        "       -10 s   -5 s     now",
    ]


def test_a_logarithmic_axis_keeps_zero_at_its_bottom_edge_and_unknown_as_a_gap() -> None:
    values = curve([0, 0, 1, 10, 100, 1000, NAN, NAN, 1000, 1000])
    lines = plot([values], Paper(0, 10 * S, log=True), 27, 8)
    assert drawn(lines, 27) == [
        "   1 k┤         ⢠⠃     ⠉⠉⠁",
        "      │        ⢀⠇",
        "   100┤       ⢀⠎",
        "      │       ⡜",
        "    10┤      ⡜",
        "      │     ⡜",
        "     1┤⣀⣀⣀⣀⡰⠁",
        "   log",
    ]


def trained(values: list[float]) -> Curve:
    """A curve with a middle, one value each second."""
    return Curve("loss", "1", [i * S for i in range(len(values))], values, values, values)


def test_values_over_many_powers_of_ten_get_a_logarithmic_axis_by_themselves() -> None:
    falling = [10.0 ** (2 - i / 10) for i in range(60)]
    paper = Paper(0, 60 * S, end="now")
    shown = drawn(plot([trained(falling)], paper, 47, 9), 47)
    assert [row[:6].strip() for row in shown if row[:6].strip()] == ["100", "1", "0.01", "1e-4", "log"]
    assert drawn(plot([trained(falling)], paper._replace(log=False), 47, 9), 47)[-1].split() == ["now"]
    near = [1 + value for value in falling]
    assert drawn(plot([trained(near)], paper, 47, 9), 47)[-1].split() == ["now"], "two powers of ten"
    with_zeros = [0.0] * 10 + falling
    assert drawn(plot([trained(with_zeros)], paper, 47, 9), 47)[-1].split() == ["now"], "zero is typical"


def test_charts_above_each_other_name_their_logarithmic_axes() -> None:
    falling, flat = trained([10.0 ** (2 - i / 10) for i in range(60)]), trained([5.0] * 60)
    shown = drawn(plot_apart([[falling], [flat._replace(label="flat")]], Paper(0, 60 * S), 60, 13), 60)
    assert "loss · log" in shown[0]
    assert "log" not in "".join(shown[6:])


@pytest.mark.parametrize("log", [False, True])
def test_nothing_above_zero_is_drawn_on_a_linear_axis(log: bool) -> None:
    lines = plot([curve([-2, -1])], Paper(0, 2 * S, log=log), 27, 5)
    assert drawn(lines, 27)[0].startswith("     0┤")


def test_the_crosshair_and_marks_have_their_inks() -> None:
    paper = Paper(0, 10 * S, marks=(Mark(2 * S, "bad"), Mark(3 * S)), cross=6 * S)
    top = plot([curve([0, 0])], paper, 27, 4)[0]
    assert [
        (span.text, span.ink) for span in top if span.text.strip() and span.ink in ("bad", "mark", "strong")
    ] == [
        ("┆", "bad"),
        ("┆", "mark"),
        ("│", "strong"),
    ]


def test_the_name_of_a_mark_is_written_beside_it_where_nothing_else_is() -> None:
    low = [0.0] * 60 + [9.0] * 40
    curve = Curve("x", "1", range(100), low, low, low)
    marks = (Mark(10, name="lr"), Mark(12, name="batch"), Mark(75, name="workers"), Mark(95, name="clip"))
    text = drawn(plot([curve], Paper(0, 100, marks=marks), 57, 6), 57)
    assert "┆batch" in text[0]
    assert not any("lr" in row for row in text), "the next mark is in its place"
    assert "workers" in text[1], "a line is in the first row there"
    assert not any("clip" in row for row in text), "the chart ends there"


def test_groups_of_curves_stand_one_above_the_other_each_with_its_axis() -> None:
    def level(value: float, ink: str) -> Curve:
        return Curve(ink, ink, range(100), [value] * 100, [value] * 100, [value] * 100)

    groups = [[level(5, "1"), level(6, "2")], [level(1000, "3")], [level(0.5, "4")]]
    paper = Paper(0, 100, end="now", marks=(Mark(50, sign="!", name="lr"),))
    lines = plot_apart(groups, paper, 60, 13)
    text = drawn(lines, 60)
    assert len(text) == 13
    assert {width_of(line) for line in lines} == {60}
    assert text[-1].endswith("now")
    assert sum("lr" in row for row in text) == 1, "a name is written once"
    inks = [{span.ink for span in line} & set("1234") for line in lines]
    assert [set().union(*inks[i : i + 4]) for i in (0, 4, 8)] == [{"1", "2"}, {"3"}, {"4"}]
    assert "1.05 k" in text[4]
    single = drawn(plot_apart(groups, paper, 60, 4), 60)
    assert [row.split("│")[0].strip() for row in single[:3]] == ["1", "3", "4"], "their names"


def test_groups_without_a_row_for_each_share_one_raster() -> None:
    levels = [(ink, [float(ink)] * 10) for ink in "1234"]
    curves = [Curve(ink, ink, range(10), level, level, level) for ink, level in levels]
    assert plot_apart([[curve] for curve in curves], Paper(0, 10), 40, 4) == plot(curves, Paper(0, 10), 40, 4)


def test_a_smoothed_line_is_a_moving_average_that_a_gap_begins_anew() -> None:
    raw = [0.0, 10.0, 10.0, NAN, 4.0, 4.0]
    curve = Curve("x", "1", [0, 10, 20, 30, 40, 50], raw, raw, raw)
    line = smoothed(curve, 10.0)
    assert (line.low, line.high) == (raw, raw), "the band has the values"
    assert line.middle is not None
    assert line.middle[:3] == pytest.approx([0, 10 * (1 - math.exp(-1)), 10 * (1 - math.exp(-2))])
    assert math.isnan(line.middle[3])
    assert line.middle[4:] == [4.0, 4.0]


def test_labels_without_room_are_left_out_and_the_first_stay() -> None:
    paper = Paper(0, 10 * S, ticks=((5 * S, "05-04"), (6 * S, "12:00:00"), (S, "11:58")))
    assert drawn(plot([curve([1, 2])], paper, 27, 4), 27)[-1] == "       11:58   05-04"


def test_every_line_fills_the_width() -> None:
    for width in (15, 27, 80):
        lines = plot([curve([1, 2, 3])], Paper(0, 3 * S, end="now"), width, 6)
        assert [width_of(line) for line in lines] == [width] * 6


def test_fixed_bounds_and_two_inks() -> None:
    lines = plot([curve([100, 100]), curve([0, 0], "power", "2")], Paper(0, 2 * S, bounds=(0, 100)), 20, 4)
    text = drawn(lines, 20)
    assert text[0].startswith("   100┤⠉")
    assert text[2].startswith("     0┤⣀")
    inks = {span.ink for line in lines for span in line if "⠉" in span.text or "⣀" in span.text}
    assert inks == {"1", "2"}


def test_too_small_is_empty() -> None:
    assert plot([curve([1, 2])], Paper(0, 2 * S), 10, 3) == [(), (), ()]
    assert plot([curve([1, 2])], Paper(0, 2 * S), 40, 1) == [()]


def test_a_dashed_line_has_gaps_that_stay_on_the_axis() -> None:
    def drawn(x0: int) -> set[int]:
        """The places of the axis, one a dot column, at which something is drawn."""
        curve = Curve("a", "1", range(300), [1.0] * 300, [1.0] * 300, dashed=True)
        paper = Paper(x0, x0 + 180)
        _, _, *spans = plot([curve], paper, AXIS_WIDTH + 90, 2)[0]
        cells = "".join(span.text for span in spans)
        bits = [(ord(c) - 0x2800) if ord(c) >= 0x2800 else 0 for c in cells]
        left, right = 0x47, 0xB8
        return {x0 + 2 * i + side for i, b in enumerate(bits) for side in (0, 1) if b & (left, right)[side]}

    here, later = drawn(0), drawn(20)
    assert {x for x in here if x >= 20} == {x for x in later if x < 180}
    gaps = set(range(180)) - here
    assert 180 * 0.25 < len(gaps) < 180 * 0.4
