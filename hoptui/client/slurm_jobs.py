"""The nodes of a Slurm job, for the target `slurm:JOB[/NODE[/RUN]]`.

`JOB` is a job (`123`), a task of an array (`123_4`) or a component of a heterogeneous job (`123+1`), each
with an optional step (`123.0`). `squeue` and `scontrol` of this machine are asked, once, when the target is
resolved.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hoptui.client.target import SLURM, BadPlace, Place, is_host
from hoptui.presentation.numbers import clean

FORM = "slurm:JOB[/NODE[/RUN]]"
LIMIT_S = 20.0
"""How long Slurm may take for an answer. Its programs retry for a minute if the controller is down."""
MOST_NAMED = 8
"""Nodes, tasks or steps that an error lists."""
RUNNING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"})
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
"""States of Slurm in which a job has not started, or not again. All others but `RUNNING` are ends."""

_JOB = re.compile(r"(\d+(?:_\d+|\+\d+)?)(?:\.(\d+|batch|extern|interactive))?", re.ASCII)
_COLUMNS = "%i|%A|%T|%B|%N|%r"


class SlurmError(Exception):
    """A job has no node to connect to, or Slurm does not answer. The message is one sentence."""


class SlurmTarget(NamedTuple):
    """What a user typed. `step` and `node` are empty if rank 0 of the whole job is meant."""

    job: str
    step: str = ""
    node: str = ""
    run: str = ""


class Allocation(NamedTuple):
    """A running job as `squeue` writes it, its plain number, and the node that is meant."""

    job: str
    number: str
    node: str


class _Entry(NamedTuple):
    """A line of squeue. `job` is as users write it, `number` a plain one. `nodes` is a compressed list."""

    job: str
    number: str
    state: str
    batch_host: str
    nodes: str
    reason: str


def parse(typed: str) -> SlurmTarget:
    """Parse a target that begins with `slurm:`.

    Raises:
        BadPlace: it names no job, or an invalid job or node.
    """
    number, _, rest = typed[len(SLURM) :].partition("/")
    found = _JOB.fullmatch(number)
    if found is None:
        raise BadPlace(
            f"{clean(typed, 80)!r} names no Slurm job: {FORM}, where JOB is 123, 123_4, 123+1 or 123.0"
        )
    node, _, run = rest.partition("/")
    if node and not is_host(node):
        raise BadPlace(f"{clean(typed, 80)!r}: {clean(node, 40)!r} is no node's name")
    return SlurmTarget(found[1], found[2] or "", node, run.rstrip("/"))


def allocation(target: SlurmTarget) -> Allocation:
    """Ask Slurm for the job and return its node of rank 0, or the node that the target names.

    The node of rank 0 is the host of the batch file, or the first node of the step. It is the first node of
    the job where there is no batch file.

    Raises:
        SlurmError: the job waits, has ended or is unknown, has no such step or node, or Slurm is silent.
    """
    entries = _entries(target.job)
    entry = _chosen(target.job, entries)
    if entry.state in WAITING:
        why = "" if entry.reason in ("", "None") else f", {entry.reason}"
        raise SlurmError(
            f"job {entry.job} has not started ({entry.state}{why}): attach when squeue shows it as RUNNING"
        )
    if entry.state not in RUNNING:
        there = f" on {entry.batch_host}" if is_host(entry.batch_host) else ""
        raise SlurmError(
            f"job {entry.job} has ended ({entry.state}): hoptui ls --all{there} lists its recordings"
        )
    nodes = _expanded(_nodes_of_step(entry, target.step) if target.step else entry.nodes)
    if not nodes:
        raise SlurmError(f"job {entry.job} has no node yet ({entry.state})")
    first = entry.batch_host if not target.step and entry.batch_host in nodes else nodes[0]
    if not target.node or target.node in nodes:
        return Allocation(entry.job, entry.number, target.node or first)
    if not target.step and entry.job == f"{target.job}+0":
        for other in entries:
            more = _expanded(other.nodes) if other is not entry else []
            if target.node in more:
                return Allocation(other.job, other.number, target.node)
            nodes += more
    raise SlurmError(f"{target.node} is no node of job {target.job}: it has {_listed(nodes)}")


def place(target: SlurmTarget, environ: Mapping[str, str] = os.environ) -> Place:
    """Return the place of a job's node: this machine if it is that node, else a host for ssh.

    Raises:
        SlurmError: see `allocation`.
    """
    node = allocation(target).node
    return Place(run=target.run) if is_here(node, environ) else Place(node, run=target.run)


def is_here(node: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this machine is a node. A process of a job has the name of its node in a variable."""
    if name := environ.get("SLURMD_NODENAME"):
        return name == node
    host = socket.gethostname()
    return node in (host, host.partition(".")[0])


