from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from trainer.common.restart import BEGAN, LEFT, Restart, changed, restarted


class Notes:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def event(self, text: str) -> None:
        self.texts.append(text)


def test_the_new_command_line_replaces_what_the_old_one_said() -> None:
    before = ["ppo", "--hidden", "64", "--lr=0.1", "--resume=old.ckpt", "--seed", "3", "--hidden=128"]
    assert changed(before, {"hidden": 256}, Path("new.ckpt")) == [
        "ppo", "--lr=0.1", "--seed", "3", "--hidden=256", "--resume=new.ckpt",
    ]  # fmt: skip


def test_an_option_that_only_begins_like_a_changed_one_stays() -> None:
    assert changed(["lm", "--hidden-layers", "3"], {"hidden": 2}, Path("c"))[:3] == [
        "lm",
        "--hidden-layers",
        "3",
    ]


def test_a_value_asked_for_waits_for_the_loop() -> None:
    restart = Restart(world=1)
    restart.ask("hidden")(128)
    assert restart.wanted == {"hidden": 128}


def test_one_of_several_processes_is_not_replaced_alone() -> None:
    restart = Restart(world=2)
    with pytest.raises(RuntimeError, match="hidden needs a restart, and this run has 2 processes"):
        restart.ask("hidden")(128)
    assert not restart.wanted


def test_a_run_without_a_folder_gets_one_that_is_removed_after_it_was_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(LEFT, "")  # restored afterwards
    monkeypatch.setenv(BEGAN, str(time.monotonic_ns() - 2_000_000_000))
    restart = Restart(world=1)
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
