"""What the environment says about this process: hoptui's switch, its rank, its GPUs and its command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hoptui.sdk.metric_values import clean_text

OFF = ("off", "0", "no", "false")
LIBRARIES = ("torch",)
SLURM_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
LONGEST_COMMAND = 1000


def switched_off(environ: Mapping[str, str]) -> bool:
    """Return whether `HOPTUI` switches hoptui off in this process."""
    return environ.get("HOPTUI", "").lower() in OFF


def ranks(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return (rank, world size) as torchrun sets them, or (0, 1). Slurm's srun alone sets neither."""
    try:
        return int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1


def visible_devices(environ: Mapping[str, str]) -> str | None:
    """Return `CUDA_VISIBLE_DEVICES` unchanged: indices or UUIDs. None: it is not set, so all are visible."""
    return environ.get("CUDA_VISIBLE_DEVICES")


def slurm_gpus(environ: Mapping[str, str]) -> str:
    """Return the node's indices of the GPUs that Slurm gave to this step or job, or "".

    A device cgroup may number the GPUs differently inside the job. These indices are those of the node.
    """
    return next((environ[name] for name in SLURM_GPUS if environ.get(name)), "")


def command_line(argv: Sequence[str]) -> str:
    """Return the command that started the process. It is shown, and it identifies runs of the same kind.

    `python -m trainer` becomes `trainer`, the same as the console script. A long command is cut and ends with
    `…`.
    """
    if not argv:
        return ""
    file = Path(argv[0])
    name = file.parent.name if file.name == "__main__.py" and file.parent.name else file.name
    command = clean_text(" ".join([name, *argv[1:]]), LONGEST_COMMAND + 1)
    return command if len(command) <= LONGEST_COMMAND else f"{command[: LONGEST_COMMAND - 1]}…"


def versions(imported: Mapping[str, object]) -> dict[str, str]:
    """Return the versions of the libraries that decide the speed, if they are imported. Imports nothing."""
    found = {name: getattr(imported.get(name), "__version__", None) for name in LIBRARIES}
    return {name: str(version) for name, version in found.items() if version}
