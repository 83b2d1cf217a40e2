"""`hoptui` and `hoptui attach`: the dashboard. Only here is `hoptui.tui` imported."""

from __future__ import annotations

import sys

from hoptui.cli.node import look
from hoptui.cli.options import Ascii, Mouse, Run
from hoptui.cli.terminal import interactive, usage


def attach(run: Run | None = None, /, *, ascii: Ascii = False, mouse: Mouse = True) -> int:  # noqa: A002
    """The dashboard of a run; without RUN the overview of this node."""
    if not interactive():
        raise usage(
            "the dashboard needs a terminal; hoptui ls, hoptui status RUN and hoptui watch RUN print plain text"
        )
    found = None
    if run is not None:
        with look() as seen:
            found = seen.find(run).run
    return open_dashboard(found, ascii=ascii, mouse=mouse)


def open_dashboard(run: str | None, *, ascii: bool = False, mouse: bool = True) -> int:  # noqa: A002
    """The dashboard on this terminal, until the person leaves it; `run` is a run's id."""
    from hoptui.tui import app

    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return app.run(run, ascii=ascii or encoding != "utf8", mouse=mouse)
