"""`gpus --watch` and `gpus --csv`: what is printed, what is in the file, and how it ends."""

from __future__ import annotations

import csv
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.cli.gpu_log import columns as gpu_columns
from hoptui.cli.gpu_log.line_log import LineLog
from hoptui.cli.support.terminal import Fail
from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo
from hoptui.domain.facts import fact
from hoptui.protocol.messages import Fetch, FromViewer
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.factories import SECOND
from tests.golden import Golden

GIB, MIB = 1 << 30, 1 << 20
FIRST = GpuInfo(uuid="GPU-a", index=0, name="NVIDIA H100 80GB HBM3", power_limit_w=700.0)
LOST = GpuInfo(
    uuid="GPU-b",
    index=1,
    name="NVIDIA H100 80GB HBM3",
    problem=fact("gpu.fell_off_bus", nvml=15, error="GPU is lost"),
)
READ = {
    "busy": 100.0,
    "memory_busy": 51.0,
    "sm_active": 96.04,
    "tensor_active": 40.3,
    "dram_active": 25.6,
    "power_w": 688.2,
    "memory_used_bytes": 58.1 * GIB,
    "temperature_c": 62.0,
    "memory_temperature_c": 71.0,
    "sm_clock_mhz": 1755.0,
    "memory_clock_mhz": 2619.0,
    "encoder_busy": 0.0,
    "decoder_busy": 12.0,
    "jpeg_busy": 30.0,
    "bar1_used_bytes": 5.0 * MIB,
    "ecc_corrected": 3.0,
    "ecc_uncorrected": 0.0,
    "pcie_replays": 7.0,
    "pcie_rx_bytes_per_s": 2.5e9,
    "pcie_tx_bytes_per_s": 1e6,
    "thermal_violation_s": 0.0,
}
"""Without a figure of the optical flow accelerator and of protected memory."""


@pytest.fixture
def node(daemon: FakeDaemon) -> FakeDaemon:
    """A node with a GPU that is held by its power limit for a quarter of the time, and one that is lost."""
    daemon.node = structs.replace(daemon.node, gpus=(FIRST, LOST), gpu_problem=None)
    rows = [
        (daemon.now - s * SECOND, -1, READ | {"power_violation_s": 90 - 0.25 * s}) for s in range(9, -1, -1)
    ]
    daemon.columns = [pack("gpu/GPU-a", rows)]
    daemon.start()
    return daemon


@pytest.fixture(autouse=True)
def a_standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoptui.cli.gpu_log.rounds.time.time", lambda: 1_700_000_000.25)


def in_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int, height: int = 24) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((width, height)))


def test_a_pipe_gets_every_column(hoptui: Hoptui, node: FakeDaemon, golden: Golden) -> None:
    ended = hoptui("gpus", "--watch", "0.1", "--count", "2")
    assert ended.code == 0
    head, units, *rows = ended.out.splitlines()
    assert len(rows) == 4
    assert head.split()[:3] == ["#", "time", "gpu"]
    assert len(head.split()) == 3 + len(gpu_columns.COLUMNS)
    assert {len(line) for line in (head, units, *rows)} == {len(head)}
    assert rows[0].split()[1:5] == ["0", "688", "62", "71"]
    assert set(rows[1].split()[2:]) == {"–"}
    assert ended.err.count("GPU 1 cannot be read") == 1, "the reason is told once"
    golden(hoptui.transcript())


@pytest.mark.parametrize("width", [40, 80, 100, 120, 200])
def test_a_terminal_gets_what_fits(
    hoptui: Hoptui, node: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden, width: int
) -> None:
    in_a_terminal(monkeypatch, width)
    lines = hoptui("gpus", "--watch", "0.1", "--count", "1").out.splitlines()
    assert max(map(len, lines)) <= width
    for heading in ("power", "busy", "SM", "used"):
        assert heading in lines[0].split(), "what matters most is there at every width"
    golden(hoptui.transcript())


