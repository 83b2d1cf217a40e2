"""Build the page of a report from its facts. Markdown and HTML share it; the dashboard uses the same terms.

Its sections: the course of the run, what its time and energy went into, and what the tuner tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hoptui.cli.report import charts, comparison
from hoptui.cli.report.comparison import watt_hours
from hoptui.cli.report.document import (
    NOT_DIAGNOSED,
    Block,
    ChartGrid,
    Document,
    Facts,
    Paragraph,
    Section,
    Share,
    ShareBar,
    Table,
    cut,
    spent,
    when,
)
from hoptui.cli.report.learning_curves import learning_section
from hoptui.cli.report.nodes import job_sections, node_gpu_sections
from hoptui.cli.report.stacks import stacks_section
from hoptui.cli.report.targets import targets_sections
from hoptui.domain.run_notes import LONGEST_NOTE
from hoptui.model.command_history import reason
from hoptui.model.report import ITERATION, UNDIAGNOSED, Report
from hoptui.presentation import details as presented
from hoptui.presentation import diagnosis, numbers, sentences, tuner, vocabulary
from hoptui.presentation.readings import value_text
from hoptui.protocol import VERSION
from hoptui.protocol.authors import author_word
from hoptui.protocol.messages import CommandRecord, Event

LIFE = ("started", "restarted", "reconnected", "exited")
MOST_EVENTS = 60


def page(report: Report, made: float) -> Document:
    """The page, `made` at a time in seconds since 1970."""
    state = report.state
    lead = (
        Paragraph(summary(report)),
        comparison.figures(report),
        Paragraph(_where_and_when(report), faint=True),
    )
    sections = [
        *job_sections(report),
        timeline_section(report),
        learning_section(report),
        comparison.section(report),
        diagnosis_section(report),
        time_section(report),
        stacks_section(report),
        *gpu_sections(report),
        *node_gpu_sections(report),
        energy_section(report),
        tuner_section(report),
        *targets_sections(report),
        _events(report),
        *_notes(report),
        *details_sections(report),
        Section("The run", (_head(report),)),
    ]
    return Document(
        numbers.clean(state.name) or state.run,
        lead,
        sections,
        f"Written by hoptui {VERSION} on {numbers.zoned_clock(made)} from {_sources(report)}.",
    )


def _sources(report: Report) -> str:
    of = f"the recordings of {len(report.nodes) + 1} nodes" if report.nodes else "the recording"
    return f"{of} of run {report.state.run}"


def summary(report: Report) -> str:
    """The main results in a few sentences."""
    gained = comparison.gained(report) + _by_itself(report)
    applied = [change for change in report.changes if change.stage == "applied"]
    if not applied:
        return f"{gained} No change of a knob took effect."
    known = [change.measured for change in applied if change.measured is not None]
    found = sum(measured.detectable and not vocabulary.unclear(measured) for measured in known)
    tuned = sum(change.origin.kind == "tuner" for change in applied)
    of_them = "all" if tuned == len(applied) else numbers.grouped(tuned)
    by = "" if not tuned else f", {of_them} of them by the tuner" if len(applied) > 1 else " by the tuner"
    if len(applied) == 1:
        did = "and changed throughput measurably" if found else "without a measurable change of throughput"
        return f"{gained} One change of a knob{by} took effect, {did}."
    many = f"{numbers.grouped(len(applied))} changes of knobs"
    measurable = numbers.grouped(found) if found else "none"
    return f"{gained} {many} took effect{by}; {measurable} changed throughput measurably."


def _by_itself(report: Report) -> str:
    """A sentence on throughput changes without a knob change, which the two ends do not show."""
    times = len(report.shifts)
    often = "once" if times == 1 else f"{numbers.grouped(times)} times"
    return f" It changed {often} though no knob was turned." if times else ""


def _where_and_when(report: Report) -> str:
    began = numbers.zoned_clock(report.wall(report.span[0]))
    end = f"ended {_end(report)}" if report.state.exit_reason else f"had not ended {_end(report)}"
    return f"GPUs: {_gpus(report)}. It began {began} and {end}{'' if end.endswith('…') else '.'}"


def _head(report: Report) -> Facts:
    state, first = report.state, report.wall(report.span[0])
    rows = [
        ("run", state.run),
        ("command", numbers.clean(state.argv, 1000).strip() or numbers.UNKNOWN),
        ("hosts" if report.nodes else "host", _hosts(report)),
        ("GPUs", _gpus(report)),
        ("began", numbers.zoned_clock(first)),
        ("ended" if state.exit_reason else "not ended", _end(report)),
        ("lasted", _lasted(report)),
        ("iterations", _iterations(report)),
    ]
    if state.world > 1:
        here = len(state.ranks) + 1 + sum(len(node.ranks) for node in report.nodes)
        where = "in these recordings" if report.nodes else "on this node"
        part = f", {numbers.grouped(here)} of them {where}" if here < state.world else ""
        rows.append(("ranks", f"{numbers.grouped(state.world)}{part}"))
    if state.recording:
        rows.append(("recording", numbers.clean(state.recording)))
    if report.complete_from is not None:
        gone = numbers.zoned_clock(report.wall(report.complete_from))
        rows.append(("note", f"of the time before {gone} only summaries are kept"))
    return Facts(rows)


def _notes(report: Report) -> list[Section]:
    """What users wrote on the run, the oldest first."""
    rows = [
        (f"{numbers.zoned_clock(one.wall)} {numbers.clean(one.by)}", numbers.clean(one.text, LONGEST_NOTE))
        for one in report.state.notes
    ]
    return [Section("Notes", (Facts(rows),))] if rows else []


def details_sections(report: Report) -> list[Section]:
    """Return what the run is, as far as it is recorded: configuration, results, code and packages."""
    found = report.details
    if found is None:
        return []
    parts = (
        ("Configuration", presented.value_rows(found.config, found.config_left_out)),
        ("Results of the script", presented.value_rows(found.summary, found.summary_left_out)),
        ("Code and environment", presented.origin_rows(found)),
    )
    return [Section(title, (Facts(rows),)) for title, rows in parts if rows]


def _hosts(report: Report) -> str:
    return ", ".join(numbers.clean(host) or numbers.UNKNOWN for host in report.hosts)


def _gpus(report: Report) -> str:
    counts: dict[str, int] = {}
    for gpu in report.all_gpus:
        name = numbers.clean(gpu.name) + (f", driver {numbers.clean(gpu.driver, 40)}" if gpu.driver else "")
        counts[name] = counts.get(name, 0) + 1
    return "; ".join(f"{count} × {name}" for name, count in counts.items()) or "none is known"


def _end(report: Report) -> str:
    state = report.state
    last = numbers.zoned_clock(report.wall(report.span[1]))
    if not state.exit_reason:
        return f"by {last}, where this report ends"
    said = vocabulary.state_text(None, state).partition(": ")[2]
    return f"{numbers.zoned_clock(state.exited_wall or report.wall(report.span[1]))}: {said}"


def _lasted(report: Report) -> str:
    whole = (report.span[1] - report.span[0]) / 1e9
    if report.state.epoch < 2:
        return numbers.duration(whole)
    restarts = "one restart" if report.state.epoch == 2 else f"{report.state.epoch - 1} restarts"
    alive = numbers.duration(report.alive_s)
    return f"{numbers.duration(whole)} with {restarts}; a process lived for {alive} of it"


def _iterations(report: Report) -> str:
    total = f" of {numbers.grouped(report.state.total)}" if report.state.total else ""
    return f"{numbers.grouped(report.steps)}{total}"


def _events(report: Report) -> Section:
    """The events, with equal events grouped. A long list keeps only warnings, starts and ends of the run."""
    grouped: dict[tuple[str, str, str], list[Event]] = {}
    for event in report.events:
        grouped.setdefault((event.level, event.source, sentences.event_text(event)), []).append(event)
    if not grouped:
        return Section("Events", (Paragraph("Nothing is recorded."),))
    found = list(grouped.values())
    if len(found) > MOST_EVENTS:
        found = [group for group in found if group[0].level != "info" or group[0].kind in LIFE]
    left_out = len(grouped) - len(found[:MOST_EVENTS])
    names = {f"gpu/{gpu.uuid}": f"GPU {gpu.index}: " for gpu in report.gpus}
    rows = [
        (
            when(report, group[0].t),
            "" if group[0].level == "info" else group[0].level,
            f"{names.get(group[0].source, '')}{sentences.event_text(group[0])}",
            _again(report, group),
        )
        for group in found[:MOST_EVENTS]
    ]
    blocks: list[Table | Paragraph] = [Table(("after", "level", "event", ""), rows, right=(0,))]
    if left_out:
        blocks.append(Paragraph(f"Left out here: {left_out} others.", faint=True))
    return Section("Events", blocks)


def _again(report: Report, group: Sequence[Event]) -> str:
    if len(group) == 1:
        return ""
    return f"{numbers.grouped(len(group))} times, the last after {when(report, group[-1].t)}"


def timeline_section(report: Report) -> Section:
    """Return the chart, every change that took effect, and the outcome of all other commands."""
    chart = charts.throughput(report)
    drawn: Block = Paragraph("No iteration is recorded.") if chart is None else chart
    blocks = [drawn, *_changes(report)]
    if report.shifts:
        events, more = cut(report.shifts)
        shift_rows = [(when(report, e.t), numbers.grouped(e.step), sentences.event_text(e)) for e in events]
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


def _changes(report: Report) -> list[Block]:
    if not report.changes:
        return []
    units = {vocabulary.unit_of(c.measured.metric, report.state.units) for c in report.changes if c.measured}
    unit = units.pop() if len(units) == 1 else ""
    known = {record.id: record for record in (*report.changes, *report.refused, *report.commands)}
    shown, more = cut(report.changes)
    rows = [_change(report, number, c, known, unit) for number, c in enumerate(shown, start=1)]
    speeds = f"throughput, {unit}" if unit else "throughput"
    head = ("#", "after", "iteration", "change", "by", speeds, "effect", "pause")
    said = (
        "An effect is what the iterations just before and just after a change show, with its 95 % interval."
    )
    return [Table(head, rows, right=(0, 1, 2, 7)), *more, Paragraph(said, faint=True)]


def _change(
    report: Report, number: int, record: CommandRecord, known: Mapping[str, CommandRecord], unit: str
) -> tuple[str, ...]:
    measured = record.measured
    # The tuner's reasons are in their own section.
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


LEAST = 0.005  # a remainder smaller than that is not worth a line


def diagnosis_section(report: Report) -> Section:
    """Return the share of the run's life that each verdict held, and the last verdict."""
    title = "What held it back"
    if not report.verdicts:
        return Section(title, (Paragraph("Not diagnosed: no verdict is recorded of this run."),))
    whole = sum(one.seconds for one in report.verdicts)
    shares = [
        Share(
            NOT_DIAGNOSED if one.verdict == UNDIAGNOSED else one.verdict,
            one.seconds / whole,
            spent(one.seconds),
            sentences.joined(one.facts),
        )
        for one in report.verdicts
    ]
    blocks: list[Block] = [ShareBar(shares)]
    if strip := charts.verdicts(report):
        blocks.append(strip)
    last = report.state.diagnosis
    if last is not None and last.verdict != "unknown":
        # The diagnosis of an ended run comes from its events, which have no confidence.
        sure = f", {numbers.percent(last.confidence, decimals=0)} confident" if last.confidence else ""
        advice = "; ".join(filter(None, map(diagnosis.advice_text, last.advice)))
        blocks.append(
            Paragraph(f"The last verdict: {last.verdict}{sure}.{f' Advice: {advice}.' if advice else ''}")
        )
    return Section(title, blocks)


