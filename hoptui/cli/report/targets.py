"""The section of a report on the targets of its run."""

from __future__ import annotations

from hoptui.cli.report.document import Section, Table
from hoptui.model.report import Report
from hoptui.model.target_times import TargetTime
from hoptui.presentation import numbers, targets, vocabulary


def targets_sections(report: Report) -> list[Section]:
    """Return the section on targets, none for a run that had no targets."""
    if not report.targets:
        return []
    rows = [_row(one) for one in report.targets]
    return [Section("Targets", (Table(("target", "last", "mean", "missed", "for"), rows, right=(3,)),))]


def _row(one: TargetTime) -> tuple[str, ...]:
    standing = "removed" if one.removed else vocabulary.STANDINGS[one.state.standing].text
    mean = targets.value_of(one.target, one.state.mean)
    often = f"{numbers.grouped(one.misses)} ×" if one.misses else "never"
    return (
        targets.goal(one.target),
        standing,
        mean,
        often,
        numbers.duration(one.missed_s) if one.misses else "",
    )
