"""A corpus of a few kilobytes and the smallest model, tokenised into a cache of the test's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hoptui_trainer.common.ranks import ALONE
from hoptui_trainer.lm.config import LMConfig, preset_config
from hoptui_trainer.lm.job import LMOptions
from hoptui_trainer.lm.state import LMState
from hoptui_trainer.lm.text import Text, prepare_text

WORDS = (
    "def",
    "return",
    "lambda",
    "yield",
    "class",
    "import",
    "from",
    "while",
    "token",
    "tensor",
    "batch",
    "loss",
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def corpus_folder(tmp_path: Path) -> Path:
    """Sixty files of random words."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    draw = random.Random(7)
    for number in range(60):
        (folder / f"{number:02d}.txt").write_text(" ".join(draw.choices(WORDS, k=40)) + "\n")
    return folder


def small_config(**fields: Any) -> LMConfig:
    sizes = {"d_model": 16, "layers": 2, "heads": 2, "seq_len": 16, "batch_tokens": 128, "eval_tokens": 500}
    return LMConfig(**{**vars(preset_config("tiny")), "corpus_mb": 0.0, **sizes, **fields})


@pytest.fixture
def small_text(corpus_folder: Path) -> Text:
    job = LMOptions(corpus=corpus_folder)
    return prepare_text(job, small_config(), ALONE, torch.device("cpu"), quiet)


def quiet(what: str, done: float) -> None:
    """Progress that nobody reads."""


@pytest.fixture
def make_state(small_text: Text) -> Callable[..., LMState]:
    """Makes the state of a small run on this process's CPU; keyword arguments are fields of its config."""

    def make(seed: int = 0, **fields: Any) -> LMState:
        return LMState(small_config(**fields), seed, torch.device("cpu"), ALONE, small_text.streams)

    return make
