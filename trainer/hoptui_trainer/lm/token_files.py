"""The tokens of a corpus on disk: made in bounded memory, kept in a cache, named by their content.

A folder of the cache is named by a digest of its tokens. A small index leads from the files of a corpus, as
they are on this machine, to that folder: it is found without reading the corpus. Files that were copied or
touched are read once more, and lead to the same folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm.corpus import MB, Corpus, Pass
from hoptui_trainer.lm.token_shards import Shard, TokenShards
from hoptui_trainer.lm.tokenizer import SAMPLE_MB, BytePairs, Bytes, Tokenizer, token_type

FORMAT = 2
SOURCES = "sources"
"""The folder of the index, in the cache."""
EVALUATED_BYTES = 16 * MB
"""Text that is held out is kept up to here, for what is to be compared with the model."""
POLL_S = 0.2

Report = Callable[[str, float], None]
"""Called often while a corpus is tokenised, with what is done and the part of it that is done."""


@dataclass(frozen=True)
class TokenStreams:
    """Tokens to train on, in files or on a device, and those that are held out, on the CPU.

    `lengths` (vocabulary,) are the bytes that each token stands for, or a number: those of a token on
    average. None: unknown. Tensors of tokens are int16 or int32, whose bits are unsigned numbers;
    `sequence_sampler.widened` reads them.
    """

    train: TokenShards | Tensor
    held_out: Tensor
    lengths: Tensor | float | None


@dataclass(frozen=True)
class CachedTokens:
    """A folder of the cache. `digest` names the tokens, in 16 hexadecimal digits."""

    folder: Path
    digest: str
    lengths: Tensor
    left_out: Mapping[str, int]
    learned_mb: float | None

    @property
    def vocabulary(self) -> int:
        """The number of different tokens."""
        return len(self.lengths)

    @property
    def train(self) -> TokenShards:
        """The tokens to train on."""
        return self._shards("train.bin")

    @property
    def held_out(self) -> TokenShards:
        """The tokens that are held out."""
        return self._shards("held_out.bin")

    def held_out_text(self, count: int) -> bytes:
        """The beginning of the held-out text, at most `count` and at most `EVALUATED_BYTES` bytes."""
        with (self.folder / "held_out.txt").open("rb") as file:
            return file.read(count)

    def _shards(self, name: str) -> TokenShards:
        path, kind = self.folder / name, token_type(self.vocabulary)
        count = path.stat().st_size // np.dtype(kind).itemsize
        return TokenShards([Shard(path, 0, count)], kind, self.vocabulary)


def cache_folder() -> Path:
    """Where token files are kept: `$XDG_CACHE_HOME/hoptui/lm`, `~/.cache/hoptui/lm` without it."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "hoptui" / "lm"


def cached_tokens(corpus: Corpus, tokenizer: str, vocab_size: int) -> CachedTokens | None:
    """The tokens of these files, if they were made before."""
    try:
        found = json.loads(_entry(corpus, tokenizer, vocab_size).read_text())
        folder = cache_folder() / found["folder"]
        facts = json.loads((folder / "facts.json").read_text())
    except (OSError, ValueError, KeyError):
        return None
    lengths = torch.tensor(facts["lengths"], dtype=torch.int64)
    return CachedTokens(folder, facts["digest"], lengths, found["left_out"], facts["learned_mb"])


def make_tokens(corpus: Corpus, tokenizer: str, vocab_size: int, report: Report) -> CachedTokens:
    """Tokenise a corpus, unless that was done before. A process that comes second waits for the first one;
    one that is ended leaves nothing that is taken for whole.

    Raises:
        UsageError: the library for `tokenizer` is missing, there are too few texts, or the cache cannot be
            written.
    """
    if found := cached_tokens(corpus, tokenizer, vocab_size):
        return found
    entry = _entry(corpus, tokenizer, vocab_size)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with _locked(entry.with_suffix(".lock"), report):
            if cached_tokens(corpus, tokenizer, vocab_size) is None:
                _make(corpus, tokenizer, vocab_size, entry, report)
    except OSError as error:
        raise UsageError(
            f"tokens cannot be kept in {cache_folder()}: {error.strerror} (XDG_CACHE_HOME says where)"
        ) from None
    made = cached_tokens(corpus, tokenizer, vocab_size)
    if made is None:
        raise UsageError(f"{cache_folder()}: tokens that were just kept there cannot be read")
    return made


def _entry(corpus: Corpus, tokenizer: str, vocab_size: int) -> Path:
    """The index file of a corpus under one tokenizer."""
    return cache_folder() / SOURCES / f"{corpus.key}-{_kind(tokenizer, vocab_size)}-v{FORMAT}.json"


