"""`hoptui export`: what it writes is tested with the writers; here is where it goes and what can go wrong."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hoptui.domain.columns import pack
from hoptui.recording import Recording
from tests.cli.conftest import Hoptui
from tests.cli.test_recordings import over, record
from tests.client.fake_daemon import FakeDaemon
from tests.golden import Golden


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


def test_the_home_of_an_unknown_user_is_no_directory(hoptui: Hoptui, recorded: Path) -> None:
    for words in (
        ("export", str(recorded), "-o", "~nosuch/x.csv"),
        ("report", str(recorded), "-o", "~nosuch/x.md"),
        ("export", "~nosuch/x.hoptui"),
    ):
        ended = hoptui(*words)
        assert (ended.code in (1, 3), ended.err.count("\n"), "traceback" in ended.err) == (True, 1, False)


def test_json_lines(hoptui: Hoptui, recorded: Path) -> None:
    lines = [json.loads(line) for line in hoptui("export", "old", "--format", "jsonl").out.splitlines()]
    assert [line["type"] for line in lines].count("row") == 10
    assert [line["type"] for line in lines].count("command") == 1


def test_into_a_file(hoptui: Hoptui, recorded: Path, tmp_path: Path, golden: Golden) -> None:
    target = tmp_path / "rows.jsonl"  # its name says the format
    ended = hoptui("export", "old", "-o", str(target))
    assert (ended.code, str(target) in ended.out) == (0, True)
    assert json.loads(target.read_text().splitlines()[0])["type"]
    ended = hoptui("export", "old", "-o", str(target))
    assert (ended.code, "--force" in ended.err) == (1, True)
    golden(hoptui.transcript(), normalize={r"[\d.]+ KiB": "SIZE"})
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


def test_wrong_words(hoptui: Hoptui, recorded: Path, golden: Golden) -> None:
    for words, code in (
        ("--format parquet", 2),
        ("--since soon", 2),
        ("--since +4s --until +2s", 2),
        ("--metrics loss,lss", 2),
        ("--source gpuu", 2),
        ("--metrics ,", 2),
        ("--format xml", 2),
        ("-o x.json", 2),
        ("-o /", 1),
        ("-o /nowhere-at-all/x.csv", 1),
    ):
        ended = hoptui("export", "old", *words.split())
        assert (ended.code, ended.out, ended.err.count("\n")) == (code, "", 1)
    golden(hoptui.transcript())


def test_the_recording_itself_is_never_the_output(hoptui: Hoptui, recorded: Path, golden: Golden) -> None:
    before = recorded.read_bytes()
    ended = hoptui("export", "old", "-o", str(recorded), "--force")
    assert (ended.code, str(recorded) in ended.err) == (1, True)
    golden(hoptui.transcript())
    assert recorded.read_bytes() == before


def test_what_is_no_recording(hoptui: Hoptui, daemon: FakeDaemon, tmp_path: Path) -> None:
    assert hoptui("export", "nope").code == 3
    junk = tmp_path / "junk.hoptui"
    junk.write_bytes(b"not a database at all" * 100)
    ended = hoptui("export", str(junk))
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "junk.hoptui" in ended.err


def test_a_file_is_whole_or_as_it_was(
    hoptui: Hoptui, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    target = tmp_path / "rows.csv"
    target.write_text("older")
    for error, code in ((KeyboardInterrupt(), 130), (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1)):

        def fail(
            recording: Recording, stream: io.TextIOBase, wanted: object, error: BaseException = error
        ) -> None:
            stream.write("half of it")
            raise error

        monkeypatch.setattr("hoptui.recording.export.write_csv", fail)
        ended = hoptui("export", "old", "-o", str(target), "--force")
        assert (ended.code, ended.out) == (code, "")
        assert str(target) in ended.err
        assert target.read_text() == "older"
        assert list(tmp_path.iterdir()) == [target]
    golden(hoptui.transcript())


def test_interrupted_on_standard_output(
    hoptui: Hoptui, recorded: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def fail(recording: Recording, stream: io.TextIOBase, wanted: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hoptui.recording.export.write_csv", fail)
    ended = hoptui("export", "old")
    assert (ended.code, ended.out) == (130, "")
    golden(hoptui.transcript())


EXPORT = "import sys; from hoptui.cli.main import main; sys.exit(main(['export', 'old']))"


def test_a_full_disk_behind_standard_output(recorded: Path, golden: Golden) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", EXPORT],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == 1
    golden(done.stderr)


def test_a_reader_that_leaves(recorded: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", EXPORT], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(20) == 141


def test_links_under_the_name_of_a_partial_file_are_not_followed(
    hoptui: Hoptui, recorded: Path, tmp_path: Path
) -> None:
    """Another user could have made them in a shared directory, for every process id."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for suffix in ("csv", "parquet", "html"):
        out = tmp_path / f"x.{suffix}"
        (tmp_path / f".{out.name}.{os.getpid()}.part").symlink_to(victim)
        command = "report" if suffix == "html" else "export"
        assert hoptui(command, str(recorded), "-o", str(out)).code == 0
        assert out.stat().st_size
    assert victim.read_text() == "precious"


@pytest.mark.guarantee("clean-text")
def test_a_terminal_is_not_moved_by_names_in_a_recording(hoptui: Hoptui, daemon: FakeDaemon) -> None:
    """A file and a pipe get the names as they are."""
    path = record(daemon, over("ffff6666", "sly"))
    with Recording.create(path) as recording:
        recording.append(pack("run/ffff6666", [(recording.span()[1] + 1, 99, {"x\x1b[2J\u202e": 1.0})]))
    piped = subprocess.run(
        [sys.executable, "-m", "hoptui", "export", str(path)], capture_output=True, check=True, timeout=30
    )
    assert b"x\x1b[2J" in piped.stdout
    main, other = os.openpty()
    with subprocess.Popen([sys.executable, "-m", "hoptui", "export", str(path)], stdout=other):
        os.close(other)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while part := os.read(main, 65536):
                shown += part
    os.close(main)
    assert b"x\xef\xbf\xbd[2J" in shown
    assert not {b"\x1b", "\u202e".encode()} & {shown[i : i + n] for i in range(len(shown)) for n in (1, 3)}


@pytest.mark.parametrize("name", ["x" * 300, "/" + "x" * 300])
def test_a_name_that_is_too_long_is_no_file(hoptui: Hoptui, recorded: Path, name: str) -> None:
    for words in (("export", name), ("report", name), ("export", "old", "-o", name)):
        ended = hoptui(*words)
        assert ended.code in (1, 3), words
        assert "traceback" not in ended.err, words
