"""`hoptui replay`: play a recording in the dashboard."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli import launcher
from hoptui.cli.support.options import AS_SET, Dashboard
from hoptui.cli.support.terminal import usage


def replay(
    recording: Annotated[
        str | None, Parameter(help="A recording file, or the name or id of a recorded run.")
    ] = None,
    /,
    *more: Annotated[
        str, Parameter(help="Recordings of other nodes of the same run: their ranks are shown together.")
    ],
    example: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Play a recording that ships with hoptui; RECORDING is its name [default: lm-h200].",
        ),
    ] = False,
    options: Dashboard = AS_SET,
) -> int:
    """Play a recording in the dashboard. This needs neither a daemon nor a GPU.

    Several recordings of one run, of a node each, are played as one. Their clocks are aligned by the
    iterations that they have in common.
    """
    if example:
        from hoptui.cli.support import recordings

        recording = str(recordings.example(recordings.EXAMPLE if recording is None else recording))
    if example and more:
        raise usage("--example plays one recording")
    if recording is None:
        raise usage(
            "hoptui replay needs RECORDING (hoptui ls --all lists them) or --example; "
            "try hoptui replay --help"
        )
    return launcher.replay(recording, dataclasses.asdict(options), more=more)
