"""`hoptui checkpoint`: a run writes a checkpoint."""

from __future__ import annotations

from hoptui.cli.support.control import TIMEOUT_S, send_verb
from hoptui.cli.support.options import Run, Timeout
from hoptui.cli.support.snapshot import look


def checkpoint(run: Run, /, *, timeout: Timeout = TIMEOUT_S) -> int:
    """Have a run write a checkpoint, and say where it wrote it."""
    with look(steers=True) as seen:
        return send_verb(seen, seen.find_living(run), "checkpoint", timeout)
