"""Runs: the list, live ones first, and the summary of one: throughput, learning metrics, diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from hoptui.domain.columns import head_of
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.learning_metrics import learning_names
from hoptui.model.outputs import last_lines
from hoptui.model.runs import failed
from hoptui.presentation import diagnosis, job_head, numbers, vocabulary
from hoptui.presentation.metric_names import label_of
from hoptui.protocol.messages import RunState, State
from hoptui.tui.charts.plot import Mark
from hoptui.tui.components import figures, phases, targets
from hoptui.tui.components.events import last_change, unmeasured
from hoptui.tui.components.figures import (
    VALUE,
    energy,
    fact,
    headline,
    newest,
    number,
    recent,
    unless_old,
)
from hoptui.tui.components.header import INKS
from hoptui.tui.components.phases import OTHER, PhaseBar, Split
from hoptui.tui.run_control import advised
from hoptui.tui.snapshot import SECOND, View
from hoptui.tui.styled_text import Line, Span, bar, first_fitting, pack, width_of

T = TypeVar("T")


def ordered(view: View) -> list[RunState]:
    """The runs as the list shows them: those that exist by their start, newest first, then the ended ones."""
    runs = view.node.runs if view.node else ()
    return sorted(runs, key=lambda run: (view_of(view, run).exited, -run.started_wall))


def living(view: View) -> list[RunState]:
    """Those that have not ended, in the same order."""
    return [run for run in ordered(view) if not view_of(view, run).exited]


def beside(listed: Sequence[T], here: T | None, step: int) -> T | None:
    """The next of a list after this one, or the one before, round and round; None where there is no other."""
    others = [one for one in listed if one != here]
    if not others:
        return None
    at = listed.index(here) if here in listed else -1 if step > 0 else 0
    return listed[(at + step) % len(listed)]


_AGE, _BAR = 11, 14
_SPEED, _UNIT = 10, 15
_WHY = 45  # cells that almost every ending fits into


class _Columns(NamedTuple):
    """The widths of the parts of a run's line; 0 leaves a part out. The speed, or the reason for none, gets
    the rest.
    """

    state: int
    name: int
    iteration: int
    done: int
    age: int

    @classmethod
    def of(cls, view: View, runs: list[RunState], width: int) -> _Columns:
        """As wide as what is in them, the age and the bar only where there is room for them."""
        views = [view_of(view, run) for run in runs]
        state = 2 + max((len(word_of(one).text) for one in views), default=5)
        name = min(2 + max((len(numbers.clean(run.name, 40)) for run in runs), default=5), 32, width // 4)
        iteration = min(max([9, *(len(iteration_of(one)) for one in views)]), 25)
        left = width - 4 - state - name - iteration
        age = _AGE if left - _AGE >= _SPEED + _UNIT else 0
        done = _BAR if left - age - _BAR >= _WHY else 0
        return cls(state, name, iteration, done, age)


def rows(view: View, width: int, cursor: int) -> list[Line]:
    """Symbol and word of the state, name, iterations, throughput, age; if there is room, a target that is
    missed, else the last effect.
    """
    runs = ordered(view)
    columns = _Columns.of(view, runs, width)
    return [
        _row(view_of(view, run), run, columns, width, chosen=i == cursor) for i, run in enumerate(runs)
    ] or _none(view, width)


def head(view: View, width: int) -> Line:
    """Return the head of the list."""
    c = _Columns.of(view, ordered(view), width)
    spans = [Span("    state", "dim", 4 + c.state), Span("run", "dim", c.name)]
    spans.append(Span("iteration", "dim", c.iteration, right=True))
    spans += [Span("", width=c.done)] if c.done else []
    spans += [Span("ran for", "dim", c.age, right=True)] if c.age else []
    return (*spans, Span("throughput", "dim", _SPEED + 2, right=True))


def _row(view: View, run: RunState, c: _Columns, width: int, *, chosen: bool) -> Line:
    vital, word = view.vital, word_of(view)
    state = state_of(view)
    ink = INKS[state] if state else "dim"
    spans = [
        Span("› " if chosen else "  ", "key"),
        Span(f"{word.symbol} ", ink),
        Span(word.text, ink, c.state),
        Span(numbers.clean(run.name, 40), "" if view.exited else "strong", c.name),
        Span(iteration_of(view), "", c.iteration, right=True),
    ]
    if c.done:
        step = vocabulary.iteration(vital)
        done = step / run.total if step is not None and run.total else None
        spans += [Span("  "), *bar(done, c.done - 2, "1")]
    if c.age:
        spans.append(Span(numbers.duration(view.ran_s), "dim", c.age, right=True))
    if not as_usual(view):
        return (*spans, Span("  "), Span(why_not_live(view), ink))  # where the speed would stand
    speed = headline(view)
    value = unless_old(view, speed.name, speed.value)
    spans += [Span(numbers.logged(value), "", _SPEED, right=True), Span(f" {speed.unit}  ", "dim")]
    room = width - width_of(spans)
    missed = next((line for line in targets.missed(view) if width_of(line) <= room), None)
    return (*spans, *(missed or last_change(view, room)))


def state_of(view: View) -> State | None:
    """The state of the view's run; None if unknown: a lost link hides whether a run has ended."""
    if view.exited:
        return "exited"
    return view.vital.state if view.vital and not view.node_stale else None


