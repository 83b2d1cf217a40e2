"""The scripts that complete command lines in a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hoptui.cli.main import COMMANDS
from tests.cli.conftest import Hoptui
from tests.client.slurm_programs import write_programs


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


@pytest.mark.parametrize(
    ("shell", "asks"),
    [
        (
            "bash",
            "source {script}; COMP_LINE='hoptui attach slurm:2'; COMP_POINT=${{#COMP_LINE}}; "
            "COMP_WORDS=(hoptui attach slurm : 2); COMP_CWORD=4; _hoptui_and_jobs; echo ${{COMPREPLY[@]}}",
        ),
        ("fish", "source {script}; complete -C 'hoptui attach slurm:2'"),
        (
            "zsh",
            "compadd() {{ shift; print -l -- $@ | grep ^slurm:2; }}; source {script}; "
            "words=(hoptui attach slurm:2); CURRENT=3; _cyclopts_hoptui",
        ),
    ],
)
def test_running_slurm_jobs_are_completed(
    hoptui: Hoptui, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, asks: str
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    write_programs(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{tmp_path / 'slurm'}:{os.environ['PATH']}")
    script = tmp_path / "script"
    assert hoptui("--install-completion", "--shell", shell, "--output", str(script)).code == 0
    assert script.read_text() == hoptui("completion", shell).out.removesuffix("\n")
    command = [program, "-c", asks.format(script=script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout.split() == ["2_1" if shell == "bash" else "slurm:2_1"], done.stderr


def test_another_shell_is_bad_usage(hoptui: Hoptui) -> None:
    assert hoptui("completion", "tcsh").code == 2
