"""Saves of `transformers.Trainer` that fail. One process, without viewers."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback, TrainingArguments

import hoptui
from hoptui.integrations.transformers import HoptuiCallback
from tests.integrations.transformers_rank import sequences, small_model
from tests.run_state import run_state
from tests.sdk.unit_run import send

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 5


class Asking(TrainerCallback):  # type: ignore[misc]
    """Asks for a checkpoint in the third step, as a user would."""

    def __init__(self, adapter: HoptuiCallback) -> None:
        self._adapter = adapter
        self.run: hoptui.Run | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            self.run = self._adapter._run
            assert self.run is not None
            send(self.run, "checkpoint", id="a")


class FullDisk(Trainer):  # type: ignore[misc]
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        assert output_dir is not None
        Path(output_dir).mkdir(parents=True)
        raise OSError(errno.ENOSPC, "a full disk")


def train(folder: Path, **options: Any) -> tuple[Trainer, Asking]:
    args = TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, report_to=[], disable_tqdm=True, use_cpu=True, **options
    )
    adapter = HoptuiCallback()
    asking = Asking(adapter)
    trainer = FullDisk(
        model=small_model(), args=args, train_dataset=sequences(6), callbacks=[adapter, asking]
    )
    trainer.train()
    return trainer, asking


def test_a_checkpoint_of_a_user_that_fails_does_not_end_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPTUI", "off")
    trainer, asking = train(tmp_path, save_strategy="no")
    assert trainer.state.global_step == STEPS
    assert asking.run is not None
    last = run_state(asking.run).inbox.collect_outcomes()[-1]
    assert (last.id, last.stage, last.code) == ("a", "failed", "raised")
    assert "a full disk" in str(last.fields["error"])
    assert not list(tmp_path.glob("checkpoint-*"))


def test_a_save_of_the_script_fails_as_without_hoptui(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPTUI", "off")
    with pytest.raises(OSError, match="a full disk"):
        train(tmp_path, save_strategy="steps", save_steps=4)
