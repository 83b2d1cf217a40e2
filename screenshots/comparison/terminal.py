"""The screen of a terminal emulator as a picture, on the way that the pictures of Textual take."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.text import Text

BRIGHT = "bright"
NAMES = {"brown": "yellow"}
"""Colours that pyte and rich name differently."""


def svg(screen: Any, title: str) -> str:
    """A `pyte.Screen` as an SVG of rich, which `picture.drawn` takes."""
    console = Console(
        width=screen.columns,
        file=io.StringIO(),
        record=True,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    for y in range(screen.lines):
        console.print(_line(screen, y), no_wrap=True, overflow="crop", crop=True)
    return console.export_svg(title=title)


def of_rows(taken: bytes, columns: int, rows: int) -> Any:
    """A screen of rows with sequences of colours, as tmux gives them: it knows sequences that pyte does
    not."""
    import pyte

    screen = pyte.Screen(columns, rows)
    pyte.ByteStream(screen).feed(b"\r\n".join(taken.splitlines()[:rows]))
    return screen


def _line(screen: Any, y: int) -> Text:
    text = Text()
    for x in range(screen.columns):
        cell = screen.buffer[y][x]
        text.append(cell.data, _style(cell))
    return text


def _style(cell: Any) -> Style:
    return Style(
        color=_colour(cell.fg),
        bgcolor=_colour(cell.bg),
        bold=cell.bold,
        italic=cell.italics,
        underline=cell.underscore,
        reverse=cell.reverse,
    )


def _colour(name: str) -> str | None:
    """The name of a colour in rich; None for that of the terminal."""
    if name == "default":
        return None
    if len(name) == 6 and all(digit in "0123456789abcdef" for digit in name.lower()):
        return f"#{name}"
    plain = name.removeprefix(BRIGHT)
    plain = NAMES.get(plain, plain)
    return f"bright_{plain}" if name.startswith(BRIGHT) else plain
