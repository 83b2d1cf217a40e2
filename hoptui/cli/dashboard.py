"""`hoptui`, `hoptui attach` and `hoptui replay`: the dashboard. Only here is `hoptui.tui` imported."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.node import look
from hoptui.cli.options import AS_SET, Dashboard
from hoptui.cli.terminal import REJECTED, Fail, interactive, usage
from hoptui.viewer import config
from hoptui.viewer.config import Config
from hoptui.viewer.places import BadPlace, Place, parse

Where = Annotated[
    str,
    Parameter(
        help="A run's name or id, the file of a recording, ssh://[user@]host[:port][/run], or local[/run]; several hosts at once."
    ),
]


def attach(
    *run: Where,
    hoptui: Annotated[
        str, Parameter(show_default=False, help="The hoptui command on the other hosts, if not on the PATH.")
    ] = "hoptui",
    options: Dashboard = AS_SET,
) -> int:
    """The dashboard of a run, a recording or other hosts; without RUN the overview of this node."""
    from hoptui.cli.recordings import is_path

    places = [_place(typed) for typed in run]
    remote = len(places) > 1 or any(place.remote for place in places)
    if not remote and places and is_path(places[0].run):
        return replay(places[0].run, options=options)
    if not _drawable():
        raise usage(
            "the dashboard needs a terminal; hoptui ls, hoptui status RUN and hoptui watch RUN print plain text"
        )
    if remote:
        from hoptui.cli.hosts import open_hosts

        return open_hosts(places, hoptui, configured(options))
    found = None
    if places and places[0].run:
        with look() as seen:
            found = seen.find(places[0].run).run
    return open_dashboard(found, options)


def _place(typed: str) -> Place:
    try:
        return parse(typed)
    except BadPlace as error:
        raise usage(str(error)) from None


def open_dashboard(run: str | None, options: Dashboard = AS_SET) -> int:
    """The dashboard on this terminal, until the person leaves it; `run` is a run's id."""
    from hoptui.tui import app

    return app.run(run, config=configured(options))


def configured(options: Dashboard) -> Config:
    """What is set by these options, the environment and `config.toml`; ASCII also where stdout has no UTF-8.

    Under `LANG=C` it has: Python takes that for no choice and writes UTF-8 (PEP 538, PEP 540).
    """
    found = config.read(dataclasses.asdict(options))
    if found.ascii or (sys.stdout.encoding or "").lower().replace("-", "") == "utf8":
        return found
    encoding = config.Value(True, "the terminal's encoding")
    return dataclasses.replace(found, values={**found.values, "ascii": encoding})


def replay(
    recording: Annotated[str, Parameter(help="A recording's file, or the name or id of a recorded run.")],
    /,
    *,
    options: Dashboard = AS_SET,
) -> int:
    """The dashboard on a recording, as it was then; it needs neither a daemon nor a GPU."""
    from hoptui.cli import recordings
    from hoptui.recording import RecordingError

    if not _drawable():
        raise usage(
            "a replay needs a terminal; hoptui export writes the same rows as CSV, JSON lines or Parquet"
        )
    path = recordings.find(recording)
    from hoptui.tui import app

    try:
        return app.replay(str(path), config=configured(options))
    except RecordingError as error:
        raise Fail(str(error), REJECTED) from None


def _drawable() -> bool:
    """Whether there is a terminal to draw on, or a web server in its place."""
    return interactive() or "TEXTUAL_DRIVER" in os.environ
