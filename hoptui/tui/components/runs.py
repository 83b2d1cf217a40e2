"""The node's runs in a line each, live ones first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from hoptui.presentation import numbers, vocabulary
from hoptui.protocol.messages import RunState, State
from hoptui.tui.components import figures
from hoptui.tui.components.events import last_change
from hoptui.tui.components.figures import headline
from hoptui.tui.components.header import INKS
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span, bar, width_of

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
_WHY = 45  # cells in which almost every end is told whole


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
    """Symbol and word of the state, name, iterations, throughput, age; the last effect if there is room."""
    runs = ordered(view)
    columns = _Columns.of(view, runs, width)
    return [
        _row(view_of(view, run), run, columns, width, chosen=i == cursor) for i, run in enumerate(runs)
    ] or _none(view, width)


def head(view: View, width: int) -> Line:
    """What stands over `rows`."""
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
        done = vital.step / run.total if vital and run.total else None
        spans += [Span("  "), *bar(done, c.done - 2, "1")]
    if c.age:
        spans.append(Span(numbers.duration(view.ran_s), "dim", c.age, right=True))
    if not as_usual(view):
        return (*spans, Span("  "), Span(why_not_live(view), ink))  # where the speed would stand
    speed = headline(view)
    spans += [Span(numbers.si(speed.value), "", _SPEED, right=True), Span(f" {speed.unit}  ", "dim")]
    return (*spans, *last_change(view, width - width_of(spans)))


def state_of(view: View) -> State | None:
    """The state of the view's run; None if unknown: a lost link hides whether a run has ended."""
    if view.exited:
        return "exited"
    return view.vital.state if view.vital and not view.node_stale else None


def word_of(view: View) -> vocabulary.Word:
    """The same with its symbol."""
    state = state_of(view)
    return vocabulary.STATES[state] if state else vocabulary.UNKNOWN_STATE


def as_usual(view: View) -> bool:
    """Whether there is nothing to tell of its state but how fast it is."""
    return state_of(view) in (None, "live")


def why_not_live(view: View) -> str:
    """Why it is not live, in the words behind its state."""
    return vocabulary.state_text(view.vital, view.run).partition(": ")[2] if view.run else ""


def iteration_of(view: View) -> str:
    """`1 204 / 5 000`."""
    step = numbers.grouped(view.vital.step) if view.vital else numbers.UNKNOWN
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
    return [
        (Span("no run on this node yet", "strong"),),
        (),
        (Span("hoptui demo", "key", 30), Span("starts a real PPO run on this machine", "dim")),
        (Span('hoptui.connect("name")', "key", 30), Span("in a training script makes it a run", "dim")),
    ]
