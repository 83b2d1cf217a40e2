"""The effect of each change of a knob: which iterations count, and which trial measured it. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import structs

from hoptui.domain.columns import Columns
from hoptui.domain.facts import fact
from hoptui.domain.throughput import ASIDE_COLUMNS
from hoptui.domain.tuning import Measured, Trial, TunerState
from hoptui.protocol.messages import CommandRecord
from hoptui.tuner.effect import WARM_UP, measure, plan_for

LATEST = 32
"""So many of a run's newest commands are looked at: as many knobs may be changed together and still be
measured."""
CHANGED = ("applied", "reverted")
RESTARTED = "restarted"
"""The code of a change that took effect in a new process."""


def unsettled(records: Sequence[CommandRecord], epoch: int) -> tuple[list[CommandRecord], list[int]]:
    """The newest changes that took effect up to `epoch`, oldest first, and the places of those not measured
    to the end yet.

    A change by a restart takes effect in the next epoch, which goes on where the one before was left: the
    changes of that one count with it. With any other restart it begins anew. One that was taken back later is
    among them, since nothing before that may count for the next one; it is not measured.
    """
    newest = [r for r in records[-LATEST:] if r.verb == "set"]
    left = {r.epoch for r in newest if r.code in ("restarting", RESTARTED)}
    first = epoch
    while first - 1 in left:
        first -= 1
    changes = [
        r
        for r in newest
        if r.stage in CHANGED and r.step is not None and r.epoch + (r.code == RESTARTED) >= first
    ]
    return changes, [i for i, r in enumerate(changes) if _open(r)]


def lost(
    records: Sequence[CommandRecord], counted: Sequence[CommandRecord]
) -> Iterator[tuple[CommandRecord, Measured]]:
    """What is to be said of the newest changes that are not `counted`, and will never be measured to the
    end."""
    ids = {record.id for record in counted}
    for record in records[-LATEST:]:
        if record.verb == "set" and record.step is not None and _open(record) and record.id not in ids:
            found = record.measured or Measured()
            if found.gain is None:
                found = structs.replace(found, remarks=(fact("effect.restarted"),))
            yield record, structs.replace(found, settled=True)


def _open(record: CommandRecord) -> bool:
    return record.stage == "applied" and (record.measured is None or not record.measured.settled)


def measured(
    applied: Sequence[CommandRecord],
    places: Sequence[int],
    rows: Columns,
    metric: str,
    tuner: TunerState | None = None,
) -> Iterator[tuple[CommandRecord, Measured]]:
    """What these changes did to `metric`, as far as `rows`, the run's newest, tell; those with news alone.

    Changes that were applied at one boundary have one effect, and each says which others it shares it with. A
    change that was made in a trial of the `tuner` has the trial's figure, unless the trial ended without one.
    """
    points = throughput(rows, metric)
    steps = [record.step or 0 for record in applied]
    for i in places:
        at = steps[i]
        with_it = [r for j, r in enumerate(applied) if steps[j] == at and (j == i or r.stage == "applied")]
        trial = trial_of(applied[i], tuner)
        if trial is not None and (trial.result == "running" or trial.measured is not None):
            ended = trial.result != "running"
            found = structs.replace(trial.measured, settled=ended) if trial.measured is not None else None
        else:
            earlier, later = [s for s in steps if s < at], [s for s in steps if s > at]
            start = max(earlier) + WARM_UP if earlier else 0
            end = min(later) if later else None
            before = [v for step, v in points if start <= step < at]
            after = [v for step, v in points if at <= step and (end is None or step < end)]
            found = measure(metric, before, after, plan_for(r.knob for r in with_it))
            if end is not None and not found.settled:
                cut = (fact("effect.cut_short"),) if found.gain is None else found.remarks
                found = structs.replace(found, settled=True, remarks=cut)
        if found is None:
            continue
        if others := [r.knob for r in with_it if r is not applied[i]]:
            found = structs.replace(found, remarks=(*found.remarks, fact("effect.shared", knobs=others)))
        if found != applied[i].measured:
            yield applied[i], found


def trial_of(record: CommandRecord, tuner: TunerState | None) -> Trial | None:
    """The trial that a command belongs to, None for a user's command and for one that undoes a trial."""
    if tuner is None or record.origin.kind != "tuner":
        return None
    trials = (*tuner.tried, *((tuner.trial,) if tuner.trial is not None else ()))
    begun = [trial for trial in trials if trial.t <= record.t]
    changes = begun[-1].changes if begun else ()
    own = any(c.knob == record.knob and c.before != record.wanted for c in changes)
    return begun[-1] if own else None


def throughput(rows: Columns, metric: str) -> list[tuple[int, float]]:
    """(iteration, throughput) of the iterations that did nothing but train.

    Where a run has gone back to an earlier checkpoint, those since then.
    """
    try:
        values = rows.column(metric)
    except KeyError:
        return []
    aside = [rows.column(name) for name in ASIDE_COLUMNS if name in rows.names]
    points: list[tuple[int, float]] = []
    for i, (step, value) in enumerate(zip(rows.steps(), values, strict=True)):
        if math.isnan(value):
            continue
        if points and step < points[-1][0]:
            points.clear()
        if all(math.isnan(a[i]) for a in aside):
            points.append((step, value))
    return points
