from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.options import KnobValues, declared
from hoptui_trainer.lm.config import PRESETS, LMConfig, preset_config
from hoptui_trainer.lm.job import LMOptions, LMPlan, resolve_job
from tests.golden import Golden


def settled(
    knobs: KnobValues | None = None,
    saved: dict[str, Any] | None = None,
    *,
    world: int = 1,
    on_gpu: bool = False,
    **options: Any,
) -> LMPlan:
    return resolve_job(LMOptions(**options), knobs or {}, saved, world=world, on_gpu=on_gpu)


def held(**fields: Any) -> dict[str, Any]:
    """The part of a checkpoint that decides what is run."""
    config = dataclasses.asdict(dataclasses.replace(preset_config("tiny"), **fields))
    return {"preset": "tiny", "seed": 5, "name": "mine", "config": config}


def test_every_preset_is_within_its_knobs_bounds() -> None:
    for name in PRESETS:
        config = preset_config(name)
        for knob_name, _, knob in declared(LMConfig):
            knob.check(knob_name, getattr(config, knob_name))


def test_the_knobs_are_the_ones_that_were_agreed() -> None:
    found = {name: (knob.effect, knob.cost) for name, _, knob in declared(LMConfig)}
    shape, speed = ("batch_tokens", "seq_len"), ("micro_batch", "grad_accum")
    assert {name: found[name] for name in speed} == dict.fromkeys(speed, ("speed", "shape"))
    assert {name: found[name] for name in shape} == dict.fromkeys(shape, ("learning", "shape"))
    for name in ("precision", "compile", "checkpointing"):
        assert found[name] == ("speed", "rebuild")
    for name in ("d_model", "layers", "heads"):
        assert found[name] == ("learning", "restart")
    for name in ("lr", "weight_decay", "grad_clip", "schedule", "warmup", "cooldown", "final_lr"):
        assert found[name] == ("learning", "free")


def test_the_preset_follows_the_device_unless_it_is_given() -> None:
    assert [settled().preset, settled(on_gpu=True).preset] == ["tiny", "124m"]
    plan = settled({"lr": 1e-3}, preset="350m", vocab_size=1000)
    assert (plan.name, plan.config.layers, plan.config.lr, plan.config.vocab_size) == (
        "lm-350m",
        24,
        1e-3,
        1000,
    )


def test_the_command_line_wins_over_the_checkpoint_and_that_over_the_preset(golden: Golden) -> None:
    plan = settled({"lr": 1e-3}, held(lr=2e-3, grad_clip=0.5))
    assert (plan.preset, plan.name, plan.seed) == ("tiny", "mine", 5)
    assert (plan.config.lr, plan.config.grad_clip) == (1e-3, 0.5)
    golden("".join(f"{note}\n" for note in plan.notes))


def test_pieces_and_their_size_say_how_large_a_batch_is() -> None:
    plan = settled({"micro_batch": 3, "grad_accum": 5}, world=2)
    assert plan.config.batch_tokens == 3 * 5 * 2 * 64
    assert settled({"grad_accum": 4}).config.micro_batch == 2  # of the preset's 8 sequences
    assert settled({"grad_accum": 4, "batch_tokens": 4096}).config.micro_batch == 16
    agreed = settled({"micro_batch": 2, "grad_accum": 4, "batch_tokens": 512})
    assert agreed.config.batch_tokens == 512


REFUSED: tuple[tuple[KnobValues, dict[str, Any], bool, int, str], ...] = (
    ({}, {"preset": "9b"}, False, 1, "--preset 9b"),
    ({"lr": float("nan")}, {}, False, 1, "--lr"),
    ({"precision": "int3"}, {}, False, 1, "--precision"),
    ({"d_model": 66}, {}, False, 1, "--d-model"),
    ({"d_model": 64, "heads": 3}, {}, False, 1, "--d-model"),
    ({"batch_tokens": 64}, {}, False, 2, "--batch-tokens"),
    ({"micro_batch": 2, "grad_accum": 3, "batch_tokens": 512}, {}, False, 1, "--batch-tokens 512"),
    ({}, {"preset": "124m"}, True, 1, "--preset 124m"),
    ({}, {"seed": 6}, True, 1, "--seed 6"),
    ({}, {"tokenizer": "bpe"}, True, 1, "--tokenizer bpe"),
    ({}, {"vocab_size": 512}, True, 1, "--vocab-size 512"),
)
"""Knobs, options, whether there is a checkpoint, ranks, and how the refusal begins."""


def refusal(knobs: KnobValues, options: dict[str, Any], saved: bool, world: int) -> str:
    with pytest.raises(UsageError) as caught:
        settled(knobs, held() if saved else None, world=world, **options)
    return str(caught.value)


@pytest.mark.parametrize(("knobs", "options", "saved", "world", "named"), REFUSED)
def test_what_cannot_be_is_told_by_the_name_of_its_option(
    knobs: KnobValues, options: dict[str, Any], saved: bool, world: int, named: str
) -> None:
    said = refusal(knobs, options, saved, world)
    assert said.startswith(named)
    assert "\n" not in said


def test_each_refusal_is_a_sentence(golden: Golden) -> None:
    sentences = (refusal(knobs, options, saved, world) for knobs, options, saved, world, _ in REFUSED)
    golden("".join(f"{sentence}\n" for sentence in sentences))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"until_bpb": float("nan")}, "--until-bpb"),
        ({"until_bpb": 2.0, "evaluate_every": 0}, "--until-bpb"),
        ({"patience": 2, "evaluate_every": 0}, "--patience"),
        ({"corpus_mb": -1.0}, "--corpus-mb"),
        ({"checkpoint_every": 5}, "--checkpoint-every"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        LMOptions(**options).check()


def test_evaluations_and_traces_have_their_places(tmp_path: Path) -> None:
    job = LMOptions(iterations=10, evaluate_every=4)
    assert [i for i in range(1, 11) if job.evaluation_due(i)] == [4, 8, 10]
    assert not LMOptions(evaluate_every=0, iterations=4).evaluation_due(4)
    assert LMOptions().trace_folder is None
    assert LMOptions(checkpoint_dir=tmp_path).trace_folder == tmp_path
    assert LMOptions(checkpoint_dir=tmp_path, profile_dir=tmp_path / "t").trace_folder == tmp_path / "t"
