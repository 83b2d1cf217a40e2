"""Build the page of a report from its facts. Markdown and HTML share it; the dashboard uses the same terms."""

from __future__ import annotations

from collections.abc import Sequence

from hoptui.cli.report import comparison, costs, timeline, tuner_trials
from hoptui.cli.report.document import Document, Facts, Paragraph, Section, Table, when
from hoptui.model.report import Report
from hoptui.presentation import numbers, vocabulary
from hoptui.protocol.messages import Event
from hoptui.protocol.version import VERSION

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
        timeline.section(report),
        comparison.section(report),
        costs.diagnosis(report),
        costs.time(report),
        costs.energy(report),
        tuner_trials.section(report),
        _events(report),
        Section("The run", (_head(report),)),
    ]
    return Document(
        numbers.clean(state.name) or state.run,
        lead,
        sections,
        f"Written by hoptui {VERSION} on {numbers.day_clock(made)} from the recording of run {state.run}.",
    )


def summary(report: Report) -> str:
    """The main results in a few sentences."""
    gained = comparison.gained(report) + _by_itself(report)
    applied = [change for change in report.changes if change.stage == "applied"]
    if not applied:
        return f"{gained} No change of a knob took effect."
    found = sum(change.measured is not None and change.measured.detectable for change in applied)
    tuned = sum(change.origin.kind == "tuner" for change in applied)
    of_them = "all" if tuned == len(applied) else numbers.grouped(tuned)
    by = "" if not tuned else f", {of_them} of them by the tuner" if len(applied) > 1 else " by the tuner"
    many = f"{numbers.grouped(len(applied))} changes of knobs" if len(applied) > 1 else "One change of a knob"
    measurable = numbers.grouped(found) if found else "none"
    return f"{gained} {many} took effect{by}; {measurable} changed throughput measurably."


def _by_itself(report: Report) -> str:
    """A sentence on throughput changes without a knob change, which the two ends do not show."""
    times = len(report.shifts)
    often = "once" if times == 1 else f"{numbers.grouped(times)} times"
    return f" It changed {often} though no knob was turned." if times else ""


def _where_and_when(report: Report) -> str:
    began = numbers.day_clock(report.wall(report.span[0]))
    end = f"ended {_end(report)}" if report.state.exit_reason else f"had not ended {_end(report)}"
    return f"GPUs: {_gpus(report)}. It began {began} and {end}."


def _head(report: Report) -> Facts:
    state, first = report.state, report.wall(report.span[0])
    rows = [
        ("run", state.run),
        ("command", numbers.clean(state.argv, 1000).strip() or numbers.UNKNOWN),
        ("host", numbers.clean(report.host) or numbers.UNKNOWN),
        ("GPUs", _gpus(report)),
        ("began", numbers.day_clock(first)),
        ("ended" if state.exit_reason else "not ended", _end(report)),
        ("lasted", _lasted(report)),
        ("iterations", _iterations(report)),
    ]
    if state.world > 1:
        rows.append(("ranks", numbers.grouped(state.world)))
    if report.complete_from is not None:
        gone = numbers.day_clock(report.wall(report.complete_from))
        rows.append(("note", f"of the time before {gone} only summaries are kept"))
    return Facts(rows)


def _gpus(report: Report) -> str:
    counts: dict[str, int] = {}
    for gpu in report.gpus:
        name = numbers.clean(gpu.name) + (f", driver {numbers.clean(gpu.driver, 40)}" if gpu.driver else "")
        counts[name] = counts.get(name, 0) + 1
    return "; ".join(f"{count} × {name}" for name, count in counts.items()) or "none is known"


def _end(report: Report) -> str:
    state = report.state
    last = numbers.day_clock(report.wall(report.span[1]))
    if not state.exit_reason:
        return f"by {last}, where this report ends"
    said = vocabulary.state_text(None, state).partition(": ")[2]
    return f"{numbers.day_clock(state.exited_wall or report.wall(report.span[1]))}: {said}"


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
        grouped.setdefault((event.level, event.source, event.text), []).append(event)
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
            f"{names.get(group[0].source, '')}{numbers.clean(group[0].text, 300)}",
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
