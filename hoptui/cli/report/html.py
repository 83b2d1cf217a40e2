"""A page in HTML: one file that needs nothing else, with no script, and opens no connection."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from hoptui.cli.report.document import (
    Block,
    Document,
    Facts,
    Figure,
    FigureRow,
    Paragraph,
    ReportChart,
    Share,
    ShareBar,
    Table,
)
from hoptui.presentation import numbers
from hoptui.presentation.scales import Scale, value_scale
from hoptui.presentation.time_ticks import elapsed_ticks

"""How the HTML page looks: one style sheet, light or dark as the reader's system is, and for paper."""

CSS = """
:root { color-scheme: light dark; --paper: #ffffff; --card: #f5f6f7; --ink: #1d1f21; --dim: #62666a;
  --rule: #d8dadd; --accent: #005faf; --area: #005faf26; --mark: #af5f00; --span: #00875f; --warning: #875f00;
  --alarm: #870000; }
@media (prefers-color-scheme: dark) { :root { --paper: #121212; --card: #1c1c1c; --ink: #dadada;
  --dim: #9a9a9a; --rule: #3a3a3a; --accent: #5fafff; --area: #5fafff30; --mark: #ffaf5f; --span: #5fd7af;
  --warning: #ffaf00; --alarm: #ff875f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 3rem; max-width: 66rem; background: var(--paper);
  color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { margin: 0 0 .4rem; font-size: 1.9rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 2.6rem 0 .8rem; padding-bottom: .3rem; border-bottom: 1px solid var(--rule); font-size: 1.2rem; }
p { margin: .7rem 0; max-width: 52rem; }
.lead { font-size: 1.08rem; }
.faint, footer { color: var(--dim); font-size: .87rem; }
footer { margin-top: 3rem; padding-top: .8rem; border-top: 1px solid var(--rule); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr));
  gap: .8rem; margin: 1.4rem 0; }
.figure { padding: .8rem 1rem; border-radius: .5rem; background: var(--card); }
.figure b { display: block; font-size: 1.5rem; line-height: 1.35; font-variant-numeric: tabular-nums; }
.figure span { display: block; color: var(--dim); font-size: .87rem; }
.wide { overflow-x: auto; margin: .9rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .32rem 1.1rem .32rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); }
th { color: var(--dim); font-weight: 500; font-size: .87rem; white-space: nowrap; }
td { overflow-wrap: break-word; }
td.number, th.number { text-align: right; white-space: nowrap; }
table.facts { width: 100%; }
table.facts th { width: 9rem; font-size: inherit; }
table.facts td { overflow-wrap: anywhere; }
table.shares { width: 100%; }
table.shares td.name { white-space: nowrap; }
table.shares td.track { width: 34%; min-width: 8rem; vertical-align: middle; }
.bar { display: block; height: .8rem; min-width: 1px; border-radius: .2rem; background: var(--accent); }
.warning { color: var(--warning); font-weight: 600; }
.alarm { color: var(--alarm); font-weight: 600; }
figure { margin: 1rem 0; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 38rem; height: auto;
  font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
svg text { fill: var(--dim); }
svg .title { fill: var(--ink); font-weight: 600; }
svg .grid { stroke: var(--rule); }
svg .area { fill: var(--area); }
svg .mean { fill: none; stroke: var(--accent); stroke-width: 1.8; stroke-linejoin: round;
  stroke-linecap: round; }
svg .mark line { stroke: var(--mark); stroke-dasharray: 3 3; }
svg .mark circle { fill: var(--mark); }
svg .mark text { fill: var(--paper); font-weight: 700; text-anchor: middle; font-size: 11px; }
svg .note { fill: var(--warning); }
svg .span { fill: var(--span); }
svg .span + text { fill: var(--span); text-anchor: middle; }
@media print { body { max-width: none; padding: 0; } h2, tr, figure, .figure { break-inside: avoid; }
  h2 { break-after: avoid; } }
""".strip()


