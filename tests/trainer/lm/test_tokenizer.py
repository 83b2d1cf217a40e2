from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm import token_files
from hoptui_trainer.lm.corpus import Corpus, split
from hoptui_trainer.lm.sequence_sampler import widened
from hoptui_trainer.lm.token_files import cache_folder, make_streams, read_streams, stream_folder
from hoptui_trainer.lm.tokenizer import BytePairs, Bytes, check_tokenizer

DOCUMENTS = [f"naïve – text № {n} mit Umlaüten, twice: text № {n}\n".encode() for n in range(120)]


@pytest.fixture
def corpus() -> Corpus:
    return split(DOCUMENTS, "here")


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


def test_the_files_hold_the_corpus_and_are_made_once(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    make_streams(corpus, "bytes", 384)
    monkeypatch.setattr(token_files, "_fill", lambda *_: pytest.fail("tokenised again"))
    make_streams(corpus, "bytes", 999)  # the size does not matter to bytes
    found = read_streams(corpus, "bytes", 384)
    for stream, documents in ((found.train, corpus.train), (found.held_out, corpus.held_out)):
        tokens = widened(stream).tolist()
        assert bytes(token for token in tokens if token < 256) == b"".join(documents)
        assert tokens.count(256) == len(documents)
    assert found.lengths.tolist() == list(Bytes.lengths)


def test_another_corpus_or_tokenizer_has_another_folder(corpus: Corpus) -> None:
    other = split(DOCUMENTS[1:], "here")
    folders = {
        stream_folder(corpus, "bytes", 384),
        stream_folder(corpus, "bpe", 384),
        stream_folder(corpus, "bpe", 512),
        stream_folder(other, "bytes", 384),
    }
    assert len(folders) == 4


def test_what_fails_half_way_leaves_nothing(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(folder: Path, *_: object) -> None:
        (folder / "train.u16").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(token_files, "_fill", torn)
    with pytest.raises(UsageError, match="No space left on device"):
        make_streams(corpus, "bytes", 384)
    assert list(cache_folder().iterdir()) == []


def test_of_two_that_tokenise_at_once_the_faster_one_wins(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = token_files._fill

    def overtaken(folder: Path, *arguments: object) -> None:
        fill(folder, corpus, "bytes", 384)
        monkeypatch.setattr(token_files, "_fill", fill)
        make_streams(corpus, "bytes", 384)

    monkeypatch.setattr(token_files, "_fill", overtaken)
    make_streams(corpus, "bytes", 384)
    assert len(read_streams(corpus, "bytes", 384).train) == sum(map(len, corpus.train)) + len(corpus.train)
    assert len(list(cache_folder().iterdir())) == 1
