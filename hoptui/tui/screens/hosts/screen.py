"""The first screen of a dashboard on several hosts: each host with its link, and its runs under it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from textual.app import ComposeResult

from hoptui.presentation import numbers
from hoptui.tui.actions import bindings, picking
from hoptui.tui.app_protocol import AppProtocol, Frame, Moved, Picked
from hoptui.tui.components import header
from hoptui.tui.screen_base import LiveScreen, set_height
from hoptui.tui.screens.hosts import content
from hoptui.tui.styled_text import GAP, Span
from hoptui.tui.widgets import BORDER, SIDES, Choices, KeyBar, Lines, Panel


class Fleet(AppProtocol, Protocol):
    """The app on several hosts, as their screen sees it."""

    def hosts_seen(self) -> list[content.HostStatus]: ...
    def wall(self) -> float: ...
    def choose(self, name: str) -> None: ...


class HostsScreen(LiveScreen):
    """Enter opens the chosen host's overview, or the chosen run."""

    BINDINGS = bindings()

    @property
    def fleet(self) -> Fleet:
        return cast("Fleet", self.app)

    def compose(self) -> ComposeResult:
        yield Lines("identity")
        yield Panel(Choices("host-list"), name="hosts")
        yield Panel(Lines("host-why"), name="host")
        yield KeyBar()

    def on_mount(self) -> None:
        self._choices.focus()
        super().on_mount()

    def draw(self, frame: Frame) -> None:
        if frame.numbers:
            shown = self.fleet.hosts_seen()
            choices = self._choices
            choices.keep([_id(row) for row in content.listed(shown)])
            rows = content.rows(shown, choices.size.width, choices.index)
            choices.show_rows(rows, len(rows))
            name, told = Span(" hoptui  ", "title"), Span(content.summary(shown), "strong")
            # Whose clock? Each host has one; this is the person's own.
            clock = Span(f"   {numbers.clock(self.fleet.wall())} ", "dim")
            self.query_one("#identity", Lines).show(
                [(name, told, GAP, *header.restraint(self.view()), clock)]
            )
            self.query_one("#hosts", Panel).label(" · ".join(filter(None, ("Hosts", choices.part))))
            self._draw_why(shown)
        if frame.lists:
            self.query_one(KeyBar).show_actions([picking("open")])

    def _draw_why(self, shown: Sequence[content.HostStatus]) -> None:
        """The box below the list: why the chosen host is not available. No box without a reason."""
        chosen, box = self.chosen, self.query_one("#host", Panel)
        host = next((host for host in shown if chosen and host.name == chosen.host), None)
        told = content.why(host, self.size.width - SIDES) if host else []
        box.display = bool(told)
        if host and told:
            set_height(box, len(told) + BORDER)
            box.label(host.name)
            self.query_one("#host-why", Lines).show(told)

    @property
    def chosen(self) -> content.HostRow | None:
        """The row under the cursor."""
        listed = content.listed(self.fleet.hosts_seen())
        return next((row for row in listed if _id(row) == self._choices.chosen), None)

    def on_moved(self, event: Moved) -> None:
        event.stop()
        self.redraw()

    def on_picked(self, event: Picked) -> None:
        event.stop()
        chosen = self.chosen
        if chosen is None:
            return
        self.fleet.choose(chosen.host)
        if chosen.run is None:
            self.fleet.open_overview()
        else:
            self.fleet.open_run(chosen.run)

    @property
    def _choices(self) -> Choices:
        return self.query_one("#host-list", Choices)


def _id(row: content.HostRow) -> tuple[str, str]:
    """Which host, or which of its runs, a row is of."""
    return row.host, row.run.run if row.run else ""
