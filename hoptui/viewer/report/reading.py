"""From a recording to the facts of a report."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hoptui.protocol.messages import Event, RunState
from hoptui.recording import Recording
from hoptui.viewer.history import left
from hoptui.viewer.recorded import RecordedStore
from hoptui.viewer.report import diagnosed
from hoptui.viewer.report.facts import ITERATION, Curve, Energy, Phase, Report
from hoptui.viewer.report.stretches import Sources, ends, stretch
from hoptui.viewer.report.sums import PHASE, Sums, summed

TUNER, SHIFT = "tuner", "shift"
TOOK_EFFECT = ("applied", "reverted")
# Pieces of the curve: a few iterations in each, so that an evaluation now and then does not look like a gap, one for two columns of
# text at least, and at most four for a column or one for 3 px of a picture.
ROWS, FEWEST_PIECES, MOST_PIECES = 8, 36, 288
FINE = 4096  # buckets that watts are integrated over
ALL_ITERATIONS = 0.98  # with fewer of them a run has worked more than its rows tell
# A count of energy that ended longer before the end, in seconds and as a share of the whole, is not all of it.
OLD_S, OLD = 60.0, 0.05


def read(recording: Recording) -> Report:
    """What an open recording tells of its run.

    Raises:
        RecordingError: it cannot be read, does not say which run it is of, or has nothing in it.
    """
    store = RecordedStore(recording)
    store.seek(store.span[1])
    state, node, sources = store.chronicle.run_at(store.span[1]), store.node, store.pages.sources
    run, derived = f"run/{state.run}", f"derived/{state.run}"
    about = {f"gpu/{uuid}" for uuid in state.gpus}
    events = [e for e in store.chronicle.events if e.run == state.run or e.source in about]
    own = [event for event in events if event.run == state.run]
    commands = [left(c) if state.exit_reason else c for c in store.chronicle.commands]
    sets = [record for record in commands if record.verb == "set"]
    changes = sorted((c for c in sets if c.stage in TOOK_EFFECT), key=lambda c: c.settled or c.t)
    rows = curve = first = last = None
    if run in sources:
        names = recording.names(run)
        metric = _metric(state, names)
        rows = summed(recording, run, names, _rate(state, metric))
        curve = _curve(recording, run, metric, store.span, sources[run][2]) if metric else None
        telling = Sources(
            run,
            tuple(n for n in names if n in (ITERATION, metric) or n.startswith(PHASE)),
            derived if derived in sources else "",
            sorted(about) if about <= sources.keys() else (),
        )
        began, ended, _ = sources[run]
        first, last = (stretch(recording, telling, edges) for edges in ends(began, ended, changes))
    return Report(
        state=state,
        host=node.host if node else "",
        gpus=tuple(gpu for gpu in node.gpus if gpu.uuid in state.gpus) if node else (),
        span=store.span,
        wall_offset_ns=recording.wall_offset_ns,
        complete_from=recording.thinned_before,
        alive_s=diagnosed.alive_s(own, *store.span),
        steps=rows.last_step if rows else None,
        iterating_s=rows.seconds if rows and recording.thinned_before is None else None,
        curve=curve,
        first=first,
        last=last,
        changes=tuple(changes),
        refused=tuple(c for c in sets if c.stage not in TOOK_EFFECT),
        commands=tuple(c for c in commands if c.verb != "set"),
        knobs_at_first={
            k.spec.name: k.value for k in store.chronicle.run_at(first.t1 if first else store.span[0]).knobs
        },
        verdicts=_verdicts(own, store.span),
        phases=_phases(rows) if rows else (),
        energy=_energy(recording, state, rows, sources.get(derived)),
        tuner=tuple(c for c in commands if c.origin.kind == TUNER),
        tuner_events=tuple(e for e in own if e.kind == TUNER),
        shifts=tuple(e for e in own if e.kind == SHIFT),
        events=tuple(e for e in events if e.kind not in (TUNER, SHIFT, diagnosed.DIAGNOSIS)),
    )


def _metric(state: RunState, names: Sequence[str]) -> str:
    """What stands for the run's throughput: as it has declared, else its first rate, else the seconds of an iteration."""
    if state.headline in names:
        return state.headline
    found = next((name for name in names if name.endswith("_per_s")), "")
    return found or (ITERATION if ITERATION in names else "")


def _rate(state: RunState, metric: str) -> str:
    """The metric if it is a rate, "" otherwise."""
    return metric if metric.endswith("_per_s") or state.units.get(metric, "").endswith("/s") else ""


def _curve(recording: Recording, run: str, metric: str, span: tuple[int, int], rows: int) -> Curve:
    pieces = min(MOST_PIECES, max(FEWEST_PIECES, rows // ROWS))
    found = recording.buckets(run, (metric,), span[0], span[1], pieces)
    return Curve(metric, array("q", found.t), array("d", found.mean[0]))


def _verdicts(events: Sequence[Event], span: tuple[int, int]) -> tuple[diagnosed.Held, ...]:
    """Nothing where none was ever told: a recording without a diagnosis is not one that was undiagnosed for so long."""
    if not any(event.kind == diagnosed.DIAGNOSIS for event in events):
        return ()
    return tuple(diagnosed.held(events, *span))


def _phases(rows: Sums) -> tuple[Phase, ...]:
    """The outermost phases, the longest first."""
    outer = {n: s for n, s in rows.phases.items() if n.rpartition("/")[0] not in rows.phases}
    whole = max(rows.seconds, sum(outer.values()))
    found = [Phase(name, seconds, seconds / whole) for name, seconds in outer.items() if whole > 0]
    return tuple(sorted(found, key=lambda phase: -phase.seconds))


def _energy(
    recording: Recording, state: RunState, rows: Sums | None, extent: tuple[int, int, int] | None
) -> Energy:
    """Of the run's GPUs on this node. With fewer of them than the run has ranks, nothing is said of a unit of its work."""
    if extent is None:
        return Energy(None, None, None, None)
    names = ("energy_j", "power_w", "idle_power_w")
    found = recording.buckets(f"derived/{state.run}", names, extent[0], extent[1], FINE)
    counted = [(t, j) for t, j in zip(array("q", found.t), array("d", found.high[0]), strict=True) if j == j]
    patience = max(OLD_S * 1e9, OLD * (extent[1] - extent[0]))
    total = counted[-1][1] if counted and extent[1] - counted[-1][0] <= patience else None
    per_unit = None
    complete = rows is not None and recording.thinned_before is None and rows.covered >= ALL_ITERATIONS
    if rows is not None and complete and total is not None and rows.work and len(state.gpus) >= state.world:
        per_unit = total / rows.work
    watts, idle = _integrated(array("q", found.t), array("d", found.mean[1]), array("d", found.mean[2]))
    return Energy(total, watts, idle, per_unit)


def _integrated(
    t: Sequence[int], power: Sequence[float], idle: Sequence[float]
) -> tuple[float | None, float | None]:
    """The mean watts, and the share of the energy that fell on SM time without work, where both are known most of the time."""
    seconds = joules = both = wasted = 0.0
    for i in range(1, len(t)):
        used = power[i] * (t[i] - t[i - 1])
        if power[i - 1] != power[i - 1] or used != used:  # a gap lasts from its stamp to the next bucket
            continue
        seconds += t[i] - t[i - 1]
        joules += used
        if idle[i] == idle[i]:
            both += used
            wasted += idle[i] * (t[i] - t[i - 1])
    if not seconds:
        return None, None
    return joules / seconds, wasted / both if both > joules / 2 else None
