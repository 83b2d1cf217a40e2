"""Tokens that another program has made: `.bin` files of unsigned 16-bit or 32-bit numbers.

Two layouts are known: numbers alone, as nanoGPT writes them, and numbers after the header of llm.c, which
names their type and their count. They are read where they are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm.corpus import HELD_OUT, MB
from hoptui_trainer.lm.token_shards import Shard, TokenShards, TokenType, samples

SUFFIX = ".bin"
HEADER_BYTES = 1024
HEADERS: dict[tuple[int, int], TokenType] = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
"""Magic number and version of llm.c's headers."""
OF_VALIDATION = re.compile(r"(^|[^a-z])(val|valid|validation)([^a-z]|$)")
OF_TRAINING = re.compile(r"(^|[^a-z])train([^a-z]|$)")
PLACES, PLACE_TOKENS = 64, 2048
"""What is looked at to name the tokens and to check them: so many stretches of so many tokens."""


@dataclass(frozen=True)
class ReadyTokens:
    """Tokens in files, and those that are held out. `digest` names them: 16 hexadecimal digits of their
    number and of samples of them."""

    train: TokenShards
    held_out: Tensor
    digest: str


class _File(NamedTuple):
    shard: Shard
    dtype: TokenType


def ready_files(path: Path | None) -> tuple[Path, ...]:
    """The `.bin` files of a corpus, in the order of their names; none if it is text.

    A folder is one of tokens if `.bin` files lie in it, and either nothing else or one with `train` in its
    name.
    """
    if path is None:
        return ()
    if path.is_file():
        return (path,) if path.suffix == SUFFIX else ()
    try:
        inside = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError:
        return ()
    found = tuple(entry for entry in inside if entry.suffix == SUFFIX and entry.is_file())
    named = any(OF_TRAINING.search(entry.stem.lower()) for entry in found)
    return found if found and (named or len(found) == len(inside)) else ()


def read_ready(
    files: Sequence[Path], dtype: TokenType | None, vocabulary: int, limit_mb: float, eval_tokens: int
) -> ReadyTokens:
    """The tokens of these files.

    Those with `val` in their name are held out. Without any, the end of the tokens is: a twentieth, or what
    an evaluation of `eval_tokens` takes if that is less.

    Args:
        dtype: the type of the numbers in files without a header; None: uint16.
        vocabulary: tokens are below it.
        limit_mb: MB of the tokens to train on; 0 is all.

    Raises:
        UsageError: a file is no such file, or a sample holds a token that is too large.
    """
    found = [(_file(path, dtype), path) for path in files]
    kinds = {file.dtype for file, _ in found}
    if len(kinds) > 1:
        raise UsageError(f"--corpus {files[0].parent}: some files hold uint16 and some uint32")
    kind = kinds.pop()
    held_files = [path for path in files if OF_VALIDATION.search(path.stem.lower())]
    train = [file.shard for file, path in found if path not in held_files]
    held = [file.shard for file, path in found if path in held_files]
    if not train:
        raise UsageError(
            f"--corpus {files[0].parent}: all of its .bin files are for validation, by their names"
        )
    width = np.dtype(kind).itemsize
    if limit_mb:
        train, _ = _parted(train, int(limit_mb * MB) // width, width)
    if not held:
        total = sum(shard.tokens for shard in train)
        train, held = _parted(train, total - min(int(total * HELD_OUT), eval_tokens + 1), width)
    parts = [TokenShards(part, kind, vocabulary) for part in (train, held)]
    if min(map(len, parts)) < 2:
        raise UsageError(f"--corpus {files[0]}: too few tokens to train on some and to hold others out")
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(f"{kind} {len(part)} ".encode())
        seen = np.concatenate(list(samples(part, PLACES, PLACE_TOKENS)))
        part.check(seen)
        digest.update(seen.tobytes())
        if dtype is None and kind == "uint16" and seen[::2].any() and not seen[1::2].any():
            raise UsageError(
                f"--corpus {files[0]}: every second token is 0, as if they were uint32: say which with "
                "--token-dtype"
            )
    return ReadyTokens(parts[0], parts[1].head(eval_tokens + 1), digest.hexdigest())


def _file(path: Path, dtype: TokenType | None) -> _File:
    """The tokens of a file, by its header or as `dtype` has it.

    Raises:
        UsageError: it cannot be read, or its size does not fit.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = np.frombuffer(file.read(12), "<i4")
    except OSError as error:
        raise UsageError(f"--corpus {path}: {error.strerror}") from None
    except ValueError:  # the first twelve bytes are not there
        header = np.zeros(0, "<i4")
    if not size:
        raise UsageError(f"--corpus {path}: the file is empty")
    kind = HEADERS.get((int(header[0]), int(header[1]))) if len(header) == 3 else None
    if kind is None:
        kind, offset = dtype or "uint16", 0
    elif dtype not in (None, kind):
        raise UsageError(f"--token-dtype {dtype}: the header of {path} says {kind}")
    else:
        offset = HEADER_BYTES
    count, rest = divmod(size - offset, np.dtype(kind).itemsize)
    if rest:
        raise UsageError(f"--corpus {path}: its size, {size:,} bytes, is no whole number of {kind} tokens")
    if offset and count != int(header[2]):
        raise UsageError(
            f"--corpus {path}: its header says {int(header[2]):,} tokens, and it holds {count:,}"
        )
    return _File(Shard(path, offset, count), kind)


def _parted(shards: Sequence[Shard], count: int, width: int) -> tuple[list[Shard], list[Shard]]:
    """The first `count` tokens of `width` bytes, and the others."""
    first: list[Shard] = []
    others: list[Shard] = []
    for path, offset, size in shards:
        here = max(0, min(count, size))
        if here:
            first.append(Shard(path, offset, here))
        if here < size:
            others.append(Shard(path, offset + here * width, size - here))
        count -= here
    return first, others
