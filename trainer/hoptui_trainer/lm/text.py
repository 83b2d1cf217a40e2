"""From a corpus to what a run needs of it, on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.common.setup import check_alike
from hoptui_trainer.lm.config import LMConfig
from hoptui_trainer.lm.corpus import read_corpus
from hoptui_trainer.lm.evaluate import lzma_bits_per_byte
from hoptui_trainer.lm.token_files import TokenStreams, make_streams, read_streams
from hoptui_trainer.lm.tokenizer import check_tokenizer


@dataclass(frozen=True)
class Text:
    """The tokens of a corpus, and what lzma makes of the held-out text that is evaluated. `digest` names its
    texts."""

    streams: TokenStreams
    origin: str
    digest: str
    lzma_bpb: float


def prepare_text(path: Path | None, config: LMConfig, ranks: RankGroup) -> Text:
    """Read the corpus, and tokenise it on one rank of each machine unless that was done before.

    Raises:
        UsageError: there is not enough text, not the same on all ranks, the tokenizer's library is missing,
            or the model's table is too small.
    """
    name, size = config.tokenizer, config.vocab_size
    check_tokenizer(name)
    corpus = read_corpus(path, config.corpus_mb)
    check_alike(ranks, corpus.digest, "--corpus", "texts")
    failure: UsageError | None = None
    if ranks.local_rank == 0:
        try:
            make_streams(corpus, name, size)
        except UsageError as error:
            failure = error
    if not ranks.all(failure is None):
        raise failure or UsageError("the corpus could not be tokenised on another rank")
    streams = read_streams(corpus, name, size)
    if len(streams.lengths) > size:
        raise UsageError(f"--vocab-size {size}: the tokenizer has {len(streams.lengths)} tokens")
    evaluated = int(streams.lengths[streams.held_out[: config.eval_tokens].long() & 0xFFFF].sum())
    text = b"".join(corpus.held_out)[:evaluated]
    return Text(streams, corpus.origin, corpus.digest, lzma_bits_per_byte(text))
