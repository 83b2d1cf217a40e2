"""What a tuner has achieved, for people: the gain, what it cost, and the values to copy into the script."""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hoptui.domain.knobs import KnobState, KnobValue
from hoptui.domain.throughput import PER_SECOND
from hoptui.domain.tuning import WORK_PER_JOULE, YOUNG_S, Measured, Trial, TunerState
from hoptui.presentation import numbers, sentences, tuner, vocabulary

ENDED = ("kept", "reverted", "failed", "interrupted")
MANY = 1000
"""The energy is that of so many units of work. Of one token or sample it is a small fraction of a joule."""


class TotalEffect(NamedTuple):
    """The effect of all kept changes together: relative `gain` ± `interval`, and the values of `metric`."""

    metric: str
    before: float | None
    after: float | None
    gain: float
    interval: float


class EnergySaving(NamedTuple):
    """What kept changes save: joules for a unit of work before and after, and the saved `share` ± `interval`.

    `joules` ± `joules_interval` are those saved so far, as far as the tuner has counted the work. Both are
    None if it has counted none.
    """

    before: float | None
    after: float | None
    share: float
    interval: float
    joules: float | None
    joules_interval: float | None


class FirstHourRegret(NamedTuple):
    """The `units` lost to trials in the first `seconds` of training with a tuner, at most an hour.

    `share` is that of the work at the best known setting in these seconds.
    """

    share: float
    units: float
    seconds: float


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
    """Return values as arguments of a call in Python: `micro_batch=32, compile=True`.

    Names that cannot be arguments come last, in a dictionary: `**{"optim.fused": True}`.
    """
    plain = {name: v for name, v in values.items() if name.isidentifier() and not keyword.iskeyword(name)}
    others = ", ".join(f"{name!r}: {v!r}" for name, v in values.items() if name not in plain)
    arguments = [f"{name}={value!r}" for name, value in plain.items()]
    return ", ".join([*arguments, f"**{{{others}}}"] if others else arguments)


def gain(state: TunerState) -> float | None:
    """Return the product of the measured gains of all kept trials, as a relative gain. None without one."""
    total = _total_effect(_measured(state))
    return total.gain if total is not None else None


def gain_interval(state: TunerState) -> float | None:
    """Return the interval of `gain`. None without a gain."""
    total = _total_effect(_measured(state))
    return total.interval if total is not None else None


def throughput(state: TunerState) -> TotalEffect | None:
    """Return the effect on the throughput of what was kept to save energy. None if there is nothing."""
    return _total_effect(trial.throughput for trial in _for_energy(state))


def saving(state: TunerState) -> EnergySaving | None:
    """Return the energy that kept trials save. None if none was kept to save energy."""
    kept = _for_energy(state)
    total = _total_effect(trial.measured for trial in kept)
    if total is None:
        return None
    share, interval = _saved(total)
    joules, uncertain = 0.0, 0.0
    for i, trial in enumerate(kept, 1):
        so_far = _total_effect(one.measured for one in kept[:i])
        if so_far is None or not total.before:
            continue
        each, each_interval = _saved(so_far)
        joules += trial.units / total.before * each
        uncertain += trial.units / total.before * each_interval
    known = any(trial.units for trial in kept) and bool(total.before)
    return EnergySaving(
        before=1 / total.before if total.before else None,
        after=1 / total.after if total.after else None,
        share=share,
        interval=interval,
        joules=joules if known else None,
        joules_interval=uncertain if known else None,
    )


def lost_units(state: TunerState) -> float | None:
    """Return the work that would have been done in the time that trials cost. None if the speed is unknown.

    The speed is that before the last trial, in the units of its metric.
    """
    speeds = [found.before for found in _speeds(state) if found.before is not None]
    return state.spent * state.lived_s * speeds[-1] if speeds else None


def regret(state: TunerState) -> FirstHourRegret | None:
    """Return what trials cost in the first hour. None if the work in them or the best rate is unknown."""
    seconds = min(state.lived_s, YOUNG_S)
    if state.regret_units is None or not state.best_rate or not seconds:
        return None
    return FirstHourRegret(state.regret_units / (state.best_rate * seconds), state.regret_units, seconds)


def regret_text(state: TunerState, units: Mapping[str, str]) -> str:
    """Return `0.8 % of the first hour at the best known setting: 12.3 k samples`, or `unknown`."""
    found = regret(state)
    if found is None:
        return "unknown"
    whole = "the first hour" if found.seconds >= YOUNG_S else numbers.duration(round(found.seconds))
    of = f"{tuner.share(found.share)} of {whole} at the best known setting"
    work = next((_work(one.metric, units) for one in reversed(_speeds(state))), "")
    return f"{of}: {numbers.si(found.units)} {work}" if work else of


def lines(state: TunerState, knobs: Sequence[KnobState], units: Mapping[str, str]) -> Iterator[str]:
    """Yield the report, a line each. `units` are those of the run's metrics."""
    ended = [trial for trial in state.tried if trial.result in ENDED]
    kept = _kept(state)
    yield f"{numbers.counted(len(ended), 'trial')}, {len(kept)} kept{_total(state, units)}"
    for trial in ended:
        yield f"  {_line(trial, units)}"
    for label, text in results(state, units):
        yield f"{label}: {text}"
    yield f"cost: {', '.join(filter(None, (tuner.cost(state), lost(state, units))))}"
    yield f"regret: {regret_text(state, units)}"
    if values := improved(state, knobs):
        yield f"copy into your script: {copied(values)}"


