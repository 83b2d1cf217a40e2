"""The charts of a report: their data, their pictures, the scripts that draw them, and several runs."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hoptui.cli.report import charts, html, live_charts, markdown
from hoptui.cli.report.document import (
    ChartCurve,
    ChartGrid,
    ChartMark,
    Document,
    ReportChart,
    Section,
    Strip,
    StripPart,
)
from hoptui.cli.report.page import page
from hoptui.cli.report.run_comparison import MOST_RUNS, comparison_page, run_names
from hoptui.cli.report.svg import strip_svg, svg
from hoptui.domain.columns import LOGGED_NAN, pack
from hoptui.domain.details import RunDetails
from hoptui.model.report import Report, read
from hoptui.presentation.scales import typical_range
from hoptui.recording import Recording
from tests.cli.conftest import Hoptui
from tests.cli.test_report import EVIL
from tests.cli.test_report_document import Page, chart_data, scripts
from tests.golden import Golden
from tests.model.recorded_run import EVENTS, ID, PAUSED, STATE, at, event, gpu_rows, run_rows, write

MADE = 1_780_001_000.0
SECOND = 1_000_000_000
MADE_BY = {r"hoptui \d+\.\d+\.\d+\S*": "hoptui VERSION"}


def report_of(path: Path, **fields: Any) -> Report:
    with Recording.open(write(path, **fields)) as recording:
        return read(recording)


@pytest.fixture
def plain(tmp_path: Path) -> Report:
    return report_of(tmp_path / "plain.hoptui")


def of(report: Report, metric: str) -> ChartCurve:
    """The curve of a metric of the run."""
    found = report.curves.of(f"run/{ID}", metric)
    assert found is not None
    return charts.curve_of(report, found, charts.whole(report))


# the curves -------------------------------------------------------------------------------------------------


def test_a_curve_has_the_values_of_its_rows_and_a_gap_in_a_pause(plain: Report) -> None:
    curve = of(plain, "episode_return")
    known = {t: v for t, v in zip(curve.t, curve.middle, strict=True) if v == v}
    assert known[at(100.5)] == pytest.approx(10.0)
    assert any(
        at(PAUSED[0]) < t < at(PAUSED[1]) for t, v in zip(curve.t, curve.middle, strict=True) if v != v
    )
    assert curve.places[list(curve.t).index(at(100.5))] == pytest.approx(100.0, abs=0.5)


def test_the_last_value_and_the_extremes_of_a_metric(plain: Report) -> None:
    ends = {end.metric: end for end in plain.curves.ends}
    found = ends["episode_return"]
    assert (found.last, found.last_step) == (math.sqrt(599), 599)
    assert (found.least, found.greatest) == (0.0, math.sqrt(599))
    assert found.greatest_step == pytest.approx(599, abs=2)
    rare = ends["evaluation_return"]
    assert (rare.last, rare.last_step) == (540.0, 540)


def test_a_rare_metric_of_a_long_run_has_its_last_value(tmp_path: Path) -> None:
    rows = [
        (at(i / 20), i, {"iteration_s": 0.05} | ({"accuracy": i / 1e4} if i % 3000 == 0 else {}))
        for i in range(11_000)
    ]
    report = report_of(tmp_path / "r.hoptui", rows=(pack(f"run/{ID}", rows),))
    [end] = [end for end in report.curves.ends if end.metric == "accuracy"]
    assert (end.last, end.last_step) == (0.9, 9000)


def test_a_loss_that_ends_as_nan_is_the_last_value_and_a_return_that_is_undefined_is_not(
    tmp_path: Path,
) -> None:
    rows = [
        (
            at(i),
            i,
            {"iteration_s": 1.0} | dict.fromkeys(("loss", "episode_return"), 2.0 if i < 9 else LOGGED_NAN),
        )
        for i in range(1, 20)
    ]
    report = report_of(tmp_path / "r.hoptui", rows=(pack(f"run/{ID}", rows),))
    loss, returned = (
        next(end for end in report.curves.ends if end.metric == name) for name in ("loss", "episode_return")
    )
    assert math.isnan(loss.last)
    assert (loss.last_step, returned.last, returned.last_step) == (19, 2.0, 8)
    shown = markdown.write(page(report, MADE))
    assert re.search(r"\| loss +\| +NaN \| +19 \| +2\.000 \|", shown)
    assert re.search(r"\| episode return +\| +2\.000 \| +8 \|", shown)


def test_a_picture_of_many_buckets_keeps_extremes_and_gaps() -> None:
    values = [float(i % 7) for i in range(2000)]
    values[500:600] = [math.nan] * 100
    low, high = list(values), list(values)
    low[1001], high[777] = -50.0, 99.0
    curve = ChartCurve("", range(2000), low, high, values, [i / 10 for i in range(2000)]).thinned(240)
    assert len(curve.t) == len(curve.places) <= 242
    assert [list(curve.t).index(499), list(curve.t).index(599)] == [55, 56], "the gap's edges stay"
    assert curve.places[-1] == 199.9
    assert min(v for v in curve.low if v == v) == -50.0
    assert max(v for v in curve.high if v == v) == 99.0
    assert [v for v in curve.middle if v != v]


def test_a_chart_says_what_lies_beyond_its_axis() -> None:
    high = [2.0] * 100
    high[50] = 1e6
    curve = ChartCurve("", [i * SECOND for i in range(100)], [1.0] * 100, high, [1.5] * 100)
    picture = svg(ReportChart("loss", "", (curve,), (0, 100 * SECOND)))
    assert "up to 1.00 M" in picture
    ET.fromstring(picture)


def test_values_over_many_powers_of_ten_have_a_logarithmic_axis() -> None:
    values = [10.0 ** (2 - i / 20) for i in range(100)]
    values[50] = 0.0
    curve = ChartCurve("", [i * SECOND for i in range(100)], values, values, values)
    falling = ReportChart("loss", "nats", (curve,), (0, 100 * SECOND))
    assert json.loads(live_charts.data([falling]))["charts"][0]["log"]
    picture = svg(falling)
    texts = [found.text for found in ET.fromstring(picture).iter() if found.text and found.text.strip()]
    assert "nats · log" in texts
    assert {"0.1", "10"} <= set(texts)
    assert "down to" not in picture, "zero has no place on it"
    level = [v + 1 for v in values]
    near = ReportChart("loss", "nats", (curve._replace(low=level, high=level, middle=level),), falling.span)
    assert not near.log
    assert "log" not in svg(near)
    text = markdown.write(Document("t", (ChartGrid([falling]), ChartGrid([near]), falling), (), ""))
    assert "| loss · log | ██▇▇▇▆▆▆▆▅▅▅▄▄▄▃▃▃▂▂▂▂▁▁ |" in text
    assert "| loss  " in text
    assert "loss, nats · log\n" in text
    assert re.search(r"(?m)^ +1 ┤█{29}▇", text), "a decade at its place"


def test_a_spike_leaves_room_for_typical_values_in_markdown() -> None:
    values = [10.0 + i % 5 for i in range(98)] + [9000.0]
    curve = ChartCurve("", [i * SECOND for i in range(1, 100)], values, values, values)
    rising = [10.0 + i / 10 for i in range(245)] + [1e4] * 5
    stamps = [*range(1, 246), *range(255, 305, 10)]
    jump = ChartCurve("", [i * SECOND for i in stamps], rising, rising, rising)
    drawn = list(markdown.drawn(ReportChart("speed", "x", (curve,), (0, 99 * SECOND))))
    assert drawn[0] == "speed, x · ▴ up to 9.00 k"
    assert drawn[1].endswith("▴")
    assert drawn[1].startswith("20 ┤")
    assert markdown.sparkline(jump, (0, 295 * SECOND)) == "▁▁▂▂▂▃▃▄▄▄▅▅▅▆▆▇▇▇██▴▴▴▴"


def test_a_gap_of_a_curve_keeps_its_length_in_a_table() -> None:
    values = [1.0] * 24 + [math.nan] * 48 + [2.0] * 12 + [math.nan] * 12
    curve = ChartCurve("", [i * SECOND for i in range(1, 97)], values, values, values)
    drawn = ReportChart("speed", "x", (curve,), (0, 96 * SECOND))
    text = markdown.write(Document("t", (ChartGrid([drawn]),), (), ""))
    assert f"| {'▁' * 6}{'·' * 12}{'█' * 3}{'·' * 3} |" in text


def test_changes_and_warnings_are_marked(tmp_path: Path) -> None:
    events = (*EVENTS, event(500, "throttle", "held down by power", level="warning"))
    report = report_of(tmp_path / "r.hoptui", events=events)
    found = [(mark.name, mark.level, mark.t) for mark in charts.marks(report)]
    assert ("lr", "", at(202)) in found
    assert ("throttle", "warning", at(500)) in found
    data = chart_data(html.write(page(report, MADE)))
    names = {mark[2] for mark in data["marks"][data["charts"][0]["marks"]]}
    assert {"1 lr", "2 grad_accum", "throttle"} <= names, "with the numbers of the table of changes"


def test_the_verdicts_over_time(tmp_path: Path, golden: Golden) -> None:
    told = (event(60, "diagnosis", "data-bound: data 60 %"), event(300, "diagnosis", "healthy: all is well"))
    report = report_of(tmp_path / "r.hoptui", events=(*EVENTS[:-1], *told, EVENTS[-1]))
    strip = charts.verdicts(report)
    assert strip is not None
    assert [(part.text, part.t0, part.t1) for part in strip.parts] == [
        ("not diagnosed", at(0), at(60)),
        ("data-bound", at(60), at(300)),
        ("healthy", at(300), at(600)),
    ]
    written = markdown.write(Document("t", (), (Section("s", (strip,)),), "f"))
    golden(written)
    drawn = ET.fromstring(strip_svg(strip))
    assert sum(element.tag == "rect" for element in drawn.iter()) == 3


# the data and the scripts -----------------------------------------------------------------------------------


def test_the_data_are_what_the_pictures_show(plain: Report) -> None:
    data = chart_data(html.write(page(plain, MADE)))
    [chart] = [one for one in data["charts"] if one["title"] == "episode return"]
    axis, curve = data["axes"][chart["curves"][0]["axis"]], chart["curves"][0]
    at_100 = axis["t"].index(100.5)
    assert curve["middle"][at_100] == 10.0
    assert axis["i"][at_100] == pytest.approx(100, abs=0.5)
    assert None in curve["middle"]
    assert len(axis["t"]) == len(axis["i"]) == len(curve["middle"])


def test_text_within_the_data_ends_no_script() -> None:
    evil = "</script><script>alert(1)</script><!-- " + EVIL
    marks = [ChartMark(0, 0, evil, evil, "warning")]
    curve = ChartCurve(evil, [0, SECOND], [1.0, math.inf], [1.0, math.inf], [1.0, math.nan])
    strip = Strip(evil, (0, SECOND), [StripPart(0, SECOND, evil)])
    text = live_charts.data([ReportChart(evil, evil, (curve,), (0, SECOND), marks), strip])
    assert not set(text) & set("<>&\u2028\u2029")
    written = json.loads(text)
    assert written["charts"][0]["title"].startswith("</script>")
    assert written["charts"][0]["curves"][0]["middle"] == [1.0, None]
    document = Document(
        evil, (), (Section(evil, (ReportChart(evil, evil, (curve,), (0, SECOND), marks), strip)),), evil
    )
    assert tuple(scripts(html.write(document))) == live_charts.scripts()


def test_the_policy_allows_the_scripts_of_the_page_and_no_others(plain: Report) -> None:
    written = html.write(page(plain, MADE))
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', written)
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    assert [
        base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts(written)
    ] == allowed
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-inline" not in policy.partition("script-src")[2]


def test_a_page_without_charts_has_no_script() -> None:
    written = html.write(Document("t", (), (), "f"))
    assert "script" not in Page(written).tags


def test_the_files_of_other_projects_are_unchanged() -> None:
    listed = dict(
        re.findall(r"`(uPlot\S+)`: `([0-9a-f]{64})`", (live_charts.ASSETS / "ORIGIN.md").read_text())
    )
    found = {name: hashlib.sha256((live_charts.ASSETS / name).read_bytes()).hexdigest() for name in listed}
    assert len(found) == 2
    assert found == listed


def test_the_licence_of_uplot_is_in_the_page(plain: Report) -> None:
    written = html.write(page(plain, MADE))
    assert "Copyright (c) 2022 Leon Sorokin" in written
    assert "The MIT License" in written


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
@pytest.mark.parametrize(
    "values",
    [[1.0, 2.0, 3.0], [5.0] * 10, [0.0, 0.0], [*[1.0] * 50, 1e6], [float(i * i) for i in range(99)], []],
)
def test_a_zoomed_chart_has_the_axis_of_the_dashboard(values: list[float]) -> None:
    low, high = [v - 0.5 for v in values], [v + i for i, v in enumerate(values)]
    [source] = re.findall(r"function typicalRange.*?\n  }\n", live_charts.scripts()[1], re.DOTALL)
    call = f"{source} console.log(JSON.stringify(typicalRange({low}, {high}, {values})))"
    ended = subprocess.run(
        ["node", "-e", call], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    assert tuple(json.loads(ended)) == pytest.approx(typical_range(low, high, values))


# several runs -----------------------------------------------------------------------------------------------


def two(tmp_path: Path) -> list[Report]:
    first = RunDetails(config={"lr": 1e-3, "layers": 12}, summary={"accuracy": 0.9}, python="3.11.9")
    second = RunDetails(config={"lr": 3e-4, "layers": 12}, summary={"accuracy": 0.93}, python="3.11.9")
    short = (run_rows(300), gpu_rows(300))
    return [
        report_of(tmp_path / "a.hoptui", details=first),
        report_of(tmp_path / "b.hoptui", details=second, rows=short, state=structs.replace(STATE, name="b")),
    ]


def test_two_runs_beside_each_other(tmp_path: Path, golden: Golden) -> None:
    golden(markdown.write(comparison_page(two(tmp_path), MADE)), normalize=MADE_BY)


def test_what_differs_and_what_is_the_same(tmp_path: Path) -> None:
    written = markdown.write(comparison_page(two(tmp_path), MADE))
    section = written.partition("## What differs")[2].partition("\n## ")[0]
    assert re.search(r"\| lr +\| 0.001 +\| 0.0003 +\|", section)
    assert "layers" not in section
    assert "The same in all runs" in section


def test_the_curves_of_both_runs_begin_at_their_first_iteration(tmp_path: Path) -> None:
    data = chart_data(html.write(comparison_page(two(tmp_path), MADE)))
    [chart] = [one for one in data["charts"] if one["title"] == "episode return"]
    assert [curve["label"] for curve in chart["curves"]] == ["ppo-recorded", "b"]
    axes = [data["axes"][curve["axis"]] for curve in chart["curves"]]
    assert [axis["t"][0] for axis in axes] == [0.0, 0.0]
    assert [round(axis["t"][-1]) for axis in axes] == [599, 299]
    assert [axis["i"][0] for axis in axes] == [0.0, 0.0]


def test_runs_of_one_name_are_named_with_their_ids(plain: Report) -> None:
    other = structs.replace(STATE, run="rec02")
    assert run_names([plain, plain])[0] == f"ppo-recorded ({ID})"
    assert other.name == STATE.name


def test_names_and_configurations_of_several_runs_become_no_markup(tmp_path: Path) -> None:
    evil = report_of(
        tmp_path / "evil.hoptui",
        state=structs.replace(STATE, name=EVIL, units={"env_steps_per_s": EVIL}),
        details=RunDetails(config={EVIL: EVIL}, summary={EVIL: EVIL}, packages={EVIL: EVIL}, command=EVIL),
    )
    written = html.write(comparison_page([evil, *two(tmp_path)], MADE))
    assert tuple(scripts(written)) == live_charts.scripts()
    assert "img" not in Page(written).tags
    assert not {name for name in Page(written).attributes if name.startswith("on")}
    assert chart_data(written)["charts"]


def test_several_runs_on_the_command_line(hoptui: Hoptui, tmp_path: Path, golden: Golden) -> None:
    first, second = write(tmp_path / "a.hoptui"), write(tmp_path / "b.hoptui")
    target = tmp_path / "both.html"
    assert hoptui("report", str(first), str(second), "-o", str(target)).code == 0
    assert target.read_text().startswith("<!doctype html>")
    golden(hoptui.transcript(), normalize={r"\d+ KiB": "SIZE"})
    for wrong in ([first, first], [tmp_path / f"{i}.hoptui" for i in range(MOST_RUNS + 1)]):
        for path in wrong:
            shutil.copy(first, path) if not path.exists() else None
        ended = hoptui("report", *map(str, wrong))
        assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    golden(hoptui.transcript().rpartition("2> ")[2], "too_many")
