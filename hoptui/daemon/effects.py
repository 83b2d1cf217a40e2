"""Which iterations count for and against a change of a knob; how much it did is `hoptui.tuner.effect`'s to say. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import structs

from hoptui.tuner.effect import WARM_UP, measure
from hoptui.wire.columns import Columns
from hoptui.wire.messages import CommandRecord, Measured

BEFORE = 60
"""Iterations before a change that its effect is measured against, at most."""
LATEST = 8
"""So many of a run's newest commands are looked at."""
ASIDE = ("phase/evaluation", "phase/checkpoint", "phase/paused")
"""Iterations with one of these phases are not counted as throughput."""


def unsettled(records: Sequence[CommandRecord], epoch: int) -> tuple[list[CommandRecord], list[int]]:
    """The newest applied changes of an epoch, oldest first, and the places of those not measured to the end yet."""
    applied = [
        r
        for r in records[-LATEST:]
        if r.verb == "set" and r.stage == "applied" and r.step is not None and r.epoch == epoch
    ]
    return applied, [i for i, r in enumerate(applied) if r.measured is None or not r.measured.settled]


def measured(
    applied: Sequence[CommandRecord], places: Sequence[int], rows: Columns, metric: str
) -> Iterator[tuple[CommandRecord, Measured]]:
    """What these changes did to `metric`, as far as `rows`, the run's newest, tell; those with news alone."""
    points = throughput(rows, metric)
    for i in places:
        record = applied[i]
        at = record.step or 0
        start = (applied[i - 1].step or 0) + WARM_UP if i else 0
        end = applied[i + 1].step if i + 1 < len(applied) else None
        before = [v for step, v in points if start <= step < at][-BEFORE:]
        after = [v for step, v in points if at <= step and (end is None or step < end)]
        found = measure(metric, before, after)
        if end is not None and not found.settled:
            note = "another change came before it could be measured" if found.gain is None else found.note
            found = structs.replace(found, settled=True, note=note)
        if found != record.measured:
            yield record, found


def throughput(rows: Columns, metric: str) -> list[tuple[int, float]]:
    """(iteration, throughput) of the iterations that did nothing but train."""
    try:
        values = rows.column(metric)
    except KeyError:
        return []
    aside = [rows.column(name) for name in ASIDE if name in rows.names]
    return [
        (step, value)
        for i, (step, value) in enumerate(zip(rows.steps(), values, strict=True))
        if not math.isnan(value) and all(math.isnan(a[i]) for a in aside)
    ]
