"""What the tuner tried on a run, as a table: each trial with what it changed, what that did, and how it ended. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from hoptui.domain.tuning import Measured
from hoptui.model.command_history import UNDO
from hoptui.presentation import numbers, vocabulary
from hoptui.presentation import tuner as tuning
from hoptui.presentation.vocabulary import Word
from hoptui.tui.components import tuner
from hoptui.tui.components.command_outcome import STAGE_INKS, measured_effect
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import TRACK, Line, Span, first_fitting, width_of

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


def listed(view: View) -> list[TrialRow]:
    """The trials of the run, the newest on top, the one that runs first; of a recording the tuner's commands up to its moment."""
    state = tuner.state_of(view)
    if state is None:
        mine = [c for c in view.commands() if c.origin.kind == "tuner" and c.verb == "set"]
        return [
            TrialRow(
                wall=c.wall,
                word=vocabulary.STAGES[c.stage],
                ink=STAGE_INKS[c.stage],
                changes=vocabulary.change(c),
                step=c.step,
                iterations=c.measured.iterations if c.measured is not None else 0,
                seconds=None,
                measured=c.measured,
                why="" if c.why.startswith(UNDO) else numbers.clean(c.why, 300),
            )
            for c in sorted(mine, key=lambda c: c.wall, reverse=True)
        ]
    found = [*state.tried, *([state.trial] if state.trial is not None else [])]
    return [
        TrialRow(
            wall=tuner.when(view, trial.t),
            word=tuning.RESULTS[trial.result],
            ink=tuner.RESULT_INKS[trial.result],
            changes=tuning.changes(trial.changes),
            step=trial.step,
            iterations=trial.iterations,
            seconds=trial.seconds,
            measured=trial.measured,
            why=numbers.clean(trial.text, 300),
        )
        for trial in reversed(found)
    ]


def columns(view: View, shown: Sequence[TrialRow], width: int) -> TrialColumns:
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


def head(cells: TrialColumns) -> Line:
    """The names of the columns."""
    names = ("time", "result" if cells.result > MARGIN else "", "changes", "at", "took", "throughput")
    shown = [Span(name, "dim", wide) for name, wide in zip(names, cells, strict=True) if wide]
    return Span("", width=MARGIN), *shown, Span("effect", "dim")


def row(view: View, one: TrialRow, cells: TrialColumns, width: int, *, chosen: bool = False) -> Line:
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
    shown = [told for told in (whole, brief) if told] or [(Span("not measured", "faint"),)]
    return (*spans, *first_fitting(shown, width - width_of(spans)))


def detail(view: View, one: TrialRow, width: int) -> list[Line]:
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
    found += [(Span(line, "dim"),) for line in textwrap.wrap(one.why, max(20, width))]
    return found


def _effect(one: TrialRow) -> str:
    return "".join(span.text for span in measured_effect(one.measured))


def _length(one: TrialRow) -> str:
    return numbers.duration(one.seconds) if one.seconds is not None else ""


def _speeds(view: View, one: TrialRow) -> str:
    return vocabulary.speeds(one.measured, view.run.units if view.run else {})
