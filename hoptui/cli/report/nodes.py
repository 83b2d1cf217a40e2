"""The sections of a report on a run on several nodes: its ranks over time, and what differed between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hoptui.cli.report import charts
from hoptui.cli.report.document import (
    ABSENT,
    Block,
    ChartCurve,
    ChartGrid,
    HeatMap,
    HeatRow,
    Paragraph,
    ReportChart,
    Section,
    Table,
    cut,
    when,
)
from hoptui.model.job_course import JobCourse
from hoptui.model.report import Report
from hoptui.model.report_curves import iterations_at
from hoptui.presentation import jobs, numbers, sentences, stacks

TITLE = "All nodes"
ROWS = 128
"""Rows of a heat map. Of more ranks, some share a row."""
MOST_NAMED = 12
"""Nodes that a sentence names."""
SPREADS = ("own_s", "iteration_s", "waiting")
EXPLAINED = (
    "A cell has its most remarkable rank. A colour compares it with the median of all ranks at that time. "
    "Own time is the part of an iteration in which a rank does not wait for others, by its stack samples."
)


def job_sections(report: Report) -> list[Section]:
    """Return the section on all nodes, none for a run on one node."""
    job = report.job
    if job is None:
        return []
    blocks: list[Block] = [Paragraph(_known_of(report, job))]
    if rows := _spreads(job):
        blocks.append(Table(("mean over the run", "best", "median", "worst"), rows))
    heat = heat_map(report, job, job.by)
    blocks += [heat, Paragraph(EXPLAINED, faint=True)] if heat else [Paragraph("No iteration is recorded.")]
    blocks += _differences(report, job)
    blocks += [Paragraph(f"{_begun(sentences.sentence(one))}.") for one in job.findings]
    blocks += _absences(report, job)
    if found := list(_charts(report, job)):
        blocks.append(ChartGrid(found))
    if clocks := heat_map(report, job, "clock_mhz"):
        blocks.append(clocks)
    if report.nodes:
        said = "; ".join(node.clock for node in report.nodes)
        blocks.append(Paragraph(f"Clocks: {said}.", faint=True))
    return [Section(TITLE, blocks)]


def node_gpu_sections(report: Report) -> list[Section]:
    """Return the readings of the GPUs of the other nodes over time, a section for each node."""
    found = [
        Section(f"GPUs of {numbers.clean(node.host)}", (ChartGrid(drawn),))
        for node in report.nodes
        if (drawn := charts.gpus_of(report, node.gpus, node.curves))
    ]
    left = sum(bool(node.gpus) and not node.curves for node in report.nodes)
    if left:
        said = f"No charts of {numbers.counted(left, 'more node')}. The map of all nodes has their clocks."
        found.append(Section("GPUs of more nodes", (Paragraph(said),)))
    return found


def heat_map(report: Report, job: JobCourse, reading: str) -> HeatMap | None:
    """Return a reading of all ranks over the time of the run, None if it is known of no rank."""
    rows = job.ranks[reading]
    if not any(value == value for row in rows for value in row):
        return None
    groups = jobs.groups_of(job.state, ROWS)
    columns = [jobs.group_shades(reading, row, groups) for row in rows]
    names = _first_ranks(job)
    absent = _absent(job)
    found = []
    for at, (start, end) in enumerate(groups):
        cells = [
            ABSENT if column[at] is None and any(rank in gone for rank in range(start, end)) else column[at]
            for column, gone in zip(columns, absent, strict=True)
        ]
        node = next((names[rank] for rank in range(start, end) if rank in names), "")
        found.append(HeatRow(start, end - 1, cells, node))
    span = (job.times[0] - job.step, job.times[-1])
    title = jobs.title(reading)
    return HeatMap(f"{title[:1].upper()}{title[1:]}", span, report.span[0], found, jobs.legend(reading))


def _first_ranks(job: JobCourse) -> dict[int, str]:
    """The name of each node by its first rank."""
    ranks = {node.index: jobs.ranks_of(node) for node in job.state.nodes}
    return {min(ranks[node.index]): jobs.node_name(node) for node in job.state.nodes if ranks[node.index]}


def _absent(job: JobCourse) -> list[set[int]]:
    """The ranks of the nodes that are not heard of in each column."""
    known = {rank.rank for _, rank in job.state.ranks()}
    nowhere = set(range(job.state.world)) - known
    found: list[set[int]] = [set() for _ in job.times]
    for absence in job.absences:
        ranks = nowhere
        if absence.host:
            ranks = {
                rank for node in job.state.nodes if node.host == absence.host for rank in jobs.ranks_of(node)
            }
        for at, t in enumerate(job.times):
            if absence.start < t and t - job.step < absence.end:
                found[at] |= ranks
    return found


def _known_of(report: Report, job: JobCourse) -> str:
    nodes = [node for node in job.state.nodes if node.index in job.recorded]
    named = ", ".join(jobs.node_name(node) for node in nodes[:MOST_NAMED])
    more = f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else ""
    said = f"{jobs.size(job.state)}. The recording of {named}{more} is here."
    if len(nodes) > 1:
        said = f"{jobs.size(job.state)}. The recordings of {named}{more} are here."
    if len(nodes) < len(job.state.nodes):
        said += " Of other nodes, what is known was recorded once a minute, for four hours at most."
    return said


def _spreads(job: JobCourse) -> list[tuple[str, ...]]:
    rows = []
    for reading in SPREADS:
        if parts := jobs.spread_parts(job.state, reading):
            label = jobs.READINGS[reading].label
            rows.append((label, *(f"{value}, {where}" for _, value, where in parts)))
    return rows


def _differences(report: Report, job: JobCourse) -> list[Block]:
    """The ranks that took longer than the others, by name."""
    what = jobs.READINGS[job.by].label
    if not job.differences:
        return [Paragraph(f"No rank is known to have had a longer {what} than the others.")]
    places = {rank.rank: (node, rank) for node, rank in job.state.ranks()}
    shown, more = cut(job.differences)
    rows = []
    for one in shown:
        node, rank = places.get(one.rank, (None, None))
        kind = f"{stacks.KINDS.get(rank.kind, rank.kind)}: " if rank is not None and rank.kind else ""
        rows.append(
            (
                str(one.rank),
                jobs.place(node, rank) if node is not None and rank is not None else numbers.UNKNOWN,
                numbers.seconds(one.value),
                numbers.seconds(one.usual),
                numbers.percent(one.share, decimals=0),
                when(report, max(one.first - job.step, report.span[0])),
                when(report, one.last),
                f"{kind}{numbers.clean(rank.line, 120)}" if rank is not None else "",
            )
        )
    head = ("rank", "where", what, "median", "of the time", "from", "until", "most often")
    said = f"Ranks with a longer {what} than chance explains:"
    return [Paragraph(said), Table(head, rows, right=(0, 2, 3, 4, 5, 6)), *more]


def _absences(report: Report, job: JobCourse) -> list[Block]:
    """When nodes were silent, missing, or had left."""
    if not job.watched:
        return [Paragraph("Whether nodes were silent or missing is not recorded.")]
    if not job.absences:
        return [Paragraph("No node is known to have been silent or missing.")]
    shown, more = cut(job.absences)
    rows = [
        (
            numbers.clean(one.host, jobs.LONGEST_HOST) or f"node {one.node}",
            jobs.CONDITIONS[one.condition].text,
            when(report, one.start),
            numbers.duration((one.end - one.start) / 1e9),
        )
        for one in shown
    ]
    head = ("node", "was", "from", "for")
    return [Paragraph("Nodes that were not heard of:"), Table(head, rows, right=(2, 3)), *more]


def _charts(report: Report, job: JobCourse) -> Iterator[ReportChart]:
    """Power and MFU of all GPUs together, and of how many GPUs the power is known."""
    if any(watts == watts for watts in job.power_w):
        most, least = max(job.powered), min(job.powered)
        yield _chart(report, job, f"Power of {numbers.counted(most, 'GPU')} together", "W", job.power_w)
        if least < most:
            counts = [float(count) for count in job.powered]
            yield _chart(report, job, "GPUs whose power is known", "", counts)
    if any(value == value for value in job.mfu):
        name = "MFU, estimated" if job.mfu_estimated else "MFU"
        yield _chart(report, job, f"{name}, mean of all nodes", "%", job.mfu)


def _chart(report: Report, job: JobCourse, title: str, unit: str, values: Sequence[float]) -> ReportChart:
    places = iterations_at(report.curves.course, job.times)
    curve = ChartCurve("", job.times, values, values, values, places)
    return ReportChart(title, unit, (curve,), report.span, charts.marks(report))


def _begun(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}"
