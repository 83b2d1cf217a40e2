"""The words of the tuner, for the command line and the dashboard alike: where it stands, its limits, what it
tried."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from hoptui.domain.enumerations import ByValue
from hoptui.domain.tuning import (
    YOUNG_S,
    Change,
    Limits,
    Objective,
    Result,
    Stand,
    Trial,
    TunerState,
    written,
)
from hoptui.presentation import numbers, sentences, vocabulary
from hoptui.presentation.vocabulary import Word
from hoptui.protocol.messages import Event

STANDS: dict[Stand, Word] = ByValue(
    {
        "off": Word("◌", "off"),
        "baseline": Word("◐", "preparing"),
        "trial": Word("◷", "trial"),
        "holding": Word("●", "watching"),
        "waiting": Word("‖", "waiting"),
    },
    lambda value: Word("?", value),
)
RESULTS: dict[Result, Word] = ByValue(
    {
        "running": Word("◷", "running"),
        "kept": Word("●", "kept"),
        "reverted": Word("↶", "reverted"),
        "failed": Word("✕", "failed"),
        "interrupted": Word("»", "interrupted"),
        "unfinished": Word("◌", "unfinished"),
    },
    lambda value: Word("?", value),
)
OBJECTIVES: dict[Objective, str] = ByValue(
    {
        "throughput": "more in the same time",
        "energy": "less energy for the same work",
    },
    str,
)
STANDS_FOR: dict[Stand, str] = ByValue(
    {
        "off": "it changes nothing",
        "baseline": "it measures the current speed",
        "trial": "it tries other values",
        "holding": "it watches, and tries nothing now",
        "waiting": "it cannot continue now",
    },
    str,
)
"""What a stand means, where the tuner itself says nothing."""


def changes(found: Iterable[Change]) -> str:
    """`micro_batch 32 → 64, grad_accum 4 → 2`; empty where there are none."""
    texts = []
    for one in found:
        before, value = numbers.alike(one.before, one.value)
        texts.append(f"{numbers.clean(one.knob, 40)} {before} → {value}")
    return ", ".join(texts)


def limits(within: Limits) -> str:
    """`memory up to 92 % · 2 % of the time · for throughput · speed knobs only`."""
    parts = [f"memory up to {numbers.percent(within.memory, decimals=0)}"]
    if within.power_w is not None:
        parts.append(f"power up to {numbers.grouped(within.power_w)} W")
    parts += [f"{share(within.budget)} of the time", f"for {within.objective}", allowed(within.learning)]
    if within.dry:
        parts.append("dry run: it tries nothing")
    return " · ".join(parts)


def allowed(learning: Iterable[str]) -> str:
    """Which knobs besides those of effect `speed`: `also lr and num_envs`."""
    names = [
        "all learning knobs except free ones" if name == "*" else numbers.clean(name, 40) for name in learning
    ]
    return f"also {' and '.join(names)}" if names else "speed knobs only"


def standing(state: TunerState) -> str:
    """`● nothing is left to try`; nothing between a trial and what follows it."""
    word = STANDS[state.stand]
    if state.stand == "trial":
        return f"{word.symbol} trying {changes(state.trial.changes)}" if state.trial else ""
    return f"{word.symbol} {sentences.standing(state) or STANDS_FOR[state.stand]}"


def in_words(state: TunerState) -> TunerState:
    """A state whose `text`, and that of its trials, is the sentence of its facts."""
    return structs.replace(
        state,
        text=sentences.standing(state),
        trial=trial_in_words(state.trial) if state.trial is not None else None,
        tried=tuple(map(trial_in_words, state.tried)),
    )


def trial_in_words(trial: Trial) -> Trial:
    """A trial whose `text` is the sentence of its reasons."""
    return structs.replace(trial, text=sentences.why(trial))


def used(state: TunerState) -> float | None:
    """The share of what trials may cost that they have cost: more than 1 when overdrawn, None where nothing
    may be spent."""
    may_s = _may_s(state)
    return state.spent * state.lived_s / may_s if may_s > 0 else None


def cost(state: TunerState, *, brief: bool = False) -> str:
    """What trials have cost, of what they may: `28 % of the budget: 20 s of 1 m 12 s (2 % of the first
    hour)`; `28 %: …` in `brief`."""
    if _time_unknown(state):
        return f"{share(state.spent)} of the time"
    of = "" if brief else " of the budget"
    share_used = numbers.percent(used(state), decimals=0)
    spent, may = (numbers.duration(round(s)) for s in (state.spent * state.lived_s, _may_s(state)))
    return f"{share_used}{of}: {spent} of {may} ({_of_time(state)})"


def remaining(state: TunerState, *, brief: bool = False) -> str:
    """What further trials may cost: `at most 2 m 4 s (4 % of the first hour) and the excess of one trial`.

    The last trial that the budget covers may exceed it. How long the search takes is not known beforehand.
    The share is left out in `brief`.
    """
    if state.limits.dry:
        return "nothing: a dry run tries nothing"
    if _time_unknown(state):
        return "an unknown time: the daemon is older and does not report it"
    left = numbers.duration(round(max(0.0, _may_s(state) - state.spent * state.lived_s)))
    of = "" if brief else f" ({_of_time(state)})"
    return f"at most {left}{of} and the excess of one trial; search time unknown"


def budget_of_an_hour(limits: Limits) -> str:
    """The budget as a share and as a time: `4 % of the time: 2 m 24 s an hour`."""
    may = numbers.duration(round(limits.budget * YOUNG_S))
    return f"{share(limits.budget)} of the time: {may} an hour"


def _time_unknown(state: TunerState) -> bool:
    """Whether an older daemon reports the share that trials have cost, without the time."""
    return bool(state.spent) and not state.lived_s


def _of_time(state: TunerState) -> str:
    """`4 % of the first hour`, later `4 % of the time`."""
    whole = "the first hour" if state.lived_s < YOUNG_S else "the time"
    return f"{share(state.limits.budget)} of {whole}"


def _may_s(state: TunerState) -> float:
    """Seconds that trials may cost: a share of the time in which the run trained, of an hour until it has
    done so for one."""
    return state.limits.budget * max(state.lived_s, YOUNG_S)


def share(ratio: float) -> str:
    """A share of a run's time, which may be small: `2 %`, `0.5 %`, at the least `under 0.01 %`."""
    if 0 < ratio < 1e-4:
        return "under 0.01 %"
    return numbers.percent(ratio, digits=2)


