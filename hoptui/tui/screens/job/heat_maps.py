"""Heat maps of a job: nodes × ranks now, and ranks × time. Pure.

Both have a constant size. Nodes stand in several columns if there are more of them than lines. Ranks share a
cell if there are more of them than cells: then the cell has the most remarkable one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hoptui.domain.job_history import MOST_MOMENTS, RANK_READINGS, JobMoment
from hoptui.domain.jobs import JobNode, JobState, RankSummary
from hoptui.presentation import jobs
from hoptui.tui.styled_text import HOTTEST, Line, Span

GLYPHS = jobs.GLYPHS
INKS = ("heat-0", "heat-1", "heat-2", "heat-3", HOTTEST)
UNKNOWN = "?"
CELLS = (4, 3, 2, 1)
"""Cells of a rank, the widest first."""
MARK, GAP = 1, 2
LONGEST_NAME = 24
MOST_CACHED = 2 * MOST_MOMENTS
"""Moments whose shades are kept."""
MOST_LINES = 5
"""Lines of a rank in the map over time."""


class NodeGrid(NamedTuple):
    """How nodes are laid out: `lines` of so many `columns`, a label, and `cells` for each rank.

    `together` ranks share a cell. `named`: labels are names of hosts, otherwise numbers of nodes.
    """

    lines: int
    columns: int
    label: int
    cells: int
    together: int
    named: bool

    @property
    def gap(self) -> int:
        """Blanks between two columns. Where room is scarce, the mark of a node is blank enough."""
        return GAP if self.named or self.cells > 1 else 0

    @property
    def places(self) -> int:
        """How many nodes there is room for."""
        return self.lines * self.columns


def names(state: JobState) -> list[str]:
    """The names of the nodes up to the first dot, or whole ones if those are not different.

    Nodes of one name have their numbers, too.
    """
    whole = [jobs.node_name(node) for node in state.nodes]
    short = [name.partition(".")[0] for name in whole]
    if len(set(short)) == len(short):
        return short
    return [
        f"{name} ({node.index})" if whole.count(name) > 1 else name
        for name, node in zip(whole, state.nodes, strict=True)
    ]


def grid(state: JobState, width: int, height: int) -> NodeGrid:
    """The layout with the most room for each node that shows all of them, else the tightest one."""
    count = max(1, len(state.nodes))
    ranks = max((len(node.summary.ranks) for node in state.nodes if node.summary), default=1)
    height = max(1, height)
    label = min(LONGEST_NAME, max(map(len, names(state)), default=1))
    number = len(str(max((node.index for node in state.nodes), default=0)))
    lines = min(height, count)
    for named, cells in ((True, 4), (True, 3), (True, 2), (True, 1), (False, 2), (False, 1)):
        found = NodeGrid(lines, 1, label if named else number, cells, 1, named)
        room = MARK + found.label + 1 + ranks * cells
        columns = max(1, (width + found.gap) // (room + found.gap))
        if columns * lines >= count and room <= width:
            # As few lines as the columns need: no column is nearly empty.
            used = -(-count // lines)
            return found._replace(lines=-(-count // used), columns=used)
    room = MARK + number + 1
    columns = max(1, width // (room + ranks))
    together = -(-ranks // max(1, width - room)) if room + ranks > width else 1
    return NodeGrid(min(height, -(-count // columns)), columns, number, 1, together, False)


def first_shown(grid: NodeGrid, count: int, chosen: int) -> int:
    """The first node to show, so that the chosen one is among them. Whole columns move."""
    if count <= grid.places:
        return 0
    column = chosen // grid.lines
    return max(0, column - grid.columns + 1) * grid.lines


def nodes_map(state: JobState, reading: str, grid: NodeGrid, chosen: int, first: int = 0) -> list[Line]:
    """Nodes × ranks now. Those of a node that is not live are as they were last, and pale."""
    read = RANK_READINGS[reading]
    known = [value for _, rank in state.live_ranks() if (value := read(rank)) is not None]
    base = jobs.base(reading, known)
    labels = names(state)
    lines = []
    ranks = max((len(node.summary.ranks) for node in state.nodes if node.summary), default=1)
    width = -(-ranks // grid.together) * grid.cells
    for row in range(grid.lines):
        line: Line = ()
        for column in range(grid.columns):
            place = first + column * grid.lines + row
            if place >= len(state.nodes):
                continue
            node = state.nodes[place]
            label = labels[place] if grid.named else str(node.index)
            gap = (Span(" " * grid.gap),) if column and grid.gap else ()
            line = (
                *line,
                *gap,
                *_label(node, label, grid.label, chosen=place == chosen),
                *_cells(node, reading, base, grid, width),
            )
        lines.append(line)
    return lines


def node_at(grid: NodeGrid, state: JobState, first: int, x: int, y: int) -> int | None:
    """The place of the node at a cell of the map, None if there is none."""
    ranks = max((len(node.summary.ranks) for node in state.nodes if node.summary), default=1)
    width = MARK + grid.label + 1 + -(-ranks // grid.together) * grid.cells + grid.gap
    place = first + min(x // width, grid.columns - 1) * grid.lines + y
    return place if y < grid.lines and place < len(state.nodes) else None


def _label(node: JobNode, label: str, width: int, *, chosen: bool) -> Line:
    word = jobs.CONDITIONS[node.condition]
    ink = {"silent": "warn", "missing": "bad"}.get(node.condition, "dim")
    sign = " " if node.condition == "live" else word.symbol
    mark = Span("›", "key") if chosen else Span(sign, ink)
    return mark, Span(label, "strong" if chosen else ink, width), Span(" ")


def _cells(node: JobNode, reading: str, base: float | None, grid: NodeGrid, width: int) -> Line:
    if node.summary is None:
        return (Span(jobs.CONDITIONS[node.condition].text, "bad", width),)
    read = RANK_READINGS[reading]
    shades = [jobs.shade(reading, read(rank), base) for rank in node.summary.ranks]
    cells = [
        jobs.most_remarkable(shades[start : start + grid.together])
        for start in range(0, len(shades), grid.together)
    ]
    faded = node.condition != "live"
    line = tuple(_cell(shade, grid.cells, faded=faded) for shade in cells)
    rest = width - len(cells) * grid.cells
    return (*_merged(line), *([Span(" " * rest)] if rest > 0 else []))


def _cell(shade: int | None, cells: int, *, faded: bool = False) -> Span:
    if shade is None:
        return Span(UNKNOWN.center(cells) if cells > 1 else UNKNOWN, "faint")
    block = GLYPHS[shade] * (cells - 1) + " " if cells > 2 else GLYPHS[shade] * cells
    return Span(block, "stale" if faded else INKS[shade])


def _merged(line: Sequence[Span]) -> Line:
    """Neighbours of one ink as one span."""
    found: list[Span] = []
    for span in line:
        if found and found[-1].ink == span.ink:
            found[-1] = Span(found[-1].text + span.text, span.ink)
        else:
            found.append(span)
    return tuple(found)


def legend(reading: str, width: int) -> list[tuple[str, str, str]]:
    """What the shades mean, for `Panel.glyph_legend`, as far as there is room."""
    entries = [(GLYPHS[i], text, INKS[i]) for i, text in enumerate(jobs.legend(reading))]
    found: list[tuple[str, str, str]] = []
    used = 0
    for entry in (*entries, (UNKNOWN, "unknown", "faint")):
        used += len(entry[1]) + 5
        if used > width:
            break
        found.append(entry)
    return found


# ranks × time


class ShadeCache:
    """The shades of moments, which do not change: only those of a new moment are worked out."""

    def __init__(self) -> None:
        self._known: dict[tuple[float, str, int], list[int | None]] = {}

    def of(self, moment: JobMoment, reading: str, groups: Sequence[tuple[int, int]]) -> list[int | None]:
        """The most remarkable shade of each group of ranks."""
        key = moment.t, reading, len(groups)
        if key not in self._known:
            if len(self._known) >= MOST_CACHED:
                self._known.clear()
            self._known[key] = jobs.group_shades(reading, moment.ranks[reading], groups)
        return self._known[key]


def time_map(
    state: JobState,
    moments: Sequence[JobMoment],
    reading: str,
    width: int,
    height: int,
    span_s: float,
    cache: ShadeCache,
) -> list[Line]:
    """Ranks × time: the last `span_s`, the newest at the right. A cell has its most remarkable rank.

    A few ranks have several lines each. The last line is the axis.
    """
    groups, room = jobs.groups_of(state, height - 1), max(1, height - 1)
    tall = max(1, min(MOST_LINES, room // max(1, len(groups))))
    labels = [str(start) if end - start == 1 else f"{start}–{end - 1}" for start, end in groups]
    label = max(map(len, labels), default=1)
    cells = max(1, width - label - 1)
    newest = moments[-1].t if moments else 0.0
    found: list[list[int | None]] = [[None] * cells for _ in groups]
    for moment in moments:
        column = cells - 1 - int((newest - moment.t) / span_s * cells)
        if column < 0:
            continue
        for row, shade in enumerate(cache.of(moment, reading, groups)):
            found[row][column] = jobs.most_remarkable((found[row][column], shade))
    _fill(found, len(moments))
    lines: list[Line] = []
    for row, shades in enumerate(found):
        drawn = _merged([Span(" ") if shade is None else _cell(shade, 1) for shade in shades])
        for part in range(tall):
            name = labels[row] if part == (tall - 1) // 2 else ""
            lines.append((Span(name, "dim", label, right=True), Span(" "), *drawn))
    return [*lines, _axis(label, cells, span_s)]


def _axis(label: int, cells: int, span_s: float) -> Line:
    return (
        Span(" " * (label + 1)),
        Span(f"{span_s / 60:g} min ago", "dim", max(1, cells - 3)),
        Span("now", "dim"),
    )


def _fill(found: list[list[int | None]], moments: int) -> None:
    """Fill cells between two moments with the one before: moments are further apart than cells."""
    if moments < 2:
        return
    columns = len(found[0]) if found else 0
    known = [any(row[column] is not None for row in found) for column in range(columns)]
    gap = _longest_step(known)
    since = columns
    for column in range(columns):
        if known[column]:
            since = 0
            continue
        since += 1
        if since < gap:
            for row in found:
                row[column] = row[column - 1]


def _longest_step(known: Sequence[bool]) -> int:
    """The usual distance of known cells, and one more."""
    at = [column for column, there in enumerate(known) if there]
    steps = sorted(b - a for a, b in pairwise(at))
    return steps[len(steps) // 2] + 1 if steps else 0


def of_node(node: JobNode) -> tuple[RankSummary, ...]:
    """The ranks of a node as they were last, none if it has never written."""
    return node.summary.ranks if node.summary is not None else ()
