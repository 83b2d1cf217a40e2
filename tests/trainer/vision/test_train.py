"""The training loop as a whole: it learns, it is repeatable, and what changes its speed does not change its
results."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from hoptui.protocol.messages import Command, Origin
from hoptui_trainer.common.checkpoint import read_checkpoint
from hoptui_trainer.common.dry_run import DryRun
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.vision import images as rooms
from hoptui_trainer.vision.config import LOADING
from hoptui_trainer.vision.images import Images, Resident
from hoptui_trainer.vision.state import VisionState
from hoptui_trainer.vision.update import evaluate
from tests.golden import Golden
from tests.run_state import run_state
from tests.trainer.printed import MEASURED, printed
from tests.trainer.vision.conftest import SteeredVision, assert_equal, saved, weights

GATE = 0.97
BUDGET = 240
"""Iterations: two to three times what the gate needs."""


@pytest.mark.slow
def test_digits_are_learned(steered_vision: SteeredVision) -> None:
    result = steered_vision.train(
        iterations=BUDGET, evaluate_every=40, until_accuracy=GATE, knobs={"batch_size": 128, "micro_batch": 0}
    )
    assert result.ending == "passed"
    assert result.accuracy is not None
    assert result.accuracy >= GATE


def test_without_a_better_loss_it_ends_early_and_keeps_the_best_weights(
    tmp_path: Path, steered_vision: SteeredVision
) -> None:
    result = steered_vision.train(
        tmp_path, iterations=60, evaluate_every=1, patience=2, knobs={"lr": 0.1, "grad_clip": 100.0}
    )
    rows = [row for row in steered_vision.rows() if "val_loss" in row]
    losses = [row["val_loss"] for row in rows]
    best = losses.index(min(losses))
    assert (result.ending, result.iterations) == ("early-stopped", best + 3)
    assert result.iterations == len(losses) < 60
    assert (result.best_iteration, result.best_val_loss) == (best + 1, losses[best])
    assert (result.best_accuracy, result.accuracy) == (rows[best]["accuracy"], rows[-1]["accuracy"])
    file = tmp_path / "vision-best.pt"
    assert result.best_file == str(file)
    state = steered_vision.state
    state.load_state_dict(read_checkpoint(file, "vision"))
    assert evaluate(state) == {"val_loss": losses[best], "accuracy": rows[best]["accuracy"]}
    # The loss is the mean over the held-out images, one by one.
    images = torch.cat([part.images for part in held_out(state)])
    labels = torch.cat([part.labels for part in held_out(state)])
    with torch.no_grad():
        each = torch.nn.functional.cross_entropy(state.model(images), labels, reduction="none")
    assert len(each) == 360
    assert losses[best] == pytest.approx(float(each.double().mean()), rel=1e-5)


def test_the_learning_rate_has_a_schedule_of_choice(steered_vision: SteeredVision) -> None:
    given = {"lr": 1e-3, "schedule": "wsd", "warmup_steps": 3, "cooldown": 0.5, "final_lr": 0.5}
    steered_vision.after = {5: steered_vision.set(schedule="constant")}
    steered_vision.train(iterations=8, knobs=given)
    found = [row["lr"] for row in steered_vision.rows()]
    falling = 1e-3 * (1 - 0.5 * 2 / 4)
    assert found[:6] == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 8.75e-4, falling])
    assert found[6:] == [1e-3, 1e-3]
    with pytest.raises(UsageError, match=r"^--cooldown"):
        steered_vision.train(knobs={"cooldown": 0.5})


def held_out(state: VisionState) -> list[Images]:
    return list(state.source.held_out(0, 1, 64, state.loading, state.device))


def test_a_loss_can_be_asked_for(steered_vision: SteeredVision) -> None:
    result = steered_vision.train(iterations=60, evaluate_every=20, until_loss=2.29)
    assert (result.ending, result.iterations) == ("passed", 20)
    assert result.val_loss is not None
    assert result.val_loss <= 2.29


def test_without_held_out_images_nothing_can_be_judged(steered_vision: SteeredVision) -> None:
    for given in ({"patience": 2}, {"until_loss": 1.0}, {"until_accuracy": 0.5}):
        [option] = given
        with pytest.raises(UsageError, match=f"--{option.replace('_', '-')}: there are no held-out images"):
            steered_vision.train(data="synthetic", image_size=16, evaluate_every=1, **given)


def test_labels_that_mean_nothing_are_not_learned(
    steered_vision: SteeredVision, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = rooms.digits()
    shuffled = source._train.labels[
        torch.randperm(len(source._train), generator=torch.Generator().manual_seed(0))
    ]
    broken = Resident(
        "digits", 10, Images(source._train.images, shuffled), source._held_out, source.distortion
    )
    monkeypatch.setattr("hoptui_trainer.vision.train.digits", lambda: broken)
    result = steered_vision.train(
        iterations=60, evaluate_every=60, knobs={"batch_size": 128, "micro_batch": 0}
    )
    assert result.accuracy is not None
    assert result.accuracy < 0.4


def test_one_seed_gives_one_result_and_another_seed_another(
    tmp_path: Path, steered_vision: SteeredVision
) -> None:
    before = torch.get_rng_state()
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        steered_vision.train(tmp_path / name, seed=seed, evaluate_every=2 if name == "b" else 0)
    assert torch.equal(torch.get_rng_state(), before)
    assert_equal(tmp_path / "a", tmp_path / "b")
    assert not torch.equal(weights(tmp_path / "a")["head.weight"], weights(tmp_path / "c")["head.weight"])


def test_a_resumed_run_is_bit_for_bit_the_one_that_was_not_interrupted(
    tmp_path: Path, steered_vision: SteeredVision, golden: Golden
) -> None:
    steered_vision.train(tmp_path / "whole", iterations=6)
    steered_vision.train(tmp_path / "half", iterations=6, checkpoint_every=3)
    (tmp_path / "half" / "vision-000000006.ckpt").unlink()
    first = steered_vision.run.id
    result = steered_vision.train(tmp_path / "rest", iterations=6, resume=tmp_path / "half")
    assert_equal(tmp_path / "whole", tmp_path / "rest")
    assert (result.iterations, result.samples) == (6, 6 * 32)
    assert (steered_vision.run.id, run_state(steered_vision.run).epoch) == (first, 2)
    golden(printed(steered_vision.lines), normalize={re.escape(str(tmp_path)): "DIR", **MEASURED})


def test_what_a_resumed_run_keeps_is_not_changed(tmp_path: Path, steered_vision: SteeredVision) -> None:
    steered_vision.train(tmp_path, iterations=1)
    for fields, said in (
        ({"preset": "vit-b"}, "--preset vit-b: the checkpoint's run has tiny"),
        ({"data": "synthetic"}, "--data synthetic: the checkpoint's run has digits"),
        ({"seed": 5}, "--seed 5: the checkpoint's run has 0"),
    ):
        with pytest.raises(UsageError, match=said):
            steered_vision.train(resume=tmp_path, **fields)


def test_other_images_are_another_run(
    tmp_path: Path, image_folder: Path, steered_vision: SteeredVision
) -> None:
    steered_vision.train(tmp_path / "out", data=str(image_folder), iterations=1)
    (image_folder / "even" / "000.npy").unlink()
    with pytest.raises(UsageError, match=r"its run has \d+ images, and now there are \d+"):
        steered_vision.train(resume=tmp_path / "out")


def test_micro_batches_change_no_result(tmp_path: Path, steered_vision: SteeredVision) -> None:
    steered_vision.train(tmp_path / "whole")
    losses = [row["loss"] for row in steered_vision.rows()]
    steered_vision.after = {0: steered_vision.set(grad_accum=8)}
    steered_vision.train(tmp_path / "cut", knobs={"micro_batch": 10})
    assert [row["loss"] for row in steered_vision.rows()] == pytest.approx(losses, rel=1e-5)
    assert_equal(tmp_path / "whole", tmp_path / "cut", tolerance=2e-5)
    [outcome] = steered_vision.outcomes().values()
    assert (outcome.stage, outcome.effective) == ("applied", 8)
    assert run_state(steered_vision.run).declarations.knobs["micro_batch"].value == 4


def test_knobs_take_effect_at_the_next_boundary_and_are_read_back(
    tmp_path: Path, steered_vision: SteeredVision
) -> None:
    wanted = {
        "batch_size": 48,
        "micro_batch": 12,
        "lr": 1e-4,
        "weight_decay": 0.2,
        "grad_clip": 0.0,
        "precision": "bf16",
    }
    steered_vision.after = {1: steered_vision.set(**wanted)}
    steered_vision.train(tmp_path)
    outcomes = steered_vision.outcomes()
    assert {outcome.stage for outcome in outcomes.values()} == {"applied"}
    assert {outcome.step for outcome in outcomes.values()} == {2}
    assert {name: outcome.effective for name, outcome in outcomes.items()} == wanted
    assert [row["samples"] for row in steered_vision.rows()] == [32, 32, 48, 48]
    assert [group["weight_decay"] for group in steered_vision.state.optimizer.param_groups] == [0.2, 0.0]
    assert steered_vision.state.precision == "bf16"
    assert steered_vision.rows()[2]["lr"] < 1e-4 + 1e-9
    config = saved(tmp_path)["config"]
    assert (config["batch_size"], config["micro_batch"], config["precision"]) == (48, 12, "bf16")


def test_checkpointing_changes_no_result_while_the_run_goes_on(steered_vision: SteeredVision) -> None:
    steered_vision.train()
    losses = [row["loss"] for row in steered_vision.rows()]
    steered_vision.after = {1: steered_vision.set(checkpointing=True)}
    steered_vision.train()
    assert [row["loss"] for row in steered_vision.rows()] == pytest.approx(losses, abs=1e-6)
    assert steered_vision.outcomes()["checkpointing"].stage == "applied"
    assert steered_vision.state.model.checkpointing


@pytest.mark.parametrize(("micro_batch", "cut"), [(0, (64, 1)), (8, (8, 8))])
def test_a_micro_batch_that_was_the_whole_batch_follows_it_unless_somebody_chose_it(
    steered_vision: SteeredVision, micro_batch: int, cut: tuple[int, int]
) -> None:
    steered_vision.after = {1: steered_vision.set(batch_size=64)}
    steered_vision.train(knobs={"batch_size": 8, "micro_batch": micro_batch})
    handles = run_state(steered_vision.run).declarations.knobs
    assert steered_vision.outcomes()["batch_size"].stage == "applied"
    assert [row["samples"] for row in steered_vision.rows()] == [8, 8, 64, 64]
    assert (handles["micro_batch"].value, handles["grad_accum"].value) == cut
    assert steered_vision.state.pieces.micro_batch == cut[0]


@pytest.mark.parametrize(("kind", "cut"), [("tuner", (64, 1)), ("person", (8, 8))])
def test_a_micro_batch_that_the_tuner_made_the_whole_batch_follows_it(
    steered_vision: SteeredVision, kind: Any, cut: tuple[int, int]
) -> None:
    steered_vision.after = {
        0: lambda: steered_vision.ask("set", knob="micro_batch", value=8, origin=Origin(kind=kind)),
        1: steered_vision.set(batch_size=64),
    }
    steered_vision.train(knobs={"batch_size": 8, "micro_batch": 4})
    handles = run_state(steered_vision.run).declarations.knobs
    assert (handles["micro_batch"].value, handles["grad_accum"].value) == cut


def test_what_loads_nothing_has_no_workers_to_set(steered_vision: SteeredVision) -> None:
    steered_vision.train(iterations=1)
    state = run_state(steered_vision.run)
    knobs = set(state.declarations.knobs)
    assert not knobs & set(LOADING)
    assert "batch_size" in knobs
    wanted = Command(
        id="a", run=steered_vision.run.id, epoch=state.epoch, verb="set", knob="num_workers", value=2
    )
    [outcome] = state.inbox.receive(wanted, 0.0, 1)
    assert (outcome.stage, outcome.code, outcome.fields["knob"]) == (
        "rejected",
        "unknown_knob",
        "num_workers",
    )


def test_a_patch_size_is_kept_and_makes_another_model(
    tmp_path: Path, steered_vision: SteeredVision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "POOL_BYTES", 1 << 14)
    steered_vision.train(tmp_path, data="synthetic", image_size=24, patch_size=12, iterations=1)
    assert steered_vision.state.model.shape.tokens == 4
    assert saved(tmp_path)["config"]["patch_size"] == 12
    with pytest.raises(UsageError, match="--patch-size 8: the checkpoint's run has 12, and keeps it"):
        steered_vision.train(resume=tmp_path, patch_size=8)


def test_many_patches_are_told_before_anything_is_measured(
    steered_vision: SteeredVision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "POOL_BYTES", 1 << 14)
    steered_vision.train(data="synthetic", image_size=96, iterations=1, knobs={"batch_size": 1, "layers": 1})
    assert steered_vision.lines[0] == (
        "576 patches an image: attention takes 60% of the FLOPs; --patch-size 6 makes 256 and 40%"
    )
    steered_vision.train(iterations=1)
    assert not any("FLOPs" in line for line in steered_vision.lines)


def test_what_was_left_open_is_left_open_in_checkpoints(
    tmp_path: Path, steered_vision: SteeredVision
) -> None:
    steered_vision.train(tmp_path / "open", iterations=1, knobs={"micro_batch": 0})
    steered_vision.train(tmp_path / "chosen", iterations=1, knobs={"compile": "off"})
    left_open, chosen = saved(tmp_path / "open")["config"], saved(tmp_path / "chosen")["config"]
    assert (left_open["micro_batch"], left_open["precision"], left_open["compile"]) == (0, "auto", "auto")
    assert (chosen["micro_batch"], chosen["precision"], chosen["compile"]) == (32, "auto", "off")


@pytest.mark.slow
def test_each_size_of_a_piece_is_compiled_once(
    tmp_path: Path, steered_vision: SteeredVision, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = torch.compile

    def without_code(function: Any, *, fullgraph: bool, dynamic: bool, mode: str) -> Any:
        assert mode == "default"
        return real(function, backend="eager", fullgraph=fullgraph, dynamic=dynamic)

    monkeypatch.setattr(torch, "compile", without_code)
    torch.compiler.reset()
    counters["stats"].clear()
    steered_vision.after = {1: steered_vision.set(micro_batch=16), 2: steered_vision.set(micro_batch=32)}
    steered_vision.train(tmp_path / "compiled", knobs={"compile": "default"})
    assert counters["stats"]["unique_graphs"] == 2
    steered_vision.train(tmp_path / "plain", knobs={"compile": "off"})
    assert counters["stats"]["unique_graphs"] == 2
    assert_equal(tmp_path / "plain", tmp_path / "compiled", tolerance=2e-5)


def test_a_folder_is_learned_from_and_its_workers_end(
    tmp_path: Path, image_folder: Path, steered_vision: SteeredVision
) -> None:
    generator = torch.get_rng_state()
    steered_vision.after = {2: steered_vision.set(num_workers=2)}
    result = steered_vision.train(
        tmp_path / "out", data=str(image_folder), iterations=6, evaluate_every=3, knobs={"num_workers": 1}
    )
    assert result.accuracy is not None
    assert "images)" in result.data
    assert steered_vision.outcomes()["num_workers"].effective == 2
    assert all("phase/data" in row for row in steered_vision.rows())
    assert not multiprocessing.active_children()
    assert torch.equal(torch.get_rng_state(), generator)

    steered_vision.after = {}
    steered_vision.train(
        tmp_path / "plain", data=str(image_folder), iterations=6, evaluate_every=3, knobs={"num_workers": 0}
    )
    assert_equal(tmp_path / "out", tmp_path / "plain")


def test_every_row_has_the_agreed_metrics_and_phases(steered_vision: SteeredVision) -> None:
    steered_vision.train(evaluate_every=2)
    rows = steered_vision.rows()
    expected = {
        *("loss", "train_accuracy", "grad_norm", "lr", "samples", "samples_total", "samples_per_s"),
        *("iteration_s", "phase/data", "phase/gradient", "phase/step"),
    }
    assert len(rows) == 4
    for row in rows:
        assert expected <= row.keys()
    assert [i for i, row in enumerate(rows) if "accuracy" in row] == [1, 3]
    assert run_state(steered_vision.run).declarations.headline == "samples_per_s"


def test_synthetic_images_are_named_wherever_a_rate_is_told(
    steered_vision: SteeredVision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "POOL_BYTES", 1 << 14)
    result = steered_vision.train(data="synthetic")
    figures = json.loads(result.json())
    assert figures["data"] == "synthetic"
    assert figures["accuracy"] is None
    assert figures["mfu"] is None  # on a CPU
    assert figures["samples_per_s"] > 0
    assert figures["workload"] == "vision"
    assert "(synthetic)" in result.sentence()
    assert any(line.startswith("images: synthetic") for line in steered_vision.lines)


def test_a_small_model_takes_no_more_threads_than_pay_off(
    steered_vision: SteeredVision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    steered_vision.train(threads=None, iterations=1)
    assert steered_vision.lines[0].endswith(" 1 thread")
    assert not any(line.startswith("MFU") for line in steered_vision.lines)  # there is none


def test_each_refusal_is_a_sentence_that_names_its_option(
    steered_vision: SteeredVision, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(rooms, "POOL_BYTES", 1 << 14)
    refused: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
        ({"preset": "huge"}, {}, "--preset huge: "),
        ({"preset": "vit-b", "data": "digits"}, {}, "--patch-size: "),
        ({"image_size": 512, "preset": "vit-g", "data": "synthetic"}, {}, "--patch-size: "),
        ({"image_size": 64}, {}, "--image-size 64: "),
        ({}, {"num_workers": 64}, "--num-workers: "),
        ({"data": "synthetic"}, {"prefetch_factor": 64}, "--prefetch-factor: "),
        ({}, {"pin_memory": False}, "--no-pin-memory: "),
        ({"data": "/nowhere"}, {"pin_memory": True}, "--pin-memory: "),
        ({"until_accuracy": 2.0}, {}, "--until-accuracy "),
        ({"until_accuracy": 0.9}, {}, "--until-accuracy "),
        ({"until_accuracy": 0.9, "data": "synthetic", "evaluate_every": 1}, {}, "--until-accuracy: "),
        ({"evaluate_every": 2, "data": "synthetic"}, {}, "--evaluate-every: "),
        ({"data": "/nowhere"}, {}, "--data /nowhere: "),
        ({}, {"grad_accum": 2}, "--batch-size 32: "),
        ({}, {"precision": "fp8"}, "--precision: "),
        ({}, {"precision": "tf32"}, "--precision tf32: "),
        ({}, {"lr": 5.0}, "--lr: "),
    )
    sentences = []
    for fields, knobs, named in refused:
        with pytest.raises(UsageError) as caught:
            steered_vision.train(**fields, knobs=knobs)
        sentences.append(str(caught.value))
        assert sentences[-1].startswith(named)
    golden("".join(f"{sentence}\n" for sentence in sentences))


def test_a_stop_ends_the_run_with_a_checkpoint(tmp_path: Path, steered_vision: SteeredVision) -> None:
    steered_vision.after = {1: lambda: steered_vision.ask("stop")}
    result = steered_vision.train(tmp_path, iterations=1000)
    assert (result.ending, result.iterations) == ("stopped", 2)
    assert saved(tmp_path)["iteration"] == 2


def test_another_depth_begins_anew_where_the_run_was(
    tmp_path: Path, steered_vision: SteeredVision, golden: Golden
) -> None:
    steered_vision.train(tmp_path)
    result = steered_vision.train(resume=tmp_path, iterations=8, knobs={"layers": 2})
    state = steered_vision.state
    assert (result.iterations, result.samples) == (8, 8 * 32)
    assert (state.born, state.shape["layers"]) == (4, 2)
    first = steered_vision.rows()[0]["lr"]
    assert first == pytest.approx(state.config.lr)  # the course began anew: half of it would be done
    assert steered_vision.notes()[0] in steered_vision.lines
    golden(f"{steered_vision.notes()[0]}\n")


def test_a_model_that_cannot_be_restarts_nothing(steered_vision: SteeredVision, golden: Golden) -> None:
    steered_vision.after = {1: steered_vision.set(heads=5)}
    assert steered_vision.train().iterations == 4
    [outcome] = steered_vision.outcomes().values()
    assert (outcome.stage, outcome.effective) == ("failed", 4)
    assert (outcome.code, outcome.fields["value"]) == ("setter_failed", 5)
    golden(f"{outcome.fields['error']}\n")


def test_a_batch_that_is_left_open_is_chosen_reported_and_kept(
    tmp_path: Path, steered_vision: SteeredVision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DryRun, "most", lambda self, share: min(40, share))
    result = steered_vision.train(tmp_path, iterations=2, knobs={"batch_size": 0, "micro_batch": 8})
    assert (result.batch_size, result.samples, result.micro_batch) == (32, 64, 8)
    knob = run_state(steered_vision.run).declarations.knobs["batch_size"]
    assert (knob.value, knob.in_effect) == (32, True)
    assert [line for line in steered_vision.lines if line.startswith("batch_size chosen: 32 images")]
    monkeypatch.setattr(DryRun, "most", lambda self, share: share)
    steered_vision.after = {2: lambda: steered_vision.ask("set", knob="batch_size", value=0)}
    again = steered_vision.train(resume=tmp_path, iterations=4)
    count = steered_vision.state.source.count
    assert (again.batch_size, again.samples) == (count, 3 * 32 + count)  # a resumed run keeps its size


def test_where_memory_is_too_short_a_smaller_model_is_begun_with(
    tmp_path: Path, steered_vision: SteeredVision, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = VisionState._pass

    def limited(self: VisionState, size: int) -> None:
        if self.shape["d_model"] > 32:
            raise torch.OutOfMemoryError("made up")
        compute(self, size)

    monkeypatch.setattr(VisionState, "_pass", limited)
    with pytest.raises(UsageError, match=r"--checkpointing.* --d-model.* --smaller-model-on-oom"):
        steered_vision.train()
    result = steered_vision.train(smaller_model_on_oom=True)
    assert (result.ending, steered_vision.state.shape["d_model"]) == ("finished", 32)
