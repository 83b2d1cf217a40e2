"""No option is accepted without effect: each one is read by code that uses it, or refused.

Options are taken from the parsers, so a new one fails here until it has an effect.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from cyclopts import CycloptsError

import hoptui
from hoptui.domain.facts import fact
from hoptui.presentation.sentences import sentence
from hoptui.protocol.messages import Command, Outcome
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.memory_budget import set_limit
from hoptui_trainer.common.options import declared
from hoptui_trainer.common.restart import Restart
from hoptui_trainer.lm import declarations as lm_declarations
from hoptui_trainer.lm import job as lm_job
from hoptui_trainer.ppo import declarations as ppo_declarations
from hoptui_trainer.ppo import evaluate
from hoptui_trainer.ppo import job as ppo_job
from hoptui_trainer.vision import declarations as vision_declarations
from hoptui_trainer.vision import images
from hoptui_trainer.vision import job as vision_job
from hoptui_trainer.vision import train as vision
from tests.run_state import run_state
from tests.trainer.option_reads import (
    WORKLOADS,
    Option,
    Read,
    carrier,
    fields_of,
    options,
    parsed,
    plan_values,
    resolved,
    train,
    values,
)

Given = Mapping[str, object]
"""Options by name; True and False are flags."""

ELSEWHERE = {
    ("lm", "shard"): "several ranks (tests/trainer/test_sharded_ranks.py)",
    ("vision", "pin_memory"): "a GPU (tests/trainer/gpu/test_vision.py)",
}
"""Options that a run of one process without a GPU refuses, and what they need."""
CONTINGENT = {"smaller_model_on_oom": "short of memory"}
"""Options for something that may happen in any run, and the variant in which it does."""

RULED = {
    "ppo": (ppo_job, ppo_declarations),
    "lm": (lm_job, lm_declarations),
    "vision": (vision_job, vision_declarations),
}
"""The modules that follow the rules of a workload."""

SMALL: Mapping[str, Given] = {
    "ppo": {"preset": "tiny", "iterations": 3},
    "lm": {
        "preset": "tiny",
        "iterations": 3,
        "corpus_mb": 0,
        "eval_tokens": 200,
        "batch_tokens": 64,
        "seq_len": 16,
        "d_model": 16,
        "layers": 1,
        "compile": "off",
    },
    "vision": {"preset": "tiny", "iterations": 3, "batch_size": 16, "d_model": 16, "layers": 1},
}
FULL: Given = {"checkpoint_dir": "checkpoints", "evaluate_every": 1, "checkpoint_every": 2}
BARE: Given = {"evaluate_every": 0}
TRACED: Given = {"profile_steps": 1, "profile_wait": 0, "profile_warmup": 1}
CORPUS: Given = {"corpus": "texts"}
FILES: Given = {"data": "images", "image_size": 8, "patch_size": 4}
VARIANTS: Mapping[str, Mapping[str, Given]] = {
    "ppo": {
        "mlp": FULL,
        "bare": BARE,
        "traced": {**BARE, **TRACED},
        "transformer": {**BARE, "policy": "tiny", "context": 4},
        "gymnasium": {**BARE, "env": "gymnasium:CartPole-v1"},
        "short of memory": {**BARE, "smaller_model_on_oom": True},
    },
    "lm": {
        "text": {**FULL, **CORPUS},
        "bare": {**BARE, **CORPUS},
        "traced": {**BARE, **CORPUS, **TRACED},
        "fields": {**FULL, "corpus": "lines"},
        "ready": {**FULL, "corpus": "tokens.bin"},
        "wsd": {**BARE, **CORPUS, "schedule": "wsd"},
        "constant": {**BARE, **CORPUS, "schedule": "constant"},
        "short of memory": {**BARE, **CORPUS, "smaller_model_on_oom": True, "d_model": 64},
    },
    "vision": {
        "digits": FULL,
        "bare": BARE,
        "traced": {**BARE, **TRACED},
        "synthetic": {**BARE, "data": "synthetic"},
        "files": {**FULL, **FILES, "num_workers": 1},
        "no workers": {**FULL, **FILES, "num_workers": 0},
        "clips": {**BARE, "data": "synthetic", "frames": 4},
        "wsd": {**BARE, "schedule": "wsd"},
        "constant": {**BARE, "schedule": "constant"},
        "short of memory": {**BARE, "smaller_model_on_oom": True, "d_model": 64},
    },
}
VALUES: Mapping[str, str] = {
    "preset": "",
    "memory_limit": "50%",
    "corpus": "lines",
    "text_field": "content",
    "data": "synthetic",
    "env": "Pendulum-v1",
    "resume": "checkpoints",
    "eval_tokens": "100",
    "vocab_size": "400",
    "until_accuracy": "0.9",
    "image_size": "24",
    "patch_size": "2",
    "frames": "2",
    "bytes_per_token": "3.5",
}
"""Values of options that a type does not name."""


@dataclass
class Found:
    """What was found of one workload."""

    accepted: set[str] = field(default_factory=set)
    without_effect: list[tuple[str, str]] = field(default_factory=list)
    nameless: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, JSON lines, ready tokens and images."""
    root = tmp_path_factory.mktemp("options")
    (root / "texts").mkdir()
    (root / "lines").mkdir()
    for number in range(40):
        text = " ".join(str(number * n % 97) for n in range(60))
        (root / "texts" / f"{number}.txt").write_text(text)
        (root / "lines" / f"{number}.jsonl").write_text(json.dumps({"content": text}) + "\n")
        image = root / "images" / ("even", "odd")[number % 2] / f"{number}.npy"
        image.parent.mkdir(parents=True, exist_ok=True)
        np.save(image, np.full((8, 8), number, np.uint8))
    np.arange(4000, dtype=np.uint16).__mod__(200).astype(np.uint16).tofile(root / "tokens.bin")
    return root


