"""The models of the published workloads, and that each of them offers the knobs that the benchmark turns."""

from __future__ import annotations

import pytest
import torch
from transformers import PrinterCallback, ProgressCallback, Trainer

from benchmarks.autotuning_catalogue import WORKLOADS, Workload
from benchmarks.autotuning_workloads import case_of
from benchmarks.loops.hf_published import Sequences, model_of
from benchmarks.loops.hf_trainer import train
from benchmarks.loops.script import Script
from benchmarks.measure import bench
from benchmarks.tuner_loops import live
from hoptui.integrations.transformers import HoptuiCallback

MILLIONS = {
    "gpt2": 124, "gpt2-medium": 355, "gpt2-large": 774, "gpt2-xl": 1558, "deberta": 1567,
    "distilbert": 67, "bert-base": 108, "bert-large": 335,
}  # fmt: skip
"""Parameters of the models of these names. The source rounds them."""
ONE_OF_EACH = [
    next(each for each in WORKLOADS if each.model == model) for model in {w.model: 0 for w in WORKLOADS}
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_model_has_as_many_parameters_as_published(workload: Workload) -> None:
    with torch.device("meta"):
        model = model_of(workload)
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6) == MILLIONS[workload.name]


def test_a_loop_prints_nothing_while_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its output is a pipe that a benchmark reads at the end. A full pipe would stop the training."""
    trainers: list[Trainer] = []
    monkeypatch.setattr(Trainer, "train", lambda trainer: trainers.append(trainer))
    tiny = WORKLOADS[0].tiny()
    model = model_of(tiny)
    train(Script("cpu", "quiet"), model, Sequences(tiny, model.config.vocab_size))
    (trainer,) = trainers
    callbacks = trainer.callback_handler.callbacks
    assert any(isinstance(callback, HoptuiCallback) for callback in callbacks)
    assert not any(isinstance(callback, PrinterCallback | ProgressCallback) for callback in callbacks)


@pytest.mark.parametrize("workload", ONE_OF_EACH, ids=lambda workload: workload.name)
def test_a_workload_trains_with_its_knobs(workload: Workload) -> None:
    tiny = workload.tiny()
    case = case_of(tiny)
    (start,) = case.points()
    with bench() as node, node.session() as session:
        run = live(node, session, case, ("--device", "cpu", "--threads", "1"), 0)
        values = run.values()
        assert {name: values[name] for name in start} == start
        assert run.set({"micro_batch_split": 1, "gradient_checkpointing": True})
        assert run.work() == tiny.steps * tiny.micro_batch
        assert run.end() == {"ending": "stopped"}
