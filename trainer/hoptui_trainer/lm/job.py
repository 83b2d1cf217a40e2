"""The options of `hoptui train lm`, and how they combine with a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hoptui_trainer.common.applicability import Circumstances, check_applies
from hoptui_trainer.common.batch import resolve_batch
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.job import (
    THREAD_RULE,
    AtLeastOne,
    JobOptions,
    Target,
    UpToMillions,
    check_kept,
    check_positive,
    options_given,
    preset,
    refused_by_option,
    resolve,
)
from hoptui_trainer.common.lr_schedule import SCHEDULE_RULES, settle_warm_up
from hoptui_trainer.common.modes import ShardMode
from hoptui_trainer.common.options import KnobValues, option_name
from hoptui_trainer.lm.config import PRESETS, LMConfig, check_sharded


@dataclass(frozen=True, kw_only=True)
class LMOptions(JobOptions):
    """Options of `hoptui train lm` beside those of every workload.

    Parameters
    ----------
    corpus
        Folder or file to learn from: text, JSON lines, Parquet, or tokens that are ready (.bin) [default: the
        sources of Python's library].
    corpus_mb
        Read at most so many MB of it; 0 is all [default: tiny: 2, else 0].
    text_field
        Field of JSON lines or column of Parquet files that holds the text [default: text, else the only one
        of type string].
    token_dtype
        Type of ready tokens in files without the header of llm.c [default: uint16].
    bytes_per_token
        Bytes of text that a ready token stands for on average; without it, bits a byte are unknown.
    stream
        Read tokens from disk while training; --no-stream keeps them on the device [default: on the device if
        they take at most a tenth of its free memory].
    tokenizer
        Bytes as they are, or byte pairs learned from the corpus [default: tiny: bytes, else bpe].
    vocab_size
        Tokens to learn, and rows of the model's table [default: tiny: 384, else 50,304].
    eval_tokens
        Tokens of the held-out text [default: tiny: 16,384, else 1,048,576].
    until_bpb
        End as soon as the held-out text takes at most so many bits a byte.
    until_loss
        End as soon as the held-out text has at most so many nats a token.
    shard
        What the ranks share out: nothing, gradients and the optimizer's moments, or the weights as well.
    """

    corpus: Path | None = None
    corpus_mb: float | None = None
    text_field: str | None = None
    token_dtype: Literal["uint16", "uint32"] | None = None
    bytes_per_token: float | None = None
    stream: bool | None = None
    tokenizer: Literal["bytes", "bpe"] | None = None
    vocab_size: UpToMillions | None = None
    eval_tokens: AtLeastOne | None = None
    until_bpb: float | None = None
    until_loss: float | None = None
    shard: ShardMode = "none"

    def check(self) -> None:
        if self.corpus_mb is not None and not 0 <= self.corpus_mb < float("inf"):
            raise UsageError(f"--corpus-mb takes a finite number that is not negative, not {self.corpus_mb}")
        if self.bytes_per_token is not None and not 0 < self.bytes_per_token < float("inf"):
            raise UsageError(f"--bytes-per-token takes a positive number, not {self.bytes_per_token}")
        check_positive(self.targets)
        super().check()

    @property
    def targets(self) -> Mapping[str, Target]:
        asked = {"until_bpb": "val_bpb", "until_loss": "val_loss"}
        given = {name: value for name in asked if (value := getattr(self, name)) is not None}
        return {option_name(name): Target(asked[name], value) for name, value in given.items()}


@dataclass(frozen=True)
class LMPlan:
    """What will be run. `notes` names the source of each knob that two sources disagree on."""

    preset: str
    name: str
    seed: int
    config: LMConfig
    notes: tuple[str, ...] = ()


RULES = (*SCHEDULE_RULES, THREAD_RULE)
"""When options and knobs have an effect."""
FIXED = ("corpus_mb", "tokenizer", "vocab_size", "eval_tokens")
"""Options that a run keeps: its weights and its results would mean something else."""


def resolve_job(
    job: LMOptions, knobs: KnobValues, saved: Mapping[str, Any] | None, *, world: int, on_gpu: bool
) -> LMPlan:
    """Command line before checkpoint before preset.

    Raises:
        UsageError: an unknown preset, a value that a knob does not take, sizes that do not fit together, or
            an option that would make the resumed run another one.
    """
    chosen = job.preset or (saved["preset"] if saved else "124m" if on_gpu else "tiny")
    default = LMConfig(**preset(PRESETS, chosen))
    given = {name: value for name in FIXED if (value := getattr(job, name)) is not None}
    if saved is None:
        default = dataclasses.replace(default, **given)
        name, seed = job.name or f"lm-{chosen}", job.seed or 0
    else:
        name, seed = job.name or saved["name"], saved["seed"]
        fixed = ((option_name(option), value, saved["config"][option]) for option, value in given.items())
        check_kept((("--preset", job.preset, saved["preset"]), ("--seed", job.seed, seed), *fixed))
    config, notes = resolve(default, saved["config"] if saved else None, knobs)
    settle_warm_up(config, knobs)
    check_applies(RULES, Circumstances(config=config, on_gpu=on_gpu), {**options_given(job), **knobs})
    resolve_batch(
        config,
        knobs,
        world,
        total="batch_tokens",
        each=config.seq_len,
        of=f"sequences of {config.seq_len} tokens",
    )
    with refused_by_option():
        config.check(world)
    if job.shard != "none":
        if world == 1:
            raise UsageError(f"--shard {job.shard}: there is one rank only; start several with torchrun")
        with refused_by_option():
            check_sharded(config, world)
    return LMPlan(chosen, name, seed, config, notes)