WIDTH, HEIGHT = 960, 330
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 52, 46
TICKS_X, TICKS_Y = 8, 5
ROOM = 20  # between the numbers of two marks


def svg(chart: ReportChart) -> str:
    """The picture; it takes the colours of the page."""
    scale = value_scale([0.0, *chart.curve.mean], TICKS_Y)
    alt = f"{chart.title} over {numbers.duration((chart.span[1] - chart.span[0]) / 1e9)}"
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_escape(alt)}">',
        f'<text class="title" x="0" y="14">{_escape(chart.title)}</text>',
        f'<text x="0" y="30">{_escape(chart.unit)}</text>',
        *_axes(chart, scale),
        *_stretches(chart),
        *_curve(chart, scale),
        *_marks(chart),
        *_notes(chart),
        "</svg>",
    ]
    return "\n".join(parts)


def _axes(chart: ReportChart, scale: Scale) -> Iterator[str]:
    for tick, label in zip(scale.ticks, scale.labels, strict=True):
        y = _y(tick, scale)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_escape(label)}</text>'
    t0, t1 = chart.span
    for t, label in elapsed_ticks(t0, t1, t0, TICKS_X):
        yield (
            f'<text x="{_x(t, chart)}" y="{HEIGHT - BOTTOM + 18}" '
            f'text-anchor="middle">{_escape(label)}</text>'
        )


def _curve(chart: ReportChart, scale: Scale) -> Iterator[str]:
    floor = HEIGHT - BOTTOM
    for run in _unbroken(chart):
        stamps = [chart.curve.t[i] for i in run]
        xs = [
            _x((before + t) // 2, chart) for before, t in pairwise([stamps[0], *stamps])
        ]  # a mean is of the middle
        line = "L".join(f"{x} {_y(chart.curve.mean[i], scale)}" for x, i in zip(xs, run, strict=True))
        yield f'<path class="area" d="M{xs[0]} {floor}L{line}L{xs[-1]} {floor}Z"/>'
        yield f'<path class="mean" d="M{line}{"h0" if len(run) == 1 else ""}"/>'


def _unbroken(chart: ReportChart) -> Iterator[Sequence[int]]:
    """The places of buckets that follow each other without a gap."""
    gaps = [i for i, value in enumerate(chart.curve.mean) if not math.isfinite(value)]
    for before, after in pairwise([-1, *gaps, len(chart.curve.mean)]):
        if after - before > 1:
            yield range(before + 1, after)


def _stretches(chart: ReportChart) -> Iterator[str]:
    """What is compared, under the axis."""
    y = HEIGHT - BOTTOM
    for name, t0, t1 in chart.stretches:
        x0, x1 = _x(t0, chart), _x(t1, chart)
        middle = min(max((x0 + x1) / 2, LEFT + 26), WIDTH - RIGHT - 12)
        yield f'<rect class="span" x="{x0}" y="{y}" width="{max(2.0, x1 - x0):.1f}" height="3"/>'
        yield f'<text x="{middle:.1f}" y="{y + 36}">{_escape(name)}</text>'


def _marks(chart: ReportChart) -> Iterator[str]:
    """The changes; a number that would lie on the one before it is left out, its line is not."""
    last = -math.inf
    for mark in chart.marks:
        x = _x(mark.t, chart)
        yield f'<g class="mark"><title>{_escape(f"{mark.number}: {mark.text}")}</title>'
        yield f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        if x - last >= ROOM:
            last = x
            yield f'<circle cx="{x}" cy="{TOP - 9}" r="9"/><text x="{x}" y="{TOP - 5}">{mark.number}</text>'
        yield "</g>"


def _notes(chart: ReportChart) -> Iterator[str]:
    """Unexplained changes, as triangles on the axis."""
    y = HEIGHT - BOTTOM
    for t, said in chart.notes:
        x = _x(t, chart)
        corners = f"{x - 6:.1f},{y} {x + 6:.1f},{y} {x},{y - 10}"
        yield f'<polygon class="note" points="{corners}"><title>{_escape(said)}</title></polygon>'


def _x(t: int, chart: ReportChart) -> float:
    t0, t1 = chart.span
    share = min(1.0, max(0.0, (t - t0) / max(1, t1 - t0)))
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def _y(value: float, scale: Scale) -> float:
    share = min(1.0, max(0.0, (value - scale.bottom) / (scale.top - scale.bottom)))
    return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)


