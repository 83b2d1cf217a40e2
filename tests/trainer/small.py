"""Short trainings of a small PPO job in this process, and a run that is steered between its iterations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import hoptui
from hoptui.protocol.messages import Command, Outcome
from hoptui_trainer.ppo import train as training
from hoptui_trainer.ppo.job import PPOOptions
from hoptui_trainer.ppo.report import PPOResult
from tests.run_state import queued_rows, run_state

SMALL = {"num_envs": 8, "rollout_len": 16, "minibatch_size": 64, "epochs": 2}


def small_job(folder: Path | None = None, **fields: Any) -> PPOOptions:
    knobs = {**SMALL, **fields.pop("knobs", {})}
    return PPOOptions(
        **{"iterations": 4, "evaluate_every": 0, "checkpoint_dir": folder, "knobs": knobs, **fields}
    )


def trained(job: PPOOptions) -> tuple[PPOResult, list[str]]:
    lines: list[str] = []
    return training.train(job, lines.append), lines


class Steered:
    """A run that is captured as it starts, and steered after given iterations as the link thread would do
    it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, after: Mapping[int, Callable[[Steered], None]]
    ) -> None:
        self.outcomes: list[Outcome] = []
        connect, learned = hoptui.connect, training.learned

        def seen_connect(*args: Any, **kwargs: Any) -> hoptui.Run:
            self.run = connect(*args, **kwargs)
            return self.run

        def seen_learned(*args: Any) -> dict[str, Tensor] | None:
            if self.run.step in after:
                after[self.run.step](self)
            return learned(*args)

        monkeypatch.setattr(hoptui, "connect", seen_connect)
        monkeypatch.setattr(training, "learned", seen_learned)

    def ask(self, verb: Any, **fields: Any) -> None:
        command = Command(
            id=f"{verb} {fields}", run=self.run.id, epoch=run_state(self.run).epoch, verb=verb, **fields
        )
        self.outcomes += run_state(self.run).inbox.receive(command, time.monotonic(), self.run.step + 1)

    def finished(self) -> list[Outcome]:
        return run_state(self.run).inbox.collect_outcomes()

    def rows(self) -> list[dict[str, float]]:
        """What is known of each iteration: on a GPU the metrics of an update come in a row of their own,
        later."""
        merged: dict[int, dict[str, float]] = {}
        for _, step, row in queued_rows(run_state(self.run)):
            merged.setdefault(step, {}).update(row)
        return list(merged.values())

    def notes(self) -> list[str]:
        return [note.text for note in run_state(self.run).notes]
