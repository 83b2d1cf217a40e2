"""The file of what tuners settled on."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoptui.daemon.archive import NAME, ResultsFile
from hoptui.tuner.prior_results import MOST, TunerResult

ONE = TunerResult(
    key="k1", values={"micro_batch": 64, "compile": "on"}, peak=1 << 30, run="r1", wall=1.5,
    turned=("compile", "micro_batch"),
)  # fmt: skip


def read(folder: Path) -> ResultsFile:
    file = ResultsFile(folder)
    file.read()
    return file


def test_what_is_added_is_read_again_by_the_next_daemon(tmp_path: Path) -> None:
    assert read(tmp_path).results == ()
    file = ResultsFile(tmp_path)
    file.add(ONE)
    file.add(TunerResult(key="k2", values={}))
    assert read(tmp_path).results == file.results == (ONE, TunerResult(key="k2", values={}))
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_damaged_lines_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ResultsFile(tmp_path).add(ONE)
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"key": 3}\n\xff\xfe\n[[[[\n{"key": "cut of')
    assert read(tmp_path).results == (ONE,)
    assert len(caplog.records) == 4


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    file = read(tmp_path)
    for i in range(3 * MOST):
        file.add(TunerResult(key=f"k{i % 3}", values={"micro_batch": i}))
    lines = (tmp_path / NAME).read_bytes().count(b"\n")
    assert lines < 2 * MOST + 1
    assert read(tmp_path).results == file.results
    assert [r.values["micro_batch"] for r in file.results] == [3 * MOST - 3, 3 * MOST - 2, 3 * MOST - 1]
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_place_that_cannot_be_written_costs_only_later_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).mkdir()
    file = read(tmp_path)
    file.add(ONE)
    assert file.results == (ONE,)
    assert "cannot be written" in caplog.text


def test_in_a_directory_that_others_may_read_nothing_is_read_or_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ResultsFile(tmp_path).add(ONE)
    tmp_path.chmod(0o755)
    file = read(tmp_path)
    assert file.results == ()
    file.add(TunerResult(key="k2", values={}))
    assert "k2" not in (tmp_path / NAME).read_text()
    assert caplog.text.count("is open to others") == 2
