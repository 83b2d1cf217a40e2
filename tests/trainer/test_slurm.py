"""The batch file: valid bash, Slurm's options, and what it does where `srun`, `scontrol` and `scancel` are
there. `test_real_slurm.py` runs it under Slurm itself."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hoptui_trainer.__main__ import main
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.signals import STOPPED
from hoptui_trainer.slurm.allocation import Allocation, limit_s
from hoptui_trainer.slurm.batch_file import batch_file
from hoptui_trainer.slurm.training_command import checked
from tests.conftest import until
from tests.golden import Golden

LIMIT_S = 60.0
TWO = Allocation(
    nodes=1, gpus_per_node=0, processes_per_node=2, time="00:10:00", job_name="two", output="%x-%j.log"
)
MEETS = """
import os, sys, torch
torch.set_num_threads(1)
from hoptui_trainer.common.ranks import join
with join("cpu") as ranks:
    found = ranks.gather((ranks.rank, sys.argv[4:], os.environ["OMP_NUM_THREADS"], os.environ["NCCL_DEBUG"]))
    os.write(1, f"{found[ranks.rank]}\\n".encode())  # in one piece: the ranks share this pipe
"""
TRAINER = f"""
import json, os, pathlib, signal, sys
pathlib.Path("arguments").write_text(json.dumps(sys.argv[4:]))
how = os.environ["HOW"]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
pathlib.Path("ready").touch()
while "stop" in how and not stopped:
    signal.sigtimedwait([], 0.01)
if "write" in how:
    pathlib.Path(sys.argv[sys.argv.index("--checkpoint-dir") + 1], "lm-000000007.ckpt").touch()
if "stop" in how:
    pathlib.Path(os.environ["{STOPPED}"]).touch()
