"""The scripts that complete command lines in a shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hoptui.cli.main import COMMANDS
from tests.cli.conftest import Hoptui


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_has_every_command_and_is_valid(hoptui: Hoptui, tmp_path: Path, shell: str) -> None:
    ended = hoptui("completion", shell)
    assert (ended.code, ended.err) == (0, "")
    assert all(name in ended.out for name, _, _ in COMMANDS)
    assert "dry-run" in ended.out
    if program := shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(ended.out)
        subprocess.run([program, "-n", str(script)], check=True, timeout=20)


def test_another_shell_is_bad_usage(hoptui: Hoptui) -> None:
    assert hoptui("completion", "tcsh").code == 2
