"""A page in HTML: one file that needs nothing else, with no script, and opens no connection."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from hoptui.cli.page.document import (
    Block,
    Chart,
    Document,
    Facts,
    Figure,
    Figures,
    Paragraph,
    Share,
    Shares,
    Table,
)
from hoptui.cli.page.picture import svg
from hoptui.cli.page.style import CSS
from hoptui.viewer import format as text

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What a browser may load for the page: nothing. Should a text of a run ever get through as markup, it can do nothing."""
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
    """Foreign text as text, in an element or a quoted attribute: no markup, no control or invisible characters."""
    return html.escape(text.clean(plain, LONGEST))


def _block(block: Block, *, leading: bool = False) -> str:
    match block:
        case Paragraph(said, faint):
            kind = ' class="faint"' if faint else ' class="lead"' if leading else ""
            return f"<p{kind}>{escape(said)}</p>"
        case Figures(figures):
            return f'<div class="figures">\n{_lines(map(_figure, figures))}\n</div>'
        case Facts(rows):
            lines = (f"<tr><th>{escape(name)}</th><td>{escape(said)}</td></tr>" for name, said in rows)
            return f'<div class="wide"><table class="facts">\n{_lines(lines)}\n</table></div>'
        case Table(head, rows, right):
            top = "".join(f"<th{_aligned(i, right)}>{escape(cell)}</th>" for i, cell in enumerate(head))
            lines = (_row(row, right) for row in rows)
            return f'<div class="wide"><table>\n<tr>{top}</tr>\n{_lines(lines)}\n</table></div>'
        case Shares(rows):
            return f'<div class="wide"><table class="shares">\n{_lines(map(_share, rows))}\n</table></div>'
        case Chart():
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
        f'<tr><td class="name">{escape(row.label)}</td><td class="number">{text.percent(row.share, decimals=0)}</td>'
        f'<td class="track"><span class="bar" style="width:{width:.1f}%"></span></td>'
        f'<td class="number">{escape(row.amount)}</td><td>{escape(row.note)}</td></tr>'
    )
