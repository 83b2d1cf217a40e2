"""The training loop as a whole, in this process: short runs of a small job on a small corpus."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hoptui
from hoptui.protocol.messages import Command
from hoptui_trainer.common import checkpoint_writer, supervised_state
from hoptui_trainer.common.checkpoint import read_checkpoint, write_checkpoint
from hoptui_trainer.common.dry_run import DryRun
from hoptui_trainer.common.errors import ShortMemoryError, UsageError
from hoptui_trainer.common.phases import PhaseClock
from hoptui_trainer.common.ranks import RESTARTS
from hoptui_trainer.common.restart import Restart
from hoptui_trainer.lm import train as training
from hoptui_trainer.lm.job import LMOptions
from hoptui_trainer.lm.state import LMState
from hoptui_trainer.lm.train import LMResult, train
from hoptui_trainer.lm.update import update
from tests.golden import Golden
from tests.run_state import queued_rows, run_state
from tests.trainer.eight_bit import eager_torchao
from tests.trainer.printed import MEASURED, printed
from tests.trainer.tensors import tensors

SMALL = {"d_model": 16, "layers": 1, "heads": 2, "seq_len": 16, "batch_tokens": 128, "lr": 1e-2}


class Trial:
    """Runs jobs on the small corpus; a job is captured as it starts, and steered after given iterations."""

    def __init__(self, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        self.after: Mapping[int, Callable[[], None]] = {}
        self._corpus = corpus
        connect = hoptui.connect

        def seen_connect(*args: Any, **kwargs: Any) -> hoptui.Run:
            self.run = connect(*args, **kwargs)
            return self.run

        def seen_update(state: LMState, lr: float, clock: PhaseClock) -> dict[str, Tensor]:
            self.state = state
            self.after.get(self.run.step, lambda: None)()
            return update(state, lr, clock)

        monkeypatch.setattr(hoptui, "connect", seen_connect)
        monkeypatch.setattr(training, "update", seen_update)

    def train(self, **options: Any) -> LMResult:
        knobs = {**SMALL, **options.pop("knobs", {})} if "resume" not in options else options.pop("knobs", {})
        options = {"iterations": 6, "evaluate_every": 0, **options}
        if "resume" not in options:
            options |= {"corpus_mb": 0.0, "eval_tokens": 400}
        return train(LMOptions(corpus=self._corpus, **options), knobs, self.lines.append)

    def ask(self, verb: Any, **fields: Any) -> None:
        command = Command(
            id=f"{verb} {fields}", run=self.run.id, epoch=run_state(self.run).epoch, verb=verb, **fields
        )
        run_state(self.run).inbox.receive(command, time.monotonic(), self.run.step + 1)

    def done(self) -> list[tuple[str, object]]:
        """Stage and value in effect of everything asked for."""
        return [
            (outcome.stage, outcome.effective) for outcome in run_state(self.run).inbox.collect_outcomes()
        ]

    def rows(self, name: str) -> list[float]:
        return [row[name] for _, _, row in queued_rows(run_state(self.run)) if name in row]

    def notes(self) -> list[str]:
        return [note.text for note in run_state(self.run).notes]


@pytest.fixture
def trial(corpus_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    return Trial(corpus_folder, monkeypatch)


def test_a_run_learns_and_says_so(trial: Trial) -> None:
    result = trial.train(iterations=12, evaluate_every=6)
    assert (result.ending, result.iterations, result.tokens) == ("finished", 12, 12 * 128)
    losses = trial.rows("loss")
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.5
    assert result.loss == losses[-1]
    assert result.val_bpb == trial.rows("val_bpb")[-1] < trial.rows("val_bpb")[0]
    assert result.tokens_per_s
    assert result.mfu is None
    assert trial.rows("tokens") == [128.0] * 12
    assert trial.rows("tokens_per_s")
    for phase in ("gradient", "exchange", "step", "evaluation"):
        assert trial.rows(f"phase/{phase}")
    text = "\n".join(trial.lines)
    assert "12 × " not in text
    assert "(1 × 16, 2 heads)" in text
    assert "128 tokens = 8 sequences of 16 = 1 × 1 × 8 " in text
    assert "lzma" in trial.lines[-1]
    assert run_state(trial.run).declarations.flops is None  # nobody knows this CPU's peak


def test_resumed_in_the_middle_it_is_bit_for_bit_the_same(trial: Trial, tmp_path: Path) -> None:
    trial.train(checkpoint_dir=tmp_path / "whole")
    trial.train(checkpoint_dir=tmp_path / "half", knobs={"micro_batch": 8}, checkpoint_every=3)
    (tmp_path / "half" / "lm-000000006.ckpt").unlink()
    trial.train(checkpoint_dir=tmp_path / "rest", resume=tmp_path / "half")
    whole, rest = (read_checkpoint(tmp_path / name, "lm") for name in ("whole", "rest"))
    one, other = tensors(whole), tensors(rest)
    assert one.keys() == other.keys()
    assert all(torch.equal(other[name], value) for name, value in one.items())
    assert whole["position"] == rest["position"] == 6 * 128
    assert rest["run"]["epoch"] == 2
    [resumed] = [line for line in trial.lines if line.startswith("resumed")]
    assert re.findall(r"\d+", resumed) == ["3", "384"]


def test_a_batch_that_is_left_open_is_chosen_reported_and_kept(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for 13 sequences: 8 are taken, of 16 tokens."""
    monkeypatch.setattr(DryRun, "most", lambda self, share: min(13, share))
    open_batch = {"batch_tokens": 0, "grad_accum": 4}
    result = trial.train(checkpoint_dir=tmp_path, iterations=2, knobs=open_batch)
    assert (result.batch_tokens, result.micro_batch, result.tokens) == (128, 2, 256)
    knob = run_state(trial.run).declarations.knobs["batch_tokens"]
    assert (knob.value, knob.in_effect) == (128, True)
    assert [line for line in trial.lines if line.startswith("batch_tokens chosen: 128 tokens")]
    monkeypatch.setattr(DryRun, "most", lambda self, share: share)
    resumed = trial.train(resume=tmp_path, iterations=3)
    assert (resumed.batch_tokens, resumed.tokens) == (128, 3 * 128)  # more memory changes nothing
    trial.after = {3: lambda: trial.ask("set", knob="batch_tokens", value=0)}
    again = trial.train(resume=tmp_path, iterations=5)
    count = len(trial.state._text.train) // 16 * 16
    assert again.batch_tokens == count  # all of the text
    assert trial.done() == [("applied", count)]
    knob = run_state(trial.run).declarations.knobs["batch_tokens"]
    assert (knob.value, knob.in_effect) == (count, True)


