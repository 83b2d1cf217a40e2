"""The report of a run as JSON: the facts of its page, with numbers instead of sentences."""

from __future__ import annotations

from typing import Any

from hoptui.cli.support.records import command_json
from hoptui.cli.support.snapshot import diagnosis_json, knobs_of
from hoptui.domain.hot_lines import hot_lines, sampled
from hoptui.model.report import EnergyUse, NodeReport, Period, Report
from hoptui.presentation import details, jobs, sentences, targets, tuner
from hoptui.protocol.messages import Event


def as_json(report: Report) -> dict[str, Any]:
    """The facts of a report. What a recording does not hold is None. Times are seconds since 1970."""
    state = report.state
    found = {
        "run": state.run,
        "name": state.name,
        "epoch": state.epoch,
        "hosts": report.hosts,
        "world": state.world,
        "command": state.argv or None,
        "began": report.wall(report.span[0]),
        "ended": report.wall(report.span[1]),
        "exit": {"reason": state.exit_reason, "detail": state.exit_detail} if state.exit_reason else None,
        "alive_s": report.alive_s,
        "complete_from": report.wall(report.complete_from) if report.complete_from is not None else None,
        "iterations": report.steps,
        "iterating_s": report.iterating_s,
        "work": report.work,
        "first": _period(report, report.first),
        "last": _period(report, report.last),
        "metrics": [one._asdict() for one in report.curves.ends],
        "metrics_left_out": report.curves.left_out,
        "knobs": knobs_of(state),
        "knobs_at_first": report.knobs_at_first,
        "changes": list(map(command_json, report.changes)),
        "refused": list(map(command_json, report.refused)),
        "commands": list(map(command_json, report.commands)),
        "diagnosis": diagnosis_json(state.diagnosis),
        "verdicts": [
            {"verdict": one.verdict or None, "seconds": one.seconds, "facts": one.facts}
            for one in report.verdicts
        ],
        "phases": [one._asdict() for one in report.phases],
        "where": _where(report),
        "gpus": [{"uuid": gpu.uuid, "index": gpu.index, "name": gpu.name} for gpu in report.all_gpus],
        "energy": _energy(report.energy),
        "tuner": tuner.in_words(state.tuner) if state.tuner is not None else None,
        "tuner_events": [_event(event) for event in report.tuner_events],
        "shifts": [_event(event) for event in report.shifts],
        "events": [_event(event) for event in report.events],
        "targets": [
            {
                **targets.in_words(one.state, [(gpu.uuid, gpu.index) for gpu in report.gpus]),
                "misses": one.misses,
                "missed_s": one.missed_s,
                "removed": one.removed,
            }
            for one in report.targets
        ],
        "notes": state.notes,
        "details": details.json_of(report.details),
        "job": _job(report),
        "nodes": [_node(node) for node in report.nodes],
    }
    finite: dict[str, Any] = details.finite(found)
    return finite


def _period(report: Report, found: Period | None) -> dict[str, Any] | None:
    if found is None:
        return None
    began, ended = report.wall(found.t0), report.wall(found.t1)
    return {"began": began, "ended": ended, "iterations": found.steps, "medians": found.figures}


def _energy(found: EnergyUse) -> dict[str, float | None]:
    return {
        "joules": found.joules,
        "watts": found.watts,
        "idle_share": found.idle,
        "per_unit_j": found.per_unit_j,
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "time": event.wall,
        "kind": event.kind,
        "level": event.level,
        "iteration": event.step,
        "source": event.source or None,
        "code": event.code or None,
        "fields": event.fields,
        "text": sentences.event_text(event),
    }


def _where(report: Report) -> list[dict[str, Any]] | None:
    """The lines of the first rank that has samples, None without any."""
    samples = next(iter(report.stacks.ranks.values()), None)
    if samples is None or not sampled(samples):
        return None
    return [
        {"share": line.share, "kind": line.kind, **line.place._asdict(), "inside": line.inside}
        for line in hot_lines(samples)
    ]


def _job(report: Report) -> dict[str, Any] | None:
    job = report.job
    if job is None:
        return None
    away = [
        {**one._asdict(), "start": report.wall(one.start), "end": report.wall(one.end)}
        for one in job.absences
    ]
    slow = [
        {**one._asdict(), "first": report.wall(one.first), "last": report.wall(one.last)}
        for one in job.differences
    ]
    return {
        **jobs.as_json(job.state, ()),
        "absences": away if job.watched else None,
        "differences": slow,
        "compared_by": job.by,
    }


def _node(node: NodeReport) -> dict[str, Any]:
    return {
        "host": node.host,
        "file": node.file,
        "ranks": node.ranks,
        "energy": _energy(node.energy),
        "clock": node.clock,
    }
