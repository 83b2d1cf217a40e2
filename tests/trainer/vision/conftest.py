"""Short vision runs in this process, steered as the link thread would do it, and folders of small images."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hoptui
from hoptui.protocol.messages import Command, Outcome
from hoptui_trainer.common.checkpoint import read_checkpoint
from hoptui_trainer.vision import train as training
from hoptui_trainer.vision.config import IN_MEMORY
from hoptui_trainer.vision.job import VisionOptions
from hoptui_trainer.vision.train import VisionResult
from tests.run_state import queued_rows, run_state

SMALL = {"batch_size": 32, "micro_batch": 32}


class SteeredVision:
    """Trains a small model; `after` maps iterations to what is asked of the run in the middle of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.after: Mapping[int, Callable[[], None]] = {}
        self.lines: list[str] = []
        connect, update = hoptui.connect, vars(training)["update"]

        def seen_connect(*args: Any, **kwargs: Any) -> hoptui.Run:
            self.run = connect(*args, **kwargs)
            return self.run

        def seen_update(*args: Any) -> dict[str, Tensor]:
            self.state = args[0]
            if self.run.step in self.after:
                self.after[self.run.step]()
            found: dict[str, Tensor] = update(*args)
            return found

        monkeypatch.setattr(hoptui, "connect", seen_connect)
        monkeypatch.setattr(training, "update", seen_update)

    def train(self, folder: Path | None = None, **fields: Any) -> VisionResult:
        knobs = fields.pop("knobs", {})
        if "resume" not in fields:
            read = fields.get("data", "digits") not in IN_MEMORY
            knobs = {**SMALL, **({"num_workers": 0} if read else {}), **knobs}
        options = {"preset": "tiny", "iterations": 4, "evaluate_every": 0, "device": "cpu", "threads": 1}
        if "resume" in fields:
            del options["preset"]
        self.lines.clear()
        job = VisionOptions(**{**options, "checkpoint_dir": folder, **fields})
        return training.train(job, knobs, self.lines.append)

    def ask(self, verb: Any, **fields: Any) -> None:
        command = Command(
            id=f"{verb} {fields}", run=self.run.id, epoch=run_state(self.run).epoch, verb=verb, **fields
        )
        run_state(self.run).inbox.receive(command, time.monotonic(), self.run.step + 1)

    def set(self, **values: Any) -> Callable[[], None]:
        """What asks for these values of knobs."""

        def ask() -> None:
            for name, value in values.items():
                self.ask("set", knob=name, value=value)

        return ask

    def outcomes(self) -> dict[str, Outcome]:
        """The outcomes of `set` by knob."""
        return {outcome.id.split("'")[3]: outcome for outcome in run_state(self.run).inbox.collect_outcomes()}

    def rows(self) -> list[dict[str, float]]:
        return [row for _, _, row in queued_rows(run_state(self.run))]

    def notes(self) -> list[str]:
        return [note.text for note in run_state(self.run).notes]


def saved(folder: Path) -> dict[str, Any]:
    return read_checkpoint(folder, "vision")


def weights(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = saved(folder)["model"]
    return found


def assert_equal(first: Path, second: Path, tolerance: float = 0.0) -> None:
    one, other = weights(first), weights(second)
    for name, value in one.items():
        assert torch.allclose(other[name], value, rtol=0, atol=tolerance), name


@pytest.fixture
def steered_vision(monkeypatch: pytest.MonkeyPatch) -> SteeredVision:
    return SteeredVision(monkeypatch)


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """100 grey images of 8 × 8 in two classes; the first pixel is the number of the image."""
    root = tmp_path / "images"
    for number in range(100):
        path = root / ("even", "odd")[number % 2] / f"{number:03}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = np.full((8, 8), 128 * (number % 2), dtype=np.uint8)
        image[0, 0] = number
        np.save(path, image)
    return root