def too_large_from(monkeypatch: pytest.MonkeyPatch, width: int, *, checkpointing: bool = False) -> None:
    """Memory is too short for models of that width; not if they keep no activations, with `checkpointing`."""
    nats = LMState.nats

    def limited(self: LMState, inputs: Tensor, targets: Tensor) -> Tensor:
        if self.shape["d_model"] >= width and not (checkpointing and self.config.checkpointing):
            raise torch.OutOfMemoryError("made up")
        return nats(self, inputs, targets)

    monkeypatch.setattr(LMState, "nats", limited)


WIDE = {"d_model": 32, "micro_batch": 4}


def test_where_single_sequences_do_not_fit_no_activations_are_kept(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.train(iterations=4, knobs=WIDE)
    expected = trial.rows("loss")
    trial.after = {1: lambda: too_large_from(monkeypatch, 32, checkpointing=True)}
    result = trial.train(iterations=4, knobs=WIDE)
    knob = run_state(trial.run).declarations.knobs["checkpointing"]
    assert (result.ending, knob.value, knob.in_effect) == ("finished", True, True)
    assert trial.rows("loss") == pytest.approx(expected, abs=1e-5)  # nothing else is learned


def test_where_nothing_makes_room_the_run_ends_with_a_checkpoint(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.after = {2: lambda: too_large_from(monkeypatch, 32)}
    with pytest.raises(ShortMemoryError) as caught:
        trial.train(checkpoint_dir=tmp_path, knobs=WIDE)
    # What was tried is no remedy.
    helps = re.findall(r"--[\w-]+", str(caught.value))
    assert helps == ["--optimizer", "--seq-len", "--d-model", "--smaller-model-on-oom"]
    held = read_checkpoint(tmp_path, "lm")
    assert (held["iteration"], held["shape"]["d_model"]) == (2, 32)


def test_with_consent_a_smaller_model_goes_on_in_a_new_process(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: started.append(arguments))
    for name in (RESTARTS, "_HOPTUI_RESTART"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    trial.after = {2: lambda: too_large_from(monkeypatch, 32)}
    trial.train(checkpoint_dir=tmp_path, knobs=WIDE, smaller_model_on_oom=True)
    (arguments,) = started
    assert {"--d-model=16", "--heads=1"} <= set(arguments)
    assert [note.level for note in run_state(trial.run).notes if "d_model" in note.text] == ["warning"]
    trial.after = {}
    result = trial.train(resume=tmp_path, knobs={"d_model": 16, "heads": 1})
    assert (result.iterations, trial.state.born) == (6, 2)
    assert result.micro_batch > 1  # pieces are chosen again


def test_from_the_start_a_smaller_model_is_begun_with(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    too_large_from(monkeypatch, 32)
    with pytest.raises(UsageError, match=r"--micro-batch.* --smaller-model-on-oom"):
        trial.train(knobs={"d_model": 64})
    result = trial.train(knobs={"d_model": 64}, smaller_model_on_oom=True)
    assert (result.iterations, trial.state.shape["d_model"]) == (6, 16)
    assert run_state(trial.run).declarations.knobs["d_model"].value == 16


def test_moments_in_eight_bits_learn_alike_live_and_resumed(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager_torchao(monkeypatch)
    wide = {"d_model": 64, "lr": 3e-3}
    trial.train(iterations=12, knobs=wide)
    expected = trial.rows("loss")
    trial.after = {4: lambda: trial.ask("set", knob="optimizer", value="adamw8bit")}
    trial.train(iterations=12, knobs=wide, checkpoint_dir=tmp_path, checkpoint_every=8)
    found = trial.rows("loss")
    assert trial.done() == [("applied", "adamw8bit")]
    assert found == pytest.approx(expected, rel=0.01)
    assert found[-1] != expected[-1]
    trial.after = {}
    trial.train(iterations=12, resume=tmp_path / "lm-000000008.ckpt")
    assert trial.state.config.optimizer == "adamw8bit"
    assert trial.rows("loss") == found[8:]
    trial.train(iterations=12, resume=tmp_path / "lm-000000008.ckpt", knobs={"optimizer": "adamw"})
    assert trial.rows("loss") == pytest.approx(found[8:], rel=0.01)


def test_other_text_is_not_mistaken_for_the_runs_own(trial: Trial, tmp_path: Path) -> None:
    trial.train(iterations=1, checkpoint_dir=tmp_path / "held")
    (trial._corpus / "new.txt").write_text("a new text")
    with pytest.raises(UsageError, match="other text"):
        trial.train(resume=tmp_path / "held")


LEARNING = {"batch_tokens": 256, "lr": 2e-2}


def test_it_ends_when_the_text_is_predicted_well_enough(trial: Trial) -> None:
    result = trial.train(iterations=300, evaluate_every=25, until_bpb=2.0, knobs=LEARNING)
    assert result.ending == "passed"
    assert result.val_bpb is not None
    assert result.lzma_bpb is not None
    assert result.val_bpb <= 2.0 < result.lzma_bpb
    assert trial.rows("val_loss")[-1] < trial.rows("val_loss")[0]


def test_from_targets_out_of_order_nothing_is_learned(trial: Trial) -> None:
    """The control of the test before: where it stops, this one is still at the frequencies of letters."""

    def scramble() -> None:
        sampler, take = trial.state.sampler, trial.state.sampler.take

        def scrambled(position: int, sequences: int, length: int) -> tuple[Tensor, Tensor]:
            inputs, targets = take(position, sequences, length)
            return inputs, targets[:, torch.randperm(length, generator=draw)]

        sampler.take = scrambled  # type: ignore[method-assign]

    draw = torch.Generator().manual_seed(0)
    trial.after = {0: scramble}
    result = trial.train(iterations=150, evaluate_every=150, knobs=LEARNING)
    assert result.val_bpb is not None
    assert 3.0 < result.val_bpb < 5.0


DIVERGING = {"lr": 0.1, "grad_clip": 100.0}


def closings(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, str]]:
    """What viewers are told at the end of each run: a reason and a detail."""
    told: list[tuple[object, str]] = []
    close = hoptui.Run.close

    def seen_close(run: hoptui.Run, reason: Any = None, detail: str = "") -> None:
        told.append((reason, detail))
        close(run, reason, detail)

    monkeypatch.setattr(hoptui.Run, "close", seen_close)
    return told


def test_without_a_better_evaluation_it_ends_early_and_keeps_the_best_weights(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    told = closings(trial, monkeypatch)
    options: dict[str, Any] = {"evaluate_every": 1, "patience": 2, "knobs": DIVERGING}
    result = trial.train(iterations=40, checkpoint_dir=tmp_path, **options)
    assert result.ending == "early-stopped"
    losses = trial.rows("val_loss")
    best = min(range(len(losses)), key=losses.__getitem__)
    assert result.iterations == len(losses) == best + 3 < 40
    assert (result.val_loss, result.best_val_loss) == (losses[-1], losses[best])
    assert (result.val_bpb, result.best_val_bpb) == (trial.rows("val_bpb")[-1], trial.rows("val_bpb")[best])
    assert result.best_iteration == best + 1
    assert told[0] == ("finished", "early-stopped: no better val_loss in 2 evaluations")
    file = tmp_path / "lm-best.pt"
    assert result.best_file == str(file)
    saved = read_checkpoint(file, "lm")
    assert saved["iteration"] == best + 1
    golden(
        "".join(f"{line}\n" for line in trial.lines if "val_loss" in line),
        normalize={re.escape(str(tmp_path)): "DIR", r"\d\.\d{4}": "N"},
    )
    # Those weights give that loss, and the folder still means the newest.
    trial.state.load_state_dict(saved)
    assert trial.state.evaluate()["val_loss"] == losses[best]
    assert read_checkpoint(tmp_path, "lm")["iteration"] == result.iterations


def test_the_best_so_far_survives_a_resume(trial: Trial, tmp_path: Path) -> None:
    options: dict[str, Any] = {"evaluate_every": 1, "checkpoint_dir": tmp_path}
    first = trial.train(iterations=40, patience=2, knobs=DIVERGING, **options)
    assert first.best_iteration == first.iterations - 2
    before = (tmp_path / "lm-best.pt").read_bytes()
    again = trial.train(iterations=first.iterations + 1, resume=tmp_path, **{**options, "evaluate_every": 0})
    assert (again.best_iteration, again.best_val_loss) == (first.best_iteration, first.best_val_loss)
    assert again.best_file == first.best_file == str(tmp_path / "lm-best.pt")
    assert (tmp_path / "lm-best.pt").read_bytes() == before
    # Resumed from the best weights, it goes on after their iteration.
    back = trial.train(
        iterations=first.best_iteration + 1, resume=tmp_path / "lm-best.pt", knobs={"lr": 1e-6}, **options
    )
    assert back.iterations == first.best_iteration + 1
    assert len(trial.rows("val_loss")) == 1


def test_patience_goes_on_counting_after_a_resume(trial: Trial, tmp_path: Path) -> None:
    options: dict[str, Any] = {"evaluate_every": 1, "checkpoint_dir": tmp_path}
    first = trial.train(iterations=40, patience=2, knobs=DIVERGING, **options)
    more = trial.train(iterations=40, patience=4, resume=tmp_path, **options)
    assert (first.ending, more.ending) == ("early-stopped", "early-stopped")
    assert more.iterations == first.iterations + 2


def test_a_full_disk_at_the_best_weights_is_a_warning(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = write_checkpoint

    def full(path: Path, *rest: Any) -> Path:
        if path.name == "lm-best.pt":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, *rest)

    monkeypatch.setattr(checkpoint_writer, "write_checkpoint", full)
    result = trial.train(iterations=3, evaluate_every=1, checkpoint_dir=tmp_path)
    assert (result.ending, result.iterations, result.best_file) == ("finished", 3, None)
    assert result.best_iteration == 3
    warnings = [note for note in run_state(trial.run).notes if note.level == "warning"]
    assert [note.text for note in warnings] == [
        f"best weights not written: [Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}"
    ] * 3
    assert not list(tmp_path.glob("*best*"))
    assert (tmp_path / "lm-000000003.ckpt").exists()


def test_best_weights_of_another_run_are_kept_under_another_name(trial: Trial, tmp_path: Path) -> None:
    options: dict[str, Any] = {"iterations": 1, "evaluate_every": 1, "checkpoint_dir": tmp_path}
    trial.train(seed=1, **options)
    before = (tmp_path / "lm-best.pt").read_bytes()
    trial.train(seed=2, **options)
    assert (tmp_path / "lm-best.previous.pt").read_bytes() == before
    assert read_checkpoint(tmp_path / "lm-best.pt", "lm")["seed"] == 2
    # New weights of a resumed run are as another run's.
    trial.train(resume=tmp_path, knobs={"d_model": 32}, **{**options, "iterations": 2})
    assert read_checkpoint(tmp_path / "lm-best.previous.pt", "lm")["seed"] == 2
    assert read_checkpoint(tmp_path / "lm-best.pt", "lm")["shape"]["d_model"] == 32


def test_without_a_folder_it_is_told_that_best_weights_are_not_kept(trial: Trial, golden: Golden) -> None:
    result = trial.train(iterations=2, evaluate_every=1, patience=2)
    assert (result.best_iteration, result.best_file) == (2, None)
    golden(
        "".join(f"{line}\n" for line in trial.lines if "checkpoint-dir" in line),
        normalize={r"\d\.\d{4}": "N"},
    )


def test_best_weights_can_be_left_out(trial: Trial, tmp_path: Path) -> None:
    options: dict[str, Any] = {"evaluate_every": 1, "checkpoint_dir": tmp_path}
    trial.train(iterations=1, **options)
    result = trial.train(iterations=3, resume=tmp_path, keep_best=False, patience=2, **options)
    # The file of the first evaluation is not that of the best one any more.
    assert (result.best_iteration, result.best_file) == (3, None)
    assert read_checkpoint(tmp_path / "lm-best.pt", "lm")["iteration"] == 1
    assert sum("not kept: --no-keep-best" in line for line in trial.lines) == 2


def test_a_loss_in_nats_can_be_asked_for(trial: Trial) -> None:
    result = trial.train(iterations=300, evaluate_every=25, until_loss=1.4, knobs=LEARNING)
    assert result.ending == "passed"
    assert result.val_loss is not None
    assert result.val_loss <= 1.4 < trial.rows("val_loss")[-2]


def test_an_empty_folder_to_resume_from_means_a_new_run(trial: Trial, tmp_path: Path) -> None:
    folder = tmp_path / "requeued"
    options: dict[str, Any] = {"checkpoint_dir": folder, "resume": folder, "corpus_mb": 0.0}
    first = trial.train(iterations=2, eval_tokens=400, knobs=SMALL, **options)
    [said] = [line for line in trial.lines if "--resume" in line]
    assert said == f"--resume {folder}: there is no checkpoint yet, so this is a new run"
    again = trial.train(iterations=4, eval_tokens=400, knobs=SMALL, **options)
    assert (first.iterations, again.iterations) == (2, 4)
    assert run_state(trial.run).epoch == 2
    with pytest.raises(UsageError, match="no such file"):
        trial.train(resume=tmp_path / "elsewhere", checkpoint_dir=folder)


def test_knobs_change_at_the_next_iteration_and_leave_the_curve_alone(trial: Trial) -> None:
    trial.train(iterations=8)
    expected = trial.rows("loss")

    def ask() -> None:
        trial.ask("set", knob="micro_batch", value=2)

    def ask_more() -> None:
        trial.ask("set", knob="grad_accum", value=8)
        trial.ask("set", knob="checkpointing", value=True)
        trial.ask("set", knob="weight_decay", value=0.2)

    trial.after = {2: ask, 4: ask_more, 5: lambda: trial.ask("set", knob="weight_decay", value=0.1)}
    trial.train(iterations=8)
    assert trial.rows("loss")[:6] == pytest.approx(expected[:6], abs=1e-5)
    assert trial.rows("loss")[7] != pytest.approx(expected[7], abs=1e-7)  # weights have decayed faster
    assert trial.done() == [("applied", value) for value in (2, 8, True, 0.2, 0.1)]
    assert trial.state.optimizer.param_groups[0]["weight_decay"] == 0.1
    assert (trial.state.config.micro_batch, trial.state.pieces.micro_batch) == (1, 1)
    assert "micro_batch" not in trial.state.automatic.names


def test_a_batch_or_a_length_changes_what_is_read_back(trial: Trial) -> None:
    def ask() -> None:
        trial.ask("set", knob="batch_tokens", value=100)
        trial.ask("set", knob="seq_len", value=32)
        trial.ask("set", knob="lr", value=5e-3)
        trial.ask("set", knob="schedule", value="constant")

    trial.after = {1: ask}
    trial.train(iterations=5)
    assert trial.done() == [("applied", value) for value in (96, 32, 5e-3, "constant")]
    assert trial.rows("tokens") == [128.0] * 2 + [96.0] * 3
    assert trial.rows("lr")[2:] == [5e-3] * 3
    handles = run_state(trial.run).declarations.knobs
    assert (handles["batch_tokens"].value, handles["seq_len"].value, handles["micro_batch"].value) == (
        96,
        32,
        3,
    )


def test_warm_up_in_iterations_is_a_knob_beside_the_part(trial: Trial, tmp_path: Path) -> None:
    trial.after = {4: lambda: trial.ask("set", knob="warmup", value=0.0)}
    knobs = {"warmup_steps": 9, "schedule": "constant"}
    trial.train(iterations=8, checkpoint_dir=tmp_path, checkpoint_every=3, knobs=knobs)
    assert trial.rows("lr") == pytest.approx([1e-3 * n for n in (1, 2, 3, 4, 5, 10, 10, 10)])
    knob = run_state(trial.run).declarations.knobs["warmup_steps"]
    assert (knob.value, knob.in_effect) == (0, True)
    trial.after = {}
    trial.train(iterations=6, resume=tmp_path / "lm-000000003.ckpt")
    assert trial.rows("lr") == pytest.approx([1e-3 * n for n in (4, 5, 6)])
    with pytest.raises(UsageError, match=r"^--warmup and --warmup-steps"):
        trial.train(knobs={"warmup_steps": 9, "warmup": 0.1})


def test_what_is_measured_for_another_length_is_told(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "attention: for {} tokens in {}"
    monkeypatch.setattr(
        supervised_state, "choose_attention", lambda shape, dtype, *_, **__: said.format(shape[2], dtype)
    )
    trial.after = {
        1: lambda: trial.ask("set", knob="seq_len", value=32),
        2: lambda: trial.ask("set", knob="precision", value="bf16"),
    }
    trial.train(iterations=4)
    first = said.format(16, torch.float32)
    assert first in trial.lines
    notes = [note.text for note in run_state(trial.run).notes if note.text.startswith("attention")]
    assert notes == [first, said.format(32, torch.float32), said.format(32, torch.bfloat16)]


def test_what_cannot_be_applied_changes_nothing(trial: Trial) -> None:
    trial.after = {1: lambda: trial.ask("set", knob="precision", value="tf32")}
    trial.train(iterations=3)
    (outcome,) = run_state(trial.run).inbox.collect_outcomes()
    assert (outcome.stage, outcome.code) == ("failed", "setter_failed")
    assert "needs a GPU" in outcome.fields["error"]
    assert trial.state.config.precision == trial.state.precision == "fp32"


def test_out_of_memory_is_told_and_the_run_goes_on(trial: Trial, golden: Golden) -> None:
    trial.train(iterations=5)
    expected = trial.rows("loss")

    def fill() -> None:
        forward = trial.state.forward

        def full(tokens: Tensor) -> Tensor:
            if len(tokens) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory (a test)")
            return forward(tokens)

        trial.state.forward = full

    trial.after = {2: fill}
    trial.train(iterations=5)
    assert trial.rows("loss") == pytest.approx(expected, abs=1e-5)
    assert run_state(trial.run).declarations.knobs["micro_batch"].value == 4
    [reverted] = [note.fields for note in run_state(trial.run).notes if note.code == "knob.reverted"]
    assert (reverted["knob"], reverted["before"], reverted["value"]) == ("micro_batch", 8, 4)
    golden(f"{reverted['why']['fields']['reason']}\n")


def test_what_does_not_fit_is_refused_before_it_is_needed(trial: Trial, golden: Golden) -> None:
    trial.train(iterations=5, knobs={"micro_batch": 2})
    expected = trial.rows("loss")

    def fill() -> None:
        forward = trial.state.forward

        def full(tokens: Tensor) -> Tensor:
            if len(tokens) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory (a test)")
            return forward(tokens)

        trial.state.forward = full
        trial.ask("set", knob="micro_batch", value=8)

    trial.after = {2: fill}
    trial.train(iterations=5, knobs={"micro_batch": 2})
    (outcome,) = run_state(trial.run).inbox.collect_outcomes()
    assert (outcome.stage, outcome.effective) == ("failed", 2)
    assert (outcome.code, outcome.fields["value"]) == ("setter_failed", 8)
    golden(f"{outcome.fields['error']}\n", normalize={r"[\d.]+ GB": "N GB"})
    assert trial.rows("loss") == pytest.approx(expected, abs=1e-5)


def test_a_trace_is_written_when_somebody_asks_for_it(trial: Trial, tmp_path: Path) -> None:
    trial.after = {1: lambda: trial.ask("profile", value=2)}
    trial.train(profile_dir=tmp_path / "traces")
    (path,) = (tmp_path / "traces").iterdir()
    (note,) = (note for note in trial.notes() if str(path) in note)
    assert note in trial.lines
    trace = json.loads(gzip.decompress(path.read_bytes()))
    names = {event.get("name") for event in trace["traceEvents"]}
    assert "aten::scaled_dot_product_attention" in names


def test_another_model_needs_a_new_process_and_begins_anew(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_HOPTUI_RESTART", "")  # restored afterwards
    begun: list[Restart] = []
    monkeypatch.setattr(Restart, "begin", lambda restart: begun.append(restart))
    trial.after = {2: lambda: trial.ask("set", knob="d_model", value=32)}
    result = trial.train(checkpoint_dir=tmp_path, json=True)
    assert result.iterations == 3
    assert len(begun) == 1
    assert trial.lines == []  # the result is told by the process that ends the run
    assert trial.run.restart_wanted == {"d_model": 32}
    trial.after = {}
    result = trial.train(resume=tmp_path / "lm-000000003.ckpt", knobs={"d_model": 32})
    assert (result.iterations, result.tokens) == (6, 6 * 128)
    assert run_state(trial.run).epoch == 2
    assert trial.done() == [("applied", 32)]
    assert trial.state.shape["d_model"] == 32
    assert trial.rows("lr")[0] == 1e-2  # the course began anew: a third of it would be done
    assert any(line.endswith(" 1 × 16, 2 heads") for line in trial.lines)  # the model before
    assert any(note.level == "warning" and "anew" in note.text for note in run_state(trial.run).notes)
    assert any(line.startswith("d_model = 32 ") for line in trial.lines)


def test_without_a_checkpoint_there_is_no_restart(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_writer, "write_checkpoint", full)
    trial.after = {2: lambda: trial.ask("set", knob="d_model", value=32)}
    result = trial.train(checkpoint_dir=tmp_path)
    assert (result.ending, result.iterations) == ("finished", 6)
    assert run_state(trial.run).declarations.knobs["d_model"].value == trial.state.config.d_model == 16
    assert trial.done() == [("failed", 16)]


def test_a_model_that_cannot_be_restarts_nothing(trial: Trial, golden: Golden) -> None:
    trial.after = {1: lambda: trial.ask("set", knob="heads", value=3)}
    result = trial.train()
    (outcome,) = run_state(trial.run).inbox.collect_outcomes()
    assert (outcome.stage, outcome.effective) == ("failed", 2)
    assert (outcome.code, outcome.fields["value"]) == ("setter_failed", 3)
    golden(f"{outcome.fields['error']}\n")
    assert result.iterations == 6


def test_a_stop_finishes_the_iteration_and_a_full_disk_is_a_warning(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint_writer, "write_checkpoint", full)
    trial.after = {1: lambda: trial.ask("stop")}
    result = trial.train(checkpoint_dir=tmp_path)
    assert (result.ending, result.iterations) == ("stopped", 2)
    golden("".join(f"{line}\n" for line in trial.lines if os.strerror(errno.ENOSPC) in line))


def test_users_read_what_is_trained_and_where_it_goes_on(
    trial: Trial, tmp_path: Path, golden: Golden
) -> None:
    fixed: dict[str, Any] = {"device": "cpu", "threads": 1, "evaluate_every": 1, "checkpoint_dir": tmp_path}
    trial.train(preset="tiny", iterations=1, **fixed)
    trial.train(resume=tmp_path, iterations=2, knobs={"d_model": 32}, **fixed)
    sizes = {r"[\d.]+ bpb": "N bpb", r"lzma [\d.]+": "lzma N", r"val_loss [\d.]+": "val_loss N"}
    sizes[r"[\d.]+ nats"] = "N nats"
    paths = {re.escape(str(trial._corpus)): "CORPUS", re.escape(str(tmp_path)): "DIR"}
    golden(printed(trial.lines), normalize={**paths, **sizes, **MEASURED})


def test_as_json_nothing_but_the_result_is_said(trial: Trial) -> None:
    result = trial.train(json=True)
    (line,) = trial.lines
    figures = json.loads(line)
    assert figures["workload"] == "lm"
    assert figures["tokens_per_s"] == result.tokens_per_s
    assert {"mfu", "peak_memory_bytes", "val_bpb", "lzma_bpb", "ending", "iterations"} <= figures.keys()
