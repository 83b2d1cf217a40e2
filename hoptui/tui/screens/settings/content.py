"""What is set and where it comes from: a line each, and how to change the chosen one. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal, NamedTuple

from hoptui.presentation import numbers
from hoptui.settings import SETTINGS, Setting, short
from hoptui.tui.actions import ACTIONS, key_text
from hoptui.tui.preferences import HIDEABLE, Preferences
from hoptui.tui.styled_text import Line, Span, first_fitting

NAME, LEAST_NAME, VALUE, ORIGIN = 32, 12, 18, 11
DETAIL, MOST_DETAIL = 4, 6
"""The lines for what the chosen item is: usually, and where the terminal is so narrow that it takes more."""


class Item(NamedTuple):
    """A setting; `enter` names the effect of Enter here (empty: none), `help` explains how to set it
    elsewhere.
    """

    kind: Literal["problem", "setting", "panel", "metric", "key"]
    name: str
    label: str
    value: str
    origin: str
    help: str
    enter: str = ""


def items(preferences: Preferences) -> list[Item]:
    """What is wrong, first; then settings, panels, the metric, and the keys."""
    file = preferences.config.file
    # A row has no room for the path of the file, which is shown below.
    known = f"{short(file)} " if file else ""
    return [
        *(
            Item("problem", told, "not as it was asked for", told.removeprefix(known), "", told)
            for told in preferences.problems
        ),
        *(_setting(preferences, setting) for setting in SETTINGS),
        *(_panel(preferences, panel.id, panel.label) for panel in HIDEABLE),
        Item(
            "metric",
            "metric",
            "metric of the learning chart",
            numbers.clean(preferences.metric, VALUE) or "the run's first",
            preferences.origin("metric"),
            "It is remembered when another one is shown on a run that has several.",
        ),
        *_keys(preferences),
    ]


def rows(shown: Sequence[Item], cursor: int, width: int) -> list[Line]:
    """A line each: name, value and source. An error is cut to its beginning."""
    return [
        (Span("› " if i == cursor else "  ", "key"), *_row(item, *_columns(width)))
        for i, item in enumerate(shown)
    ]


def head(width: int) -> Line:
    """The heading of `rows`."""
    name, value = _columns(width)
    return Span("  setting", "dim", 2 + name), Span("now", "dim", value), Span("set by", "dim")


def _columns(width: int) -> tuple[int, int]:
    """The cells for names and values. In a small terminal names are cut, because value and origin matter
    more.
    """
    return max(LEAST_NAME, min(NAME, width - 2 - VALUE - ORIGIN)), VALUE


def _row(item: Item, name: int, value: int) -> Line:
    if item.kind == "problem":
        return Span("⚠ ", "warn"), Span(item.value, "warn")
    ink = "strong" if item.origin != "default" else ""
    return Span(f"{item.label} ", "", name), Span(f"{item.value} ", ink, value), Span(item.origin, "dim")


def detail(item: Item, width: int) -> list[Line]:
    """What the chosen item is, and how it is changed."""
    enter = [(Span("enter ", "key"), Span(item.enter))] if item.enter else []
    return [*enter, *((Span(line, "dim"),) for line in textwrap.wrap(item.help, max(20, width)))]


def detail_lines(shown: Sequence[Item], width: int) -> int:
    """The lines of the longest `detail`, within limits, so that the list does not move with the cursor."""
    longest = max(len(detail(item, width)) for item in shown)
    return min(max(DETAIL, longest), MOST_DETAIL)


def files(preferences: Preferences, width: int) -> list[Line]:
    """Where the two files are."""
    config = preferences.config
    missing = bool(config.file and not config.file.exists())
    notes = (" (no such file: all defaults)", " (no such file)") if missing else ("",)
    yours = (
        Span("yours       ", "dim"),
        Span(short(config.file) if config.file else "none: no home directory"),
    )
    return [
        first_fitting([(*yours, Span(note, "dim")) for note in notes], width),
        (
            Span("remembered  ", "dim"),
            Span(short(config.choices) if config.choices else "nothing: no home directory"),
        ),
    ]


def _setting(preferences: Preferences, setting: Setting) -> Item:
    is_theme = setting.name == "theme"
    value = preferences.theme if is_theme else preferences.config.values[setting.name]
    option = f"--{setting.name.replace('_', '-')}"
    if setting.choices:
        ways = (
            f'{option} WORD, {setting.variable}=WORD or {setting.name} = "WORD"; {", ".join(setting.choices)}'
        )
    elif setting.default:
        ways = f"--no-{option[2:]}, {setting.variable}=0 or {setting.name} = false"
    else:
        ways = f"{option}, {setting.variable}=1 or {setting.name} = true"
    said = value.value if isinstance(value.value, str) else "yes" if value.value else "no"
    return Item(
        "setting",
        setting.name,
        setting.name.replace("_", "-"),
        said,
        value.origin,
        f"{setting.help}. On the command line, in the environment or in config.toml: {ways}.",
        "the next theme" if is_theme else "",
    )


def _panel(preferences: Preferences, panel: str, label: str) -> Item:
    hidden = panel in preferences.hidden
    return Item(
        "panel",
        panel,
        f"{panel.partition('.')[0]}: {label}",
        "hidden" if hidden else "shown",
        preferences.origin(panel),
        "A panel is only hidden where the terminal has room for all of them (100 × 32 or more).",
        "shows it again" if hidden else "hides it",
    )


def _keys(preferences: Preferences) -> list[Item]:
    """Every action by its id, those with keys of one's own first."""
    own = [action for action in ACTIONS if action.id in preferences.granted]
    others = [action for action in ACTIONS if action.id not in preferences.granted]
    return [
        Item(
            "key",
            action.id,
            f"key of {action.id}",
            key_text(preferences.keymap[action.id], every=True) or "none",
            preferences.config.keys[action.id].place if action in own else "default",
            f"{action.help}. Its usual keys are {key_text(action.keys, every=True)}. "
            f'In config.toml, below [keys]: "{action.id}" = "KEY,KEY".',
        )
        for action in (*own, *others)
    ]
