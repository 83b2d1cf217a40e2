"""Errors of hoptui's own code, in each adapter: training goes on, to the same weights, with one warning."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning
import pytest
import stable_baselines3
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader, TensorDataset

import hoptui
from hoptui.integrations.accelerate import HoptuiTracker
from hoptui.integrations.lightning import HoptuiCallback as LightningCallback
from hoptui.integrations.sb3 import HoptuiCallback as Sb3Callback
from hoptui.integrations.transformers import HoptuiCallback as TrainerHoptuiCallback

pytestmark = pytest.mark.timeout(120)
STEPS = 8
Weights = list[torch.Tensor]
Training = Callable[[Path, bool], torch.nn.Module]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HOPTUI", "off")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(4 * STEPS, 8, generator=generator), torch.randn(4 * STEPS, 1, generator=generator)
    )


def with_trainer(folder: Path, observed: bool) -> torch.nn.Module:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 1)

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": torch.nn.functional.mse_loss(self.linear(inputs), labels)}

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        logging_steps=2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    model = Model()
    data: Any = [{"inputs": x, "labels": y} for x, y in zip(*rows().tensors, strict=True)]
    callbacks = [TrainerHoptuiCallback("faulty")] if observed else []
    transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks).train()
    return model


def with_accelerate(folder: Path, observed: bool) -> torch.nn.Module:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    tracker = [HoptuiTracker("faulty")] if observed else None
    accelerator = Accelerator(cpu=True, log_with=tracker, project_dir=str(folder))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows(), batch_size=4))
    accelerator.init_trackers("faulty")
    for x, y in loader:
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"loss": 1.0})
    accelerator.end_training()
    return accelerator.unwrap_model(model)  # type: ignore[no-any-return]


def with_lightning(folder: Path, observed: bool) -> torch.nn.Module:
    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 1)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = torch.nn.functional.mse_loss(self.linear(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[LightningCallback("faulty")] if observed else [],
    ).fit(module, DataLoader(rows(), batch_size=4))
    return module


def with_sb3(_: Path, observed: bool) -> torch.nn.Module:
    model = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, seed=1, device="cpu")
    model.learn(16 * STEPS, callback=[Sb3Callback("faulty")] if observed else None)
    return model.policy  # type: ignore[no-any-return]


@pytest.mark.parametrize("call", ["metric", "on_checkpoint", "boundary", "log", "close"])
@pytest.mark.parametrize("training", [with_trainer, with_accelerate, with_lightning, with_sb3])
def test_an_error_of_hoptui_changes_no_training(
    training: Training,
    call: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.manual_seed(0)
    plain = [each.detach().clone() for each in training(tmp_path, False).parameters()]

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(hoptui.Run, call, broken)
    torch.manual_seed(0)
    with caplog.at_level(logging.WARNING, "hoptui"):
        found = list(training(tmp_path, True).parameters())
    assert all(map(torch.equal, plain, found))
    warned = [each.getMessage() for each in caplog.records if each.name == "hoptui"]
    assert [text for text in warned if "hoptui is off in this run" in text and "broken" in text] == warned
    assert len(warned) == 1
