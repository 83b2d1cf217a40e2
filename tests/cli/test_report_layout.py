"""How the page of a report fits into a browser and on paper, by its styles, cells and scripts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest

from hoptui.cli.report import html, live_charts
from hoptui.cli.report.document import (
    GREY,
    NOT_DIAGNOSED,
    ChartCurve,
    ChartMark,
    Document,
    Facts,
    Paragraph,
    ReportChart,
    Section,
    Share,
    ShareBar,
    Strip,
    StripPart,
    Table,
)
from hoptui.cli.report.document import Block as ReportBlock
from hoptui.cli.report.svg import svg

SECOND = 1_000_000_000
TEXTS = ("ink", "dim", "accent", "mark", "span", "warning", "alarm", *(f"ink{i}" for i in range(8)))
READABLE = 4.5  # the contrast that WCAG 2.1 asks for text
APART = 30.0  # the distance of two colours of curves in CIELAB

# uPlot, as far as the script calls it. Each chart asks for its y axis before it has an x scale.
STUBS = """
const element = () => ({append() {}, setAttribute() {}, addEventListener() {}, replaceChildren() {},
  querySelectorAll: () => [], classList: {add() {}, remove() {}}, clientWidth: 400,
  parentElement: {classList: {contains: () => false}}});
const charts = [];
globalThis.uPlot = class {
  constructor(options, data) {
    Object.assign(this, {options, data, scales: {x: {}, y: {}}, select: {left: 0, width: 0}});
    this.series = options.series.map((one) => ({show: true, ...one}));
    charts.push(this);
    this.axes = [options.scales.y.range(this)];
  }
  setScale() { this.axes.push(this.options.scales.y.range(this)); }
  setSelect() {}
  posToVal(x) { return x; }
};
globalThis.matchMedia = () => element();
globalThis.ResizeObserver = class { observe() {} };
globalThis.document = {documentElement: element(), body: element(), createElement: element,
  getElementById: (id) => id === "charts" ? {textContent: DATA} : element(),
  querySelectorAll: () => JSON.parse(DATA).charts.map(element)};