def word_of(view: View) -> vocabulary.Word:
    """The same with its symbol."""
    state = state_of(view)
    if state in ("busy", "unresponsive") and view.vital is not None:
        return vocabulary.state_word(view.vital)
    return vocabulary.STATES[state] if state else vocabulary.UNKNOWN_STATE


def as_usual(view: View) -> bool:
    """Return whether the state needs no remark besides the throughput."""
    return state_of(view) in (None, "live")


def why_not_live(view: View) -> str:
    """Why it is not live, in the words behind its state."""
    return vocabulary.state_text(view.vital, view.run).partition(": ")[2] if view.run else ""


def iteration_of(view: View) -> str:
    """`1 204 / 5 000`."""
    step = numbers.grouped(vocabulary.iteration(view.vital))
    return f"{step} / {numbers.grouped(view.run.total)}" if view.run and view.run.total else step


def view_of(view: View, run: RunState) -> View:
    """The view of one of its node's runs."""
    return view._replace(run=run, vital=view.store.vital(run.run))


def _none(view: View, width: int) -> list[Line]:
    if view.node is None:
        advice = [
            (),
            (Span("hoptui doctor", "key", 30), Span("says what works on this node and what does not", "dim")),
        ]
        ours = view.link.state == "failed" and not view.link.node
        return [*figures.missing_lines(view, width), *(advice if ours else ())]
    if view.replay is not None:
        return [(Span("this recording has no run", "strong"),)]
    return [
        (Span("no run on this node yet", "strong"),),
        (),
        (Span("hoptui demo", "key", 30), Span("starts a real PPO run on this machine", "dim")),
        (Span('hoptui.connect("name")', "key", 30), Span("in a training script makes it a run", "dim")),
    ]


TUNER = "T"
"""The tuner's sign at the top of a mark. It separates trials from users' commands without colours."""


def throughput_lines(view: View, width: int) -> list[Line]:
    """The headline and the other rates; under it what the last change did."""
    head = headline_rate(view)
    facts = next(iter(pack(_facts(view), max(0, width - width_of(head)), "  ")), ())
    below = last_change(view, width) or unmeasured(view, "no change of a knob")
    return [(*head, *facts), below]


def headline_rate(view: View) -> Line:
    """`512 k env steps/s`."""
    head = headline(view)
    return Span(numbers.logged(head.value), "strong"), Span(f" {head.unit}   ", "dim")


def metrics_age(view: View) -> str:
    """How old the values are, where that must be known."""
    age_s = view.age_s(view.source) if view.metrics_stale else None
    return f"values are {numbers.duration(age_s)} old" if age_s is not None and age_s >= 1 else ""


NAME_CELLS = 12
"""The most cells of the name of a knob beside its mark."""


