"""Why there is nothing to show yet, in one line: a box is never just empty. Pure."""

from __future__ import annotations

import textwrap

from hoptui.presentation import numbers
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span


def reason(view: View) -> str:
    """What is being waited for; empty where the daemon has told of the node, and of the run if the view is of one."""
    why = numbers.clean(view.link.reason, 300)
    if view.node is not None:
        return ""
    match view.link.state:
        case "failed":
            return why or "the daemon cannot be reached"
        case "lost":
            to = view.link.node or "the daemon"
            return f"the link to {to} is lost ({why}): reconnecting" if why else f"reconnecting to {to}"
        case _:
            if view.link.node:
                return why or f"connecting to {view.link.node}"
            return f"connecting to the daemon: {why}" if why else "connecting to the daemon"


def whole(view: View, width: int, otherwise: str = "") -> list[Line]:
    """The reason in as many lines as it needs, else `otherwise`: a place of each screen tells it to its end."""
    ink = "warn" if view.link.state == "failed" else "dim"
    return [(Span(line, ink),) for line in textwrap.wrap(reason(view) or otherwise, max(20, width))]


def short(view: View) -> str:
    """The same beside a place that tells the reason."""
    if view.node is None and view.link.state == "failed":
        return "unknown: the daemon cannot be reached"
    return reason(view)


def line(view: View, otherwise: str) -> Line:
    """Why there is nothing yet, else `otherwise`."""
    return (Span(short(view) or otherwise, "dim"),)
