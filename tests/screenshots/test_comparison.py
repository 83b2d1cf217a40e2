"""The pictures of other monitors: every cell of the emulator, with its colour, comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pyte
import pytest

from benchmarks.terminal_screens import SIZES
from docs._generate.pages import PICTURES
from screenshots import comparison
from screenshots.comparison.__main__ import tools
from screenshots.comparison.terminal import of_rows, svg

FOLDER = Path(comparison.__file__).parent


def text_of(drawn: str) -> str:
    """The text of a picture. Each cell is an element of its own."""
    return "".join(re.findall(r"<text[^>]*clip-path[^>]*>([^<]*)</text>", drawn))


def test_a_screen_comes_out_with_its_text_and_colours() -> None:
    screen = pyte.Screen(20, 3)
    stream = pyte.ByteStream(screen)
    stream.feed(
        b"\x1b[31mred\x1b[0m plain\r\n\x1b[38;5;208;1morange\x1b[0m\r\n\x1b[93;44mbright\x1b[0m \xe2\xa3\xbf"
    )
    drawn = svg(screen, "tool")
    assert "tool" in drawn
    assert text_of(drawn).replace("\n", "") == "redplainorangebright⣿", "blanks are not drawn"
    colours = {colour.lower() for colour in re.findall(r"fill: (#[0-9a-fA-F]{6})", drawn)}
    assert "#ff8700" in colours
    assert len(colours) >= 4, "red, orange, bright yellow and the text of the terminal"


def test_kept_rows_have_their_colours_and_are_cut_to_the_screen() -> None:
    screen = of_rows(b"\x1b[32mbusy\x1b[0m 97 %\nsecond\nthird", 12, 2)
    assert [line.rstrip() for line in screen.display] == ["busy 97 %", "second"]
    assert (screen.buffer[0][0].fg, screen.buffer[0][5].fg) == ("green", "default")


@pytest.mark.parametrize("name", ["black", "red", "brown", "brightblack", "brightbrown", "00afff"])
def test_every_colour_of_the_emulator_is_known(name: str) -> None:
    screen = pyte.Screen(3, 1)
    screen.buffer[0][0] = screen.default_char._replace(data="x", fg=name, bg=name)
    assert "x" in svg(screen, "")


def test_each_picture_of_the_page_is_there_and_no_other() -> None:
    made = {f"{picture.parent.name}/{picture.name}" for picture in FOLDER.glob("*.png")}
    assert made == {picture for picture in PICTURES if "/" in picture}
    names = set(tools(Path()))
    assert {picture.stem.partition("_")[0] for picture in FOLDER.glob("*.png")} <= names
    assert {f"hoptui_{columns}x{rows}.png" for columns, rows in SIZES} <= {
        p.name for p in FOLDER.glob("*.png")
    }
