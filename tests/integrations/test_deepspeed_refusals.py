"""What the engine of DeepSpeed decides is refused with the reason, shown with stand-ins for it on the CPU.

test_two_gpus.py trains with DeepSpeed itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DistributedType
from accelerate.utils.deepspeed import DeepSpeedEngineWrapper, DeepSpeedOptimizerWrapper
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DeepSpeedStrategy
from transformers import TrainerState, TrainingArguments

import hoptui
from hoptui.domain.facts import Fact
from hoptui.integrations.accelerate import HoptuiTracker
from hoptui.integrations.lightning_knobs import LightningKnobs
from hoptui.integrations.micro_batch_split import MicroBatchSplit
from hoptui.integrations.trainer_settings import offer_settings
from hoptui.presentation import sentences
from hoptui.sdk.run import Run
from tests.run_state import queued_rows, run_state
from tests.sdk.unit_run import send

pytestmark = pytest.mark.timeout(120)
ROWS, BATCHES, ACCUMULATED = 4, 6, 2


@pytest.fixture(autouse=True)
def off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPTUI", "off")


@pytest.fixture
def run(off: None) -> Iterator[Run]:
    made = hoptui.connect("deepspeed")
    yield made
    made.close()


def refusal(run: Run, knob: str, value: object) -> str:
    """The reason for which the run refuses a value, in words."""
    (refused,) = send(run, knob=knob, value=value)
    assert (refused.stage, refused.code) == ("rejected", "declined")
    told, reason = sentences.sentence(Fact(refused.code, refused.fields)).split(": ", 1)
    assert told == f"{knob} cannot change in this run"
    return reason


class Engine:
    """Makes the optimizer steps in the backward pass, as that of DeepSpeed."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.global_steps = self.micro_steps = 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None: ...

    def backward(self, loss: Any, **_: Any) -> None:
        (loss / ACCUMULATED).backward()

    def step(self) -> None:
        self.micro_steps += 1
        if self.micro_steps % ACCUMULATED == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.global_steps += 1


def test_accelerate_counts_the_steps_of_the_engine_and_leaves_accumulation_to_it() -> None:
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    try:
        tracker = HoptuiTracker("engine")
        accelerator = Accelerator(cpu=True, log_with=tracker)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data: Any = torch.randn(ROWS * BATCHES, 3)
        loader = accelerator.prepare(torch.utils.data.DataLoader(data, batch_size=ROWS))
        prepared = DeepSpeedOptimizerWrapper(optimizer)
        accelerator._optimizers.append(prepared)
        engine = Engine(optimizer)
        accelerator.deepspeed_engine_wrapped = DeepSpeedEngineWrapper(engine)
        accelerator.state.distributed_type = DistributedType.DEEPSPEED
        accelerator.init_trackers("engine")
        run = tracker.tracker
        assert run is not None
        for number, batch in enumerate(loader):
            if number == 1:
                said = refusal(run, "gradient_accumulation_steps", 4)
                assert send(run, knob="lr", value=0.05)[-1].stage == "scheduled"
            accelerator.backward(model(batch).square().mean())
            prepared.step()
            prepared.zero_grad()
        assert said == "DeepSpeed's engine has the value of its configuration"
        assert engine.global_steps == BATCHES // ACCUMULATED
        assert run.step == engine.global_steps
        rows = [row["samples"] for _, _, row in queued_rows(run_state(run)) if "samples" in row]
        assert rows == [ROWS * ACCUMULATED] * engine.global_steps
        assert optimizer.param_groups[0]["lr"] == 0.05
        tracker.finish()
    finally:
        AcceleratorState._reset_state(True)
        GradientState._reset_state()


def test_trainer_leaves_clipping_and_accumulation_to_the_engine(run: Run) -> None:
    arguments = TrainingArguments("nowhere", use_cpu=True, report_to=[])
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = SimpleNamespace(is_deepspeed_enabled=True, args=arguments, model=model)
    offer_settings(run, trainer, arguments, TrainerState(), optimizer, None)
    MicroBatchSplit(trainer).offer(run)
    for knob, value, reason in (
        ("max_grad_norm", 0.5, "DeepSpeed's engine clips with the value of its configuration"),
        ("gradient_accumulation_steps", 2, "DeepSpeed's engine has the value of its configuration"),
        ("micro_batch_split", 2, "DeepSpeed's engine decides when gradients are accumulated and exchanged"),
    ):
        assert refusal(run, knob, value) == reason
    assert send(run, knob="lr", value=0.05)[-1].stage == "scheduled"
    run.boundary(1)
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_lightning_offers_the_interval_of_its_loggers_alone(run: Run) -> None:
    strategy = object.__new__(DeepSpeedStrategy)  # its own constructor needs the package
    strategy._model = module = LightningModule()
    trainer = SimpleNamespace(
        log_every_n_steps=50, strategy=strategy, callbacks=[], current_epoch=0, lightning_module=module
    )
    LightningKnobs(run, trainer, True, lambda total: None)
    assert list(run_state(run).declarations.knobs) == ["log_every_n_steps"]
    assert refusal(run, "accumulate_grad_batches", 2) == (
        "DeepSpeedStrategy is not known to accept it while it trains: set it in the script and start again"
    )
