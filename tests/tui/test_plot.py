"""A chart as text: axes, marks and gaps."""

from __future__ import annotations

import math

from hoptui.tui.lines import Line, lay, width_of
from hoptui.tui.widgets.plot import Curve, plot

S = 1_000_000_000
NAN = math.nan


def curve(values: list[float], label: str = "speed", ink: str = "1") -> Curve:
    return Curve(label, ink, [i * S for i in range(len(values))], values, values)


def drawn(lines: list[Line], width: int, *, plain: bool = False) -> list[str]:
    return ["".join(piece for piece, _ in lay(line, width, plain=plain)) for line in lines]


RISE_AND_FALL = curve([0, 10, 20, 30, NAN, NAN, NAN, 30, 20, 10])


def test_axes_marks_and_a_gap() -> None:
    lines = plot([RISE_AND_FALL], 0, 10 * S, 27, 5, marks=[5 * S])
    assert drawn(lines, 27) == [
        "    40┤          ┆         ",
        "      │    ⢀⠔⠁   ┆   ⠑⢄    ",
        "      │  ⡠⠊⠁     ┆     ⠉⠢⡀ ",
        "     0┤⡠⠊        ┆         ",
        "       −10 s   −5 s     now",
    ]


def test_the_same_in_ascii() -> None:
    lines = plot([RISE_AND_FALL], 0, 10 * S, 27, 5, marks=[5 * S], plain=True)
    assert drawn(lines, 27, plain=True) == [
        "    40+          :         ",
        "      |     .'   :   '.    ",
        "      |  .''     :     ''. ",
        "     0+.'        :         ",
        "       -10 s   -5 s     now",
    ]


def test_every_line_fills_the_width() -> None:
    for width in (15, 27, 80):
        lines = plot([curve([1, 2, 3])], 0, 3 * S, width, 6)
        assert [width_of(line) for line in lines] == [width] * 6


def test_fixed_bounds_and_two_inks() -> None:
    lines = plot([curve([100, 100]), curve([0, 0], "power", "2")], 0, 2 * S, 20, 4, bounds=(0, 100))
    text = drawn(lines, 20)
    assert text[0].startswith("   100┤⠉")
    assert text[2].startswith("     0┤⣀")
    inks = {span.ink for line in lines for span in line if "⠉" in span.text or "⣀" in span.text}
    assert inks == {"1", "2"}


def test_too_small_is_empty() -> None:
    assert plot([curve([1, 2])], 0, 2 * S, 10, 3) == [(), (), ()]
    assert plot([curve([1, 2])], 0, 2 * S, 40, 1) == [()]
