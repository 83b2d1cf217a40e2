"""From a corpus to what a run needs of it, on every rank."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.memory import on_all_ranks
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.common.setup import check_alike
from hoptui_trainer.lm.config import LMConfig
from hoptui_trainer.lm.corpus import Corpus, find_corpus
from hoptui_trainer.lm.data_placement import place
from hoptui_trainer.lm.evaluate import lzma_bits_per_byte
from hoptui_trainer.lm.job import LMOptions
from hoptui_trainer.lm.ready_tokens import read_ready, ready_files
from hoptui_trainer.lm.sequence_sampler import widened
from hoptui_trainer.lm.token_files import (
    CachedTokens,
    Report,
    TokenStreams,
    cached_tokens,
    make_tokens,
    reasons,
)
from hoptui_trainer.lm.token_shards import TokenShards
from hoptui_trainer.lm.tokenizer import SAMPLE_MB, check_tokenizer

MEETING_S = 60.0
"""So often the ranks meet while one of them tokenizes: a collective waits for half an hour at most."""


@dataclass(frozen=True)
class Text:
    """The tokens of a corpus, and what lzma makes of the held-out text that is evaluated; None if that is not
    known. `digest` names the tokens, `notes` are lines for users."""

    streams: TokenStreams
    origin: str
    tokenizer: str
    digest: str
    lzma_bpb: float | None
    notes: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens to train on."""
        return len(self.streams.train)


def prepare_text(
    job: LMOptions, config: LMConfig, ranks: RankGroup, device: torch.device, report: Report
) -> Text:
    """Find the corpus, tokenize it on one rank of each machine unless that was done before, and place its
    tokens.

    Raises:
        UsageError: there is not enough text, not the same on all ranks, the tokenizer's library is missing,
            or the model's table is too small.
    """
    files = ready_files(job.corpus)
    if files:
        text = on_all_ranks(ranks, device, lambda: _ready(job, config, files))
    else:
        text = _made(job, config, ranks, device, report)
    check_alike(ranks, text.digest, "--corpus", "tokens")
    assert isinstance(text.streams.train, TokenShards)
    train, where = place(text.streams.train, device, ranks.local_world, job.stream)
    streams = replace(text.streams, train=train)
    return replace(text, streams=streams, notes=(f"tokens are {where}", *text.notes))


def _ready(job: LMOptions, config: LMConfig, files: tuple[Path, ...]) -> Text:
    for option, value in (("--tokenizer", job.tokenizer), ("--text-field", job.text_field)):
        if value is not None:
            raise UsageError(f"{option} {value}: {job.corpus} holds tokens that are ready")
    if job.until_bpb is not None and job.bytes_per_token is None:
        raise UsageError("--until-bpb: bits a byte of ready tokens are known with --bytes-per-token alone")
    size, limit = config.vocab_size, config.corpus_mb
    ready = read_ready(files, job.token_dtype, size, limit, config.eval_tokens)
    streams = TokenStreams(ready.train, ready.held_out, job.bytes_per_token)
    kind = f"ready, {ready.train.dtype}"
    return Text(streams, str(job.corpus), kind, ready.digest, lzma_bpb=None)


def _made(job: LMOptions, config: LMConfig, ranks: RankGroup, device: torch.device, report: Report) -> Text:
    """The tokens of texts, which the first rank of each machine makes while the others wait."""
    name, size = config.tokenizer, config.vocab_size

    def find() -> Corpus:
        for option, value in (("--token-dtype", job.token_dtype), ("--bytes-per-token", job.bytes_per_token)):
            if value is not None:
                raise UsageError(f"{option} {value}: it is for ready tokens, files that end in .bin")
        check_tokenizer(name)
        return find_corpus(job.corpus, config.corpus_mb, job.text_field)

    corpus = on_all_ranks(ranks, device, find)
    met = time.monotonic()

    def reported(what: str, done: float) -> None:
        nonlocal met
        report(what, done)
        if time.monotonic() - met > MEETING_S:
            ranks.all(False)
            met = time.monotonic()

    failure: UsageError | None = None
    if ranks.local_rank == 0:
        try:
            make_tokens(corpus, name, size, reported)
        except UsageError as error:
            failure = error
    while not ranks.all(True):
        pass
    if not ranks.all(failure is None):
        raise failure or UsageError("the corpus could not be tokenised on another rank")
    return on_all_ranks(ranks, device, lambda: _read(corpus, config))


def _read(corpus: Corpus, config: LMConfig) -> Text:
    """What the first rank of this machine has made."""
    made = cached_tokens(corpus, config.tokenizer, config.vocab_size)
    if made is None:
        raise UsageError(f"--corpus: {corpus.origin} has changed while it was read")
    if made.vocabulary > config.vocab_size:
        raise UsageError(f"--vocab-size {config.vocab_size}: the tokenizer has {made.vocabulary} tokens")
    held_out = made.held_out.head(config.eval_tokens + 1)
    evaluated = int(made.lengths[widened(held_out[: config.eval_tokens])].sum())
    text = made.held_out_text(evaluated)
    streams = TokenStreams(made.train, held_out, made.lengths)
    lzma_bpb = lzma_bits_per_byte(text) if text else None
    return Text(streams, corpus.origin, config.tokenizer, made.digest, lzma_bpb, tuple(_notes(made)))


def _notes(made: CachedTokens) -> list[str]:
    notes = []
    if made.learned_mb is not None and made.learned_mb >= SAMPLE_MB:
        notes.append(f"byte pairs are learned from the first {made.learned_mb:.0f} MB")
    if made.left_out:
        notes.append(f"left out of the corpus: {reasons(made.left_out)}")
    return notes
