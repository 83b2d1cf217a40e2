"""A Slurm on this machine, for a test, with one node or with several: its daemons listen on the loopback
address alone, and all their files are in a folder of their own."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.conftest import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
LIMIT_S = 20.0

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,bf_interval=1
MpiDefault=none
KillWait=30
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=8000"


def _path() -> str:
    """Daemons are in /usr/sbin, which a user's PATH may lack."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


MISSING = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
needs_slurm = pytest.mark.skipif(
    bool(MISSING), reason=f"Slurm is not installed: {', '.join(MISSING)} not found"
)


class Cluster:
    """A running Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        outer = ("SLURM_", "SBATCH_", "SRUN_")  # of a job in which this test runs
        own = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
        self.environment = {**own, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}

    def run(self, *words: str) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.strip()

    def submit(self, script: str, folder: Path) -> str:
        """Queue a batch file whose working folder is `folder`; returns the number of the job."""
        path = folder / "job.sh"
        path.write_text(script)
        return self.run("sbatch", "--parsable", f"--chdir={folder}", str(path))

    def job(self, number: str) -> Mapping[str, str]:
        """What Slurm knows of a job."""
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self, number: str) -> str:
        """PENDING, RUNNING, COMPLETING, COMPLETED, FAILED, …"""
        return self.job(number)["JobState"]

    def wait_for_start(self, number: str, restarts: int) -> None:
        """Wait until a job that was queued again so often runs.

        Slurm lets it wait for two minutes, and here for two seconds. Without them the node may take it for
        the start before, whose credential was revoked in the same second.
        """

        def runs() -> bool:
            job = self.job(number)
            soon = (datetime.now() + timedelta(seconds=10)).isoformat(timespec="seconds")
            if job["JobState"] == "PENDING" and job["EligibleTime"] > soon:
                self.run("scontrol", "update", f"jobid={number}", "starttime=now+2")
            assert job["JobState"] != "FAILED"
            return (job["JobState"], job["Restarts"]) == ("RUNNING", str(restarts))

        until(runs, seconds=LIMIT_S, what="the next start")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A Slurm of this node that accepts jobs; its daemons and what they run are ended afterwards."""
    with _running([socket.gethostname().split(".")[0]]) as slurm:
        yield slurm


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Cluster]:
    """The same with the nodes gpu01, gpu02 and gpu03, which are all this machine."""
    with _running(["gpu01", "gpu02", "gpu03"]) as slurm:
        yield slurm


@contextmanager
def _running(names: Sequence[str]) -> Iterator[Cluster]:
    # Not a temporary folder of pytest's: munged wants a path that every user may enter.
    folder = Path(tempfile.mkdtemp(prefix="hoptui-slurm-", dir="/tmp"))
    folder.chmod(0o711)
    with ExitStack() as ended:
        ended.callback(shutil.rmtree, folder, ignore_errors=True)
        for name in ("state", *(f"spool-{name}" for name in names)):
            (folder / name).mkdir()
        (folder / "key").write_bytes(secrets.token_bytes(64))
        (folder / "key").chmod(0o600)
        host = socket.gethostname().split(".")[0]
        controller, *ports = _free_ports(1 + len(names))
        nodes = [
            NODE.format(name=name, host=host, port=port) for name, port in zip(names, ports, strict=True)
        ]
        config = CONFIG.format(
            host=host, controller=controller, nodes="\n".join(nodes), user=getpass.getuser(), folder=folder
        )
        (folder / "slurm.conf").write_text(config)
        slurm = Cluster(folder)
        files = [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
        _start(ended, folder, "munged", "--foreground", f"--socket={folder / 'munge'}", *files)
        until((folder / "munge").exists, what="munged")
        settings = ("-D", "-f", str(folder / "slurm.conf"))
        _start(ended, folder, "slurmctld", *settings)
        for name in names:
            _start(ended, folder, "slurmd", *settings, "-N", name)
        ready = ("sinfo", "--noheader", "--Node", "--format=%T")
        idle = ["idle"] * len(names)
        until(lambda: (_says(slurm, *ready) or "").split() == idle, seconds=LIMIT_S, what="idle nodes")
        ended.callback(_end_jobs, slurm)
        yield slurm


def _end_jobs(slurm: Cluster) -> None:
    """Kill what still runs, and wait until it is gone."""
    slurm.run("scancel", "--full", "--signal=KILL", "--me")
    slurm.run("scancel", "--me")
    until(lambda: not _says(slurm, "squeue", "--noheader"), seconds=LIMIT_S, what="an empty queue")


def _says(slurm: Cluster, *words: str) -> str | None:
    try:
        return slurm.run(*words)
    except AssertionError:
        return None


def _start(ended: ExitStack, folder: Path, name: str, *words: str) -> None:
    program = shutil.which(name, path=_path())
    assert program is not None
    with (folder / f"{name}.out").open("a") as out:
        process = subprocess.Popen([program, *words], stdout=out, stderr=subprocess.STDOUT)

    def end() -> None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)

    ended.callback(end)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
