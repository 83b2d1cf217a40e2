"""Pictures as text: what of a screen is in them, what a change of it changes, and that each belongs to a
test."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.segment import Segment
from rich.style import Style

from hoptui.tui import preferences
from tests.tui.snapshots import palette, picture
from tests.tui.snapshots.conftest import GOLDEN, SHOWN, check, difference, golden_file

DARK, LIGHT = "on #121212", "on #eeeeee"
STYLES = "── styles, 10 × "


def row(*parts: tuple[str, str], ground: str = DARK) -> list[Segment]:
    return [Segment(text, Style.parse(f"{style} {ground}")) for text, style in parts]


def drawn(*screens: Sequence[list[Segment]]) -> list[str]:
    """The lines of a picture of ten columns."""
    named = ("dark", "light")[: len(screens)]
    view = picture.view((10, len(screens[0])), named, screens)
    return picture.text("title", named[0], [view]).splitlines()


def styles(*rows: list[Segment]) -> list[str]:
    """The lines of styles alone."""
    lines = drawn(rows)
    return lines[next(at for at, line in enumerate(lines) if line.startswith(STYLES)) + 1 :]


def test_a_picture_has_the_text_and_a_name_for_each_styled_span() -> None:
    lines = drawn([row(("busy ", "#949494"), ("92 %  ", "#d0d0d0"), ("up", "#5fd7af"))])
    assert lines[0] == "title"
    assert lines[3] == "busy 92 %  up"
    assert lines[5] == "── styles, 10 × 1, dark ".ljust(80, "─")
    assert lines[6:] == ["row 1: 1-5 dim/veiled · 12-13 good/ink 3"]


def test_only_one_size_has_styles() -> None:
    screens = [[row(("a", "#5fd7af"))]]
    views = [picture.view(size, ["dark"], screens) for size in ((80, 24), picture.STYLED, (200, 50))]
    for some, styled in ((views, "120 × 40"), (views[:1], "80 × 24"), (views[::2], "200 × 50")):
        lines = picture.text("title", "dark", some).splitlines()
        assert [line.split(", ")[1] for line in lines if "styles" in line] == [styled]
        assert lines.count("row 1: 1 good/ink 3") == 1


def test_a_style_is_named_after_its_ink_its_ground_and_its_attributes() -> None:
    def named(style: str, theme: str = "dark") -> str:
        return palette.name(Style.parse(style), theme, blank=False)

    assert named("#d0d0d0 on #121212") == "text"
    assert named("bold #eeeeee on #303030") == "strong on cursor"
    assert named("bold underline #5fd7af on #1c1c1c") == "good/ink 3 on surface bold underline"
    assert named("#00875f on #eeeeee", "light") == "good/ink 3"
    assert named("#449278 on #121212") == "good/ink 3 covered"
    assert named("#326554 on #151515") == "good/ink 3 on surface covered twice"
    assert named("bold #010203 on #040506") == "#010203 on #040506 bold"
    assert named("#eeeeee on #121212") == "#eeeeee", "the ink of this colour is bold"
    assert named("bold cyan", "ansi") == "cyan bold"
    assert named("reverse", "none") == "default reverse"


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_every_ink_has_a_name_in_both_themes(theme: str) -> None:
    look = preferences.LOOKS[theme].theme
    inks = preferences.inks({**look.to_color_system().generate(), **look.variables})
    ground = Style(bgcolor=palette.colours(look).grounds[""].rich_color)
    for ink, style in inks.items():
        assert palette.called(ink) in palette.name(style + ground, theme, blank=False).split("/")


def test_a_blank_has_no_colour_of_its_own_but_a_ground_and_a_line_under_it() -> None:
    assert styles(row(("a", "#949494"), (" ", "#5fd7af"), ("b", "#949494"))) == ["row 1: 1-3 dim/veiled"]
    assert styles(row(("  ", "#5fd7af"), ("b", "#949494"))) == ["row 1: 1-3 dim/veiled"]
    underlined = row(("a", "#949494"), (" ", "underline #5fd7af"), ("b", "#949494"))
    assert styles(underlined) == ["row 1: 1 dim/veiled · 2 good/ink 3 underline · 3 dim/veiled"]
    other_ground = [*row(("a", "#949494")), *row((" ", ""), ground="on #303030")]
    assert styles(other_ground) == ["row 1: 1 dim/veiled · 2 on cursor"]
    assert styles(row(("   ", "#949494")), row(("   ", "#5fd7af"))) == []


def test_equal_rows_are_one_line_and_wide_characters_two_cells() -> None:
    rows = [row(("ab", "#949494"))] * 3 + [row(("漢", "#949494"))] + [row(("c", "#949494"))]
    assert styles(*rows) == ["rows 1-4: 1-2 dim/veiled", "row 5: 1 dim/veiled"]


def test_a_theme_without_a_name_for_a_style_fails() -> None:
    dark = [row(("ab", "#5fd7af"))]
    assert drawn(dark, [row(("ab", "#00875f"), ground=LIGHT)]) == drawn(dark)
    with pytest.raises(picture.OtherStyleError, match="'good/ink 3' in dark, '#5fd7af' in light"):
        drawn(dark, [row(("ab", "#5fd7af"), ground=LIGHT)])


def test_a_theme_that_writes_something_else_is_told() -> None:
    with pytest.raises(picture.OtherTextError, match="'ab', another 'ac'"):
        drawn([row(("ab", ""))], [row(("ac", ""))])


def test_a_picture_that_differs_or_has_no_golden_file_fails(tmp_path: Path) -> None:
    golden = tmp_path / "run.txt"
    with pytest.raises(pytest.fail.Exception, match=r"there is no run\.txt"):
        check(golden, "1\n", update=False)
    check(golden, "1\n", update=True)
    check(golden, "1\n", update=False)
    with pytest.raises(pytest.fail.Exception, match="-1\n\\+2"):
        check(golden, "2\n", update=False)


def test_a_long_difference_is_cut() -> None:
    told = difference("", "\n".join(map(str, range(200)))).splitlines()
    assert len(told) == SHOWN + 1
    assert told[-1] == f"… and {203 - SHOWN} lines more"


def test_every_golden_file_is_of_a_test(request: pytest.FixtureRequest) -> None:
    folder = Path(__file__).parent
    tests = {
        name
        for module in pkgutil.iter_modules([str(folder)], "tests.tui.snapshots.")
        for name, found in inspect.getmembers(importlib.import_module(module.name), inspect.isfunction)
        if name.startswith("test_") and {"snapshot", "golden"} & set(inspect.signature(found).parameters)
    }
    there, wanted = set(GOLDEN.glob("*")), {golden_file(test) for test in tests}
    if request.config.getoption("update_snapshots"):
        for old in there - wanted:
            old.unlink()
    else:
        assert there == wanted
