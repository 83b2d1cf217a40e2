"""The page of several runs: what differs between them, what they came to, and their curves overlaid."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hoptui.cli.report import charts, comparison
from hoptui.cli.report.charts import Placing
from hoptui.cli.report.document import (
    NOT_DIAGNOSED,
    Block,
    ChartCurve,
    ChartGrid,
    Document,
    Paragraph,
    ReportChart,
    Section,
    Table,
    cut,
    spent,
)
from hoptui.domain.learning_metrics import better_end
from hoptui.model.report import UNDIAGNOSED, Report
from hoptui.model.report_curves import MetricCurve, MetricEnds
from hoptui.presentation import details as presented
from hoptui.presentation import numbers
from hoptui.presentation.gpu_readings import GPU
from hoptui.presentation.metric_names import unit_and_label
from hoptui.presentation.readings import DERIVED
from hoptui.protocol import VERSION

MOST_RUNS = 8
MOST_CHARTS = 24
BUDGET, FEWEST_POINTS = 20_000, 60  # points of all curves together, and of one
NAME = 32


def comparison_page(reports: Sequence[Report], made: float) -> Document:
    """Return the page of two to `MOST_RUNS` runs, in their order, `made` at a time in seconds since 1970."""
    names = run_names(reports)
    sections = [
        Section("The runs", (_runs(reports, names),)),
        Section("What differs", _differences(reports, names)),
        Section("Results", _results(reports, names)),
        Section("Curves", _curves(reports, names)),
        Section("What held them back", _verdicts(reports, names)),
    ]
    of_runs = ", ".join(report.state.run for report in reports)
    lead = Paragraph(
        "Each run begins at its first iteration. A difference between runs need not come from their "
        "configurations alone: another node, a neighbour or another seed changes results too."
    )
    return Document(
        f"{len(reports)} runs: {', '.join(names)}",
        (lead,),
        sections,
        f"Written by hoptui {VERSION} on {numbers.zoned_clock(made)} from the recordings of runs {of_runs}.",
    )


def run_names(reports: Sequence[Report]) -> list[str]:
    """Return a name for each run, with its id where several have the same."""
    names = [numbers.clean(report.state.name, NAME) or report.state.run for report in reports]
    count = Counter(names)
    return [
        f"{name} ({report.state.run})" if count[name] > 1 else name
        for name, report in zip(names, reports, strict=True)
    ]


def _runs(reports: Sequence[Report], names: Sequence[str]) -> Table:
    rows = [_run(report, name) for report, name in zip(reports, names, strict=True)]
    head = ("run", "id", "began", "lasted", "iterations", "at the end", "GPU energy", "GPUs", "end")
    return Table(head, rows, right=(3, 4, 5, 6, 7))


def _run(report: Report, name: str) -> tuple[str, ...]:
    state = report.state
    return (
        name,
        state.run,
        numbers.zoned_clock(report.wall(report.span[0])),
        numbers.duration((report.span[1] - report.span[0]) / 1e9),
        numbers.grouped(report.steps),
        comparison.speed_at_end(report),
        comparison.watt_hours(report.energy.joules),
        str(len(report.all_gpus)),
        numbers.clean(state.exit_reason, 40) or "had not ended",
    )


def _differences(reports: Sequence[Report], names: Sequence[str]) -> list[Block]:
    """Configurations, knobs at the end, code and packages, as far as they are not the same in all runs."""
    each = [dict(_described(report)) for report in reports]
    differ = [
        (label, *(one.get(label, numbers.UNKNOWN) for one in each))
        for label in dict.fromkeys(label for one in each for label in one)
        if len({one.get(label) for one in each}) > 1
    ]
    same = len({label for one in each for label in one}) - len(differ)
    if not differ:
        return [Paragraph("Nothing of what is recorded.")]
    shown, more = cut(differ)
    note = f"The same in all runs: {numbers.counted(same, 'other')}."
    return [Table(("", *names), shown), *more, Paragraph(note, faint=True)]


def _described(report: Report) -> Iterator[tuple[str, str]]:
    found = report.details
    if found is not None:
        for name, value in found.config.items():
            yield numbers.clean(name, 80), presented.value_text(value)
    for knob in report.state.knobs:
        yield f"knob {numbers.clean(knob.spec.name, 40)}, last", numbers.value(knob.value, knob.spec)
    counts = Counter(numbers.clean(gpu.name) for gpu in report.all_gpus)
    yield "GPUs", ", ".join(f"{count} × {name}" for name, count in counts.items()) or "none is known"
    yield "host", ", ".join(numbers.clean(host) for host in report.hosts) or numbers.UNKNOWN
    yield "ranks", numbers.grouped(report.state.world)
    if found is not None:
        yield from _origin(found.python, found.packages, presented.commit(found.repository), found.command)


def _origin(python: str, packages: Mapping[str, str], commit: str, command: str) -> Iterator[tuple[str, str]]:
    yield "command", numbers.clean(command, 400)
    yield "commit", commit or numbers.UNKNOWN
    yield "Python", numbers.clean(python, 40)
    for name, version in packages.items():
        yield numbers.clean(name, 40), numbers.clean(version, 40)


def _results(reports: Sequence[Report], names: Sequence[str]) -> list[Block]:
    """The last and the best value of each metric; where no end is the best, the least and the greatest."""
    known = [{end.metric: end for end in report.curves.ends} for report in reports]
    rows = []
    for metric in dict.fromkeys(metric for ends in known for metric in ends):
        label = _label(reports, metric)
        rows += [
            (label if number == 0 else "", what, *(_value(ends.get(metric), what) for ends in known))
            for number, what in enumerate(_values_of(metric))
        ]
    summaries = [report.details.summary if report.details is not None else {} for report in reports]
    for name in dict.fromkeys(name for summary in summaries for name in summary):
        shown = (presented.value_text(s[name]) if name in s else numbers.UNKNOWN for s in summaries)
        rows.append((numbers.clean(name, 80), "of the script", *shown))
    if not rows:
        return [Paragraph("Nothing is logged that measures learning.")]
    right = tuple(range(2, 2 + len(names)))
    return [Table(("metric", "value", *names), rows, right=right)]


def _values_of(metric: str) -> tuple[str, ...]:
    return ("last", "best") if better_end(metric) else ("last", "least", "greatest")


def _value(ends: MetricEnds | None, what: str) -> str:
    if ends is None:
        return numbers.UNKNOWN
    if what == "best":
        what = better_end(ends.metric) or what
    value, step = {
        "last": (ends.last, ends.last_step),
        "least": (ends.least, ends.least_step),
        "greatest": (ends.greatest, ends.greatest_step),
    }[what]
    return f"{numbers.logged(value, 4)} at {numbers.grouped(step)}"


def _label(reports: Sequence[Report], metric: str) -> str:
    unit, label = _words(reports, metric)
    return f"{label} ({unit})" if unit else label


def _words(reports: Sequence[Report], metric: str) -> tuple[str, str]:
    declared = next((r.state.units[metric] for r in reports if metric in r.state.units), "")
    return unit_and_label(metric, declared)


def _curves(reports: Sequence[Report], names: Sequence[str]) -> list[Block]:
    overlaid = [*_overlaid(reports, names)]
    if not overlaid:
        return [Paragraph("No iteration is recorded.")]
    left, overlaid = len(overlaid[MOST_CHARTS:]), overlaid[:MOST_CHARTS]
    points = max(FEWEST_POINTS, BUDGET // sum(len(chart.curves) for chart in overlaid))
    found = [chart._replace(curves=[curve.thinned(points) for curve in chart.curves]) for chart in overlaid]
    blocks: list[Block] = []
    rest = found
    if found[0].wide:
        blocks.append(found[0])
        rest = found[1:]
    if rest:
        blocks.append(ChartGrid(rest))
    if left:
        blocks.append(Paragraph(f"Left out here: {numbers.counted(left, 'other metric')}.", faint=True))
    return blocks


def _overlaid(reports: Sequence[Report], names: Sequence[str]) -> Iterator[ReportChart]:
    length = max(1, *(report.span[1] - report.curves.start for report in reports))
    span = (0, length)
    titles = {charts.throughput_words(report) for report in reports if report.curve is not None}
    for title, unit in sorted(titles):
        speeds = [
            report.curve if charts.throughput_words(report) == (title, unit) else None for report in reports
        ]
        yield ReportChart(title, unit, _placed(reports, names, speeds), span, wide=len(titles) == 1)
    for metric in dict.fromkeys(end.metric for report in reports for end in report.curves.ends):
        unit, label = _words(reports, metric)
        factor, shown = charts.axis_unit(unit)
        logged = [report.curves.of(f"run/{report.state.run}", metric) for report in reports]
        yield ReportChart(label, shown, _placed(reports, names, logged, factor), span)
    for metric in ("power_w", "sm_active"):
        of_gpus = [_of_gpus(report, metric) for report in reports]
        if any(of_gpus):
            unit = DERIVED[metric].unit
            bounds = charts.SHARES if unit == "%" else None
            curves = _placed(reports, names, of_gpus)
            yield ReportChart(f"{GPU[metric].label} of the GPUs", unit, curves, span, bounds=bounds)


def _of_gpus(report: Report, metric: str) -> MetricCurve | None:
    """The sum or mean of a run's GPUs, or the reading of its only one."""
    together = report.curves.of(f"derived/{report.state.run}", metric)
    if together is None and len(report.state.gpus) == 1:
        return report.curves.of(f"gpu/{report.state.gpus[0]}", metric)
    return together