"""


def written(*blocks: ReportBlock) -> str:
    return html.write(Document("t", (), (Section("s", blocks),), "f"))


def styles(*, dark: bool) -> dict[str, str]:
    """The colours of the page by their names."""
    screen, _, rest = live_charts.styles().partition("@media screen and (prefers-color-scheme: dark)")
    part = rest.partition("\n* {")[0] if dark else screen
    return dict(re.findall(r"--([a-z]+\d?): (#[0-9a-f]{6})", part))


def linear(colour: str) -> list[float]:
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def contrast(one: str, other: str) -> float:
    dark, bright = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(one), linear(other)))
    return (bright + 0.05) / (dark + 0.05)


def lab(colour: str) -> tuple[float, float, float]:
    r, g, b = linear(colour)
    x, y, z = (
        v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116
        for v in (
            (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047,
            0.2126 * r + 0.7152 * g + 0.0722 * b,
            (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883,
        )
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


# colours ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True])
def test_texts_are_readable_and_curves_are_told_apart_in_both_modes(*, dark: bool) -> None:
    colours = styles(dark=dark)
    assert {name: c for name in TEXTS if (c := contrast(colours[name], colours["paper"])) < READABLE} == {}
    assert contrast(colours["dim"], colours["card"]) >= READABLE
    inks = {name: lab(colours[name]) for name in TEXTS if name[-1].isdigit()}
    near = {
        pair: distance
        for pair in combinations(inks, 2)
        if (distance := sum((a - b) ** 2 for a, b in zip(inks[pair[0]], inks[pair[1]], strict=True)) ** 0.5)
        < APART
    }
    assert near == {}


def test_a_time_without_a_verdict_is_grey_wherever_it_is() -> None:
    parts = [StripPart(i, i + 1, text) for i, text in enumerate(("a", NOT_DIAGNOSED, "b"))]
    assert Strip("Verdict", (0, 3), parts).inks == {"a": 0, NOT_DIAGNOSED: GREY, "b": 1}


# cells ------------------------------------------------------------------------------------------------------


def test_a_long_cell_has_a_width_of_its_own_and_may_be_broken() -> None:
    path = "x/" * 40
    page = written(Table(("a", path), ((path, "short"),), right=(1,)), Facts(((path, path),)))
    assert page.count(f'<td class="long">{path}</td>') == 2
    assert f'<th class="number long">{path}</th>' in page
    assert f'<th class="long">{path}</th>' in page
    assert '<td class="number">short</td>' in page
    sheet = live_charts.styles()
    assert re.search(r"(?m)^td\.long \{ min-width: 12rem; overflow-wrap: anywhere; \}", sheet)
    assert re.search(
        r"(?m)^th\.long \{ min-width: 7rem; white-space: normal; overflow-wrap: anywhere; \}", sheet
    )


@pytest.mark.parametrize(
    ("plain", "marked"),
    [
        ("over 15 iterations, 4 s", "over 15 iterations, 4&nbsp;s"),
        ("1 m 13 s of 37.3 GiB", "1&nbsp;m 13&nbsp;s of 37.3&nbsp;GiB"),
        ("(± 24.7 %)", "(±&nbsp;24.7&nbsp;%)"),
        ("at 16 070 × 2", "at 16&nbsp;070 ×&nbsp;2"),
        ("grad_accum 4 → 8", "grad_accum 4&nbsp;→&nbsp;8"),
        ("lr is 1.0e-3", 'lr is <span class="whole">1.0e-3</span>'),
        (
            "x --num-envs 16 -m y",
            'x <span class="whole">--num-envs</span> 16 <span class="whole">-m</span> y',
        ),
        ("on 2026-05-28 20:43:20 +02:00.", 'on <span class="whole">2026-05-28 20:43:20 +02:00</span>.'),
        ("7 of 15 kinds", "7 of 15 kinds"),
    ],
)
def test_no_line_ends_within_a_figure_an_option_or_a_date(plain: str, marked: str) -> None:
    assert f"<p>{marked}</p>" in written(Paragraph(plain))
    assert f"{marked}</td>" in written(Table(("a",), ((plain,),)))
    assert ".whole { white-space: nowrap; }" in live_charts.styles()


def test_bars_are_at_the_first_line_of_their_text() -> None:
    page = written(ShareBar((Share("a" * 30, 0.5, "3 s", "b" * 30),)))
    assert page.count('<td class="long">') == 2
    assert "table.shares td.track { width: 34%; min-width: 6rem; }" in live_charts.styles()


# paper ------------------------------------------------------------------------------------------------------


def printed() -> str:
    return live_charts.styles().partition("@media print")[2]


def test_all_sizes_of_text_follow_that_of_the_page_which_is_smaller_on_paper() -> None:
    assert ":root { color-scheme: light; font-size: 12.8px; }" in printed()
    assert "font: .9375rem/1.5" in live_charts.styles()


def test_a_table_over_two_sheets_has_its_head_on_both_and_a_wide_one_fits() -> None:
    narrow, many = ("a",) * html.MANY, ("a",) * (html.MANY + 1)
    page = written(Table(narrow, (narrow,)), Table(many, (many,)))
    assert page.count("<thead><tr><th>") == 2
    assert page.count('<table class="many">') == 1
    assert "table.many { width: 100%; table-layout: fixed;" in printed()
    assert "th.long, td.long { min-width: 0; }" in printed()
    assert re.search(r"h2, tr, figure, \.figure \{ break-inside: avoid; \}", printed())


# charts -----------------------------------------------------------------------------------------------------


def flat(level: float, seconds: int = 100) -> ReportChart:
    values = [level] * seconds
    curve = ChartCurve("", [i * SECOND for i in range(seconds)], values, values, values)
    return ReportChart("loss", "", (curve,), (0, (seconds - 1) * SECOND))


def test_texts_of_pictures_are_large_and_what_is_beyond_lies_above_the_curves() -> None:
    assert re.search(r"svg \{[^}]*font: 14px", live_charts.styles())
    assert "svg.wide { min-width: 50rem; }" in live_charts.styles()
    chart = flat(1.0)
    curve = chart.curves[0]._replace(high=[1.0] * 99 + [1e6])
    [height] = re.findall(r'y="(\d+)"[^>]*>▴ up to', svg(chart._replace(curves=(curve,))))
    assert int(height) < 42, "above the chart, where no curve and no name of a mark is"


def test_no_script_reads_an_x_scale_which_uplot_sets_only_after_the_y_scale() -> None:
    assert "scales.x." not in live_charts.scripts()[1]


def answers(charts: Sequence[ReportChart], calls: str) -> list[Any]:
    """Return what `calls` prints as JSON after the script has drawn some charts."""
    source = f"const DATA = {json.dumps(live_charts.data(charts))};{STUBS}{live_charts.scripts()[1]}\n{calls}"
    ended = subprocess.run(["node"], input=source, capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_every_chart_has_the_axis_of_what_is_seen_from_the_beginning_and_after_a_zoom() -> None:
    step = flat(40.0)
    values = [40.0] * 50 + [400.0] * 50
    jump = step._replace(curves=(step.curves[0]._replace(low=values, high=values, middle=values),))
    zoom = "charts[0].select = {left: 60, width: 20}; charts[0].options.hooks.setSelect[0](charts[0]);"
    [found] = answers([step, jump], f"{zoom} console.log(JSON.stringify(charts.map((one) => one.axes)));")
    (first, *_), (whole, *_, part) = found
    assert first == pytest.approx([38, 42]), "the value and 5 % around it"
    assert whole[0] == 0
    assert whole[1] > 400
    assert part == pytest.approx([380, 420])


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_a_logarithmic_axis_has_a_line_at_each_power_of_ten_only() -> None:
    values = [10.0 ** (i / 10) for i in range(100)]
    rising = flat(1.0)
    rising = rising._replace(curves=(rising.curves[0]._replace(low=values, high=values, middle=values),))
    lines = (
        "console.log(JSON.stringify(charts[0].options.axes[1].grid.filter(null, [0.1, 0.2, 1, 5, 1000])));"
    )
    assert rising.log
    assert answers([rising], lines) == [[0.1, None, 1, None, 1000]]


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_the_cursor_on_a_mark_shows_what_it_is() -> None:
    marks = [
        ChartMark(20 * SECOND, 1, "1: lr 1 → 2", "lr"),
        ChartMark(60 * SECOND, 0, "held down", "throttle"),
    ]
    point = "charts[0].over = {}; charts[0].valToPos = (v) => 10 * v;"
    for_each = "[200, 203, 400, 598].map((left) => { charts[0].cursor = {left}; "
    ask = "charts[0].options.hooks.setCursor[0](charts[0]); return charts[0].over.title; })"
    [found] = answers(
        [flat(1.0)._replace(marks=marks)], f"{point} console.log(JSON.stringify({for_each}{ask}));"
    )
    assert found == ["1: lr 1 → 2", "1: lr 1 → 2", "", "held down"]
