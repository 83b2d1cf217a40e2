"""`hoptui profile`: ask a run to trace its next iterations with its profiler."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.support.options import Run, Timeout
from hoptui.cli.support.outcomes import TIMEOUT_S, send_verb
from hoptui.cli.support.snapshot import look
from hoptui.cli.support.terminal import usage


def profile(
    run: Run,
    /,
    *,
    steps: Annotated[int, Parameter(help="Iterations to trace.")] = 10,
    timeout: Timeout = TIMEOUT_S,
) -> int:
    """Ask a run to trace its next iterations with its profiler. An event reports the path of the trace."""
    if steps < 1:
        raise usage(f"--steps must be at least 1 iteration, not {steps}")
    with look(steers=True) as seen:
        return send_verb(seen, seen.find_living(run), "profile", timeout, value=steps)
