"""`hoptui export`: what it writes is tested with the writers; here is where it goes and what can go wrong."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hoptui.recording import Recording
from tests.cli.conftest import Hoptui
from tests.cli.test_recordings import over, record
from tests.client.fake_daemon import FakeDaemon


@pytest.fixture
def recorded(daemon: FakeDaemon) -> Path:
    """Ten rows, one a second, of the run `old`."""
    return record(daemon, over("eeee5555", "old"))


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_on_standard_output(hoptui: Hoptui, recorded: Path) -> None:
    ended = hoptui("export", "old")
    assert (ended.code, ended.err) == (0, "")
    assert [row["step"] for row in rows(ended.out)] == [str(i) for i in range(1, 11)]
    assert rows(ended.out)[3]["loss"] == "0.25"
    assert hoptui("export", str(recorded), "--format", "csv", "-o", "-").out == ended.out


def test_json_lines(hoptui: Hoptui, recorded: Path) -> None:
    lines = [json.loads(line) for line in hoptui("export", "old", "--format", "jsonl").out.splitlines()]
    assert [line["type"] for line in lines].count("row") == 10
    assert [line["type"] for line in lines].count("command") == 1


def test_into_a_file(hoptui: Hoptui, recorded: Path, tmp_path: Path) -> None:
    target = tmp_path / "rows.jsonl"  # its name says the format
    ended = hoptui("export", "old", "-o", str(target))
    assert (ended.code, ended.out.startswith(f"{target}: ")) == (0, True)
    assert json.loads(target.read_text().splitlines()[0])["type"]
    ended = hoptui("export", "old", "-o", str(target))
    assert ended.code == 1
    assert ended.err == f"hoptui: {target} already exists: give another name, or --force to overwrite it\n"
    assert hoptui("export", "old", "--format", "csv", "-o", str(target), "--force").code == 0
    assert len(rows(target.read_text())) == 10
    assert list(tmp_path.iterdir()) == [target]


def test_parquet(hoptui: Hoptui, recorded: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "rows.parquet"
    assert hoptui("export", "old", "-o", str(target)).code == 0
    assert parquet.read_table(target).num_rows == 10


def test_part_of_it(hoptui: Hoptui, recorded: Path) -> None:
    found = rows(hoptui("export", "old", "--since", "+2s", "--until", "+4s").out)
    assert [row["step"] for row in found] == ["3", "4", "5"]
    with Recording.open(recorded) as recording:
        wall = (recording.wall_offset_ns + 8_000_000_000) / 1e9
    iso = datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds")
    assert rows(hoptui("export", "old", "--since", iso).out)[-1]["step"] == "10"
    assert len(rows(hoptui("export", "old", "--since", "#9").out)) == 2
    assert "loss" in rows(hoptui("export", "old", "--source", "run", "--metrics", "loss").out)[0]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--format", "parquet"), 2, "Parquet needs a file: give --output PATH"),
        (("--since", "soon"), 2, "--since: 'soon' is no time: "),
        (("--since", "+4s", "--until", "+2s"), 2, "--since is later than --until"),
        (("--metrics", "loss,lss"), 2, "the recording has no metric 'lss'; it has "),
        (("--source", "gpuu"), 2, "the recording has no source 'gpuu'; it has run"),
        (("--metrics", ","), 2, "--metrics is empty"),
        (("--format", "xml"), 2, "invalid value"),
        (("-o", "x.json"), 2, ".json is not supported: use .csv, .jsonl or .parquet, or give --format"),
        (("-o", "/"), 1, "/ is a directory"),
        (("-o", "/nowhere-at-all/x.csv"), 1, "no such directory: /nowhere-at-all"),
    ],
)
def test_wrong_words(
    hoptui: Hoptui, recorded: Path, words: tuple[str, ...], code: int, sentence: str
) -> None:
    ended = hoptui("export", "old", *words)
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.startswith(f"hoptui: {sentence}")
    assert ended.err.count("\n") == 1


def test_the_recording_itself_is_never_the_output(hoptui: Hoptui, recorded: Path) -> None:
    before = recorded.read_bytes()
    ended = hoptui("export", "old", "-o", str(recorded), "--force")
    assert (ended.code, ended.err) == (1, f"hoptui: {recorded} is the recording itself: give another name\n")
    assert recorded.read_bytes() == before


def test_what_is_no_recording(hoptui: Hoptui, daemon: FakeDaemon, tmp_path: Path) -> None:
    assert hoptui("export", "nope").code == 3
    junk = tmp_path / "junk.hoptui"
    junk.write_bytes(b"not a database at all" * 100)
    ended = hoptui("export", str(junk))
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "junk.hoptui" in ended.err


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "interrupted; {} was not written"),
        (OSError(28, "No space left on device"), 1, "{} was not written: No space left on device"),
    ],
)
def test_a_file_is_whole_or_as_it_was(
    hoptui: Hoptui,
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    sentence: str,
) -> None:
    def fail(recording: Recording, stream: io.TextIOBase, wanted: object) -> None:
        stream.write("half of it")
        raise error

    monkeypatch.setattr("hoptui.recording.export.write_csv", fail)
    target = tmp_path / "rows.csv"
    target.write_text("older")
    ended = hoptui("export", "old", "-o", str(target), "--force")
    assert (ended.code, ended.err) == (code, f"hoptui: {sentence.format(target)}\n")
    assert target.read_text() == "older"
    assert list(tmp_path.iterdir()) == [target]


def test_interrupted_on_standard_output(
    hoptui: Hoptui, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(recording: Recording, stream: io.TextIOBase, wanted: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hoptui.recording.export.write_csv", fail)
    assert hoptui("export", "old") == (130, "", "hoptui: interrupted; the output is incomplete\n")


EXPORT = "import sys; from hoptui.cli.main import main; sys.exit(main(['export', 'old']))"


def test_a_full_disk_behind_standard_output(recorded: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", EXPORT],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "hoptui: cannot write to standard output: No space left on device\n",
    )


def test_a_reader_that_leaves(recorded: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", EXPORT], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(20) == 141
