"""The section of a report on the lines that the time of its run went to."""

from __future__ import annotations

from hoptui.cli.report.document import Block, Paragraph, Section, Table
from hoptui.domain.hot_lines import HotLine, hot_lines
from hoptui.model.report import Report
from hoptui.presentation import numbers, stacks

TITLE = "Where the time goes, by line"
MOST_LINES = 15
NONE = "Not known: no stack samples are recorded."


def stacks_section(report: Report) -> Section:
    """Return the lines with the most stack samples of the first rank, and what is missing of them."""
    found = report.stacks
    notes = stacks.left_out(found.ranks_left_out, found.unreadable, found.skipped)
    lost = [Paragraph(f"Left out: {', '.join(notes)}.", faint=True)] if notes else []
    if not found.ranks:
        return Section(TITLE, (Paragraph(NONE), *lost))
    ((rank, samples),) = found.ranks.items()
    lines = hot_lines(samples)
    blocks: list[Block] = [
        Table(("share", "kind", "line", "calls"), [_row(line) for line in lines[:MOST_LINES]], right=(0,))
    ]
    said = f"{stacks.amount(samples)}"
    if len(found.known) > 1 or report.state.world > 1:
        said += f" of rank {rank}; the run has {numbers.counted(report.state.world, 'rank')}"
        said += f", {numbers.grouped(len(found.known))} of them with samples here"
    if samples.left_out:
        said += f"; the stacks of {numbers.grouped(samples.left_out)} samples are not recorded"
    if rest := lines[MOST_LINES:]:
        share = numbers.percentage(100 * sum(line.share for line in rest))
        said += f"; {numbers.counted(len(rest), 'line')} with {share} not shown"
    return Section(TITLE, [*blocks, Paragraph(f"{said}.", faint=True), *lost])


def _row(line: HotLine) -> tuple[str, ...]:
    return (
        numbers.percentage(100 * line.share),
        stacks.does(line.kind, line.inside),
        stacks.place(line.place),
        numbers.clean(line.inside, stacks.LONGEST),
    )
