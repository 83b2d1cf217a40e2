"""The two writers of a page: they say the same, and the HTML loads nothing and runs its scripts alone."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from hoptui.cli.report import comparison, html, markdown
from hoptui.cli.report import page as telling
from hoptui.cli.report.document import (
    ChartCurve,
    ChartGrid,
    ChartMark,
    Document,
    ReportChart,
    Section,
    Share,
    ShareBar,
)
from hoptui.cli.report.svg import svg
from hoptui.model.report import read
from hoptui.recording import Recording

EXAMPLE = Path(__file__).parents[1] / "recordings" / "ppo-h100.hoptui"
SECOND = 1_000_000_000


class Page(HTMLParser):
    """The tags, attributes and texts of a page as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.cells: set[str] = set()
        self._cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag in ("td", "th"):
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            self.cells.add("".join(self._cell).strip().replace("\xa0", " "))
            self._cell = None

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())
        if self._cell is not None:
            self._cell.append(data)


def scripts(page: str) -> list[str]:
    """The scripts of a page, as a browser finds them: each ends at the first end of a script."""
    return re.findall(r"<script>(.*?)</script>", page, re.DOTALL | re.IGNORECASE)


def chart_data(page: str) -> Any:
    """The data of the charts of a page, as a browser finds them."""
    [text] = re.findall(r'<script type="application/json" id="charts">(.*?)</script', page, re.DOTALL)
    return json.loads(text)


@pytest.fixture(scope="module")
def example() -> Document:
    with Recording.open(EXAMPLE, still=True) as recording:
        return telling.page(read(recording), 1_780_001_000.0)


def test_both_writers_say_the_same(example: Document) -> None:
    told = example._replace(sections=[_without_grids(section) for section in example.sections])
    plain = MarkdownIt("commonmark").enable("table").render(markdown.write(told))
    cells = {cell for cell in Page(plain).cells if not set(cell) <= set("█▏▎▍▌▋▊▉")}
    assert len(cells) > 60
    assert cells - {"share", "time"} <= Page(html.write(example)).cells  # the heads of a column of bars


def _without_grids(section: Section) -> Section:
    """A grid of charts is pictures in HTML, and a table in Markdown."""
    return section._replace(blocks=[one for one in section.blocks if not isinstance(one, ChartGrid)])


def test_the_html_loads_nothing(example: Document) -> None:
    page = html.write(example)
    found = Page(page)
    assert found.tags <= {
        "html", "meta", "title", "style", "h1", "h2", "p", "div", "span", "b", "table", "tr", "th", "td",
        "figure", "footer", "svg", "text", "line", "path", "rect", "g", "circle", "polygon", "i", "script",
        "thead",
    }  # fmt: skip
    assert not {name for name in found.attributes if name.startswith("on") or name in ("src", "href")}
    assert set(re.findall(r"https?://[^ )]+", page)) == {"https://github.com/leeoniya/uPlot"}, "a comment"
    assert "default-src 'none'" in page
    assert "(prefers-color-scheme: " in page


def chart(means: list[float], marks: int = 0) -> ReportChart:
    curve = ChartCurve("", [i * SECOND for i in range(1, len(means) + 1)], means, means, means)
    span = (0, len(means) * SECOND)
    numbered = [ChartMark(i * SECOND, i, "a <b>", "lr") for i in range(1, marks + 1)]
    stretches = [("beginning", 0, SECOND)]
    return ReportChart("Throughput", "x/s", (curve,), span, numbered, stretches, wide=True)


def drawing(drawn: ReportChart) -> Iterator[ET.Element]:
    return ET.fromstring(svg(drawn)).iter()


@pytest.mark.parametrize("means", [[1.0], [0.0, 0.0, 0.0], [5.0] * 300, [float("nan")] * 3, [1e-9, 1e12], []])
def test_any_curve_can_be_drawn(means: list[float]) -> None:
    drawn = chart(means)
    assert {element.tag for element in drawing(drawn)} >= {"svg", "text"}
    lines = list(markdown.drawn(drawn))
    assert len(lines) >= markdown.LINES + 2
    assert max(map(len, lines)) <= markdown.COLUMNS + 12


def test_a_gap_breaks_the_line_and_is_left_open() -> None:
    nan = float("nan")
    drawn = chart([1.0, 2.0, nan, 3.0, 4.0, nan, 5.0])
    assert sum(element.get("class") == "middle ink0" for element in drawing(drawn)) == 3
    means = markdown.columns(drawn.curves[0], drawn.span, 14)
    assert [value for value in means if value == value] == [1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 5.0]
    assert [i for i, value in enumerate(means) if value != value] == [0, 4, 5, 6, 10, 11, 12]


def test_the_numbers_of_changes_do_not_lie_on_each_other() -> None:
    drawn = chart([1.0] * 300, marks=200)
    numbers = [float(e.get("cx", "0")) for e in drawing(drawn) if e.tag == "circle"]
    assert all(b - a >= 18 for a, b in pairwise(numbers))
    assert sum(e.tag == "title" for e in drawing(drawn)) == 200
    line = next(line for line in markdown.drawn(drawn) if re.fullmatch(r" *(\d+ +)+\d+", line))
    assert len(line) <= markdown.COLUMNS + 12


@pytest.mark.parametrize(
    ("share", "bar"), [(0.0, ""), (1.0, "█" * 20), (0.5, "█" * 10), (0.51, "█" * 10 + "▎"), (7.0, "█" * 20)]
)
def test_bars(share: float, bar: str) -> None:
    assert markdown.bar(share) == bar
    page = html.write(Document("t", (), (Section("s", (ShareBar((Share("a", share, "b"),)),)),), "f"))
    assert f"width:{min(100.0, 100 * share):.1f}%" in page


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (100.0, 106.1, "+6.1 %"), (100.0, 80.0, "-20 %"), (1.0, 19.9, "× 19.9"), (13.0, 1.0, "÷ 13.0"),
        (None, 1.0, "–"), (1.0, None, "–"), (0.0, 1.0, "–"), (1.0, 1.0, "0 %"),
    ],
)  # fmt: skip
def test_differences(before: float | None, after: float | None, said: str) -> None:
    assert comparison.difference(before, after) == said


@pytest.mark.parametrize(
    "plain",
    [
        "a|b",
        "*x*",
        "_x_",
        "grad_accum",
        "`c`",
        "<b>",
        "a\nb",
        "[x](y)",
        "&amp;",
        "\\",
        "~~z~~",
        "__main__.py",
        "![i](j)",
    ],
)
def test_foreign_text_is_shown_as_it_is(plain: str) -> None:
    table = f"| h |\n| --- |\n| {markdown.escape(plain)} |\n"
    shown = Page(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(table))
    assert shown.texts == ["h", plain.replace("\n", " ")]
    assert markdown.escape("grad_accum") == "grad_accum"
