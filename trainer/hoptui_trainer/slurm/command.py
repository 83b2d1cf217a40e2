"""The command `hoptui train slurm`."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

from cyclopts import Parameter

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.job import AtLeastOne, Flag, NotNegative
from hoptui_trainer.slurm.allocation import Allocation
from hoptui_trainer.slurm.batch_file import batch_file
from hoptui_trainer.slurm.training_command import checked

STOP_BEFORE_S = 120


def slurm(
    *command: str,
    nodes: AtLeastOne = 1,
    gpus_per_node: NotNegative = 8,
    processes_per_node: AtLeastOne | None = None,
    cpus_per_process: Annotated[
        AtLeastOne | None, Parameter(name=("--cpus-per-process", "--cpus-per-gpu"))
    ] = None,
    mem: str | None = None,
    time: str = "1-00:00:00",
    partition: str | None = None,
    qos: str | None = None,
    account: str | None = None,
    job_name: str = "trainer",
    output: str = "%x-%j.log",
    requeue: Flag = False,
    stop_before: AtLeastOne | None = None,
    env: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    sbatch: Annotated[
        tuple[str, ...], Parameter(negative="", allow_leading_hyphen=True, show_default=False)
    ] = (),
    python: str | None = None,
) -> int:
    """Print a batch file for a training command: hoptui train slurm --nodes 2 -- lm --preset 124m > job.sh;
    sbatch job.sh

    srun starts one process for each GPU. The training command is checked before the file is printed. hoptui
    shows the run on the node of rank 0, by its name the first one.

    Parameters
    ----------
    command
        What follows `hoptui train`, after a --: ppo, lm or vision, and its options.
    nodes
        Machines.
    gpus_per_node
        GPUs, and processes, of each; 0 trains on CPUs.
    processes_per_node
        Processes of each machine, where it has no GPUs [default: 1].
    cpus_per_process
        CPU cores for each process, that is for each GPU [default: the cluster's].
    mem
        Memory of each machine, such as 256GB; 0 is all of it [default: the cluster's].
    time
        Time limit as Slurm writes it: minutes, hours:minutes:seconds, days-hours:minutes:seconds.
    partition
        Partition [default: the cluster's].
    qos
        Quality of service [default: the cluster's].
    account
        Account [default: yours].
    job_name
        Name of the job in Slurm.
    output
        File for what the job prints; %x is its name, %j its number.
    requeue
        When the job is preempted or its time is up, write a checkpoint, queue the job again, and go on from
        there. Checkpoints are in --checkpoint-dir of the training command [default: a folder with the name
        and the number of the job].
    stop_before
        Seconds before the time limit at which the run is stopped, with --requeue [default: 120].
    env
        Environment variable for all processes, such as NCCL_DEBUG=INFO; may be repeated.
    sbatch
        Any other option of sbatch, such as exclusive or constraint=h100; may be repeated.
    python
        Command that starts Python on the machines, such as "apptainer exec --nv image.sif python3" [default:
        the Python of this command].
    """
    if stop_before is not None and not requeue:
        raise UsageError("--stop-before: it has an effect with --requeue only")
    if gpus_per_node and processes_per_node not in (None, gpus_per_node):
        raise UsageError(
            f"--processes-per-node {processes_per_node}: a GPU has one process; --gpus-per-node 0 trains on "
            "CPUs"
        )
    processes = gpus_per_node or processes_per_node or 1
    training = checked(command, world=nodes * processes, on_gpu=gpus_per_node > 0, has_folder=requeue)
    allocation = Allocation(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        processes_per_node=processes,
        cpus_per_process=cpus_per_process,
        mem=mem,
        time=time,
        partition=partition,
        qos=qos,
        account=account,
        job_name=job_name,
        output=output,
        others=sbatch,
    )
    starter = shlex.split(python) if python else [sys.executable]
    after_s = (stop_before or STOP_BEFORE_S) if requeue else None
    print(batch_file(allocation, starter, training, variables=env, stop_before_s=after_s), end="")
    return 0
