"""The batch file: valid bash, Slurm's options, and a command that runs where `srun` and `scontrol` are
there."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.slurm import Allocation, batch_file, slurm
from tests.golden import Golden

WANTED = Allocation(
    nodes=1, gpus_per_node=2, time="00:10:00", job_name="two", output="%x-%j.log", account="lab"
)
MEETS = """
import os, sys, torch
torch.set_num_threads(1)
from hoptui_trainer.common.ranks import join
with join("cpu") as ranks:
    found = ranks.gather((ranks.rank, sys.argv[1:]))[ranks.rank]
    os.write(1, f"{found}\\n".encode())  # in one piece: the ranks share this pipe
"""
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
SCONTROL = """#!/bin/bash
[[ "$*" == "show hostnames gpu[07-08]" ]] && printf '127.0.0.1\\ngpu08\\n'
"""


def bash(script: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", *options],
        input=script,
        env={**os.environ, "HOPTUI": "off", "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def options(script: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", script, flags=re.MULTILINE))


def test_the_command_prints_a_batch_file(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    code = slurm(
        "lm",
        "--preset",
        "124m",
        "--name",
        "it's mine",
        nodes=2,
        cpus_per_gpu=12,
        partition="h100",
        time="1-12",
    )
    script = capsys.readouterr().out
    assert code == 0
    assert bash(script, "-n").stderr == ""
    assert options(script) == {
        "job-name": "trainer",
        "output": "%x-%j.log",
        "time": "1-12",
        "nodes": "2",
        "ntasks-per-node": "1",
        "gpus-per-node": "8",
        "cpus-per-task": "96",
        "partition": "h100",
    }
    golden(script, normalize={re.escape(sys.executable): "PYTHON"})


def test_it_runs_where_slurm_is(tmp_path: Path) -> None:
    for name, content in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    program = tmp_path / "meets.py"
    program.write_text(MEETS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = bash(
        batch_file(WANTED, (str(program), "--name", "two words")),
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        PYTHONPATH=str(Path(__file__).resolve().parents[2]),
        SLURM_JOB_NODELIST="gpu[07-08]",
        SLURM_JOB_NUM_NODES="1",
        SLURM_JOB_ID=str((port - 20000) % 20000 + 40000),
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "(0, ['--name', 'two words'])",
        "(1, ['--name', 'two words'])",
    ]


@pytest.mark.parametrize("time", ["soon", "1h", "10:0", "1-", "-1", "10\n#SBATCH --nodes=9"])
def test_what_is_no_time_is_refused(time: str) -> None:
    with pytest.raises(UsageError, match="--time"):
        slurm("ppo", time=time)


@pytest.mark.parametrize("name", ["two words", "a\nb", "$(reboot)"])
def test_what_is_no_word_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--job-name"):
        slurm("ppo", job_name=name)


@pytest.mark.parametrize("command", [(), ("--nodes", "3")])
def test_a_command_is_needed(command: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="after a --"):
        slurm(*command)