@pytest.fixture(autouse=True)
def _here(places: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(places)
    monkeypatch.setenv("XDG_CACHE_HOME", str(places / "cache"))
    monkeypatch.setattr(evaluate, "EPISODES", 2)
    monkeypatch.setattr(evaluate, "GYM_EPISODES", 1)
    monkeypatch.setattr(images, "POOL_BYTES", 1 << 14)
    monkeypatch.setattr(vision, "digits", functools.cache(images.digits))
    yield
    set_limit(None)


def words(given: Given) -> list[str]:
    found = []
    for name, value in given.items():
        option = "--" + name.replace("_", "-")
        found += [option] if value is True else [option, str(value)]
    return found


def with_option(given: Given, option: Option, new: list[str]) -> list[str]:
    return [*words({name: value for name, value in given.items() if name != option.name}), *new]


@contextlib.contextmanager
def short_memory(loop: Any) -> Iterator[None]:
    """In here the first model does not fit."""
    prepare, tried = loop.prepare, []

    def first_short(*arguments: Any) -> Any:
        tried.append(arguments)
        if len(tried) == 1:
            raise MemoryError("too much")
        return prepare(*arguments)

    with mock.patch.object(loop, "prepare", first_short):
        yield


def read_by(workload: str, variant: str, line: list[str]) -> set[Read]:
    short = (
        short_memory(WORKLOADS[workload].loop) if variant == "short of memory" else contextlib.nullcontext()
    )
    with short:
        return train(workload, line)


def first_accepted(
    workload: str, given: Given, option: Option, now: object, found: Found
) -> tuple[list[str], Any] | None:
    """A command line with another value of the option, and its plan; None if all are refused."""
    own = {**VALUES, "preset": next(name for name in WORKLOADS[workload].presets if name != "tiny")}
    for new in values(option, WORKLOADS[workload], own, now):
        line = with_option(given, option, new)
        try:
            return line, resolved(workload, line)
        except (UsageError, CycloptsError) as error:
            if not re.search(r"--[a-z]", str(error)):
                found.nameless.append(f"{' '.join(new)}: {error}")
    return None


def effect(workload: str, option: Option, read: set[Read], before: Any, after: Any) -> bool:
    """Whether a run reads the option, or what is resolved from it."""
    if (carrier(workload, option.name), option.name) in read:
        return True
    old, new = plan_values(before), plan_values(after)
    moved = [name for name in new if new[name] != old[name]]
    return any((carrier(workload, name), name) in read for name in moved)


def examined(workload: str, variants: Mapping[str, Given]) -> Found:
    """What is found of all options of a workload in these variants."""
    found, known, sources = Found(), options(workload), set()
    specific = fields_of(WORKLOADS[workload].options) - fields_of(WORKLOADS[workload].options.__mro__[1])
    for variant, fields in variants.items():
        given = {**SMALL[workload], **fields}
        base = words(given)
        plan, read = resolved(workload, base), read_by(workload, variant, base)
        job, _ = parsed(workload, base)
        source = given.get("corpus") or given.get("data")
        is_new = source not in sources
        sources.add(source)
        found.accepted |= {name for name in given if (carrier(workload, name), name) in read}
        for option in known:
            now = plan_values(plan).get(option.name, getattr(job, option.name, None))
            if (accepted := first_accepted(workload, given, option, now, found)) is None:
                continue
            line, other = accepted
            seen = read
            if is_new and option.name in specific:  # some are refused when data is read
                try:
                    seen = read | read_by(workload, variant, line)
                except UsageError as error:
                    if option.written not in str(error):
                        found.nameless.append(f"{option.written}: {error}")
                    continue
            if effect(workload, option, seen, plan, other):
                found.accepted.add(option.name)
            elif CONTINGENT.get(option.name, variant) == variant:
                found.without_effect.append((variant, option.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_option_has_an_effect_or_is_refused(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = examined(workload, VARIANTS[workload])
    needed = {name: why for (of, name), why in ELSEWHERE.items() if of == workload}
    with capsys.disabled():
        print(f"\n{workload}: not run here: {needed}" if needed else "", end="")
    assert found.nameless == []
    assert found.without_effect == []
    assert {option.name for option in options(workload)} - found.accepted == set(needed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "variant", "names"),
    [
        ("ppo", "mlp", {"env_workers", "context", "d_model", "checkpointing"}),
        ("ppo", "transformer", {"hidden"}),
        ("lm", "constant", {"cooldown", "final_lr"}),
        ("vision", "digits", {"num_workers", "prefetch_factor", "pin_memory", "cooldown"}),
        ("vision", "no workers", {"prefetch_factor"}),
    ],
)
def test_an_option_without_effect_that_is_not_refused_is_found(
    workload: str, variant: str, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tests of this file can fail."""
    for module in RULED[workload]:
        monkeypatch.setattr(module, "RULES", ())
    found = examined(workload, {variant: VARIANTS[workload][variant]})
    assert {(variant, name) for name in names} <= set(found.without_effect)


@dataclass
class Turned:
    """A run, and what became of the knobs that were set in it."""

    read: set[Read]
    knobs: set[str]
    outcomes: list[Outcome]


def turned(workload: str, variant: str, rounds: list[Mapping[str, Any]]) -> Turned:
    """Train a variant, and set knobs after its first iterations, as many as there are `rounds`."""
    loop, runs, outcomes, left = WORKLOADS[workload].loop, [], [], list(rounds)
    step = "learned" if workload == "ppo" else "update"
    connect, plain = hoptui.connect, getattr(loop, step)

    def connected(*arguments: Any, **fields: Any) -> hoptui.Run:
        runs.append(connect(*arguments, **fields))
        return runs[-1]

    def steered(*arguments: Any) -> Any:
        state = run_state(runs[-1])
        for knob, value in (left.pop(0) if left else {}).items():
            command = Command(
                id=f"{knob} {value}", run=state.id, epoch=state.epoch, verb="set", knob=knob, value=value
            )
            outcomes.extend(state.inbox.receive(command, time.monotonic(), state.step + 1))
        return plain(*arguments)

    given = {**SMALL[workload], **VARIANTS[workload][variant], "iterations": len(rounds) + 2}
    with (
        mock.patch.object(hoptui, "connect", connected),
        mock.patch.object(loop, step, steered),
        mock.patch.object(Restart, "due", return_value=False),
    ):
        read = read_by(workload, variant, words(given))
    state = run_state(runs[-1])
    return Turned(read, set(state.declarations.knobs), outcomes + state.inbox.collect_outcomes())


def answer(outcome: Outcome) -> str:
    """What `hoptui set` prints of an outcome."""
    return sentence(fact(outcome.code, **outcome.fields))


@pytest.mark.parametrize(("workload", "variant"), [(w, v) for w in VARIANTS for v in VARIANTS[w]])
def test_a_knob_without_effect_is_not_declared_or_refuses_a_change(workload: str, variant: str) -> None:
    config = WORKLOADS[workload].config
    first = turned(workload, variant, [])
    idle = {name for name, _, _ in declared(config) if (carrier(workload, name), name) not in first.read}
    idle -= {"grad_accum"}  # which is read as micro_batch
    changes = {name: _changed(config, name) for name in idle & first.knobs}
    again = turned(workload, variant, [changes])
    taken = [outcome for outcome in again.outcomes if outcome.stage == "applied"]
    assert taken == []
    said = {
        outcome.fields["knob"]: answer(outcome) for outcome in again.outcomes if outcome.stage == "failed"
    }
    assert said.keys() == changes.keys()
    assert all(PLAIN.fullmatch(text) for text in said.values()), said


PLAIN = re.compile(r"(?!.*(--[a-z]|Error\b|Exception\b))(?s:.+)")
"""An answer without an option and without the class of an exception."""


def _changed(config: type, name: str) -> Any:
    """Another value of a knob than its default."""
    knob = next(knob for other, _, knob in declared(config) if other == name)
    now = getattr(config(), name)
    if knob.choices:
        return next(choice for choice in knob.choices if choice != now)
    return not now if isinstance(now, bool) else type(now)(now / 2 if now > (knob.min or 0) else knob.max)


def bad_values(knob: hoptui.Knob, kind: type) -> list[Any]:
    """Values that a knob does not take: of another type, beyond its bounds or choices."""
    if kind is bool:
        return ["on"]
    if knob.choices:
        return [3, "nothing"]
    return ["many", (knob.min or 0) - 1, (knob.max or 0) * 2 + 1]


@pytest.mark.parametrize(
    ("workload", "variant", "not_here"),
    [
        ("ppo", "mlp", {"precision": "tf32"}),
        ("ppo", "transformer", {"precision": "tf32", "d_model": 33, "heads": 3, "layers": 0}),
        ("lm", "text", {"precision": "fp8", "d_model": 17, "heads": 7, "cooldown": 0.5}),
        ("vision", "files", {"precision": "tf32", "d_model": 33, "heads": 7, "cooldown": 0.5}),
    ],
)
def test_every_knob_refuses_bad_values_in_words_of_knobs(
    workload: str, variant: str, not_here: Mapping[str, Any]
) -> None:
    """Through the real setters; `not_here` are values that are allowed, but not in this run."""
    known = turned(workload, variant, []).knobs
    wrong = {
        name: bad_values(knob, kind)
        for name, kind, knob in declared(WORKLOADS[workload].config)
        if name in known
    }
    rounds = [{name: bad[place] for name, bad in wrong.items() if place < len(bad)} for place in range(3)]
    run = turned(workload, variant, [*rounds, not_here])
    refused = [outcome for outcome in run.outcomes if outcome.stage in ("failed", "rejected")]
    asked = [f"{name} {value}" for each in (*rounds, not_here) for name, value in each.items()]
    assert sorted(outcome.id for outcome in refused) == sorted(asked)
    for outcome in refused:
        assert outcome.id.split()[0] in answer(outcome)
        assert PLAIN.fullmatch(answer(outcome)), answer(outcome)


@pytest.mark.parametrize("workload", ["lm", "vision"])
def test_a_library_that_is_missing_is_told_in_words_of_knobs(
    workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    [outcome] = [
        outcome
        for outcome in turned(workload, "bare", [{"optimizer": "adamw8bit"}]).outcomes
        if outcome.stage != "scheduled" and outcome.stage != "accepted"
    ]
    assert outcome.stage == "failed"
    assert PLAIN.fullmatch(answer(outcome)), answer(outcome)
    assert "optimizer adamw8bit" in answer(outcome)


@pytest.mark.parametrize("workload", ["ppo", "lm", "vision"])
def test_what_only_the_cpu_does_is_refused_on_a_gpu(workload: str) -> None:
    with pytest.raises(UsageError, match=r"^--threads: the GPU computes"):
        resolved(workload, ["--preset", "tiny", "--threads", "2"], on_gpu=True)
    resolved(workload, ["--preset", "tiny", "--threads", "2"])
    resolved("ppo", ["--preset", "tiny", "--threads", "2", "--rollout-device", "cpu"], on_gpu=True)


@pytest.mark.parametrize("name", ["--keep-best", "--no-keep-best"])
def test_the_best_weights_need_evaluations_and_a_folder(name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} needs a folder: --checkpoint-dir"):
        resolved("lm", ["--preset", "tiny", name])
    with pytest.raises(UsageError, match=f"^{name} needs evaluations: --evaluate-every"):
        resolved("lm", ["--preset", "tiny", name, "--evaluate-every", "0", "--checkpoint-dir", "best"])
    resolved("lm", ["--preset", "tiny", name, "--checkpoint-dir", "best"])
