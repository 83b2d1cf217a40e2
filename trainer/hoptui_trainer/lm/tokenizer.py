"""Tokenizers: plain bytes, or byte-pair encoding learned from the corpus on this machine."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm.token_shards import Tokens, TokenType

TokenizerName = Literal["bytes", "bpe"]
END = "<|end|>"
LARGEST = 1 << 20
"""The largest vocabulary to learn."""
SAMPLE_MB = 32
"""Byte pairs are learned from so many MB of text at most, the first ones that are not held out: the memory
that learning takes grows with them."""
AT_ONCE = 1 << 20
"""Bytes of documents that are encoded together."""


def token_type(vocabulary: int) -> TokenType:
    """The type in which so many tokens are kept."""
    return "uint16" if vocabulary <= 1 << 16 else "uint32"


class Tokenizer(Protocol):
    """`lengths` are the UTF-8 bytes that each token stands for; the end of a document stands for none."""

    @property
    def lengths(self) -> Sequence[int]: ...

    def encode(self, documents: Iterable[bytes]) -> Iterator[Tokens]:
        """The tokens of each document, the end among them."""
        ...


class Bytes:
    """256 tokens, one a byte, and the end of a document."""

    lengths = (*(1 for _ in range(256)), 0)

    def encode(self, documents: Iterable[bytes]) -> Iterator[Tokens]:
        for document in documents:
            yield np.append(np.frombuffer(document, np.uint8).astype(np.uint16), np.uint16(256))


class BytePairs:
    """Byte-level BPE (Sennrich et al. 2016; GPT-2's word splitting), by the `tokenizers` library. Loses
    nothing."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._end = tokenizer.token_to_id(END)
        # Byte-level BPE spells each byte as one character.
        words = (tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size()))
        self.lengths = tuple(0 if word == END else len(word) for word in words)

    @classmethod
    def learn(cls, documents: Iterable[bytes], size: int) -> BytePairs:
        """At most `size` tokens, the best for `documents`.

        Raises:
            UsageError: the `tokenizers` library is not installed, or `size` is out of range.
        """
        library = _library()
        if not 257 <= size <= LARGEST:
            raise UsageError(f"--vocab-size {size}: byte pairs need 257 to {LARGEST:,}")
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = library.trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=[END],
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator((document.decode() for document in documents), trainer)
        return cls(tokenizer)

    def write(self, path: Path) -> None:
        """Keep it as the library's `Tokenizer.from_file` reads it, for who wants to read tokens as text."""
        self._tokenizer.save(str(path))

    def encode(self, documents: Iterable[bytes]) -> Iterator[Tokens]:
        kind = token_type(len(self.lengths))
        for batch in _batches(documents):  # the library spreads a batch over all cores
            for encoded in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                yield np.array([*encoded.ids, self._end], kind)


def _batches(documents: Iterable[bytes]) -> Iterator[list[str]]:
    """Documents together that have about `AT_ONCE` bytes."""
    batch: list[str] = []
    size = 0
    for document in documents:
        batch.append(document.decode())
        size += len(document)
        if size >= AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def check_tokenizer(name: str) -> None:
    """Refuse a tokenizer whose library is missing, before anything takes time.

    Raises:
        UsageError: how to install it.
    """
    if name == "bpe":
        _library()


def _library() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ImportError:
        raise UsageError(
            "--tokenizer bpe needs the tokenizers library: pip install 'hoptui-trainer[lm]' (or "
            "--tokenizer bytes)"
        ) from None
