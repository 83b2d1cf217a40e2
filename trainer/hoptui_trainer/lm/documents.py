"""The documents of one file: text, JSON lines or Parquet, read in pieces."""

from __future__ import annotations

import gzip
import importlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hoptui_trainer.common.errors import UsageError

PIECE_BYTES = 16_384
"""Long texts are cut into pieces of at least so many bytes, at the ends of lines."""
LONGEST = 1 << 20
"""Bytes of the longest document. A file of a folder or a record that is longer is cut into pieces."""
LONGEST_LINE = 1 << 26
READ_BYTES = 1 << 16
ROWS = 64
"""Rows of a Parquet file that are read at once."""
USUAL_FIELD = "text"
JSON_LINES = (".jsonl", ".ndjson")
NEEDS = "pip install 'hoptui-trainer[parquet]'"


@dataclass
class Reading:
    """A file that is read. `consumed` are its bytes read so far, `left_out` counts what is no text."""

    path: Path
    left_out: Counter[str]
    consumed: int = 0


def is_columnar(path: Path) -> bool:
    """Whether a file has named fields, by its name."""
    return path.suffix == ".parquet" or _is_json_lines(path)


def documents(reading: Reading, text_field: str | None, *, whole: bool) -> Iterator[bytes]:
    """The documents of a file, none of them empty, valid UTF-8 of at most a megabyte.

    Args:
        text_field: the field of JSON lines and Parquet files that holds the text; None: `text` if there is
            one, else the only one of type string.
        whole: a text file is one document. Else it is cut into pieces, as if it were too long.

    Raises:
        UsageError: JSON lines or a Parquet file cannot be read as such.
    """
    path = reading.path
    if path.suffix == ".parquet":
        yield from _cut(_parquet(reading, text_field))
    elif _is_json_lines(path):
        yield from _cut(_json_lines(reading, text_field))
    else:
        yield from _text(reading, whole=whole)


def _is_json_lines(path: Path) -> bool:
    return path.name.removesuffix(".gz").removesuffix(".zst").endswith(JSON_LINES)


def _text(reading: Reading, *, whole: bool) -> Iterator[bytes]:
    """A text file; nothing of one that does not begin as text, and no piece that is none."""
    try:
        with reading.path.open("rb", buffering=0) as file:
            begin = _read(file, LONGEST + 1)
            if whole and len(begin) <= LONGEST:
                reading.consumed = len(begin)
                if _is_text(begin):
                    if begin:
                        yield begin
                else:
                    reading.left_out["no text"] += 1
                return
            if not _is_text(begin[:READ_BYTES], cut=len(begin) > READ_BYTES):
                reading.left_out["no text"] += 1
                return
            file.seek(0)
            for piece in _pieces(file):
                reading.consumed += len(piece)
                if _is_text(piece):
                    yield piece
                else:
                    reading.left_out["pieces that are no text"] += 1
    except OSError:
        reading.left_out["cannot be read"] += 1


def _read(file: IO[bytes], most: int) -> bytes:
    found = bytearray()
    while len(found) < most and (part := file.read(most - len(found))):
        found += part
    return bytes(found)


def _is_text(content: bytes, *, cut: bool = False) -> bool:
    """Whether it is UTF-8 without zeros; with `cut` the last character may be incomplete."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        if not cut or error.start < len(content) - 3 or error.reason != "unexpected end of data":
            return False
    return b"\0" not in content


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    """Pieces that end with a line; where a line is too long, with a character."""
    rest = b""
    while part := file.read(READ_BYTES):
        rest += part
        while end := rest.find(b"\n", PIECE_BYTES, LONGEST) + 1:
            yield rest[:end]
            rest = rest[end:]
        while len(rest) > LONGEST:
            end = LONGEST
            while end > LONGEST - 4 and rest[end] & 0xC0 == 0x80:  # the next byte continues a character
                end -= 1
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _cut(texts: Iterable[str]) -> Iterator[bytes]:
    for text in texts:
        document = text.encode(errors="replace")  # JSON may hold half a pair of surrogates
        if len(document) > LONGEST:
            yield from _pieces(io.BytesIO(document))
        elif document:
            yield document


def _json_lines(reading: Reading, text_field: str | None) -> Iterator[str]:
    path, name = reading.path, text_field
    try:
        with path.open("rb") as raw, closing(_uncompressed(path, raw)) as file:
            number = 0
            while line := file.readline(LONGEST_LINE):
                number += 1
                reading.consumed = raw.tell()
                if line.isspace():
                    continue
                try:
                    record = json.loads(line)
                except ValueError:
                    long = len(line) == LONGEST_LINE
                    what = f"longer than {LONGEST_LINE:,} bytes" if long else "no JSON"
                    raise UsageError(f"--corpus: line {number} of {path} is {what}") from None
                if not isinstance(record, dict):
                    raise UsageError(f"--corpus: line {number} of {path} is no JSON object")
                if name is None:
                    strings = [key for key, value in record.items() if isinstance(value, str)]
                    name = _only(path, list(record), strings)
                if name not in record:
                    _missing(path, name, list(record), f" in line {number}")
                if isinstance(record[name], str):
                    yield record[name]
                elif record[name] is not None:
                    raise UsageError(f"--text-field {name}: line {number} of {path} has no text there")
    except (OSError, EOFError) as error:
        raise UsageError(f"--corpus: {path} cannot be read: {_words(error)}") from None


def _uncompressed(path: Path, raw: Any) -> Any:
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if path.suffix == ".zst":
        return io.BufferedReader(_arrow(path, "pyarrow").CompressedInputStream(raw, "zstd"))
    return raw


def _parquet(reading: Reading, text_field: str | None) -> Iterator[str]:
    path = reading.path
    arrow, parquet = _arrow(path, "pyarrow"), _arrow(path, "pyarrow.parquet")
    try:
        with parquet.ParquetFile(path, buffer_size=LONGEST, pre_buffer=False) as file:
            schema = file.schema_arrow
            strings = [f.name for f in schema if f.type in (arrow.string(), arrow.large_string())]
            name = text_field or _only(path, schema.names, strings)
            if name not in schema.names:
                _missing(path, name, schema.names)
            if name not in strings:
                raise UsageError(f"--text-field {name}: the column of {path} is no text")
            size, rows, done = path.stat().st_size, max(1, file.metadata.num_rows), 0
            for batch in file.iter_batches(batch_size=ROWS, columns=[name]):
                done += len(batch)
                reading.consumed = size * done // rows
                yield from (text for text in batch.column(0).to_pylist() if text)
    except (OSError, arrow.ArrowException) as error:
        raise UsageError(f"--corpus: {path} cannot be read as Parquet: {_words(error)}") from None


def _arrow(path: Path, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(f"--corpus: {path.name} needs pyarrow: {NEEDS}") from None


def _only(path: Path, names: list[str], strings: list[str]) -> str:
    """The field that holds the text."""
    if USUAL_FIELD in names:
        return USUAL_FIELD
    if len(strings) != 1:
        shown = ", ".join(strings) if strings else "none"
        raise UsageError(f"--text-field is needed: the fields of {path} that hold text are: {shown}")
    return strings[0]


def _missing(path: Path, name: str, names: list[str], where: str = "") -> None:
    raise UsageError(f"--text-field {name}: {path} has no such field{where}; it has {', '.join(names)}")


def _words(error: BaseException) -> str:
    """An error in one line."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(text).splitlines()[0]