sys.exit(3 if "fail" in how else 0)
"""
FAKES = {
    "srun": """
        while [[ $1 == --* ]]; do shift; done
        export SLURM_NTASKS=$TASKS
        for ((rank = 0; rank < TASKS; rank++)); do
          SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & pids+=($!)
        done
        echo "${pids[@]}" > pids
        for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
        exit "${code:-0}"
        """,
    "scontrol": """
        if [[ $1 == requeue ]]; then echo "$*" >> requeued; fi
        if [[ "$*" == "show hostnames gpu[07-08]" ]]; then printf '127.0.0.1\\ngpu08\\n'; fi
        """,
    "scancel": """
        [[ "$*" == "--signal=TERM 40007.0" ]] && kill -TERM $(cat pids)
        """,
}
SMALL = ("lm", "--preset", "tiny")


@contextmanager
def started(script: str, folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The batch file as Slurm starts it in `folder`."""
    commands = folder / "commands"
    commands.mkdir(exist_ok=True)
    for name, content in FAKES.items():
        (commands / name).write_text(f"#!/bin/bash\n{content}")
        (commands / name).chmod(0o755)
    job = {
        "SLURM_JOB_ID": "40007",
        "SLURM_JOB_NAME": "two",
        "SLURM_JOB_NODELIST": "gpu[07-08]",
        "SLURM_JOB_NUM_NODES": "1",
        "TASKS": "1",
        "HOPTUI": "off",
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    (folder / "job.sh").write_text(script)
    with subprocess.Popen(
        ["bash", "job.sh"],
        cwd=folder,
        env={**os.environ, **job, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def options(script: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(\S*)$", script, flags=re.MULTILINE))


def command(*words: str) -> list[str]:
    return ["slurm", *words]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The batch file of a command line."""
    assert main(command(*words)) == 0
    script = capsys.readouterr().out
    checked_syntax = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=10)
    assert (checked_syntax.returncode, checked_syntax.stderr) == (0, "")
    return script


def test_the_command_prints_a_batch_file(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    asked = ("--nodes", "2", "--cpus-per-gpu", "12", "--partition", "h100", "--time", "1-12")
    script = printed(capsys, *asked, "--", "lm", "--preset", "124m", "--name", "it's mine")
    assert options(script) == {
        "job-name": "trainer",
        "output": "%x-%j.log",
        "time": "1-12",
        "nodes": "2",
        "ntasks-per-node": "8",
        "gpus-per-node": "8",
        "cpus-per-task": "12",
        "partition": "h100",
    }
    golden(script, normalize={re.escape(sys.executable): "PYTHON"})


def test_the_settings_of_a_job_that_is_queued_again(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    asked = ["--requeue", "--gpus-per-node", "4", "--mem", "256GB", "--qos", "high", "--account", "lab"]
    asked += ["--sbatch", "exclusive", "--sbatch", "constraint=h100&ib", "--sbatch", "--mail-user=a@b.org"]
    asked += ["--env", "NCCL_DEBUG=INFO", "--env", "NCCL_SOCKET_IFNAME=eth0", "--env", "OMP_NUM_THREADS=3"]
    script = printed(capsys, *asked, "--", "lm", "--preset", "124m", "--lr", "1e-3", "--checkpoint-every=500")
    found = options(script)
    assert {
        name: found[name] for name in ("mem", "qos", "account", "exclusive", "constraint", "mail-user")
    } == {
        "mem": "256GB",
        "qos": "high",
        "account": "lab",
        "exclusive": "",
        "constraint": "h100&ib",
        "mail-user": "a@b.org",
    }
    assert (found["requeue"], found["open-mode"], found["signal"]) == ("", "append", "B:USR1@120")
    assert dict(re.findall(r"^export (NCCL\w+|OMP\w+)=(.*)$", script, flags=re.MULTILINE)) == {
        "NCCL_DEBUG": "INFO",
        "NCCL_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "3",
    }
    golden(script, normalize={re.escape(sys.executable): "PYTHON"})


def test_ranks_meet_where_slurm_is(tmp_path: Path) -> None:
    program = tmp_path / "meets.py"
    program.write_text(MEETS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    training = checked([*SMALL, "--name", "two words"], world=2, on_gpu=False, has_folder=False)
    script = batch_file(TWO, [sys.executable, str(program)], training, variables=["NCCL_DEBUG=a 'b'"])
    with started(script, tmp_path, TASKS="2", SLURM_JOB_ID=str((port - 20000) % 20000 + 40000)) as process:
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    words = [*SMALL, "--name", "two words"]
    assert sorted(out.splitlines()) == [str((rank, words, "1", "a 'b'")) for rank in range(2)]


def requeued_script(folder: Path, *words: str) -> str:
    """A batch file with --requeue, of which the trainer is a small program."""
    (folder / "trainer.py").write_text(TRAINER)
    training = checked(words or SMALL, world=1, on_gpu=False, has_folder=True)
    return batch_file(TWO, [sys.executable, str(folder / "trainer.py")], training, stop_before_s=60)


def after(folder: Path, how: str, *signals: str) -> tuple[int, list[str]]:
    """The exit code of the batch file, and the calls that would queue it again, if the job is sent these
    signals: to the `step`, or to the `batch` file."""
    with started(requeued_script(folder), folder, HOW=how) as process:
        if signals:
            until((folder / "ready").exists, what="the trainer")
        for word in signals:
            to, name = word.split()
            pid = process.pid if to == "batch" else int((folder / "pids").read_text())
            os.kill(pid, signal.Signals[f"SIG{name}"])
        process.communicate(timeout=LIMIT_S)
    asked = folder / "requeued"
    return process.returncode, asked.read_text().splitlines() if asked.exists() else []


AGAIN = ["requeue 40007"]


@pytest.mark.parametrize(
    ("how", "signals", "expected"),
    [
        pytest.param("finish write", (), (0, []), id="finished"),
        pytest.param("fail", (), (3, []), id="failed"),
        pytest.param("stop write", ("batch USR1",), (0, AGAIN), id="out of time"),
        pytest.param("stop", ("batch USR1",), (1, []), id="out of time, and no further"),
        pytest.param("stop", ("step TERM",), (0, AGAIN), id="preempted, with time to end"),
        pytest.param("stop write", ("batch TERM", "step TERM"), (0, []), id="ended by Slurm"),
        pytest.param("stop write fail", ("step TERM",), (3, []), id="failed while it stopped"),
    ],
)
def test_only_a_run_that_a_signal_has_stopped_is_queued_again(
    tmp_path: Path, how: str, signals: tuple[str, ...], expected: tuple[int, list[str]]
) -> None:
    assert after(tmp_path, how, *signals) == expected
    assert not list(tmp_path.glob("two-40007/.stopped*")) or expected[1] == []


def test_a_job_that_was_queued_again_has_the_knobs_of_its_checkpoint(tmp_path: Path) -> None:
    given = ("lm", "--resume", "old.ckpt", "--lr=0.1", "--threads", "2", "--checkpoint-dir", "kept here")

    def arguments(restarts: str) -> list[str]:
        script = requeued_script(tmp_path, *given)
        with started(script, tmp_path, HOW="finish write", SLURM_RESTART_COUNT=restarts) as process:
            assert process.wait(LIMIT_S) == 0
        found: list[str] = json.loads((tmp_path / "arguments").read_text())
        return found

    assert arguments("1") == list(given)  # there is no checkpoint yet: this time it is written
    kept = ["lm", "--threads", "2", "--checkpoint-dir", "kept here", "--resume", "kept here"]
    assert arguments("1") == kept
    assert arguments("0") == list(given)


def test_the_command_is_checked_without_torch() -> None:
    code = (
        "import sys; from hoptui_trainer.__main__ import main\n"
        "for words in (['lm'], ['ppo', '--preset', 'h100-after'], ['vision', '--preset', 'vit-g']):\n"
        "    assert main(['slurm', '--', *words]) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--nodse 2 -- lm", "--nodse"),
        ("--nodes 0 -- lm", "--nodes"),
        ("--mem 256XB -- lm", "--mem"),
        ("--qos a;b -- lm", "--qos"),
        ("--processes-per-node 2 -- lm", "--processes-per-node"),
        ("--stop-before 60 -- lm", "--stop-before"),
        ("--requeue --time 2 -- lm", "--stop-before"),
        ("--env NCCL_DEBUG -- lm", "--env"),
        ("--env 1A=2 -- lm", "--env"),
        ("--sbatch nodes=2 -- lm", "--nodes"),
        ("--sbatch ntasks=2 -- lm", "--sbatch"),
        ("--sbatch comment='x' -- lm", "--sbatch"),
        ("--sbatch exclusive --sbatch exclusive=user -- lm", "--sbatch exclusive"),
        ("--nodes 2 lm --preset tiny", "follows a --"),
        ("", "after a --"),
        ("-- --nodes 3", "after a --"),
        ("-- train", "train"),
        ("-- slurm -- lm", "slurm"),
        ("-- lm stray", "stray"),
        ("-- lm --nonsense 3", "--nonsense"),
        ("-- lm --help", "--help"),
        ("-- lm --preset huge", "--preset"),
        ("-- ppo --preset huge", "--preset"),
        ("-- vision --preset huge", "--preset"),
        ("-- lm --lr much", "--lr"),
        ("-- lm --lr -1", "--lr"),
        ("-- lm --resume old.ckpt --lr -1", "--lr"),
        ("-- lm --batch-tokens 1024", "--batch-tokens"),
        ("-- lm --checkpoint-every 5", "--checkpoint-dir"),
        ("-- ppo --policy tiny --hidden 256", "--hidden"),
        ("-- vision --preset tiny --num-workers 3", "--num-workers"),
        ("-- lm --device cpu", "--gpus-per-node 0"),
        ("--gpus-per-node 0 -- lm --device cuda", "--device"),
    ],
)
def test_what_would_fail_in_the_queue_is_refused(
    words: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(*words.split())) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("hoptui train: ")
    assert named in err


def test_a_folder_of_the_cluster_is_not_made_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "--", *SMALL, "--checkpoint-dir", str(tmp_path / "there"), "--checkpoint-every", "5")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("0", 0), ("1:30", 90), ("02:00:30", 7230), ("1-12", 129_600), ("0-00:01:05", 65)],
)
def test_a_time_limit_in_seconds(time: str, seconds: int) -> None:
    assert limit_s(time) == seconds


@pytest.mark.parametrize("time", ["soon", "1h", "10:0", "1-", "-1", "10\n#SBATCH --nodes=9"])
def test_what_is_no_time_is_refused(time: str) -> None:
    with pytest.raises(UsageError, match="--time"):
        limit_s(time)


@pytest.mark.parametrize("name", ["two words", "a\nb", "$(reboot)"])
def test_what_is_no_word_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("--job-name", name, "--", "ppo")) == 2
    assert "--job-name" in capsys.readouterr().err
