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
LATEST = 32
"""So many of a run's newest commands are looked at: as many knobs may be changed together and still be measured."""
CHANGED = ("applied", "reverted")
ASIDE = ("phase/evaluation", "phase/checkpoint", "phase/paused")
"""Iterations with one of these phases are not counted as throughput."""


def unsettled(records: Sequence[CommandRecord], epoch: int) -> tuple[list[CommandRecord], list[int]]:
    """The newest changes of an epoch that took effect, oldest first, and the places of those not measured to the end yet.

    One that was taken back later is among them, since nothing before that may count for the next one; it is not measured.
    """
    changes = [
        r
        for r in records[-LATEST:]
        if r.verb == "set" and r.stage in CHANGED and r.step is not None and r.epoch == epoch
    ]
    unmeasured = (
        i
        for i, r in enumerate(changes)
        if r.stage == "applied" and (r.measured is None or not r.measured.settled)
    )
    return changes, list(unmeasured)


def measured(
    applied: Sequence[CommandRecord], places: Sequence[int], rows: Columns, metric: str
) -> Iterator[tuple[CommandRecord, Measured]]:
    """What these changes did to `metric`, as far as `rows`, the run's newest, tell; those with news alone.

    Changes that were applied at one boundary have one effect, and each says which others it shares it with.
    """
    points = throughput(rows, metric)
    steps = [record.step or 0 for record in applied]
    for i in places:
        at = steps[i]
        earlier, later = [s for s in steps if s < at], [s for s in steps if s > at]
        start = max(earlier) + WARM_UP if earlier else 0
        end = min(later) if later else None
        before = [v for step, v in points if start <= step < at][-BEFORE:]
        after = [v for step, v in points if at <= step and (end is None or step < end)]
        found = measure(metric, before, after)
        if end is not None and not found.settled:
            note = "another change came before it could be measured" if found.gain is None else found.note
            found = structs.replace(found, settled=True, note=note)
        others = [r.knob for j, r in enumerate(applied) if j != i and steps[j] == at and r.stage == "applied"]
        if others:  # what one of them did alone nobody can tell
            note = ", ".join(filter(None, (found.note, f"together with {' and '.join(others)}")))
            found = structs.replace(found, note=note)
        if found != applied[i].measured:
            yield applied[i], found


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
