"""Stand-ins for `squeue` and `scontrol`, which answer as Slurm 22.05 did with three nodes."""

from __future__ import annotations

from pathlib import Path

BATCH = "1|1|RUNNING|gpu01|gpu[01-02]|None"
ARRAY = """\
2_[2-20%2]|2|PENDING|n/a||JobArrayTaskLimit
2_1|10|RUNNING|gpu01|gpu01|None
2_0|9|RUNNING|gpu03|gpu03|None
"""
HETEROGENEOUS = "3+0|3|RUNNING|gpu03|gpu03|None\n3+1|4|RUNNING|gpu02|gpu02|None\n"
JOBS = {
    "1": BATCH,
    "2": ARRAY,
    "2_1": "2_1|10|RUNNING|gpu01|gpu01|None",
    "2_15": "2_15|2|PENDING|n/a||JobArrayTaskLimit",
    "3": HETEROGENEOUS,
    "3+1": HETEROGENEOUS,
    "3+5": HETEROGENEOUS,
    "4": HETEROGENEOUS,
    "5": "5|5|PENDING|n/a||Resources",
    "6": "6|6|CANCELLED|gpu01|gpu[01-02]|None",
    "7": "7|7|RUNNING|login1|gpu[01-02]|None",  # salloc: the batch host is where it was typed
    "8": "8_1|81|COMPLETED|gpu01|gpu01|None\n8_2|8|RUNNING|gpu02|gpu02|None",
    "9": "9|9|RUNNING|-oProxyCommand=x|-oProxyCommand=x|None",
    "10": "2_1|10|RUNNING|gpu01|gpu01|None",
    "11": "11|11|RUNNING|gpu02|gpu[01-02]|None",
    "12": "12|12|CONFIGURING|gpu01|gpu[01-02]|None",
}
STEPS = {"1": "1.0|gpu02\n1.batch|gpu01\n", "4": "", "2": ""}
HOSTS = {"gpu[01-02]": "gpu01\ngpu02\n", "-oProxyCommand=x": "-oProxyCommand=x\n"}

SQUEUE = """#!/bin/sh
kind=jobs
for word in "$@"; do
  case $word in
    --steps) kind=steps ;;
    --format=slurm:%i) kind=mine ;;
    --jobs=*) job=${word#--jobs=} ;;
  esac
done
[ "$kind" = mine ] && { printf 'slurm:1\\nslurm:2_1\\nslurm:3+0\\n'; exit 0; }
cat "${0%/*}/$kind/$job" 2>/dev/null && exit 0
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
"""
SCONTROL = """#!/bin/sh
cat "${0%/*}/hosts/$3"
"""


def write_programs(folder: Path) -> None:
    """Write both programs and their answers to a folder, which then belongs on the PATH."""
    for name, answers in (("jobs", JOBS), ("steps", STEPS), ("hosts", HOSTS)):
        (folder / name).mkdir(parents=True)
        for key, answer in answers.items():
            (folder / name / key).write_text(answer)
    for name, script in (("squeue", SQUEUE), ("scontrol", SCONTROL)):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
