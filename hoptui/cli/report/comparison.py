"""Compare the beginning of a run with its end."""

from __future__ import annotations

from collections.abc import Iterator

from hoptui.cli.report.document import Block, Figure, FigureRow, Paragraph, Section, Table
from hoptui.model.report import ITERATION, Period, Report
from hoptui.presentation import numbers, sentences, vocabulary
from hoptui.presentation.gpu_readings import GPU
from hoptui.presentation.readings import DERIVED, value_text

TWICE = 1.95  # from there on a factor says more than per cent
MOST_PHASES = 4
OF_GPUS = (
    "busy",
    "sm_active",
    "tensor_active",
    "dram_active",
    "sm_clock_mhz",
    "temperature_c",
    "memory_used_bytes",
)
ALWAYS = ("busy", "sm_active", "tensor_active", "dram_active", "memory_used_bytes", "power_w")
"""Readings that are always listed, also if unknown."""
GROUPS = {"gpm": "how active SMs, tensor cores and memory are", "energy": "energy"}
"""Groups of readings that a GPU may lack, by the key of `GpuInfo.missing_because`."""
TOGETHER = ("mfu", "mfu_estimated", "power_w", "energy_per_unit_j")


def gained(report: Report) -> str:
    """`Throughput went from 1.59 M to 31.7 M steps/s (× 19.9) between the beginning and the end.`"""
    if report.curve is None:
        return "No iteration is recorded."
    before, after = _at_ends(report, _metric(report))
    what = "The time of an iteration" if _metric(report) == ITERATION else "Throughput"
    if before is not None and after is not None:
        went = f"went from {_figure(report, before)} to {_speed(report, after)} ({difference(before, after)})"
        return f"{what} {went} between the beginning and the end."
    if before is not None:
        began = f"{what} was {_speed(report, before)} at the beginning"
        if (later := _last_effect(report)) is not None:
            then = f"{_speed(report, later)} ({difference(before, later)})"
            return f"{began} and {then} after the last change with an effect; at the end it is not known."
        return f"{began}; at the end it is not known."
    if after is not None:
        return f"{what} was {_speed(report, after)} at the end; at the beginning it is not known."
    return f"{what} is not known at the beginning, nor at the end."


def _last_effect(report: Report) -> float | None:
    """The throughput that was measured after the last change with an effect; None if none had one."""
    measured = [change.measured for change in report.changes if change.measured is not None]
    known = [one for one in measured if one.detectable and not vocabulary.unclear(one)]
    return next((one.after for one in reversed(known) if one.metric == _metric(report)), None)


def figures(report: Report) -> FigureRow:
    """The few that stand at the top; what is not known is left to the tables below."""
    return FigureRow(tuple(_figures(report)))


def section(report: Report) -> Section:
    """The medians of both ends side by side, the knobs that differ, and what the figures are of."""
    title = "Beginning and end"
    if report.first is None and report.last is None:
        return Section(title, (Paragraph("Nothing to compare: too few iterations are recorded."),))
    blocks: list[Block] = [
        Table(("median", "beginning", "end", "difference"), list(_rows(report)), right=(1, 2, 3))
    ]
    blocks += [Paragraph(said) for said in _why_unknown(report)]
    if report.job is not None and report.gpus:
        where = numbers.clean(report.host) or "one node"
        blocks.append(Paragraph(f"Readings of GPUs, power and MFU here are those of {where}."))
    if knobs := _knobs(report):
        blocks.append(Paragraph(f"Knobs that differ: {knobs}."))
    if report.changes:
        edge = (
            "The beginning is before the first change of a knob and the end after the last, a minute of each "
            "at most"
        )
    else:
        edge = "The beginning and the end are a third of the run each, a minute at most"
    shown = f"{edge}: {_iterations_of(report.first)}, and {_iterations_of(report.last)}."
    warned = (
        "What lies between them need not be the changes alone: a run that learns, or a neighbour on the "
        "node, changes the pace too."
    )
    return Section(title, (*blocks, Paragraph(f"{shown} {warned}", faint=True)))


def difference(before: float | None, after: float | None) -> str:
    """`+6.1 %`; `× 2.00` from twice on; `÷ 2.00` up to a half; unknown if either value is unknown."""
    if before is None or after is None or before <= 0 or after <= 0:
        return numbers.UNKNOWN
    ratio = after / before
    if ratio >= TWICE:
        return f"× {numbers.si(ratio)}"
    if ratio <= 1 / TWICE:
        return f"÷ {numbers.si(1 / ratio)}"
    return numbers.percent(ratio - 1, signed=True)


