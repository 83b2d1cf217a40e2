"""The batch file under a real Slurm of one node: a job that is stopped and queued again ends with the result
of one that is not disturbed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hoptui_trainer.slurm.command import slurm
from tests.conftest import until
from tests.slurm_cluster import Cluster, needs_slurm
from tests.trainer.warm import ranks

LIMIT_S = 40.0
TRAINING = ("lm", "--preset", "tiny", "--iterations", "250", "--evaluate-every", "50", "--json")

pytestmark = [
    needs_slurm,
    pytest.mark.slow,
    pytest.mark.timeout(110, method="signal"),  # which ends the daemons too
]


def batch(capsys: pytest.CaptureFixture[str], *command: str, processes: int = 1) -> str:
    """A batch file for CPUs, with --requeue."""
    code = slurm(*command, gpus_per_node=0, processes_per_node=processes, mem="500M", time="10", requeue=True)
    assert code == 0
    return capsys.readouterr().out


def results(folder: Path, number: str) -> list[dict[str, Any]]:
    """The results in the log of a job, one for each start."""
    lines = (folder / f"trainer-{number}.log").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def written(folder: Path) -> int:
    """The iteration of the newest checkpoint."""
    return max((int(path.stem.split("-")[-1]) for path in folder.glob("*/lm-*.ckpt")), default=0)


def test_a_job_that_is_queued_again_ends_as_if_it_had_not_been_disturbed(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = batch(capsys, *TRAINING, "--checkpoint-every", "20", processes=2)
    number = cluster.submit(script, tmp_path)

    def ended_with(ending: str, count: int) -> bool:
        return [found["ending"] for found in results(tmp_path, number)].count(ending) == count

    until(lambda: written(tmp_path) >= 20, seconds=LIMIT_S, what="the first start")
    cluster.run("scancel", "--batch", "--signal=USR1", number)  # as Slurm does before the time limit
    until(lambda: ended_with("stopped", 1), seconds=LIMIT_S, what="the end of the first start")
    reached = written(tmp_path)

    cluster.wait_for_start(number, restarts=1)
    until(lambda: written(tmp_path) > reached, seconds=LIMIT_S, what="the second start")
    cluster.run("scontrol", "requeue", number)  # as Slurm does for a job of higher priority
    until(lambda: ended_with("stopped", 2), seconds=LIMIT_S, what="the end of the second start")

    cluster.wait_for_start(number, restarts=2)
    until(lambda: cluster.state(number) == "COMPLETED", seconds=LIMIT_S, what="the end of the job")
    assert cluster.job(number)["Restarts"] == "2"
    first, second, last = results(tmp_path, number)
    assert 0 < first["iterations"] < second["iterations"] < last["iterations"] == 250
    assert last["ending"] == "finished"

    with ranks("-m", "hoptui_trainer", *TRAINING) as processes:
        undisturbed = json.loads(processes[0].communicate(LIMIT_S)[0])
        processes[1].communicate(LIMIT_S)
    for figure in ("loss", "val_loss", "best_val_loss", "tokens"):
        assert last[figure] == undisturbed[figure]


def test_a_job_that_fails_is_not_queued_again(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number = cluster.submit(batch(capsys, "lm", "--preset", "tiny", "--corpus", "/nowhere"), tmp_path)
    until(lambda: cluster.state(number) not in ("PENDING", "RUNNING", "COMPLETING"), seconds=LIMIT_S)
    found = cluster.job(number)
    assert (found["JobState"], found["Restarts"], found["ExitCode"]) == ("FAILED", "0", "2:0")


def test_a_job_that_is_cancelled_is_not_queued_again(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endless = ("lm", "--preset", "tiny", "--iterations", "1000000", "--checkpoint-every", "10", "--json")
    number = cluster.submit(batch(capsys, *endless), tmp_path)
    until(lambda: written(tmp_path), seconds=LIMIT_S, what="its start")
    cluster.run("scancel", number)
    until(lambda: results(tmp_path, number), seconds=LIMIT_S, what="its end")
    until(lambda: cluster.state(number) == "CANCELLED", seconds=LIMIT_S)
    assert cluster.job(number)["Restarts"] == "0"
