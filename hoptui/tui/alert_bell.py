"""Rings the terminal when an alert fires while the dashboard is open: BEL, and OSC 9 or OSC 777 by choice."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from hoptui.domain.alert_settings import AlertSettings
from hoptui.presentation import numbers, sentences
from hoptui.protocol.messages import Event

RECENT_S = 30.0
"""Older events are history that was loaded, as when the dashboard opens."""
BEL, ESCAPE = "\a", "\x1b"
LONGEST = 200


class AlertBell:
    """What to write to the terminal for alerts. `settings` are those of the user of the dashboard.

    Args:
        environ: the environment of the dashboard; in tmux, OSC is wrapped for its passthrough.
    """

    def __init__(self, settings: AlertSettings, environ: Mapping[str, str] = os.environ) -> None:
        self._settings = settings
        self._tmux = bool(environ.get("TMUX"))
        self._last = 0

    @property
    def silent(self) -> bool:
        """Whether the user wants neither a bell nor a notification."""
        return not (self._settings.bell or self._settings.osc)

    def signal(self, events: Iterable[Event], wall: float) -> str:
        """Return the characters for the alerts that are new, "" without one. All together ring once.

        Args:
            wall: the node's time, in seconds since 1970.
        """
        new = [each for each in events if each.alert and each.seq > self._last]
        self._last = max([self._last, *(each.seq for each in new)])
        recent = [each for each in new if wall - each.wall < RECENT_S]
        if not recent:
            return ""
        return (BEL if self._settings.bell else "") + self._notification(recent[-1])

    def _notification(self, event: Event) -> str:
        words = numbers.clean(sentences.event_text(event), LONGEST).replace(";", ",")
        match self._settings.osc:
            case 9:
                text = f"{ESCAPE}]9;hoptui: {words}{BEL}"
            case 777:
                text = f"{ESCAPE}]777;notify;hoptui;{words}{BEL}"
            case _:
                return ""
        return f"{ESCAPE}Ptmux;{text.replace(ESCAPE, ESCAPE * 2)}{ESCAPE}\\" if self._tmux else text
