"""Arguments and options that several commands share, with their help."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Run = Annotated[str, Parameter(help="A run's name, its id, or the beginning of its id.")]
Json = Annotated[
    bool, Parameter(name="--json", negative=(), show_default=False, help="JSON instead of text.")
]
Timeout = Annotated[float, Parameter(help="Seconds to wait for the outcome.")]
Ascii = Annotated[bool, Parameter(negative=(), show_default=False, help="Draw with ASCII only.")]
Mouse = Annotated[bool, Parameter(show_default=False, help="Whether the dashboard uses the mouse (it does).")]
Yes = Annotated[bool, Parameter(name=("--yes", "-y"), negative=(), show_default=False, help="Do not ask.")]
