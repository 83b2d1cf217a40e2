"""`hoptui`, `hoptui attach` and `hoptui replay`: the dashboard. Only here is `hoptui.tui` imported."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.node import look
from hoptui.cli.options import Ascii, Mouse
from hoptui.cli.terminal import REJECTED, Fail, interactive, usage


def attach(
    run: Annotated[str, Parameter(help="A run's name or id, or the file of a recording.")] | None = None,
    /,
    *,
    ascii: Ascii = False,  # noqa: A002
    mouse: Mouse = True,
) -> int:
    """The dashboard of a run or a recording; without RUN the overview of this node."""
    from hoptui.cli.recordings import is_path

    if run is not None and is_path(run):
        return replay(run, ascii=ascii, mouse=mouse)
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

    return app.run(run, ascii=ascii or not _utf8(), mouse=mouse)


def replay(
    recording: Annotated[str, Parameter(help="A recording's file, or the name or id of a recorded run.")],
    /,
    *,
    ascii: Ascii = False,  # noqa: A002
    mouse: Mouse = True,
) -> int:
    """The dashboard on a recording, as it was then; it needs neither a daemon nor a GPU."""
    from hoptui.cli import recordings
    from hoptui.recording import RecordingError

    if not interactive():
        raise usage(
            "a replay needs a terminal; hoptui export writes the same rows as CSV, JSON lines or Parquet"
        )
    path = recordings.find(recording)
    from hoptui.tui import app

    try:
        return app.replay(str(path), ascii=ascii or not _utf8(), mouse=mouse)
    except RecordingError as error:
        raise Fail(str(error), REJECTED) from None


def _utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