def _placed(
    reports: Sequence[Report],
    names: Sequence[str],
    curves: Sequence[MetricCurve | None],
    factor: float = 1.0,
) -> list[ChartCurve]:
    return [
        charts.curve_of(report, curve, Placing(report.curves.start, -report.curves.start, name, ink), factor)
        for ink, (report, name, curve) in enumerate(zip(reports, names, curves, strict=True))
        if curve is not None
    ]


def _verdicts(reports: Sequence[Report], names: Sequence[str]) -> list[Block]:
    """For how long each verdict held in each run."""
    each = [{one.verdict: one.seconds for one in report.verdicts} for report in reports]
    found = dict.fromkeys(verdict for held in each for verdict in held)
    if not found:
        return [Paragraph("Not diagnosed: no verdict is recorded of these runs.")]
    rows = [
        (NOT_DIAGNOSED if verdict == UNDIAGNOSED else verdict, *(_share(held, verdict) for held in each))
        for verdict in found
    ]
    return [Table(("verdict", *names), rows, right=tuple(range(1, 1 + len(names))))]


def _share(held: Mapping[str, float], verdict: str) -> str:
    if not held:
        return numbers.UNKNOWN
    seconds, whole = held.get(verdict, 0.0), math.fsum(held.values())
    return f"{numbers.percent(seconds / whole, decimals=0)}, {spent(seconds)}" if seconds else "never"
