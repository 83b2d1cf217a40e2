"""What the tuner tried, in words."""

from __future__ import annotations

from hoptui.cli.report.document import Block, Paragraph, Section, Table, cut, when
from hoptui.model.report import Report
from hoptui.presentation import numbers, tuner, vocabulary

TITLE = "What the tuner tried"


def section(report: Report) -> Section:
    """Its trials, or where only their commands are known these, and what else it said."""
    state = report.state.tuner
    blocks: list[Block] = []
    if state is not None:
        who = f" by {numbers.clean(state.user, 40)}" if state.user else ""
        within, spent = tuner.limits(state.limits), f"took {tuner.cost(state)}"
        again = sum(event.text.startswith("started by") for event in report.tuner_events) > 1
        if again:
            blocks.append(Paragraph(f"Started last{who}: {within}. Since then trials {spent}."))
        else:
            blocks.append(Paragraph(f"Started{who}: {within}. Trials {spent}."))
        listed, more = cut(state.tried)
        rows = [
            (
                when(report, trial.t),
                tuner.changes(trial.changes),
                " ".join(tuner.RESULTS[trial.result]),
                vocabulary.effect_text(trial.measured) or numbers.UNKNOWN,
                tuner.progress(trial),
                numbers.clean(trial.text, 300),
            )
            for trial in listed
        ]
        if rows:
            note = "An effect here is the one that decided; that of the change above may be taken from other iterations."
            blocks += [Table(("after", "tried", "result", "effect", "over", "why"), rows, right=(0,)), *more]
            blocks.append(Paragraph(note, faint=True))
        else:
            blocks.append(Paragraph("It has ended no trial."))
    elif report.tuner:
        commands, more = cut(report.tuner)
        command_rows = [
            (
                when(report, c.t),
                vocabulary.change(c),
                vocabulary.stage_text(c),
                vocabulary.effect_text(c.measured) or numbers.UNKNOWN,
            )
            for c in commands
        ]
        blocks += [Table(("after", "tried", "outcome", "effect"), command_rows, right=(0,)), *more]
    trials = state.tried if state is not None else ()
    rest = [e for e in report.tuner_events if not any(tuner.tells(e.text, trial) for trial in trials)]
    if rest:
        said, more = cut(rest)
        lines = [(when(report, event.t), numbers.clean(event.text, 300)) for event in said]
        blocks += [Table(("after", "it said"), lines, right=(0,)), *more]
    return Section(TITLE, blocks or (Paragraph("Nothing: it was not on."),))