def results(state: TunerState, units: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what was achieved besides the gain of the objective: a label and a text each.

    `energy` and `saved` are the joules for the work and those saved so far, `throughput` is what that costs.
    """
    energy, pace = saving(state), throughput(state)
    if energy is not None:
        work = _work(pace.metric if pace is not None else "", units) or "units"
        each = " → ".join(
            _joules(MANY * one if one is not None else None) for one in (energy.before, energy.after)
        )
        yield (
            "energy",
            f"{each} per {numbers.grouped(MANY)} {work} ({_percent(-energy.share, energy.interval)})",
        )
        if energy.joules is not None and energy.joules_interval is not None:
            about = f"about {_joules(energy.joules)} ± {_joules(energy.joules_interval)}"
            yield "saved", f"{about} since the change, while the tuner was on"
    if pace is not None:
        unit = vocabulary.unit_of(pace.metric, units)
        speeds = f"{numbers.si(pace.before)} → {numbers.si(pace.after)} {unit}".rstrip()
        yield "throughput", f"{speeds} ({_percent(pace.gain, pace.interval)})"


def lost(state: TunerState, units: Mapping[str, str]) -> str:
    """Return the work that was not done because of trials: `about 3.60 k samples not trained`.

    Empty where it is unknown.
    """
    work = next((_work(found.metric, units) for found in reversed(_speeds(state))), "")
    amount = lost_units(state)
    return f"about {numbers.si(amount)} {work} not trained" if amount is not None and work else ""


def _line(trial: Trial, units: Mapping[str, str]) -> str:
    """Return a trial without the reasons why it was tried. Without a figure, it has the reason of its end."""
    word = tuner.RESULTS[trial.result]
    figured = trial.result in ("kept", "reverted") and trial.measured is not None
    parts = (
        f"{word.symbol} {word.text}",
        tuner.changes(trial.changes),
        vocabulary.effect_text(trial.measured) if figured else _end(trial),
        vocabulary.speeds(trial.measured, units) if figured else "",
        throughput_text(trial) if figured else "",
        numbers.duration(round(trial.seconds)),
    )
    return "  ".join(filter(None, parts))


def throughput_text(trial: Trial) -> str:
    """`throughput -6.2 % ± 0.9` of a trial for energy; empty for any other."""
    effect = vocabulary.effect_text(trial.throughput)
    return f"throughput {effect}" if effect else ""


def _end(trial: Trial) -> str:
    return sentences.sentence(trial.why[-1]) if trial.why else numbers.clean(trial.text)


def _kept(state: TunerState) -> list[Trial]:
    return [trial for trial in state.tried if trial.result == "kept"]


def _for_energy(state: TunerState) -> list[Trial]:
    kept = _kept(state)
    return [t for t in kept if t.measured is not None and t.measured.metric == WORK_PER_JOULE]


def _measured(state: TunerState) -> list[Measured]:
    """Return the effects of kept trials on the newest objective. Gains of another one are not comparable."""
    found = [t.measured for t in _kept(state) if t.measured is not None and t.measured.gain is not None]
    return [one for one in found if one.metric == found[-1].metric]


def _speeds(state: TunerState) -> list[Measured]:
    """Return the effects on the throughput, of all trials."""
    found = (trial.throughput or trial.measured for trial in state.tried)
    return [one for one in found if one is not None and one.metric != WORK_PER_JOULE]


def _total_effect(effects: Iterable[Measured | None]) -> TotalEffect | None:
    """Return the effects one after another as one. Their errors are independent, and add up as squares."""
    found = [one for one in effects if one is not None and one.gain is not None and one.gain > -1]
    if not found:
        return None
    ratios = [1 + (one.gain or 0.0) for one in found]
    widths = [one.interval or 0.0 for one in found]
    uncertain = math.hypot(*(math.log1p(w / ratio) for w, ratio in zip(widths, ratios, strict=True)))
    total = math.prod(ratios)
    interval = total * math.expm1(uncertain)
    return TotalEffect(found[-1].metric, found[0].before, found[-1].after, total - 1, interval)


def _saved(total: TotalEffect) -> tuple[float, float]:
    """Return the share of energy that is saved if a joule does more work, and its interval.

    The interval is the wider side: that of a smaller gain.
    """
    least = 1 + total.gain - total.interval
    share = 1 - 1 / (1 + total.gain)
    return share, (1 / least - 1 / (1 + total.gain) if least > 0 else math.inf)


def _total(state: TunerState, units: Mapping[str, str]) -> str:
    total = _total_effect(_measured(state))
    if total is None:
        return ""
    unit = vocabulary.unit_of(total.metric, units)
    speeds = f": {numbers.si(total.before)} → {numbers.si(total.after)} {unit}".rstrip()
    return f"{speeds} ({_percent(total.gain, total.interval)} by the measured gains)"


def _percent(gain: float, interval: float) -> str:
    """`-20.0 % ± 0.8`."""
    return f"{100 * gain:+.1f} % ± {100 * interval:.1f}"


def _joules(joules: float | None) -> str:
    """`12.3 kJ`."""
    amount = numbers.si(joules)
    return f"{amount}J" if amount[-1:].isalpha() else f"{amount} J"


def _work(metric: str, units: Mapping[str, str]) -> str:
    """Return what a throughput counts: `samples`. Empty if it is not known."""
    unit = vocabulary.unit_of(metric, units)
    if unit.endswith("/s"):
        return unit.removesuffix("/s")
    return metric.removesuffix(PER_SECOND).replace("_", " ") if metric.endswith(PER_SECOND) else ""
