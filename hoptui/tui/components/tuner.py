"""The tuner and its trials as lines: state, result, current trial, and the table of trials. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hoptui.domain.diagnosis import Advice
from hoptui.domain.enumerations import ByValue
from hoptui.domain.knobs import KnobState
from hoptui.domain.tuning import Limits, Measured, Result, Stand, Trial, TunerState, may_turn
from hoptui.model.command_history import UNDO
from hoptui.presentation import diagnosis, job_head, numbers, sentences, tuner, tuner_report, vocabulary
from hoptui.presentation import tuner as tuning
from hoptui.presentation.tuner import RESULTS, STANDS
from hoptui.presentation.vocabulary import Word
from hoptui.tui.components import phases, runs
from hoptui.tui.components.events import STAGE_INKS, measured_effect
from hoptui.tui.run_control import advised
from hoptui.tui.snapshot import SECOND, View
from hoptui.tui.styled_text import TRACK, Line, Span, bar, first_fitting, width_of

LABEL = 9
LABELS = {"throughput": "speed"}
"""The labels of results that have no room for their usual name."""
SPENT = 14  # cells of the bar that says how much of its time the tuner has used
STAND_INKS: dict[Stand, str] = ByValue(
    {"off": "dim", "baseline": "2", "trial": "2", "holding": "good", "waiting": "warn"}, lambda _: "warn"
)
RESULT_INKS: dict[Result, str] = ByValue(
    {
        "running": "2",
        "kept": "good",
        "reverted": "dim",
        "failed": "bad",
        "interrupted": "warn",
        "unfinished": "warn",
    },
    lambda _: "warn",
)


def state_of(view: View) -> TunerState | None:
    """The tuner of the run, if there was one; None in a recording before its end, which does not keep it."""
    return view.run.tuner if view.run is not None else None


def old(view: View) -> bool:
    """Whether what is shown of the tuner is old: `View.stale`, or the head that says it is silent."""
    return (view.stale and view.replay is None) or job_head.old_s(view.vital) is not None


def from_head(view: View) -> str:
    """` · gpu00, as of 40 s ago` after a title if the tuner is on a head that is silent, else empty."""
    found = view.run.head if view.run is not None and job_head.old_s(view.vital) is not None else None
    return f" · {job_head.dated(job_head.name(found), view.vital)}" if found is not None else ""


def at_work(state: TunerState | None) -> bool:
    """Whether there is a tuner that goes on, also while it waits."""
    return state is not None and state.stand != "off"


def to_be_seen(view: View) -> bool:
    """Return whether the run screen shows the tuner: it is at work, or has been."""
    state = state_of(view)
    return state is not None and (at_work(state) or bool(state.tried))


def stand(state: TunerState | None) -> Span:
    """`◷ trial`, in the ink of where the tuner stands."""
    found: Stand = state.stand if state is not None else "off"
    word = STANDS[found]
    return Span(f"{word.symbol} {word.text}", STAND_INKS[found])


def result(trial: Trial) -> Span:
    """`● kept`, in the ink of how a trial ended."""
    word = RESULTS[trial.result]
    return Span(f"{word.symbol} {word.text}", RESULT_INKS[trial.result])


def brief(view: View) -> str:
    """`tuner ◷ trial`, for a title in a small terminal; empty while it is off."""
    state = state_of(view)
    return job_head.dated(f"tuner {stand(state).text}", view.vital) if at_work(state) else ""


def short(view: View, width: int) -> list[Line]:
    """Three lines for the run screen: the state, the current trial or the next step, and the result of the
    last trial.

    A sentence of two lines replaces the next step.
    """
    state = state_of(view)
    if state is None:
        lead, text = _without(view, view.hint("view.tuner", "leads to its start"))
        return [(*lead, Span(text, "dim"))]
    lines = _standing(state, width)
    if at_work(state) and len(lines) == 1:
        lines.append(_under_way(state, width))
    last = state.tried[-1] if state.tried else None
    if last is not None:
        lines.append(ended(last, width))
    elif at_work(state) and state.trial is None:
        lines.append((Span("no trial yet", "faint"),))
    return lines


def ended(trial: Trial, width: int) -> Line:
    """`● kept micro_batch 32 → 64  ▲ +6.1 % ± 1.2`, as much as fits."""
    head = (result(trial), Span(f" {tuner.changes(trial.changes)}"))
    whole, brief = measured_effect(trial.measured), measured_effect(trial.measured, brief=True)
    shapes = [(*head, Span("  "), *rest) for rest in (whole, brief) if rest]
    return first_fitting([*shapes, head], width)


def facts(view: View, width: int) -> list[Line]:
    """The state of the tuner: trial, next step, limits, cost, results, and what limits the run."""
    state = state_of(view)
    if state is None:
        lead, text = _without(view, view.hint("tuner.start", "starts it"))
        return [*_labelled("tuner", text, width, lead=lead), *_limit(view, width)]
    text = sentences.standing(state) or tuner.STANDS_FOR[state.stand]
    lines = _labelled("tuner", text, width, lead=(stand(state), Span("  ")))
    if state.trial is not None:
        lines.append(_with_label("trial", trial_line(state.trial, width - LABEL)))
        why = sentences.why(state.trial)
        lines += _labelled("why", why, width) if why and why != text else []
    if at_work(state):
        lines += _labelled("next", tuner.changes(state.next) or "nothing is planned", width)
    if at_work(state) or state.tried:
        lines += _labelled("limits", tuner.limits(state.limits), width)
        lines.append(_with_label("spent", _spent(view, state, width - LABEL)))
    if at_work(state):
        lines += _labelled("left", tuner.remaining(state, brief=True), width)
    units = view.run.units if view.run is not None else {}
    if regret := _regret(state, units):
        lines += _labelled("regret", regret, width)
    for label, effect in tuner_report.results(state, units):
        lines += _labelled(LABELS.get(label, label), effect, width)
    knobs = view.run.knobs if view.run is not None and state.trial is None else ()
    if values := tuner_report.improved(state, knobs):
        lines += _labelled("copy", tuner_report.copied(values), width)
    return [*lines, *_limit(view, width)]


def trial_line(trial: Trial, width: int) -> Line:
    """`micro_batch 32 → 64  23 iterations, 41 s  so far ▲ +4.1 % ± 2.0`, as much as fits."""
    head = (Span(tuner.changes(trial.changes), "strong"),)
    how_long = Span(f"  {tuner.progress(trial)}", "dim")
    whole, brief = measured_effect(trial.measured), measured_effect(trial.measured, brief=True)
    known = trial.measured is not None and trial.measured.gain is not None
    shapes = [(*head, how_long, Span("  so far "), *whole)] if known else []
    shapes += [
        (*head, *beside, Span("  "), *rest) for beside in ((how_long,), ()) for rest in (whole, brief) if rest
    ]
    return first_fitting([*shapes, (*head, how_long), head], width)


def advice(found: Advice, knob: KnobState) -> str:
    """`micro_batch 32 → 64`, or the direction where no value is known."""
    name = numbers.clean(knob.spec.name, 40)
    if found.value is None:
        return f"{name} {found.direction}".rstrip()
    return f"{name} {numbers.value(knob.value, knob.spec)} → {numbers.value(found.value, knob.spec)}"


def remark(view: View, knob: KnobState) -> str:
    """`tuner: trial`, `tuner: left alone`, for a list of knobs; empty for a knob that is not being tuned."""
    state = state_of(view)
    word = "left alone" if is_frozen(state, knob) else turn(state, knob)
    return job_head.dated(f"tuner: {word}", view.vital) if word else ""


def is_frozen(state: TunerState | None, knob: KnobState) -> bool:
    """Whether a tuner that is at work leaves the knob alone because somebody wants it so."""
    return state is not None and at_work(state) and knob.spec.name in state.frozen


def turn(state: TunerState | None, knob: KnobState) -> str:
    """`trial`, `next`, or nothing."""
    if state is None or not at_work(state):
        return ""
    name = knob.spec.name
    if state.trial is not None and any(change.knob == name for change in state.trial.changes):
        return "trial"
    return "next" if any(change.knob == name for change in state.next) else ""


def turns(state: TunerState | None, knob: KnobState) -> bool:
    """Whether the tuner may turn a knob within its limits."""
    return may_turn(knob.spec, state.limits if state is not None else Limits())


def _standing(state: TunerState, width: int) -> list[Line]:
    """`‖ waiting  the run is paused`, in two lines where it needs them and no trial needs the second."""
    sign = stand(state)
    text = sentences.standing(state) or tuner.STANDS_FOR[state.stand]
    ink = "" if at_work(state) else "dim"
    indent = width_of((sign,)) + 2
    room = max(16, width - indent)
    folded = textwrap.wrap(text, room, max_lines=2, placeholder="…") if state.trial is None else [text]
    first: Line = (sign, Span(f"  {folded[0]}", ink))
    return [first, *((Span("", width=indent), Span(line, ink)) for line in folded[1:])]


def _under_way(state: TunerState, width: int) -> Line:
    """The trial that runs, or what would be next, or else how those ended that there were."""
    if state.trial is not None:
        return trial_line(state.trial, width)
    if state.next:
        return Span("next ", "dim"), Span(tuner.changes(state.next))
    ends = Counter(trial.result for trial in state.tried)
    counts = ", ".join(f"{count} {tuner.RESULTS[end].text}" for end, count in ends.items())
    return (Span(counts, "dim"),) if counts else (Span("nothing is planned", "dim"),)


def _without(view: View, key: str) -> tuple[Line, str]:
    """The text for an unknown state: the tuner is off, and the `key` that starts it; in a recording its last
    remark.
    """
    if view.replay is not None:
        said = [
            e
            for e in view.store.events
            if e.kind == "tuner" and view.run is not None and e.run == view.run.run
        ]
        if not said:
            return (), "recordings do not store the plan of the tuner"
        return (Span(f"{numbers.clock(said[-1].wall)}  ", "dim"),), sentences.event_text(said[-1])
    if view.exited:
        return (), "it was never at work on this run, which has ended"
    starts = "" if view.read_only else key
    return (stand(None), Span("  ")), "; ".join(
        filter(None, (f"{tuner.STANDS_FOR['off']} on this run", starts))
    )


def _spent(view: View, state: TunerState, width: int) -> Line:
    """What trials have cost of what they may, and since when, for whom."""
    used = tuner.used(state)
    lead = (*bar(used, SPENT, "warn" if used is not None and used > 1 else "1"), Span("  "))
    since = f"   since {numbers.clock(when(view, state.started))}" if state.started else ""
    by = f" for {numbers.clean(state.user, 32)}" if state.user else ""
    whole, brief = ((*lead, Span(tuner.cost(state, brief=brief))) for brief in (False, True))
    shapes = [(*whole, Span(rest, "dim")) for rest in (f"{since}{by}", since, "")]
    return first_fitting([*shapes, brief], width)


def _regret(state: TunerState, units: Mapping[str, str]) -> str:
    """What trials cost in work. While the share is unknown, the most that they cost, as far as known."""
    if tuner_report.regret(state) is not None:
        return tuner_report.regret_text(state, units)
    lost = tuner_report.lost(state, units)
    return f"unknown; {lost}" if lost else ""


def _limit(view: View, width: int) -> list[Line]:
    """What holds the run back, with its evidence, and the changes that might help."""
    if view.run is None:
        return []
    found = view.run.diagnosis
    if found is None or found.verdict == "unknown":
        return [_with_label("limit", runs.diagnosis_line(view, phases.measured(view), width - LABEL))]
    lines = _labelled("limit", diagnosis.sentence(found), width)
    if found.facts:
        lines += _labelled("", numbers.clean(" · ".join(diagnosis.evidence(found)), 300), width)
    taken = advised(view)
    for one in found.advice:
        hint = "" if view.read_only or view.replay is not None else view.hint("tuner.advice", "does it")
        does = f"  {hint}" if hint and taken is not None and one is taken[0] else ""
        text = diagnosis.advice_text(one)
        lines += _labelled("advice", f"{text}{does}", width) if text else []
    return lines


def when(view: View, t: int) -> float:
    """The wall clock at a stamp of the node."""
    return view.wall - (view.now - t) / SECOND


def _with_label(label: str, line: Line) -> Line:
    return Span(label, "dim", LABEL), *line


def _labelled(label: str, sentence: str, width: int, *, lead: Line = ()) -> list[Line]:
    """A sentence beside its label, in as many lines as it takes."""
    start = width_of(lead)
    room = max(16, width - LABEL - start)
    folded = textwrap.wrap(sentence, room) or [""]
    first: Line = (Span(label, "dim", LABEL), *lead, Span(folded[0]))
    indent = Span("", width=LABEL + start)
    return [first, *((indent, Span(line)) for line in folded[1:])]


GAP, MARGIN = 2, 2
EFFECT = 20  # cells that an effect has at least: a gain with its interval, or that none was found
MOST_CHANGE = 44


class TrialRow(NamedTuple):
    """One trial; of a recording one command of the tuner, because a recording keeps these."""

    wall: float
    word: Word
    ink: str
    changes: str
    step: int | None
    iterations: int
    seconds: float | None
    measured: Measured | None
    why: str
    throughput: str = ""
    """The effect on the throughput of a trial for energy."""


class TrialColumns(NamedTuple):
    """Cells of each column with the gap after it, 0 where there is no room for it."""

    time: int
    result: int
    change: int
    step: int
    length: int
    speed: int


_SHAPES = (
    "time step length speed word",
    "time length speed word",
    "time speed word",
    "time word",
    "word",
    "",
)
"""What there is room for, the most first: how a trial ended is worth more than when it was."""


def trials(view: View) -> list[TrialRow]:
    """The trials of the run: the running one first, then the newest; of a recording the tuner's commands up
    to its moment.
    """
    state = state_of(view)
    if state is None:
        mine = [c for c in view.commands() if c.origin.kind == "tuner" and c.verb == "set"]
        return [
            TrialRow(
                wall=c.wall,
                word=vocabulary.stage_word(c),
                ink=STAGE_INKS[c.stage],
                changes=vocabulary.change(c),
                step=c.step,
                iterations=c.measured.iterations if c.measured is not None else 0,
                seconds=None,
                measured=c.measured,
                why="" if c.why.startswith(UNDO) else sentences.purpose(c),
            )
            for c in sorted(mine, key=lambda c: c.wall, reverse=True)
        ]
    found = [*state.tried, *([state.trial] if state.trial is not None else [])]
    return [
        TrialRow(
            wall=when(view, trial.t),
            word=tuning.RESULTS[trial.result],
            ink=RESULT_INKS[trial.result],
            changes=tuning.changes(trial.changes),
            step=trial.step,
            iterations=trial.iterations,
            seconds=trial.seconds,
            measured=trial.measured,
            why=sentences.why(trial),
            throughput=tuner_report.throughput_text(trial),
        )
        for trial in reversed(found)
    ]


def trial_columns(view: View, shown: Sequence[TrialRow], width: int) -> TrialColumns:
    """As wide as what stands in them, and as many as leave room for the effect."""
    result = max((len(row.word.text) for row in shown), default=0) + 2 + GAP
    change = min(max((len(row.changes) for row in shown), default=0), MOST_CHANGE) + GAP
    at = max((len(numbers.grouped(row.step)) for row in shown if row.step is not None), default=0)
    speed = max((len(_speeds(view, row)) for row in shown), default=0)
    length = max((len(_length(row)) for row in shown), default=0)
    effect = max([6, *(len(_effect(row)) for row in shown)])
    found = TrialColumns(0, 2, change, 0, 0, 0)
    for shape in _SHAPES:
        found = TrialColumns(
            time=8 + GAP if "time" in shape else 0,
            result=result if "word" in shape else 2,
            change=change,
            step=max(at, 2) + GAP if "step" in shape and at else 0,
            length=max(length, 4) + GAP if "length" in shape and length else 0,
            speed=max(speed, 10) + GAP if "speed" in shape and speed else 0,
        )
        if MARGIN + sum(found) + min(effect, EFFECT) <= width:
            break
    return found


def trial_head(cells: TrialColumns) -> Line:
    """The names of the columns."""
    names = ("time", "result" if cells.result > MARGIN else "", "changes", "at", "took", "throughput")
    shown = [Span(name, "dim", wide) for name, wide in zip(names, cells, strict=True) if wide]
    return Span("", width=MARGIN), *shown, Span("effect", "dim")


def trial_row(view: View, one: TrialRow, cells: TrialColumns, width: int, *, chosen: bool = False) -> Line:
    """One trial in a line of `width` cells."""
    sign = f"{one.word.symbol} {one.word.text}" if cells.result > MARGIN else one.word.symbol
    spans = [Span("› " if chosen else "  ", "key")]
    spans += [Span(numbers.clock(one.wall), "dim", cells.time)] if cells.time else []
    spans += [Span(sign, one.ink, cells.result), Span(one.changes, "strong" if chosen else "", cells.change)]
    at = numbers.grouped(one.step) if one.step is not None else ""
    spans += [Span(at, "dim", cells.step)] if cells.step else []
    spans += [Span(_length(one), "dim", cells.length)] if cells.length else []
    spans += [Span(_speeds(view, one), "", cells.speed)] if cells.speed else []
    whole, brief = measured_effect(one.measured), measured_effect(one.measured, brief=True)
    shown = [each for each in (whole, brief) if each] or [(Span("not measured", "faint"),)]
    return (*spans, *first_fitting(shown, width - width_of(spans)))


def trial_detail(view: View, one: TrialRow, width: int) -> list[Line]:
    """The chosen trial whole: what it changed, what that did, and why it was tried and ended as it did."""
    found: list[Line] = [
        (Span(TRACK * width, "track"),),
        (
            Span(f"{one.word.symbol} {one.word.text}", one.ink),
            Span(f"  {one.changes}", "strong"),
            Span(f"  {numbers.clock(one.wall)}", "dim"),
        ),
    ]
    speeds = _speeds(view, one)
    effect = measured_effect(one.measured)
    if speeds or effect:
        after = f"  ({one.iterations} iterations)" if one.iterations else ""
        found.append((Span(f"{speeds}  " if speeds else ""), *effect, Span(after, "dim")))
    if one.throughput:
        found.append((Span(one.throughput),))
    found += [(Span(line, "dim"),) for line in textwrap.wrap(one.why, max(20, width))]
    return found


def _effect(one: TrialRow) -> str:
    return "".join(span.text for span in measured_effect(one.measured))


def _length(one: TrialRow) -> str:
    return numbers.duration(one.seconds) if one.seconds is not None else ""


def _speeds(view: View, one: TrialRow) -> str:
    return vocabulary.speeds(one.measured, view.run.units if view.run else {})
