"""Text to learn from that is on every machine: Python's own library, or a user's files.

Files are taken in the order of a hash of their names, as good as random and the same everywhere, so a limit
reads a sample of them and no more. Each document is trained on or held out by a hash of its content, so
copies of one text never lie on both sides and a new file moves no other one.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import stat
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm.documents import Reading, documents, is_columnar

HELD_OUT = 0.05
FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__"})
MB = 1_000_000
FEW = 200
"""Of fewer files than these, texts are cut into pieces: else there may be none to hold out."""
KNOWN = 1 << 18
"""Copies of so many first documents are left out. More hashes would take too much memory."""


class SourceFile(NamedTuple):
    """A file of a corpus: its path, its name below the corpus, and the part of its status that changes with
    its content."""

    path: str
    name: str
    size: int
    changed_ns: int
    status_ns: int


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus, none of them read yet.

    `key` names these files as they are on this machine, with how they are read: 16 hexadecimal digits.
    """

    files: tuple[SourceFile, ...]
    origin: str
    text_field: str | None = None
    limit_mb: float = 0.0
    closed_folders: int = 0

    @cached_property
    def key(self) -> str:
        files = [[file.name, file.size, file.changed_ns, file.status_ns] for file in self.files]
        whole = json.dumps([files, self.text_field, self.limit_mb])
        return hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()

    @property
    def size(self) -> int:
        """Bytes to read at most, as they are on disk."""
        return sum(file.size for file in self.files)


@dataclass
class Pass:
    """One reading of a corpus from its beginning: `left_out` counts what was no text, by reason, and `read`
    the bytes of documents so far. `done` is the part of the corpus that is read."""

    corpus: Corpus
    left_out: Counter[str] = field(default_factory=Counter)
    read: int = 0
    done: float = 0.0

    def documents(self) -> Iterator[tuple[bytes, bool]]:
        """Each document once, not empty, in UTF-8, and whether it is held out; as many as the limit allows.

        Raises:
            UsageError: a file with columns cannot be read as one.
        """
        corpus = self.corpus
        limit = corpus.limit_mb * MB if corpus.limit_mb else float("inf")
        if corpus.closed_folders:
            self.left_out["folders that cannot be read"] = corpus.closed_folders
        known: set[int] = set()
        for document in self._all():
            if self.read >= limit:
                return
            name = hashlib.blake2b(document, digest_size=16).digest()
            short = int.from_bytes(name[:8])
            if short in known:
                self.left_out["copies"] += 1
                continue
            if len(known) < KNOWN:
                known.add(short)
            self.read += len(document)
            if corpus.limit_mb:
                self.done = max(self.done, min(1.0, self.read / limit))
            yield document, int.from_bytes(name[-4:]) < HELD_OUT * 2**32

    def _all(self) -> Iterator[bytes]:
        corpus, before, size = self.corpus, 0, max(1, self.corpus.size)
        for file in corpus.files:
            reading = Reading(Path(file.path), self.left_out)
            for document in documents(reading, corpus.text_field, whole=len(corpus.files) >= FEW):
                self.done = max(self.done, (before + min(reading.consumed, file.size)) / size)
                yield document
            before += file.size


def find_corpus(path: Path | None, limit_mb: float = 0.0, text_field: str | None = None) -> Corpus:
    """The files under `path` (a folder or a file), or those of Python's standard library.

    Args:
        limit_mb: MB of text to read at most; 0 is all.
        text_field: the column of JSON lines and Parquet files; None: see `documents`.

    Raises:
        UsageError: there is no such path, or a field is named and no file has any.
    """
    closed: list[OSError] = []
    if path is None:
        root, origin = Path(sysconfig.get_paths()["stdlib"]), "the Python library's sources"
        files: Iterable[SourceFile] = _files(root, "*.py", closed)
    elif path.is_dir():
        origin, files = str(path), _files(path, "*", closed)
    elif path.is_file():
        origin, files = str(path), [_source(str(path), path.name, path.stat())]
    else:
        raise UsageError(f"--corpus {path}: there is no such file or folder")
    chosen = tuple(sorted(files, key=_place))
    if text_field is not None and not any(is_columnar(Path(file.path)) for file in chosen):
        raise UsageError(f"--text-field {text_field}: {origin} has no JSON lines and no Parquet files")
    return Corpus(chosen, origin, text_field, limit_mb, len(closed))


def _place(file: SourceFile) -> bytes:
    return hashlib.blake2b(os.fsencode(file.name), digest_size=16).digest()


def _files(root: Path, pattern: str, closed: list[OSError]) -> Iterator[SourceFile]:
    """The files below a folder; `closed` takes the errors of folders that cannot be listed."""
    for folder, below, names in os.walk(root, onerror=closed.append):
        below[:] = set(below) - FOREIGN
        for name in fnmatch.filter(names, pattern):
            path = os.path.join(folder, name)  # noqa: PTH118 - there may be millions, and Path takes its time
            try:
                status = os.stat(path)  # noqa: PTH116
            except OSError:
                continue  # it is gone again
            if stat.S_ISREG(status.st_mode):  # to open a FIFO may never return
                yield _source(path, path[len(str(root)) + 1 :], status)


def _source(path: str, name: str, status: os.stat_result) -> SourceFile:
    return SourceFile(path, name, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
