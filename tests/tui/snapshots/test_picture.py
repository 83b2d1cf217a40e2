"""Pictures as text: what of a screen is in them, what a change of it changes, and that each belongs to a test."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.segment import Segment
from rich.style import Style

from tests.tui.snapshots import picture
from tests.tui.snapshots.conftest import GOLDEN, SHOWN, check, difference, golden_file

DARK, LIGHT = "on #121212", "on #eeeeee"
STYLES = "── styles ".ljust(80, "─")


def row(*parts: tuple[str, str], ground: str = DARK) -> list[Segment]:
    return [Segment(text, Style.parse(f"{style} {ground}")) for text, style in parts]


def drawn(*themes: Sequence[list[Segment]]) -> list[str]:
    """The lines of a picture of ten columns."""
    named = ("dark", "light")[: len(themes)]
    return picture.text("title", named, [picture.view((10, len(themes[0])), themes)]).splitlines()


def styles(*rows: list[Segment]) -> list[str]:
    """The lines of styles alone."""
    lines = drawn(rows)
    return [line.split()[1] for line in lines[lines.index(STYLES) + 1 : lines.index("", lines.index(STYLES))]]


def test_text_is_there_as_it_is_read_and_under_it_a_letter_for_each_style() -> None:
    lines = drawn([row(("busy ", "#ff0000"), ("92 %   ", "bold #00ff00"))])
    assert lines[0] == "title"
    assert lines[3] == "busy 92 %"
    assert lines[5].split() == ["1", "a5b7"]
    assert lines[-2:] == ["a  dark #ff0000 on #121212", "b  dark bold #00ff00 on #121212"]


def test_another_colour_of_one_theme_changes_the_legend_alone() -> None:
    def seen(light: str) -> list[str]:
        return drawn([row(("ab", "#ff0000"), ("cd", ""))], [row(("ab", light), ("cd", ""), ground=LIGHT)])

    before, now = seen("#ff0000"), seen("#880000")
    changed = [(one, two) for one, two in zip(before, now, strict=True) if one != two]
    assert [two.split(" │ ")[1] for _, two in changed] == ["light #880000 on #eeeeee"]


def test_a_blank_has_no_colour_of_its_own_but_a_ground_and_a_line_under_it() -> None:
    assert styles(row(("a", "#ff0000"), (" ", "#00ff00"), ("b", "#ff0000"))) == ["a3"]
    assert styles(row(("  ", "#00ff00"), ("b", "#ff0000"))) == ["a3"]
    assert styles(row(("a", "#ff0000"), (" ", "underline"), ("b", "#ff0000"))) == ["a1b1a1"]
    assert styles([*row(("a", "#ff0000")), *row((" ", ""), ground=LIGHT)]) == ["a1b1"]
    assert styles(row(("   ", "#ff0000")), row(("   ", "#00ff00"))) == ["a3"]


def test_rows_that_look_alike_are_one_line_and_wide_characters_two_cells() -> None:
    lines = drawn([row(("ab", "#ff0000"))] * 3 + [row(("漢", "#ff0000"))])
    at = lines.index(STYLES)
    assert [line.split() for line in lines[at + 1 : at + 2]] == [["1-4", "a2"]]


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
        if name.startswith("test_") and "snapshot" in inspect.signature(found).parameters
    }
    there, wanted = set(GOLDEN.glob("*")), {golden_file(test) for test in tests}
    if request.config.getoption("update_snapshots"):
        for old in there - wanted:
            old.unlink()
    else:
        assert there == wanted