def _figures(report: Report) -> Iterator[Figure]:
    before, after = _at_ends(report, _metric(report))
    if after is not None:
        note = f"{_figure(report, before)} at the beginning" if before is not None else ""
        yield Figure(f"{_unit(report)} at the end", _figure(report, after), note)
    if before is not None and after is not None:
        what = "time of an iteration" if _metric(report) == ITERATION else "throughput"
        yield Figure(what, difference(before, after), "from beginning to end")
    busy = _at_ends(report, "gpu/sm_active")
    if busy[1] is not None:
        note = f"{value_text('%', busy[0])} at the beginning" if busy[0] is not None else ""
        yield Figure("SM active at the end", value_text("%", busy[1]), note)
    joules = report.energy.joules
    if joules is not None:
        idle = report.energy.idle
        note = f"{numbers.percent(idle, decimals=0)} of it for idle SM time" if idle is not None else ""
        yield Figure("energy of the GPUs", watt_hours(joules), note)
    steps = numbers.counted(report.steps, "iteration") if report.steps is not None else ""
    yield Figure("duration", numbers.duration((report.span[1] - report.span[0]) / 1e9), steps)


def speed_at_end(report: Report) -> str:
    """`31.7 M steps/s`: the throughput at the end; unknown is `–`."""
    return _speed(report, _at_ends(report, _metric(report))[1])


def watt_hours(joules: float | None) -> str:
    """`10.8 Wh`, `1.42 kWh`."""
    return (
        numbers.UNKNOWN
        if joules is None
        else f"{numbers.si(joules / 3600)}{'' if joules / 3600 >= 1000 else ' '}Wh"
    )


def _rows(report: Report) -> Iterator[tuple[str, str, str, str]]:
    metric = _metric(report)
    before, after = _at_ends(report, metric)
    if metric != ITERATION:
        yield "throughput", _speed(report, before), _speed(report, after), difference(before, after)
    phases = [f"phase/{phase.name}" for phase in report.phases[:MOST_PHASES]]
    for name in (ITERATION, *phases):
        before, after = _at_ends(report, name)
        label = "iteration" if name == ITERATION else f"… in {numbers.clean(name.removeprefix('phase/'), 24)}"
        yield label, numbers.seconds(before), numbers.seconds(after), difference(before, after)
    for source, names, meanings in (("gpu", OF_GPUS, GPU), ("derived", TOGETHER, DERIVED)):
        for name in names:
            before, after = _at_ends(report, f"{source}/{name}")
            if before is None and after is None and (not report.gpus or name not in ALWAYS):
                continue
            unit, label = meanings[name].unit, meanings[name].label
            shown = difference(before, after)
            if unit in ("%", "°C") and before is not None and after is not None:
                shown = _apart(after - before, unit)
            yield label, value_text(unit, before), value_text(unit, after), shown


def _why_unknown(report: Report) -> Iterator[str]:
    """`Not known of GPU 0: how active SMs and memory are, because GPM needs a Hopper GPU.`"""
    found: dict[tuple[str, str], list[str]] = {}
    for gpu in report.gpus:
        for group, what in GROUPS.items():
            if why := sentences.text_of(gpu.missing_because.get(group)):
                found.setdefault((what, why), []).append(str(gpu.index))
    for (what, why), indices in found.items():
        which = numbers.plural(len(indices), "GPU")
        yield f"Not known of {which} {', '.join(indices)}: {what} ({why})."


def _apart(by: float, unit: str) -> str:
    """`+29.1 points` between two shares, `+5 °C` between two temperatures."""
    shown = f"{by:+.0f} °C" if unit == "°C" else f"{by:+.1f} points"
    return shown if shown.strip("+-0. °Cpoints") else shown.lstrip("+-").replace("0.0", "0")


def _knobs(report: Report) -> str:
    """`grad_accum 4 → 1, num_envs 256 → 16 384`."""
    found = []
    for knob in report.state.knobs:
        name = knob.spec.name
        before = report.knobs_at_first.get(name)
        if name in report.knobs_at_first and before != knob.value:
            shown = numbers.alike(before, knob.value)
            found.append(f"{numbers.clean(name, 40)} {shown[0]} → {shown[1]}")
    return ", ".join(found)


def _iterations_of(stretch: Period | None) -> str:
    if stretch is None:
        return "too few iterations"
    first, last = (numbers.grouped(step) for step in stretch.steps)
    return f"iterations {first} to {last} in {numbers.duration((stretch.t1 - stretch.t0) / 1e9)}"


def _metric(report: Report) -> str:
    return report.curve.metric if report.curve is not None else ITERATION


def _at_ends(report: Report, name: str) -> tuple[float | None, float | None]:
    first, last = report.first, report.last
    return first.figures.get(name) if first else None, last.figures.get(name) if last else None


def _speed(report: Report, value: float | None) -> str:
    """`31.7 M steps/s`, or `16.6 ms` where the time of an iteration stands for it."""
    if value is None or _metric(report) == ITERATION:
        return _figure(report, value)
    return f"{_figure(report, value)} {_unit(report)}"


def _figure(report: Report, value: float | None) -> str:
    return numbers.seconds(value) if _metric(report) == ITERATION else numbers.si(value)


def _unit(report: Report) -> str:
    metric = _metric(report)
    return "an iteration" if metric == ITERATION else vocabulary.unit_of(metric, report.state.units)
