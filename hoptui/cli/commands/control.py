"""`hoptui pause`, `resume`, `checkpoint`, `profile` and `stop`."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.support.options import Run, Timeout, Yes
from hoptui.cli.support.outcomes import Given, follow
from hoptui.cli.support.snapshot import NodeSnapshot, look
from hoptui.cli.support.terminal import MISSING, OK, REJECTED, Fail, agreed, interactive, say, usage
from hoptui.domain.knobs import KnobValue
from hoptui.model.command_history import command_line, named
from hoptui.presentation import numbers
from hoptui.protocol.messages import RunState, Verb

TIMEOUT_S = 600.0
RENEW_S = 20.0
LONGEST_PAUSE_S = 3600.0


def pause(
    run: Run,
    /,
    *,
    seconds: Annotated[
        float, Parameter(name="--for", help="Seconds after which it goes on by itself.")
    ] = 60.0,
    hold: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Stay paused until Ctrl-C, then resume.")
    ] = False,
    timeout: Timeout = TIMEOUT_S,
) -> int:
    """Pause a run after its present iteration; it goes on by itself, so that nobody can forget it."""
    if not 1 <= seconds <= LONGEST_PAUSE_S:
        raise usage(f"--for takes 1 to {LONGEST_PAUSE_S:g} seconds, not {seconds:g}")
    with look(steers=True) as seen:
        found = seen.find_living(run)
        code = _give(seen, found, "pause", timeout, hold_s=seconds)
        if code == OK and hold:
            return _hold(seen, found, timeout)
        if code == OK:
            name = numbers.clean(found.name)
            ends = command_line("resume", named(found, seen.node))
            say(f"{name} goes on by itself in {numbers.duration(seconds)}; {ends} ends the pause")
        return code


def resume(run: Run, /, *, timeout: Timeout = TIMEOUT_S) -> int:
    """Let a paused run go on."""
    with look(steers=True) as seen:
        return _give(seen, seen.find_living(run), "resume", timeout)


def checkpoint(run: Run, /, *, timeout: Timeout = TIMEOUT_S) -> int:
    """Have a run write a checkpoint, and say where it wrote it."""
    with look(steers=True) as seen:
        return _give(seen, seen.find_living(run), "checkpoint", timeout)


def profile(
    run: Run,
    /,
    *,
    steps: Annotated[int, Parameter(help="Iterations to trace.")] = 10,
    timeout: Timeout = TIMEOUT_S,
) -> int:
    """Have a run trace its next iterations with its profiler; an event says where the trace was written."""
    if steps < 1:
        raise usage(f"--steps takes a number of iterations, at least 1, not {steps}")
    with look(steers=True) as seen:
        return _give(seen, seen.find_living(run), "profile", timeout, value=steps)


def stop(
    run: Run,
    /,
    *,
    yes: Yes = False,
    timeout: Timeout = TIMEOUT_S,
) -> int:
    """Have a run end after its present iteration, in its own orderly way."""
    with look(steers=True) as seen:
        found = seen.find_living(run)
        if not yes:
            _confirm(found)
        return _give(seen, found, "stop", timeout)


def _give(
    seen: NodeSnapshot,
    run: RunState,
    verb: Verb,
    timeout: float,
    *,
    hold_s: float = 60.0,
    value: KnobValue | None = None,
) -> int:
    if not timeout > 0:
        raise usage(f"--timeout takes seconds, more than 0, not {timeout:g}")
    command = seen.session.submit(run, verb, hold_s=hold_s, value=value)
    code, _ = follow(seen.session, [Given(command, f"{verb} {numbers.clean(run.name)}")], timeout_s=timeout)
    return code


def _hold(seen: NodeSnapshot, run: RunState, timeout: float) -> int:
    """Renew the pause until Ctrl-C, then end it; if this process dies, the run goes on within a minute."""
    say("paused until Ctrl-C")
    try:
        while seen.lives(seen.store.run(run.run) or run):
            seen.session.renew_pause(run.run)
            time.sleep(RENEW_S)
            seen.refresh()
    except KeyboardInterrupt:
        return _give(seen, run, "resume", timeout)
    raise Fail(f"{numbers.clean(run.name)} ({run.run}) has exited", MISSING)


def _confirm(run: RunState) -> None:
    name = numbers.clean(run.name)
    if not interactive():
        raise usage(f"stopping {name} (pid {run.pid}) needs --yes where nobody can be asked")
    if not agreed(f"stop {name} (pid {run.pid})?"):
        raise Fail(f"{name} was not stopped", REJECTED)
