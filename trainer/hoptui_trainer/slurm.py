"""`hoptui train slurm`: a batch file for Slurm that runs a training command on every GPU of some nodes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.job import AtLeastOne

TIME = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}")
WORD = re.compile(r"[A-Za-z0-9_.,%@+/-]+")


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What is asked of Slurm; None leaves a thing to the cluster's defaults."""

    nodes: int
    gpus_per_node: int
    time: str
    job_name: str
    output: str
    partition: str | None = None
    account: str | None = None
    cpus_per_gpu: int | None = None


def slurm(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    nodes: AtLeastOne = 1,
    gpus_per_node: AtLeastOne = 8,
    time: str = "1-00:00:00",
    job_name: str = "trainer",
    output: str = "%x-%j.log",
    partition: str | None = None,
    account: str | None = None,
    cpus_per_gpu: AtLeastOne | None = None,
) -> int:
    """Print a batch file for a training command: hoptui train slurm --nodes 2 -- lm --preset 124m > job.sh;
    sbatch job.sh

    One torchrun a node starts one process a GPU. hoptui shows the run on the node of rank 0, by its name the
    first one.

    Parameters
    ----------
    command
        What follows `hoptui train`, after a --.
    nodes
        Machines.
    gpus_per_node
        GPUs, and processes, of each.
    time
        Time limit as Slurm writes it: minutes, hours:minutes:seconds, days-hours:minutes:seconds.
    job_name
        Name of the job in Slurm.
    output
        File for what the job prints; %x is its name, %j its number.
    partition
        Partition [default: the cluster's].
    account
        Account [default: yours].
    cpus_per_gpu
        CPU cores for each GPU [default: the cluster's].
    """
    if not command or command[0].startswith("-"):
        raise UsageError(
            "slurm: give the training command after a --, e.g. hoptui train slurm --nodes 2 -- ppo"
        )
    allocation = Allocation(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        time=time,
        job_name=job_name,
        output=output,
        partition=partition,
        account=account,
        cpus_per_gpu=cpus_per_gpu,
    )
    print(batch_file(allocation, ("-m", "hoptui_trainer", *command)), end="")
    return 0


def batch_file(wanted: Allocation, program: Sequence[str]) -> str:
    """The batch file that runs this Python with `program` on every GPU.

    Raises:
        UsageError: a word that Slurm would not take, or would take for something else.
    """
    if not TIME.fullmatch(wanted.time):
        raise UsageError(f"--time {wanted.time}: this is no time limit, e.g. 04:00:00 or 1-12:00:00")
    for option in ("job_name", "output", "partition", "account"):
        word = getattr(wanted, option)
        if word and not WORD.fullmatch(word):
            raise UsageError(
                f"--{option.replace('_', '-')} {word!r}: one word of letters, digits and _ . , % @ + / -"
            )
    cpus = wanted.cpus_per_gpu and wanted.cpus_per_gpu * wanted.gpus_per_node
    options = {
        "job-name": wanted.job_name,
        "output": wanted.output,
        "time": wanted.time,
        "nodes": wanted.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": wanted.gpus_per_node,
        "cpus-per-task": cpus,
        "partition": wanted.partition,
        "account": wanted.account,
    }
    lines = "\n".join(f"#SBATCH --{name}={value}" for name, value in options.items() if value)
    return TEMPLATE.format(
        options=lines,
        # Since Slurm 22.05 srun no longer takes it from the batch file: without it all of a node's ranks may
        # share one core.
        step=f" --cpus-per-task={cpus}" if cpus else "",
        python=shlex.quote(sys.executable),
        processes=wanted.gpus_per_node,
        program=shlex.join(program),
    )


TEMPLATE = """\
#!/bin/bash
{options}
set -euo pipefail

# The ranks meet at the first node of the job, on a port that follows from its number.
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${{nodes%%$'\\n'*}}
port=$((20000 + SLURM_JOB_ID % 20000))

# One torchrun per node. If a rank is lost, all end: a job that waits costs as much as one that trains.
srun --kill-on-bad-exit=1{step} {python} -m torch.distributed.run \\
  --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node={processes} \\
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:$port" \\
  {program}
"""
