"""`hoptui` and `hoptui attach`: open the dashboard of a node, a run, a recording or remote hosts."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli import launcher
from hoptui.cli.support.options import AS_SET, Dashboard

Where = Annotated[
    str,
    Parameter(
        help=(
            "A run's name or id, a recording file, ssh://[user@]host[:port][/run], slurm:JOB[/NODE[/RUN]], "
            "or local[/run]. Several hosts may be given."
        )
    ),
]


def attach(
    *run: Where,
    hoptui: Annotated[
        str,
        Parameter(
            show_default=False, help="The hoptui command on the remote hosts, if it is not on their PATH."
        ),
    ] = "hoptui",
    srun: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Run the dashboard inside the Slurm job, on its node, where ssh to the node is forbidden.",
        ),
    ] = False,
    options: Dashboard = AS_SET,
) -> int:
    """Open the dashboard of a run, a recording or remote hosts; without RUN, the overview of this node."""
    return launcher.attach(run, hoptui, dataclasses.asdict(options), srun=srun)
