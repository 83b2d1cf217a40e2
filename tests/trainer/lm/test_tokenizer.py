from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm import tokenizer as tokenizers
from hoptui_trainer.lm.tokenizer import BytePairs, Bytes, check_tokenizer, token_type

DOCUMENTS = [f"naïve – text № {n} mit Umlaüten, twice: text № {n}\n".encode() for n in range(120)]


def test_bytes_are_tokens_and_documents_have_an_end() -> None:
    (tokens,) = Bytes().encode(["é".encode()])
    assert tokens.tolist() == [0xC3, 0xA9, 256]
    assert [Bytes.lengths[token] for token in tokens] == [1, 1, 0]


def test_byte_pairs_lose_nothing_and_know_their_lengths(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    learned = BytePairs.learn(DOCUMENTS, 300)
    learned.write(tmp_path / "tokenizer.json")
    again = BytePairs(library.Tokenizer.from_file(str(tmp_path / "tokenizer.json")))
    assert len(learned.lengths) == 300
    assert again.lengths == learned.lengths
    for document, tokens in zip(DOCUMENTS, again.encode(DOCUMENTS), strict=True):
        assert sum(learned.lengths[token] for token in tokens) == len(document)
        assert len(tokens) < len(document)
    with pytest.raises(UsageError, match="--vocab-size 100"):
        BytePairs.learn(DOCUMENTS, 100)


def test_a_missing_library_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    check_tokenizer("bytes")
    with pytest.raises(UsageError, match=r"hoptui-trainer\[lm\]"):
        check_tokenizer("bpe")


def test_a_vocabulary_decides_how_wide_tokens_are(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    assert [token_type(size) for size in (257, 65_536, 65_537, 200_000)] == ["uint16"] * 2 + ["uint32"] * 2
    learned = BytePairs.learn(DOCUMENTS, 300)
    assert next(learned.encode(DOCUMENTS)).dtype == np.uint16
    monkeypatch.setattr(tokenizers, "token_type", lambda _: "uint32")
    assert next(learned.encode(DOCUMENTS)).dtype == np.uint32


def test_documents_are_encoded_together_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "AT_ONCE", 100)
    batches = list(tokenizers._batches(DOCUMENTS))
    assert [text.encode() for batch in batches for text in batch] == DOCUMENTS
    assert {len(batch) for batch in batches[:-1]} == {2}
