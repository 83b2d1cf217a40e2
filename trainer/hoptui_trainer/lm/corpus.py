"""Text to learn from that is on every machine: Python's own library, or a user's files.

Each document is trained on or held out by a hash of its content, so copies of one text never lie on both
sides and a new file moves no other one.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hoptui_trainer.common.errors import UsageError

HELD_OUT = 0.05
FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__"})
PIECE_BYTES = 16_384
"""A single file is cut into pieces of at least so many bytes, at the ends of lines, and these are split
instead."""
MB = 1_000_000


@dataclass(frozen=True)
class Corpus:
    """Documents in UTF-8, each part in the order of its hashes: as good as random, and the same everywhere.

    `digest` names the texts: 16 hexadecimal digits.
    """

    train: tuple[bytes, ...]
    held_out: tuple[bytes, ...]
    digest: str
    origin: str


def read_corpus(path: Path | None, limit_mb: float = 0.0) -> Corpus:
    """The texts under `path` (a folder or a file), or Python's standard library; at most `limit_mb` MB if not
    0.

    Raises:
        UsageError: there is no such path, or too little text to hold any of it out.
    """
    if path is None:
        root, origin = Path(sysconfig.get_paths()["stdlib"]), "the Python library's sources"
        documents: Iterable[bytes] = _documents(root, "*.py")
    elif path.is_dir():
        origin, documents = str(path), _documents(path, "*")
    elif path.is_file():
        origin, documents = str(path), _pieces(_text(path) or b"")
    else:
        raise UsageError(f"--corpus {path}: there is no such file or folder")
    return split(documents, origin, limit_mb)


def split(documents: Iterable[bytes], origin: str, limit_mb: float = 0.0) -> Corpus:
    """A corpus of `documents`, each once however often it is there.

    Raises:
        UsageError: nothing is left for one of the parts.
    """
    found = sorted({_hash(document): document for document in documents if document}.items())
    train: list[bytes] = []
    held_out: list[bytes] = []
    digest = hashlib.blake2b(digest_size=8)
    room = limit_mb * MB if limit_mb else float("inf")
    for name, document in found:
        if room <= 0:
            break
        room -= len(document)
        digest.update(name)
        # The hash's end decides: its beginning decides the order, and so what a limit leaves.
        held = int.from_bytes(name[-4:]) < HELD_OUT * 2**32
        (held_out if held else train).append(document)
    if not train or not held_out:
        raise UsageError(f"--corpus: {origin} holds too few texts to train on some and to hold others out")
    return Corpus(tuple(train), tuple(held_out), digest.hexdigest(), origin)


def _hash(document: bytes) -> bytes:
    return hashlib.blake2b(document, digest_size=16).digest()


def _documents(root: Path, pattern: str) -> Iterator[bytes]:
    for folder, below, files in os.walk(root):
        below[:] = set(below) - FOREIGN
        for name in fnmatch.filter(files, pattern):
            text = _text(Path(folder, name))
            if text is not None:
                yield text


def _text(path: Path) -> bytes | None:
    """The bytes of a file if they are text in UTF-8, else None."""
    try:
        if not path.is_file():  # to open a FIFO may never return
            return None
        content = path.read_bytes()
        content.decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if b"\0" in content else content


def _pieces(content: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(content):
        end = content.find(b"\n", start + PIECE_BYTES) + 1 or len(content)
        yield content[start:end]
        start = end
