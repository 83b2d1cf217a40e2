"""A smaller model where memory is too short: which one, who agrees to it, and what else helps."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hoptui
from hoptui_trainer.common.ranks import ALONE, RankGroup
from hoptui_trainer.common.remedies import remedies
from hoptui_trainer.common.smaller_model import Consent, ask, smaller_model
from hoptui_trainer.lm.config import LMConfig, preset_config
from hoptui_trainer.lm.job import LMOptions
from hoptui_trainer.ppo.config import PPOConfig, model_sizes, not_of
from hoptui_trainer.ppo.memory import RolloutMemoryError
from hoptui_trainer.vision.config import VisionConfig
from tests.run_state import run_state

CPU = torch.device("cpu")


def transformer() -> PPOConfig:
    config = PPOConfig(policy="h100-after")
    sizes: Any = model_sizes(config)
    return dataclasses.replace(config, **sizes)


@pytest.mark.parametrize(
    ("config", "smaller"),
    [
        (LMConfig(d_model=1024, layers=24, heads=8), {"d_model": 512, "heads": 4}),
        (LMConfig(d_model=96, layers=2, heads=3), {"d_model": 48, "heads": 1}),
        (LMConfig(d_model=16, layers=4, heads=2), {"layers": 2}),  # no narrower one is allowed
        (LMConfig(d_model=16, layers=1, heads=2), {}),
        (VisionConfig(d_model=192, heads=3), {"d_model": 96, "heads": 1}),
        (PPOConfig(hidden=256), {"hidden": 128}),
        (PPOConfig(hidden=1), {}),
        (transformer(), {"d_model": 512, "heads": 8, "ff": 2048}),
    ],
)
def test_a_smaller_model_has_half_the_width_or_half_the_layers(config: Any, smaller: dict[str, int]) -> None:
    without = not_of(config.policy) if isinstance(config, PPOConfig) else ()

    def check(found: Any) -> None:
        found.check() if isinstance(found, PPOConfig) else found.check(1)

    assert smaller_model(config, check, without) == smaller


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """What is written here is typed on the terminal."""
    read, write = os.pipe()
    with os.fdopen(read) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        yield write
    os.close(write)


@pytest.mark.parametrize(
    ("answer", "agreed"),
    [("y\n", True), ("Yes\n", True), ("n\n", False), ("\n", False), ("yesterday\n", False)],
)
def test_only_yes_is_a_yes(typed: int, answer: str, agreed: bool) -> None:
    os.write(typed, answer.encode())
    assert ask("?", lambda: False) is agreed


def test_no_answer_is_a_no(typed: int) -> None:
    assert not ask("?", lambda: False, seconds=0)
    assert not ask("?", lambda: True)  # the run is asked to stop meanwhile


class Other(RankGroup):
    """Rank 1, beside a rank 0 that says `first`."""

    first: bool

    def gather(self, value: object) -> list[Any]:
        assert value is False  # it decides nothing
        return [self.first, value]


class Case:
    """A run whose model is too large from a width of `fits` on."""

    def __init__(self, ranks: RankGroup = ALONE, fits: int = 64, **options: Any) -> None:
        self.run, self.lines = hoptui.connect("unit"), list[str]()
        self.fits, self.tried = fits, list[LMConfig]()
        job = LMOptions(**options)
        self.consent = Consent(
            *(job, self.run, ranks, CPU, lambda config: config.check(1), self.lines.append),
            other=(RolloutMemoryError,),
        )

    def prepare(self, plan: Planned) -> LMConfig:
        self.tried.append(plan.config)
        plan.config.micro_batch = 7  # chosen, and no use for the next attempt
        if plan.config.d_model > self.fits:
            raise MemoryError("too large")
        return plan.config


@dataclasses.dataclass(frozen=True)
class Planned:
    config: LMConfig


def test_models_shrink_until_one_fits_if_that_is_allowed() -> None:
    case = Case(smaller_model_on_oom=True)
    plan, found = case.consent.fitted(Planned(preset_config("350m")), case.prepare)
    assert [config.d_model for config in case.tried] == [1024, 512, 256, 128, 64]
    assert plan.config is found is case.tried[-1]
    assert (found.d_model, found.heads, found.layers) == (64, 1, 24)
    assert [note.level for note in run_state(case.run).notes] == ["warning"] * 4
    assert re.findall(r"[\d,]+\d", case.lines[0])[:2] == ["1,024", "512"]


@pytest.mark.parametrize("answer", [True, False])
def test_on_a_terminal_it_is_asked_with_the_figures(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    case, asked = Case(), list[tuple[str, str]]()

    def answered(text: str, stopped: object) -> bool:
        asked.append((text, run_state(case.run).phases.current))
        return answer

    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("hoptui_trainer.common.smaller_model.ask", answered)
    found = case.consent.smaller(preset_config("350m"), "too large")
    assert found == ({"d_model": 512, "heads": 4} if answer else {})
    ((text, phase),) = asked
    assert phase == "question"
    for part in ("too large", "GB free", "d_model 1,024 → 512", "weights"):
        assert part in text


@pytest.mark.parametrize("error", [MemoryError("too large"), torch.OutOfMemoryError("too large")])
def test_without_a_terminal_and_the_option_nothing_shrinks(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Case, "prepare", raising(error))
    case = Case(memory_limit="3GB")
    with pytest.raises(MemoryError, match=r"too large; .* --smaller-model-on-oom; 3GB .*--memory-limit"):
        case.consent.fitted(Planned(preset_config("350m")), case.prepare)


@pytest.mark.parametrize(
    ("error", "raised"), [(RolloutMemoryError("rollout"), MemoryError), (ValueError(), None)]
)
def test_what_a_smaller_model_does_not_help_against_is_raised(
    error: Exception, raised: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Case, "prepare", raising(error))
    case = Case(smaller_model_on_oom=True)
    with pytest.raises(raised or type(error), match=r"^(rollout)?$"):
        case.consent.fitted(Planned(preset_config("350m")), case.prepare)
    assert not case.lines


def raising(error: Exception) -> Any:
    def prepare(*_: object) -> None:
        raise error

    return prepare


@pytest.mark.parametrize("first", [True, False])
def test_all_ranks_do_what_the_first_one_says(first: bool) -> None:
    ranks = Other(1, 2, 1, 2)
    object.__setattr__(ranks, "first", first)
    case = Case(ranks, smaller_model_on_oom=True)
    assert bool(case.consent.smaller(preset_config("350m"), "too large")) is first


def test_an_error_that_other_ranks_do_not_have_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Case, "prepare", raising(torch.OutOfMemoryError("here")))
    case = Case(Other(1, 2, 1, 2), smaller_model_on_oom=True)
    with pytest.raises(MemoryError, match=r"here; .*--micro-batch"):
        case.consent.fitted(Planned(preset_config("350m")), case.prepare)


def test_remedies_are_those_that_a_run_has_and_does_not_use() -> None:
    lm = remedies(LMConfig())
    assert re.findall(r"--[\w-]+", lm) == [
        *("--micro-batch", "--grad-accum", "--checkpointing", "--optimizer"),
        *("--batch-tokens", "--seq-len", "--d-model", "--layers", "--smaller-model-on-oom"),
    ]
    used = LMConfig(checkpointing=True, optimizer="adamw8bit", micro_batch=1, layers=1)
    assert re.findall(r"--[\w-]+", remedies(used)) == [
        *("--grad-accum", "--batch-tokens", "--seq-len", "--d-model", "--smaller-model-on-oom")
    ]
    mlp = PPOConfig()
    assert re.findall(r"--[\w-]+", remedies(mlp, not_of(mlp.policy))) == [
        *("--grad-accum", "--minibatch-size", "--rollout-len", "--num-envs", "--hidden"),
        "--smaller-model-on-oom",
    ]