def change_marks(view: View) -> list[Mark]:
    """The applied changes, for the charts, with their knobs; those of the tuner with its sign."""
    return [
        Mark(
            c.settled or c.t,
            sign=TUNER if c.origin.kind == "tuner" else "",
            name=numbers.clean(c.knob, NAME_CELLS),
        )
        for c in view.commands()
        if c.verb == "set" and c.stage == "applied"
    ]


NOTE = "N"
"""On the mark of a note of a user."""


def note_marks(view: View) -> list[Mark]:
    """The notes of users on the run, for the charts."""
    if view.run is None:
        return []
    offset = view.node.wall_offset_ns if view.node else round(view.wall * 1e9) - view.now
    return [Mark(round(note.wall * 1e9) - offset, "dim", NOTE) for note in view.run.notes]


def _facts(view: View) -> list[Line]:
    head = headline(view)
    found = [fact("iteration", numbers.seconds(phases.iteration_s(view)), VALUE)]
    found += [(Span(cost),)] if (cost := energy(view)) else []
    rates = [n for n in view.store.names(view.source) if n.endswith("_per_s") and n != head.name]
    found += [
        fact(label_of(n.removesuffix("_per_s")) + "/s", number(recent(view, view.source, n, 2.0)), VALUE)
        for n in rates
    ]
    return found


def learning_metrics(view: View) -> list[str]:
    """What the learning chart can show, the most telling first: no phases, rates or counts."""
    return learning_names(view.store.names(view.source), view.run.headline if view.run else "")


def learning_lines(view: View, chosen: str, width: int) -> list[Line]:
    """The chosen metric, then as many others as fit in a line; a hint if the run has logged nothing."""
    if view.run is None:
        return [figures.missing_line(view, "looking for the run"), ()]
    if not chosen and view.run.rank and view.run.head is None:
        return [(Span(job_head.UNKNOWN_HEAD, "dim"),), ()]
    if not chosen:
        return [
            (Span("nothing is logged yet", "dim"),),
            (Span("run.log(loss=…) in its loop is shown here", "faint"),),
        ]
    unit = numbers.clean(view.run.units.get(chosen, ""), 16) if view.run else ""
    head: Line = (Span(number(newest(view, chosen)), "strong"), Span(f" {unit or label_of(chosen)}", "dim"))
    evaluation = newest(view, "evaluation_return")
    if evaluation is not None and chosen != "evaluation_return":
        head = (*head, Span("   evaluation ", "dim"), Span(number(evaluation), "", VALUE))
    shown = (chosen, "evaluation_return")
    others = [
        fact(label_of(name), number(newest(view, name)), VALUE)
        for name in learning_metrics(view)
        if name not in shown
    ]
    lost = vocabulary.lost_metrics(view.vital, view.store.left_out(view.source))
    return [head, next(iter(pack([*((Span(text, "warn"),) for text in lost), *others], width, "  ")), ())]


def from_head(view: View, metric: str) -> str:
    """` · rank 0 on gpu00` after a title if a metric comes from another node, with its age if it is old, else
    empty.
    """
    run = view.run
    if run is None or run.head is None or metric not in view.store.names(head_of(view.source)):
        return ""
    return f" · {job_head.dated(f'rank 0 on {job_head.name(run.head)}', view.vital)}"


SIGN = Span("▸ ", "key")
UNKNOWN = "what holds the run back is not known"


def diagnosis_line(view: View, split: Split, width: int) -> Line:
    """`▸ launch-bound: SM active 5.6 % · busy 32 % try compile off → default`, as much as fits; else
    `_phase`. Of a run that failed, the last line that it has written, if that is known.
    """
    if view.run is None:
        return ()
    if last := _last_output(view, view.run):
        head, said = (SIGN, Span("last output: ", "dim")), Span(numbers.clean(last, 300), "strong")
        key = Span(f"  {view.hint('view.output', 'shows more')}", "faint")
        return first_fitting([(*head, said, key), (*head, said)], width)
    found = view.run.diagnosis
    if found is not None and found.verdict != "unknown":
        return first_fitting(_of(found, view), width)
    return _phase(view, split, width)


