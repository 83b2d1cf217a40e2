"""Arguments and options that several commands share, with their help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

Run = Annotated[str, Parameter(help="A run's name, its id, or the beginning of its id.")]
RunOrFile = Annotated[str, Parameter(help="The name or id of a run, the beginning of an id, or a recording.")]
Json = Annotated[
    bool, Parameter(name="--json", negative=(), show_default=False, help="Print JSON instead of text.")
]
Timeout = Annotated[float, Parameter(help="Seconds to wait for the outcome.")]
Yes = Annotated[
    bool,
    Parameter(name=("--yes", "-y"), negative=(), show_default=False, help="Do not ask for confirmation."),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Dashboard:
    """Options of the commands that open the dashboard. None means: use the environment or `config.toml`."""

    theme: Annotated[
        Literal["auto", "dark", "light", "ansi", "none"] | None,
        Parameter(
            show_default=False, help="Colours. auto is dark, or the closest that the terminal supports."
        ),
    ] = None
    ascii: Annotated[bool | None, Parameter(show_default=False, help="Draw with ASCII only.")] = None
    mouse: Annotated[
        bool | None, Parameter(show_default=False, help="Use the mouse in the dashboard (default).")
    ] = None
    read_only: Annotated[
        bool | None,
        Parameter(show_default=False, help="Send nothing to runs: no knob changes, no commands, no signals."),
    ] = None


AS_SET = Dashboard()

Output = Annotated[
    str,
    Parameter(
        name=("--output", "-o"), allow_leading_hyphen=True, help="The file to write; - is standard output."
    ),
]
Force = Annotated[bool, Parameter(negative=(), show_default=False, help="Overwrite the output file.")]
