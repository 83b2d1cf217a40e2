"""The cache of tokens: made once, found again, never torn."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm import token_files
from hoptui_trainer.lm.corpus import Corpus, Pass, find_corpus
from hoptui_trainer.lm.sequence_sampler import widened
from hoptui_trainer.lm.token_files import SOURCES, CachedTokens, cache_folder, cached_tokens, make_tokens
from hoptui_trainer.lm.tokenizer import Bytes
from tests.trainer.lm.conftest import quiet


@pytest.fixture
def corpus(corpus_folder: Path) -> Corpus:
    return find_corpus(corpus_folder)


def made(corpus: Corpus, tokenizer: str = "bytes", vocab_size: int = 384) -> CachedTokens:
    return make_tokens(corpus, tokenizer, vocab_size, quiet)


def folders() -> list[str]:
    """What the cache holds beside its index."""
    return sorted(path.name for path in cache_folder().iterdir() if path.name != SOURCES)


def test_the_files_hold_the_corpus_and_are_made_once(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cached_tokens(corpus, "bytes", 384) is None
    found = made(corpus)
    monkeypatch.setattr(Pass, "documents", lambda _: pytest.fail("read again"))
    assert made(corpus, vocab_size=999).folder == found.folder  # the size does not matter to bytes
    monkeypatch.undo()
    documents = list(Pass(corpus).documents())
    for held, shards in ((False, found.train), (True, found.held_out)):
        wanted = [document for document, is_held in documents if is_held == held]
        tokens = widened(shards.load(torch.device("cpu"))).tolist()
        assert bytes(token for token in tokens if token < 256) == b"".join(wanted)
        assert tokens.count(256) == len(wanted)
    assert found.lengths.tolist() == list(Bytes.lengths)
    assert found.held_out_text(50) == b"".join(document for document, held in documents if held)[:50]
    assert (found.left_out, found.learned_mb) == ({}, None)


def test_the_same_files_elsewhere_have_the_same_tokens_and_a_changed_one_has_not(
    corpus: Corpus, corpus_folder: Path, tmp_path: Path
) -> None:
    here = made(corpus)
    copied = tmp_path / "copied"
    shutil.copytree(corpus_folder, copied, copy_function=shutil.copyfile)  # without their times
    there = find_corpus(copied)
    assert there.key != corpus.key
    assert made(there).digest == here.digest
    assert made(there).folder == here.folder
    assert len(folders()) == 1
    (copied / "00.txt").write_text("other words")
    assert made(find_corpus(copied)).digest != here.digest
    assert len(folders()) == 2


def test_byte_pairs_are_learned_from_a_bounded_sample(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    whole = made(corpus, "bpe", 300)
    assert whole.vocabulary == 300
    trained = sum(len(document) for document, held in Pass(corpus).documents() if not held)
    assert whole.learned_mb == pytest.approx(trained / 1e6)
    assert (whole.folder / "tokenizer.json").is_file()
    shutil.rmtree(cache_folder())
    monkeypatch.setattr(token_files, "SAMPLE_MB", 0.002)
    part = made(corpus, "bpe", 300)
    assert part.learned_mb is not None
    assert 0.002 <= part.learned_mb < 0.0025
    assert part.digest != whole.digest  # other byte pairs, other tokens
    assert int(part.lengths[widened(part.train.head(1 << 20))].sum()) == trained


def test_what_fails_half_way_leaves_nothing(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, raised in ((OSError(28, "No space left on device"), UsageError), (KeyboardInterrupt(),) * 2):

        def torn(what: str, done: float, error: BaseException = error) -> None:
            if what == "tokenizing" and done > 0.5:
                raise error

        kind = raised if isinstance(raised, type) else type(raised)
        with pytest.raises(kind):
            make_tokens(corpus, "bytes", 384, torn)
        assert folders() == []
        assert cached_tokens(corpus, "bytes", 384) is None


def test_what_killed_processes_have_left_is_removed(corpus: Corpus, corpus_folder: Path) -> None:
    """But nothing of those that are at work."""
    other, busy = (find_corpus(corpus_folder, limit_mb=mb) for mb in (1.0, 2.0))
    left = {}
    for name, wanted in (("own", corpus), ("other", other), ("busy", busy)):
        made(wanted)
        entry = cache_folder() / SOURCES / f"{wanted.key}-bytes-v2.json"
        entry.unlink()
        left[name] = cache_folder() / f".{entry.stem}-killed"
        left[name].mkdir()
        (left[name] / "train.bin").write_bytes(b"half")
    with (cache_folder() / SOURCES / f"{busy.key}-bytes-v2.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made(corpus)
    assert [name for name, path in left.items() if path.exists()] == ["busy"]
    assert len(folders()) == 2


def test_a_folder_that_was_lost_is_made_again(corpus: Corpus) -> None:
    found = made(corpus)
    shutil.rmtree(found.folder)
    assert cached_tokens(corpus, "bytes", 384) is None
    assert made(corpus).digest == found.digest


def test_a_second_process_waits_for_the_first_and_takes_its_tokens(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is of the open file, so two threads stand for two processes."""
    waiting, steps = threading.Event(), []

    def first(what: str, done: float) -> None:
        steps.append(what)
        assert waiting.wait(30)

    def second(what: str, done: float) -> None:
        steps.append(f"second: {what}")
        waiting.set()

    monkeypatch.setattr(token_files, "POLL_S", 0.001)
    others = threading.Thread(target=make_tokens, args=(corpus, "bytes", 384, first))
    others.start()
    while not steps:  # it has the lock
        pass
    found = make_tokens(corpus, "bytes", 384, second)
    others.join(30)
    assert "second: waiting for another process that tokenizes the same corpus" in steps
    assert "second: tokenizing" not in steps
    assert found.digest
    assert len(folders()) == 1


def test_where_files_cannot_be_locked_tokens_are_made(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    assert made(corpus).digest


def test_a_cache_that_cannot_be_written_is_told(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refused)
    with pytest.raises(UsageError, match=r"Permission denied \(XDG_CACHE_HOME says where\)"):
        made(corpus)


@pytest.mark.parametrize("files", [{}, {"one.txt": b"one line"}, {"a": b"\0", "b": b"", "c": b"\xff"}])
def test_too_few_texts_are_told_with_what_was_left_out(tmp_path: Path, files: dict[str, bytes]) -> None:
    (tmp_path / "few").mkdir()
    for name, content in files.items():
        (tmp_path / "few" / name).write_bytes(content)
    with pytest.raises(UsageError, match=r"^--corpus: .*few holds too few texts") as caught:
        made(find_corpus(tmp_path / "few"))
    assert ("(left out: 2 no text)" in str(caught.value)) == (len(files) == 3)


def test_another_tokenizer_has_another_folder(corpus: Corpus) -> None:
    pytest.importorskip("tokenizers")
    found = {made(corpus).folder, made(corpus, "bpe", 300).folder, made(corpus, "bpe", 320).folder}
    assert len(found) == 3
