"""`hoptui profile`: ask a run to trace its next iterations with its profiler."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.support.options import Run, Timeout
from hoptui.cli.support.outcomes import TIMEOUT_S, send_verb
from hoptui.cli.support.snapshot import NONE, check_offered, look
from hoptui.cli.support.terminal import OK, REJECTED, Fail, say, usage, warn
from hoptui.client.session import Session
from hoptui.domain import traces
from hoptui.presentation import numbers
from hoptui.protocol.messages import Delta, RunState

POLL_S = 1.0


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
    """Ask a run to trace its next iterations with its profiler, and wait for the event with the path.

    What the run traces without further options is its own choice. Ctrl-C ends the waiting, not the trace.
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
        check_offered(living, "profile")
        for name in options:
            if "profile" in living.can and traces.declared(name) not in living.can:
                raise Fail(
                    f"{living.name} cannot trace with --{name}: its profiler has no such option", REJECTED
                )
        end = time.monotonic() + timeout
        past = seen.session.fetch(run=living.run, commands=NONE)
        code = send_verb(seen, living, "profile", timeout, value=steps, options=options)
        if code != OK:
            return code
        return _wait(seen.session, living, past, end)


def _wait(session: Session, run: RunState, past: Delta, end: float) -> int:
    """Wait for the event that reports the trace, and print it. Return the exit code.

    Scripts with a handler of their own may report nothing: then the code is that of the command, 0.
    """
    before = max((event.seq for event in past.events), default=0)
    state = past.state
    while (left := end - time.monotonic()) > 0:
        delta = session.fetch(
            run=run.run, events=before, commands=NONE, state=state, wait_s=min(POLL_S, left)
        )
        state = delta.state
        for event in delta.events:
            before = max(before, event.seq)
            if event.run == run.run and event.kind == "note" and "trace" in event.text.lower():
                say(event.text)
                return OK if event.level == "info" else REJECTED
            if event.run == run.run and event.kind == "exited":
                raise Fail(f"{numbers.clean(run.name)} has ended, and reported no trace", REJECTED)
    warn("hoptui: the run has not reported the trace yet; hoptui watch shows its events")
    return OK
