"""`hoptui run`: start a command whose training is shown, without a change of its code."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from hoptui.injection import launch


def run(
    *command: Annotated[
        str,
        Parameter(allow_leading_hyphen=True, help="The command, such as: python train.py --lr 0.1"),
    ],
    name: Annotated[
        str | None,
        Parameter(show_default=False, help="The name of the run. Without it, that of the script."),
    ] = None,
    tag: Annotated[
        tuple[str, ...],
        Parameter(show_default=False, negative=(), help="A tag of the run, any number of times."),
    ] = (),
    output: Annotated[
        bool,
        Parameter(negative=(), help="Copy what its Python code writes to a terminal or a pipe, to show it."),
    ] = False,
) -> int:
    """Run a command whose training hoptui shows, without a change of its code.

    An iteration is a step of the first optimizer of torch. The learning rate is a knob. Options of hoptui
    come before the command. The command replaces this process, so its exit code, signals and terminal are
    its own.
    """
    words = [word for one in tag for word in ("--tag", one)]
    return launch.main(
        [
            *words,
            *(("--output",) if output else ()),
            *(("--name", name) if name is not None else ()),
            "--",
            *(command or sys.argv[2:]),
        ]
    )
