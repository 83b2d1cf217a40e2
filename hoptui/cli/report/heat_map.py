"""Heat maps of a report: as a picture in the colours of the page, and in characters. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from itertools import groupby

from hoptui.cli.report.document import ABSENT, HeatMap, HeatRow
from hoptui.presentation import jobs, numbers
from hoptui.presentation.time_ticks import elapsed, elapsed_ticks

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 960, 170, 24, 24, 26
HEIGHTS = ((16, 18), (64, 9), (128, 5))
"""The height of a row of a map of at most so many rows."""
LINE, BASELINE = 15, 5
"""The height of a line of labels, and how far its baseline is below its middle."""
NODE = 14
"""Characters of the name of a node."""
TICKS = 8
COLUMNS, LINES = 72, 32
"""Cells and rows of a map in characters."""
UNKNOWN_GLYPH, ABSENT_GLYPH = " ", "-"


def svg(found: HeatMap) -> str:
    """Return the picture of a heat map: a path for each shade."""
    rows, columns = found.rows, _columns(found)
    tall = next((height for most, height in HEIGHTS if len(rows) <= most), HEIGHTS[-1][1])
    height = TOP + tall * len(rows) + BOTTOM
    wide = (WIDTH - LEFT - RIGHT) / columns
    alt = f"{found.title} of {numbers.counted(len(rows), 'row')} over {_length(found)}"
    parts = [
        f'<svg class="wide" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{_escape(alt)}">',
        f'<text class="title" x="0" y="14">{_escape(found.title)}</text>',
        f'<rect class="unknown" x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{tall * len(rows)}"/>',
        f'<g transform="translate({LEFT} {TOP + tall / 2:g}) scale({wide:.6g} {tall})" '
        'shape-rendering="crispEdges">',
        *_paths(rows),
        "</g>",
        *_labels(rows, tall),
        *_axis(found, TOP + tall * len(rows)),
        "</svg>",
    ]
    return "\n".join(parts)


def keys(found: HeatMap) -> list[tuple[str, str]]:
    """Return the class and the text of each colour that the map has."""
    there = {cell for row in found.rows for cell in row.cells}
    named = [(f"heat{shade}", text) for shade, text in enumerate(found.legend)]
    if ABSENT in there:
        named.append(("absent", "not heard of"))
    if None in there:
        named.append(("unknown", "unknown"))
    return named


def lines(found: HeatMap) -> list[str]:
    """Return a heat map in characters, with its axis and what they mean."""
    together = -(-len(found.rows) // LINES)
    merged = [_merged(found.rows[at : at + together]) for at in range(0, len(found.rows), together)]
    nodes = [row.node[:NODE] for row in merged]
    name, label = max(map(len, nodes), default=0), max((len(row.label) for row in merged), default=1)
    drawn = [found.title]
    for row, node in zip(merged, nodes, strict=True):
        cells = "".join(_glyph(shade) for shade in _thinned(row.cells))
        drawn.append(f"{node:<{name}} {row.label:>{label}} │{cells}".rstrip())
    width = min(COLUMNS, _columns(found))
    first, last = (elapsed(round((t - found.zero) / 1e9)) for t in found.span)
    drawn.append(f"{'':>{name + label + 1}} └{'─' * width}")
    drawn.append(f"{'':>{name + label + 1}}  {first}{last:>{max(1, width - len(first))}}")
    meant = [
        f"{glyph} {text}"
        for at, (glyph, text) in enumerate(zip(jobs.GLYPHS, found.legend, strict=True))
        if glyph not in jobs.GLYPHS[:at]
    ]
    if any(cell == ABSENT for row in found.rows for cell in row.cells):
        meant.append(f"{ABSENT_GLYPH} not heard of")
    return [*drawn, "   ".join(meant)]


def _merged(rows: Sequence[HeatRow]) -> HeatRow:
    """Some rows as one, with the most remarkable cells."""
    cells = [jobs.most_remarkable(column) for column in zip(*(row.cells for row in rows), strict=True)]
    node = next((row.node for row in rows if row.node), "")
    return HeatRow(rows[0].first, rows[-1].last, cells, node)


def _thinned(cells: Sequence[int | None]) -> Iterator[int | None]:
    """The cells in at most `COLUMNS` parts, each with its most remarkable one."""
    count = min(COLUMNS, len(cells))
    for at in range(count):
        yield jobs.most_remarkable(cells[at * len(cells) // count : (at + 1) * len(cells) // count])


def _glyph(shade: int | None) -> str:
    if shade is None:
        return UNKNOWN_GLYPH
    return ABSENT_GLYPH if shade == ABSENT else jobs.GLYPHS[shade]


def _columns(found: HeatMap) -> int:
    return max((len(row.cells) for row in found.rows), default=1) or 1


def _paths(rows: Sequence[HeatRow]) -> Iterator[str]:
    """A path for each shade: a line of one unit of height for each run of equal cells."""
    drawn: dict[int, list[str]] = {}
    for y, row in enumerate(rows):
        at = 0
        for shade, run in groupby(row.cells):
            length = sum(1 for _ in run)
            if shade is not None:
                drawn.setdefault(shade, []).append(f"M{at} {y}h{length}")
            at += length
    for shade, runs in sorted(drawn.items()):
        kind = "absent" if shade == ABSENT else f"heat{shade}"
        yield f'<path class="{kind}" stroke-width="1" d="{"".join(runs)}"/>'


def _labels(rows: Sequence[HeatRow], tall: int) -> Iterator[str]:
    """Names of nodes at their first rows and ranks, as far as there is room."""
    free_node = free = 0.0
    for at, row in enumerate(rows):
        y = TOP + tall * (at + 0.5) + BASELINE
        if row.node and y >= free_node:
            free_node = y + LINE
            yield f'<text x="0" y="{y:g}">{_escape(numbers.clean(row.node, NODE))}</text>'
        if y >= free:
            free = y + LINE
            yield f'<text x="{LEFT - 6}" y="{y:g}" text-anchor="end">{row.label}</text>'


def _axis(found: HeatMap, y: int) -> Iterator[str]:
    t0, t1 = found.span
    for t, label in elapsed_ticks(t0, t1, found.zero, TICKS):
        x = LEFT + (t - t0) / max(1, t1 - t0) * (WIDTH - LEFT - RIGHT)
        yield f'<text x="{x:.1f}" y="{y + 17}" text-anchor="middle">{_escape(label)}</text>'


def _length(found: HeatMap) -> str:
    return numbers.duration((found.span[1] - found.span[0]) / 1e9)


def _escape(plain: str) -> str:
    return html.escape(numbers.clean(plain, 400))
