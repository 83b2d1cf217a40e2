"""How many iterations of a run have finished."""

from __future__ import annotations

from hoptui.domain.columns import Columns

ITERATION = "iteration_s"
"""The metric that every finished iteration has, and no other row."""


def finished(step: int, total: int | None) -> int:
    """Return how many iterations have finished once iteration `step` has.

    Iterations count from 0. A loop that counts its own from 1 ends with `total`, and no run does more than
    planned because of that.
    """
    return step if step == total else step + 1


def finished_by_rows(rows: Columns, total: int | None) -> int:
    """Return the same for the newest finished iteration in some rows of a run, 0 without one."""
    if ITERATION not in rows.names:
        return 0
    seconds, steps = rows.column(ITERATION), rows.steps()
    newest = next((step for step, s in zip(reversed(steps), reversed(seconds), strict=True) if s == s), -1)
    return finished(newest, total)
