"""What a tuner has achieved, for people: the gain, what it cost, and the values to copy into the script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from hoptui.domain.knobs import KnobState, KnobValue
from hoptui.domain.throughput import PER_SECOND
from hoptui.domain.tuning import Trial, TunerState
from hoptui.presentation import numbers, sentences, tuner, vocabulary

ENDED = ("kept", "reverted", "failed", "interrupted")


def improved(state: TunerState, knobs: Sequence[KnobState]) -> dict[str, KnobValue]:
    """Return the values of the knobs that a kept trial has changed, in the order of the trials.

    They are those in effect, or before a trial that goes on.
    """
    known = {knob.spec.name: knob.value for knob in knobs}
    if state.trial is not None:
        known |= {change.knob: change.before for change in state.trial.changes if change.knob in known}
    first: dict[str, KnobValue] = {}
    for trial in _kept(state):
        for change in trial.changes:
            first.setdefault(change.knob, change.before)
    return {name: known[name] for name, value in first.items() if name in known and known[name] != value}


def copied(values: Mapping[str, KnobValue]) -> str:
    """Return values as arguments of Python: `micro_batch=32, compile=True`."""
    return ", ".join(f"{numbers.clean(name, 40)}={_literal(value)}" for name, value in values.items())


def gain(state: TunerState) -> float | None:
    """Return the product of the measured gains of all kept trials, as a relative gain. None without one."""
    gains = [t.measured.gain for t in _kept(state) if t.measured is not None and t.measured.gain is not None]
    return math.prod(1 + one for one in gains) - 1 if gains else None


def lost_units(state: TunerState) -> float | None:
    """Return the work that would have been done in the time that trials cost. None if the speed is unknown.

    The speed is that before the last trial, in the units of its metric.
    """
    speeds = [trial.measured.before for trial in state.tried if trial.measured is not None]
    known = [speed for speed in speeds if speed is not None]
    return state.spent * state.lived_s * known[-1] if known else None


def lines(state: TunerState, knobs: Sequence[KnobState], units: Mapping[str, str]) -> Iterator[str]:
    """Yield the report, a line each. `units` are those of the run's metrics."""
    ended = [trial for trial in state.tried if trial.result in ENDED]
    kept = _kept(state)
    yield f"{numbers.counted(len(ended), 'trial')}, {len(kept)} kept{_total(state, kept, units)}"
    for trial in ended:
        yield f"  {_line(trial, units)}"
    yield f"cost: {tuner.cost(state)}{_lost(state, units)}"
    if values := improved(state, knobs):
        yield f"copy into your script: {copied(values)}"


def _line(trial: Trial, units: Mapping[str, str]) -> str:
    """Return a trial without the reasons why it was tried. Without a figure, it has the reason of its end."""
    word = tuner.RESULTS[trial.result]
    figured = trial.result in ("kept", "reverted") and trial.measured is not None
    parts = (
        f"{word.symbol} {word.text}",
        tuner.changes(trial.changes),
        vocabulary.effect_text(trial.measured) if figured else _end(trial),
        vocabulary.speeds(trial.measured, units) if figured else "",
        numbers.duration(round(trial.seconds)),
    )
    return "  ".join(filter(None, parts))


def _end(trial: Trial) -> str:
    return sentences.sentence(trial.why[-1]) if trial.why else numbers.clean(trial.text)


def _kept(state: TunerState) -> list[Trial]:
    return [trial for trial in state.tried if trial.result == "kept"]


def _total(state: TunerState, kept: Sequence[Trial], units: Mapping[str, str]) -> str:
    total = gain(state)
    measured = [trial.measured for trial in kept if trial.measured is not None]
    if total is None or not measured:
        return ""
    before, after = measured[0].before, measured[-1].after
    unit = vocabulary.unit_of(measured[0].metric, units)
    speeds = f": {numbers.si(before)} → {numbers.si(after)} {unit}".rstrip()
    return f"{speeds} ({100 * total:+.0f} % by the measured gains)"


def _lost(state: TunerState, units: Mapping[str, str]) -> str:
    lost = lost_units(state)
    metric = next((t.measured.metric for t in reversed(state.tried) if t.measured is not None), "")
    if lost is None or not metric.endswith(PER_SECOND):
        return ""
    return f", about {numbers.si(lost)} {metric.removesuffix(PER_SECOND).replace('_', ' ')} not trained"


def _literal(value: KnobValue) -> str:
    return repr(numbers.clean(value, 80)) if isinstance(value, str) else repr(value)
