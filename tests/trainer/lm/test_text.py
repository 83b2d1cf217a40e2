"""From options to tokens: what is taken, where it lies, what users are told."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.ranks import ALONE, RankGroup
from hoptui_trainer.lm import data_placement, text, token_files
from hoptui_trainer.lm.corpus import Pass
from hoptui_trainer.lm.data_placement import make_sampler, place
from hoptui_trainer.lm.job import LMOptions
from hoptui_trainer.lm.preparation_progress import CLEAR, PreparationProgress
from hoptui_trainer.lm.streamed_sampler import StreamedSampler
from hoptui_trainer.lm.text import Text, prepare_text
from hoptui_trainer.lm.token_shards import Shard, TokenShards
from hoptui_trainer.lm.tokenizer import Bytes
from hoptui_trainer.lm.train import train
from tests.trainer.lm.conftest import quiet, small_config

CPU = torch.device("cpu")
SMALL = {"d_model": 16, "layers": 1, "heads": 2, "seq_len": 16, "batch_tokens": 128}


def prepared(
    corpus: Path, ranks: RankGroup = ALONE, config: dict[str, Any] | None = None, **options: Any
) -> Text:
    job = LMOptions(corpus=corpus, **options)
    return prepare_text(job, small_config(**(config or {})), ranks, CPU, quiet)


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A folder of 40,000 tokens below 300, as nanoGPT lays it out."""
    folder = tmp_path / "ready"
    folder.mkdir()
    tokens = (np.arange(40_000) ** 2 // 7 % 300).astype("uint16")
    tokens[:36_000].tofile(folder / "train.bin")
    tokens[36_000:].tofile(folder / "val.bin")
    (folder / "prepare.py").write_text("words")
    return folder


def test_a_corpus_is_read_once_and_then_found_by_its_files(
    corpus_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepared(corpus_folder)
    monkeypatch.setattr(Pass, "documents", lambda _: pytest.fail("read again"))
    again = prepared(corpus_folder)
    assert (again.digest, again.tokens, again.lzma_bpb) == (first.digest, first.tokens, first.lzma_bpb)
    assert first.tokenizer == "bytes"
    assert first.lzma_bpb is not None
    assert 1 < len(first.streams.held_out) <= 501


def test_tokens_are_on_the_device_if_they_fit_and_if_nobody_says_otherwise(
    corpus_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = prepared(corpus_folder, stream=True).streams.train
    assert isinstance(shards, TokenShards)
    assert isinstance(make_sampler(shards, 0, 16, CPU), StreamedSampler)
    assert isinstance(prepared(corpus_folder).streams.train, Tensor)
    monkeypatch.setattr(data_placement, "MOST_ON_CPU", shards.nbytes - 1)
    placed, where = place(shards, CPU, 1, None)
    assert placed is shards
    assert "more than the 0.03 MB" in where
    assert isinstance(place(shards, CPU, 1, False)[0], Tensor)
    monkeypatch.setattr(data_placement, "free_bytes", lambda *_: shards.nbytes - 1)
    with pytest.raises(UsageError, match=r"^--no-stream"):
        place(shards, CPU, 1, False)


@pytest.mark.parametrize("changes", [{}, {"micro_batch": 3}, {"batch_tokens": 96, "seq_len": 8}])
def test_the_same_seed_trains_on_the_same_batches_from_disk(
    corpus_folder: Path, changes: dict[str, Any]
) -> None:
    losses = [
        train(
            LMOptions(corpus=corpus_folder, stream=stream, iterations=5, evaluate_every=5, eval_tokens=400),
            SMALL | changes,
            lambda _: None,
        )
        for stream in (False, True)
    ]
    assert losses[0].loss == losses[1].loss is not None
    assert losses[0].val_bpb == losses[1].val_bpb is not None


def test_ready_tokens_train_a_model_whose_bits_a_byte_are_unknown(ready: Path) -> None:
    lines: list[str] = []
    job = LMOptions(corpus=ready, iterations=4, evaluate_every=2, corpus_mb=0.0, stream=True)
    result = train(job, SMALL, lines.append)
    assert result.val_bpb is None
    assert result.lzma_bpb is None
    assert result.val_loss is not None
    assert result.loss is not None
    assert any("(ready, uint16)" in line and "bits a byte are unknown" in line for line in lines)
    assert any("nats a token" in line for line in lines)
    assert not any(" bpb" in line for line in lines if "held out" in line)
    known = train(LMOptions(**{**vars(job), "bytes_per_token": 4.0}), SMALL, lines.append)
    assert known.loss == result.loss
    assert known.val_bpb is not None


def test_from_ready_tokens_a_run_goes_on_where_it_was(ready: Path, tmp_path: Path) -> None:
    half, other = tmp_path / "half", tmp_path / "elsewhere"
    given: dict[str, Any] = {"corpus": ready, "iterations": 6, "evaluate_every": 0, "corpus_mb": 0.0}
    saving = LMOptions(**given, stream=True, checkpoint_dir=half, checkpoint_every=3)
    whole = train(saving, SMALL, lambda _: None)
    (half / "lm-000000006.ckpt").unlink()
    ready.rename(other)
    for stream in (True, False):
        again = LMOptions(**given | {"corpus": other, "resume": half / "lm-000000003.ckpt", "stream": stream})
        assert train(again, {}, lambda _: None).loss == whole.loss is not None
    (other / "train.bin").write_bytes((other / "val.bin").read_bytes())
    with pytest.raises(UsageError, match="other text"):
        train(again, {}, lambda _: None)


@pytest.mark.parametrize(
    ("options", "config", "said"),
    [
        ({"tokenizer": "bytes"}, {}, "^--tokenizer bytes: .* tokens that are ready"),
        ({"text_field": "text"}, {}, "^--text-field text: .* tokens that are ready"),
        ({"until_bpb": 1.0}, {}, "^--until-bpb: .* --bytes-per-token"),
        ({}, {"vocab_size": 256}, "^--vocab-size 256: .* holds the token"),
    ],
)
def test_options_that_do_not_suit_ready_tokens_are_refused(
    ready: Path, options: dict[str, Any], config: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        prepared(ready, config=config, **options)


@pytest.mark.parametrize("options", [{"token_dtype": "uint16"}, {"bytes_per_token": 4.0}])
def test_options_of_ready_tokens_are_refused_for_texts(corpus_folder: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^--(token-dtype|bytes-per-token) .*\.bin"):
        prepared(corpus_folder, **options)
    with pytest.raises(UsageError, match=r"^--bytes-per-token"):
        LMOptions(bytes_per_token=0.0).check()


def test_a_vocabulary_that_is_too_small_is_told(corpus_folder: Path) -> None:
    with pytest.raises(UsageError, match=r"^--vocab-size 256: the tokenizer has 257 tokens"):
        prepared(corpus_folder, config={"vocab_size": 256})


class Other(RankGroup):
    """A rank beside another one, which answers what the test wants."""

    def __init__(self, local_rank: int, finished: list[bool], failures: list[str]) -> None:
        super().__init__(1, 2, local_rank, 2)
        self.finished, self.failures = finished, failures
        self.met: list[bool] = []

    def all(self, ok: bool) -> bool:
        self.met.append(ok)
        return ok and (self.finished.pop(0) if self.finished else True)

    def gather(self, value: object) -> list[Any]:
        return [(UsageError, self.failures.pop(0)) if self.failures and value is None else value, value]


def test_ranks_meet_while_one_of_them_tokenizes(corpus_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective that waits for half an hour would end the run."""
    prepared(corpus_folder)
    waiting = Other(1, [False, False, True, True], [])
    assert prepared(corpus_folder, waiting).digest
    assert waiting.met == [True] * 4
    monkeypatch.setattr(text, "MEETING_S", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(corpus_folder.parent / "other cache"))
    working = Other(0, [], [])
    assert prepared(corpus_folder, working).digest
    assert working.met.count(False) > 10
    assert working.met[-2:] == [True, True]


def test_what_another_rank_refuses_is_refused_here(corpus_folder: Path) -> None:
    with pytest.raises(UsageError, match=r"^on another rank: --corpus: there is nothing"):
        prepared(corpus_folder, Other(0, [], ["--corpus: there is nothing"]))
    with pytest.raises(UsageError, match="on another rank"):
        prepared(corpus_folder, Other(0, [True, False], []))
    (corpus_folder / "00.txt").write_text("new words")
    with pytest.raises(UsageError, match="has changed while it was read"):
        prepared(corpus_folder, Other(1, [], []))


def test_what_was_left_out_and_a_sample_are_told(
    corpus_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    for module in (token_files, text):
        monkeypatch.setattr(module, "SAMPLE_MB", 0.002)
    (corpus_folder / "picture").write_bytes(b"\0")
    config = {"tokenizer": "bpe", "vocab_size": 300}
    where, sample, left_out = prepared(corpus_folder, config=config).notes
    assert "in memory" in where
    assert "learned from the first" in sample
    assert left_out == "left out of the corpus: 1 no text"


def test_a_corpus_of_more_words_than_sixteen_bits_has_wider_tokens(
    corpus_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without learning 65,537 of them: where tokens are wide, they are the same."""
    narrow = prepared(corpus_folder, stream=True).streams.train
    monkeypatch.setenv("XDG_CACHE_HOME", str(corpus_folder.parent / "other cache"))
    monkeypatch.setattr(token_files, "token_type", lambda _: "uint32")
    encode = Bytes.encode
    monkeypatch.setattr(Bytes, "encode", lambda *given: (t.astype("uint32") for t in encode(*given)))
    wide = prepared(corpus_folder, stream=True).streams.train
    assert isinstance(narrow, TokenShards)
    assert isinstance(wide, TokenShards)
    assert wide.nbytes == 2 * narrow.nbytes
    assert wide.load(CPU).tolist() == narrow.load(CPU).tolist()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def walked(progress: PreparationProgress, clock: Clock, what: str, seconds: float) -> None:
    """Work of so many seconds that is told of every eighth of one."""
    for step in range(round(8 * seconds)):
        clock.now += 0.125
        progress(what, step / (8 * seconds))


def test_a_log_gets_a_line_now_and_then() -> None:
    lines: list[str] = []
    clock = Clock()
    progress = PreparationProgress(lines.append, None, clock)
    walked(progress, clock, "short", 1.9)
    assert lines == []
    walked(progress, clock, "tokenizing", 50.0)
    assert lines == [
        "tokenizing: 4%, about 48 s left",
        "tokenizing: 34%, about 33 s left",
        "tokenizing: 64%, about 18 s left",
        "tokenizing: 94%, about 3 s left",
    ]
    progress("waiting", 0.0)
    clock.now += 3.0
    progress("waiting", 0.0)
    assert lines[-1] == "waiting"


def test_a_terminal_gets_one_line_that_is_removed_at_the_end() -> None:
    terminal, clock = io.StringIO(), Clock()
    progress = PreparationProgress(lambda _: pytest.fail("a line"), terminal, clock)
    walked(progress, clock, "short", 1.0)
    progress.close()
    assert terminal.getvalue() == ""
    walked(progress, clock, "tokenizing", 10.0)
    progress.close()
    written = terminal.getvalue()
    assert "\n" not in written
    assert 25 <= written.count(CLEAR) <= 42
    assert written.endswith(CLEAR)


def test_one_shard_of_one_token_short_is_no_stream(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\1\0" * 3)
    shards = TokenShards([Shard(tmp_path / "a", 0, 3)], "uint16", 300)
    inputs, targets = make_sampler(shards, 0, 1024, CPU).take(0, 1, 30)
    assert inputs.tolist() == targets.tolist() == [[1] * 30]
