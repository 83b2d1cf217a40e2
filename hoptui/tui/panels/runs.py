"""The node's runs in a line each, live ones first."""

from __future__ import annotations

from typing import NamedTuple

from hoptui.tui.lines import Line, Span, bar, width_of
from hoptui.tui.panels.header import INKS
from hoptui.tui.panels.outcomes import last_change
from hoptui.tui.panels.readings import headline
from hoptui.tui.view import View
from hoptui.viewer import format as text
from hoptui.viewer import words
from hoptui.wire.messages import RunState, State


def ordered(view: View) -> list[RunState]:
    """The runs as the list shows them: those that exist by their start, newest first, then the ended ones."""
    runs = view.node.runs if view.node else ()
    return sorted(runs, key=lambda run: (_of(view, run).exited, -run.started_wall))


class _Columns(NamedTuple):
    """How wide the parts of a run's line are; 0 leaves a part out."""

    state: int
    name: int
    iteration: int
    done: int
    speed: int
    unit: int
    age: int

    @classmethod
    def of(cls, runs: list[RunState], width: int) -> _Columns:
        name = max((len(run.name) for run in runs), default=0) + 2
        if width < 100:
            return cls(14, min(name, 17, width // 4), 17, 0, 9, 14, 0)
        return cls(15, min(name, 32, width // 4), 19, 12, 10, 15, 12)


def rows(view: View, width: int, cursor: int) -> list[Line]:
    """Symbol and word of the state, name, iterations, throughput, age, and the last effect where there is room."""
    runs = ordered(view)
    columns = _Columns.of(runs, width)
    return [
        _row(_of(view, run), run, columns, width, chosen=i == cursor) for i, run in enumerate(runs)
    ] or _none(view)


def head(view: View, width: int) -> Line:
    """What stands over `rows`."""
    c = _Columns.of(ordered(view), width)
    spans = [Span("    state", "dim", 4 + c.state), Span("run", "dim", c.name)]
    spans.append(Span("iteration", "dim", c.iteration, right=True))
    spans += [Span("", width=c.done + 2)] if c.done else []
    spans.append(Span("throughput", "dim", c.speed + 2, right=True))
    spans.append(Span("", width=c.unit - 2))
    return (*spans, Span("age", "dim", c.age, right=True)) if c.age else tuple(spans)


def _row(view: View, run: RunState, c: _Columns, width: int, *, chosen: bool) -> Line:
    vital = view.vital
    state: State | None = "exited" if view.exited else vital.state if vital else None
    word = words.STATES[state] if state else words.UNKNOWN_STATE
    ink = INKS[state] if state else "dim"
    speed = headline(view)
    step = text.grouped(vital.step) if vital else text.UNKNOWN
    of = f" / {text.grouped(run.total)}" if run.total else ""
    spans = [
        Span("› " if chosen else "  ", "key"),
        Span(f"{word.symbol} ", ink),
        Span(word.text, ink, c.state),
        Span(text.clean(run.name, 40), "" if view.exited else "strong", c.name),
        Span(f"{step}{of}", "", c.iteration, right=True),
    ]
    if c.done:
        spans += [Span("  "), *bar(vital.step / run.total if vital and run.total else None, c.done, "1")]
    if state in (None, "live"):
        spans.append(Span(text.si(speed.value), "", c.speed, right=True))
        spans.append(Span(f" {speed.unit}", "dim", c.unit))
    else:  # why it is not, where the speed would stand
        why = words.state_text(vital, run).partition(": ")[2]
        spans += [Span("    "), Span(why, ink, c.speed + c.unit - 4)]
    if c.age:
        end = run.exited_wall or view.wall
        spans.append(Span(text.duration(max(0.0, end - run.started_wall)), "dim", c.age, right=True))
        if not view.exited:
            spans += [Span("  "), *last_change(view.last_change(), width - width_of(spans) - 2)]
    return tuple(spans)


def _of(view: View, run: RunState) -> View:
    return view._replace(run=run, vital=view.store.vital(run.run))


def _none(view: View) -> list[Line]:
    if view.node is None:
        return [(Span("waiting for the daemon", "dim"),)]
    return [
        (Span("no run on this node yet", "strong"),),
        (),
        (Span("hoptui demo", "key", 30), Span("starts a real PPO run on this machine", "dim")),
        (Span('hoptui.connect("name")', "key", 30), Span("in a training script makes it a run", "dim")),
    ]
