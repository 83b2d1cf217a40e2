"""Keys of one's own: what `[keys]` of the configuration asks for, as far as it makes sense, and what is wrong with the rest. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from textual.binding import Binding, BindingsMap
from textual.keys import KEY_ALIASES, Keys

from hoptui.settings.config import Asked, near
from hoptui.tui.actions import ACTIONS, BEFORE_ALL, Action, Scope, character, key_text

UNBOUND = "no_key"
"""A name that no key has: Textual ignores an empty one and would keep the default."""
TYPING: tuple[Scope, ...] = ("editor", "goto", "finder", "filter")
"""Where characters are typed, so that none of them can be a key."""
BOXES: tuple[Scope, ...] = (*TYPING, "staged", "limits", "conflict", "story", "confirm", "help", "text")
"""What lies over a screen and hides its keys."""
TEXTS: tuple[Scope, ...] = ("help", "story")
"""Boxes with a text to move in."""
NEEDED = (
    "app.leave_now",
    "confirm.yes",
    "confirm.no",
    "conflict.back",
    "editor.close",
    "staged.close",
    "limits.close",
    "story.close",
    "filter.drop",
    "finder.close",
    "goto.close",
    "help.close",
)
"""There is always a way out, also of every box, and an answer to a question."""

_MODIFIERS = {"ctrl", "shift", "alt"}
_NAMED = {key.value for key in Keys}
_SAME = {other: key for key, others in KEY_ALIASES.items() for other in others}
_BY_ID = {action.id: action for action in ACTIONS}


def settle(asked: Mapping[str, Asked]) -> tuple[dict[str, str], list[str]]:
    """The keys (as Textual names them, "" for none) of the actions that get others than their own; one line for each refusal.

    A wish is refused as a whole, so that a key never does what another action's key is known to do.
    """
    granted: dict[str, str] = {}
    problems = []
    for name, wish in asked.items():
        try:
            granted[name] = _checked(name, wish.keys)
        except ValueError as error:
            problems.append(f"{wish.place}: {error}")
    while granted and (clashes := list(_clashes(granted))):
        for mine, key, other in clashes:
            if mine.id in granted:
                problems.append(
                    f"{asked[mine.id].place}: {key_text(key)} is a key of {other.id} already: "
                    f"{mine.id} keeps {key_text(mine.keys, every=True)}"
                )
        granted = {name: keys for name, keys in granted.items() if name not in {a.id for a, _, _ in clashes}}
    return granted, list(dict.fromkeys(problems))


def for_textual(keymap: Mapping[str, str]) -> dict[str, str]:
    """The same for `App.set_keymap`."""
    return {name: keys or UNBOUND for name, keys in keymap.items()}


def _checked(name: str, wish: str) -> str:
    """The keys of a wish as Textual names them.

    Raises:
        ValueError: there is no such action or key, or it may not be; the text is one clause.
    """
    action = _BY_ID.get(name)
    if action is None:
        raise ValueError(f"there is no action {name}{near(name, list(_BY_ID))}")
    if not wish.strip():
        if name in NEEDED:
            raise ValueError(f"{name} needs a key")
        return ""
    keys = [_key(piece.strip()) for piece in wish.split(",")]
    for key in keys:
        if action.scope in TYPING and character(key) and key not in action.keys.split(","):
            raise ValueError(
                f"{key_text(key)} is a character to type where {name} is: take one with ctrl or alt"
            )
    return ",".join(dict.fromkeys(keys))


def _key(typed: str) -> str:
    """One key as Textual names it, from its name, its character, or `^p`."""
    if len(typed) == 2 and typed[0] == "^":
        typed = f"ctrl+{typed[1].lower()}"
    if not typed:
        raise ValueError('between commas there is a key; that of the comma is called "comma"')
    (key, _), *_ = BindingsMap([Binding(typed, "")])
    *modifiers, base = key.split("+")
    known = base in _NAMED or key in _NAMED or character(base)
    if not known or not _MODIFIERS.issuperset(modifiers):
        raise ValueError(
            f'there is no key "{typed}" (keys are called like: p, ?, f5, ctrl+x, shift+left, space)'
        )
    return _SAME.get(key, key)


def _clashes(granted: Mapping[str, str]) -> Iterator[tuple[Action, str, Action]]:
    """Pairs of actions that would share a key at a time and do not by default: both ways round."""
    for mine in ACTIONS:
        for other in ACTIONS:
            if mine is other or not _meet(mine, other):
                continue
            shared = _keys(mine, granted) & _keys(other, granted)
            if shared and not shared <= _keys(mine, {}) & _keys(other, {}):
                yield mine, min(shared), other


def _keys(action: Action, granted: Mapping[str, str]) -> set[str]:
    return {key for key in granted.get(action.id, action.keys).split(",") if key}


def _meet(a: Action, b: Action) -> bool:
    """Whether both can work at the same time, or one right after the other where that would be dangerous."""
    if a.scope == b.scope or a.id in BEFORE_ALL or b.id in BEFORE_ALL:
        return True
    if "confirm.yes" in (a.id, b.id):  # the key that opens a question must not answer it
        return not {a.scope, b.scope} & set(BOXES) - {"confirm"}
    if "text" in (a.scope, b.scope):
        return bool({a.scope, b.scope} & set(TEXTS))
    if a.scope in BOXES or b.scope in BOXES:
        return False
    return "everywhere" in (a.scope, b.scope) or (
        "list" in (a.scope, b.scope) and "replay" not in (a.scope, b.scope)
    )
