"""`hoptui wait`: wait until something happens to a run."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.support.options import Json, Run
from hoptui.cli.support.run_events import EVENTS, Waiting
from hoptui.cli.support.snapshot import look
from hoptui.cli.support.terminal import MISSING, OK, Fail, dump, say, usage
from hoptui.presentation import numbers

TIMEOUT_S = 600.0


def wait(
    run: Run,
    /,
    *,
    event: Annotated[
        str, Parameter(name="--for", help="; ".join(f"{name}: {text}" for name, text in EVENTS.items()))
    ],
    timeout: Annotated[float, Parameter(help="Seconds to wait at most.")] = TIMEOUT_S,
    json: Json = False,
) -> int:
    """Wait until something happens to a run.

    Exit code 3 if it has not happened in time, or cannot happen any more.
    """
    if not timeout >= 0:
        raise usage(f"--timeout must be 0 seconds or more, not {timeout:g}")
    with look(readings=False) as seen:
        found = seen.find(run)
        answer = Waiting(seen, found, event).until(timeout)
    if json:
        dump(answer)
    elif not answer["happened"]:
        raise Fail(answer["reason"], MISSING)
    else:
        say(f"{numbers.clean(found.name)}: {event} after {numbers.duration(answer['waited_s'])}")
    return OK if answer["happened"] else MISSING
