"""The charts of a report's page: throughput, learning, phases, GPUs, and the verdicts over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hoptui.cli.report.document import NOT_DIAGNOSED, ChartCurve, ChartMark, ReportChart, Strip, StripPart
from hoptui.domain.devices import GpuInfo
from hoptui.model.reference_run import MILLI
from hoptui.model.report import ITERATION, UNDIAGNOSED, Report
from hoptui.model.report_curves import MetricCurve, iterations_at
from hoptui.presentation import numbers, sentences, vocabulary
from hoptui.presentation.gpu_readings import GPU
from hoptui.presentation.metric_names import PHASE, unit_and_label
from hoptui.presentation.readings import DERIVED

GIB = 2.0**30
MOST_WARNINGS = 100
NAME = 16  # characters of a mark's name
SHARES = (0.0, 100.0)


class Placing(NamedTuple):
    """How a run lies on the chart's clock: from a stamp on, moved by some ns. `label` and `ink` are its
    curves'."""

    since: int
    by: int = 0
    label: str = ""
    ink: int = 0


def whole(report: Report) -> Placing:
    """The placing of a run that is alone on its page: all of its recording, on its clock."""
    return Placing(report.span[0])


def curve_of(report: Report, found: MetricCurve, placing: Placing, factor: float = 1.0) -> ChartCurve:
    """Return a curve as it is drawn; its values are multiplied by `factor`."""
    kept = [i for i, t in enumerate(found.t) if t >= placing.since]
    stamps = [found.t[i] for i in kept]
    low, high, middle = (
        [column[i] * factor for i in kept] for column in (found.low, found.high, found.middle)
    )
    places = iterations_at(report.curves.course, stamps)
    moved = [t + placing.by for t in stamps]
    return ChartCurve(placing.label, moved, low, high, middle, places, placing.ink)


def throughput(report: Report) -> ReportChart | None:
    """Return the chart of throughput, None without an iteration."""
    curve = report.curve
    if curve is None:
        return None
    title, unit = throughput_words(report)
    ends = (("beginning", report.first), ("end", report.last))
    return ReportChart(
        title,
        unit,
        (curve_of(report, curve, whole(report)),),
        report.span,
        marks(report),
        [(name, found.t0, found.t1) for name, found in ends if found is not None],
        wide=True,
    )


def throughput_words(report: Report) -> tuple[str, str]:
    """Return the title and the unit of a chart of throughput."""
    metric = report.curve.metric if report.curve is not None else ITERATION
    if metric == ITERATION:
        return "Time of an iteration", "s"
    return "Throughput", vocabulary.unit_of(metric, report.state.units)


def marks(report: Report) -> list[ChartMark]:
    """Return the changes with the names of their knobs, and the warnings and alarms, by time."""
    found = [
        ChartMark(
            c.settled or c.t,
            number,
            f"{number}: {vocabulary.change(c)}",
            numbers.clean(c.knob, NAME),
        )
        for number, c in enumerate(report.changes, start=1)
    ]
    grave = [event for event in (*report.events, *report.shifts) if event.level != "info"]
    found += [
        ChartMark(event.t, 0, sentences.event_text(event), numbers.clean(event.kind, NAME), event.level)
        for event in grave[:MOST_WARNINGS]
    ]
    found.sort(key=lambda mark: mark.t)
    places = iterations_at(report.curves.course, [mark.t for mark in found])
    return [mark._replace(place=place) for mark, place in zip(found, places, strict=True)]


def learning(report: Report) -> list[ReportChart]:
    """Return a chart of each metric that measures learning."""
    run = f"run/{report.state.run}"
    found = (report.curves.of(run, end.metric) for end in report.curves.ends)
    return [metric_chart(report, curve) for curve in found if curve is not None]


def metric_chart(report: Report, curve: MetricCurve) -> ReportChart:
    """Return the chart of one metric that the run has logged."""
    unit, label = unit_and_label(curve.metric, report.state.units.get(curve.metric, ""))
    factor, shown = axis_unit(unit)
    drawn = curve_of(report, curve, whole(report), factor)
    return ReportChart(label, shown, (drawn,), report.span, marks(report))


def axis_unit(unit: str) -> tuple[float, str]:
    """Return a factor and the unit that the value axis has instead: GiB for bytes, none for counts."""
    return (1 / GIB, "GiB") if unit == "B" else (1.0, "" if unit == "count" else unit)


def phases(report: Report) -> ReportChart | None:
    """Return the seconds of each outermost phase in an iteration, None if there are none."""
    run = f"run/{report.state.run}"
    found = [c for c in report.curves.curves if c.source == run and c.metric.startswith(PHASE)]
    if not found:
        return None
    curves = [
        curve_of(
            report, c, whole(report)._replace(label=numbers.clean(c.metric.removeprefix(PHASE), 24), ink=ink)
        )
        for ink, c in enumerate(found)
    ]
    return ReportChart("Phases of an iteration", "s", curves, report.span, marks(report))


def gpus(report: Report) -> list[ReportChart]:
    """Return a chart of each reading, with a curve of each GPU of the node, and MFU where it is known."""
    return [*gpus_of(report, report.gpus, report.curves.curves), *_utilization(report)]


def gpus_of(report: Report, gpus: Sequence[GpuInfo], curves: Sequence[MetricCurve]) -> list[ReportChart]:
    """Return a chart of each reading of some GPUs, with a curve of each."""
    names = {f"gpu/{gpu.uuid}": f"GPU {gpu.index}" for gpu in gpus}
    known = {c.source for c in curves if c.metric == "sm_active" and c.source in names}
    charts = []
    for metric in dict.fromkeys(c.metric for c in curves if c.source in names):
        found = [c for c in curves if c.metric == metric and c.source in names]
        if metric == "busy" and all(c.source in known for c in found):
            continue
        factor, unit = axis_unit(GPU[metric].unit)
        drawn = [
            curve_of(
                report,
                c,
                whole(report)._replace(label=names[c.source] if len(names) > 1 else "", ink=ink),
                factor,
            )
            for ink, c in enumerate(found)
        ]
        bounds = SHARES if unit == "%" else None
        charts.append(ReportChart(GPU[metric].label, unit, drawn, report.span, marks(report), bounds=bounds))
    return charts


def _utilization(report: Report) -> Iterator[ReportChart]:
    for metric in ("mfu", "mfu_estimated"):
        curve = report.curves.of(f"derived/{report.state.run}", metric)
        if curve is not None:
            drawn = curve_of(report, curve, whole(report))
            yield ReportChart(DERIVED[metric].label, "%", (drawn,), report.span, marks(report))
            return


def verdicts(report: Report) -> Strip | None:
    """Return the verdicts in the order of time, None without a diagnosis."""
    if not report.stretches:
        return None
    parts = [
        StripPart(
            one.t0, one.t1, NOT_DIAGNOSED if one.text == UNDIAGNOSED else one.text, one.place0, one.place1
        )
        for one in _merged(report)
    ]
    return Strip("Verdict", report.span, parts)


def _merged(report: Report) -> Iterator[StripPart]:
    """Yield the stretches, equal neighbours joined."""
    before: StripPart | None = None
    for start, end, verdict, _ in report.stretches:
        if end <= start:
            continue
        if before is not None and (before.text, before.t1) == (verdict, start):
            before = before._replace(t1=end, place1=_nearest(report, end))
            continue
        if before is not None:
            yield before
        before = StripPart(start, end, verdict, _nearest(report, start), _nearest(report, end))
    if before is not None:
        yield before


def _nearest(report: Report, t: int) -> float:
    place = report.curves.course.nearest(t)
    return math.nan if place is None else place / MILLI
