"""`hoptui checkpoint`: ask a run to write a checkpoint."""

from __future__ import annotations

from hoptui.cli.support.options import Json, Run, Timeout
from hoptui.cli.support.outcomes import TIMEOUT_S, send_verb
from hoptui.cli.support.snapshot import look


def checkpoint(run: Run, /, *, timeout: Timeout = TIMEOUT_S, json: Json = False) -> int:
    """Ask a run to write a checkpoint and print where it is."""
    with look(steers=True) as seen:
        return send_verb(seen, seen.find_living(run), "checkpoint", timeout, json=json)
