"""`hoptui` and `hoptui attach`: the dashboard of a node, a run, a recording or other hosts."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli import launcher
from hoptui.cli.support.options import AS_SET, Dashboard

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
    return launcher.attach(run, hoptui, dataclasses.asdict(options))
