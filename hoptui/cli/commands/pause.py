"""`hoptui pause`: pause a run after its current iteration, for a time or until Ctrl-C."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.support.options import Json, Run, Timeout
from hoptui.cli.support.outcomes import TIMEOUT_S, send_verb
from hoptui.cli.support.snapshot import NodeSnapshot, look
from hoptui.cli.support.terminal import MISSING, OK, Fail, say, usage
from hoptui.model.command_history import command_line, named
from hoptui.presentation import numbers
from hoptui.protocol.messages import RunState

RENEW_S = 20.0
LONGEST_PAUSE_S = 3600.0


def pause(
    run: Run,
    /,
    *,
    seconds: Annotated[
        float, Parameter(name="--for", help="Seconds after which the run resumes automatically.")
    ] = 60.0,
    hold: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Stay paused until Ctrl-C, then resume.")
    ] = False,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> int:
    """Pause a run after its current iteration. It resumes automatically."""
    if not 1 <= seconds <= LONGEST_PAUSE_S:
        raise usage(f"--for must be 1 to {LONGEST_PAUSE_S:g} seconds, not {seconds:g}")
    if json and hold:
        raise usage("--json and --hold cannot be combined")
    with look(steers=True) as seen:
        found = seen.find_living(run)
        code = send_verb(seen, found, "pause", timeout, hold_s=seconds, json=json)
        if code == OK and hold:
            return _hold(seen, found, timeout)
        if code == OK and not json:
            name = numbers.clean(found.name)
            ends = command_line("resume", named(found, seen.node))
            say(f"{name} resumes in {numbers.duration(seconds)}; to resume it now: {ends}")
        return code


def _hold(seen: NodeSnapshot, run: RunState, timeout: float) -> int:
    """Renew the pause until Ctrl-C, then end it; if this process dies, the run resumes within a minute."""
    say("paused until Ctrl-C")
    try:
        while seen.lives(seen.store.run(run.run) or run):
            seen.session.renew_pause(run.run)
            time.sleep(RENEW_S)
            seen.refresh()
    except KeyboardInterrupt:
        return send_verb(seen, run, "resume", timeout)
    raise Fail(f"{numbers.clean(run.name)} ({run.run}) has exited", MISSING)