def progress(trial: Trial) -> str:
    """How long a trial goes on, or took: `23 iterations, 41 s`."""
    count = numbers.counted(trial.iterations, "iteration")
    return f"{count}, {numbers.duration(trial.seconds)}"


def sentence(trial: Trial) -> str:
    """A trial in one line: `● kept  micro_batch 32 → 64  +6.1 % ± 1.2  memory was free`."""
    word = RESULTS[trial.result]
    measured = vocabulary.effect_text(trial.measured)
    parts = (f"{word.symbol} {word.text}", changes(trial.changes), measured, sentences.why(trial))
    return "  ".join(part for part in parts if part)


def reports(event: Event, trial: Trial) -> bool:
    """Whether an event of the tuner is the end of this trial.

    One of an older recording is recognised by its text, however digits are grouped there.
    """
    if event.code:
        return event.code == "trial.ended" and event.fields.get("t") == trial.t
    said = event.text
    plain, head = said.replace(" ", ""), f"{trial.result} {written(trial.changes)}".replace(" ", "")
    return (plain.startswith((f"{head},", f"{head}:")) and said.endswith(trial.text)) or plain == head


def starts(event: Event) -> bool:
    """Whether an event of the tuner is its start. An older recording has it in words."""
    return event.code == "tuner.started" or (not event.code and event.text.startswith("started by"))
