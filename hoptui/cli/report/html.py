"""A page in HTML: one file that needs nothing else and opens no connection.

Each chart is there twice: as a picture, and as data that a script draws with uPlot for zooming. Without
scripts, and on paper, the pictures are shown.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence

from hoptui.cli.report import heat_map, live_charts
from hoptui.cli.report.document import (
    Block,
    ChartGrid,
    Document,
    Facts,
    Figure,
    FigureRow,
    HeatMap,
    Paragraph,
    ReportChart,
    Share,
    ShareBar,
    Strip,
    Table,
)
from hoptui.cli.report.svg import INKS, strip_svg, svg
from hoptui.presentation import numbers

LEVELS = ("warning", "alarm")
LONGEST = 4000
SHORT, SHORT_HEAD = 24, 16  # characters of a cell and of a head that need not be broken
MANY = 8  # with more columns, all have the same width on paper
_UNIT = r"(?:%|°C|[nµm]?s|[mhd]|[mkMG]?(?:Wh?|J|Hz)|[KMGT]i?B|B|[kMGTP])(?!\w)"
_GLUED = re.compile(rf"(?<=\d) (?={_UNIT}|\d{{3}}\b)|(?<=[±×÷]) (?=\d)| (?=→ )|(?<= →) ")
_HYPHENATED = re.compile(
    r"\d{4}-\d\d-\d\d \S+(?: [+-]\d\d:\d\d)?"  # a date and a time
    r"|(?<!\S)--?[A-Za-z][\w-]{0,40}"  # an option of a command
    r"|(?<![\w.])\d[\d.]*e-\d+"
)


def write(document: Document) -> str:
    """The page as text that ends with a line end."""
    title = escape(document.title)
    blocks = [*document.lead, *(block for section in document.sections for block in section.blocks)]
    charts = list(_charts(blocks))
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{live_charts.policy()}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title} · hoptui report</title>",
        f"<style>\n{live_charts.styles()}</style>",
        f"<h1>{title}</h1>",
        *(_block(block, leading=True) for block in document.lead),
        '<div id="controls"></div>',
    ]
    for section in document.sections:
        parts += [f"<h2>{escape(section.title)}</h2>", *map(_block, section.blocks)]
    parts.append(f"<footer>{escape(document.foot)}</footer>")
    if charts:
        parts.append(f'<script type="application/json" id="charts">{live_charts.data(charts)}</script>')
        parts += (f"<script>{script}</script>" for script in live_charts.scripts())
    return "\n".join(parts) + "\n"


def _charts(blocks: Iterable[Block]) -> Iterable[ReportChart | Strip]:
    """Yield the charts in the order of the page, which is that of their data."""
    for block in blocks:
        match block:
            case ReportChart() | Strip():
                yield block
            case ChartGrid(charts):
                yield from charts


def escape(plain: str) -> str:
    """Escape untrusted text for an element or a quoted attribute. Remove invisible characters."""
    return html.escape(numbers.clean(plain, LONGEST))


def _block(block: Block, *, leading: bool = False) -> str:
    match block:
        case Paragraph(said, faint):
            kind = ' class="faint"' if faint else ' class="lead"' if leading else ""
            return f"<p{kind}>{_text(said)}</p>"
        case FigureRow(figures):
            return f'<div class="figures">\n{_lines(map(_figure, figures))}\n</div>'
        case Facts(rows):
            lines = (f"<tr>{_cell('th', name)}{_cell('td', said)}</tr>" for name, said in rows)
            return f'<div class="wide"><table class="facts">\n{_lines(lines)}\n</table></div>'
        case Table(head, rows, right):
            top, lines = _row("th", head, right), (_row("td", row, right) for row in rows)
            many = ' class="many"' if len(head) > MANY else ""
            return f'<div class="wide"><table{many}>\n<thead>{top}</thead>\n{_lines(lines)}\n</table></div>'
        case ShareBar(rows):
            return f'<div class="wide"><table class="shares">\n{_lines(map(_share, rows))}\n</table></div>'
        case ReportChart():
            return _chart(block)
        case ChartGrid(charts):
            return f'<div class="grid">\n{_lines(map(_chart, charts))}\n</div>'
        case HeatMap():
            return f'<figure class="map"><div>\n{heat_map.svg(block)}\n</div>{_legend(block)}</figure>'
        case Strip():
            return _picture(strip_svg(block), wide=True, keys=_keys(block.inks))


def _chart(chart: ReportChart) -> str:
    named = {curve.label: curve.ink for curve in chart.curves if curve.label}
    return _picture(f"{svg(chart)}\n{_keys(named)}", wide=chart.wide)


def _picture(still: str, *, wide: bool, keys: str = "") -> str:
    """A chart as a picture, and the place of the one that a script draws; `keys` are for both."""
    size = "wide" if wide else "small"
    return (
        f'<figure class="chart {size}"><div class="still">\n{still}\n</div>'
        f'<div class="live"></div>{keys}</figure>'
    )


def _keys(inks: Mapping[str, int]) -> str:
    """What the colours of a chart mean."""
    return _named((f"fill{ink % INKS}", text) for text, ink in inks.items())


def _legend(found: HeatMap) -> str:
    return _named(heat_map.keys(found))


def _named(colours: Iterable[tuple[str, str]]) -> str:
    """Texts, each after its colour, by the class of that."""
    found = [f'<span class="key"><i class="{kind}"></i>{escape(text)}</span>' for kind, text in colours]
    return f'<p class="keys">{" ".join(found)}</p>' if found else ""


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts)


def _figure(figure: Figure) -> str:
    note = f"<span>{escape(figure.note)}</span>" if figure.note else ""
    return f'<div class="figure"><span>{escape(figure.label)}</span><b>{escape(figure.value)}</b>{note}</div>'


def _row(tag: str, row: Sequence[str], right: Sequence[int]) -> str:
    return f"<tr>{''.join(_cell(tag, cell, number=i in right) for i, cell in enumerate(row))}</tr>"


def _cell(tag: str, said: str, *, number: bool = False) -> str:
    """A cell of a table. A text of some length may be broken anywhere, but has a width of its own."""
    kinds = ["number"] if number else [said] if said in LEVELS else []
    if len(said) > (SHORT_HEAD if tag == "th" else SHORT) and not (number and tag == "td"):
        kinds.append("long")
    named = f' class="{" ".join(kinds)}"' if kinds else ""
    return f"<{tag}{named}>{_text(said)}</{tag}>"


def _text(said: str) -> str:
    """A text for an element. No line ends within a figure, a change or an option, or before a unit."""
    glued = _GLUED.sub("&nbsp;", escape(said))
    return _HYPHENATED.sub(r'<span class="whole">\g<0></span>', glued)


def _share(row: Share) -> str:
    width = 100 * min(max(row.share, 0.0), 1.0)
    bar = f'<td class="track"><span class="bar" style="width:{width:.1f}%"></span></td>'
    share = _cell("td", numbers.percent(row.share, decimals=0), number=True)
    amount = _cell("td", row.amount, number=True)
    return f"<tr>{_cell('td', row.label)}{share}{bar}{amount}{_cell('td', row.note)}</tr>"