def _kind(tokenizer: str, vocab_size: int) -> str:
    return "bytes" if tokenizer == "bytes" else f"{tokenizer}-{vocab_size}"


def _make(corpus: Corpus, tokenizer: str, vocab_size: int, entry: Path, report: Report) -> None:
    """Fill a folder, give it its name, then its entry in the index."""
    _remove_left(entry)
    partial = Path(tempfile.mkdtemp(prefix=f".{entry.stem}-", dir=cache_folder()))
    try:
        digest, left_out = _fill(partial, corpus, tokenizer, vocab_size, report)
        folder = cache_folder() / f"{digest}-{_kind(tokenizer, vocab_size)}-v{FORMAT}"
        try:
            partial.rename(folder)
        except OSError:
            if not (folder / "facts.json").is_file():  # else other files have led to the same tokens
                raise
        new = partial.with_suffix(".json")
        new.write_text(json.dumps({"folder": folder.name, "left_out": left_out}))
        new.replace(entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _remove_left(entry: Path) -> None:
    """Remove what killed processes have left: folders whose lock nobody holds, or that are for `entry`, whose
    lock is held here."""
    for left in cache_folder().glob(f".*-v{FORMAT}-*"):
        stem = left.name[1:].rpartition("-")[0]
        lock = entry.with_name(f"{stem}.lock")
        with suppress(OSError), ExitStack() as held:  # else another process is at work there
            if stem != entry.stem:
                file = held.enter_context(lock.open("rb"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)


def _fill(
    folder: Path, corpus: Corpus, name: str, vocab_size: int, report: Report
) -> tuple[str, dict[str, int]]:
    """Write the tokens of a corpus; returns their digest, and what was left out."""
    tokenizer: Tokenizer = Bytes()
    learned_mb = None
    if name != "bytes":
        tokenizer, learned_mb = _learn(corpus, vocab_size, report)
        tokenizer.write(folder / "tokenizer.json")
    reading, digest = Pass(corpus), hashlib.blake2b(digest_size=8)
    sizes = [0, 0]
    with (
        (folder / "train.bin").open("wb") as train,
        (folder / "held_out.bin").open("wb") as held_out,
        (folder / "held_out.txt").open("wb") as text,
    ):
        held: deque[bool] = deque()
        for tokens in tokenizer.encode(_noted(reading, held, text)):
            to = held.popleft()
            content = tokens.tobytes()
            (held_out if to else train).write(content)
            digest.update(bytes([to]) + content)
            sizes[to] += len(content)
            report("tokenizing", reading.done)
    if not all(sizes):
        left_out = f" (left out: {reasons(reading.left_out)})" if reading.left_out else ""
        raise UsageError(
            f"--corpus: {corpus.origin} holds too few texts to train on some and to hold others out{left_out}"
        )
    facts = {"digest": digest.hexdigest(), "lengths": list(tokenizer.lengths), "learned_mb": learned_mb}
    (folder / "facts.json").write_text(json.dumps(facts))
    return digest.hexdigest(), dict(reading.left_out)


def reasons(left_out: Mapping[str, int]) -> str:
    """What was left out of a corpus, for users: the number of each kind."""
    return ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())


def _learn(corpus: Corpus, vocab_size: int, report: Report) -> tuple[BytePairs, float]:
    """Byte pairs from the beginning of what is trained on, and how many MB that is."""
    reading, size = Pass(corpus), 0

    def sample() -> Iterator[bytes]:
        nonlocal size
        for document, held in reading.documents():
            if not held:
                size += len(document)
                report("learning byte pairs", max(reading.done, min(1.0, size / (SAMPLE_MB * MB))))
                yield document
                if size >= SAMPLE_MB * MB:
                    return

    return BytePairs.learn(sample(), vocab_size), size / MB


def _noted(reading: Pass, held: deque[bool], text: BinaryIO) -> Iterator[bytes]:
    """The documents of a reading; `held` takes for each whether it is held out, `text` those that are."""
    kept = 0
    for document, held_out in reading.documents():
        held.append(held_out)
        if held_out and kept < EVALUATED_BYTES:
            kept += text.write(document[: EVALUATED_BYTES - kept])
        yield document


@contextmanager
def _locked(path: Path, report: Report) -> Iterator[None]:
    """In here no other process of this machine has the lock; where files cannot be locked, it is not
    waited for."""
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report("waiting for another process that tokenizes the same corpus", 0.0)
                time.sleep(POLL_S)
                continue
            except OSError:
                pass
            break
        yield