def time_section(report: Report) -> Section:
    """Return the outermost phases, and the time outside of them, as shares of the run's life."""
    title = "Where the time went"
    whole = report.alive_s
    if report.iterating_s is None or not whole > 0:
        if not report.phases:
            return Section(title, (Paragraph("Not known: no phase is recorded, or not all of the run."),))
        rows = [Share(numbers.clean(p.name, 40), p.share, spent(p.seconds)) for p in report.phases]
        said = "Of the iterations that are still recorded one by one."
        return Section(title, (ShareBar(rows), Paragraph(said, faint=True), *_phase_chart(report)))
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
    return Section(title, (ShareBar(rows), *_phase_chart(report)))


def _phase_chart(report: Report) -> list[Block]:
    chart = charts.phases(report)
    return [ChartGrid((chart,))] if chart is not None else []


def gpu_sections(report: Report) -> list[Section]:
    """Return the readings of the run's GPUs over time, none if there are none."""
    found = charts.gpus(report)
    title = f"GPUs and power of {numbers.clean(report.host)}" if report.nodes else "GPUs and power"
    return [Section(title, (ChartGrid(found),))] if found else []


def energy_section(report: Report) -> Section:
    """Return the energy of the run's GPUs."""
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
    where = "the nodes with recordings" if report.nodes else "this node"
    said = (
        f"Of the run's GPUs on {where}, their boards and neighbours on them included; not of CPUs, "
        "network and cooling. Energy for idle SM time is power × (1 − SM active): what waiting cost, not "
        "what could have been saved, since an idle GPU draws power too."
    )
    return Section(title, (Facts(rows), Paragraph(said, faint=True)))


def _all_in(joules: float | None) -> str:
    return numbers.UNKNOWN if joules is None else f"{value_text('J', joules)}, start-up and pauses included"


def tuner_section(report: Report) -> Section:
    """Return the tuner's trials, or only their commands if no more is known, and its other reports."""
    state = report.state.tuner
    blocks: list[Block] = []
    if state is not None:
        who = f" by {numbers.clean(state.user, 40)}" if state.user else ""
        within, spent = tuner.limits(state.limits), f"took {tuner.cost(state)}"
        again = sum(map(tuner.starts, report.tuner_events)) > 1
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
                sentences.why(trial),
            )
            for trial in listed
        ]
        if rows:
            note = (
                "An effect here is the one that decided; that of the change above may be taken from other "
                "iterations."
            )
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
    rest = [e for e in report.tuner_events if not any(tuner.reports(e, trial) for trial in trials)]
    if rest:
        said, more = cut(rest)
        lines = [(when(report, event.t), sentences.event_text(event)) for event in said]
        blocks += [Table(("after", "it said"), lines, right=(0,)), *more]
    return Section("What the tuner tried", blocks or (Paragraph("Nothing: it was not on."),))
