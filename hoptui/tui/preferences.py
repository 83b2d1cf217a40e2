"""The preferences of the user (keys, theme, panels, the metric of the chart), and the themes.

Choices made in the dashboard are remembered.

There are a dark and a light theme safe for colour-blind users, one of the terminal's 16 colours, and none.
States and curves differ for the three kinds of colour blindness: in simulation, the nearest two colours are
15 apart in CIE L*a*b*, where 2 is just visible. Greys have R = G = B and accents are on the 6 × 6 × 6 cube,
so a terminal with 256 colours (such as through SSH) shows them exactly. No state depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from msgspec import structs
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.constants import COLOR_SYSTEM
from textual.filter import LineFilter
from textual.theme import BUILTIN_THEMES, Theme

from hoptui import settings
from hoptui.settings import Config, Value
from hoptui.tui import actions
from hoptui.tui.actions import DEFAULT_KEYS

DARK = Theme(
    name="hoptui-dark",
    primary="#5fafff",
    secondary="#ffaf5f",
    accent="#5fafff",
    success="#5fd7af",
    warning="#ffaf00",
    error="#ff875f",
    foreground="#d0d0d0",
    background="#121212",
    surface="#1c1c1c",
    panel="#262626",
    variables={
        "ink-dim": "#949494",
        "ink-faint": "#767676",
        "ink-track": "#3a3a3a",
        "ink-strong": "#eeeeee",
        "ink-stale": "#767676",
        "ink-veiled": "#949494",
        "ink-mark": "#d7af5f",
        "ink-cursor": "#303030",
        "ink-1": "#5fafff",
        "ink-2": "#ffaf5f",
        "ink-3": "#5fd7af",
        "ink-4": "#d75faf",
        "heat-0": "#005f87",
        "heat-1": "#5f8787",
        "heat-2": "#afaf5f",
        "heat-3": "#ffd75f",
        "heat-4": "#ffffd7",
        "panel-border": "#444444",
        "panel-focus": "#5fafff",
        "block-cursor-blurred-background": "#005f87",
        "input-selection-background": "#005f87",
    },
)
LIGHT = Theme(
    name="hoptui-light",
    primary="#005faf",
    secondary="#af5f00",
    accent="#005faf",
    success="#00875f",
    warning="#875f00",
    error="#870000",
    foreground="#303030",
    background="#eeeeee",
    surface="#e4e4e4",
    panel="#dadada",
    dark=False,
    variables={
        "ink-dim": "#626262",
        "ink-faint": "#767676",
        "ink-track": "#c6c6c6",
        "ink-strong": "#080808",
        "ink-stale": "#767676",
        "ink-veiled": "#4e4e4e",
        "ink-mark": "#875f00",
        "ink-cursor": "#d0d0d0",
        "ink-1": "#005faf",
        "ink-2": "#af5f00",
        "ink-3": "#00875f",
        "ink-4": "#87005f",
        "heat-0": "#afd7d7",
        "heat-1": "#87afaf",
        "heat-2": "#5f8787",
        "heat-3": "#875f00",
        "heat-4": "#5f0000",
        "panel-border": "#b2b2b2",
        "panel-focus": "#005faf",
        "block-cursor-blurred-background": "#afd7ff",
        "input-selection-background": "#afd7ff",
    },
)
ANSI = Theme(
    name="hoptui-ansi",
    ansi=True,
    primary="ansi_cyan",
    secondary="ansi_yellow",
    accent="ansi_cyan",
    success="ansi_green",
    warning="ansi_yellow",
    error="ansi_red",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    variables={
        **BUILTIN_THEMES["ansi-dark"].variables,
        "ink-dim": "ansi_default",
        "ink-faint": "ansi_default",
        "ink-track": "ansi_default",
        "ink-strong": "ansi_default",
        "ink-stale": "ansi_default",
        "ink-veiled": "ansi_default",
        "ink-mark": "ansi_yellow",
        "ink-cursor": "ansi_default",
        "ink-1": "ansi_cyan",
        "ink-2": "ansi_yellow",
        "ink-3": "ansi_green",
        "ink-4": "ansi_magenta",
        "heat-0": "ansi_bright_black",
        "heat-1": "ansi_cyan",
        "heat-2": "ansi_green",
        "heat-3": "ansi_yellow",
        "heat-4": "ansi_red",
        "panel-border": "ansi_bright_black",
        "panel-focus": "ansi_cyan",
        "border": "ansi_cyan",
        "border-blurred": "ansi_bright_black",
        "block-cursor-background": "ansi_cyan",
    },
)
THEMES = (DARK, LIGHT, ANSI)


class Look(NamedTuple):
    """A theme, and whether it is drawn without its colours: in black and white, bold and plain."""

    theme: Theme
    colours: bool = True

    @property
    def kind(self) -> tuple[bool, bool]:
        """Looks of one kind can follow each other on a terminal."""
        return self.theme.ansi, self.colours


LOOKS = {"dark": Look(DARK), "light": Look(LIGHT), "ansi": Look(ANSI), "none": Look(ANSI, False)}
"""By the words that the setting `theme` takes, next to `auto`."""

INKS: dict[str, tuple[str, bool]] = {
    "": ("foreground", False),
    "dim": ("ink-dim", False),
    "faint": ("ink-faint", False),
    "track": ("ink-track", False),
    "band": ("ink-track", False),  # between the least and the greatest value of a curve
    "strong": ("ink-strong", True),
    "stale": ("ink-stale", False),
    "veiled": ("ink-veiled", False),  # what is stale, under a box that dims it once more
    "title": ("primary", True),
    "key": ("primary", True),
    "good": ("success", False),
    "warn": ("warning", False),
    "bad": ("error", True),
    "mark": ("ink-mark", False),
    "1": ("ink-1", False),
    "2": ("ink-2", False),
    "3": ("ink-3", False),
    "4": ("ink-4", False),
    "heat-0": ("heat-0", False),  # the cells of a heat map, from usual to remarkable
    "heat-1": ("heat-1", False),
    "heat-2": ("heat-2", False),
    "heat-3": ("heat-3", False),
    "heat-4": ("heat-4", False),
}
"""What a span may be drawn in: a variable of the theme, and whether it is bold."""


class Colourless(LineFilter):
    """Takes all colours away; what lies on a ground of its own, as a cursor does, is drawn in reverse."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, _colourless(style) if style else None, control) for text, style, control in segments
        ]


