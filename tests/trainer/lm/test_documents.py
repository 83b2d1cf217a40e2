from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm import documents as module
from hoptui_trainer.lm.documents import PIECE_BYTES, Reading, documents

TEXTS = [f"record {n} – naïve №\n" for n in range(50)]
RECORDS = [{"id": n, "text": text, "url": "https://"} for n, text in enumerate(TEXTS)]


def read(path: Path, field: str | None = None, *, whole: bool = True) -> tuple[list[bytes], Reading]:
    reading = Reading(path, Counter())
    return list(documents(reading, field, whole=whole)), reading


def lines_of(path: Path, records: list[object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_single_file_is_cut_at_ends_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("".join(f"line {n} of a long book\n" for n in range(60_000)))
    pieces, reading = read(path, whole=False)
    assert b"".join(pieces) == path.read_bytes()
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert sorted(map(len, pieces))[1] >= PIECE_BYTES  # the last piece may be shorter
    assert max(map(len, pieces)) < PIECE_BYTES + 100
    assert reading.consumed == path.stat().st_size
    assert read(path)[0] == pieces  # of a folder too: it is longer than a document may be


def test_a_text_without_lines_is_cut_between_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST", 1000)
    monkeypatch.setattr(module, "READ_BYTES", 256)
    path = tmp_path / "one line"
    path.write_text("xя€😀" * 3000)
    pieces, reading = read(path)
    assert b"".join(pieces) == path.read_bytes()
    assert max(map(len, pieces)) == 1000
    assert not reading.left_out
    assert all(piece.decode() for piece in pieces)


def test_only_the_pieces_of_a_long_text_that_are_none_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [b"a line of a log\n" * 1024] * 100
    lines[50] = b"\xff" * 15 + b"\n" + lines[50][16:]
    path.write_bytes(b"".join(lines))
    pieces, reading = read(path)
    assert sum(map(len, pieces)) == 100 * 16_384 - 16_400
    assert reading.left_out == {"pieces that are no text": 1}
    path.write_bytes(b"\x89PNG" + bytes(3_000_000))
    assert read(path)[0] == []
    path.write_bytes(b"")
    assert read(path)[0] == []


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.jsonl.gz", "a.jsonl.zst"])
def test_json_lines_are_read_plain_and_compressed(tmp_path: Path, name: str) -> None:
    content = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
    path = tmp_path / name
    if name.endswith(".gz"):
        content = gzip.compress(content)
    elif name.endswith(".zst"):
        arrow = pytest.importorskip("pyarrow")
        content = arrow.compress(content, "zstd", asbytes=True)
    path.write_bytes(content)
    found, reading = read(path)
    assert found == [text.encode() for text in TEXTS]
    assert reading.consumed == len(content)


def test_the_field_of_a_record_is_found_or_named(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "a.jsonl", [{"n": 1, "body": "one"}, {"n": 2, "body": None}, {"body": ""}])
    assert read(path)[0] == [b"one"]
    path = lines_of(tmp_path / "b.jsonl", [{"title": "t", "body": "one"}])
    assert read(path, "title")[0] == [b"t"]
    with pytest.raises(UsageError, match=r"--text-field is needed.*title, body"):
        read(path)
    with pytest.raises(UsageError, match=r"--text-field main:.*no such field in line 1; it has title, body"):
        read(path, "main")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": "half', "line 2 of .* is no JSON$"),
        (b"[1, 2]", "line 2 of .* is no JSON object"),
        (b'{"other": "x"}', "no such field in line 2"),
        (b'{"text": 7}', "line 2 of .* has no text there"),
        (b"\xff\xfe", "line 2 of .* is no JSON"),
        (b'{"text": "' + b"x" * 3000, "line 2 of .* is longer than 2,000 bytes"),
    ],
)
def test_a_line_that_is_no_record_is_told_by_its_number(
    tmp_path: Path, line: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 2000)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "x"}\n' + line)
    with pytest.raises(UsageError, match=said):
        read(path)


def test_a_torn_archive_and_a_file_without_permission_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "x"}\n' * 9999)[:50])
    with pytest.raises(UsageError, match=r"a\.jsonl\.gz cannot be read"):
        read(path)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(UsageError, match="cannot be read: Permission denied"):
        read(path)


def test_half_a_pair_of_surrogates_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(r'{"text": "a\ud800b"}')
    assert read(path)[0] == [b"a?b"]


def test_parquet_is_read_by_column(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    columns = {"id": list(range(50)), "text": TEXTS, "url": ["https://"] * 50}
    parquet.write_table(arrow.table(columns), path, row_group_size=20)
    found, reading = read(path)
    assert found == [text.encode() for text in TEXTS]
    assert reading.consumed == path.stat().st_size
    assert read(path, "url")[0] == [b"https://"] * 50
    with pytest.raises(UsageError, match=r"--text-field body:.*no such field; it has id, text, url"):
        read(path, "body")
    with pytest.raises(UsageError, match=r"--text-field id: the column of .* is no text"):
        read(path, "id")
    parquet.write_table(arrow.table({"a": ["x"], "b": ["y"], "n": [1]}), path)
    with pytest.raises(UsageError, match=r"--text-field is needed.*: a, b$"):
        read(path)
    parquet.write_table(arrow.table({"large": arrow.array(["x", None, ""], arrow.large_string())}), path)
    assert read(path)[0] == [b"x"]


def test_what_is_no_parquet_is_told(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 but not really")
    with pytest.raises(UsageError, match=r"a\.parquet cannot be read as Parquet"):
        read(path)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.zst"])
def test_without_the_library_it_is_said_what_to_install(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UsageError, match=r"needs pyarrow: pip install 'hoptui-trainer\[parquet\]'"):
        read(tmp_path / name)
