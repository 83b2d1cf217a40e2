"""What a batch file asks of Slurm, as lines of `#SBATCH`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.options import option_name

TIME = re.compile(
    r"(?P<minutes>\d+)(:(?P<seconds>\d\d))?"
    r"|(?P<hours>\d+):(?P<of_hour>\d\d):(?P<of_minute>\d\d)"
    r"|(?P<days>\d+)-(?P<day_hours>\d+)(:(?P<day_minutes>\d\d)(:(?P<day_seconds>\d\d))?)?"
)
WORD = re.compile(r"[A-Za-z0-9_.,%@+/-]+")
MEMORY = re.compile(r"\d+([KMGT]B?)?", re.IGNORECASE)
OPTION = re.compile(r"(?:--)?([a-z][a-z0-9-]*)(?:=([!$-&(-\[\]-~]+))?")
"""An option of sbatch. Its value has no spaces, quotes, backslashes and `#`, which sbatch would take for
something else."""

OWN = {
    "nodes": "--nodes",
    "gpus-per-node": "--gpus-per-node",
    "ntasks-per-node": "--processes-per-node",
    "cpus-per-task": "--cpus-per-process",
    "cpus-per-gpu": "--cpus-per-process",
    "mem": "--mem",
    "time": "--time",
    "partition": "--partition",
    "qos": "--qos",
    "account": "--account",
    "job-name": "--job-name",
    "output": "--output",
    "requeue": "--requeue",
    "signal": "--stop-before",
    "open-mode": "--requeue",
}
"""Options of sbatch that have an option here."""
CONTRADICTING = {"ntasks", "gpus", "gpus-per-task", "gpus-per-socket", "ntasks-per-gpu", "wrap"}
"""Options of sbatch that start other processes than one a GPU."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What is asked of Slurm; None leaves a thing to the cluster's defaults. `others` are further options of
    sbatch, each `OPTION` or `OPTION=VALUE`."""

    nodes: int
    gpus_per_node: int
    processes_per_node: int
    time: str
    job_name: str
    output: str
    cpus_per_process: int | None = None
    mem: str | None = None
    partition: str | None = None
    qos: str | None = None
    account: str | None = None
    others: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what Slurm would not take, or would take for something else.

        Raises:
            UsageError: one sentence that names the option.
        """
        limit_s(self.time)
        for option in ("job_name", "output", "partition", "qos", "account"):
            word = getattr(self, option)
            if word and not WORD.fullmatch(word):
                raise UsageError(
                    f"{option_name(option)} {word!r}: one word of letters, digits and _ . , % @ + / -"
                )
        if self.mem is not None and not MEMORY.fullmatch(self.mem):
            raise UsageError(f"--mem {self.mem}: this is no amount of memory, e.g. 256GB or 900M")
        names = [_other(option)[0] for option in self.others]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"--sbatch {twice}: it is given twice")

    def options(self) -> dict[str, str]:
        """The options of sbatch by name; "" for one without a value."""
        given: dict[str, object] = {
            "job-name": self.job_name,
            "output": self.output,
            "time": self.time,
            "nodes": self.nodes,
            "ntasks-per-node": self.processes_per_node,
            "gpus-per-node": self.gpus_per_node or None,
            "cpus-per-task": self.cpus_per_process,
            "mem": self.mem,
            "partition": self.partition,
            "qos": self.qos,
            "account": self.account,
        }
        own = {name: str(value) for name, value in given.items() if value is not None}
        return own | dict(map(_other, self.others))


def limit_s(time: str) -> int:
    """A time limit of Slurm in seconds; 0 is none.

    Raises:
        UsageError: it is no time limit.
    """
    found = TIME.fullmatch(time)
    if not found:
        raise UsageError(f"--time {time}: this is no time limit, e.g. 04:00:00 or 1-12:00:00")
    part = {name: int(digits) for name, digits in found.groupdict(default="0").items()}
    return (
        part["days"] * 86_400
        + (part["hours"] + part["day_hours"]) * 3_600
        + (part["minutes"] + part["of_hour"] + part["day_minutes"]) * 60
        + part["seconds"]
        + part["of_minute"]
        + part["day_seconds"]
    )


def _other(option: str) -> tuple[str, str]:
    """Name and value of a further option of sbatch.

    Raises:
        UsageError: it cannot be written into a batch file, or is written there already.
    """
    found = OPTION.fullmatch(option)
    if not found:
        raise UsageError(
            f"--sbatch {option!r}: an option of sbatch such as exclusive or constraint=h100, without spaces, "
            "quotes, backslashes and #"
        )
    name, value = found.groups(default="")
    if name in OWN:
        raise UsageError(f"--sbatch {option}: use {OWN[name]} of this command")
    if name in CONTRADICTING:
        raise UsageError(
            f"--sbatch {option}: the processes follow from --nodes, --gpus-per-node and --processes-per-node"
        )
    return name, value