def srun(found: Allocation, words: Sequence[str]) -> list[str]:
    """Return the command that runs `words` on a node of a job, on this terminal.

    The step shares the processors, memory and GPUs of the job. It takes none from the steps of the training.
    """
    leader, plus, group = found.job.partition("+")
    job = [f"--jobid={leader}", f"--het-group={group}"] if plus else [f"--jobid={found.number}"]
    one = ["--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={found.node}", "--pty"]
    return ["srun", *job, *one, *words]


def _entries(job: str) -> list[_Entry]:
    try:
        text = _ask("squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={_COLUMNS}")
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise
        text = ""
    rows = [line.strip().split("|", len(_Entry._fields) - 1) for line in text.splitlines()]
    found = [_Entry(*row) for row in rows if len(row) == len(_Entry._fields)]
    if not found:
        raise SlurmError(
            f"Slurm lists no job {job}: it never was, or ended a while ago; squeue --me lists your jobs"
        )
    return found


def _chosen(job: str, entries: Sequence[_Entry]) -> _Entry:
    """Return the entry that is meant. `squeue` lists all tasks of an array, and all components."""
    exact = [entry for entry in entries if entry.job == job]
    if exact:
        return exact[0]
    if "_" in job or "+" in job:
        raise SlurmError(f"job {job} is not among those of Slurm: {_listed([e.job for e in entries])}")
    by_number = [entry for entry in entries if entry.number == job and not entry.job.startswith(f"{job}_")]
    if by_number:  # a component, or a task by its plain number
        return by_number[0]
    running = sorted((entry for entry in entries if entry.state in RUNNING), key=_place_in_array)
    if len(running) > 1:
        tasks = [entry.job for entry in running]
        raise SlurmError(
            f"several tasks of job {job} are running: name one of {_listed(tasks)}, as in {SLURM}{tasks[0]}"
        )
    return (running or entries)[0]


def _place_in_array(entry: _Entry) -> int:
    task = entry.job.partition("_")[2]
    return int(task) if task.isdecimal() else 0


def _nodes_of_step(entry: _Entry, step: str) -> str:
    text = _ask("squeue", "--noheader", "--steps", f"--jobs={entry.number}", "--format=%i|%N")
    rows = [line.strip().partition("|") for line in text.splitlines()]
    steps = {name.rpartition(".")[2]: nodes for name, _, nodes in rows}
    if step not in steps:
        known = f"its steps are {_listed(list(steps))}" if steps else "it has none"
        raise SlurmError(f"job {entry.job} has no running step {step}: {known}")
    return steps[step]


def _expanded(nodes: str) -> list[str]:
    """Return the nodes of a list such as `gpu[01-03]`, in its order."""
    if not nodes:
        return []
    names = [nodes] if is_host(nodes) else _ask("scontrol", "show", "hostnames", nodes).split()
    strange = next((name for name in names if not is_host(name)), None)
    if strange is not None:
        raise SlurmError(f"Slurm names a node {clean(strange, 40)!r}, which is no host's name")
    return names


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return clean(", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else ""), 400)


def _ask(*words: str) -> str:
    """Run a program of Slurm and return what it prints.

    Raises:
        SlurmError: it is not installed, fails, or does not end in time.
    """
    program = words[0]
    if shutil.which(program) is None:
        raise SlurmError(
            f"{program} is not on the PATH of this machine: run hoptui where Slurm is, or name the node as "
            "ssh://NODE"
        )
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{program} did not answer within {LIMIT_S:g} s: is Slurm running?") from None
    except OSError as error:
        raise SlurmError(f"{program} cannot be started: {error.strerror}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        last = lines[-1].removeprefix(f"{program}: error: ") if lines else f"code {done.returncode}"
        raise SlurmError(f"{program}: {clean(last, 200)}")
    return done.stdout
