"""A chart as text: axes, marks, crosshair and gaps, in every set of characters."""

from __future__ import annotations

import math

import pytest

from hoptui.tui.charts.plot import Curve, Mark, Paper, plot
from hoptui.tui.styled_text import Line, lay, width_of

S = 1_000_000_000
NAN = math.nan


def curve(values: list[float], label: str = "speed", ink: str = "1") -> Curve:
    return Curve(label, ink, [i * S for i in range(len(values))], values, values)


def drawn(lines: list[Line], width: int, *, plain: bool = False) -> list[str]:
    return ["".join(piece for piece, _ in lay(line, width, plain=plain)).rstrip() for line in lines]


RISE_AND_FALL = curve([0, 10, 20, 30, NAN, NAN, NAN, 30, 20, 10])
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
        "",
    ]


@pytest.mark.parametrize("log", [False, True])
def test_nothing_above_zero_is_drawn_on_a_linear_axis(log: bool) -> None:
    lines = plot([curve([-2, -1])], Paper(0, 2 * S, log=log), 27, 5)
    assert drawn(lines, 27)[0].startswith("     0┤")


def test_the_crosshair_and_marks_have_their_inks() -> None:
    paper = Paper(0, 10 * S, marks=(Mark(2 * S, "bad"), Mark(3 * S)), cross=6 * S)
    top = plot([curve([0, 0])], paper, 27, 4)[0]
    assert [(span.text, span.ink) for span in top if span.text.strip() and span.ink in ("bad", "mark", "strong")] == [
        ("┆", "bad"), ("┆", "mark"), ("│", "strong"),
    ]  # fmt: skip


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