def _escape(plain: str) -> str:
    return html.escape(numbers.clean(plain, 400))


POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The page may load nothing. So markup that slips through from a run has no effect."""
LEVELS = ("warning", "alarm")
LONGEST = 4000


def write(document: Document) -> str:
    """The page as text that ends with a line end."""
    title = escape(document.title)
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title} · hoptui report</title>",
        f"<style>\n{CSS}\n</style>",
        f"<h1>{title}</h1>",
        *(_block(block, leading=True) for block in document.lead),
    ]
    for section in document.sections:
        parts += [f"<h2>{escape(section.title)}</h2>", *map(_block, section.blocks)]
    parts.append(f"<footer>{escape(document.foot)}</footer>")
    return "\n".join(parts) + "\n"


def escape(plain: str) -> str:
    """Escape untrusted text for an element or a quoted attribute. Remove invisible characters."""
    return html.escape(numbers.clean(plain, LONGEST))


def _block(block: Block, *, leading: bool = False) -> str:
    match block:
        case Paragraph(said, faint):
            kind = ' class="faint"' if faint else ' class="lead"' if leading else ""
            return f"<p{kind}>{escape(said)}</p>"
        case FigureRow(figures):
            return f'<div class="figures">\n{_lines(map(_figure, figures))}\n</div>'
        case Facts(rows):
            lines = (f"<tr><th>{escape(name)}</th><td>{escape(said)}</td></tr>" for name, said in rows)
            return f'<div class="wide"><table class="facts">\n{_lines(lines)}\n</table></div>'
        case Table(head, rows, right):
            top = "".join(f"<th{_aligned(i, right)}>{escape(cell)}</th>" for i, cell in enumerate(head))
            lines = (_row(row, right) for row in rows)
            return f'<div class="wide"><table>\n<tr>{top}</tr>\n{_lines(lines)}\n</table></div>'
        case ShareBar(rows):
            return f'<div class="wide"><table class="shares">\n{_lines(map(_share, rows))}\n</table></div>'
        case ReportChart():
            return f"<figure>\n{svg(block)}\n</figure>"


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts)


def _figure(figure: Figure) -> str:
    note = f"<span>{escape(figure.note)}</span>" if figure.note else ""
    return f'<div class="figure"><span>{escape(figure.label)}</span><b>{escape(figure.value)}</b>{note}</div>'


def _row(row: Sequence[str], right: Sequence[int]) -> str:
    # Both sides of a change stay on one line, however narrow the column is.
    said = (escape(cell).replace(" → ", "&nbsp;→&nbsp;") for cell in row)
    cells = (f"<td{_aligned(i, right, row[i])}>{cell}</td>" for i, cell in enumerate(said))
    return f"<tr>{''.join(cells)}</tr>"


def _aligned(column: int, right: Sequence[int], cell: str = "") -> str:
    if column in right:
        return ' class="number"'
    return f' class="{cell}"' if cell in LEVELS else ""


def _share(row: Share) -> str:
    width = 100 * min(max(row.share, 0.0), 1.0)
    return (
        f'<tr><td class="name">{escape(row.label)}</td><td '
        f'class="number">{numbers.percent(row.share, decimals=0)}</td><td class="track"><span class="bar" '
        f'style="width:{width:.1f}%"></span></td><td '
        f'class="number">{escape(row.amount)}</td><td>{escape(row.note)}</td></tr>'
    )
