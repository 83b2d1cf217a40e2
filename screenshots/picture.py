"""Textual's SVG to PNG and WebP. Textual asks for a font of the web; here it is the DejaVu of this
machine."""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import resvg_py
from PIL import Image

FONT = "DejaVu Sans Mono"
FILES = ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf", "DejaVuSans.ttf")  # the last one has braille
COLOURS = 256


class NoFontError(Exception):
    """There is no font to draw text with; the text says which one is needed."""


class Frame(NamedTuple):
    """A picture of an animation, and for how long it is shown."""

    image: Image.Image
    ms: int


def drawn(svg: str) -> Image.Image:
    """The picture of an exported screenshot, RGBA.

    Only the fonts named here are used, so that every machine draws the same.

    Raises:
        NoFontError: the DejaVu fonts are not on this machine.
    """
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family:[^;]*", f"font-family: {FONT}", svg)
    data = resvg_py.svg_to_bytes(
        svg_string=svg, monospace_family=FONT, font_files=_fonts(), skip_system_fonts=True
    )
    return Image.open(io.BytesIO(bytes(data))).convert("RGBA")


def png(image: Image.Image) -> bytes:
    """A picture in a palette, which is less than half as large and looks the same."""
    data = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(data, "PNG", optimize=True)
    return data.getvalue()


def webp(frames: Sequence[Frame]) -> bytes:
    """An animation that begins again at its end. Without loss: a fourth of what GIF takes, and text stays
    sharp."""
    first, *others = [frame.image for frame in frames]
    data = io.BytesIO()
    first.save(
        data,
        "WEBP",
        save_all=True,
        append_images=others,
        duration=[frame.ms for frame in frames],
        loop=0,
        lossless=True,
        quality=50,  # of lossless: the effort; these are a fifth of the size that Pillow's own choice gives
        method=2,
        kmin=len(frames),  # no frame but the first is a whole one
        kmax=len(frames) + 1,
    )
    return data.getvalue()


def _fonts() -> list[str]:
    places = [Path("/usr/share/fonts"), Path("/usr/local/share/fonts"), Path.home() / ".local/share/fonts"]
    matplotlib = importlib.util.find_spec("matplotlib")
    if matplotlib and matplotlib.origin:
        places.append(Path(matplotlib.origin).parent / "mpl-data" / "fonts")
    for place in places:
        found = [next(iter(place.rglob(name)), None) for name in FILES]
        if all(found):
            return [str(path) for path in found]
    raise NoFontError("pictures need the DejaVu fonts (on Debian: apt-get install fonts-dejavu-core)")
