"""`hoptui profile`: ask a run to trace its next iterations with its profiler."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.support.options import Run, Timeout
from hoptui.cli.support.outcomes import TIMEOUT_S, send_verb
from hoptui.cli.support.snapshot import look
from hoptui.cli.support.terminal import REJECTED, Fail, usage
from hoptui.domain import traces


def profile(
    run: Run,
    /,
    *,
    steps: Annotated[int, Parameter(help="Iterations to trace.")] = 10,
    wait: Annotated[int | None, Parameter(help="Iterations to leave out first.")] = None,
    warmup: Annotated[
        int | None,
        Parameter(help="Iterations in which the profiler runs and records nothing, before the trace."),
    ] = None,
    stacks: Annotated[bool | None, Parameter(help="Record the source line of each operation.")] = None,
    shapes: Annotated[bool | None, Parameter(help="Record the shapes of its inputs.")] = None,
    memory: Annotated[bool | None, Parameter(help="Record each allocation.")] = None,
    timeout: Timeout = TIMEOUT_S,
) -> int:
    """Ask a run to trace its next iterations with its profiler. An event reports the path of the trace.

    What the run traces without further options is its own choice.
    """
    if steps < 1:
        raise usage(f"--steps must be at least 1 iteration, not {steps}")
    every = {"wait": wait, "warmup": warmup, "stacks": stacks, "shapes": shapes, "memory": memory}
    options = {name: value for name, value in every.items() if value is not None}
    for name, value in options.items():
        if not traces.valid(name, value):
            raise usage(f"--{name} must be 0 to {traces.MOST_TRACED} iterations, not {value}")
    with look(steers=True) as seen:
        living = seen.find_living(run)
        for name in options:
            if "profile" in living.can and traces.declared(name) not in living.can:
                raise Fail(
                    f"{living.name} cannot trace with --{name}: its profiler has no such option", REJECTED
                )
        return send_verb(seen, living, "profile", timeout, value=steps, options=options)
