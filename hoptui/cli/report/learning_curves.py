"""The section of a report on what its run has learned: curves, last values and extremes."""

from __future__ import annotations

from hoptui.cli.report import charts
from hoptui.cli.report.document import Block, ChartGrid, Paragraph, Section, Table
from hoptui.domain.learning_metrics import better_end
from hoptui.model.report import Report
from hoptui.model.report_curves import MetricEnds
from hoptui.presentation import numbers
from hoptui.presentation.metric_names import label_of, unit_and_label

TITLE = "Learning"
NOTE = (
    "The iteration of the best value is exact to a bucket of its curve. Which value is the best follows from "
    "the metric's name, such as loss or accuracy; it is empty for other names."
)


def learning_section(report: Report) -> Section:
    """Return the curves of all metrics that measure learning, with their last values and extremes."""
    ends = report.curves.ends
    if not ends:
        return Section(TITLE, (Paragraph("Nothing is logged that measures learning."),))
    head = ("metric", "last", "iteration", "best", "iteration", "least", "greatest")
    rows = [_row(report, one) for one in ends]
    blocks: list[Block] = [
        ChartGrid(charts.learning(report)),
        Table(head, rows, right=range(1, len(head))),
        Paragraph(NOTE, faint=True),
    ]
    if report.curves.left_out:
        others = numbers.counted(report.curves.left_out, "other metric")
        blocks.append(Paragraph(f"Left out here: {others}.", faint=True))
    return Section(TITLE, blocks)


def _row(report: Report, ends: MetricEnds) -> tuple[str, ...]:
    unit = unit_and_label(ends.metric, report.state.units.get(ends.metric, ""))[0]
    name = label_of(ends.metric) + (f" ({unit})" if unit else "")
    return (
        name,
        numbers.logged(ends.last, 4),
        numbers.grouped(ends.last_step),
        *_best(ends),
        numbers.si(ends.least, 4),
        numbers.si(ends.greatest, 4),
    )


def _best(ends: MetricEnds) -> tuple[str, str]:
    match better_end(ends.metric):
        case "least":
            return numbers.si(ends.least, 4), numbers.grouped(ends.least_step)
        case "greatest":
            return numbers.si(ends.greatest, 4), numbers.grouped(ends.greatest_step)
    return "", ""
