"""The corpus as two files of 16-bit tokens: written once, then memory-mapped."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm.corpus import Corpus
from hoptui_trainer.lm.tokenizer import BytePairs, Bytes, Tokenizer

FORMAT = 1


@dataclass(frozen=True)
class TokenStreams:
    """`train` and `held_out` (n,) int16 whose bits are unsigned 16-bit tokens; `lengths` (vocabulary,) bytes
    a token.

    torch computes little with unsigned 16-bit numbers; `sequence_sampler.py` widens what it takes.
    """

    train: Tensor
    held_out: Tensor
    lengths: Tensor


def cache_folder() -> Path:
    """Where token files are kept: `$XDG_CACHE_HOME/hoptui/lm`, `~/.cache/hoptui/lm` without it."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "hoptui" / "lm"


def stream_folder(corpus: Corpus, tokenizer: str, vocab_size: int) -> Path:
    """The folder of one corpus under one tokenizer."""
    kind = "bytes" if tokenizer == "bytes" else f"{tokenizer}-{vocab_size}"
    return cache_folder() / f"{corpus.digest}-{kind}-v{FORMAT}"


def make_streams(corpus: Corpus, tokenizer: str, vocab_size: int) -> None:
    """Tokenise the corpus unless that was done before. Several processes may try at once: one wins, nothing
    is torn.

    Raises:
        UsageError: the library for `tokenizer` is missing, or the cache cannot be written.
    """
    folder = stream_folder(corpus, tokenizer, vocab_size)
    if folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _fill(partial, corpus, tokenizer, vocab_size)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        if not folder.is_dir():  # else another process was faster
            raise UsageError(
                f"tokens cannot be kept in {folder.parent}: {error.strerror} (XDG_CACHE_HOME says where)"
            ) from None


def read_streams(corpus: Corpus, tokenizer: str, vocab_size: int) -> TokenStreams:
    """The streams that `make_streams` made, mapped into memory."""
    folder = stream_folder(corpus, tokenizer, vocab_size)
    lengths = json.loads((folder / "lengths.json").read_text())
    return TokenStreams(
        train=_mapped(folder / "train.u16"),
        held_out=_mapped(folder / "held_out.u16"),
        lengths=torch.tensor(lengths, dtype=torch.int64),
    )


def _fill(folder: Path, corpus: Corpus, name: str, vocab_size: int) -> None:
    tokenizer: Tokenizer
    if name == "bytes":
        tokenizer = Bytes()
    else:
        pairs = BytePairs.learn(corpus.train, vocab_size)
        pairs.write(folder / "tokenizer.json")
        tokenizer = pairs
    _write(folder / "train.u16", tokenizer, corpus.train)
    _write(folder / "held_out.u16", tokenizer, corpus.held_out)
    (folder / "lengths.json").write_text(json.dumps(list(tokenizer.lengths)))


def _write(path: Path, tokenizer: Tokenizer, documents: Sequence[bytes]) -> None:
    with path.open("wb") as file:
        for tokens in tokenizer.encode(documents):
            file.write(tokens.tobytes())


def _mapped(path: Path) -> Tensor:
    return torch.from_file(str(path), shared=False, size=path.stat().st_size // 2, dtype=torch.int16)
