"""The text of the screen of a job: size, spread and totals, what is wrong, and the ranks of a node. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hoptui.domain.facts import Fact
from hoptui.domain.job_history import RANK_READINGS, JobHistory
from hoptui.domain.jobs import JobNode, JobState, NodeCondition, RankSummary
from hoptui.domain.learning_metrics import headline_name
from hoptui.presentation import job_head, jobs, numbers, sentences, stacks, vocabulary
from hoptui.presentation.readings import value_text
from hoptui.tui.components import lines
from hoptui.tui.screens.job import heat_maps
from hoptui.tui.snapshot import SECOND, View
from hoptui.tui.styled_text import Line, Span, first_fitting, width_of

INKS: dict[NodeCondition, str] = {"live": "good", "silent": "warn", "missing": "bad", "left": "dim"}
OLD_S = 5.0
"""What is known of the job is old from then on."""
ALARMS = ("job.missing_node", "job.silent_node", "job.hung_rank", "job.no_progress", "job.stalled")


def age_s(view: View, job: JobHistory) -> float | None:
    """How long ago the newest state was, None in a replay."""
    moments = job.moments
    return view.now / SECOND - moments[-1].t if moments and view.replay is None else None


def nothing(view: View) -> str:
    """Why there is no job to show, in one sentence."""
    if view.run is None:
        return "the run is no longer known"
    if view.replay is not None:
        return (
            "no state of other nodes is recorded of this time: hoptui replay with the recordings of all "
            "nodes shows their ranks"
        )
    if view.run.world == 1:
        return "the run has one process"
    return "nothing is known of other nodes: they share what they know once init_process_group has run"


def size(
    state: JobState,
    age_s: float | None,
    clocks: Sequence[str] = (),
    *,
    recorded: bool = False,
    ended: bool = False,
) -> Line:
    """`512 ranks on 64 nodes   ● 62 live   ◌ 2 silent`, and how old that is, or why other nodes are not read.

    `age_s` is the time since the state came, `recorded` whether a recording has it. `clocks` are sentences on
    the clocks of joined recordings. `ended`: the run has ended, and no news are to come.
    """
    line: Line = (Span(" "), Span(jobs.size(state), "strong"))
    for condition, count in jobs.conditions(state):
        word, ink = jobs.condition(condition, ended=ended), _ink(condition, ended=ended)
        line = (*line, Span(f"   {word.symbol} ", ink), Span(f"{count} {word.text}"))
    if problem := jobs.store_problem(state) or jobs.head_problem(state):
        line = (*line, Span("   "), Span(problem, "warn"))
    elif recorded and state.age_s > OLD_S:
        line = (*line, Span(f"   recorded {numbers.duration(state.age_s)} before", "dim"))
    elif clocks:
        line = (*line, Span(f"   {clocks[0]}", "dim"))
    elif age_s is not None and age_s > OLD_S and not ended:
        line = (*line, Span(f"   no news for {numbers.duration(age_s)}", "warn"))
    return line


def _ink(condition: NodeCondition, *, ended: bool) -> str:
    return INKS["left"] if ended and condition == "live" else INKS.get(condition, "")


def spread(state: JobState, reading: str, width: int) -> Line:
    """`iteration   best 0.41 s rank 7 (gpu00, GPU 7)   median …   worst …`."""
    label = jobs.READINGS[reading].label
    parts = jobs.spread_parts(state, reading)
    if not parts:
        return Span(f" {label}  ", "dim"), Span("not known on any rank", "dim")
    whole: Line = (Span(f" {label}  ", "dim"),)
    short = whole
    for word, value, where in parts:
        ink = "warn" if word == "worst" and _apart(state, reading) else "strong"
        part = (Span(f"{word} ", "dim"), Span(value, ink), Span(" "))
        whole = (*whole, *part, Span(f"{where}   "))
        short = (*short, *part, Span(f"{where.partition(' (')[0]}  "))
    return first_fitting((whole, short), width)


def _apart(state: JobState, reading: str) -> bool:
    """Whether the highest value is beyond the first bound of the shades."""
    found = jobs.spread_of(state, reading)
    return found is not None and bool(
        jobs.shade(reading, found.highest[1], jobs.base(reading, [found.median[1]]))
    )


def throughput_unit(view: View) -> str:
    """The unit of what rank 0 reports, "" if the run has no rate."""
    if view.run is None:
        return ""
    name = headline_name(view.store.names(view.source), view.run.headline)
    return vocabulary.unit_of(name, view.run.units) if name else ""


def totals(state: JobState, unit: str, width: int) -> Line:
    """`power 312 kW of 512 GPUs   mean MFU 41 %   rank 0 reports 1.2 M tokens/s`."""
    line: Line = (Span(" "),)
    for label, text in jobs.totals_parts(state, unit):
        item = (Span(f"{label} ", "dim"), Span(text, "strong"), Span("   "))
        if width_of(line) + width_of(item) > width:
            break
        line = (*line, *item)
    return line if len(line) > 1 else (Span(" no power, MFU or throughput is known", "dim"),)


def findings(found: Sequence[Fact], width: int, height: int) -> list[Line]:
    """What is wrong, the worst first: whole sentences as far as there is room, then how many more."""
    if not found:
        return [(Span("no rank or node is known to differ from the others", "dim"),)]
    shown: list[Line] = []
    for at, one in enumerate(found):
        ink = "bad" if one.code in ALARMS else "warn"
        wrapped = textwrap.wrap(sentences.sentence(one), max(16, width - 2), break_on_hyphens=False)
        room = height - len(shown) - (at < len(found) - 1)
        if len(wrapped) > max(1, room):
            wrapped = [sentences.sentence(one)]  # it is cut
        if room < 1:
            shown.append((Span(f"  and {len(found) - at} more", "dim"),))
            break
        shown += [(Span("▲ " if not i else "  ", ink), Span(part)) for i, part in enumerate(wrapped)]
    return shown[:height]


def of_head(view: View) -> list[Line]:
    """The verdict of the head, and what it alone knows, on another node."""
    run, node = view.run, view.node
    if run is None or node is None or not run.rank or view.replay is not None:
        return []
    if run.head is None:
        return [(Span(job_head.UNKNOWN_HEAD, "dim"),)]
    texts = (job_head.verdict(run.head), job_head.known_there(run.head, node))
    shown = [job_head.dated(text, view.vital) for text in texts if text]
    return [(Span(text, "dim"),) for text in shown]


def node_line(node: JobNode, state: JobState, *, ended: bool = False) -> Line:
    """`gpu38   ● live   ranks 304–311   CPU 34 %   memory 41 %   network 1.2 GB/s out, 1.1 GB/s in`."""
    word = jobs.condition(node.condition, ended=ended)
    since = f" for {numbers.duration(node.age_s)}" if node.condition in ("silent", "missing") else ""
    roles = [name for name, index in (("head", state.head), ("here", state.here)) if index == node.index]
    line: Line = (
        Span(jobs.node_name(node), "strong"),
        Span(f" ({', '.join(roles)})" if roles else "", "dim"),
        Span(f"  {word.symbol} {word.text}{since}", _ink(node.condition, ended=ended)),
    )
    summary = node.summary
    if summary is None:
        return (*line, Span("  it has never reported", "dim"))
    values = [("CPU", numbers.percent(summary.cpu)), ("memory", numbers.percent(summary.memory))]
    sent, received = (value_text("B/s", one) for one in (summary.sent_bytes_s, summary.received_bytes_s))
    values.append(("network", f"{sent} out, {received} in"))
    for label, text in values:
        line = (*line, Span(f"   {label} ", "dim"), Span(text))
    return line


class RankColumn(NamedTuple):
    """A column of the table of ranks. `width` is in cells, with the gap before it."""

    head: str
    width: int
    write: Callable[[RankSummary], str]


def _gpu(write: Callable[[RankSummary], str]) -> Callable[[RankSummary], str]:
    return lambda rank: write(rank) if rank.gpu is not None else numbers.UNKNOWN


def _reading(name: str) -> Callable[[RankSummary], str]:
    shades, read = jobs.READINGS[name], RANK_READINGS[name]
    return lambda rank: shades.show(read(rank))


COLUMNS = (
    RankColumn("rank", 5, lambda rank: str(rank.rank)),
    RankColumn(
        "GPU", 5, _gpu(lambda rank: str(rank.gpu.index) if rank.gpu and rank.gpu.index is not None else "–")
    ),
    RankColumn("iteration", 11, _reading("iteration_s")),
    RankColumn("own time", 10, _reading("own_s")),
    RankColumn("waits", 7, _reading("waiting")),
    RankColumn("busy", 7, _reading("utilization")),
    RankColumn("power", 7, _reading("power_w")),
    RankColumn("memory", 8, _reading("memory")),
    RankColumn("clock", 11, _reading("clock_mhz")),
    RankColumn("progress", 12, _reading("progress_age_s")),
)
LINE = 30
"""Cells from which the line of a rank is worth its room."""


def table_lines(state: JobState) -> int:
    """The lines of the table of all ranks."""
    return 1 + sum(len(heat_maps.of_node(node)) for node in state.nodes)


def table(nodes: Sequence[JobNode], width: int, *, named: bool) -> list[Line]:
    """The ranks of some nodes with their readings. `named`: with the node of each."""
    name = max((len(jobs.node_name(node)) for node in nodes), default=0) + 2 if named else 0
    shown: list[RankColumn] = []
    used = name
    for column in COLUMNS:
        if used + column.width > width:
            break
        shown.append(column)
        used += column.width
    room = width - used - 2
    head: Line = (
        *([Span("node", "dim", name)] if named else []),
        *(Span(column.head, "dim", column.width, right=True) for column in shown),
        *([Span("  "), Span("where it is most", "dim")] if room >= LINE else []),
    )
    rows = [head]
    for node in nodes:
        pale = "" if node.condition == "live" else "stale"
        for rank in heat_maps.of_node(node):
            place = _place(rank) if room >= LINE else ()
            rows.append(
                (
                    *([Span(jobs.node_name(node), pale or "dim", name)] if named else []),
                    *(Span(column.write(rank), pale, column.width, right=True) for column in shown),
                    *place,
                )
            )
    return rows


def _place(rank: RankSummary) -> Line:
    if not rank.line:
        return ()
    share = f" {numbers.percent(rank.line_share)}" if rank.line_share is not None else ""
    kind = stacks.KINDS.get(rank.kind, rank.kind)
    return (
        Span("  "),
        Span(f"{kind}{share} ", lines.INKS.get(rank.kind, "dim")),
        Span(numbers.clean(rank.line, 120)),
    )
