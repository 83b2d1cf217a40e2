"""The text of a batch file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.signals import STOPPED
from hoptui_trainer.slurm.allocation import Allocation, limit_s
from hoptui_trainer.slurm.training_command import TrainingCommand

MODULE = ("-P", "-m", "hoptui_trainer")
"""-P: a file in the folder of the job never hides a module that the trainer imports."""
VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([^\0]*)")


def batch_file(
    wanted: Allocation,
    starter: Sequence[str],
    training: TrainingCommand,
    *,
    variables: Sequence[str] = (),
    stop_before_s: int | None = None,
) -> str:
    """The batch file that runs a training command, one process for each GPU.

    Args:
        starter: the words that start Python on the machines.
        variables: of the processes' environment, each `NAME=VALUE`.
        stop_before_s: seconds before the time limit at which the run is stopped and queued again; None: the
            job ends with its first start.

    Raises:
        UsageError: a word that Slurm would not take, or would take for something else.
    """
    wanted.check()
    options = wanted.options()
    if stop_before_s is not None:
        limit = limit_s(wanted.time)
        if 0 < limit <= stop_before_s:
            raise UsageError(
                f"--stop-before {stop_before_s}: it must be less than --time, which is {limit} seconds"
            )
        options |= {"requeue": "", "open-mode": "append", "signal": f"B:USR1@{stop_before_s}"}
    cpus = wanted.cpus_per_process
    parts = {
        "options": "\n".join(f"#SBATCH --{name}{value and '='}{value}" for name, value in options.items()),
        "exports": _exports(variables, cpus),
        # Since Slurm 22.05 srun no longer takes it from the batch file: without it all ranks of a machine may
        # share one core.
        "step": f" --cpus-per-task={cpus}" if cpus else "",
        "processes": wanted.processes_per_node,
    }
    if stop_before_s is None:
        return ONCE.format(**parts, program=shlex.join([*starter, *MODULE, *training.words]))
    folder = training.job.checkpoint_dir
    given = "" if folder is not None else ' --checkpoint-dir "$folder"'
    resume = ' --resume "$folder"'
    return REQUEUED.format(
        **parts,
        folder='"$PWD/$SLURM_JOB_NAME-$SLURM_JOB_ID"' if folder is None else shlex.quote(str(folder)),
        stopped=STOPPED,
        workload=training.workload,
        program=shlex.join([*starter, *MODULE, *training.words])
        + given
        + ("" if training.job.resume is not None else resume),
        resuming=shlex.join([*starter, *MODULE, *training.resuming]) + given + resume,
    )


def _exports(variables: Sequence[str], cpus: int | None) -> str:
    """Lines that set the environment; a variable given wins over one that is set anyway.

    Raises:
        UsageError: what is given is no variable.
    """
    environment = {"OMP_NUM_THREADS": str(cpus or 1)}
    for variable in variables:
        found = VARIABLE.fullmatch(variable)
        if not found:
            raise UsageError(f"--env {variable!r}: an environment variable, such as NCCL_DEBUG=INFO")
        environment[found[1]] = found[2]
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())


START = """\
#!/bin/bash
{options}
set -euo pipefail
{exports}

# The ranks meet at the first node of the job, on a port that follows from its number.
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${{nodes%%$'\\n'*}} MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export LOCAL_WORLD_SIZE={processes}
"""

RANK = "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID"

ONCE = (
    START
    + """
# If a rank is lost, all end: a job that waits costs as much as one that trains.
rank='"""
    + RANK
    + """; exec "$@"'
srun --kill-on-bad-exit=1{step} bash -c "$rank" rank \\
  {program}
"""
)

REQUEUED = (
    START
    + """
# Checkpoints, on a disk that all nodes share. A requeued job goes on from the newest. That has the knobs as
# they were by then, so the options for knobs count in the first start only.
folder={folder}
mkdir -p "$folder"
newest() {{ find "$folder" -maxdepth 1 -name '{workload}-[0-9]*.ckpt' | sort | tail -n 1; }}
before=$(newest)
program=(
  {program}
)
if [[ ${{SLURM_RESTART_COUNT:-0}} -gt 0 && $before ]]; then
  program=(
    {resuming}
  )
fi

# The trainer writes this file if a signal has stopped it, and not if it has finished or failed.
export {stopped}=$folder/.stopped-$SLURM_JOB_ID
rm -f "${stopped}"

# USR1 comes before the time limit. SIGTERM then asks the ranks to stop; while they start they ignore it, so
# it is repeated. TERM comes when Slurm ends the job: then Slurm alone decides whether to queue it again.
step='' out_of_time='' ended='' interrupted=''
ask_to_stop() {{
  while kill -0 "$step"; do scancel --signal=TERM "$SLURM_JOB_ID.0"; sleep 10; done
}}
trap 'interrupted=yes; [[ $out_of_time ]] || {{ ask_to_stop &>/dev/null & }}; out_of_time=yes' USR1
trap 'interrupted=yes ended=yes' TERM

# If a rank is lost, all end: a job that waits costs as much as one that trains.
rank='trap "" TERM; """
    + RANK
    + """; exec "$@"'
srun --kill-on-bad-exit=1{step} bash -c "$rank" rank "${{program[@]}}" &
step=$!
while interrupted='' code=0; wait "$step" || code=$?; [[ $interrupted ]]; do :; done

if [[ $code != 0 || $ended || ! -e ${stopped} ]]; then
  exit "$code"
fi
rm -f "${stopped}"
if [[ $out_of_time && $(newest) == "$before" ]]; then
  echo "job $SLURM_JOB_ID: not queued again, because no checkpoint was written within the time limit" >&2
  exit 1
fi
scontrol requeue "$SLURM_JOB_ID"
"""
)
