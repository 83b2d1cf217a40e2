"""A run without a daemon: what is sent to it, and what it has logged."""

from __future__ import annotations

import time
from typing import Any

from hoptui.protocol.messages import Command, Origin, Outcome
from hoptui.sdk.run import Run
from tests.run_state import queued_rows, run_state

PERSON = Origin(user="kim", pid=7)


def send(run: Run, verb: Any = "set", **fields: Any) -> list[Outcome]:
    made: dict[str, Any] = {"id": f"c{time.monotonic_ns()}", "epoch": run_state(run).epoch, "origin": PERSON}
    fields = made | fields
    return run_state(run).inbox.receive(
        Command(run=run.id, verb=verb, **fields), time.monotonic(), run.step + 1
    )


def rows(run: Run) -> list[dict[str, float]]:
    return [row for _, _, row in queued_rows(run_state(run))]
