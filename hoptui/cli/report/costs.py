"""What a run's time and energy went into, in words."""

from __future__ import annotations

from hoptui.cli.report.comparison import watt_hours
from hoptui.cli.report.document import Block, Facts, Paragraph, Section, Share, ShareBar, spent
from hoptui.model.report import Report
from hoptui.model.report.diagnosis_time import UNDIAGNOSED
from hoptui.model.report.facts import ITERATION
from hoptui.presentation import numbers, vocabulary
from hoptui.presentation.readings import value_text

LEAST = 0.005  # a remainder smaller than that is not worth a line


def diagnosis(report: Report) -> Section:
    """The share of the run's life that each verdict held, and what was found last."""
    title = "What held it back"
    if not report.verdicts:
        return Section(title, (Paragraph("Not diagnosed: no verdict is recorded of this run."),))
    whole = sum(one.seconds for one in report.verdicts)
    shares = [
        Share(
            "not diagnosed" if one.verdict == UNDIAGNOSED else one.verdict,
            one.seconds / whole,
            spent(one.seconds),
            numbers.clean(one.evidence, 300),
        )
        for one in report.verdicts
    ]
    blocks: list[Block] = [ShareBar(shares)]
    last = report.state.diagnosis
    if last is not None and last.verdict != "unknown":
        # The diagnosis of an ended run comes from its events, which have no confidence.
        sure = f", {numbers.percent(last.confidence, decimals=0)} confident" if last.confidence else ""
        advice = "; ".join(numbers.clean(one.text, 300) for one in last.advice if one.text)
        blocks.append(
            Paragraph(f"The last verdict: {last.verdict}{sure}.{f' Advice: {advice}.' if advice else ''}")
        )
    return Section(title, blocks)


def time(report: Report) -> Section:
    """The outermost phases, and what lay outside of phases and of iterations, as shares of the run's life."""
    title = "Where the time went"
    whole = report.alive_s
    if report.iterating_s is None or not whole > 0:
        if not report.phases:
            return Section(title, (Paragraph("Not known: no phase is recorded, or not all of the run."),))
        rows = [Share(numbers.clean(p.name, 40), p.share, spent(p.seconds)) for p in report.phases]
        said = "Of the iterations that are still recorded one by one."
        return Section(title, (ShareBar(rows), Paragraph(said, faint=True)))
    in_phases = sum(phase.seconds for phase in report.phases)
    whole = max(whole, report.iterating_s, in_phases)
    rows = [Share(numbers.clean(p.name, 40), p.seconds / whole, spent(p.seconds)) for p in report.phases]
    between = report.iterating_s - in_phases
    named = "in no phase" if rows else "in iterations"
    outside = whole - max(report.iterating_s, in_phases)
    stood = sum(change.took_s or 0.0 for change in report.changes)
    note = (
        f"{spent(stood)} of it for changes of knobs"
        if stood >= vocabulary.NOTICED_S and stood <= outside * 1.1
        else ""
    )
    for label, seconds, said in ((named, between, ""), ("outside iterations", outside, note)):
        if seconds > LEAST * whole:
            rows.append(Share(label, seconds / whole, spent(seconds), said))
    return Section(title, (ShareBar(rows),))


def energy(report: Report) -> Section:
    """What the run's GPUs used."""
    title, used = "Energy", report.energy
    if used.joules is None and used.watts is None:
        return Section(title, (Paragraph("Not known: no energy reading of this run's GPUs is recorded."),))
    rows = [("all", watt_hours(used.joules)), ("mean power", value_text("W", used.watts))]
    if used.idle is not None:
        part = watt_hours(used.joules * used.idle) if used.joules is not None else numbers.UNKNOWN
        rows.append(("for idle SM time", f"{numbers.percent(used.idle, decimals=0)}, {part}"))
    else:
        rows.append(("for idle SM time", numbers.UNKNOWN))
    if report.curve is not None and report.curve.metric != ITERATION:
        unit = (
            vocabulary.unit_of(report.curve.metric, report.state.units).removesuffix("/s").removesuffix("s")
        )
        rows.append((f"per {unit}", _all_in(used.per_unit_j)))
    said = (
        "Of the run's GPUs on this node, their boards and neighbours on them included; not of CPUs, network and cooling. Energy for idle "
        "SM time is power × (1 − SM active): what waiting cost, not what could have been saved, since an idle GPU draws power too."
    )
    return Section(title, (Facts(rows), Paragraph(said, faint=True)))


def _all_in(joules: float | None) -> str:
    return numbers.UNKNOWN if joules is None else f"{value_text('J', joules)}, start-up and pauses included"
