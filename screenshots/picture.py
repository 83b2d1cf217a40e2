"""Textual's SVG to PNG. Textual asks for a font of the web; here it is the DejaVu of this machine."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import resvg_py

FONT = "DejaVu Sans Mono"
FILES = ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf", "DejaVuSans.ttf")  # the last one has braille


class NoFontError(Exception):
    """There is no font to draw text with; the text says which one is needed."""


def png(svg: str) -> bytes:
    """The picture of an exported screenshot.

    Raises:
        NoFontError: the DejaVu fonts are not on this machine.
    """
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family:[^;]*", f"font-family: {FONT}", svg)
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, monospace_family=FONT, font_files=_fonts()))


def _fonts() -> list[str]:
    places = [Path("/usr/share/fonts"), Path("/usr/local/share/fonts"), Path.home() / ".local/share/fonts"]
    matplotlib = importlib.util.find_spec("matplotlib")
    if matplotlib and matplotlib.origin:
        places.append(Path(matplotlib.origin).parent / "mpl-data" / "fonts")
    for place in places:
        found = [next(iter(place.rglob(name)), None) for name in FILES]
        if all(found):
            return [str(path) for path in found]
    raise NoFontError("PNG needs the DejaVu fonts (on Debian: apt-get install fonts-dejavu-core)")
