"""`hoptui stop`: stop a run after its current iteration."""

from __future__ import annotations

from hoptui.cli.support.options import Json, Run, Timeout, Yes
from hoptui.cli.support.outcomes import TIMEOUT_S, send_verb
from hoptui.cli.support.snapshot import check_offered, look
from hoptui.cli.support.terminal import REJECTED, Fail, agreed, interactive, usage
from hoptui.presentation import numbers
from hoptui.protocol.messages import RunState


def stop(
    run: Run,
    /,
    *,
    yes: Yes = False,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> int:
    """Ask a run to stop after its current iteration. It shuts down normally."""
    with look(steers=True) as seen:
        found = seen.find_living(run)
        check_offered(found, "stop")
        if not yes:
            _confirm(found)
        return send_verb(seen, found, "stop", timeout, json=json)


def _confirm(run: RunState) -> None:
    name = numbers.clean(run.name)
    if not interactive():
        raise usage(f"no terminal to confirm stopping {name} (pid {run.pid}): add --yes")
    if not agreed(f"stop {name} (pid {run.pid})?"):
        raise Fail(f"{name} was not stopped", REJECTED)
