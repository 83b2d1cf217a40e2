"""`hoptui resume`: resume a paused run."""

from __future__ import annotations

from hoptui.cli.support.options import Json, Run, Timeout
from hoptui.cli.support.outcomes import TIMEOUT_S, send_verb
from hoptui.cli.support.snapshot import look


def resume(run: Run, /, *, timeout: Timeout = TIMEOUT_S, json: Json = False) -> int:
    """Resume a paused run."""
    with look(steers=True) as seen:
        return send_verb(seen, seen.find_living(run), "resume", timeout, json=json)
