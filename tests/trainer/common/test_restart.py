from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from hoptui import Knob
from trainer.common.restart import BEGAN, LEFT, Restart, kept, restarted


class Notes:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def event(self, text: str) -> None:
        self.texts.append(text)


@dataclass
class Config:
    hidden: Annotated[int, Knob(1, 512, cost="restart")] = 64
    lr: Annotated[float, Knob(1e-6, 1.0)] = 0.1
    pin_memory: Annotated[bool, Knob()] = True


@pytest.mark.parametrize(
    "typed",
    [
        ["--hidden", "64"],
        ["--hidden=64", "--lr=0.1"],
        ["--pin-memory", "--resume", "old.ckpt"],
        ["--no-pin-memory", "--resume=old.ckpt"],
    ],
)
def test_knobs_come_from_the_checkpoint_and_not_from_the_first_command_line(typed: list[str]) -> None:
    knobs = {"--hidden": int, "--lr": float, "--pin-memory": bool}
    assert kept(["ppo", *typed, "--seed", "3"], knobs) == ["ppo", "--seed", "3"]


def test_an_option_that_only_begins_like_a_knob_stays() -> None:
    assert kept(["lm", "--hidden-layers", "3"], {"--hidden": int}) == ["lm", "--hidden-layers", "3"]


def test_the_new_process_gets_the_checkpoint_and_what_was_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(sys, "argv", ["trainer", "ppo", "--lr=0.2", "--name", "x"])
    monkeypatch.setattr(os, "execv", lambda path, arguments: started.append(arguments))
    monkeypatch.setenv(BEGAN, "")  # restored afterwards
    restart = Restart(1, Config)
    restart.ask("hidden", lambda: 64)(128)
    restart.begin(Path("new.ckpt"))
    assert started == [
        [sys.executable, "-m", "trainer", "ppo", "--name", "x", "--resume=new.ckpt", "--hidden=128"]
    ]


def test_a_value_asked_for_waits_for_the_loop() -> None:
    restart = Restart(1, Config)
    restart.ask("hidden", lambda: 64)(128)
    assert restart.wanted == {"hidden": 128}


def test_a_value_that_is_set_back_restarts_nothing() -> None:
    restart = Restart(1, Config)
    apply = restart.ask("hidden", lambda: 64)
    apply(128)
    apply(64)
    assert not restart.wanted
    Restart(2, Config).ask("hidden", lambda: 64)(64)  # what follows a refusal among ranks is not refused


def test_one_of_several_processes_is_not_replaced_alone() -> None:
    restart = Restart(2, Config)
    with pytest.raises(RuntimeError, match="hidden needs a restart, and this run has 2 processes"):
        restart.ask("hidden", lambda: 64)(128)
    assert not restart.wanted


def test_a_run_without_a_folder_gets_one_that_is_removed_after_it_was_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(LEFT, "")  # restored afterwards
    monkeypatch.setenv(BEGAN, str(time.monotonic_ns() - 2_000_000_000))
    restart = Restart(1, Config)
    assert restart.folder(tmp_path) == tmp_path
    folder = restart.folder(None)
    assert folder.is_dir()
    notes = Notes()
    restarted(notes)  # type: ignore[arg-type]
    assert not folder.exists()
    assert notes.texts[0].startswith("restarted from a checkpoint; training stood still for 2.")
    assert BEGAN not in os.environ
    restarted(notes)  # type: ignore[arg-type]
    assert len(notes.texts) == 1