@lru_cache(1024)
def _colourless(style: Style) -> Style:
    grounded = style.bgcolor is not None and not style.bgcolor.is_default
    return style + Style(color="default", bgcolor="default", reverse=grounded or None)


def choose(word: str, *, sure: bool = True) -> Look:
    """The look for the setting `theme` on this terminal: `auto` is dark, or ANSI with at most sixteen
    colours.

    A choice that is not `sure`, perhaps made on another terminal, yields to what this terminal supports.
    """
    if word in LOOKS and (sure or LOOKS[word].theme.ansi):
        return LOOKS[word]
    colours = Console(force_terminal=True, color_system=COLOR_SYSTEM).color_system  # type: ignore[arg-type]
    if colours not in ("256", "truecolor"):
        return LOOKS["ansi"]
    return LOOKS.get(word, LOOKS["dark"])


def word_of(theme: str) -> str:
    """The word by which the setting names a theme."""
    return theme.removeprefix("hoptui-")


PALE = ("faint", "track", "band", "stale", "veiled")
"""Inks drawn at half brightness if they have no colour of their own: no grey is visible on every background.
"""


def inks(variables: Mapping[str, str]) -> dict[str, Style]:
    """The style of every ink under a theme's variables."""
    colours = {name: Color.parse(variables[variable]).rich_color for name, (variable, _) in INKS.items()}
    return {
        name: Style(
            color=colours[name], bold=bold or None, dim=(name in PALE and colours[name].is_default) or None
        )
        for name, (_, bold) in INKS.items()
    }


HERE = "chosen here"
"""The origin of a choice that ends with this sitting."""


class Hideable(NamedTuple):
    """A panel that can be hidden on a screen with room for all; `id` is `<scope of the screen>.<panel>`."""

    id: str
    label: str

    @property
    def css_class(self) -> str:
        """The class of a screen that hides it: see `styles/hidden.tcss`."""
        return f"-hide-{self.id.replace('.', '-')}"


HIDEABLE = (
    Hideable("run.learning", "learning"),
    Hideable("run.hardware", "hardware"),
    Hideable("run.phases", "where an iteration goes"),
    Hideable("run.events", "events"),
    Hideable("run.tuner", "the tuner"),
    Hideable("overview.power", "power"),
    Hideable("overview.processes", "processes on the GPUs"),
    Hideable("overview.events", "events"),
)


class Preferences:
    """The configuration applied to the existing actions, and the choices of this session.

    `problems` has one line for each problem.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.granted, refused = actions.settle(config.keys)
        self.keymap = {**DEFAULT_KEYS, **self.granted}
        self.problems = (*config.problems, *refused)
        self.metric = config.remembered.metric
        known = {panel.id for panel in HIDEABLE}
        self.hidden = tuple(name for name in config.remembered.hidden if name in known)
        self.theme: Value = config.values["theme"]
        self._kept = config.remembered
        self._kind = self.look.kind

    @property
    def look(self) -> Look:
        """How the dashboard is to look on this terminal."""
        return choose(str(self.theme.value), sure=self.theme.origin != "remembered")

    @property
    def at_once(self) -> bool:
        """Whether this sitting can have the chosen look: the terminal was set up for colours of one kind."""
        return self.look.kind == self._kind

    def choose_theme(self, word: str) -> str:
        """Have this theme from now on; one sentence if it is not remembered, or not at once."""
        fixed = self.config.values["theme"].origin
        self.theme = Value(word, HERE)
        if fixed in ("default", "remembered"):
            later = self._remember(theme=word)
        else:
            later = f"{fixed} sets the theme: {word} is only until you leave"
        return later if later or self.at_once else f"{word} from the next start on"

    def choose_metric(self, name: str) -> str:
        """Show this metric in the learning chart, also for later runs that have it. Returns a sentence if it
        is not remembered.
        """
        if name == self.metric:
            return ""
        self.metric = name
        return self._remember(metric=name)

    def hide_or_show(self, panel: str) -> str:
        """Hide a panel, or show it again; one sentence if that is not remembered."""
        hide = panel not in self.hidden
        self.hidden = (*self.hidden, panel) if hide else tuple(one for one in self.hidden if one != panel)
        return self._remember(hidden=self.hidden)

    def origin(self, choice: str) -> str:
        """Where a choice comes from: `remembered`, `chosen here` or `default`.

        `choice` is `metric` or the id of a panel.
        """
        if choice == "metric":
            made, kept = bool(self.metric), self.metric == self._kept.metric
        else:
            made = choice in self.hidden
            kept = made == (choice in self._kept.hidden)
        return ("remembered" if made else "default") if kept else HERE

    def _remember(self, **fields: str | tuple[str, ...]) -> str:
        if self.config.choices is None:
            return ""
        problem = settings.remember(self.config.choices, **fields)
        if problem:
            return f"not remembered: {problem}"
        self._kept = structs.replace(self._kept, **fields)
        return ""