def _last_output(view: View, run: RunState) -> str:
    """The last line that a run which failed has written; empty if unknown, or if the reason of its end says
    it."""
    found = last_lines(view.store.outputs.get(run.run), 1) if failed(run) else ()
    return next((line.strip() for line in found if not run.exit_detail or run.exit_detail not in line), "")


def _of(found: Diagnosis, view: View) -> Iterator[Line]:
    """The diagnosis, the most first: all of it, then less evidence, then no advice."""
    head = (SIGN, Span(diagnosis.name(found), "strong"))
    age_s = (view.now - found.t) / SECOND
    old = (
        (Span(f" · as of {numbers.duration(age_s)} ago", "dim"),) if view.metrics_stale and age_s >= 1 else ()
    )
    figures = diagnosis.evidence(found)
    fewer = diagnosis.evidence_with_line(found) or [figures[:count] for count in range(len(figures), 0, -1)]
    shapes: list[Line] = [*((Span(f": {' · '.join(each)}"),) for each in fewer), ()]
    tries = _tries(found, view)
    for longer in tries:
        for evidence in shapes[:-1] or shapes:
            yield (*head, *evidence, *old, *longer)
    for evidence in shapes:
        yield (*head, *evidence, *old)
    yield head


def _tries(found: Diagnosis, view: View) -> list[Line]:
    """The change to try and the key that makes it, in ever fewer words; without one, what would help."""
    change = advised(view)
    if change is None:
        alone = [diagnosis.advice_text(one) for one in found.advice if not one.knob and not view.stale]
        return [(Span(f"  {each}", "dim"),) for each in alone if each]
    advice, _ = change
    brief = diagnosis.advice_text(advice, brief=True)
    hint = "" if view.read_only or view.replay is not None else view.hint("knob.advice", "does it")
    key = (Span(f"  {hint}", "faint"),) if hint else ()
    return [
        (Span("  try ", "dim"), Span(diagnosis.advice_text(advice)), *key),
        (Span("  try ", "dim"), Span(brief), *key),
        (Span("  try ", "dim"), Span(brief)),
    ]


def _phase(view: View, split: Split, width: int) -> Line:
    """The largest phase, as much as fits, or why it is unknown.

    Example: `▸ largest phase: rollout 61 % of an iteration (env 38 %) · over the last 30 s`.
    """
    whole, _, found = split
    if whole is None:
        return SIGN, Span(f"{UNKNOWN}: no iteration has ended yet", "dim")
    if not found:
        reason = f"{UNKNOWN}: this run names no phases"
        return first_fitting(
            [
                (SIGN, Span(reason, "dim"), Span(', as run.phase("rollout") does', "faint")),
                (SIGN, Span(reason, "dim")),
            ],
            width,
        )
    largest = max((phase for phase in found if not phase.depth), key=lambda phase: phase.seconds)
    inner = [phase for phase in found if phase.depth and phase.path.startswith(f"{largest.path}/")]
    part = max(inner, key=lambda phase: phase.seconds, default=None)
    share, of = _share(largest, whole), (Span(" of an iteration", "dim"),)
    alone = (Span(f" ({_name(part)} {_share(part, whole)})", "dim"),) if part else ()
    since = (Span(f" · {phases.since(view, split)}", "dim"),)
    if largest.path == OTHER:
        head: Line = (
            SIGN,
            Span("largest part: "),
            Span("in no named phase ", "strong"),
            Span(share, "strong"),
        )
    else:
        head = (SIGN, Span("largest phase: "), Span(f"{_name(largest)} {share}", "strong"))
    shapes = ((*of, *alone, *since), (*of, *since), since, of, ())
    return first_fitting([(*head, *rest) for rest in shapes], width)


def _name(phase: PhaseBar) -> str:
    return numbers.clean(phase.path.rpartition("/")[2] if phase.depth else phase.path, 24)


def _share(phase: PhaseBar, whole: float) -> str:
    return numbers.percent(phase.seconds / whole, decimals=0)