def test_the_heading_comes_again_on_every_page(
    hoptui: Hoptui, node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_terminal(monkeypatch, 80, height=7)  # a heading of two lines and two rounds of two GPUs
    lines = hoptui("gpus", "--watch", "0.1", "--count", "3").out.splitlines()
    assert [line.startswith("#") for line in lines] == [True] * 2 + [False] * 4 + [True] * 2 + [False] * 2


def test_csv_has_every_reading_and_unknown_is_empty(hoptui: Hoptui, node: FakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "gpus.csv"
    ended = hoptui("gpus", "--watch", "0.1", "--count", "2", "--csv", str(path))
    assert (ended.code, ended.out) == (0, ""), "the table is for a terminal"
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["gpu"] for row in rows] == ["0", "1", "0", "1"]
    first = rows[0]
    assert (first["utc"], first["host"], first["uuid"]) == ("2023-11-14T22:13:20.250Z", "gpu07", "GPU-a")
    known = {name: float(text) for name in READ if (text := first[name])}
    assert known == READ
    assert (first["power_violation_percent"], first["thermal_violation_percent"]) == ("25", "0")
    assert (first["ofa_busy"], first["protected_memory_used_bytes"]) == ("", "")
    assert {text for name, text in rows[1].items() if name not in gpu_columns.FIXED} == {""}


def test_csv_on_standard_output_has_one_header(hoptui: Hoptui, node: FakeDaemon) -> None:
    lines = hoptui("gpus", "--watch", "0.1", "--count", "2", "--csv", "-").out.splitlines(keepends=True)
    assert lines[0] == gpu_columns.CSV_HEADER
    assert [line.split(",")[2] for line in lines[1:]] == ["0", "1", "0", "1"]


@pytest.mark.guarantee("written-files")
def test_csv_without_watch_is_one_row_and_a_file_is_continued(
    hoptui: Hoptui, node: FakeDaemon, tmp_path: Path
) -> None:
    path = tmp_path / "gpus.csv"
    for rows in (2, 4):
        assert hoptui("gpus", "--csv", str(path)).code == 0
        assert len(path.read_text().splitlines()) == 1 + rows


def test_the_home_of_an_unknown_user_is_no_directory(hoptui: Hoptui, node: FakeDaemon) -> None:
    ended = hoptui("gpus", "--csv", "~nosuch/x.csv")
    assert (ended.code, ended.err.count("\n"), "traceback" in ended.err) == (1, 1, False)


def test_csv_in_a_terminal_shows_the_table_too(
    hoptui: Hoptui, node: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_a_terminal(monkeypatch, 80)
    assert hoptui("gpus", "--csv", str(tmp_path / "gpus.csv")).out.startswith("# time")


def test_json_is_a_line_each_time(hoptui: Hoptui, node: FakeDaemon) -> None:
    lines = hoptui("gpus", "--watch", "0.1", "--count", "2", "--json").out.splitlines()
    assert [json.loads(line)["gpus"][0]["busy"] for line in lines] == [100.0, 100.0]


def test_fast_rounds_ask_for_fast_samples(hoptui: Hoptui, node: FakeDaemon) -> None:
    hoptui("gpus", "--watch", "0.1", "--count", "2")
    asked = [m for m in node.of(Fetch) if isinstance(m, Fetch) and m.cursors]
    assert asked[-1].hz == 10.0
    assert asked[-1].cursors.keys() == {"gpu/GPU-a", "gpu/GPU-b"}


def test_a_new_row_is_in_the_next_round(hoptui: Hoptui, node: FakeDaemon) -> None:
    def answer(message: FromViewer) -> None:
        if isinstance(message, Fetch) and message.hz:
            node.columns = [pack("gpu/GPU-a", [(node.now + 9 * SECOND, -1, READ | {"power_w": 99.0})])]

    node.answer = answer
    rows = hoptui("gpus", "--watch", "0.1", "--count", "2").out.splitlines()[2:]
    assert [row.split()[2] for row in rows if row.split()[1] == "0"] == ["688", "99"]


def test_without_a_gpu_it_ends_as_gpus_does(hoptui: Hoptui, ppo: FakeDaemon, tmp_path: Path) -> None:
    plain = hoptui("gpus")
    for words in (("--watch", "1"), ("--csv", "-"), ("--watch", "1", "--csv", str(tmp_path / "a.csv"))):
        ended = hoptui("gpus", *words)
        assert (ended.code, ended.out, ended.err) == (3, "", plain.err)


@pytest.mark.parametrize(
    "words",
    [
        ("--watch", "0"),
        ("--watch", "0.01"),
        ("--watch", "nan"),
        ("--count", "3"),
        ("--watch", "1", "--count", "0"),
        ("--json", "--csv", "-"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    hoptui: Hoptui, node: FakeDaemon, words: tuple[str, ...], golden: Golden
) -> None:
    assert hoptui("gpus", *words).code == 2
    golden(hoptui.transcript() if "--json" not in words else "")


def test_a_daemon_that_is_gone_is_replaced(
    hoptui: Hoptui, node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hoptui.cli.support.snapshot.ANSWER_S", 0.2)
    gone = False

    def answer(message: FromViewer) -> list[object] | None:
        nonlocal gone
        if isinstance(message, Fetch) and message.hz and not gone:
            gone = True
            node.release_lock()
            return []
        return None

    def start(where: object) -> None:
        node.hang()
        node.start()

    node.answer = answer  # type: ignore[assignment]
    monkeypatch.setattr("hoptui.node.processes.start_daemon", start)
    ended = hoptui("gpus", "--watch", "0.1", "--count", "3")
    assert ended.code == 0
    assert len([row for row in ended.out.splitlines() if row.split()[1] == "0"]) == 3
    assert "the daemon is gone" in ended.err


def test_ctrl_c_leaves_whole_lines(node: FakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "gpus.csv"
    places = {"HOPTUI_DIR": str(node.where.directory), "HOPTUI_STATE_DIR": str(node.where.state)}
    command = [sys.executable, "-m", "hoptui", "gpus", "--watch", "0.1", "--csv", str(path)]
    with subprocess.Popen(command, env=os.environ | places, stderr=subprocess.PIPE, text=True) as child:
        end = time.monotonic() + 20
        while not path.exists() or path.read_text().count("\n") < 3:
            assert time.monotonic() < end
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=10)
    assert child.returncode == 130
    assert "Traceback" not in err
    with path.open() as file:
        lengths = {len(row) for row in csv.reader(file)}
    assert lengths == {len(gpu_columns.FIXED) + len(gpu_columns.READINGS)}
    assert path.read_text().endswith("\n")


def test_a_file_of_something_else_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    for text in ("a,b\n1,2\n", "utc,gpu\n0,", "utc"):
        path.write_text(text)
        with pytest.raises(Fail, match=r"notes\.csv"):
            LineLog(path, "utc,gpu\n")
        assert path.read_text() == text
    with pytest.raises(Fail, match="directory"):
        LineLog(tmp_path, "utc\n")


def test_a_full_disk_tears_no_line(tmp_path: Path) -> None:
    path = tmp_path / "gpus.csv"
    code = (
        "import resource, signal, sys; from pathlib import Path;"
        "from hoptui.cli.gpu_log.line_log import LineLog; from hoptui.cli.support.terminal import Fail;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); log = LineLog(Path(sys.argv[1]), 'utc,gpu\\n');"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20)); log.add('1,2\\n')\n"
        "try: log.add('a long line,' * 5 + '\\n')\n"
        "except Fail as fail: print(fail)\n"
        "else: raise SystemExit('nothing was refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=30, check=True
    )
    assert "cannot be written: File too large" in done.stdout
    assert path.read_text() == "utc,gpu\n1,2\n"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 20, "only of the child"
