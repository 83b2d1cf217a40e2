"""`hoptui train`: all that follows goes to the trainer unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from hoptui.cli.main import build
from tests.cli.conftest import Hoptui
from tests.golden import Golden


@pytest.mark.parametrize(
    "given", [(), ("--help",), ("ppo", "-h"), ("slurm", "--", "lm", "--name", "a b", "--version", "")]
)
def test_every_argument_goes_to_the_trainer(
    hoptui: Hoptui, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
) -> None:
    executed = []

    def execv(program: str, words: list[str]) -> None:
        executed.append((program, words))
        raise SystemExit

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(SystemExit):
        hoptui("train", *given)
    assert executed == [(sys.executable, [sys.executable, "-P", "-m", "hoptui_trainer", *given])]


def test_the_exit_code_and_the_messages_are_the_trainers() -> None:
    command = [sys.executable, "-m", "hoptui", "train", "slurm", "--nodes", "0", "--", "ppo"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("hoptui train: ")


def test_without_the_trainer(hoptui: Hoptui, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ended = hoptui("train", "ppo")
    assert (ended.code, ended.out) == (1, "")
    golden(hoptui.transcript())


def test_it_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    build()(["--help"], result_action="return_value")
    assert re.search(r" train +Train a model", capsys.readouterr().out)
