from __future__ import annotations

import os
from pathlib import Path

import pytest

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm.corpus import PIECE_BYTES, read_corpus, split

DOCUMENTS = [f"document number {n}\n".encode() for n in range(400)]


def test_about_a_twentieth_of_the_documents_is_held_out_and_no_document_is_lost() -> None:
    corpus = split(DOCUMENTS, "here")
    assert sorted(corpus.train + corpus.held_out) == sorted(DOCUMENTS)
    assert 8 <= len(corpus.held_out) <= 40


def test_copies_are_one_document_and_a_new_document_moves_no_other_one() -> None:
    corpus = split(DOCUMENTS, "here")
    assert split([*DOCUMENTS, *reversed(DOCUMENTS)], "here") == corpus
    more = split([*DOCUMENTS, b"one more"], "here")
    assert set(more.held_out) - {b"one more"} == set(corpus.held_out)
    assert more.digest != corpus.digest


def test_a_limit_leaves_the_beginning_of_the_same_order() -> None:
    whole, part = split(DOCUMENTS, "here"), split(DOCUMENTS, "here", limit_mb=0.004)
    assert whole.train[: len(part.train)] == part.train
    assert whole.held_out[: len(part.held_out)] == part.held_out
    assert 4000 <= sum(map(len, part.train + part.held_out)) < 4100


def test_a_folder_gives_its_texts_wherever_they_lie_and_nothing_else(tmp_path: Path) -> None:
    for number, document in enumerate(DOCUMENTS):
        path = tmp_path / str(number % 7) / f"{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(document)
    (tmp_path / "0" / "picture").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "0" / "binary").write_bytes(b"text\0text")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.txt").write_text("never")
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    assert read_corpus(tmp_path).digest == split(DOCUMENTS, "").digest


def test_a_single_file_is_cut_at_ends_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("".join(f"line {n} of a long book\n" for n in range(60_000)))
    corpus = read_corpus(path)
    pieces = corpus.train + corpus.held_out
    assert sum(map(len, pieces)) == path.stat().st_size
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert sorted(map(len, pieces))[1] >= PIECE_BYTES  # the last piece may be shorter


def test_the_librarys_sources_are_there_without_any_download() -> None:
    corpus = read_corpus(None, limit_mb=1.0)
    assert sum(map(len, corpus.train)) > 800_000
    assert sum(map(len, corpus.held_out)) > 1_000


@pytest.mark.parametrize("name", ["missing", "empty", "one.txt"])
def test_a_corpus_that_is_none_is_told_by_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "one.txt").write_text("one line")
    with pytest.raises(UsageError, match=name) as caught:
        read_corpus(tmp_path / name)
    assert str(caught.value).startswith("--corpus")
