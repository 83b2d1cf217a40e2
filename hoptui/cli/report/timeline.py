"""The throughput of a run over time, with what was changed and what that did, in words."""

from __future__ import annotations

from collections.abc import Mapping

from hoptui.cli.report.document import Block, ChartMark, Paragraph, ReportChart, Section, Table, cut, when
from hoptui.model.command_history import reason
from hoptui.model.report import Report
from hoptui.model.report.facts import ITERATION
from hoptui.presentation import numbers, vocabulary
from hoptui.protocol.authors import author_word
from hoptui.protocol.messages import CommandRecord


def section(report: Report) -> Section:
    """The chart, every change that took effect, and what became of all else that was asked for."""
    blocks = [_chart(report), *_changes(report)]
    if report.shifts:
        events, more = cut(report.shifts)
        shift_rows = [
            (when(report, e.t), numbers.grouped(e.step), numbers.clean(e.text, 300)) for e in events
        ]
        blocks += [Table(("after", "iteration", "not by a knob"), shift_rows, right=(0, 1)), *more]
    for title, records in (
        ("Asked for, without effect:", report.refused),
        ("Other commands:", report.commands),
    ):
        if records:
            shown, more = cut(records)
            rows = [
                (when(report, c.t), vocabulary.change(c), author_word(c.origin), vocabulary.stage_text(c))
                for c in shown
            ]
            table = Table(("after", "command", "by", "outcome"), rows, right=(0,))
            blocks += [Paragraph(title), table, *more]
    return Section("Throughput over time", blocks)


def _chart(report: Report) -> Block:
    curve = report.curve
    if curve is None:
        return Paragraph("No iteration is recorded.")
    marks = [
        ChartMark(c.settled or c.t, number, vocabulary.change(c))
        for number, c in enumerate(report.changes, start=1)
    ]
    ends = (("beginning", report.first), ("end", report.last))
    stretches = [(name, found.t0, found.t1) for name, found in ends if found is not None]
    title = "Time of an iteration" if curve.metric == ITERATION else "Throughput"
    unit = "s" if curve.metric == ITERATION else vocabulary.unit_of(curve.metric, report.state.units)
    notes = [(event.t, event.text) for event in report.shifts]
    return ReportChart(title, unit, curve, report.span, marks, stretches, notes)


def _changes(report: Report) -> list[Block]:
    if not report.changes:
        return []
    units = {vocabulary.unit_of(c.measured.metric, report.state.units) for c in report.changes if c.measured}
    unit = units.pop() if len(units) == 1 else ""
    known = {record.id: record for record in (*report.changes, *report.refused, *report.commands)}
    shown, more = cut(report.changes)
    rows = [_change(report, number, c, known, unit) for number, c in enumerate(shown, start=1)]
    speeds = f"throughput, {unit}" if unit else "throughput"
    head = ("#", "after", "iteration", "change", "by", speeds, "effect", "stood still")
    said = (
        "An effect is what the iterations just before and just after a change tell, with its 95 % interval."
    )
    return [Table(head, rows, right=(0, 1, 2, 7)), *more, Paragraph(said, faint=True)]


def _change(
    report: Report, number: int, record: CommandRecord, known: Mapping[str, CommandRecord], unit: str
) -> tuple[str, ...]:
    measured = record.measured
    # The tuner's reasons stand in a section of their own.
    said = reason(record, known) if record.origin.kind == "person" else ""
    if record.stage == "reverted":
        effect = vocabulary.stage_text(record)
    else:
        effect = vocabulary.effect_text(measured) or "not measured"
    speeds = vocabulary.speeds(measured, report.state.units)
    return (
        str(number),
        when(report, record.settled or record.t),
        numbers.grouped(record.step),
        ", ".join(
            filter(None, (vocabulary.change(record), vocabulary.followed(record), said and f"“{said}”"))
        ),
        author_word(record.origin),
        speeds.removesuffix(f" {unit}") or numbers.UNKNOWN,
        effect,
        numbers.seconds(record.took_s),
    )
