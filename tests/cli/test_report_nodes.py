"""`hoptui report` of a run on several nodes: one page of all of them, and what it says of each."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from msgspec import structs

from hoptui.cli.report import heat_map, html, live_charts, markdown
from hoptui.cli.report.document import ABSENT, Document, HeatMap, HeatRow, Section
from hoptui.cli.report.page import page
from hoptui.domain.jobs import JobState
from hoptui.model.job_report import read_run
from hoptui.presentation import jobs
from hoptui.recording import Recording
from screenshots import made_up_job
from tests.cli.conftest import Hoptui
from tests.cli.test_report_document import Page, scripts
from tests.golden import Golden
from tests.model.node_recordings import ID, write_node
from tests.model.recorded_run import SECOND

MADE = 1_780_001_000.0
MADE_BY = {r"hoptui \d+\.\d+\.\d+\S*": "hoptui VERSION"}
STATE = made_up_job.state(2, 2, 0.0, run=ID, faults=False)
EVIL = "<script>alert(1)</script> **b** | `c` <img src=x>"


def document(*paths: Path) -> Document:
    opened = [Recording.open(path) for path in paths]
    try:
        return page(read_run(opened), MADE)
    finally:
        for recording in opened:
            recording.close()


def both(folder: Path, state: JobState | None = STATE) -> list[Path]:
    """The recordings of both nodes, with their GPUs."""
    return [write_node(folder / f"n{node}.hoptui", node, state=state, gpus=True) for node in (0, 1)]


def section(found: Document, title: str) -> Section:
    return next(one for one in found.sections if one.title == title)


def test_recordings_of_two_nodes_are_one_page(hoptui: Hoptui, tmp_path: Path) -> None:
    ended = hoptui("report", *map(str, reversed(both(tmp_path))))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("\n# ") == 0
    assert ended.out.startswith("# job\n")
    assert "4 ranks on 2 nodes. The recordings of gpu00, gpu01 are here." in ended.out
    assert "GPUs: 4 × H100." in ended.out
    assert "## GPUs and power of gpu00" in ended.out
    assert "## GPUs of gpu01" in ended.out
    assert "from the recordings of 2 nodes of run job01" in ended.out


def test_the_section_on_all_nodes(tmp_path: Path, golden: Golden) -> None:
    found = document(*both(tmp_path))
    alone = found._replace(lead=(), sections=[section(found, "All nodes")])
    golden(markdown.write(alone), normalize=MADE_BY)


def test_other_runs_beside_a_job_are_compared_with_it(hoptui: Hoptui, tmp_path: Path) -> None:
    other = write_node(tmp_path / "other.hoptui", 0, run="job02")
    ended = hoptui("report", *map(str, [*both(tmp_path), other]))
    assert ended.code == 0
    assert ended.out.startswith("# 2 runs: ")
    assert re.search(r"\| host +\| gpu00, gpu01 +\| gpu00 +\|", ended.out)
    assert re.search(r"\| GPUs +\| 4 × H100 +\| none is known +\|", ended.out)


def test_one_node_says_what_it_knows_of_the_others(tmp_path: Path) -> None:
    state = structs.replace(
        STATE, nodes=(STATE.nodes[0], structs.replace(STATE.nodes[1], condition="silent", age_s=30.0))
    )
    written = markdown.write(document(write_node(tmp_path / "a.hoptui", 0, state=state)))
    assert "4 ranks on 2 nodes. The recording of gpu00 is here. Of other nodes" in written
    assert re.search(r"\| gpu01 +\| silent +\| +\+0:(29|30) +\| +2 m (49|50) s +\|", written)
    drawn = next(line for line in written.splitlines() if line.startswith("gpu01"))
    assert "---" in drawn


def test_names_of_nodes_become_no_markup(tmp_path: Path) -> None:
    nodes = [
        structs.replace(
            node,
            condition="silent",
            age_s=9.0,
            summary=structs.replace(
                node.summary,
                host=f"{EVIL} {node.index}",
                ranks=tuple(structs.replace(rank, line=EVIL) for rank in node.summary.ranks),
            ),
        )
        for node in STATE.nodes
        if node.summary is not None
    ]
    found = document(*both(tmp_path, structs.replace(STATE, nodes=tuple(nodes))))
    written = html.write(found)
    assert tuple(scripts(written)) == live_charts.scripts()
    assert "img" not in Page(written).tags
    assert "**b**" not in re.sub(r"```.*?```", "", markdown.write(found), flags=re.DOTALL)


def test_the_picture_of_a_map_has_each_cell_once(tmp_path: Path) -> None:
    rows = [
        HeatRow(0, 0, (0, 0, 4, None, ABSENT), "gpu00"),
        HeatRow(1, 1, (1, 1, 1, 1, 1)),
    ]
    drawn = heat_map.svg(HeatMap("Own time", (0, 5 * SECOND), 0, rows, jobs.legend("own_s")))
    paths = {
        found.get("class"): found.get("d") for found in ET.fromstring(drawn).iter() if found.tag == "path"
    }
    assert paths == {
        "absent": "M4 0h1",
        "heat0": "M0 0h2",
        "heat1": "M0 1h5",
        "heat4": "M2 0h1",
    }


@pytest.mark.parametrize("ranks", [1, 16, 64, 128])
def test_a_map_of_any_size_fits_its_picture(ranks: int) -> None:
    rows = [HeatRow(rank, rank, [(rank + at) % 5 for at in range(240)], f"n{rank}") for rank in range(ranks)]
    drawn = ET.fromstring(heat_map.svg(HeatMap("m", (0, 60 * SECOND), 0, rows, jobs.legend("own_s"))))
    *_, width, height = map(float, (drawn.get("viewBox") or "").split())
    for text in drawn.iter("text"):
        assert 0 <= float(text.get("x", "0")) <= width
        assert 0 < float(text.get("y", "0")) <= height
    lines = heat_map.lines(HeatMap("m", (0, 60 * SECOND), 0, rows, jobs.legend("own_s")))
    assert len(lines) <= heat_map.LINES + 4
    assert max(map(len, lines)) <= heat_map.COLUMNS + 30


def test_a_map_of_noise_is_bounded() -> None:
    rows = [HeatRow(rank, rank, [(7 * rank + 3 * at) % 5 for at in range(240)]) for rank in range(128)]
    written = heat_map.svg(HeatMap("m", (0, 60 * SECOND), 0, rows, jobs.legend("own_s")))
    assert len(written) < 400_000
