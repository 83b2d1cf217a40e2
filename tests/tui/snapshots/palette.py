"""Names of the styles in a picture.

A style is named after the inks of `hoptui.tui.preferences`: `good`, `text bold`, `dim on cursor`. Inks of one
style share a name: `good/ink 3`. An ink that is bold in `themes.INKS` has no `bold` here. `covered` shows
through behind a dialog. A colour without a name is written as `#rrggbb`. The themes `ansi` and `none` have
the terminal's words: `cyan bold`. `golden/inks.txt` has the colour of each name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from rich.color import Color as RichColor
from rich.style import Style
from textual.color import Color
from textual.theme import Theme

from hoptui.tui import preferences

PLAIN = "text"
ATTRIBUTES = ("bold", "dim", "italic", "underline", "reverse", "strike")
SEEN_ON_BLANKS = ("underline", "reverse", "strike")
FRAMES = {"border": "panel-border", "focus": "panel-focus"}
GROUNDS = {
    "": "background",
    "surface": "surface",
    "panel": "panel",
    "cursor": "ink-cursor",
    "selection": "input-selection-background",
    "text": "foreground",
}
VEIL = 0.35
"""How much of the background a dialog lays over the screens behind it: `.veil` in `tokens.tcss`."""
COVERED = ("", "covered", "covered twice")

Hex = str


class Layer(NamedTuple):
    """The names of colours on the screen itself, or on a screen behind one or two dialogs."""

    suffix: str
    inks: Mapping[tuple[Hex, bool], str]
    """By colour, and whether it is bold."""
    grounds: Mapping[Hex, str]


def name(style: Style, theme: str, *, blank: bool) -> str:
    """`good on surface bold`; for a blank, what can be seen of it.

    The background of the theme has no name.
    """
    attributes = tuple(
        attribute for attribute in (SEEN_ON_BLANKS if blank else ATTRIBUTES) if getattr(style, attribute)
    )
    ink = None if blank and not attributes else _hex(style.color)
    return _name(ink, _hex(style.bgcolor), attributes, theme)


@lru_cache(maxsize=4096)
def _name(ink: Hex | None, ground: Hex, attributes: tuple[str, ...], theme: str) -> str:
    layers = _layers(theme)
    for layer in layers:
        if ground in layer.grounds and (found := _ink(ink, attributes, layer)) is not None:
            return _joined(*found, layer.grounds[ground], layer.suffix)
    own = layers[0]
    found = _ink(ink, attributes, own) or (ink or "", attributes)
    return _joined(*found, own.grounds.get(ground, ground), "")


def _joined(ink: str, attributes: tuple[str, ...], ground: str, suffix: str) -> str:
    return " ".join(part for part in (ink, ground and f"on {ground}", *attributes, suffix) if part)


def _ink(ink: Hex | None, attributes: tuple[str, ...], layer: Layer) -> tuple[str, tuple[str, ...]] | None:
    """The name of an ink, and the attributes that the name does not imply."""
    if ink is None:
        return "", attributes
    if "bold" in attributes and (ink, True) in layer.inks:
        return layer.inks[ink, True], tuple(one for one in attributes if one != "bold")
    return (layer.inks[ink, False], attributes) if (ink, False) in layer.inks else None


def _hex(colour: RichColor | None) -> Hex:
    if colour is None or colour.is_default:
        return "default"
    return colour.triplet.hex if colour.triplet else colour.name


@lru_cache
def _layers(theme: str) -> list[Layer]:
    look = preferences.LOOKS[theme]
    if look.theme.ansi:
        return [Layer("", {}, {"default": ""})]
    named = colours(look.theme)
    background = named.grounds[""]
    layers = []
    for suffix in COVERED:
        inks: dict[tuple[Hex, bool], str] = {}
        for ink, (colour, bold) in named.inks.items():
            key = colour.hex.lower(), bold
            inks[key] = f"{inks[key]}/{ink}" if key in inks else ink
        grounds: dict[Hex, str] = {}
        for ground, colour in named.grounds.items():
            grounds.setdefault(colour.hex.lower(), ground)
        layers.append(Layer(suffix, inks, grounds))
        named = Named(
            {ink: (colour.blend(background, VEIL), bold) for ink, (colour, bold) in named.inks.items()},
            {ground: colour.blend(background, VEIL) for ground, colour in named.grounds.items()},
        )
    return layers


class Named(NamedTuple):
    """The colours of a theme that have a name."""

    inks: dict[str, tuple[Color, bool]]
    """With whether they are bold."""
    grounds: dict[str, Color]


def colours(theme: Theme) -> Named:
    """The colours of the inks, of the frames and of the grounds, as a theme gives them to the app."""
    variables = {**theme.to_color_system().generate(), **theme.variables}
    inks = {
        called(ink): (Color.parse(variables[variable]), bold)
        for ink, (variable, bold) in preferences.INKS.items()
    }
    frames = {frame: (Color.parse(variables[variable]), False) for frame, variable in FRAMES.items()}
    return Named(
        {**inks, **frames},
        {ground: Color.parse(variables[variable]) for ground, variable in GROUNDS.items()},
    )


def called(ink: str) -> str:
    """The name of an ink in a picture."""
    return f"ink {ink}" if ink.isdigit() else ink or PLAIN
