"""A box with what the run is: configuration, results, tags, code, packages."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from hoptui.domain.details import RunDetails
from hoptui.presentation import details as presented
from hoptui.tui.actions import bindings
from hoptui.tui.app_protocol import Frame
from hoptui.tui.screen_base import TextBox, set_height
from hoptui.tui.styled_text import Line, Span
from hoptui.tui.widgets import Lines, Panel

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_LABEL, MOST_LABEL = 11, 24
GAP = 2
NOT_ASKED = "asking the daemon"
NOTHING = "unknown: its hoptui or the daemon is older"
EVERY_S = 2.0
"""How often the daemon is asked while the box is open."""


def lines(known: Mapping[str, RunDetails | None], run: str, width: int) -> list[Line]:
    """The text of the box."""
    details = known.get(run)
    if details is None:
        return [(Span(NOTHING if run in known else NOT_ASKED, "dim"),)]
    parts = [
        ("", presented.origin_rows(details)),
        ("config", presented.value_rows(details.config, details.config_left_out)),
        ("summary", presented.value_rows(details.summary, details.summary_left_out)),
    ]
    found: list[Line] = []
    for title, rows in parts:
        if not rows:
            continue
        if found:
            found.append(())
        if title:
            found.append((Span(title, "title"),))
        longest = max((len(label) for label, _ in rows if len(label) <= MOST_LABEL), default=0)
        room = max(LEAST_LABEL, longest) + GAP
        for label, text in rows:
            found += _wrapped(label, text, room, width)
    return found


def _wrapped(label: str, text: str, room: int, width: int) -> list[Line]:
    parts = textwrap.wrap(text, max(16, width - room), break_on_hyphens=False) or [""]
    if len(label) > room - GAP:  # a long name has a line of its own
        return [(Span(label, "dim"),), *((Span("", "", room), Span(part)) for part in parts)]
    return [(Span(label if not i else "", "dim", room), Span(part)) for i, part in enumerate(parts)]


class DetailsBox(TextBox):
    """What the run with the id `run` is."""

    BINDINGS = bindings("help", "text")

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def compose(self) -> ComposeResult:
        scroll = VerticalScroll(Lines("details-lines"), id="details-scroll", can_focus=False)
        yield Panel(scroll, name="details", kind="box")

    def on_mount(self) -> None:
        view = self.hoptui.view(self._run)
        keys = (view.hint("text.down", "down"), view.hint("help.close", "closes"))
        self.query_one(Panel).label("What the run is", "   ".join(filter(None, keys)))
        self._ask()
        self.set_interval(EVERY_S, self._ask)
        self.redraw()

    def draw(self, frame: Frame) -> None:
        shown = self._lines("details-lines")
        if shown.size.width:
            text = lines(self.hoptui.view(self._run).store.details, self._run, shown.size.width)
            set_height(shown, len(text))
            shown.show(text)

    def _ask(self) -> None:
        self.hoptui.client.describe(self._run)
