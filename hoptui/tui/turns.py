"""Keys take effect in the order in which they were typed, however fast they come.

Textual gives a key to what has the focus, and looks for bindings of the next one before that has taken it: of `16` and Enter that a
slow link delivers together, Enter came first, and what was typed was not what was sent.
"""

from __future__ import annotations

import asyncio
from typing import Any

from textual.app import App, ScreenStackError
from textual.dom import DOMNode
from textual.message_pump import MessagePump

ROUNDS = 2
"""In the first the key goes up from what has the focus to the app; in the second what it set off does: a changed text, another focus."""


async def taken(app: App[Any]) -> None:
    """Return once the last key that was given to the app has been everywhere it goes. It may never, where what it went to ends:
    the caller's patience is to have an end."""
    for _ in range(ROUNDS):
        for pump in _way(app):
            passed = asyncio.Event()
            if pump.call_later(passed.set):
                await passed.wait()


def _way(app: App[Any]) -> list[MessagePump]:
    """The app, which sees a key first, then those that may take it, from what has the focus up."""
    try:
        first: DOMNode = app.focused or app.screen
    except ScreenStackError:  # it is on its way out
        return []
    return [app, *first.ancestors_with_self]
