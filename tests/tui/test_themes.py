"""The colours of states and curves can be told apart by everybody, and read on their ground."""

from __future__ import annotations

from itertools import combinations

import pytest
from textual.theme import Theme

from hoptui.tui import preferences

RGB = tuple[float, float, float]
# Machado, Oliveira, Fernandes 2009 (A Physiologically-based Model for Simulation of Color Vision Deficiency),
# severity 1.0,
# on linear RGB.
SEEN_BY: dict[str, tuple[RGB, RGB, RGB]] = {
    "anybody": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopes": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopes": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
    "tritanopes": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.3039),
    ),
}
APART = 14.5
COLOURS = {
    name: getattr(preferences.ANSI, name) for name in ("foreground", "primary", "success", "warning", "error")
}


def linear(colour: str) -> RGB:
    """sRGB `#rrggbb` as linear light."""
    r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (r, g, b))  # type: ignore[return-value]


def lab(rgb: RGB) -> RGB:
    """CIE L*a*b* under D65."""
    r, g, b = rgb

    def f(t: float) -> float:
        return t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116

    x = f((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047)
    y = f(0.2126 * r + 0.7152 * g + 0.0722 * b)
    z = f((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen(colour: str, eyes: str) -> RGB:
    light = linear(colour)
    rows = (sum(m * c for m, c in zip(row, light, strict=True)) for row in SEEN_BY[eyes])
    return lab(tuple(min(1.0, max(0.0, c)) for c in rows))  # type: ignore[arg-type]


def contrast(a: str, b: str) -> float:
    """WCAG 2.1, contrast ratio."""
    low, high = sorted(
        sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(one), strict=True)) for one in (a, b)
    )
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("eyes", SEEN_BY)
@pytest.mark.parametrize("theme", [preferences.DARK, preferences.LIGHT], ids=lambda theme: theme.name)
def test_states_and_curves_are_told_apart(theme: Theme, eyes: str) -> None:
    states = (theme.success, theme.warning, theme.error)
    curves = tuple(theme.variables[f"ink-{i}"] for i in range(1, 5))
    for group in (states, curves):
        for a, b in combinations(group, 2):
            assert a is not None
            assert b is not None
            apart = sum((x - y) ** 2 for x, y in zip(seen(a, eyes), seen(b, eyes), strict=True)) ** 0.5
            assert apart >= APART, (a, b, eyes)


def test_the_sixteen_colours_are_read_on_no_ground_but_the_terminals_own() -> None:
    """That may be black or white: a white is not seen on the one, nor every grey on either."""
    assert preferences.ANSI.variables["ink-cursor"] == "ansi_default"
    inks = preferences.inks({**preferences.DARK.variables, **preferences.ANSI.variables, **COLOURS})
    for name in ("dim", "faint", "track", "strong", "stale", "veiled"):
        colour = inks[name].color
        assert colour is not None
        assert colour.is_default, name
        assert bool(inks[name].dim) is (name in preferences.PALE)
    assert inks["strong"].bold


@pytest.mark.parametrize("theme", [preferences.DARK, preferences.LIGHT], ids=lambda theme: theme.name)
def test_everything_that_is_read_stands_out(theme: Theme) -> None:
    greys = (theme.variables[f"ink-{name}"] for name in ("dim", "faint", "stale"))
    read = (theme.foreground, theme.success, theme.warning, theme.error, *greys)
    for colour in read:
        assert colour is not None
        assert theme.background is not None
        assert contrast(colour, theme.background) >= 3.8, colour
