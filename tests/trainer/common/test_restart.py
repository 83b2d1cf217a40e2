from __future__ import annotations

import errno
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

import hoptui
from hoptui import Knob
from hoptui.protocol.messages import Command, Outcome
from hoptui_trainer.common import checkpoint_writer
from hoptui_trainer.common.checkpoint_writer import CheckpointWriter
from hoptui_trainer.common.options import kept
from hoptui_trainer.common.ranks import ALONE, RESTARTS, RankGroup
from hoptui_trainer.common.restart import LEFT, Restart
from tests.golden import Golden
from tests.run_state import run_state


@dataclass
class Config:
    hidden: Annotated[int, Knob(1, 1 << 22, cost="restart")] = 64
    lr: Annotated[float, Knob(1e-6, 1.0)] = 0.1
    pin_memory: Annotated[bool, Knob()] = True


class Trained:
    """A run in its loop, as one process or as one of several ranks."""

    def __init__(self, folder: Path | None, ranks: RankGroup = ALONE) -> None:
        self.lines: list[str] = []
        self.run = hoptui.connect("unit", ranks=ranks.store)
        self.run.knobs(Config())
        saver = CheckpointWriter(self.run, ranks, "lm", None, lambda: (self.run.step, {}), self.lines.append)
        self.restart = Restart(self.run, ranks, saver, Config, folder, self.lines.append)

    def turn(self, **wanted: Any) -> bool:
        """A boundary at which knobs are asked for, and what follows it."""
        for name, value in wanted.items():
            command = Command(
                id=name, run=self.run.id, epoch=run_state(self.run).epoch, verb="set", knob=name, value=value
            )
            run_state(self.run).inbox.receive(command, time.monotonic(), self.run.step + 1)
        self.run.boundary()
        return self.restart.due()

    def outcome(self) -> Outcome:
        (outcome,) = run_state(self.run).inbox.collect_outcomes()
        return outcome

    def execute(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The arguments of the new process."""
        started: list[list[str]] = []
        monkeypatch.setattr(os, "execv", lambda path, arguments: started.append(arguments))
        assert self.restart.leave()
        self.restart.begin()
        return started[0]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPTUI", "off")
    for name in (LEFT, RESTARTS, "_HOPTUI_RESTART"):
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "typed",
    [
        ["--hidden", "64"],
        ["--hidden=64", "--lr=0.1"],
        ["--pin-memory", "--resume", "old.ckpt"],
        ["--no-pin-memory", "--resume=old.ckpt"],
        ["--no_pin_memory", "--hidden", "64"],
        ["--pin_memory", "--lr=0.1"],
    ],
)
def test_knobs_come_from_the_checkpoint_and_not_from_the_first_command_line(typed: list[str]) -> None:
    knobs = {"--hidden": int, "--lr": float, "--pin-memory": bool}
    assert kept(["ppo", *typed, "--seed", "3"], knobs) == ["ppo", "--seed", "3"]


def test_options_may_be_spelled_with_underscores() -> None:
    assert kept(["ppo", "--num_envs", "8", "--run_name", "a_b"], {"--num-envs": int}) == [
        *("ppo", "--run_name", "a_b")
    ]


def test_an_option_that_only_begins_like_a_knob_stays() -> None:
    assert kept(["lm", "--hidden-layers", "3"], {"--hidden": int}) == ["lm", "--hidden-layers", "3"]


def test_the_new_process_gets_the_checkpoint_and_what_was_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["trainer", "ppo", "--lr=0.2", "--name", "x"])
    trained = Trained(tmp_path)
    assert not trained.turn()
    assert trained.turn(hidden=1_234_567)
    path = tmp_path / "lm-000000001.ckpt"
    assert path.exists()
    assert trained.lines == [f"restarting from {path} with hidden = 1234567"]
    assert trained.execute(monkeypatch)[2:] == [
        *("hoptui_trainer", "ppo", "--name", "x", f"--resume={path}", "--hidden=1234567")
    ]
    assert os.environ[RESTARTS] == "1"
    assert LEFT not in os.environ


def test_a_run_without_a_folder_gets_one_that_goes_once_training_has_gone_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = Trained(None)
    assert trained.turn(hidden=128)
    trained.execute(monkeypatch)
    folder = Path(os.environ[LEFT])
    assert [file.suffix for file in folder.iterdir()] == [".ckpt"]
    after = Trained(None)
    assert LEFT not in os.environ
    after.turn()
    assert folder.exists()  # the first iteration may be too much for the memory
    after.turn()
    assert not folder.exists()
    assert not after.restart.leave()


def test_the_folder_goes_with_the_end_of_the_run_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    monkeypatch.setenv(LEFT, str(folder))
    after = Trained(tmp_path)
    after.turn()
    assert folder.exists()
    assert not after.restart.leave()
    assert not folder.exists()


def test_where_nothing_can_be_written_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, golden: Golden
) -> None:
    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint_writer, "write_checkpoint", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trained = Trained(None)
    assert not trained.turn(hidden=128)
    outcome = trained.outcome()
    assert (outcome.stage, outcome.effective) == ("failed", 64)
    assert outcome.code == "reverted"
    assert outcome.fields["reason"].endswith(os.strerror(errno.ENOSPC))
    golden(f"{outcome.fields['reason']}\n")
    assert list(tmp_path.iterdir()) == []
    assert not trained.restart.leave()


def test_a_stop_comes_before_a_restart(tmp_path: Path, golden: Golden) -> None:
    trained = Trained(tmp_path)
    trained.run.boundary()
    trained.run.stop("SIGTERM")
    assert not trained.turn(hidden=128)
    golden(f"{trained.outcome().fields['reason']}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_not_every_rank_sees_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(RankGroup, "all", lambda _, ok: ok and not any(tmp_path.iterdir()))
    trained = Trained(tmp_path)
    assert not trained.turn(hidden=128)
    golden(f"{trained.outcome().fields['reason']}\n", normalize={re.escape(str(tmp_path)): "DIR"})
