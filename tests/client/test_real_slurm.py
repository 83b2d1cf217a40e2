"""The target `slurm:JOB` with the programs of a real Slurm of three nodes."""

from __future__ import annotations

import os
import pty
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.sshd import HOST, Sshd
from hoptui.client.client import Client
from hoptui.client.routes import There
from hoptui.client.slurm_jobs import Allocation, SlurmError, allocation, parse, place, srun
from tests.client.test_ssh_line import sshd
from tests.conftest import TestNode, until
from tests.slurm_cluster import Cluster, needs_slurm

__all__ = ["sshd"]

LIMIT_S = 30.0
pytestmark = [
    needs_slurm,
    pytest.mark.slow,
    pytest.mark.timeout(120, method="signal"),  # which ends the daemons too
]


@pytest.fixture
def slurm(three_nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster, whose programs this process finds too."""
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, three_nodes.environment[name])
    return three_nodes


def submit(slurm: Cluster, *options: str) -> str:
    """Queue a job that runs until it is cancelled; returns its number."""
    words = ("sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null")
    return slurm.run(*words, *options, "--wrap=srun --het-group=0 sleep 600 || srun sleep 600")


def runs(slurm: Cluster, job: str) -> bool:
    return slurm.run("squeue", "--noheader", f"--jobs={job}", "--states=RUNNING", "--format=%i") != ""


def test_jobs_arrays_components_and_steps(slurm: Cluster) -> None:
    one = ("--mem=50M", "--ntasks=1")
    job = submit(slurm, "--mem=50M", "--nodes=2", "--nodelist=gpu02,gpu03")
    array = submit(slurm, *one, "--array=0-3%1", "--nodelist=gpu01")
    mixed = submit(slurm, *one, "--nodelist=gpu03", ":", *one, "--nodelist=gpu01")
    until(lambda: all(runs(slurm, each) for each in (job, array, mixed)), seconds=LIMIT_S, what="their start")
    assert allocation(parse(f"slurm:{job}")) == Allocation(job, job, "gpu02")
    assert allocation(parse(f"slurm:{job}/gpu03")).node == "gpu03"
    assert allocation(parse(f"slurm:{job}.batch")).node == "gpu02"
    assert allocation(parse(f"slurm:{array}")).job == f"{array}_0"
    with pytest.raises(SlurmError, match=rf"job {array}_2 has not started \(PENDING"):
        allocation(parse(f"slurm:{array}_2"))
    assert allocation(parse(f"slurm:{mixed}")).node == "gpu03"
    component = allocation(parse(f"slurm:{mixed}/gpu01"))
    assert (component.job, component.node) == (f"{mixed}+1", "gpu01")
    slurm.run("scancel", job)
    until(lambda: slurm.state(job) == "CANCELLED", seconds=LIMIT_S, what="its end")
    with pytest.raises(SlurmError, match=rf"job {job} has ended \(CANCELLED\)"):
        allocation(parse(f"slurm:{job}"))
    with pytest.raises(SlurmError, match="Slurm lists no job 99999"):
        allocation(parse("slurm:99999"))
    for found in (allocation(parse(f"slurm:{array}")), component):
        assert on_a_terminal(srun(found, ["sh", "-c", "tty && echo on $SLURMD_NODENAME"])).endswith(
            f"on {found.node}"
        )


TRAINS = """
import time, hoptui
run = hoptui.connect("job")
knob = run.knob("lr", 0.1, min=0.0, max=1.0)
with run:
    for i in run.iterations():
        time.sleep(0.02)
        run.log(loss=1.0)
"""


def test_a_run_of_a_job_is_steered_through_ssh_to_its_node(
    slurm: Cluster, node: TestNode, sshd: Sshd, tmp_path: Path
) -> None:
    config = sshd.base / "ssh_config"
    config.write_text(config.read_text().replace(f"Host {HOST}\n", f"Host {HOST} gpu03\n"))
    (tmp_path / "train.py").write_text(TRAINS)
    names = ("HOPTUI_DIR", "HOPTUI_STATE_DIR", "HOPTUI_IDLE_S")
    exports = "\n".join(f"export {name}={shlex.quote(node.environment[name])}" for name in names)
    head = "#!/bin/bash\n#SBATCH --ntasks=1 --mem=1G --nodelist=gpu03"
    job = slurm.submit(f"{head}\n{exports}\nsrun {sys.executable} {tmp_path}/train.py\n", tmp_path)
    until(lambda: runs(slurm, job), seconds=LIMIT_S, what="the start of the job")
    client = Client(way=There(place(parse(f"slurm:{job}")), hoptui=str(sshd.hoptui)))

    def its_run() -> str | None:
        found = client.store.node
        return next((run.run for run in found.runs if run.name == "job"), None) if found else None

    try:
        client.start()
        run = until(its_run, seconds=LIMIT_S, what="the run of the job")
        command = client.send("set", run, knob="lr", value=0.5)
        until(lambda: client.store.commands[command].stage == "applied", seconds=LIMIT_S, what="the change")
        assert client.link.node == "gpu03"
    finally:
        client.close()
        slurm.run("scancel", job)
    until(lambda: slurm.state(job) == "CANCELLED", seconds=LIMIT_S, what="its end")


def on_a_terminal(words: list[str]) -> str:
    """Run a command on a pseudo-terminal and return what it shows."""
    master, slave = pty.openpty()
    process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    shown, end = b"", time.monotonic() + LIMIT_S
    try:
        while time.monotonic() < end and select.select([master], [], [], LIMIT_S)[0]:
            try:
                part = os.read(master, 4096)
            except OSError:  # the last process that has the terminal has ended
                break
            shown += part
        assert process.wait(LIMIT_S) == 0, shown
    finally:
        process.kill()
        process.wait()
        os.close(master)
    return shown.decode().strip()
